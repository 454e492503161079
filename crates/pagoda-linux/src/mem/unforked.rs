//! Which memory is kept out of the children of a fork (madvise DONTFORK), and whether the engine or
//! the program keeps it out.
//!
//! Where the kernel sends no event for forks, an engine keeps the memory that it registers out of
//! children. That flag goes along when the program splits, moves or grows a mapping, and no event
//! tells of it. So the engine asks the kernel which flags to undo, and no table. Memory that is
//! registered and kept is an engine's doing: an engine never registers memory that its program
//! keeps. Only `/proc/self/smaps` tells, for which the kernel walks all present pages. This module
//! must never take the program's own advice for an engine's.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::procfs::maps::Mapping;
use crate::procfs::smaps::{Flag, SmapsReader};

/// Calls by which the program asks for it, begun and ended. In this library's own data, which a
/// child has, too.
static BEGUN: AtomicU64 = AtomicU64::new(0);
static ENDED: AtomicU64 = AtomicU64::new(0);

/// Notes that the program asks the kernel to keep memory out of its children. To be called before
/// it does.
pub fn asks() {
    BEGUN.fetch_add(1, Ordering::SeqCst);
}

/// Notes that the kernel has answered that.
pub fn has_asked() {
    ENDED.fetch_add(1, Ordering::SeqCst);
}

/// In a child of fork, on its one thread: no other thread is asking.
pub fn forget_calls() {
    ENDED.store(BEGUN.load(Ordering::SeqCst), Ordering::SeqCst);
}

/// The calls so far, none of which was under way. The kernel's answer after that is right as long
/// as [`is_current`](Self::is_current).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Calls(u64);

impl Calls {
    /// `None` while a call is under way.
    #[must_use]
    pub fn look() -> Option<Self> {
        let begun = BEGUN.load(Ordering::SeqCst);
        (ENDED.load(Ordering::SeqCst) == begun).then_some(Self(begun))
    }

    /// Whether no call has begun since.
    #[must_use]
    pub fn is_current(self) -> bool {
        BEGUN.load(Ordering::SeqCst) == self.0
    }
}

/// Reads which memory that is, any number of times.
pub struct UnforkedReader(SmapsReader);

impl UnforkedReader {
    /// Opens the file and allocates the only memory that this reader will ever use. Call it on the
    /// thread that will read.
    ///
    /// # Errors
    /// Those of opening it: no `/proc` (`NotFound`), or no descriptor left.
    pub fn new() -> io::Result<Self> {
        Ok(Self(SmapsReader::new()?))
    }

    /// Calls `f` with each private anonymous mapping that is registered and kept out of children,
    /// lowest address first.
    ///
    /// # Errors
    /// Those of `pread`. Mappings before it were passed to `f`.
    pub fn of_engine(&mut self, mut f: impl FnMut(&Mapping)) -> io::Result<()> {
        self.0.for_each(&[Flag::Unforked, Flag::Registered], |mapping, _| {
            if mapping.is_private_anonymous() {
                f(mapping);
            }
        })
    }

    /// Calls `f` with each mapping that the program keeps out of its children and no descriptor has
    /// registered. It costs nothing where the program has never asked for that.
    ///
    /// # Errors
    /// As for [`of_engine`](Self::of_engine).
    pub fn of_program(&mut self, mut f: impl FnMut(&Mapping)) -> io::Result<()> {
        if BEGUN.load(Ordering::SeqCst) == 0 {
            return Ok(());
        }
        self.0.for_each(&[Flag::Unforked], |mapping, flags| {
            if !flags.has(Flag::Registered) {
                f(mapping);
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use pagoda_core::page::OS_PAGE;

    use super::*;
    use crate::mem::range::PageRange;
    use crate::mem::region_memory::RegionMemory;
    use crate::testing::skip::skip;
    use crate::uffd::{Mode, Uffd, feature};

    #[test]
    fn memory_kept_from_children_is_its_engines_if_it_is_registered_and_else_the_programs() {
        // It is kept from children when it is mapped.
        let memory = RegionMemory::map(8 * OS_PAGE).expect("map");
        let (start, middle) = (memory.range().start(), memory.range().start() + 4 * OS_PAGE);
        let Ok(uffd) = Uffd::open(Mode::UserOnly, feature::MOVE) else {
            return skip("memory kept from children", "no userfaultfd with UFFDIO_MOVE");
        };
        // SAFETY: the test's own mapping, which nothing else uses.
        unsafe { uffd.register(PageRange::at(middle, 4 * OS_PAGE)).expect("register") };
        let mut reader = UnforkedReader::new().expect("a reader");
        let mut engines = Vec::new();
        reader.of_engine(|mapping| engines.push((mapping.start, mapping.end))).expect("read");
        assert!(
            engines.contains(&(middle, middle + 4 * OS_PAGE)) && !engines.iter().any(|one| one.0 == start)
        );
        let mut programs = Vec::new();
        reader.of_program(|mapping| programs.push(mapping.start)).expect("read");
        assert_eq!(programs, [], "it has never asked");
        let before = Calls::look().expect("no call is under way");
        asks();
        assert!(Calls::look().is_none() && !before.is_current());
        has_asked();
        assert!(Calls::look().is_some_and(Calls::is_current) && !before.is_current());
        reader.of_program(|mapping| programs.push(mapping.start)).expect("read");
        assert!(programs.contains(&start) && !programs.contains(&middle));
    }
}
