//! One picture: a line on top, the table, the selected line in words, the keys. It fits any
//! terminal, however small.
//!
//! This module must never look at anything but its arguments.

use std::time::Duration;

use pagoda_core::size::Bytes;
use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line as TextLine, Span, Text};
use ratatui::widgets::{Cell, Paragraph, Row as TableRow, Table, TableState};

use super::columns::{COLUMNS, Column, fitting};
use super::describe;
use super::rows::{Group, Row};
use super::state::{Line, State};

/// Lines below the table, without those of zones.
const DETAIL_LINES: u16 = 9;
/// A table of so few lines is worth more than the lines below it.
const TABLE_LINES_LEAST: u16 = 6;

const KEYS: &str = "q quit  s/S order  r reverse  / filter  f freeze  arrows select";

/// The content of a picture.
pub struct Picture<'a> {
    pub groups: &'a [Group],
    pub rejected: &'a [String],
    pub interval: Duration,
}

/// Draws it.
pub fn draw(frame: &mut Frame, picture: &Picture, state: &State) {
    let lines = state.arrange(picture.groups);
    let selected = state.selected(&lines);
    let area = frame.area();
    let below = detail_lines(&lines, area.height);
    let parts = [Constraint::Length(1), Constraint::Min(1), Constraint::Length(below), Constraint::Length(1)];
    let [top, middle, details, bottom] = Layout::vertical(parts).areas(area);
    frame.render_widget(Paragraph::new(heading(picture, state)).style(bold()), top);
    if lines.is_empty() {
        frame.render_widget(Paragraph::new(nothing(picture, state)), middle);
    } else {
        draw_table(frame, middle, &lines, selected, state);
        frame.render_widget(Paragraph::new(in_words(&lines[selected])), details);
    }
    frame.render_widget(Paragraph::new(keys(picture, state)), bottom);
}

/// Lines below the table where there are so many in all: as many for every line, so that the table
/// stands still while another is selected.
fn detail_lines(lines: &[Line], height: u16) -> u16 {
    let zones = lines.iter().map(|line| line.row.zones.len()).max().unwrap_or(0) as u16;
    let fits = |below: &u16| !lines.is_empty() && height > below + TABLE_LINES_LEAST;
    [DETAIL_LINES + zones, DETAIL_LINES].into_iter().find(fits).unwrap_or(0)
}

fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

fn heading(picture: &Picture, state: &State) -> String {
    let processes: usize = picture.groups.iter().map(|group| group.members.len()).sum();
    let (trees, seconds) = (picture.groups.len(), picture.interval.as_secs_f64());
    let arrow = if state.descending { "down" } else { "up" };
    let mut text = format!(
        "pagoda top  {trees} trees, {processes} processes  every {seconds} s  by {} {arrow}",
        COLUMNS[state.sort].title
    );
    if !state.filter.is_empty() || state.typing {
        let cursor = if state.typing { "_" } else { "" };
        text += &format!("  filter: {}{cursor}", state.filter);
    }
    if state.frozen {
        text += "  FROZEN";
    }
    text
}

fn nothing(picture: &Picture, state: &State) -> String {
    if state.filter.is_empty() {
        "no program runs under `pagoda run` of this user, and none publishes".to_owned()
    } else {
        format!("none of {} trees has a process that the filter lets pass", picture.groups.len())
    }
}

fn keys(picture: &Picture, state: &State) -> TextLine<'static> {
    if state.typing {
        return TextLine::from(
            "type a part of a name, or how a number begins; Enter keeps it, Escape clears it",
        );
    }
    // A refused file is shown first: no other place shows it.
    let refused = picture.rejected.first().map(|why| Span::styled(format!("{why}  "), bold()));
    TextLine::from_iter(refused.into_iter().chain([Span::from(KEYS)]))
}

fn draw_table(frame: &mut Frame, area: Rect, lines: &[Line], selected: usize, state: &State) {
    let columns = fitting(area.width);
    let cell = |column: &Column, text: String| {
        let side = if column.is_text() { Alignment::Left } else { Alignment::Right };
        Cell::from(Text::from(text).alignment(side))
    };
    let titles = columns.iter().map(|column| {
        let is_order = std::ptr::eq(*column, &COLUMNS[state.sort]);
        let style = if is_order { Modifier::REVERSED } else { Modifier::UNDERLINED };
        cell(column, column.title.to_owned()).style(Style::new().add_modifier(style))
    });
    let rows = lines.iter().map(|line| {
        let cells = columns.iter().map(|column| {
            let text = column.of(line.row).to_string();
            let indent = if line.is_tree || column.title != "NAME" { "" } else { "  " };
            cell(column, format!("{indent}{text}"))
        });
        TableRow::new(cells).style(if line.is_tree { bold() } else { Style::new() })
    });
    let widths = columns.iter().map(|column| Constraint::Length(column.width));
    let table = Table::new(rows, widths)
        .header(TableRow::new(titles))
        .column_spacing(1)
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut table_state = TableState::new().with_selected(Some(selected));
    frame.render_stateful_widget(table, area, &mut table_state);
}

/// The selected line: fields without a column, or without room for theirs. Eighty characters hold a
/// line as a rule.
fn in_words(line: &Line) -> Vec<TextLine<'static>> {
    let row = line.row;
    if let Some(region) = &row.region {
        let whose = format!("{}: {}", row.pid, describe::region(region));
        let (held, base) = (describe::region_held(region), describe::region_base(region));
        let moved = region.migration.as_ref().map(describe::migration).unwrap_or_default();
        return [String::new(), whose, held, base].into_iter().chain(moved).map(TextLine::from).collect();
    }
    let bytes = |count: u64| Bytes::new(count).to_string();
    let (whose, claimed) = if line.is_tree {
        ("budget", format!(", claimed {}{}", bytes(line.group.claimed_bytes), describe::regions(line.group)))
    } else {
        ("share", String::new())
    };
    let held = format!(
        "{} {}: {whose} {}{claimed}, anonymous {}, without Pagoda {}",
        row.pid,
        row.name,
        bytes(row.share_bytes),
        bytes(row.anon_bytes),
        bytes(row.held_bytes),
    );
    let resident = format!(
        "resident {}, staged {}, unmanaged {}, own {}, base page {}",
        bytes(row.resident_bytes),
        bytes(row.staged_bytes),
        bytes(row.unmanaged_bytes),
        bytes(row.own_bytes),
        bytes(row.base_page_bytes),
    );
    let ratio = row.compression.map_or_else(String::new, |ratio| format!(", {ratio:.1}:1"));
    let (memory, file) = (bytes(row.store_memory_bytes), bytes(row.spilled_bytes));
    let places = match row.remote_bytes {
        0 => format!(" in {memory} of memory and {file} of file"),
        remote => format!(": memory {memory}, file {file}, remote {}", bytes(remote)),
    };
    let stored = format!(
        "stored {}{places}{ratio}; to release {}",
        bytes(row.stored_bytes),
        bytes(row.release_queued_bytes),
    );
    let lines = [String::new(), held, resident, stored, describe::free(row)].into_iter();
    lines.chain(rates(row)).chain(describe::zones(row)).map(TextLine::from).collect()
}

fn rates(row: &Row) -> Vec<String> {
    let Some(rates) = &row.rates else { return vec!["no rates yet".to_owned()] };
    let faults = format!(
        "faults/s {:.0}: zero {:.0}, staged {:.0}, stored {:.0}, there already {:.0}; waited {:.0}",
        rates.faults_s,
        rates.faults_zero_s,
        rates.faults_staged_s,
        rates.faults_stored_s,
        rates.faults_spurious_s,
        rates.faults_throttled_s,
    );
    let us = &rates.latency_us;
    let served = us.all.map_or_else(
        || "no fault was served".to_owned(),
        |us| format!("served in us: p50 {:.1}, p99 {:.1}, p99.9 {:.1}", us.p50, us.p99, us.p999),
    );
    let kinds: Vec<_> = us.kinds().map(|(name, us)| format!("{name} {:.1}/{:.1}", us.p50, us.p99)).collect();
    let kinds = if kinds.is_empty() { String::new() } else { format!("p50/p99: {}", kinds.join(", ")) };
    let evictions = format!(
        "evictions/s {:.0}, clean {:.0}; to the store {:.0}, from its file {:.0}; fetched ahead {:.0}",
        rates.evictions_s,
        rates.evictions_clean_s,
        rates.stores_s,
        rates.faults_spilled_s,
        rates.fetched_ahead_s,
    );
    let thrashes = rates.lacks_bytes.map(|lacks| {
        let percent = 100.0 * rates.refault_wait;
        format!(
            "waits {percent:.0}% of the time for swapped-out pages: the budget lacks about {}",
            Bytes::new(lacks)
        )
    });
    [faults, served, kinds, evictions].into_iter().chain(thrashes).collect()
}

#[cfg(test)]
#[path = "draw_test.rs"]
mod tests;
