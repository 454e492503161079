//! A parent and its child that write all that they share, at full speed: both together fit their
//! budget before, and their copies don't. Each has its own content in the end.

use std::time::{Duration, Instant};

use crate::family::{self, End};
use crate::support::content::WORDS;
use crate::support::memory::Mapping;
use crate::support::random::{Random, mix};

const PAGES: usize = (40 << 20) / 4096;
const CHILDREN: u64 = 1;
/// Both engines have their place in it.
pub const MEMORY: &str = "64M";

/// The most that copies take beyond the shares at once. Without a pace they take more than 24 MiB.
pub const COPIED_MAX: u64 = 20 << 20;

/// How long a process waits for its engine.
const ENGINE_TIME_MAX: Duration = Duration::from_secs(60);

/// How long an engine may take to see its shared memory: several looks of its watcher.
const LOOKS: Duration = Duration::from_millis(300);

/// Word `i` of a page as the process `by` writes it: three of four don't compress.
fn word(by: u64, page: usize, i: usize) -> u64 {
    if i.is_multiple_of(4) { by } else { mix(by << 48 ^ (page as u64) << 16 ^ i as u64) }
}

fn write_all(mapping: &mut Mapping, by: u64) {
    for page in 0..PAGES {
        mapping.page_mut(page).iter_mut().enumerate().for_each(|(i, place)| *place = word(by, page, i));
    }
}

fn check_all(mapping: &Mapping, by: u64) -> Result<(), String> {
    for page in 0..PAGES {
        if let Some(i) = (0..WORDS).find(|i| mapping.page(page)[*i] != word(by, page, *i)) {
            let found = mapping.page(page)[i];
            return Err(format!("word {i} of page {page} of process {by} is {found:#x}"));
        }
    }
    Ok(())
}

/// Whether this process has an engine of its own.
fn has_engine() -> bool {
    let Ok(threads) = std::fs::read_dir("/proc/self/task") else { return false };
    let names =
        threads.flatten().filter_map(|thread| std::fs::read_to_string(thread.path().join("comm")).ok());
    names.into_iter().any(|name| name.trim() == "pagoda-reclaim")
}

fn await_engine() -> Result<(), String> {
    let begin = Instant::now();
    while !has_engine() {
        if begin.elapsed() > ENGINE_TIME_MAX {
            return Err("no engine has come for long".to_owned());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(LOOKS);
    Ok(())
}

/// Runs the program: this many times.
pub fn body(seed: u64, times: u64) -> Result<String, String> {
    let mut random = Random::new(seed, 1);
    let mut mapping = Mapping::new(PAGES).expect("memory");
    let mut own = seed << 8;
    for time in 0..times {
        write_all(&mut mapping, own);
        let before = own;
        let children: Vec<_> = (1..=CHILDREN)
            .map(|child| {
                family::fork(End::AtOnce, || {
                    await_engine()?;
                    // Half of it is still its parent's content.
                    for page in PAGES / 2..PAGES {
                        if mapping.page(page)[1] != word(before, page, 1) {
                            return Err(format!("page {page} is not as it was at fork {time}"));
                        }
                    }
                    write_all(&mut mapping, before + child);
                    check_all(&mapping, before + child)
                })
            })
            .collect();
        std::thread::sleep(LOOKS);
        own += CHILDREN + 1;
        write_all(&mut mapping, own);
        for child in children {
            child.join(&mut random)?;
        }
        check_all(&mapping, own)?;
    }
    Ok(format!("{times} times {CHILDREN} children"))
}
