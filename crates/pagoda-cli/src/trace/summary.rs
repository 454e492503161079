//! A trace in numbers: events by kind, and where they were. Pure.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use pagoda::stats::latencies::Latencies;
use pagoda_core::size::Bytes;
use serde::Serialize;

use super::file::{Header, Kind, Line, Trace};
use crate::latency::LatencyUs;

/// A gap without events separates two areas if it is as large as this.
const GAP_BYTES: u64 = 2 << 20;

/// Lines of the table of places; JSON has all.
const PLACES_SHOWN: usize = 20;

/// The output of `pagoda trace --json`.
#[derive(Debug, PartialEq, Serialize)]
pub struct Summary {
    #[serde(flatten)]
    pub header: Header,
    /// Faults by kind.
    pub faults: BTreeMap<&'static str, u64>,
    pub latency_us: LatencyUs,
    /// Moves out of the program's memory, one or more base pages each.
    pub evictions: u64,
    pub evicted_bytes: u64,
    /// Where it happened, by process and address.
    pub places: Vec<Place>,
}

/// A stretch of addresses without a gap of 2 MiB.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Place {
    pub pid: u32,
    pub start: u64,
    pub end: u64,
    pub faults: u64,
    pub evicted_bytes: u64,
}

impl Summary {
    /// Of a trace.
    pub fn of(trace: &Trace) -> Self {
        let mut faults = BTreeMap::new();
        let mut taken = Vec::with_capacity(trace.lines.len());
        let (mut evictions, mut evicted_bytes) = (0, 0u64);
        for Line(_, _, kind, _, bytes, took_us) in &trace.lines {
            match kind.fault() {
                Some(kind) => {
                    *faults.entry(kind.name()).or_default() += 1;
                    taken.push((kind, (took_us.unwrap_or(0.0) * 1000.0) as u64));
                }
                None => {
                    evictions += 1;
                    evicted_bytes = evicted_bytes.saturating_add(*bytes);
                }
            }
        }
        Self {
            header: trace.header.clone(),
            faults,
            latency_us: LatencyUs::of(&Latencies::of_faults(&taken)),
            evictions,
            evicted_bytes,
            places: places(&trace.lines),
        }
    }

    /// For people.
    pub fn table(&self) -> String {
        let Header { command, wall_us, budget_bytes, base_page_bytes, .. } = &self.header;
        let seconds = Duration::from_micros(*wall_us).as_secs_f64();
        let [budget, base_page] = [*budget_bytes, *base_page_bytes].map(Bytes::new);
        let program = command.first().map_or("", String::as_str);
        let mut text =
            format!("pagoda trace: {program}, {seconds:.2} s, budget {budget}, base page {base_page}\n");
        let mut row = |name: &str, count: u64, says: String| {
            // Writing to a string does not fail, here and below.
            let _ = writeln!(text, "  {name:<10} {count:>9}  {says}");
        };
        let (dropped, untraced) = (self.header.dropped, self.header.untraced);
        let of = self.header.processes.len();
        let says = format!("of {of} processes; {dropped} dropped, {untraced} processes not traced");
        row("events", self.header.events, says);
        for (name, us) in self.latency_us.kinds() {
            let count = self.faults.get(name).copied().unwrap_or(0);
            let says = format!("faults, p50 {:.1} us, p99 {:.1} us, p99.9 {:.1} us", us.p50, us.p99, us.p999);
            row(name, count, says);
        }
        let evicted = Bytes::new(self.evicted_bytes);
        row("evictions", self.evictions, format!("{evicted} moved out"));
        if self.places.is_empty() {
            return text;
        }
        text += "\n      PID  FROM              TO                      SIZE    FAULTS  MOVED OUT\n";
        let mut most: Vec<&Place> = self.places.iter().collect();
        most.sort_by_key(|place| std::cmp::Reverse(place.faults));
        most.truncate(PLACES_SHOWN);
        most.sort_by_key(|place| (place.pid, place.start));
        for Place { pid, start, end, faults, evicted_bytes } in most {
            let [size, out] = [end - start, *evicted_bytes].map(|bytes| Bytes::new(bytes).to_string());
            let _ = writeln!(text, "  {pid:>7}  {start:<16x}  {end:<16x}  {size:>9} {faults:>9}  {out:>9}");
        }
        if self.places.len() > PLACES_SHOWN {
            let _ = writeln!(text, "  and {} places with fewer faults", self.places.len() - PLACES_SHOWN);
        }
        text
    }
}

fn places(lines: &[Line]) -> Vec<Place> {
    let place = |Line(_, pid, kind, address, bytes, _): &Line| {
        let is_eviction = *kind == Kind::Eviction;
        let evicted_bytes = if is_eviction { *bytes } else { 0 };
        let end = address.saturating_add(*bytes);
        Place { pid: *pid, start: *address, end, faults: u64::from(!is_eviction), evicted_bytes }
    };
    let mut all: Vec<Place> = lines.iter().map(place).collect();
    all.sort_unstable_by_key(|place| (place.pid, place.start));
    let mut places: Vec<Place> = Vec::new();
    for next in all {
        match places.last_mut() {
            Some(last) if last.pid == next.pid && next.start < last.end.saturating_add(GAP_BYTES) => {
                last.end = last.end.max(next.end);
                last.faults += next.faults;
                last.evicted_bytes = last.evicted_bytes.saturating_add(next.evicted_bytes);
            }
            _ => places.push(next),
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(lines: Vec<Line>) -> Trace {
        let header = Header::new(vec!["sort".to_owned()], 64 << 20, 64 << 10, 1_500_000);
        let header = Header { events: lines.len() as u64, dropped: 3, processes: vec![7, 9], ..header };
        Trace { header, lines }
    }

    #[test]
    fn kinds_and_places_are_added_up() {
        const MIB: u64 = 1 << 20;
        let summary = Summary::of(&trace(vec![
            Line(1, 7, Kind::Zero, 10 * MIB, 4096, Some(3.0)),
            Line(2, 7, Kind::Eviction, 12 * MIB, MIB, None),
            Line(3, 7, Kind::Stored, 12 * MIB, 4096, Some(30.0)),
            Line(4, 7, Kind::Stored, 99 * MIB, 4096, Some(50.0)),
            Line(5, 9, Kind::Zero, 10 * MIB, 4096, Some(3.0)),
        ]));
        assert_eq!(summary.faults, BTreeMap::from([("stored", 2), ("zero", 2)]));
        assert_eq!((summary.evictions, summary.evicted_bytes), (1, MIB));
        let place = |pid, start, end, faults, evicted_bytes| Place { pid, start, end, faults, evicted_bytes };
        let expected = [
            place(7, 10 * MIB, 13 * MIB, 2, MIB),
            place(7, 99 * MIB, 99 * MIB + 4096, 1, 0),
            place(9, 10 * MIB, 10 * MIB + 4096, 1, 0),
        ];
        assert_eq!(summary.places, expected);
        assert!(summary.latency_us.stored.is_some_and(|us| us.p50 >= 30.0 && us.p99 >= 50.0));
        let table = summary.table();
        for says in [
            "sort, 1.50 s, budget 64 MiB, base page 64 KiB",
            "events             5  of 2 processes; 3 dropped, 0 processes not traced",
            "stored             2  faults, p50 3",
            "evictions          1  1 MiB moved out",
            "      7  a00000            d00000                3 MiB         2      1 MiB",
        ] {
            assert!(table.contains(says), "{says}\n{table}");
        }
    }

    #[test]
    fn the_table_shows_the_places_with_the_most_faults() {
        let lines = (0..40u64)
            .flat_map(|at| (0..=at).map(move |_| Line(1, 7, Kind::Zero, at << 30, 4096, Some(1.0))));
        let summary = Summary::of(&trace(lines.collect()));
        let table = summary.table();
        assert_eq!(summary.places.len(), 40);
        assert!(table.contains("and 20 places with fewer faults") && table.lines().count() < 30, "{table}");
        assert!(table.contains(&format!("{:x}", 39u64 << 30)), "{table}");
        assert!(!Summary::of(&trace(Vec::new())).table().contains("PID"));
    }
}
