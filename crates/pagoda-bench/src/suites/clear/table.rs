//! The figures for people. Pure.

use comfy_table::Table;
use pagoda_core::size::Bytes;

use super::fault::{Fault, Prezeroed};
use super::orders::{Orders, Perf};
use super::{Clear, base, choice};
use crate::report::table::{number, text_table, with_spread};

impl Clear {
    /// For people.
    pub fn table(&self) -> String {
        let mut text = format!(
            "{}\nlast-level cache {}; into the cache by {}, past it by {}; medians of {} rounds (least-greatest)\n",
            self.machine,
            Bytes::new(self.llc_bytes),
            self.cached_kernel,
            self.streaming_kernel,
            self.rounds
        );
        text += &format!(
            "\nclearing a huge frame, touching its target, writing all of it\n{}\n",
            orders_table(&self.orders.orders)
        );
        text += &format!(
            "\nthe same beside {} threads that thrash the cache\n{}\n",
            self.thrashers,
            orders_table(&self.pressure.orders)
        );
        let ready = &self.pressure.prezeroed;
        text += &format!(
            "huge frames cleared ahead beside them, {:.0}% of those that were taken: first touch {:.0} ns, writing all {:.1} us; the \
             kernel's THP {:.1} us\n",
            ready.taken_percent, ready.first_touch_ns, ready.write_all_us, ready.kernel_thp_write_all_us
        );
        if let Some(reason) = &self.perf_reason {
            text += &format!("no figures of the processor's counters: {reason}\n");
        }
        text += &format!(
            "\nthreads that clear at the same time, in two orders and as an engine chooses\n{}\n",
            choice_table(&self.choice)
        );
        text += &format!("\nfrom touch to return\n{}\n", fault_table(&self.fault, &self.orders.prezeroed));
        text += &format!(
            "\nthe same of base pages of 64 KiB, us, and with all of it written\n{}\n",
            base_table(&self.base)
        );
        text += "\nanon-w-seq, GiB/s of all processes by processor time; our orders clear in place, the kernel's side has its fault in it\n";
        text += &format!("{}\n", self.rows_table());
        text
    }

    fn rows_table(&self) -> Table {
        let mut table = text_table(
            [
                "processes",
                "cache each",
                "kernel THP",
                "ascending",
                "converge",
                "reverse-in-page",
                "neighbourhood",
                "streaming",
                "converge vs ascending",
                "best vs kernel",
            ],
            1..,
        );
        for row in &self.anon_w_seq {
            let gib_s = |rate: f64| format!("{rate:.2}");
            let ratio = |ratio| with_spread(ratio, 3);
            table.add_row([
                row.processes.to_string(),
                Bytes::new(row.llc_bytes_per_process).to_string(),
                gib_s(row.kernel_thp_gib_s),
                gib_s(row.ascending_gib_s),
                gib_s(row.converge_gib_s),
                gib_s(row.reverse_in_page_gib_s),
                gib_s(row.neighbourhood_gib_s),
                gib_s(row.streaming_gib_s),
                ratio(row.ratio_converge_vs_ascending),
                ratio(row.ratio_best_vs_kernel),
            ]);
        }
        table
    }
}

/// What faults take.
fn fault_table(fault: &Fault, ready: &Prezeroed) -> Table {
    let mut table = text_table(["fault", "us", "of kernel THP", "writing the frame us"], 1..);
    let ratio = |us: f64| format!("{:.2}", us / fault.kernel_thp_us.median);
    let mut row = |name: String, us: f64, write_us: Option<f64>| {
        let write = write_us.map_or_else(String::new, |us| format!("{us:.1}"));
        table.add_row([name, format!("{us:.1}"), ratio(us), write]);
    };
    row("kernel, 4 KiB".to_owned(), fault.kernel_4k_us.median, None);
    row("kernel, THP".to_owned(), fault.kernel_thp_us.median, Some(ready.kernel_thp_write_all_us));
    row("Pagoda, cleared in the fault".to_owned(), fault.pagoda_us.median, None);
    let ahead =
        format!("Pagoda, {:.0}% cleared ahead at {:.0} us", ready.taken_percent, ready.clearing_cpu_us);
    row(ahead, fault.pagoda_prezeroed_us.median, Some(ready.write_all_us));
    row("Pagoda in thread, cleared in the fault".to_owned(), fault.in_thread_us.median, None);
    row("Pagoda in thread, cleared ahead".to_owned(), fault.in_thread_prezeroed_us.median, None);
    table
}

/// What is chosen.
fn choice_table(rows: &[choice::Row]) -> Table {
    let headings = [
        "at once",
        "streaming us",
        "neighbourhood us",
        "chosen us",
        "streaming chosen %",
        "chosen vs better",
    ];
    let mut table = text_table(headings, 0..);
    for row in rows {
        table.add_row([
            row.clearing_at_once.to_string(),
            format!("{:.1}", row.streaming_us),
            format!("{:.1}", row.neighbourhood_us),
            format!("{:.1}", row.chosen_us),
            format!("{:.0}", row.chosen_streaming_percent),
            format!("{:.2}", row.ratio_chosen_vs_better),
        ]);
    }
    table
}

/// First touches of base pages.
fn base_table(rows: &[base::Row]) -> Table {
    let headings = [
        "busy threads",
        "kernel, 4 KiB",
        "Pagoda",
        "frame ready",
        "in thread",
        "in thread, frame ready",
        "ready vs not",
        "in thread",
        "CPU us a frame",
        "contiguous %",
    ];
    let mut table = text_table(headings, 0..);
    let times = |times: &base::Times| format!("{:.1} ({:.1})", times.touch_us, times.whole_us);
    for row in rows {
        table.add_row([
            row.busy_threads.to_string(),
            times(&row.kernel),
            times(&row.pagoda),
            times(&row.pagoda_ready),
            times(&row.in_thread),
            times(&row.in_thread_ready),
            format!("{:.2}", row.ratio_ready),
            format!("{:.2}", row.ratio_in_thread_ready),
            format!("{:.1}", row.ready_cpu_us),
            row.ready_contiguous_percent.map_or_else(|| "-".to_owned(), |percent| format!("{percent:.1}")),
        ]);
    }
    table
}

/// One part of the orders.
pub fn orders_table(orders: &Orders) -> Table {
    let mut table = text_table(
        [
            "order",
            "cleared after target",
            "extents",
            "clear us",
            "first touch ns",
            "of ascending",
            "write all us",
            "total us",
            "IPC",
            "cache misses %",
        ],
        1..,
    );
    for (name, figures) in orders {
        let times = &figures.times;
        let perf = |of: fn(&Perf) -> f64| number(figures.perf.as_ref().map(of), 2);
        table.add_row([
            (*name).to_owned(),
            figures.cleared_after_target_max.to_string(),
            figures.extents_max.to_string(),
            format!("{:.1}", times.clear_us),
            format!("{:.0}", times.first_touch_ns),
            format!("{:.2}", figures.first_touch_ratio_vs_ascending),
            format!("{:.1}", times.write_all_us),
            with_spread(times.total_us, 1),
            perf(|perf| perf.ipc),
            perf(|perf| perf.cache_miss_percent),
        ]);
    }
    table
}
