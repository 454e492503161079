//! Tables of figures for people: Markdown, the figures to the right, one way to write a figure. Pure.
//!
//! What is missing is a dash. This module must never round for JSON, nor make up a figure.

use std::ops::RangeBounds;

use comfy_table::{CellAlignment, Row, Table};

use crate::measure::stats::Measured;

/// An empty table. The columns of `figures` are aligned to the right, the others to the left.
pub fn text_table(header: impl Into<Row>, figures: impl RangeBounds<usize>) -> Table {
    let mut table = Table::new();
    table.load_preset(comfy_table::presets::ASCII_MARKDOWN);
    table.set_header(header);
    for (_, column) in table.column_iter_mut().enumerate().filter(|(number, _)| figures.contains(number)) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// A figure with so many digits after the point.
pub fn number<T: Into<f64>>(value: Option<T>, digits: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{:.digits$}", value.into()))
}

/// A median, and the least and the greatest value.
pub fn with_spread(Measured { median, least, most }: Measured, digits: usize) -> String {
    format!("{median:.digits$} ({least:.digits$}-{most:.digits$})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_stand_to_the_right_and_what_is_missing_is_a_dash() {
        let mut table = text_table(["side", "GiB/s", "why"], 1..2);
        table.add_row(["one", &number(Some(1.25), 1), "x"]);
        table.add_row(["other", &number(None::<f64>, 1), "not here"]);
        let rows = ["| one   |   1.2 | x        |", "| other |     - | not here |"];
        assert!(rows.iter().all(|row| table.to_string().contains(row)), "{table}");
        assert_eq!(with_spread(Measured { median: 2.0, least: 1.25, most: 3.0 }, 2), "2.00 (1.25-3.00)");
    }
}
