//! The configuration of one managed process, and the one string that carries it through
//! `PAGODA_CONFIG`.
//!
//! The string is one line of these fields:
//!
//! ```text
//! budget=BYTES;base=64K;counters=PATH;store=DIR;file=BYTES;best-effort=0;fetch-ahead=1;
//! io-uring=1;remote=ADDRESS;remote-limit=BYTES;remote-password=PATH;
//! zones=NAME=BYTES@PLACE,...;zone-policy=NAME;trace=PATH;give-up=MS
//! ```
//!
//! A field of something optional is left out without it: io_uring, the remote store and its
//! password, several zones and their policy, the trace, a patience other than ten seconds. `%`, `;`
//! and NUL in a path are written as `%` and two hexadecimal digits. Parsing must never guess. A
//! field that is unknown, missing or given twice is an error: the two sides are of different
//! versions.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::time::Duration;

use pagoda_core::budget::patience::GIVE_UP_NS;
use pagoda_core::page::BasePage;
use pagoda_core::size::Bytes;
use pagoda_core::zone::ZonePolicy;

use crate::frames::zones::ZoneConfig;
use crate::store::RemoteAddress;

/// The environment variable that carries a [`Config`] to the preload library.
pub const ENV: &str = "PAGODA_CONFIG";

/// The least budget that the engine can keep: its own needs, and enough frames for a program to go
/// on.
///
/// | for | MiB |
/// |---|---|
/// | stacks of handlers, watcher, reclaimer and watchdog: at most 16 of 128 KiB | 2 |
/// | software page tables: 8 bytes an entry, 32 GiB of 64 KiB base pages | 4 |
/// | staging for compression and direct I/O: two extents of 1 MiB for each of 4 threads | 8 |
/// | growth between two looks of the watcher: 2 ms at 1 GiB/s, twice over | 4 |
/// | ready frames between the low and the high watermark | 4 |
/// | base pages of 2 MiB for one instruction: 2 of code, 2 operands, 1 of stack | 10 |
pub const MINIMUM_BUDGET: Bytes = Bytes::mib(2 + 4 + 8 + 4 + 4 + 10);

/// How long a process waits for memory, unless a test says otherwise.
pub const GIVE_UP: Duration = Duration::from_nanos(GIVE_UP_NS);

/// The configuration of a managed process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// All the anonymous memory that the process may hold.
    pub budget: Bytes,
    /// The unit of management.
    pub base_page: BasePage,
    /// The counters file, made by its reader; none without a reader.
    pub counters: Option<PathBuf>,
    /// Where the store's unlinked file is made.
    pub store_directory: PathBuf,
    /// The most that file may grow to; zero means that nothing is spilled.
    pub file_limit: Bytes,
    /// Several requests to that file may be in flight at once, by io_uring.
    pub io_uring: bool,
    /// Where the engine can't start, let the program run unmanaged instead of ending it.
    pub best_effort: bool,
    /// Whether sequential reads get readahead of stored pages.
    pub fetch_ahead: bool,
    /// The remote store, if there is one. A password in it would stand in the environment: see
    /// `remote_password`.
    pub remote: Option<RemoteAddress>,
    /// The file with its password, a [`Secret`](pagoda_linux::mem::secret::Secret) of `pagoda run`;
    /// none if the address needs no other.
    pub remote_password: Option<PathBuf>,
    /// The most that may be held there; nothing without one.
    pub remote_limit: Bytes,
    /// The zones that the budget is divided among, which are all of it; none if it is not divided.
    pub zones: Vec<ZoneConfig>,
    /// How they share allocations.
    pub zone_policy: ZonePolicy,
    /// The trace, made by its reader; none without a reader.
    pub trace: Option<PathBuf>,
    /// A limit of address space was set before the tree began: it is not one that the program set.
    pub is_address_limited: bool,
    /// Before a process dumps core, everything is brought back.
    pub core: bool,
    /// How long the process may wait for memory that can't be had before it is ended, in whole
    /// milliseconds. Only tests that wait for that end shorten it, so errors say "ten seconds".
    pub give_up: Duration,
}

impl Config {
    /// The configuration of a library's manager by default: it writes nothing to disk.
    #[must_use]
    pub(crate) fn library() -> Self {
        Self {
            budget: Bytes::mib(256),
            base_page: BasePage::default(),
            counters: None,
            store_directory: PathBuf::new(),
            file_limit: Bytes::ZERO,
            io_uring: true,
            best_effort: false,
            fetch_ahead: true,
            remote: None,
            remote_limit: Bytes::ZERO,
            remote_password: None,
            zones: Vec::new(),
            zone_policy: ZonePolicy::default(),
            trace: None,
            is_address_limited: false,
            core: false,
            give_up: GIVE_UP,
        }
    }
}

/// Why a configuration string could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
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
const IO_URING: &str = "io-uring";
const REMOTE: &str = "remote";
const REMOTE_LIMIT: &str = "remote-limit";
const REMOTE_PASSWORD: &str = "remote-password";
const ZONES: &str = "zones";
const ZONE_POLICY: &str = "zone-policy";
const TRACE: &str = "trace";
const ADDRESS_LIMITED: &str = "address-limited";
const CORE: &str = "core";
const GIVE_UP_MS: &str = "give-up";

/// Every field's name; the order is the one they are written in.
const FIELDS: [&str; 17] = [
    BUDGET,
    BASE,
    COUNTERS,
    STORE,
    FILE,
    BEST_EFFORT,
    FETCH_AHEAD,
    IO_URING,
    REMOTE,
    REMOTE_LIMIT,
    REMOTE_PASSWORD,
    ZONES,
    ZONE_POLICY,
    TRACE,
    ADDRESS_LIMITED,
    CORE,
    GIVE_UP_MS,
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
        if self.io_uring {
            text.extend_from_slice(b";io-uring=1");
        }
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
        if self.is_address_limited {
            text.extend_from_slice(b";address-limited=1");
        }
        if self.core {
            text.extend_from_slice(b";core=1");
        }
        if self.give_up != GIVE_UP {
            text.extend_from_slice(format!(";{GIVE_UP_MS}={}", self.give_up.as_millis()).as_bytes());
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
            io_uring,
            remote,
            remote_limit,
            remote_password,
            zones,
            zone_policy,
            trace,
            address_limited,
            core,
            give_up,
        ] = values;
        let set = |name, value: Option<&[u8]>| value.map_or(Ok(false), |value| flag(name, Some(value)));
        Ok(Self {
            budget: parse(BUDGET, budget)?,
            base_page: parse(BASE, base)?,
            counters: counters.map(|value| path(COUNTERS, value)).transpose()?,
            store_directory: path(STORE, store.ok_or(ConfigError::Missing(STORE))?)?,
            file_limit: parse(FILE, file)?,
            best_effort: flag(BEST_EFFORT, best_effort)?,
            fetch_ahead: flag(FETCH_AHEAD, fetch_ahead)?,
            io_uring: set(IO_URING, io_uring)?,
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
            is_address_limited: set(ADDRESS_LIMITED, address_limited)?,
            core: set(CORE, core)?,
            give_up: match give_up {
                Some(_) => Duration::from_millis(parse(GIVE_UP_MS, give_up)?),
                None => GIVE_UP,
            },
            zones: zones.map_or(Ok(Vec::new()), |list| {
                list.split(|&byte| byte == b',').map(|zone| parse(ZONES, Some(zone))).collect()
            })?,
        })
    }
}

/// The longest password that `pagoda run` hands over.
pub const PASSWORD_BYTES_MAX: usize = 1024;

/// The longest text of [`Config::to_env`], with the password in it: a managed process keeps it in
/// memory of a fixed length. Three paths of 4096 bytes as they are, an escaped password, zones and
/// numbers; `pagoda run` refuses a longer one.
pub const ENV_BYTES_MAX: usize = 16 << 10;

impl Config {
    /// The remote store with its password, which is read where it is.
    ///
    /// # Errors
    /// It can't be read: `pagoda run` has ended, or is another user's.
    pub fn remote_with_password(&self) -> std::io::Result<Option<RemoteAddress>> {
        let mut remote = self.remote.clone();
        if let (Some(address), Some(path)) = (&mut remote, &self.remote_password) {
            address.password = Some(pagoda_linux::mem::secret::read(path, PASSWORD_BYTES_MAX)?);
        }
        Ok(remote)
    }

    /// Reads the password while `pagoda run` is there to be asked: a process that forks when that
    /// is gone has it. If it can't be read all stays as it is, and the engine says so when it
    /// starts.
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

/// An empty path and one with a NUL in it name nothing, so they are errors here and not when they
/// are opened.
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
#[path = "config_test.rs"]
mod tests;
