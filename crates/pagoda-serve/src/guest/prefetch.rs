//! A guest's prefetch: fills pages before they are touched, in a recorded order or from the lowest
//! address up.
//!
//! It fills as faults do, leaves out discarded pages, and rests while a fault waits for the gate.
//! This module must never say that all is filled while a page is missing.

use std::ops::Range;
use std::thread;
use std::time::Duration;

use pagoda_linux::process::thread::now_ns;

use crate::firecracker::Region;
use crate::guest::{Filled, For, Guest, WINDOW_BYTES_MOST, Window};
use crate::record::Count;
use crate::source::Source;

/// What a prefetch fills at once, without huge pages: so long the gate is held, 10 to 20 µs.
const STEP_BYTES: usize = 64 << 10;

/// Between two tries, while the kernel puts a fill off or a fault goes first.
const PAUSE: Duration = Duration::from_micros(50);

/// Fills these parts of the image, in bytes. False if something is still missing, or it was asked
/// to end.
pub(crate) fn run(guest: &Guest, source: &dyn Source, plan: impl Iterator<Item = Range<u64>>) -> bool {
    let mut buffer = vec![0; STEP_BYTES];
    let mut is_whole = true;
    for part in plan {
        for region in guest.regions.iter() {
            match fill(guest, source, region, &part, &mut buffer) {
                Filled::Done => {}
                Filled::Again | Filled::Gone => return false,
                Filled::Refused => is_whole = false,
            }
        }
    }
    is_whole
}

/// Fills everything. False if something is still missing, or it was asked to end.
pub(crate) fn run_all(guest: &Guest, source: &dyn Source) -> bool {
    run(guest, source, std::iter::once(0..source.len_bytes()))
}

/// Notes when the working set was there.
pub(crate) fn note(guest: &Guest, started_ns: u64) {
    guest.record.set(Count::PrefetchNs, now_ns().saturating_sub(started_ns).max(1));
}

/// Fills the common part of a region and a part of the image. [`Filled::Again`] if it was asked to
/// end.
fn fill(
    guest: &Guest,
    source: &dyn Source,
    region: &Region,
    part: &Range<u64>,
    buffer: &mut Vec<u8>,
) -> Filled {
    let end = part.end.min(region.offset + region.range.len() as u64);
    let mut at = part.start.max(region.offset);
    let mut filled = Filled::Done;
    while at < end {
        let address = region.range.start() + (at - region.offset) as usize;
        let mut window = Window::around(region, address, STEP_BYTES);
        window = window.cut(at, end);
        debug_assert!(window.range.len() <= WINDOW_BYTES_MOST);
        at = window.offset + window.range.len() as u64;
        if source.is_zero(window.offset, window.range.len() as u64) || guest.is_all_filled(&window) {
            continue;
        }
        buffer.resize(window.range.len(), 0);
        if source.read_at(window.offset, buffer).is_err() {
            // A fault there tells of it, page by page.
            filled = Filled::Refused;
            continue;
        }
        loop {
            while guest.is_contended() && !guest.takes_no_more() {
                thread::sleep(PAUSE);
            }
            if guest.takes_no_more() {
                return Filled::Again;
            }
            match guest.fill(&window, Some(buffer), For::Prefetch) {
                Filled::Done => break,
                Filled::Gone => return Filled::Gone,
                Filled::Refused => {
                    filled = Filled::Refused;
                    break;
                }
                Filled::Again => thread::sleep(PAUSE),
            }
        }
    }
    filled
}
