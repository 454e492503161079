//! The figures for people. Pure.

use pagoda_core::size::Bytes;
use pagoda_core::zone::ZonePolicy;

use super::tiobench::Streams;
use super::{Costs, Report};
use crate::measure::stats::Measured;
use crate::report::table::{number, text_table};

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
        let Costs { warm, cold } = alloc_ns;
        let range = |Measured { least, most, .. }: &Measured| format!("{least:.1}-{most:.1}");
        format!(
            "{}\n\n{table}\n\n{engines}\n\n{}\n\
             fair, 3:1, {share_threads} threads with caches of {cache_frames} frames: {first}:{second}, \
             {share_error_percent} % from its share at most\n\
             an allocation: {warm:.1} ns ({}) with a cache, {cold:.1} ns ({}) without; \
             median of {pairs} pairs (least-greatest)\n",
            self.machine,
            self.streams.table(),
            range(warm),
            range(cold),
        )
    }
}

impl Streams {
    fn table(&self) -> String {
        if let Some(reason) = &self.tiobench_reason {
            return format!("no streams over a file: {reason}\n");
        }
        let names = ZonePolicy::ALL.map(ZonePolicy::name);
        let header = ["MiB/s", "threads"].into_iter().chain(names).chain(["fair/reset", "published"]);
        let mut rates = text_table(header.collect::<Vec<_>>(), 1..);
        let counted =
            ["seq_read", "threads", "frames", "resets", "shortages", "unused", "read twice MiB", "age ratio"];
        let mut counts = text_table(counted, 1..);
        for (pattern, rows) in &self.tiobench {
            let mut rows: Vec<_> = rows.iter().collect();
            rows.sort_by_key(|(threads, _)| threads.len());
            for (threads, row) in rows {
                let mut cells = vec![(*pattern).to_owned(), threads.clone()];
                cells.extend(names.map(|name| format!("{:.0}", row.policies[name].mib_s)));
                cells.push(format!("{:.3}", row.ratio_fair_vs_reset));
                cells.push(number(row.published_ratio, 3));
                rates.add_row(cells);
                for name in names.into_iter().filter(|_| *pattern == "seq_read") {
                    let cell = &row.policies[name];
                    let [first, second] = cell.allocs_by_zone;
                    counts.add_row([
                        name.to_owned(),
                        threads.clone(),
                        format!("{first}:{second}"),
                        cell.resets.to_string(),
                        cell.shortages.to_string(),
                        cell.evicted_before_use.to_string(),
                        format!("{:.1}", cell.bytes_read_twice as f64 / f64::from(1 << 20)),
                        number(cell.age_ratio, 2),
                    ]);
                }
            }
        }
        let of_kernel = self.kernel_mmap.reason.as_ref().map_or_else(
            || {
                format!(
                    "the kernel's mmap in a memory group of the same size: {} MiB/s ({} with MADV_SEQUENTIAL); fair over it: {} ({})",
                    number(self.kernel_mmap.seq_read_mib_s, 0),
                    number(self.kernel_mmap.seq_read_advised_mib_s, 0),
                    number(self.ratio_vs_mmap, 2),
                    number(self.ratio_vs_mmap_advised, 2),
                )
            },
            |reason| format!("nothing of the kernel's mmap: {reason}"),
        );
        format!(
            "a file of {} over zones of {} and {}; what is cached is read again at {} MiB/s\n{of_kernel}\n\n{rates}\n\n{counts}\n",
            Bytes::new(self.file_bytes as u64),
            Bytes::new(self.zones_bytes[0]),
            Bytes::new(self.zones_bytes[1]),
            number(self.cached_reread_mib_s, 0),
        )
    }
}
