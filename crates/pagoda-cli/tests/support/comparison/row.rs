//! The results of one program's two runs, and whether they are right.
//!
//! Nothing is judged by how long it took.

use pagoda_core::size::Bytes;

use super::measure::{Managed, Run};

/// How far a sample may be above the budget.
const OVERSHOOT_BYTES_MAX: u64 = 64 << 20;

/// The part of its native peak that a program may hold unmanaged.
const UNMANAGED_PERCENT_MAX: f64 = 5.0;

/// The results of one program's two runs.
pub struct Row {
    pub name: &'static str,
    pub native: Run,
    pub managed: Managed,
    /// Whether any of it is worth managing.
    pub small: bool,
}

impl Row {
    fn unmanaged_percent(&self) -> f64 {
        100.0 * self.managed.unmanaged_bytes() as f64 / self.native.peak_bytes.max(1) as f64
    }

    /// Of that, code that the program made itself: the kernel moves none, and a small program of
    /// that kind has as much.
    fn executable_percent(&self) -> f64 {
        100.0 * self.managed.counter("left_executable_bytes") as f64 / self.native.peak_bytes.max(1) as f64
    }

    /// The table's remark on a row that is not judged by all its figures.
    fn remark(&self) -> String {
        let starting = self.managed.run.starting_bytes;
        if !self.small && self.unmanaged_percent() > UNMANAGED_PERCENT_MAX {
            return format!("{:.1}% of it executable", self.executable_percent());
        }
        if self.small {
            "every process is too small to be worth managing".to_owned()
        } else if starting > 0 {
            format!("{} in processes whose engine was starting", Bytes::new(starting))
        } else {
            String::new()
        }
    }

    /// Every fault of the managed run.
    pub fn faults(&self) -> Vec<String> {
        let (native, managed, run) = (&self.native, &self.managed, &self.managed.run);
        let mut faults = Vec::new();
        if native.output != run.output {
            faults.push(format!("its output differs: {} natively, {} managed", native.output, run.output));
        }
        if native.status != run.status {
            faults.push(format!("it ended with {} and natively with {}", run.status, native.status));
        }
        if managed.run_status != "managed" {
            faults.push(format!("it was {} at its end, not managed", managed.run_status));
        }
        let percent = self.unmanaged_percent();
        if percent - self.executable_percent() > UNMANAGED_PERCENT_MAX && !self.small {
            faults.push(format!(
                "{percent:.1}% of its native peak were unmanaged: {} in processes without an engine",
                Bytes::new(run.without_engine_bytes)
            ));
        }
        let copied = managed.copied_by_a_fork_bytes() + managed.counter("copied_on_write_peak_bytes");
        let limit = managed.budget_bytes + OVERSHOOT_BYTES_MAX + copied;
        if run.peak_bytes > limit {
            faults.push(format!(
                "its peak of {} is above the budget of {}, {} for what a fork and writing after it copied, and {}; {} forks copied {}",
                Bytes::new(run.peak_bytes),
                Bytes::new(managed.budget_bytes),
                Bytes::new(copied),
                Bytes::new(OVERSHOOT_BYTES_MAX),
                managed.counter("forks"),
                Bytes::new(managed.counter("fork_copied_bytes")),
            ));
        }
        faults.extend(run.left.iter().map(|what| format!("it left behind: {what}")));
        if !faults.is_empty() {
            faults.push(run.errors.clone());
        }
        faults
    }
}

/// The table of all of them.
pub fn print(rows: &[Row]) {
    println!(
        "\n{:<16} {:>12} {:>10} {:>10} {:>6} {:>9} {:>9} {:>10} {:>11} {:>9} {:>8} {:>8}",
        "program",
        "native peak",
        "budget",
        "peak",
        "procs",
        "faults",
        "evicted",
        "spilled",
        "to children",
        "unmanaged",
        "native",
        "managed"
    );
    for row in rows {
        let (managed, run) = (&row.managed, &row.managed.run);
        let size = |bytes| Bytes::new(bytes).to_string();
        println!(
            "{:<16} {:>12} {:>10} {:>10} {:>6} {:>9} {:>9} {:>10} {:>11} {:>8.1}% {:>7.1}s {:>7.1}s {}",
            row.name,
            size(row.native.peak_bytes),
            size(managed.budget_bytes),
            size(run.peak_bytes),
            run.processes_peak,
            managed.counter("faults"),
            managed.counter("evictions"),
            size(managed.counter("spilled_peak_bytes")),
            size(managed.counter("fork_copied_bytes") + managed.counter("fork_taken_over_bytes")),
            row.unmanaged_percent(),
            row.native.wall.as_secs_f64(),
            run.wall.as_secs_f64(),
            row.remark(),
        );
    }
    println!();
}
