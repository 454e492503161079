//! The configuration of one managed process, and the one string that carries it through `PAGODA_CONFIG`.
//!
//! The string is `budget=BYTES;base=64K;counters=PATH;store=DIR;file=BYTES;best-effort=0;fetch-ahead=1;remote=ADDRESS;remote-limit=BYTES;
//! remote-password=PATH;zones=NAME=BYTES@PLACE,...;zone-policy=NAME;trace=PATH`, in one line, remote and its limit only if there is a remote store, its password's path only if it has one, zones and
//! their policy only if there are several, the trace only if there is one. A path may hold any byte but NUL: `%`, `;` and NUL are written as `%` and
//! two hexadecimal digits. Reading must never guess: a field that is
//! unknown, missing or given twice is an error, for then the two sides are of different versions.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use pagoda_core::page::BasePage;
use pagoda_core::size::Bytes;
use pagoda_core::zone::ZonePolicy;

use crate::store::RemoteAddress;
use crate::zones::ZoneConfig;

/// The environment variable that carries a [`Config`] to the preload library.
pub const ENV: &str = "PAGODA_CONFIG";

/// The least budget that the engine can keep: what it needs itself, and enough frames for a program to go on.
///
/// | what | MiB |
/// |---|---|
/// | stacks of handlers, watcher, reclaimer and watchdog: at most 16 of 128 KiB | 2 |
/// | software page tables: 8 bytes an entry, 32 GiB of 64 KiB base pages | 4 |
/// | staging for compression and direct I/O, both ways: two extents of 1 MiB for each of 4 threads | 8 |
/// | what arrives between two looks of the watcher: 2 ms at 1 GiB/s, twice over | 4 |
/// | ready frames between the low and the high watermark | 4 |
/// | frames one instruction may need at once (2 instruction pages, 2 operands, 1 stack) at a 2 MiB base page | 10 |
pub const MINIMUM_BUDGET: Bytes = Bytes::mib(2 + 4 + 8 + 4 + 4 + 10);

/// What a managed process is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// All the anonymous memory that the process may hold.
    pub budget: Bytes,
    /// The unit of management.
    pub base_page: BasePage,
    /// The counters file, made by whoever reads it; none if nobody does.
    pub counters: Option<PathBuf>,
    /// Where the store's unlinked file is made.
    pub store_directory: PathBuf,
    /// The most that file may grow to; zero means that nothing is spilled.
    pub file_limit: Bytes,
    /// Where the engine can't start, let the program run unmanaged instead of ending it.
    pub best_effort: bool,
    /// Who reads upwards gets some pages more with a fault than the one it is for.
    pub fetch_ahead: bool,
    /// The remote store, if there is one. A password in it would stand in the environment: see `remote_password`.
    pub remote: Option<RemoteAddress>,
    /// Where its password is read, a [`Secret`](pagoda_linux::secret::Secret) of `pagoda run`; none if the address has what it takes.
    pub remote_password: Option<PathBuf>,
    /// The most that may be held there; nothing without one.
    pub remote_limit: Bytes,
    /// The zones that the budget is divided among, which are all of it; none if it is not divided.
    pub zones: Vec<ZoneConfig>,
    /// How they share allocations.
    pub zone_policy: ZonePolicy,
    /// The trace, made by whoever reads it; none if nobody does.
    pub trace: Option<PathBuf>,
}

/// Why a configuration string could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigError {
    /// The text at this byte is not `name=value`.
    NotAField {
        /// Where it starts.
        at_byte: usize,
    },
    /// The field at this byte has a name that this version does not know.
    UnknownField {
        /// Where it starts.
        at_byte: usize,
    },
    /// This field is there twice.
    Twice(&'static str),
    /// This field is missing.
    Missing(&'static str),
    /// This field's value can't be read.
    BadValue(&'static str),
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAField { at_byte } => {
                write!(f, "{ENV}: what starts at byte {at_byte} is not name=value")
            }
            Self::UnknownField { at_byte } => {
                write!(f, "{ENV}: the field that starts at byte {at_byte} is unknown")
            }
            Self::Twice(name) => write!(f, "{ENV}: `{name}` is given twice"),
            Self::Missing(name) => write!(f, "{ENV}: `{name}` is missing"),
            Self::BadValue(name) => write!(f, "{ENV}: the value of `{name}` can't be read"),
        }?;
        f.write_str("; use the pagoda command and the preload library of one version")
    }
}

impl std::error::Error for ConfigError {}

const BUDGET: &str = "budget";
const BASE: &str = "base";
const COUNTERS: &str = "counters";
const STORE: &str = "store";
const FILE: &str = "file";
const BEST_EFFORT: &str = "best-effort";
const FETCH_AHEAD: &str = "fetch-ahead";
const REMOTE: &str = "remote";
const REMOTE_LIMIT: &str = "remote-limit";
const REMOTE_PASSWORD: &str = "remote-password";
const ZONES: &str = "zones";
const ZONE_POLICY: &str = "zone-policy";
const TRACE: &str = "trace";

/// Every field's name; the order is the one they are written in.
const FIELDS: [&str; 13] = [
    BUDGET,
    BASE,
    COUNTERS,
    STORE,
    FILE,
    BEST_EFFORT,
    FETCH_AHEAD,
    REMOTE,
    REMOTE_LIMIT,
    REMOTE_PASSWORD,
    ZONES,
    ZONE_POLICY,
    TRACE,
];

impl Config {
    /// The value of [`ENV`] that says this.
    #[must_use]
    pub fn to_env(&self) -> OsString {
        let mut text = format!("{BUDGET}={};{BASE}={}", self.budget.get(), self.base_page).into_bytes();
        if let Some(path) = &self.counters {
            text.extend_from_slice(b";counters=");
            escape(path.as_os_str(), &mut text);
        }
        text.extend_from_slice(b";store=");
        escape(self.store_directory.as_os_str(), &mut text);
        let [best_effort, fetch_ahead] = [self.best_effort, self.fetch_ahead].map(u8::from);
        let file = self.file_limit.get();
        let rest = format!(";{FILE}={file};{BEST_EFFORT}={best_effort};{FETCH_AHEAD}={fetch_ahead}");
        text.extend_from_slice(rest.as_bytes());
        if let Some(remote) = &self.remote {
            let rest = format!(";{REMOTE}={remote};{REMOTE_LIMIT}={}", self.remote_limit.get());
            text.extend_from_slice(rest.as_bytes());
        }
        if let Some(path) = &self.remote_password {
            text.extend_from_slice(b";remote-password=");
            escape(path.as_os_str(), &mut text);
        }
        if !self.zones.is_empty() {
            let zones: Vec<String> = self.zones.iter().map(ZoneConfig::to_string).collect();
            let rest = format!(";{ZONES}={};{ZONE_POLICY}={}", zones.join(","), self.zone_policy.name());
            text.extend_from_slice(rest.as_bytes());
        }
        if let Some(path) = &self.trace {
            text.extend_from_slice(b";trace=");
            escape(path.as_os_str(), &mut text);
        }
        OsString::from_vec(text)
    }

    /// Reads the value of [`ENV`], without asking the environment: the caller has the bytes.
    pub fn from_env(text: &[u8]) -> Result<Self, ConfigError> {
        let mut values: [Option<&[u8]>; FIELDS.len()] = [None; FIELDS.len()];
        let mut at_byte = 0;
        for field in text.split(|&byte| byte == b';') {
            let equals =
                field.iter().position(|&byte| byte == b'=').ok_or(ConfigError::NotAField { at_byte })?;
            let index = FIELDS.iter().position(|name| name.as_bytes() == &field[..equals]);
            let index = index.ok_or(ConfigError::UnknownField { at_byte })?;
            if values[index].replace(&field[equals + 1..]).is_some() {
                return Err(ConfigError::Twice(FIELDS[index]));
            }
            at_byte += field.len() + 1;
        }
        let [
            budget,
            base,
            counters,
            store,
            file,
            best_effort,
            fetch_ahead,
            remote,
            remote_limit,
            remote_password,
            zones,
            zone_policy,
            trace,
        ] = values;
        Ok(Self {
            budget: parse(BUDGET, budget)?,
            base_page: parse(BASE, base)?,
            counters: counters.map(|value| path(COUNTERS, value)).transpose()?,
            store_directory: path(STORE, store.ok_or(ConfigError::Missing(STORE))?)?,
            file_limit: parse(FILE, file)?,
            best_effort: flag(BEST_EFFORT, best_effort)?,
            fetch_ahead: flag(FETCH_AHEAD, fetch_ahead)?,
            remote: remote.map(|value| parse(REMOTE, Some(value))).transpose()?,
            remote_limit: match remote {
                Some(_) => parse(REMOTE_LIMIT, remote_limit)?,
                None => Bytes::ZERO,
            },
            remote_password: remote_password.map(|value| path(REMOTE_PASSWORD, value)).transpose()?,
            zone_policy: match zones {
                Some(_) => parse(ZONE_POLICY, zone_policy)?,
                None => ZonePolicy::default(),
            },
            trace: trace.map(|value| path(TRACE, value)).transpose()?,
            zones: zones.map_or(Ok(Vec::new()), |list| {
                list.split(|&byte| byte == b',').map(|zone| parse(ZONES, Some(zone))).collect()
            })?,
        })
    }
}

/// The longest password that `pagoda run` hands over.
pub const PASSWORD_BYTES_MAX: usize = 1024;

impl Config {
    /// The remote store with its password, which is read where it is.
    ///
    /// # Errors
    /// It can't be read: `pagoda run` has ended, or is another user's.
    pub fn remote_with_password(&self) -> std::io::Result<Option<RemoteAddress>> {
        let mut remote = self.remote.clone();
        if let (Some(address), Some(path)) = (&mut remote, &self.remote_password) {
            address.password = Some(pagoda_linux::secret::read(path, PASSWORD_BYTES_MAX)?);
        }
        Ok(remote)
    }

    /// Reads the password while `pagoda run` is there to be asked: a process that forks when that is gone has it. If it can't be
    /// read all stays as it is, and the engine says so when it starts.
    pub fn keep_password(&mut self) {
        if let Ok(Some(remote)) = self.remote_with_password() {
            self.remote = Some(remote);
            self.remote_password = None;
        }
    }
}

fn parse<T: std::str::FromStr>(name: &'static str, value: Option<&[u8]>) -> Result<T, ConfigError> {
    let text = std::str::from_utf8(value.ok_or(ConfigError::Missing(name))?);
    text.ok().and_then(|text| text.parse().ok()).ok_or(ConfigError::BadValue(name))
}

fn flag(name: &'static str, value: Option<&[u8]>) -> Result<bool, ConfigError> {
    match value.ok_or(ConfigError::Missing(name))? {
        b"0" => Ok(false),
        b"1" => Ok(true),
        _ => Err(ConfigError::BadValue(name)),
    }
}

fn escape(path: &OsStr, text: &mut Vec<u8>) {
    for &byte in path.as_bytes() {
        match byte {
            b'%' | b';' | 0 => text.extend_from_slice(format!("%{byte:02X}").as_bytes()),
            _ => text.push(byte),
        }
    }
}

/// An empty path and one with a NUL in it name nothing, so they are errors here and not when they are opened.
fn path(name: &'static str, value: &[u8]) -> Result<PathBuf, ConfigError> {
    let bad = ConfigError::BadValue(name);
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value;
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        bytes.push(if byte == b'%' {
            let (digits, tail) = rest.split_at_checked(2).ok_or(bad)?;
            rest = tail;
            hex(digits[0]).zip(hex(digits[1])).map(|(high, low)| high << 4 | low).ok_or(bad)?
        } else {
            byte
        });
    }
    if bytes.is_empty() || bytes.contains(&0) {
        return Err(bad);
    }
    Ok(PathBuf::from(OsString::from_vec(bytes)))
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn config(
        counters: Option<Vec<u8>>,
        store: Vec<u8>,
        budget: u64,
        file: u64,
        [best_effort, fetch_ahead]: [bool; 2],
    ) -> Config {
        let path = |bytes| PathBuf::from(OsString::from_vec(bytes));
        Config {
            budget: Bytes::new(budget),
            base_page: BasePage::K16,
            counters: counters.map(path),
            store_directory: path(store),
            file_limit: Bytes::new(file),
            best_effort,
            fetch_ahead,
            remote: None,
            remote_limit: Bytes::ZERO,
            remote_password: None,
            zones: Vec::new(),
            zone_policy: ZonePolicy::default(),
            trace: None,
        }
    }

    proptest! {
        #[test]
        fn any_path_comes_back_as_it_went(
            counters in proptest::option::of(proptest::collection::vec(1u8.., 1..40)),
            store in proptest::collection::vec(1u8.., 1..40),
            budget: u64, file: u64, flags: [bool; 2], remote in proptest::option::of("[ -~]{1,9}"), remote_limit: u64,
            zones in proptest::collection::vec("[a-z]{1,9}=[0-9]{1,9}(|@remote|@node[0-9]{1,5})", 0..4),
            trace in proptest::option::of("/[ -~]{1,9}"), password in proptest::option::of("/[ -~]{1,9}"),
        ) {
            let mut config = config(counters, store, budget, file, flags);
            if let Some(password) = remote {
                let mut address: RemoteAddress = "redis://127.0.0.1:6379".parse().expect("an address");
                address.password = Some(password);
                config.remote = Some(address);
                config.remote_limit = Bytes::new(remote_limit);
            }
            if !zones.is_empty() {
                config.zones = zones.iter().map(|zone| zone.parse().expect("a zone")).collect();
                config.zone_policy = ZonePolicy::ALL[config.zones.len()];
            }
            config.trace = trace.map(PathBuf::from);
            config.remote_password = password.map(PathBuf::from);
            prop_assert_eq!(Config::from_env(config.to_env().as_bytes()), Ok(config));
        }

        #[test]
        fn no_text_makes_reading_panic(text in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(Config::from_env(&text).is_err());
        }
    }

    #[test]
    fn a_password_is_read_where_it_is_and_kept_by_who_has_asked() {
        let secret = pagoda_linux::secret::Secret::create(c"a-test's", b"sesame").expect("memory");
        let mut config = config(None, b"/s".to_vec(), 1, 2, [false; 2]);
        config.remote = Some("redis://127.0.0.1:6379".parse().expect("an address"));
        config.remote_password = Some(secret.path());
        let text = config.to_env().into_string().expect("UTF-8");
        assert!(!text.contains("sesame"), "{text}");
        let mut other = Config::from_env(text.as_bytes()).expect("readable");
        other.keep_password();
        drop(secret);
        let password = |config: &Config| {
            config.remote_with_password().map(|remote| remote.expect("there is one").password).ok()
        };
        assert_eq!(password(&other), Some(Some("sesame".to_owned())));
        assert_eq!(password(&config), None, "its maker is gone");
        config.keep_password();
        assert!(config.remote_password.is_some(), "the engine says so when it starts");
    }

    #[test]
    fn what_is_wrong_is_named() {
        let good = "budget=1;base=64K;store=/s;file=2;best-effort=0;fetch-ahead=1";
        assert!(Config::from_env(good.as_bytes()).is_ok());
        let cases = [
            ("", ConfigError::NotAField { at_byte: 0 }),
            ("budget=1;base", ConfigError::NotAField { at_byte: 9 }),
            ("budget=1;colour=2", ConfigError::UnknownField { at_byte: 9 }),
            ("budget=1;budget=1", ConfigError::Twice(BUDGET)),
            ("base=64K;store=/s;file=2;best-effort=0;fetch-ahead=1", ConfigError::Missing(BUDGET)),
            ("budget=x;base=64K;store=/s;file=2;best-effort=0;fetch-ahead=1", ConfigError::BadValue(BUDGET)),
            ("budget=1;base=5K;store=/s;file=2;best-effort=0;fetch-ahead=1", ConfigError::BadValue(BASE)),
            ("budget=1;base=64K;store=;file=2;best-effort=0;fetch-ahead=1", ConfigError::BadValue(STORE)),
            ("budget=1;base=64K;store=/%4;file=2;best-effort=0;fetch-ahead=1", ConfigError::BadValue(STORE)),
            ("budget=1;base=64K;store=/%+1;file=2;best-effort=0;fetch-ahead=1", ConfigError::BadValue(STORE)),
            ("budget=1;base=64K;store=/%00;file=2;best-effort=0;fetch-ahead=1", ConfigError::BadValue(STORE)),
            ("budget=1;base=64K;store=/s;file=2;best-effort=2", ConfigError::BadValue(BEST_EFFORT)),
            ("budget=1;base=64K;store=/s;file=2;best-effort=0", ConfigError::Missing(FETCH_AHEAD)),
            (
                "budget=1;base=64K;store=/s;file=2;best-effort=0;fetch-ahead=",
                ConfigError::BadValue(FETCH_AHEAD),
            ),
            (
                "budget=1;base=64K;store=/s;file=2;best-effort=0;fetch-ahead=1;remote=x",
                ConfigError::BadValue(REMOTE),
            ),
            (
                "budget=1;base=64K;store=/s;file=2;best-effort=0;fetch-ahead=1;remote=redis://[::1]:1",
                ConfigError::Missing(REMOTE_LIMIT),
            ),
            (
                "budget=1;base=64K;store=/s;file=2;best-effort=0;fetch-ahead=1;zones=a=1",
                ConfigError::Missing(ZONE_POLICY),
            ),
            (
                "budget=1;base=64K;store=/s;file=2;best-effort=0;fetch-ahead=1;zones=a=1,b;zone-policy=fair",
                ConfigError::BadValue(ZONES),
            ),
            (
                "budget=1;base=64K;store=/s;file=2;best-effort=0;fetch-ahead=1;zones=a=1;zone-policy=fairest",
                ConfigError::BadValue(ZONE_POLICY),
            ),
        ];
        for (text, error) in cases {
            assert_eq!(Config::from_env(text.as_bytes()), Err(error), "{text}");
        }
    }
}
