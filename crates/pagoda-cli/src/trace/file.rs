//! The file that `pagoda run --trace` writes: JSON, a header's line and then one for each event.
//!
//! An event is an array, as the header's `columns` say, because there may be millions. Fields of
//! the header are only ever added; other columns are another version of the format. The file may
//! come from anywhere: this module must never take a line for an event that is none.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;

use pagoda::stats::fault_kind::FaultKind;
use pagoda::stats::trace::{EVENTS_MAX, Event, What};
use serde::{Deserialize, Serialize};

use crate::exit_error::ExitError;

/// The version of the format.
const FORMAT: u32 = 1;

/// The columns of an event's line, in this order.
pub const COLUMNS: [&str; 6] = ["time_us", "pid", "kind", "address", "bytes", "service_us"];

/// The longest line: a header with a command of 2 MiB, the most that the kernel takes as a rule.
const LINE_BYTES_MAX: u64 = 4 << 20;

/// The first line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// The format's version.
    pub pagoda_trace: u32,
    /// Of Pagoda.
    pub version: String,
    pub command: Vec<String>,
    pub budget_bytes: u64,
    pub base_page_bytes: u64,
    /// From the start of the run to its end.
    pub wall_us: u64,
    /// The processes that had an engine, in the order in which it started.
    pub processes: Vec<u32>,
    /// Processes with an engine that could not open the trace, or found no place in it.
    pub untraced: u64,
    /// Lines that follow.
    pub events: u64,
    /// Events that there was no room for, and those of a process that was killed at that moment.
    pub dropped: u64,
    pub columns: Vec<String>,
}

impl Header {
    /// Of a run; the counts are added later.
    pub fn new(command: Vec<String>, budget_bytes: u64, base_page_bytes: u64, wall_us: u64) -> Self {
        Self {
            pagoda_trace: FORMAT,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            command,
            budget_bytes,
            base_page_bytes,
            wall_us,
            processes: Vec::new(),
            untraced: 0,
            events: 0,
            dropped: 0,
            columns: COLUMNS.map(str::to_owned).to_vec(),
        }
    }
}

impl Header {
    /// With the present content of a trace.
    pub fn counted(mut self, trace: &pagoda::stats::trace::Trace, untraced: u64) -> Self {
        let seen = trace.seen();
        self.processes = trace.processes();
        self.untraced = untraced;
        self.events = trace.events().count() as u64;
        self.dropped = seen.saturating_sub(self.events);
        self
    }
}

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    Zero,
    Huge,
    Staged,
    Stored,
    Spilled,
    Spurious,
    Eviction,
}

impl Kind {
    fn of(what: What) -> Self {
        match what {
            What::Eviction => Self::Eviction,
            What::Fault { kind, .. } => match kind {
                FaultKind::Zero => Self::Zero,
                FaultKind::Huge => Self::Huge,
                FaultKind::Staged => Self::Staged,
                FaultKind::Stored => Self::Stored,
                FaultKind::Spilled => Self::Spilled,
                FaultKind::Spurious => Self::Spurious,
            },
        }
    }

    /// Of a fault; `None` of an eviction.
    pub fn fault(self) -> Option<FaultKind> {
        Some(match self {
            Self::Zero => FaultKind::Zero,
            Self::Huge => FaultKind::Huge,
            Self::Staged => FaultKind::Staged,
            Self::Stored => FaultKind::Stored,
            Self::Spilled => FaultKind::Spilled,
            Self::Spurious => FaultKind::Spurious,
            Self::Eviction => return None,
        })
    }
}

/// One line.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line(
    /// When, since the run began, in microseconds.
    pub u64,
    /// The process.
    pub u32,
    pub Kind,
    /// The address.
    pub u64,
    /// How many bytes.
    pub u64,
    /// How long the fault took, in microseconds; null of an eviction.
    pub Option<f64>,
);

impl From<&Event> for Line {
    fn from(event: &Event) -> Self {
        let took_us = match event.what {
            What::Fault { took_ns, .. } => Some(took_ns as f64 / 1000.0),
            What::Eviction => None,
        };
        Self(event.time_us, event.pid, Kind::of(event.what), event.address, event.bytes, took_us)
    }
}

/// A whole file.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    pub header: Header,
    pub lines: Vec<Line>,
}

/// Writes one.
pub fn write(out: &mut dyn Write, header: &Header, events: impl Iterator<Item = Event>) -> io::Result<()> {
    serde_json::to_writer(&mut *out, header)?;
    out.write_all(b"\n")?;
    for event in events {
        serde_json::to_writer(&mut *out, &Line::from(&event))?;
        out.write_all(b"\n")?;
    }
    Ok(())
}

/// Reads one. An error says which line is wrong, and what to do.
pub fn read(path: &Path) -> Result<Trace, ExitError> {
    let shown = path.display();
    let unreadable = |error: io::Error| ExitError::own(format!("{shown} can't be read ({error})"));
    let mut reader = BufReader::new(File::open(path).map_err(unreadable)?);
    let foreign = |at: usize, why: String| {
        ExitError::own(format!("{shown}, line {at}: {why}; give a file that `pagoda run --trace` wrote"))
    };
    let mut text = String::new();
    let mut next = |at: usize| -> Result<Option<String>, ExitError> {
        text.clear();
        let read = reader.by_ref().take(LINE_BYTES_MAX).read_line(&mut text);
        match read {
            Ok(0) => Ok(None),
            Ok(_) => Ok(Some(text.clone())),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => Err(foreign(at, error.to_string())),
            Err(error) => Err(unreadable(error)),
        }
    };
    let first = next(1)?.ok_or_else(|| foreign(1, "the file is empty".to_owned()))?;
    let header: Header = serde_json::from_str(&first).map_err(|error| foreign(1, error.to_string()))?;
    if header.pagoda_trace != FORMAT || header.columns != COLUMNS {
        return Err(foreign(1, "it is of another version".to_owned()));
    }
    let mut lines = Vec::new();
    while let Some(text) = next(lines.len() + 2)? {
        let at = lines.len() + 2;
        if lines.len() == EVENTS_MAX {
            return Err(foreign(at, "it has more events than there can be".to_owned()));
        }
        lines.push(serde_json::from_str(&text).map_err(|error| foreign(at, error.to_string()))?);
    }
    if lines.len() as u64 != header.events {
        return Err(foreign(
            lines.len() + 2,
            format!("the file ends, and has to have {} events", header.events),
        ));
    }
    Ok(Trace { header, lines })
}

#[cfg(test)]
#[path = "file_test.rs"]
mod tests;
