//! The address of a remote store, as people write it:
//! `redis://[USER[:PASSWORD]@]ADDRESS:PORT[/DATABASE]`, the user empty for the default one.
//!
//! The address is a literal one: the connecting thread may be one that can't resolve names. Any
//! other form is refused, never guessed. A password is never printed for debugging.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

/// The address of a Redis or Valkey server, and the user there.
#[derive(Clone, PartialEq, Eq)]
pub struct RemoteAddress {
    /// The server's address and port; those of any node, if it is a cluster.
    pub socket: SocketAddr,
    /// The user, if it is not the default one.
    pub user: Option<String>,
    /// The password, if it takes one. A user without one is told the empty password.
    pub password: Option<String>,
    /// The number of the database; a cluster has only 0.
    pub database: u32,
}

/// Why a text is no such address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// It does not begin with `redis://`.
    #[error("a remote store is named like redis://127.0.0.1:6379")]
    Scheme,
    /// There is no literal address with a port.
    #[error("a remote store's address is a literal one with a port, like 127.0.0.1:6379 or [::1]:6379")]
    Socket,
    /// The part behind the address is not a number.
    #[error("what follows a remote store's port is the number of its database, like /0")]
    Database,
    /// The user or password has a broken escape, or nothing is before the `@`.
    #[error(
        "a remote store's user and password are written as USER:PASSWORD@ or USER@, with %40 for @ and %25 for %"
    )]
    Credentials,
}

const SCHEME: &str = "redis://";

impl FromStr for RemoteAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let rest = text.strip_prefix(SCHEME).ok_or(AddressError::Scheme)?;
        let (credentials, place) = rest.rsplit_once('@').map_or((None, rest), |(who, at)| (Some(who), at));
        let (user, password) = match credentials.map(|who| who.split_once(':').ok_or(who)) {
            None => (None, None),
            Some(Err("")) => return Err(AddressError::Credentials),
            Some(Err(user)) => (Some(unescape(user)?), None),
            Some(Ok((user, password))) => {
                (Some(unescape(user)?).filter(|user| !user.is_empty()), Some(unescape(password)?))
            }
        };
        let (socket, database) = place.split_once('/').unwrap_or((place, ""));
        let socket = socket.parse().map_err(|_| AddressError::Socket)?;
        let database = match database {
            "" => 0,
            number => number.parse().map_err(|_| AddressError::Database)?,
        };
        Ok(Self { socket, user, password, database })
    }
}

/// As it is read, with the password.
impl fmt::Display for RemoteAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(SCHEME)?;
        let user = escape(self.user.as_deref().unwrap_or_default());
        match &self.password {
            Some(password) => write!(f, "{user}:{}@", escape(password))?,
            None if self.user.is_some() => write!(f, "{user}@")?,
            None => {}
        }
        write!(f, "{}/{}", self.socket, self.database)
    }
}

/// As it may be shown to anyone.
impl fmt::Debug for RemoteAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}/{}", self.socket, self.database)
    }
}

/// All but letters and digits as `%` and two hexadecimal digits.
fn escape(text: &str) -> String {
    let byte = |byte: u8| {
        if byte.is_ascii_alphanumeric() { char::from(byte).to_string() } else { format!("%{byte:02X}") }
    };
    text.bytes().map(byte).collect()
}

fn unescape(text: &str) -> Result<String, AddressError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        bytes.push(if byte == b'%' {
            let (digits, tail) = rest.split_at_checked(2).ok_or(AddressError::Credentials)?;
            rest = tail;
            let digit = |at: usize| char::from(digits[at]).to_digit(16).ok_or(AddressError::Credentials);
            (digit(0)? << 4 | digit(1)?) as u8
        } else {
            byte
        });
    }
    String::from_utf8(bytes).map_err(|_| AddressError::Credentials)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_address_comes_back_as_it_went(
            v6: bool, port: u16, user in proptest::option::of(".{1,10}"), password in proptest::option::of(".{0,20}"),
            database: u32,
        ) {
            let ip = if v6 { "[::1]" } else { "127.0.0.1" };
            let socket = format!("{ip}:{port}").parse().expect("an address");
            let address = RemoteAddress { socket, user, password, database };
            prop_assert_eq!(address.to_string().parse(), Ok(address));
        }

        #[test]
        fn no_text_makes_reading_panic(text: String) {
            prop_assert!(text.parse::<RemoteAddress>().is_err());
            let _ = format!("{SCHEME}{text}").parse::<RemoteAddress>();
        }
    }

    #[test]
    fn an_error_names_the_wrong_part() {
        for (text, error) in [
            ("127.0.0.1:6379", AddressError::Scheme),
            ("rediss://127.0.0.1:6379", AddressError::Scheme),
            ("redis://localhost:6379", AddressError::Socket),
            ("redis://127.0.0.1", AddressError::Socket),
            ("redis://127.0.0.1:6379/x", AddressError::Database),
            ("redis://@127.0.0.1:6379", AddressError::Credentials),
            ("redis://u:%4@127.0.0.1:6379", AddressError::Credentials),
        ] {
            assert_eq!(text.parse::<RemoteAddress>(), Err(error), "{text}");
        }
        let address: RemoteAddress = "redis://:p%40ss@127.0.0.1:6379/3".parse().expect("whole");
        assert_eq!((address.user.as_deref(), address.password.as_deref()), (None, Some("p@ss")));
        assert_eq!(format!("{address:?}"), "redis://127.0.0.1:6379/3");
        let address: RemoteAddress = "redis://me@127.0.0.1:6379".parse().expect("whole");
        assert_eq!((address.user.as_deref(), address.password.as_deref()), (Some("me"), None));
    }
}
