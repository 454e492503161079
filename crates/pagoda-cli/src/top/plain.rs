//! `--once`: the table as plain text, for scripts and logs. Every column is there, whatever the terminal.

use std::fmt::Write;

use super::columns::COLUMNS;
use super::rows::{Group, Row};

/// A heading, each tree and its members below it, indented; one line each.
pub fn table(groups: &[Group]) -> String {
    let mut text = String::new();
    line(&mut text, |at| COLUMNS[at].title.to_owned());
    for group in groups {
        row(&mut text, &group.tree);
        for member in &group.members {
            row(&mut text, &Row { name: format!("  {}", member.name), ..member.clone() });
        }
    }
    text
}

fn row(text: &mut String, row: &Row) {
    line(text, |at| (COLUMNS[at].value)(row).to_string());
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
