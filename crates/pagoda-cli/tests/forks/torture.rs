//! Threads that change their memory while others fork: with all threads at rest, so that a child
//! knows every byte, and with all threads at work. Children live on, fork in turn, and end in every
//! way, by an exec of all they hold among others; some are spawned, vforked, and vforked to exec.

use std::sync::MutexGuard;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use pagoda_linux::testing::process::end_at_once;

use crate::borrow;
use crate::family::{self, Child, End};
use crate::plots::{Plot, Plots};
use crate::racing::Racing;
use crate::support::random::Random;

const WORKERS: usize = 3;
/// With all of them, and the children's writes, more than the budget in every process.
const PLOT_PAGES: usize = (14 << 20) / 4096;
/// Children of one parent that live at once.
const CHILDREN_MAX: usize = 2;
/// Generations below the first process.
const DEPTH_MAX: u64 = 3;
const STILL_PAGES: usize = (4 << 20) / 4096;

/// Runs the program: this many forks of its first process.
pub fn body(seed: u64, forks: u64) -> Result<String, String> {
    let plots = Plots::new(seed, WORKERS, PLOT_PAGES);
    let racing = Racing::new();
    let (still, sum) = borrow::still(STILL_PAGES, &mut Random::new(seed, 2));
    let ended = AtomicBool::new(false);
    let operations = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let (plots, racing, still, ended, operations) = (&plots, &racing, &still, &ended, &operations);
        let goes_on = move || !ended.load(Ordering::Relaxed);
        for worker in 0..WORKERS {
            scope.spawn(move || {
                while goes_on() {
                    plots.work(worker).unwrap_or_else(|wrong| fail(&wrong));
                    operations.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for half in 0..2 {
            scope.spawn(move || racing.write(half, &mut Random::new(seed, 10 + half as u64), goes_on));
        }
        let vforks = scope.spawn(move || {
            let mut done = 0u64;
            while goes_on() {
                family::vfork(still, sum).unwrap_or_else(|wrong| fail(&wrong));
                if done.is_multiple_of(16) {
                    family::vfork_and_execute(seed ^ done).unwrap_or_else(|wrong| fail(&wrong));
                }
                done += 1;
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
            done
        });
        let result = fork_all(seed, forks, plots, racing);
        ended.store(true, Ordering::Relaxed);
        let vforks = vforks.join().expect("it does not panic");
        result.map(|said| format!("{said}, {vforks} vforks"))
    })
    .and_then(|said| {
        plots.lock_all().iter().try_for_each(|plot| plot.check_all().and_then(|()| plot.check_files()))?;
        Ok(format!("{} operations, {said}", operations.load(Ordering::Relaxed)))
    })
}

/// Ends everything at once: later work of another thread could only hide the fault.
fn fail(wrong: &str) -> ! {
    family::complain(wrong);
    end_at_once(family::WRONG)
}

fn fork_all(seed: u64, forks: u64, plots: &Plots, racing: &Racing) -> Result<String, String> {
    let mut random = Random::new(seed, 1);
    let mut children: Vec<Child> = Vec::new();
    let (mut raced, mut spawned) = (0, 0);
    for fork in 1..=forks {
        match random.below(8) {
            0 => {
                family::spawn(seed ^ fork)?;
                spawned += 1;
            }
            1..3 => {
                // Its figures are shared with one child at a time.
                race(fork, racing, &mut random)?;
                raced += 1;
            }
            _ => {
                let end = End::any(&mut random);
                let mut all = plots.lock_all();
                let child = family::fork(end, || live(&mut all, seed ^ fork << 8, 1));
                drop(all);
                children.push(child);
            }
        }
        if children.len() >= CHILDREN_MAX || random.one_in(3) && !children.is_empty() {
            children.remove(0).join(&mut random)?;
        }
    }
    children.into_iter().try_for_each(|child| child.join(&mut random))?;
    Ok(format!("{forks} forks, {raced} while all went on, {spawned} spawned"))
}

/// A fork in the middle of everything.
fn race(fork: u64, racing: &Racing, random: &mut Random) -> Result<(), String> {
    let before = racing.versions();
    let seed = random.next();
    let child = family::fork(if random.one_in(2) { End::Exit } else { End::Killed }, || {
        racing.check(fork, &before, &mut Random::new(seed, 3))
    });
    racing.tell(fork);
    child.join(random)
}

/// The life of a child: its memory is as it was at the fork, and then it is its own.
fn live(plots: &mut [MutexGuard<'_, Plot>], seed: u64, depth: u64) -> Result<(), String> {
    let told = |wrong| format!("generation {depth}: {wrong}");
    plots.iter().try_for_each(|plot| plot.check_all()).map_err(told)?;
    let mut random = Random::new(seed, depth);
    plots.iter_mut().for_each(|plot| plot.reseed(random.next()));
    for _ in 0..random.between(1, 12) {
        let at = random.below(plots.len());
        plots[at].operate(10).map_err(told)?;
    }
    let end = End::any(&mut random);
    let seed = random.next();
    let child =
        (depth < DEPTH_MAX && random.one_in(2)).then(|| family::fork(end, || live(plots, seed, depth + 1)));
    let beside = random.one_in(3);
    for _ in 0..random.between(1, 12) {
        let at = random.below(plots.len());
        if beside {
            // A thread of a child is one that its new engine has to know of.
            let plot = &mut *plots[at];
            std::thread::scope(|scope| scope.spawn(move || plot.operate(10)).join())
                .map_err(|_| "a thread of a child panicked".to_owned())?
                .map_err(told)?;
        } else {
            plots[at].operate(10).map_err(told)?;
        }
    }
    child.map_or(Ok(()), |child| child.join(&mut random)).map_err(told)?;
    plots.iter().try_for_each(|plot| plot.check_all().and_then(|()| plot.check_files())).map_err(told)
}
