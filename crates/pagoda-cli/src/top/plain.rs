//! `--once`: the table as plain text, for scripts and logs. Every column is there, for any
//! terminal, and below an empty line the fields without a column. This module must never leave out
//! a present value that `--json` has.

use std::fmt::Write;

use pagoda_core::size::Bytes;

use super::columns::COLUMNS;
use super::describe;
use super::rows::{Group, Row};

/// A heading, each tree and its members, indented; one line each. Then the words of each that has
/// some.
pub fn table(groups: &[Group]) -> String {
    let mut text = String::new();
    line(&mut text, |at| COLUMNS[at].title.to_owned());
    for group in groups {
        row(&mut text, &group.tree);
        for below in group.members.iter().chain(&group.regions) {
            row(&mut text, &Row { name: format!("  {}", below.name), ..below.clone() });
        }
    }
    let words: Vec<String> = groups.iter().flat_map(in_words).collect();
    if !words.is_empty() {
        text += "\n";
        text.extend(words.into_iter().map(|line| line + "\n"));
    }
    text
}

/// The fields without a column, each line with its owner.
fn in_words(group: &Group) -> Vec<String> {
    let mut lines = Vec::new();
    for row in std::iter::once(&group.tree).chain(&group.members) {
        let whose = format!("{} {} ({})", row.pid, row.name, row.status);
        // Without an engine there is nothing to tell.
        if row.free_high_bytes > 0 {
            let queued = Bytes::new(row.release_queued_bytes);
            lines.push(format!("{whose}: {}; to release {queued}", describe::free(row)));
        }
        lines.extend(describe::zones(row).map(|zone| format!("{whose}: {zone}")));
    }
    if group.regions_count > 0 {
        let (pid, name) = (group.tree.pid, &group.tree.name);
        lines.push(format!("{pid} {name} (library){}", describe::regions(group).replacen(',', ":", 1)));
    }
    for region in group.regions.iter().filter_map(|row| row.region) {
        let whose = format!("{} {}", group.tree.pid, describe::region(&region));
        lines.push(format!(
            "{whose}: {}, {}",
            describe::region_held(&region),
            describe::region_base(&region)
        ));
        let moved = region.migration.as_ref().map(describe::migration).unwrap_or_default();
        lines.extend(moved.into_iter().map(|line| format!("{whose}: {line}")));
    }
    lines
}

fn row(text: &mut String, row: &Row) {
    line(text, |at| COLUMNS[at].of(row).to_string());
}

fn line(text: &mut String, cell: impl Fn(usize) -> String) {
    let mut line = String::new();
    for (at, column) in COLUMNS.iter().enumerate() {
        let (cell, width) = (cell(at), usize::from(column.width));
        // Writing to a string does not fail.
        let _ =
            if column.is_text() { write!(line, "{cell:<width$} ") } else { write!(line, "{cell:>width$} ") };
    }
    text.push_str(line.trim_end());
    text.push('\n');
}

#[cfg(test)]
#[path = "plain_test.rs"]
mod tests;
