//! The columns of the table: each one's value for a row, its order, and which are left out where
//! there is no room.
//!
//! This module must never know where the table is drawn.

use std::cmp::Ordering;
use std::fmt;

use pagoda_core::size::Bytes;

use super::rows::{Rates, Row};
use crate::latency::{LatencyUs, Percentiles};

/// The value of a cell.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Text(String),
    Number(u64),
    Bytes(u64),
    /// A count a second.
    Rate(Option<f64>),
    Ratio(Option<f64>),
    /// Microseconds.
    Us(Option<f64>),
    /// Microseconds, the median and p99, by which it is ordered.
    UsPair(Option<(f64, f64)>),
}

impl Value {
    /// Texts before numbers, unknown values before known ones.
    pub fn order(&self, other: &Self) -> Ordering {
        let number = |value: &Self| match value {
            Self::Text(_) => None,
            Self::Number(n) | Self::Bytes(n) => Some(*n as f64),
            Self::Rate(value) | Self::Ratio(value) | Self::Us(value) => *value,
            Self::UsPair(value) => value.map(|(_, p99)| p99),
        };
        match (self, other) {
            (Self::Text(one), Self::Text(other)) => one.cmp(other),
            _ => number(self).unwrap_or(-1.0).total_cmp(&number(other).unwrap_or(-1.0)),
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.pad(text),
            Self::Number(n) => f.pad(&n.to_string()),
            // One word, for scripts that cut the table at its blanks.
            Self::Bytes(n) => f.pad(&Bytes::new(*n).to_string().replace(' ', "")),
            Self::Rate(None) | Self::Ratio(None) | Self::Us(None) | Self::UsPair(None) => f.pad("-"),
            Self::Rate(Some(rate)) => f.pad(&format!("{rate:.0}")),
            Self::Ratio(Some(ratio)) => f.pad(&format!("{ratio:.1}")),
            Self::Us(Some(us)) if *us < 10_000.0 => f.pad(&format!("{us:.1}")),
            Self::Us(Some(us)) => f.pad(&format!("{us:.0}")),
            Self::UsPair(Some((p50, p99))) => f.pad(&format!("{}/{}", short(*p50), short(*p99))),
        }
    }
}

/// Three digits that count, as far as there are any.
fn short(us: f64) -> String {
    if us < 99.95 { format!("{us:.1}") } else { format!("{us:.0}") }
}

/// One column.
pub struct Column {
    pub title: &'static str,
    pub width: u16,
    /// Where there is no room for all, those of the greatest rank go first.
    rank: u8,
    value: fn(&Row) -> Value,
}

/// Columns of which something is known of a region.
const OF_REGIONS: [&str; 7] = ["PID", "NAME", "STATUS", "HELD", "RESIDENT", "STAGED", "STORED"];

impl Column {
    /// Its value for a row.
    pub fn of(&self, row: &Row) -> Value {
        if row.region.is_some() && !OF_REGIONS.contains(&self.title) {
            return Value::Ratio(None);
        }
        (self.value)(row)
    }

    /// Texts stand left, numbers right.
    pub fn is_text(&self) -> bool {
        matches!(self.of(&Row::default()), Value::Text(_))
    }
}

fn rate(row: &Row, of: fn(&Rates) -> f64) -> Value {
    Value::Rate(row.rates.as_ref().map(of))
}

fn us(row: &Row, of: fn(&Percentiles) -> f64) -> Value {
    Value::Us(row.rates.as_ref().and_then(|rates| rates.latency_us.all.as_ref()).map(of))
}

fn us_of(row: &Row, of: fn(&LatencyUs) -> Option<Percentiles>) -> Value {
    let us = row.rates.as_ref().and_then(|rates| of(&rates.latency_us));
    Value::UsPair(us.map(|us| (us.p50, us.p99)))
}

const fn column(title: &'static str, width: u16, rank: u8, value: fn(&Row) -> Value) -> Column {
    Column { title, width, rank, value }
}

/// All of them, in the order in which they stand.
pub static COLUMNS: [Column; 25] = [
    column("PID", 7, 0, |row| Value::Number(row.pid.into())),
    column("NAME", 17, 0, |row| Value::Text(row.name.clone())),
    column("STATUS", 9, 9, |row| Value::Text(row.status.to_owned())),
    column("SHARE", 9, 2, |row| Value::Bytes(row.share_bytes)),
    column("ANON", 9, 1, |row| Value::Bytes(row.anon_bytes)),
    column("HELD", 9, 3, |row| Value::Bytes(row.held_bytes)),
    column("RESIDENT", 9, 8, |row| Value::Bytes(row.resident_bytes)),
    column("STAGED", 9, 10, |row| Value::Bytes(row.staged_bytes)),
    column("STORED", 9, 4, |row| Value::Bytes(row.stored_bytes)),
    column("MEMORY", 9, 11, |row| Value::Bytes(row.store_memory_bytes)),
    column("FILE", 9, 12, |row| Value::Bytes(row.spilled_bytes)),
    column("REMOTE", 9, 13, |row| Value::Bytes(row.remote_bytes)),
    column("RATIO", 5, 7, |row| Value::Ratio(row.compression)),
    column("FAULTS/s", 8, 5, |row| rate(row, |rates| rates.faults_s)),
    column("ZERO/s", 7, 14, |row| rate(row, |rates| rates.faults_zero_s)),
    column("STAGED/s", 8, 15, |row| rate(row, |rates| rates.faults_staged_s)),
    column("STORED/s", 8, 16, |row| rate(row, |rates| rates.faults_stored_s)),
    column("WAITED/s", 8, 17, |row| rate(row, |rates| rates.faults_throttled_s)),
    column("p50 us", 7, 18, |row| us(row, |us| us.p50)),
    column("p99 us", 7, 6, |row| us(row, |us| us.p99)),
    column("p99.9 us", 8, 19, |row| us(row, |us| us.p999)),
    column("ZERO us", 12, 20, |row| us_of(row, |us| us.zero)),
    column("STAGED us", 12, 21, |row| us_of(row, |us| us.staged)),
    column("STORED us", 12, 22, |row| us_of(row, |us| us.stored)),
    column("SPILLED us", 12, 23, |row| us_of(row, |us| us.spilled)),
];

/// Those that there is room for in `width` characters, with one between each two.
pub fn fitting(width: u16) -> Vec<&'static Column> {
    let mut columns: Vec<&'static Column> = COLUMNS.iter().collect();
    let takes = |columns: &[&Column]| columns.iter().map(|column| column.width + 1).sum::<u16>() - 1;
    while columns.len() > 1 && takes(&columns) > width {
        let least = columns.iter().enumerate().max_by_key(|(_, column)| column.rank).map_or(0, |(at, _)| at);
        columns.remove(least);
    }
    columns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_important_column_goes_first_and_something_always_stays() {
        let titles = |width| fitting(width).iter().map(|column| column.title).collect::<Vec<_>>();
        assert_eq!(titles(500).len(), COLUMNS.len());
        assert_eq!(titles(80), ["PID", "NAME", "SHARE", "ANON", "HELD", "STORED", "FAULTS/s"]);
        assert_eq!(titles(0).len(), 1);
        for width in 0..300 {
            let columns = fitting(width);
            let takes: u16 = columns.iter().map(|column| column.width + 1).sum();
            assert!(columns.len() == 1 || takes <= width + 1, "{width}");
        }
    }

    #[test]
    fn values_sort_by_size_and_an_unknown_one_is_less_than_nothing() {
        let sorted =
            [Value::Rate(None), Value::Rate(Some(0.0)), Value::Rate(Some(9.5)), Value::Rate(Some(10.0))];
        assert!(sorted.windows(2).all(|pair| pair[0].order(&pair[1]) == Ordering::Less));
        let pairs = [None, Some((9.0, 10.0)), Some((1.0, 11.0))].map(Value::UsPair);
        assert!(pairs.is_sorted_by(|one, other| one.order(other) == Ordering::Less), "by p99");
        assert_eq!(pairs[1].to_string(), "9.0/10.0");
        assert_eq!(Value::Text("a".into()).order(&Value::Text("b".into())), Ordering::Less);
    }

    #[test]
    fn the_largest_usual_values_fit_their_columns() {
        for (value, width) in [
            (Value::Number(4_194_303), 7),
            (Value::Bytes((1 << 40) - 1), 9),
            (Value::Bytes((1023 << 10) | 512), 9),
            (Value::Rate(Some(9_999_999.0)), 7),
            (Value::Us(Some(9999.9)), 7),
            (Value::Us(Some(9_999_999.0)), 7),
            (Value::Ratio(Some(99.9)), 5),
            (Value::UsPair(Some((99_999.0, 999_999.0))), 12),
        ] {
            assert!(value.to_string().len() <= width, "{value}");
        }
    }
}
