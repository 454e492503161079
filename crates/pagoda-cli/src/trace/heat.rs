//! A trace as a heat map: time from left to right, addresses from top to bottom, faults and
//! evictions in two colours. Pure.
//!
//! A row is a block of memory in which anything happened; those in which nothing did are left out,
//! so that an address space of 128 TiB fits. The blocks are as small as the number of rows allows.
//! This module must never draw more than that.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use pagoda_bench::escaped;
use pagoda_core::size::Bytes;

use super::file::{Kind, Line, Trace};

/// Columns of time.
const COLUMNS: usize = 128;
/// Rows of memory at most.
const ROWS_MAX: usize = 192;
/// Processes that are drawn, those with the most events: each has a few rows.
const PROCESSES_MAX: usize = 32;
/// A block is no smaller than a base page as it is if nothing else is said.
const BLOCK_BITS_LEAST: u32 = 16;
/// How many strengths of a colour there are.
const LEVELS: usize = 4;

const LEFT: usize = 190;
const TOP: usize = 8;
/// A column's width; faults have its left half, evictions its right one.
const CELL: usize = 6;
const GAP: usize = 3;
const LABEL: usize = 13;

/// The colours of faults and of evictions; they can be told apart without colour vision.
const COLOURS: [&str; 2] = ["#d55e00", "#0072b2"];

/// How much happened where and when.
#[derive(Debug, PartialEq)]
pub struct Heat {
    /// Process and block, in order.
    rows: Vec<(u32, u64)>,
    block_bits: u32,
    column_us: u64,
    /// Of faults and of evictions: counts of each row, column by column.
    counts: [Vec<u64>; 2],
    /// Processes that are not drawn.
    left_out: usize,
}

/// The blocks that an event lies in.
fn blocks(line: &Line, bits: u32) -> std::ops::RangeInclusive<u64> {
    let &Line(_, _, _, address, bytes, _) = line;
    address >> bits..=address.saturating_add(bytes.max(1) - 1) >> bits
}

impl Heat {
    /// Of a trace.
    pub fn of(trace: &Trace) -> Self {
        let mut events = BTreeMap::<u32, u64>::new();
        for line in &trace.lines {
            *events.entry(line.1).or_default() += 1;
        }
        let mut pids: Vec<u32> = events.keys().copied().collect();
        pids.sort_by_key(|pid| (std::cmp::Reverse(events[pid]), *pid));
        let left_out = pids.len().saturating_sub(PROCESSES_MAX);
        pids.truncate(PROCESSES_MAX);
        let drawn: Vec<&Line> = trace.lines.iter().filter(|line| pids.contains(&line.1)).collect();
        let (rows, block_bits) = (BLOCK_BITS_LEAST..u64::BITS)
            .find_map(|bits| Some((rows(&drawn, bits)?, bits)))
            .expect("with one block for each process there are few rows");
        let last_us = drawn.iter().map(|line| line.0).max().unwrap_or(0).max(trace.header.wall_us);
        let column_us = last_us / COLUMNS as u64 + 1;
        let mut counts = [vec![0; rows.len() * COLUMNS], vec![0; rows.len() * COLUMNS]];
        for line in drawn {
            let column = (line.0 / column_us) as usize;
            for block in blocks(line, block_bits) {
                let row = rows.binary_search(&(line.1, block)).expect("every event has its rows");
                counts[usize::from(line.2 == Kind::Eviction)][row * COLUMNS + column] += 1;
            }
        }
        Self { rows, block_bits, column_us, counts, left_out }
    }

    /// The caption, in a sentence or two.
    pub fn caption(&self) -> String {
        let block = Bytes::new(1 << self.block_bits);
        let [faults, evictions] =
            self.counts.each_ref().map(|counts| counts.iter().max().copied().unwrap_or(0));
        let mut text = format!(
            "A row is {block} of memory, named by its process and address; memory in which nothing happened is cut out. \
             A column is {:.1} ms: its left half shows faults, up to {faults} in a field, its right half evictions, up to \
             {evictions}.",
            self.column_us as f64 / 1000.0
        );
        if self.left_out > 0 {
            let _ = write!(text, " {} processes with fewer events are not drawn.", self.left_out);
        }
        text
    }

    /// The plot, with its key; nothing if nothing happened.
    pub fn svg(&self) -> String {
        if self.rows.is_empty() {
            return String::new();
        }
        let tall = if self.rows.len() <= ROWS_MAX / 3 { 8 } else { 4 };
        let tops = self.tops(tall);
        let bottom = tops[tops.len() - 1] + tall;
        let (width, height) = (LEFT + COLUMNS * CELL + 40, bottom + 44);
        let mut svg = format!(
            "<svg viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" role=\"img\">\
             <title>Faults and evictions by address and time</title>"
        );
        for at in self.labelled(&tops) {
            let (pid, block) = self.rows[at];
            let address = block << self.block_bits;
            // Writing to a string does not fail, here and below.
            let _ = write!(
                svg,
                "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>",
                LEFT - 8,
                tops[at] + 9,
                escaped(&format!("{pid} {address:x}")),
            );
        }
        for (kind, (counts, colour)) in self.counts.iter().zip(COLOURS).enumerate() {
            self.fields(&mut svg, counts, kind * CELL / 2, &tops, tall, colour);
        }
        self.axis(&mut svg, bottom);
        svg + "</svg>"
    }

    /// The fields of one colour: a path for each strength.
    fn fields(
        &self,
        svg: &mut String,
        counts: &[u64],
        shift: usize,
        tops: &[usize],
        tall: usize,
        colour: &str,
    ) {
        let most = counts.iter().max().copied().unwrap_or(0) as f64;
        let mut paths = [const { String::new() }; LEVELS];
        for (at, &count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            // Logarithmic: the first fault of a block and the thousandth both show.
            let level = ((count as f64).ln_1p() / most.ln_1p() * LEVELS as f64).ceil() as usize;
            let (x, half) = (LEFT + at % COLUMNS * CELL + shift, CELL / 2);
            let path = &mut paths[level.clamp(1, LEVELS) - 1];
            let _ = write!(path, "M{x} {}h{half}v{tall}h-{half}z", tops[at / COLUMNS]);
        }
        for (level, path) in paths.iter().enumerate().filter(|(_, path)| !path.is_empty()) {
            let opacity = (level + 1) as f64 / LEVELS as f64;
            let _ = write!(svg, "<path d=\"{path}\" fill=\"{colour}\" fill-opacity=\"{opacity}\"/>");
        }
    }

    fn axis(&self, svg: &mut String, bottom: usize) {
        let (right, line) = (LEFT + COLUMNS * CELL, bottom + 4);
        let _ = write!(svg, "<path d=\"M{LEFT} {line}H{right}\" stroke=\"#222\" fill=\"none\"/>");
        for column in (0..=COLUMNS).step_by(COLUMNS / 4) {
            let seconds = self.column_us.saturating_mul(column as u64) as f64 / 1e6;
            let (x, y) = (LEFT + column * CELL, line + 16);
            let _ = write!(svg, "<text x=\"{x}\" y=\"{y}\" text-anchor=\"middle\">{seconds:.2} s</text>");
        }
        for ((name, colour), x) in ["faults", "evictions"].into_iter().zip(COLOURS).zip([8, 88]) {
            let _ = write!(
                svg,
                "<rect x=\"{x}\" y=\"{}\" width=\"10\" height=\"10\" fill=\"{colour}\"/>\
                 <text x=\"{}\" y=\"{}\">{name}</text>",
                line + 7,
                x + 14,
                line + 16,
            );
        }
    }

    /// The rows that are named: where memory begins after a gap, that of the most rows first, as
    /// far as there is room.
    fn labelled(&self, tops: &[usize]) -> Vec<usize> {
        let mut begins: Vec<usize> = (0..tops.len()).filter(|&at| at == 0 || !self.is_joined(at)).collect();
        let ends = begins.iter().skip(1).copied().chain([tops.len()]);
        let mut sizes: Vec<(usize, usize)> =
            begins.iter().zip(ends).map(|(at, end)| (end - at, *at)).collect();
        sizes.sort_by_key(|(rows, at)| (std::cmp::Reverse(*rows), *at));
        begins.clear();
        for (_, at) in sizes {
            if begins.iter().all(|&other| tops[at].abs_diff(tops[other]) >= LABEL) {
                begins.push(at);
            }
        }
        begins
    }

    /// Whether a row's memory begins where that of the row above ends.
    fn is_joined(&self, at: usize) -> bool {
        let ((above_pid, above), (pid, block)) = (self.rows[at - 1], self.rows[at]);
        above_pid == pid && above + 1 == block
    }

    /// The top of each row; memory that was cut out leaves a gap.
    fn tops(&self, tall: usize) -> Vec<usize> {
        let mut top = TOP;
        let place = |at: usize| {
            if at > 0 {
                top += tall + if self.is_joined(at) { 0 } else { GAP };
            }
            top
        };
        (0..self.rows.len()).map(place).collect()
    }
}

/// The blocks of this size in which anything happened; `None` if they are too many.
fn rows(lines: &[&Line], bits: u32) -> Option<Vec<(u32, u64)>> {
    let mut rows = BTreeSet::new();
    for line in lines {
        for block in blocks(line, bits) {
            rows.insert((line.1, block));
            if rows.len() > ROWS_MAX {
                return None;
            }
        }
    }
    Some(rows.into_iter().collect())
}

#[cfg(test)]
#[path = "heat_test.rs"]
mod tests;
