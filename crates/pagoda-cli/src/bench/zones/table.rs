//! The figures for people. Pure.

use pagoda_core::zone::ZonePolicy;

use super::super::text_table::text_table;
use super::{Costs, Report};

impl Report {
    /// For people.
    pub fn table(&self) -> String {
        let mut table = text_table(
            ["case", "policy", "resets", "scans", "visits", "skips", "shares", "spills", "wake-ups"],
            2..,
        );
        for (case, policies) in &self.cases {
            for name in ZonePolicy::ALL.map(ZonePolicy::name) {
                let counts = &policies[name];
                let [first, second] = counts.shares;
                table.add_row([
                    (*case).to_owned(),
                    name.to_owned(),
                    counts.resets.to_string(),
                    counts.scans.to_string(),
                    counts.zone_visits.to_string(),
                    counts.skips.to_string(),
                    format!("{first}:{second}"),
                    counts.spills.to_string(),
                    counts.wake_ups.to_string(),
                ]);
            }
        }
        let mut engines = text_table(
            ["engine", "shares %", "error %", "resets", "shortages", "frames", "age ratio", "MB/s"],
            1..,
        );
        for (policy, outcome) in &self.engine {
            let [first, second] = outcome.shares_percent;
            engines.add_row([
                (*policy).to_owned(),
                format!("{first:.1}:{second:.1}"),
                format!("{:.2}", outcome.share_error_percent),
                outcome.resets.to_string(),
                outcome.shortages.to_string(),
                outcome.frames.to_string(),
                format!("{:.2}", outcome.age_ratio),
                format!("{:.0}", outcome.mb_s),
            ]);
        }
        let Self { share_error_percent, share_threads, cache_frames, alloc_ns, pairs, .. } = self;
        let [first, second] = self.share_allocations;
        let Costs { warm, warm_spread, cold, cold_spread } = alloc_ns;
        let range = |[least, most]: &[f64; 2]| format!("{least:.1}-{most:.1}");
        format!(
            "{}\n\n{table}\n\n{engines}\n\n\
             fair, 3:1, {share_threads} threads with caches of {cache_frames} frames: {first}:{second}, \
             {share_error_percent} % from its share at most\n\
             an allocation: {warm:.1} ns ({}) with a cache, {cold:.1} ns ({}) without; \
             median of {pairs} pairs (least-greatest)\n",
            self.machine,
            range(warm_spread),
            range(cold_spread),
        )
    }
}
