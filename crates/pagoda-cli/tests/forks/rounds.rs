//! Forks, one after another, of a process whose memory is mostly swapped out: each child checks
//! copies of all kinds. When the last is gone, the memory that was shared with them is evicted
//! again.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::borrow;
use crate::family::{self, End};
use crate::plots::Plots;
use crate::support::random::Random;

const PLOT_PAGES: usize = (20 << 20) / 4096;
const STILL_PAGES: usize = (16 << 20) / 4096;

/// Runs the program: this many forks.
pub fn body(seed: u64, forks: u64) -> Result<String, String> {
    let mut random = Random::new(seed, 1);
    let plots = Plots::new(seed, 2, PLOT_PAGES);
    let (still, sum) = borrow::still(STILL_PAGES, &mut random);
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (plots, ended) = (&plots, &ended);
        let writer = scope.spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                plots.work(0)?;
            }
            Ok(())
        });
        let result = (0..forks).try_for_each(|fork| {
            let end = End::any(&mut random);
            let mut all = plots.lock_all();
            let child = family::fork(end, || {
                let thorough = fork % 16 == 0;
                for plot in &mut all {
                    plot.reseed(seed ^ fork);
                    if thorough {
                        plot.check_all()?;
                    } else {
                        plot.check_some()?;
                    }
                    plot.operate(4)?;
                    plot.check_some()?;
                }
                let right = !thorough || borrow::sum(&still) == sum;
                if right { Ok(()) } else { Err("read-only memory has changed".to_owned()) }
            });
            drop(all);
            plots.work(1)?;
            child.join(&mut random).map_err(|wrong| format!("fork {fork}: {wrong}"))
        });
        ended.store(true, Ordering::Relaxed);
        result.and(writer.join().expect("it does not panic"))
    })?;
    plots.lock_all().iter().try_for_each(|plot| plot.check_all())?;
    if borrow::sum(&still) != sum {
        return Err("read-only memory has changed, in the parent".to_owned());
    }
    if !family::wait_until_out(&still, || plots.work(0).and_then(|()| plots.work(1)))? {
        return Err("memory shared with children that are gone was never evicted again".to_owned());
    }
    Ok(format!("{forks} forks"))
}
