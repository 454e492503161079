//! The quietness of the machine during a measurement, so that a reader can judge the figures.
//! Reads, never sets.

use std::fs;

use serde::Serialize;

use crate::measure::stats::round;

/// The load of other programs on the machine during the measurement.
#[derive(Serialize)]
pub struct Quiet {
    /// Processor time of all other programs, in percent of all processors.
    others_busy_percent: f64,
    /// The load average of a minute at the beginning and at the end.
    load_average: [f64; 2],
    #[serde(skip)]
    begun: Times,
}

/// Processor time since the machine and this program were started, in ticks.
#[derive(Clone, Copy, Default)]
struct Times {
    all: f64,
    busy: f64,
    /// The time of this program, with its children's.
    own: f64,
}

impl Times {
    fn now() -> Self {
        let numbers =
            |text: &str| text.split_whitespace().filter_map(|word| word.parse().ok()).collect::<Vec<f64>>();
        let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
        let all = numbers(stat.lines().next().unwrap_or_default());
        // The name may hold anything and ends at the last parenthesis. User and system time are the
        // 14th and 15th field, and those of reaped children the next two.
        let own = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let own = own
            .rsplit_once(')')
            .map(|(_, rest)| rest.split_whitespace().skip(11).take(4).collect::<Vec<_>>().join(" "));
        let idle: f64 = all.iter().skip(3).take(2).sum();
        // Guest time is part of user time.
        let sum: f64 = all.iter().take(8).sum();
        Self { all: sum, busy: sum - idle, own: numbers(&own.unwrap_or_default()).iter().sum() }
    }
}

fn load_average() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0.0)
}

impl Quiet {
    pub fn begin() -> Self {
        Self { others_busy_percent: 0.0, load_average: [load_average(); 2], begun: Times::now() }
    }
    pub fn end(mut self) -> Self {
        let now = Times::now();
        let others = (now.busy - self.begun.busy) - (now.own - self.begun.own);
        self.others_busy_percent = round(100.0 * others.max(0.0) / (now.all - self.begun.all).max(1.0));
        self.load_average[1] = load_average();
        self
    }
}
