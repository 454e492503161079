//! Addresses, as people write them.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// Where a receiver listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// A host and a port.
    Tcp {
        /// A name or an address, without brackets.
        host: String,
        /// The port; a listener takes 0 for any.
        port: u16,
    },
    /// A socket in the file system. The permissions of its directory decide which users can
    /// connect.
    Unix(PathBuf),
    /// Several of TCP: a sender spreads its channels over them, and a receiver listens at all.
    Several(Vec<Self>),
}

impl FromStr for Endpoint {
    type Err = String;

    /// Reads `tcp://HOST:PORT`, `HOST:PORT` or `unix:///PATH`; several of TCP with commas between.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "{text:?} is no address; write tcp://HOST:PORT, like tcp://127.0.0.1:7000, or unix:///PATH"
            )
        };
        if let Some(path) = text.strip_prefix("unix://") {
            return if path.starts_with('/') { Ok(Self::Unix(path.into())) } else { Err(wrong()) };
        }
        if text.contains(',') {
            let each = text.strip_prefix("tcp://").unwrap_or(text).split(',');
            let each = each.map(|one| match one.parse() {
                Ok(Self::Unix(_)) => Err(wrong()),
                other => other,
            });
            return each.collect::<Result<_, _>>().map(Self::Several);
        }
        let (host, port) = text.strip_prefix("tcp://").unwrap_or(text).rsplit_once(':').ok_or_else(wrong)?;
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let port = port.parse().map_err(|_| wrong())?;
        if host.is_empty() || host.contains('/') {
            Err(wrong())
        } else {
            Ok(Self::Tcp { host: host.to_owned(), port })
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "tcp://[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "tcp://{host}:{port}"),
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
            Self::Several(all) => {
                let each = all.iter().map(ToString::to_string);
                let each = each.map(|one| one.strip_prefix("tcp://").map_or(one.clone(), str::to_owned));
                write!(f, "tcp://{}", each.collect::<Vec<_>>().join(","))
            }
        }
    }
}

impl Endpoint {
    /// Whether only this machine can connect: a Unix socket, or an address of the loopback device.
    /// Any name but `localhost` is taken to be reachable from elsewhere.
    #[must_use]
    pub fn is_local(&self) -> bool {
        match self {
            Self::Unix(_) => true,
            Self::Tcp { host, .. } => {
                host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
            }
            Self::Several(all) => all.iter().all(Self::is_local),
        }
    }

    /// Each single address.
    pub(crate) fn each(&self) -> &[Self] {
        match self {
            Self::Several(all) => all,
            one => std::slice::from_ref(one),
        }
    }

    /// The addresses in the order in which a channel tries them: its own first.
    pub(crate) fn in_turn(&self, channel: u16) -> impl Iterator<Item = &Self> {
        let all = self.each();
        all.iter().cycle().skip(usize::from(channel) % all.len().max(1)).take(all.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_parses_its_own_text() {
        for (text, local) in [
            ("tcp://127.0.0.1:7000", true),
            ("tcp://[::1]:7000", true),
            ("tcp://0.0.0.0:7000", false),
            ("tcp://[::]:1", false),
            ("tcp://example.org:65535", false),
            ("tcp://localhost:1", true),
            ("unix:///run/a b.sock", true),
            ("unix:///run/a,b.sock", true),
            ("tcp://127.0.0.1:1,[::1]:2", true),
            ("tcp://127.0.0.1:1,10.0.0.1:2,example.org:3", false),
        ] {
            let endpoint: Endpoint = text.parse().expect(text);
            assert_eq!((endpoint.to_string().as_str(), endpoint.is_local()), (text, local));
        }
        assert_eq!("127.0.0.1:7000".parse(), Ok(Endpoint::Tcp { host: "127.0.0.1".to_owned(), port: 7000 }));
        for text in [
            "",
            "tcp://",
            "127.0.0.1",
            "tcp://:7000",
            "unix://relative",
            "tcp://host:70000",
            "http://a:1",
            "a:1,",
            "a:1,unix:///b",
        ] {
            assert!(text.parse::<Endpoint>().is_err_and(|error| error.contains("tcp://HOST:PORT")), "{text}");
        }
    }
}
