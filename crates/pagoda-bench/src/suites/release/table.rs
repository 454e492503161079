//! The figures as people read them. Pure.

use pagoda::ReleasePolicy;
use pagoda_core::size::Bytes;

use super::report::Report;
use crate::measure::stats::Measured;
use crate::report::table::{text_table, with_spread};

fn range(value: Measured) -> String {
    with_spread(value, 1)
}

impl Report {
    /// For people.
    pub fn table(&self) -> String {
        let mut table = text_table(
            [
                "policy",
                "close ms",
                "p99",
                "extra",
                "frames back",
                "stored back",
                "starter",
                "work",
                "CPU ms",
                "in close",
                "lock wait",
                "queued",
                "inline",
                "early",
            ],
            1..,
        );
        for name in ReleasePolicy::ALL.map(ReleasePolicy::name) {
            let figures = &self.policies[name];
            table.add_row([
                name.to_owned(),
                range(figures.close_ms_p50),
                format!("{:.1}", figures.close_ms_p99),
                format!("{:.1}", figures.extra_ms),
                range(figures.frames_back_ms),
                range(figures.stored_back_ms),
                range(figures.starter_start_ms),
                range(figures.starter_work_ms),
                range(figures.cpu_ms),
                format!("{:.2}", figures.in_close_ms),
                format!("{:.2}", figures.lock_wait_ms),
                figures.queued.to_string(),
                figures.inline.to_string(),
                figures.early.to_string(),
            ]);
        }
        let header = self.aging.stored_percent.map(|percent| format!("{percent} % stored"));
        let header = ["one owner closes, ms".to_owned()].into_iter().chain(header);
        let mut aging = text_table(header, 1..);
        for name in ReleasePolicy::ALL.map(ReleasePolicy::name) {
            let times = self.aging.close_ms[name].iter().map(|time| format!("{time:.1}"));
            aging.add_row([name.to_owned()].into_iter().chain(times));
        }
        let (never, alone) = (&self.never_stored, &self.starter_alone);
        format!(
            "{}\n\n{} owners of {} in base pages of {}, {} % stored, close at once; median (least-greatest) of {} rounds\n\n{table}\n\n\
             nothing stored: close {}; starter alone: {}, work {}\n{}\n{aging}\n\n{}\n\
             {}\n",
            self.machine,
            self.owners,
            Bytes::new(self.owner_bytes),
            Bytes::new(self.base_page_bytes),
            self.stored_percent,
            self.rounds,
            range(never.close_ms_p50),
            range(alone.start_ms),
            range(alone.work_ms),
            self.killed(),
            self.store_line(),
            self.quiet,
        )
    }

    /// The sides that are killed, a line each.
    fn killed(&self) -> String {
        let zram = self.kernel_zram.as_ref().map_or_else(
            || format!("the kernel's zram did not run: {}", self.kernel_zram_reason.as_deref().unwrap_or("unknown")),
            |zram| {
                format!(
                    "killed with {:.1} % in zram: gone {}, all back {}, starter {}, work {}; never swapped: gone {}",
                    zram.stored_percent,
                    range(zram.kill_ms),
                    range(zram.back_ms),
                    range(zram.starter_start_ms),
                    range(zram.starter_work_ms),
                    range(zram.kill_never_swapped_ms),
                )
            },
        );
        let run = match self.run_kill9_ms {
            Some(ms) => format!(
                "killed under pagoda run with {:.1} % stored: gone {}",
                self.run_kill9_stored_percent.unwrap_or(0.0),
                range(ms)
            ),
            None => {
                format!("pagoda run did not run: {}", self.run_kill9_reason.as_deref().unwrap_or("unknown"))
            }
        };
        format!("{zram}\n{run}\n")
    }

    fn store_line(&self) -> String {
        let store = &self.store;
        let [whole, first] = [&store.fetch_us, &store.fetch_in_thread_us]
            .map(|us| format!("{:.1} / {:.1} us", us.p50, us.p99));
        format!(
            "store: compresses {:.2} GiB/s ({:.2} by processor time), fetches 64 KiB in {whole} (p50 / p99), in thread {first}, wastes {:.1} %\n",
            store.compress_gib_s, store.compress_cpu_gib_s, store.waste_percent
        )
    }
}
