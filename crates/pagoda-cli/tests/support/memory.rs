//! The memory of a program that is managed without knowing it: of each kind one type, whose ranges
//! have one owner.
//!
//! Nothing here may know of the engine, except that it asks the kernel for present pages.

pub use pagoda_linux::testing::atomic_words::AtomicWords;
pub use pagoda_linux::testing::mapping::{Mapping, PAGE};

/// Shared anonymous memory, of which so many pages are populated.
pub fn shared(pages: usize, populated: usize) -> std::io::Result<AtomicWords> {
    let shared = AtomicWords::shared(pages * PAGE / 8)?;
    let pages = shared.words().chunks(PAGE / 8);
    pages.take(populated).for_each(|page| page[0].store(1, std::sync::atomic::Ordering::Relaxed));
    Ok(shared)
}
