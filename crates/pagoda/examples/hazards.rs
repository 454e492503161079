//! What a host of managed memory may meet: forks, protected and full regions, owners that give
//! memory up or unmap it, and what a manager costs.
//!
//! Run it with `cargo run --release -p pagoda-vm --example hazards -- [CASE] [MODE]`. The cases are
//! `cost`, `protect`, `full`, `adopt` and `fork`; the modes `full`, `user` and `thread`, by which
//! faults are served. Without them it goes through all cases in all modes that the machine allows.
//! Every word that was written is compared, and a wrong one ends the run.

use std::error::Error;
use std::time::Instant;

use pagoda::{Access, Bytes, Manager, ManagerBuilder, Region};
use pagoda_linux::mem::plain_memory::{Pages, PlainMemory};
use pagoda_linux::testing::process::{fork, wait};
use pagoda_linux::testing::random::Random;

type Outcome = Result<(), Box<dyn Error>>;
type Case = fn(ManagerBuilder) -> Outcome;

const BUDGET: Bytes = Bytes::mib(32);
const MODES: [&str; 3] = ["full", "user", "thread"];
const CASES: [(&str, Case); 5] =
    [("cost", cost), ("protect", protect), ("full", full), ("adopt", adopt), ("fork", forks)];

fn main() -> Outcome {
    let asked: Vec<String> = std::env::args().skip(1).collect();
    let is_asked = |name: &str, at: usize| asked.get(at).is_none_or(|asked| asked == name);
    for mode in MODES.into_iter().filter(|mode| is_asked(mode, 1)) {
        // Faults of system calls need a privilege.
        if builder(mode).build().is_err() {
            println!("{mode}: not allowed here");
            continue;
        }
        for (name, case) in CASES.into_iter().filter(|(name, _)| is_asked(name, 0)) {
            println!("{mode}, {name}:");
            case(builder(mode))?;
        }
    }
    println!("no word was wrong");
    Ok(())
}

fn builder(mode: &str) -> ManagerBuilder {
    let builder = Manager::builder().budget(BUDGET);
    match mode {
        "user" => builder.user_mode_only(true),
        "thread" => builder.serve_in_thread(true),
        _ => builder,
    }
}

/// The word of this number.
fn word(at: usize, seed: u64) -> u64 {
    (at as u64 >> 3) ^ seed
}

fn fill(words: &mut [u64], seed: u64) {
    words.iter_mut().enumerate().for_each(|(at, place)| *place = word(at, seed));
}

fn check(words: &[u64], seed: u64) {
    let wrong = words.iter().enumerate().filter(|(at, found)| **found != word(*at, seed)).count();
    assert_eq!(wrong, 0, "wrong words of {}", words.len());
}

/// Anonymous memory of the whole process.
fn resident() -> Bytes {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap_or_default();
    let kib = line.split_whitespace().next().and_then(|kib| kib.parse().ok());
    Bytes::kib(kib.unwrap_or(0))
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count)
}

/// A manager, regions and mapped files, in threads and time.
fn cost(builder: ManagerBuilder) -> Outcome {
    let (before, begin) = (threads(), Instant::now());
    let manager = builder.spill_to("/var/tmp", Bytes::gib(1)).build()?;
    println!("  a manager: {} threads in {:.1?}", threads() - before, begin.elapsed());
    let begin = Instant::now();
    let regions: Result<Vec<Region>, _> = (0..1000).map(|_| manager.region(Bytes::mib(1)).create()).collect();
    println!("  1000 regions made in {:.1?}", begin.elapsed());
    let begin = Instant::now();
    drop(regions?);
    println!("  and dropped in {:.1?}", begin.elapsed());
    let path = std::path::PathBuf::from(format!("/var/tmp/pagoda-hazards-{}", std::process::id()));
    std::fs::write(&path, vec![1; 1 << 20])?;
    let (before, begin) = (threads(), Instant::now());
    let files: Result<Vec<_>, _> = (0..50).map(|_| manager.map_file(&path).buffered(true).map()).collect();
    println!("  50 mapped files: {} threads in {:.1?}", threads() - before, begin.elapsed());
    std::fs::remove_file(&path)?;
    drop(files?);
    Ok(())
}

/// Content that is made read-only, or closed, and then open again, beside another region.
fn protect(builder: ManagerBuilder) -> Outcome {
    let manager = builder.spill_to("/var/tmp", Bytes::gib(1)).build()?;
    let len = Bytes::mib(48);
    for access in [Access::Read, Access::None] {
        let [mut region, mut other] = [manager.region(len).create()?, manager.region(len).create()?];
        fill(region.words_mut(), 1);
        region.protect(0, region.len(), access)?;
        assert!(region.write_at(0, &[1]).is_err(), "a call is refused");
        if access == Access::Read {
            let mut found = [0; 8];
            for at in (0..region.len()).step_by(8 * 97) {
                region.read_at(at, &mut found)?;
                assert_eq!(u64::from_ne_bytes(found), word(at / 8, 1));
            }
        }
        fill(other.words_mut(), 2);
        println!("  {access:?}: {} resident beside another region", resident());
        region.protect(0, region.len(), Access::Write)?;
        check(region.words_mut(), 1);
        check(other.words_mut(), 2);
    }
    Ok(())
}

/// A store that is full: the budget is passed, the host is told, and no tenant loses anything.
fn full(builder: ManagerBuilder) -> Outcome {
    let told = |exhausted: pagoda::Exhausted| println!("  told: {} beyond the budget", exhausted.passed);
    let manager = builder.on_exhausted(told).build()?;
    let mut quiet = manager.region(Bytes::mib(1)).create()?;
    fill(quiet.words_mut(), 3);
    let mut noisy = manager.region(Bytes::mib(48)).create()?;
    let mut random = Random::new(1, 0);
    noisy.words_mut().fill_with(|| random.next());
    check(quiet.words_mut(), 3);
    let mut random = Random::new(1, 0);
    assert!(noisy.words_mut().iter().all(|found| *found == random.next()));
    Ok(())
}

/// Memory of the program's own: given back, forgotten, and unmapped by its owner too early.
fn adopt(builder: ManagerBuilder) -> Outcome {
    const LEN: usize = 96 << 20;
    let manager = builder.spill_to("/var/tmp", Bytes::gib(1)).build()?;
    for end in ["dropped", "forgotten", "unmapped before"] {
        let mut memory = PlainMemory::map(LEN, Pages::Small)?;
        let region = manager.adopt(memory.foreign())?;
        fill(memory.words_mut(), 4);
        let begin = Instant::now();
        match end {
            "dropped" => {
                drop(region);
                check(memory.words_mut(), 4);
            }
            "forgotten" => {
                region.forget()?;
                assert!(resident() < Bytes::mib(64), "nothing is swapped in");
                assert!(memory.words_mut().iter().all(|word| *word == 0));
            }
            _ => {
                drop(memory);
                drop(region);
            }
        }
        println!("  96 MiB {end} in {:.1?}, {} resident", begin.elapsed(), resident());
    }
    Ok(())
}

/// Children that drop inherited values, or end with them.
fn forks(builder: ManagerBuilder) -> Outcome {
    let manager = builder.spill_to("/var/tmp", Bytes::gib(1)).build()?;
    let mut region = manager.region(Bytes::mib(64)).create()?;
    fill(region.words_mut(), 5);
    let (mut manager, mut region) = (Some(manager), Some(region));
    for how in ["drop the region", "drop both", "exit"] {
        let child = fork(|| {
            assert!(region.as_ref().is_some_and(|region| region.read_at(0, &mut [0]).is_err()));
            match how {
                "drop the region" => drop(region.take()),
                "drop both" => drop((region.take(), manager.take())),
                _ => std::process::exit(0),
            }
            0
        })?;
        let status = wait(child)?.exit_status();
        assert_eq!(status, Some(0), "a child that was to {how}");
        check(region.as_mut().ok_or("the parent's")?.words_mut(), 5);
        println!("  a child did {how}, and its parent goes on");
    }
    Ok(())
}
