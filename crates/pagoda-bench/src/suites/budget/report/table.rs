//! The figures for people. Pure.

use comfy_table::Table;
use pagoda_core::size::Bytes;

use super::{Report, Setting};
use crate::measure::histogram::Percentiles;
use crate::measure::stats::Measured;
use crate::report::table::{text_table, with_spread};

impl Report {
    /// For people.
    pub fn table(&self) -> String {
        let mut text = format!("{}\n", self.machine);
        let budget = Bytes::new(self.budget_bytes);
        let settings = [("compressed", &self.compressed), ("spilled", &self.spilled)];
        for (name, setting) in
            settings.into_iter().filter_map(|(name, setting)| Some((name, setting.as_ref()?)))
        {
            let details = &setting.setting;
            text += &format!(
                "\n{name}: {} of data in {budget}; LZ4 {:.2}:1 by 4 KiB, {:.2}:1 by 64 KiB; median of {} pairs (least-greatest)\n",
                Bytes::new(details.data_bytes),
                details.lz4_ratio_4k,
                details.lz4_ratio_64k,
                self.pairs
            );
            text += &patterns_table(setting).to_string();
            text += "\n";
            if let Some(ms) = details.pagoda_after_burst_ms {
                let took = with_spread(ms, 0);
                text += &format!(
                    "pagoda within the budget and 16 MiB again, after a burst of all the data: {took} ms\n"
                );
            }
            let reasons = [
                ("pagoda", &details.pagoda_reason),
                ("kernel", &details.kernel_reason),
                ("in thread", &details.in_thread_reason),
            ];
            for (side, reason) in
                reasons.into_iter().filter_map(|(side, reason)| Some((side, reason.as_ref()?)))
            {
                text += &format!("{side} did not run: {reason}\n");
            }
        }
        if let Some(reason) = &self.kernel_reason {
            text += &format!("\nno comparison with the kernel: {reason}\n");
        }
        if let Some(no_pressure) = &self.no_pressure {
            text += &format!("\nno pressure: budget 1.2 times the native peak\n{}\n", no_pressure.table());
        }
        text
    }
}

fn patterns_table(setting: &Setting) -> Table {
    let rate = |value: Option<Measured>| value.map_or_else(|| "-".to_owned(), |value| with_spread(value, 2));
    let fault = |p: Option<Percentiles>| {
        p.map_or_else(|| "-".to_owned(), |p| format!("{:.0} / {:.0} / {:.0}", p.p50, p.p99, p.p999))
    };
    let mut table = text_table(
        [
            "pattern",
            "pagoda GiB/s",
            "kernel GiB/s",
            "ratio",
            "zram uncharged GiB/s",
            "in thread GiB/s",
            "its ratio",
            "pagoda fault us 50/99/99.9%",
            "kernel fault us 50/99/99.9%",
            "in thread fault us 50/99/99.9%",
        ],
        1..,
    );
    for (pattern, figures) in &setting.patterns {
        table.add_row([
            format!("{pattern:?}").to_lowercase(),
            rate(figures.pagoda_gib_s),
            rate(figures.kernel_gib_s),
            rate(figures.ratio),
            rate(figures.kernel_uncharged_gib_s),
            rate(figures.in_thread_gib_s),
            rate(figures.in_thread_ratio),
            fault(figures.pagoda_fault_us),
            fault(figures.kernel_fault_us),
            fault(figures.in_thread_fault_us),
        ]);
    }
    table
}
