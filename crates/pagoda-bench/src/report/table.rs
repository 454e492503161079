//! Tables and lines of figures for people, by templates over a report's JSON. Pure.
//!
//! A template is text with figures in braces: `{PATH:FORM}`. The path is that of a JSON pointer
//! without its first slash; without one the figure is the JSON itself. The form is digits after the
//! point and `s` for the spread behind the median, or `p` for the three percentiles; `b` for bytes;
//! nothing for the value as it is. After a blank it can have a unit. A null is a dash, and a key
//! that is not there leaves its place empty. This module must never round for JSON, nor make up a
//! figure.

use std::ops::RangeBounds;

use comfy_table::{CellAlignment, Table};
use pagoda_core::size::Bytes;
use serde_json::Value;

/// A column: its heading, and the template of its cells.
pub type Column<'a> = (&'a str, &'a str);

/// A table in Markdown. The columns of `figures` are aligned to the right, the others to the left.
pub fn grid<C: Into<String>>(
    header: impl IntoIterator<Item = C>,
    figures: impl RangeBounds<usize>,
    rows: impl IntoIterator<Item = Vec<String>>,
) -> String {
    let mut table = Table::new();
    table.load_preset(comfy_table::presets::ASCII_MARKDOWN);
    table.set_header(header.into_iter().map(Into::into).collect::<Vec<String>>());
    table.add_rows(rows);
    for (_, column) in table.column_iter_mut().enumerate().filter(|(number, _)| figures.contains(number)) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}

/// A table of named rows, each with the JSON of its other columns.
pub fn table<'a, const N: usize>(
    names: [&str; N],
    columns: &[Column],
    rows: impl IntoIterator<Item = ([String; N], &'a Value)>,
) -> String {
    let header = names.into_iter().chain(columns.iter().map(|(heading, _)| *heading));
    let cells = |(names, json): ([String; N], &Value)| {
        names.into_iter().chain(columns.iter().map(|(_, cell)| fill(cell, json))).collect()
    };
    grid(header, N.., rows.into_iter().map(cells))
}

/// The rows of `table` by the members of the object at a path, in the order of their names.
pub fn members<'a>(json: &'a Value, path: &str) -> impl Iterator<Item = (&'a String, &'a Value)> {
    json.pointer(path).and_then(Value::as_object).into_iter().flatten()
}

/// The template with its figures filled in.
pub fn fill(template: &str, json: &Value) -> String {
    let mut pieces = template.split('{');
    let first = pieces.next().unwrap_or_default().to_owned();
    pieces.fold(first, |text, piece| {
        let (wanted, rest) = piece.split_once('}').expect("a template closes its braces");
        text + &figure(wanted, json) + rest
    })
}

fn figure(wanted: &str, json: &Value) -> String {
    let (path, form) = wanted.split_once(':').unwrap_or((wanted, ""));
    let (form, unit) = form.split_at(form.find(' ').unwrap_or(form.len()));
    let path = if path.is_empty() { String::new() } else { format!("/{path}") };
    let Some(value) = json.pointer(&path) else { return String::new() };
    let digits = form.trim_end_matches(['s', 'p']).parse().unwrap_or(0);
    let number = |suffix: &str| {
        let value = json.pointer(&format!("{path}{suffix}")).and_then(Value::as_f64);
        value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
    };
    let text = match value {
        Value::Null => return "-".to_owned(),
        Value::String(text) => text.clone(),
        value if form.is_empty() => value.to_string(),
        value if form == "b" => Bytes::new(value.as_f64().unwrap_or(0.0) as u64).to_string(),
        _ if form.ends_with('s') => {
            format!("{} ({}-{})", number(""), number("_least"), number("_most"))
        }
        _ if form.ends_with('p') => ["/p50", "/p99", "/p999"].map(number).join(" / "),
        _ => number(""),
    };
    text + unit
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn figures_stand_to_the_right_and_a_null_is_a_dash() {
        let [one, other] = [json!({"gib_s": 1.25}), json!({"gib_s": null})];
        let rows = [(["one".to_owned()], &one), (["other".to_owned()], &other)];
        let table = table(["side"], &[("GiB/s", "{gib_s:1}")], rows);
        assert!(["| one   |   1.2 |", "| other |     - |"].iter().all(|row| table.contains(row)), "{table}");
    }

    #[test]
    fn each_form_is_written_as_it_says() {
        let json = json!({
            "at": { "us": 2.0, "us_least": 1.25, "us_most": 3.0, "fault": { "p50": 1.0, "p99": 2.6, "p999": 9 } },
            "bytes": 65536, "name": "x", "percent": 64.7, "none": null,
        });
        for (template, text) in [
            ("{at/us:2s}", "2.00 (1.25-3.00)"),
            ("{at/us:1 ms}, {none:1 ms}", "2.0 ms, -"),
            ("{at/fault:0p}", "1 / 3 / 9"),
            ("{bytes:b} of {name}, {percent} %{missing:1}", "64 KiB of x, 64.7 %"),
        ] {
            assert_eq!(fill(template, &json), text);
        }
    }
}
