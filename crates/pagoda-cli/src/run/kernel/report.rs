//! The end of a run by the kernel's swap: its table, its line and its `--stats`.
//!
//! The rows have the names and words of the engine's table. This module must never count anything
//! itself.

use std::time::Duration;

use pagoda_core::size::Bytes;

use super::pilot::Figures;
use crate::run::stats::StatsFile;
use crate::run::supervise::Ended;
use crate::run::table::{Table, bytes, ratio};
use crate::run::{Run, foot, shown};

/// A run that has ended.
pub struct Ran {
    pub ended: Ended,
    pub wall: Duration,
    pub budget: Bytes,
    pub figures: Figures,
    pub exit_status: u8,
    pub line: Option<String>,
}

/// Tells all of it.
pub fn tell(run: Run, ran: &Ran) {
    if !run.args.quiet {
        let table = render(&run.args.command[0].to_string_lossy(), ran);
        crate::print_error(&(table.clone() + &foot(&table, run.args.explain)));
    }
    ran.line.iter().for_each(crate::say);
    if let Some(file) = run.stats {
        let status = if ran.figures.is_given_up { "failed" } else { "managed" };
        let stats = StatsFile::new(shown(&run.args.command), ran.ended, ran.wall, status).kernel(ran.figures);
        let stats = stats.exit_status(ran.exit_status).group(run.asked, run.group.stats());
        ran.line.iter().cloned().fold(stats, StatsFile::reason).write_to(file);
    }
}

fn render(program: &str, ran: &Ran) -> String {
    let (figures, budget) = (&ran.figures, ran.budget.get());
    let mut table = Table::of(program, ran.ended, ran.wall);
    table.row("budget", ran.budget, "kept by the kernel's swap (--backend kernel)");
    let kept = match figures.peak_bytes.saturating_sub(budget) {
        0 => "within the budget".to_owned(),
        over => format!("{} over it", bytes(over)),
    };
    table.row(
        "peak",
        bytes(figures.peak_bytes),
        format_args!("memory of the group and of its compressed pages, {kept}"),
    );
    let times = ratio(figures.held_peak_bytes, budget);
    let says = format_args!("what the program held at most, {times:.1} times the budget");
    table.row("native peak", bytes(figures.held_peak_bytes), says);
    table.row(
        "group",
        bytes(figures.group_peak_bytes),
        "the most memory of the control group, files included",
    );
    let says = "largest resident set, file-backed pages included";
    table.row("with files", bytes(ran.ended.resident_peak_bytes), says);
    table.row("faults", figures.major_faults, "that read from swap or a file");
    table.size("stored peak", figures.zram_content_peak_bytes, "in zram, before compression");
    table.size("compressed", figures.zram_memory_peak_bytes, "peak of zram's memory, part of the budget");
    table.size("spilled peak", figures.file_peak_bytes, "in the swap file");
    table.text()
}
