//! The figures for people. Pure.

use pagoda_core::size::Bytes;

use super::{Figures, Report};
use crate::report::table::text_table;

impl Report {
    /// For people.
    pub fn table(&self) -> String {
        let mut table = text_table(
            [
                "case",
                "zero pages",
                "how",
                "faults there",
                "ms",
                "GiB/s",
                "moved",
                "copied",
                "resident",
                "CPU ms",
                "wire",
            ],
            3..,
        );
        let mut row = |case: &str, zero: String, how: &str, figures: &Figures| {
            table.add_row([
                case.to_owned(),
                zero,
                how.to_owned(),
                figures.dest_faults.to_string(),
                format!("{:.0}", figures.total_ms),
                format!("{:.2}", figures.gib_s),
                Bytes::new(figures.moved_bytes as u64).to_string(),
                Bytes::new(figures.copied_bytes as u64).to_string(),
                Bytes::new(figures.dest_rss as u64).to_string(),
                format!("{:.0}", figures.cpu_ms),
                Bytes::new(figures.wire_bytes as u64).to_string(),
            ]);
        };
        for (name, case) in &self.cases {
            for (way, figures) in &case.ways {
                row(name, case.zero_pages.to_string(), way, figures);
            }
        }
        for (codec, figures) in &self.codecs {
            row("3:1 data", "0".to_owned(), codec, figures);
        }
        if let Some(qemu) = &self.qemu {
            for (name, case) in [("untouched", &qemu.untouched), ("full", &qemu.full)] {
                table.add_row([
                    name.to_owned(),
                    String::new(),
                    format!("QEMU {}", qemu.version),
                    case.dest_faults.to_string(),
                    format!("{:.0}", case.total_ms),
                    format!("{:.2}", case.gib_s),
                    String::new(),
                    String::new(),
                    Bytes::new(case.dest_rss as u64).to_string(),
                    String::new(),
                    Bytes::new(case.wire_bytes as u64).to_string(),
                ]);
            }
        }
        let qemu = match (&self.ratios.qemu, &self.qemu_reason) {
            (Some(ratios), _) => format!(
                "untouched takes {:.3} of its time, full moves {:.2} times as much in a second",
                ratios.untouched_to_qemu_time, ratios.full_to_qemu_rate,
            ),
            (None, reason) => format!("not measured ({})", reason.as_deref().unwrap_or_default()),
        };
        let (live, stored, scan) = (&self.live, &self.stored, self.wire.scan);
        format!(
            "{}\n{table}\n\
             live: {:.0} MiB/s written, {} rounds, {:.0} ms to the end, the writer stood still for {:.1} ms\n\
             post-copy: {:.1} ms until the other side went on, {:.0} ms until it had all, {:.0} us for its longest read till then\n\
             stored: {} pages travel packed, {} were unpacked, {:.2} GiB/s of content\n\
             zero pages: {:.2} bytes each on the wire; found at {:.0} GiB/s from cache, {:.0} from memory, which is read at {:.0}\n\
             loopback: {:.2} GiB/s on {} channels with nothing done; full reaches {:.2} of that, by huge frames {:.2}\n\
             QEMU: {qemu}\n",
            self.machine,
            live.dirty_mib_s,
            live.rounds,
            live.total_ms,
            live.downtime_ms,
            live.postcopy_downtime_ms,
            live.fully_resident_ms,
            live.max_fault_us,
            stored.packed_pages,
            stored.reinflated_pages,
            stored.gib_s,
            self.wire.bytes_per_zero_page,
            scan.cached_gib_s,
            scan.memory_gib_s,
            scan.memory_read_gib_s,
            self.loopback_limit_gib_s,
            self.channels,
            self.ratios.full_of_limit,
            self.ratios.full_huge_of_limit,
        )
    }
}
