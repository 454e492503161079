//! The kernel's side of a program: the best of several splits of the budget between a memory group
//! and zram.
//!
//! The ratio at which a program's memory compresses is not known before. So zram has no limit of
//! its own, and a run counts only if both peaks together kept to the budget. The next attempt then
//! knows the ratio. This module must never count a run that took more.

use pagoda_core::size::Bytes;
use serde::Serialize;

use super::runner::{self, End};
use super::{Bench, Native, mib};
use crate::kernel::{KernelSide, Split};
use crate::measure::stats::round;

/// The shares of the budget that stay resident.
const RESIDENT: [f64; 3] = [0.8, 0.65, 0.5];
/// The limit of attempts: some only measure the ratio.
const ATTEMPTS_MAX: usize = 6;
/// The excess of both peaks together over the budget that still counts.
const OVER_MAX: f64 = 1.03;
/// The ratio assumed before anything was compressed.
const RATIO_GUESS: f64 = 3.0;
/// The share of the limit to aim at: peaks differ from run to run.
const CAUTION: f64 = 0.97;

/// The best run of the kernel.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Kernel {
    pub s: f64,
    pub end: End,
    pub memcg_peak_mib: f64,
    pub zram_peak_mib: f64,
}

/// The ratio at which zram compresses a program's memory, by its earlier runs.
pub struct Ratio(f64);

impl Default for Ratio {
    fn default() -> Self {
        Self(RATIO_GUESS)
    }
}

/// Whether a run is better than another: alive first, then faster.
fn better(this: &Kernel, than: &Kernel) -> bool {
    let rank = |end| match end {
        End::Ok => 0,
        End::Timeout => 1,
        End::Killed => 2,
        End::Wrong => 3,
    };
    (rank(this.end), this.s) < (rank(than.end), than.s)
}

/// The best split; `None` if no attempt kept to the budget. The error is a signal, or the reason
/// that this machine has no such side.
pub fn best(
    bench: &Bench,
    native: &Native,
    budget: Bytes,
    ratio: &mut Ratio,
) -> anyhow::Result<Option<Kernel>> {
    let mut best: Option<Kernel> = None;
    let mut shares = RESIDENT.iter().peekable();
    for _ in 0..ATTEMPTS_MAX {
        let Some(&&share) = shares.peek() else { break };
        let ran = once(bench, native, budget, share, ratio)?;
        if ran.memcg_peak_mib + ran.zram_peak_mib > mib(budget.get()) * OVER_MAX {
            continue;
        }
        shares.next();
        if best.is_none_or(|best| better(&ran, &best)) {
            best = Some(ran);
        }
    }
    Ok(best)
}

fn once(
    bench: &Bench,
    native: &Native,
    budget: Bytes,
    share: f64,
    ratio: &mut Ratio,
) -> anyhow::Result<Kernel> {
    // Room for everything in the file: a page written to zram keeps its slot.
    let data = Bytes::new(native.peak_bytes * 2);
    let split = Split::with_resident(budget, data, ratio.0 * CAUTION, share);
    let mut side = KernelSide::set_up(&Split { zram_limit_bytes: None, ..split })?;
    let join = "echo $$ > \"$0\" && exec \"$@\"".to_owned();
    let procs = side.procs().display().to_string();
    let command: Vec<_> = ["sh".to_owned(), "-c".to_owned(), join, procs]
        .into_iter()
        .chain(native.command.iter().cloned())
        .collect();
    bench.warm(native);
    let mut ticks = 0u32;
    let ran = runner::run(&command, Some(native.digest), bench.limit, bench.cancel, || {
        ticks += 1;
        if ticks.is_multiple_of(5) {
            side.sample();
        }
    })?;
    let per_content = side.peak().zram_memory_per_content;
    if per_content > 0.0 {
        // A split adds zram's own loss.
        ratio.0 = (Split::ZRAM_LOSS / per_content).clamp(1.0, 100.0);
    }
    // If a process below it is killed, a program can fail instead of ending by the signal.
    let killed = ran.end == End::Wrong && side.group().oom_kills() > 0;
    Ok(Kernel {
        s: round(ran.seconds),
        end: if killed { End::Killed } else { ran.end },
        memcg_peak_mib: mib(side.group().peak_bytes().unwrap_or(split.memcg_limit_bytes)),
        zram_peak_mib: mib(side.zram_peak_bytes()?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_living_win_and_among_them_the_faster() {
        let run = |s, end| Kernel { s, end, memcg_peak_mib: 1.0, zram_peak_mib: 1.0 };
        assert!(better(&run(9.0, End::Ok), &run(1.0, End::Killed)));
        assert!(better(&run(1.0, End::Ok), &run(2.0, End::Ok)));
        assert!(better(&run(60.0, End::Timeout), &run(1.0, End::Killed)));
        assert!(!better(&run(1.0, End::Wrong), &run(9.0, End::Killed)));
    }
}
