//! Incompressible memory, so that most of it lies in the file: children read it in place and it
//! stays as it was, while their parents write all of it anew, for every order of their ends.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, getppid};

use crate::family::{self, End};
use crate::support::memory::{AtomicWords, Mapping};
use crate::support::random::{Random, mix};

const PAGES: usize = (40 << 20) / 4096;
/// Generations below the first process.
const DEPTH_MAX: u64 = 2;
/// How long one process waits for another's word.
const SAY_TIME_MAX: Duration = Duration::from_secs(120);

/// The most that the spill files of a whole tree of these hold: the parent's; a child's hold on it
/// while that is written anew; and the writes of the child and its own child, an eighth and a
/// quarter. Right runs take three times the memory, and forks that leave their part behind take
/// more with each.
pub const SPILLED_MAX: u64 = 4 * (PAGES as u64 * 4096);

/// Pages of noise, each by a number.
struct Noise {
    mapping: Mapping,
    numbers: Vec<u64>,
}

fn word(number: u64, i: usize) -> u64 {
    mix(number ^ mix(i as u64))
}

impl Noise {
    fn new(random: &mut Random) -> Self {
        let mut noise = Self { mapping: Mapping::new(PAGES).expect("memory"), numbers: vec![0; PAGES] };
        (0..PAGES).for_each(|page| noise.write(page, random));
        noise
    }
    fn write(&mut self, page: usize, random: &mut Random) {
        let number = random.next();
        self.numbers[page] = number;
        self.mapping.page_mut(page).iter_mut().enumerate().for_each(|(i, place)| *place = word(number, i));
    }
    fn write_some(&mut self, pages: usize, random: &mut Random) {
        for _ in 0..pages {
            let page = random.below(PAGES);
            self.write(page, random);
        }
    }
    fn check(&self, page: usize) -> Result<(), String> {
        let number = self.numbers[page];
        match self.mapping.page(page).iter().enumerate().find(|(i, found)| **found != word(number, *i)) {
            None => Ok(()),
            Some((i, found)) => {
                Err(format!("word {i} of page {page} is {found:#x}, not {:#x}", word(number, i)))
            }
        }
    }
    fn check_all(&self) -> Result<(), String> {
        (0..PAGES).try_for_each(|page| self.check(page))
    }
}

/// Runs the program: this many forks.
pub fn body(seed: u64, forks: u64) -> Result<String, String> {
    let mut random = Random::new(seed, 1);
    let mut noise = Noise::new(&mut random);
    for fork in 0..forks {
        let end = End::any(&mut random);
        let child = family::fork(end, || live(&mut noise, &mut Random::new(seed ^ fork, 2), 1));
        noise.write_some(PAGES, &mut random);
        child.join(&mut random).map_err(|wrong| format!("fork {fork}: {wrong}"))?;
        noise.check_all()?;
    }
    outlive(&mut noise, seed)?;
    noise.check_all()?;
    Ok(format!("{forks} forks, and a child that outlived its parent"))
}

/// The life of a child: its memory is as it was at the fork, and then it is its own.
fn live(noise: &mut Noise, random: &mut Random, depth: u64) -> Result<(), String> {
    let told = |wrong| format!("generation {depth}: {wrong}");
    (0..PAGES / 2).try_for_each(|_| noise.check(random.below(PAGES))).map_err(told)?;
    noise.write_some(PAGES / 8, random);
    if depth < DEPTH_MAX && random.one_in(2) {
        let seed = random.next();
        let child = family::fork(End::any(random), || live(noise, &mut Random::new(seed, depth), depth + 1));
        noise.write_some(PAGES / 4, random);
        child.join(random).map_err(told)?;
    }
    noise.check_all().map_err(told)
}

const BEGUN: usize = 0;
const VERDICT: usize = 1;
const RIGHT: u64 = 1;
const FALSE: u64 = 2;

/// A child whose parent is killed still reads the pages in that one's file.
fn outlive(noise: &mut Noise, seed: u64) -> Result<(), String> {
    let said = AtomicWords::shared(2).map_err(|error| error.to_string())?;
    let said = said.words();
    let mut random = Random::new(seed, 3);
    let middle = family::fork(End::Killed, || {
        // So that its pages lie in its own file, and not in its parent's.
        (0..PAGES).for_each(|page| noise.write(page, &mut random));
        let parent = rustix::process::getpid();
        family::fork(End::AtOnce, || {
            let verdict = alone(noise, parent, &said[BEGUN]);
            said[VERDICT].store(if verdict.is_ok() { RIGHT } else { FALSE }, Ordering::Release);
            verdict
        });
        // Parts of both files are used for something else now.
        heard(&said[BEGUN]).map(|_| noise.write_some(PAGES / 2, &mut random))
    });
    middle.join(&mut Random::new(seed, 4))?;
    match heard(&said[VERDICT])? {
        RIGHT => Ok(()),
        _ => Err("a child that outlived its parent found its memory wrong".to_owned()),
    }
}

/// The child's life.
fn alone(noise: &Noise, parent: Pid, begun: &AtomicU64) -> Result<(), String> {
    noise.check(0)?;
    begun.store(1, Ordering::Release);
    let begin = Instant::now();
    while getppid() == Some(parent) {
        if begin.elapsed() > SAY_TIME_MAX {
            return Err("its parent does not end".to_owned());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    noise.check_all()
}

/// Waits until another process has said something.
fn heard(word: &AtomicU64) -> Result<u64, String> {
    let begin = Instant::now();
    loop {
        match word.load(Ordering::Acquire) {
            0 if begin.elapsed() > SAY_TIME_MAX => return Err("nothing was said for long".to_owned()),
            0 => std::thread::sleep(Duration::from_millis(1)),
            said => return Ok(said),
        }
    }
}
