//! The page of `pagoda bench all --html`, which needs nothing outside of itself. Pure.
//!
//! Every text of a bench or a machine is escaped. The page forbids itself to load anything. This
//! module must never leave a bench out because it failed: its message is its section.

pub mod charts;
mod seeds;
mod svg;

#[cfg(test)]
pub use canned::canned;
pub use svg::Chart;

use std::fmt::Write;

use serde_json::Value;

use crate::list::Entry;
use seeds::SEEDS;
use svg::Side;

/// The outcome of one bench.
pub struct Outcome {
    pub entry: &'static Entry,
    /// The JSON it printed; `None` if the output was no JSON.
    pub json: Option<Value>,
    /// The reason for a failure, of the whole bench or of a part.
    pub failure: Option<String>,
    pub seconds: f64,
}

/// The head of the page.
pub struct About {
    pub machine: String,
    pub version: &'static str,
    /// The date of the run, as people write it.
    pub when: String,
    pub quick: bool,
}

const STYLE: &str = "\
    body{font:15px/1.5 sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#222;background:#fff}\
    table{border-collapse:collapse}td,th{border:1px solid #ccc;padding:.2em .6em;text-align:left;vertical-align:top}\
    svg{max-width:100%;height:auto}svg text{font:12px sans-serif;fill:#222}\
    .spread{stroke:#222;fill:none}figure{margin:1.5em 0}figcaption{font-weight:bold}\
    .key span{display:inline-block;width:1em;height:1em;margin:0 .3em 0 1em;vertical-align:-.15em}\
    .failed{border-left:4px solid #d55e00;padding-left:.8em;white-space:pre-wrap}\
    pre{white-space:pre-wrap;word-break:break-all;font-size:12px}";

/// A document that loads nothing. `body` is HTML.
pub fn document(title: &str, body: &str) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>{}</title>\
         <style>{STYLE}</style></head><body>\n{body}</body></html>\n",
        escaped(title)
    )
}

/// The page; `heat` is the figure of a traced program, as HTML.
pub fn page(about: &About, outcomes: &[Outcome], heat: &str) -> String {
    let run =
        if about.quick { "a quick run: one pair or round each, for a first look" } else { "a full run" };
    let mut page = format!(
        "<h1>Pagoda on this machine</h1>\n<p>{}</p>\n<p>pagoda {}, {}, {run}. Every figure is a median; the line across a bar goes from the least to the \
         greatest of the rounds. Bars without one are counts, percentiles, and what was run once.</p>\n",
        escaped(&about.machine),
        escaped(about.version),
        escaped(&about.when),
    );
    page += "<p class=\"key\">";
    for side in Side::ALL {
        let _ = write!(page, "<span style=\"background:{}\"></span>{}", side.colour(), side.name());
    }
    page += "</p>\n";
    page += &summary(outcomes);
    page += &published(outcomes);
    for outcome in outcomes {
        page += &section(outcome);
    }
    page += "<h2 id=\"trace\">A trace</h2>\n<p>A program with twice its budget of data fills it, reads it in order, and touches it \
             unevenly and at random, under <code>pagoda run --memory 64M --trace FILE</code>; <code>pagoda trace FILE --html PAGE</code> \
             draws any other.</p>\n";
    page += heat;
    document("Pagoda on this machine", &page)
}

fn summary(outcomes: &[Outcome]) -> String {
    let mut table =
        "<h2>Benches</h2>\n<table><tr><th>bench</th><th>shows</th><th>outcome</th><th>took</th></tr>\n"
            .to_owned();
    for Outcome { entry, json, failure, seconds } in outcomes {
        let state = match (json, failure) {
            (Some(_), None) => "measured",
            (Some(_), Some(_)) => "failed in part",
            (None, _) => "failed",
        };
        let _ = writeln!(
            table,
            "<tr><td><a href=\"#{0}\">{0}</a></td><td>{1}</td><td>{state}</td><td>{seconds:.0} s</td></tr>",
            entry.name,
            escaped(entry.shows),
        );
    }
    table + "</table>\n"
}

fn published(outcomes: &[Outcome]) -> String {
    let mut table =
        "<h2>What was published</h2>\n<table><tr><th>mechanism</th><th>published</th><th>here</th></tr>\n"
            .to_owned();
    for seed in &SEEDS {
        let here = match outcomes.iter().find(|outcome| outcome.entry.name == seed.bench) {
            Some(Outcome { entry, .. }) => format!("<a href=\"#{0}\">{0}</a>", entry.name),
            None => "no bench of this build measures it".to_owned(),
        };
        let _ = writeln!(
            table,
            "<tr><td>{}</td><td>{}</td><td>{here}</td></tr>",
            escaped(seed.title),
            escaped(seed.published)
        );
    }
    table + "</table>\n"
}

fn section(outcome: &Outcome) -> String {
    let Outcome { entry, json, failure, .. } = outcome;
    let mut section = format!("<h2 id=\"{0}\">{0}</h2>\n<p>{1}</p>\n", entry.name, escaped(entry.shows));
    for seed in SEEDS.iter().filter(|seed| seed.bench == entry.name) {
        let _ = writeln!(section, "<p>Published: {}.</p>", escaped(seed.published));
    }
    if let Some(failure) = failure {
        let _ = writeln!(section, "<p class=\"failed\">{}</p>", escaped(failure));
    }
    let Some(json) = json else { return section };
    for chart in (entry.charts)(json) {
        let svg = chart.svg();
        let plot = if svg.is_empty() { "<p>No side of it could run.</p>" } else { &svg };
        let _ = writeln!(
            section,
            "<figure><figcaption>{}</figcaption><div>{}</div>{plot}</figure>",
            escaped(&chart.title),
            escaped(chart.unit),
        );
    }
    let raw = serde_json::to_string_pretty(json).unwrap_or_default();
    let _ = writeln!(
        section,
        "<details><summary>What <code>pagoda bench {0} --json</code> printed</summary>\
         <pre id=\"{0}-json\">{1}</pre></details>",
        entry.name,
        escaped(&raw),
    );
    section
}

/// Text made safe for any place in the page, attributes included.
pub fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '&' => safe += "&amp;",
            '<' => safe += "&lt;",
            '>' => safe += "&gt;",
            '"' => safe += "&quot;",
            '\'' => safe += "&#39;",
            '\n' | '\t' => safe.push(char),
            // Control characters tell a reader nothing, and HTML forbids some.
            char if char.is_control() => safe.push('\u{fffd}'),
            char => safe.push(char),
        }
    }
    safe
}

#[cfg(test)]
mod canned;
#[cfg(test)]
mod tests;
