//! Forks in the middle of other threads' faults: memory that is not written any more, read at
//! random by several threads in the parent and in each child.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::area::Area;
use crate::family::{self, Child, End};
use crate::plots::text;
use crate::support::random::Random;

const READERS: usize = 3;
const PAGES: usize = (44 << 20) / 4096;
const CHILDREN_MAX: usize = 2;
/// Pages that each thread of a child reads.
const CHILD_READS: usize = 1500;

/// Runs the program: this many forks.
pub fn body(seed: u64, forks: u64) -> Result<String, String> {
    let mut random = Random::new(seed, 1);
    let mut area = Area::new(PAGES, false);
    area.write(0..PAGES, &mut random);
    let (area, ended, reads) = (&area, &AtomicBool::new(false), &AtomicU64::new(0));
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..READERS)
            .map(|reader| {
                scope.spawn(move || {
                    let mut random = Random::new(seed, 10 + reader as u64);
                    while !ended.load(Ordering::Relaxed) {
                        read(area, 16, &mut random)?;
                        reads.fetch_add(16, Ordering::Relaxed);
                    }
                    Ok(())
                })
            })
            .collect();
        let mut children: Vec<Child> = Vec::new();
        let result = (0..forks).try_for_each(|fork| {
            let seed = random.next();
            children.push(family::fork(End::any(&mut random), || in_child(area, seed)));
            if children.len() >= CHILDREN_MAX {
                children.remove(0).join(&mut random).map_err(|wrong| format!("fork {fork}: {wrong}"))?;
            }
            Ok(())
        });
        let result: Result<(), String> =
            result.and_then(|()| children.drain(..).try_for_each(|child| child.join(&mut random)));
        ended.store(true, Ordering::Relaxed);
        result.and(readers.into_iter().try_for_each(|reader| reader.join().expect("it does not panic")))
    })?;
    area.check(0..PAGES).map_err(text)?;
    Ok(format!("{forks} forks beside {} reads", reads.load(Ordering::Relaxed)))
}

fn read(area: &Area, times: usize, random: &mut Random) -> Result<(), String> {
    for _ in 0..times {
        let page = random.below(PAGES);
        area.check(page..page + 1).map_err(text)?;
    }
    Ok(())
}

/// Several threads of the child fault at once, too.
fn in_child(area: &Area, seed: u64) -> Result<(), String> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..READERS as u64)
            .map(|reader| scope.spawn(move || read(area, CHILD_READS, &mut Random::new(seed, reader))))
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("it does not panic"))
    })
}
