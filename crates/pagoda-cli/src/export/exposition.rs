//! The two text formats that Prometheus reads: OpenMetrics 1.0, and its older own one.
//!
//! They differ in the name of a counter's family, in units, and in the mark of the end. This module
//! must never write a sample outside of its family: a reader refuses the whole answer for one.

use std::fmt::{Display, Write};

/// A format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `application/openmetrics-text`.
    OpenMetrics,
    /// `text/plain; version=0.0.4`.
    Prometheus,
}

impl Format {
    /// The value of `Content-Type`.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// The format for a request with this header `Accept`.
    pub fn of_accept(accept: &str) -> Self {
        if accept.contains("application/openmetrics-text") { Self::OpenMetrics } else { Self::Prometheus }
    }
}

/// The kind of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Counter,
    Gauge,
    Histogram,
    Info,
}

/// A label: its name and its value, which may be any text.
pub type Label<'a> = (&'a str, &'a str);

/// An answer that grows family by family.
pub struct Exposition {
    format: Format,
    text: String,
    /// The name of the family's samples, before a histogram's suffix.
    name: String,
}

impl Exposition {
    /// An empty one.
    pub fn new(format: Format) -> Self {
        Self { format, text: String::new(), name: String::new() }
    }

    /// Begins a family. `name` has the unit at its end and no suffix of its kind.
    pub fn family(&mut self, name: &str, kind: Kind, help: &str) {
        let suffix = match kind {
            Kind::Counter => "_total",
            Kind::Info => "_info",
            Kind::Gauge | Kind::Histogram => "",
        };
        self.name = format!("{name}{suffix}");
        let (family, kind) = match (self.format, kind) {
            (Format::OpenMetrics, kind) => (name, kind),
            (Format::Prometheus, Kind::Info) => (self.name.as_str(), Kind::Gauge),
            (Format::Prometheus, kind) => (self.name.as_str(), kind),
        };
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
            Kind::Info => "info",
        };
        // Writing to a string does not fail.
        let _ = writeln!(self.text, "# TYPE {family} {kind}");
        let unit = ["bytes", "seconds"].into_iter().find(|unit| name.ends_with(unit));
        if let Some(unit) = unit.filter(|_| self.format == Format::OpenMetrics) {
            let _ = writeln!(self.text, "# UNIT {family} {unit}");
        }
        let _ = writeln!(self.text, "# HELP {family} {}", escaped(help));
    }

    /// A sample of the family that was begun last.
    pub fn sample(&mut self, labels: &[Label], value: impl Display) {
        self.sample_of("", labels, value);
    }

    /// A histogram's cumulative bucket: so many observations were at most `most`.
    pub fn bucket(&mut self, labels: &[Label], most: &str, count: u64) {
        let labels: Vec<Label> = labels.iter().copied().chain([("le", most)]).collect();
        self.sample_of("_bucket", &labels, count);
    }

    fn sample_of(&mut self, suffix: &str, labels: &[Label], value: impl Display) {
        self.text.push_str(&self.name);
        self.text.push_str(suffix);
        for (at, (name, value)) in labels.iter().enumerate() {
            let lead = if at == 0 { '{' } else { ',' };
            let _ = write!(self.text, "{lead}{name}=\"{}\"", escaped(value));
        }
        self.text.push_str(if labels.is_empty() { "" } else { "}" });
        let _ = writeln!(self.text, " {value}");
    }

    /// The whole answer.
    pub fn finish(mut self) -> String {
        if self.format == Format::OpenMetrics {
            self.text.push_str("# EOF\n");
        }
        self.text
    }
}

/// Nanoseconds as seconds, exactly.
pub fn seconds(ns: u64) -> String {
    format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn both(write: impl Fn(&mut Exposition)) -> [String; 2] {
        [Format::OpenMetrics, Format::Prometheus].map(|format| {
            let mut exposition = Exposition::new(format);
            write(&mut exposition);
            exposition.finish()
        })
    }

    #[test]
    fn a_counters_family_has_the_name_that_its_format_wants() {
        let [open, plain] = both(|to| {
            to.family("a_bytes", Kind::Counter, "Bytes.");
            to.sample(&[("of", "x")], 7);
        });
        assert_eq!(
            open,
            "# TYPE a_bytes counter\n# UNIT a_bytes bytes\n# HELP a_bytes Bytes.\na_bytes_total{of=\"x\"} 7\n# EOF\n"
        );
        assert_eq!(
            plain,
            "# TYPE a_bytes_total counter\n# HELP a_bytes_total Bytes.\na_bytes_total{of=\"x\"} 7\n"
        );
    }

    #[test]
    fn a_labels_value_can_not_end_its_line_or_its_quotes() {
        let [open, _] = both(|to| {
            to.family("a", Kind::Gauge, "One\nline.");
            to.sample(&[("of", "\"}\n\\")], 1);
        });
        assert!(open.contains("# HELP a One\\nline.\na{of=\"\\\"}\\n\\\\\"} 1\n"), "{open}");
    }

    #[test]
    fn nanoseconds_are_told_exactly() {
        assert_eq!((seconds(1_023), seconds(61_000_000_007)), ("0.000001023".into(), "61.000000007".into()));
    }

    #[test]
    fn a_reader_that_asks_for_neither_gets_the_older_format() {
        let asked = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.3";
        assert_eq!(Format::of_accept(asked), Format::OpenMetrics);
        assert_eq!(Format::of_accept("*/*"), Format::Prometheus);
    }
}
