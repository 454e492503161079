//! The operations on ranges of addresses, of all workers: when a page is wrong, all operations that
//! touched it are shown.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Mutex;

use crate::support::memory::PAGE;

/// Steps that are remembered, of all workers together.
const STEPS: usize = 1 << 17;

struct Step {
    pages: Range<usize>,
    worker: usize,
    operation: u64,
    what: &'static str,
    other: usize,
}

static HISTORY: Mutex<VecDeque<Step>> = Mutex::new(VecDeque::new());

/// Remembers that `worker` did `what` to `pages` pages from address `start`; `other` is an address
/// that had to do with it.
pub fn remember(worker: usize, operation: u64, what: &'static str, start: usize, pages: usize, other: usize) {
    let mut history = HISTORY.lock().expect("no worker panics with it held");
    if history.len() == STEPS {
        history.pop_front();
    }
    let first = start / PAGE;
    history.push_back(Step { pages: first..first + pages, worker, operation, what, other });
}

/// The operations on the 64 KiB around `address`, latest last.
pub fn told(address: usize) -> String {
    let page = address / PAGE;
    let history = HISTORY.lock().expect("no worker panics with it held");
    let near: Vec<&Step> =
        history.iter().filter(|step| step.pages.start < page + 16 && page < step.pages.end + 16).collect();
    let mut told = String::new();
    for Step { pages, worker, operation, what, other } in &near[near.len().saturating_sub(60)..] {
        let here = if pages.contains(&page) { "HERE" } else { "near" };
        let (start, len) = (pages.start * PAGE, pages.len());
        told += &format!(
            "  {here} worker {worker}, operation {operation}: {what} {start:#x}, {len} pages; {other:#x}\n"
        );
    }
    told
}
