//! The figures for people. Pure.

use pagoda_core::size::Bytes;

use super::Tree;
use crate::report::table::{number, text_table};

impl Tree {
    /// For people.
    pub fn table(&self) -> String {
        let header = ["tree", "native", "pagoda", "ratio", "in half", "over the half", "why not"];
        let mut table = text_table(header, 1..6);
        let held = Bytes::new(self.fork_ms.held_bytes);
        let (fork, text) = (&self.fork_ms, |reason: &Option<String>| reason.clone().unwrap_or_default());
        table.add_row([
            format!("fork of {held}, ms"),
            number(fork.native, 2),
            number(fork.pagoda, 2),
            number(fork.ratio, 2),
            "-".to_owned(),
            "-".to_owned(),
            text(&fork.reason),
        ]);
        for (name, outcome) in self.outcomes() {
            table.add_row([
                format!("{name}, s"),
                number(outcome.native_s, 2),
                number(outcome.pagoda_s, 2),
                number(outcome.ratio, 2),
                number(outcome.half_s, 2),
                outcome.half_exceeded_mib.map_or_else(|| "-".to_owned(), |mib| format!("{mib:.1} MiB")),
                text(&outcome.reason),
            ]);
        }
        let redis = &self.redis_bgsave;
        let mut save = text_table(["redis while it saves", "requests/s", "p99 ms"], 1..);
        for (side, ops, p99) in [
            ("native", redis.native_ops, redis.native_p99_ms),
            ("pagoda, 1.2 times the native peak", redis.enough_ops, redis.enough_p99_ms),
            ("pagoda, half the memory", redis.pagoda_ops, redis.p99_ms),
            ("memory group + zram, the same", redis.kernel_ops, redis.kernel_p99_ms),
        ] {
            save.add_row([side.to_owned(), number(ops, 2), number(p99, 2)]);
        }
        let mut text = format!("{}\n\n{table}\n\n{save}\n", self.machine);
        if let Some(ratio) = redis.ratio {
            text +=
                &format!("redis, native requests over Pagoda's with 1.2 times the native peak: {ratio:.2}\n");
        }
        for (side, reason) in &redis.reasons {
            text += &format!("redis, {side}: {reason}\n");
        }
        text
    }
}
