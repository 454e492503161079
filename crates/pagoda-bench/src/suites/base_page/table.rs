//! The figures for people. Pure.

use comfy_table::Table;
use pagoda_core::size::Bytes;

use super::pattern::Pattern;
use super::report::{Group, Report, Rows};
use crate::report::table::{number, text_table, with_spread};

impl Report {
    /// For people.
    pub fn table(&self) -> String {
        let mut text = format!(
            "{}\n{} touched for the first time, then read at random; medians of {} rounds (least-greatest)\n",
            self.machine,
            Bytes::new(self.buffer_bytes),
            self.rounds
        );
        for pattern in Pattern::ALL {
            let (name, table) = (pattern.name(), self.pattern_table(pattern.name()));
            text += &format!("\n{name}\n{table}\n");
        }
        if let Some(around) = &self.fault_around {
            text += &format!(
                "\ndense with fault-around at 64 KiB: {} faults, {:.2} GiB/s, in thread {:.2}\n",
                around.faults, around.first_touch_gib_s, around.in_thread_first_touch_gib_s
            );
        }
        let break_even = self.break_even_density.map_or("at no density".to_owned(), |density| {
            format!("from {:.0}% of each 64 KiB on", 100.0 * density)
        });
        text += &format!("\ntouching 64 KiB at 64 KiB takes no longer than at 4 KiB {break_even}\n");
        text += &format!("\nmapping and touching a buffer, us\n{}\n", self.sweep_table());
        let ratios =
            self.map_touch_16mib_ratio_vs_thp.iter().map(|(side, ratio)| format!("{side} {ratio:.2}"));
        text += &format!("16 MiB over the kernel's huge pages: {}\n", ratios.collect::<Vec<_>>().join(", "));
        text += &format!("\n{} of a file, from open to close, GiB/s\n", Bytes::new(super::FILE_BYTES as u64));
        for (side, rate) in &self.open2close_gib_s.rows {
            text += &format!("{side}: {}\n", number(*rate, 2));
        }
        text += &format!("\nredis, {} keys\n{}\n", self.redis.keys, self.redis_table());
        let sv39 = &self.sv39;
        text += &format!(
            "\nSv39 as published, computed: {} of tables at 64 KiB and {} at 4 KiB, {} times the TLB reach\n",
            Bytes::new(sv39.table_bytes_64k),
            Bytes::new(sv39.table_bytes_4k),
            sv39.tlb_reach_ratio
        );
        for (what, why) in self.missing() {
            text += &format!("no {what}: {why}\n");
        }
        text
    }

    fn missing(&self) -> Vec<(&'static str, &str)> {
        fn of<T>(group: &Group<T>) -> impl Iterator<Item = (&'static str, &str)> {
            group.why.iter().map(|(name, why)| (*name, why.as_str()))
        }
        let redis = self.redis.why.iter().map(|(side, why)| (*side, why.as_str()));
        let counters = [("TLB misses", &self.tlb_misses_why), ("contiguity", &self.contiguous_percent_why)];
        let counters = counters.into_iter().filter_map(|(what, why)| Some((what, why.as_deref()?)));
        of(&self.clusters).chain(of(&self.kernel)).chain(redis).chain(counters).collect()
    }

    fn pattern_table(&self, pattern: &str) -> Table {
        let mut table = text_table(
            [
                "side",
                "faults",
                "table",
                "resident",
                "of touched",
                "after 5 s",
                "first touch GiB/s",
                "random load ns",
                "TLB misses",
                "contiguous %",
            ],
            1..,
        );
        let groups: [(&str, &Group<Rows>); 2] = [("Pagoda", &self.clusters), ("kernel", &self.kernel)];
        for (who, group) in groups {
            for (name, rows) in &group.rows {
                let Some(row) = rows.as_ref().and_then(|rows| rows.get(pattern)) else { continue };
                table.add_row([
                    format!("{who} {name}"),
                    row.faults.to_string(),
                    Bytes::new(row.table_bytes).to_string(),
                    Bytes::new(row.resident).to_string(),
                    format!("{:.2}", row.resident as f64 / row.touched as f64),
                    row.resident_after_5s.map_or_else(String::new, |bytes| Bytes::new(bytes).to_string()),
                    with_spread(row.first_touch_gib_s, 2),
                    format!("{:.1}", row.random_load_ns),
                    row.tlb_misses.map_or("-".to_owned(), |misses| misses.to_string()),
                    number(row.contiguous_percent, 1),
                ]);
            }
        }
        table
    }

    fn sweep_table(&self) -> Table {
        let sizes = self.sweep_mib.iter().map(|mib| format!("{mib} MiB"));
        let header = std::iter::once("side".to_owned()).chain(sizes);
        let mut table = text_table(header, 1..);
        for (side, times) in &self.map_touch_us.rows {
            let Some(times) = times else { continue };
            let times = times.iter().map(|us| format!("{us:.0}"));
            table.add_row(std::iter::once((*side).to_owned()).chain(times));
        }
        table
    }

    fn redis_table(&self) -> Table {
        let mut table = text_table(["side", "GET/s", "SET/s", "p50 ms"], 1..);
        for (side, figures) in &self.redis.sides {
            let Some(figures) = figures else { continue };
            table.add_row([
                (*side).to_owned(),
                format!("{:.0}", figures.get_ops),
                format!("{:.0}", figures.set_ops),
                format!("{:.3}", figures.p50_ms),
            ]);
        }
        table
    }
}
