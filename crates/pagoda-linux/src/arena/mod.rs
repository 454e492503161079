//! One descriptor with its arena: everything that moves pages between managed memory and Pagoda's
//! frames.
//!
//! The arena is registered on the same descriptor as the memory it takes pages from. That makes an
//! eviction safe against discards: while an event is unread, the kernel refuses every move on the
//! descriptor, so none can overtake it (with a descriptor of its own for the arena, a trial read
//! wrong data twice in a thousand times).
//!
//! Frames that go back to the kernel leave through a second descriptor without events: giving back
//! memory of the first one would raise an event, and the caller would wait for the thread that may
//! be waiting for the memory.
//!
//! This module must never decide what moves, and never keeps content: a slot's content is its
//! owner's business.

mod children;
mod executable;
mod give_back;
mod hold;
pub mod huge_arena;
pub(crate) mod huge_break;
pub mod lift;
mod slot;

use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64};

use pagoda_core::page::OS_PAGE;
use pagoda_core::page_entry::Granules;
use rustix::io::Errno;
use rustix::mm::{Advice, MsyncFlags, madvise, msync};

use crate::arena::huge_arena::HugeArena;
use crate::io::wait::Wait;
use crate::mem::guards;
use crate::mem::occupancy::Occupancy;
use crate::mem::own_memory::OwnMapping;
use crate::mem::range::PageRange;
use crate::process::doorbell::Doorbell;
use crate::process::offer::Offers;
use crate::uffd::coverage::Coverage;
use crate::uffd::{Message, Mode, Progress, Stop, Uffd, feature, to_io_error};

pub use slot::Slot;

/// The right to have the memory of this process managed.
///
/// Its maker vouches for all memory that is later registered under it: it is private anonymous
/// memory whose owner agreed that its pages are moved out and back, and no thread that serves
/// faults ever uses it.
#[derive(Debug)]
pub struct Adoption(());

impl Adoption {
    /// # Safety
    /// See the type: the obligation reaches to every [`Space::register`] and [`Space::evict`] of
    /// the space it is for.
    #[must_use]
    pub unsafe fn assume() -> Self {
        Self(())
    }
}

/// The descriptor that a space is opened over.
#[derive(Debug)]
pub enum Descriptor {
    /// A fresh one, to which faults come as the mode says.
    Fresh(Mode),
    /// The one that the kernel made for this process when it was forked. It has its parent's
    /// features, and faults of all kinds come to it.
    Inherited(Uffd),
}

/// How large a space's arenas are, in address space.
#[derive(Clone, Copy, Debug)]
pub struct ArenaSizes {
    /// Slots of the arena.
    pub slots: u32,
    /// The length of each in bytes.
    pub slot_bytes: usize,
    /// Slots of the huge arena, each of one huge frame.
    pub huge_slots: u32,
}

/// As much as one trip to the kernel gives back at most.
const EXIT_BYTES: usize = 2 << 20;

/// A descriptor, its arena, and the way out for frames.
#[derive(Debug)]
pub struct Space {
    pub(crate) uffd: Uffd,
    arena: OwnMapping,
    pub(crate) huge: HugeArena,
    pub(crate) exit: OwnMapping,
    exit_uffd: Uffd,
    pub(crate) exit_taken: Mutex<()>,
    slot_bytes: usize,
    claimed: Vec<AtomicU64>,
    zeroes: Vec<u8>,
    pub(crate) occupancy: Occupancy,
    doorbell: Option<Doorbell>,
    offers: Option<Offers>,
    can_track: bool,
    can_hold: bool,
    moves_executable: AtomicBool,
}

impl Drop for Space {
    /// Ends the registration of the arenas before they are unmapped. Closing the descriptors does
    /// not, as long as a forked child has them open, too: then the unmapping would wait for good
    /// for its event to be read.
    fn drop(&mut self) {
        for (uffd, range) in [
            (&self.uffd, self.arena.range()),
            (&self.uffd, self.huge.range_of_all()),
            (&self.exit_uffd, self.exit.range()),
        ] {
            let done = uffd.unregister(range);
            debug_assert!(done.is_ok(), "a mapping of our own is unregistered: {done:?}");
        }
    }
}

impl Space {
    /// Opens the descriptors that are missing, with these features, and reserves the arenas;
    /// `occupancy` is of this process.
    ///
    /// # Errors
    /// Those of userfaultfd(2) (`EPERM`, `ENOSYS`, `EINVAL` for a feature that is missing) and of
    /// mmap(2).
    pub fn open(
        _: &Adoption,
        descriptor: Descriptor,
        features: u64,
        arenas: ArenaSizes,
        occupancy: Occupancy,
    ) -> io::Result<Self> {
        let ArenaSizes { slots, slot_bytes, huge_slots } = arenas;
        let arena = OwnMapping::reserve(slots as usize * slot_bytes, 2 << 20, false)?;
        let exit = OwnMapping::reserve(EXIT_BYTES, 2 << 20, false)?;
        // Declared before the descriptor, like the mappings above, and so dropped after it is
        // closed where something fails: an event of it would never be read.
        let huge;
        let (mode, uffd) = match descriptor {
            Descriptor::Fresh(mode) => (mode, Uffd::open(mode, features).map_err(to_io_error)?),
            Descriptor::Inherited(uffd) => (Mode::Full, uffd),
        };
        let exit_uffd = Uffd::open(mode, feature::MOVE).map_err(to_io_error)?;
        // SAFETY: both mappings are ours, just made, and used only through this value.
        unsafe {
            uffd.follow(arena.range()).map_err(to_io_error)?;
            exit_uffd.follow(exit.range()).map_err(to_io_error)?;
        }
        huge = HugeArena::reserve(&uffd, huge_slots)?;
        let claimed = (0..slots.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        let zeroes = vec![0; slot_bytes.max(OS_PAGE)];
        let doorbell = (features & feature::EVENT_FORK != 0).then(Doorbell::reserve).transpose()?;
        let offers = doorbell.and_then(|_| Offers::new());
        let exit_taken = Mutex::new(());
        let can_track = features & feature::WP_ASYNC != 0;
        let can_hold = features & feature::EVENT_FORK != 0 && !can_track;
        Ok(Self {
            uffd,
            arena,
            huge,
            exit,
            exit_uffd,
            exit_taken,
            slot_bytes,
            claimed,
            zeroes,
            occupancy,
            doorbell,
            offers,
            can_track,
            can_hold,
            moves_executable: AtomicBool::new(false),
        })
    }

    /// Takes `range` under management: its missing faults and its events arrive here from now on. A
    /// discard that began before has ended when this returns.
    ///
    /// # Errors
    /// `EBUSY`: the program registered it with userfaultfd itself. `EINVAL`: memory of a kind that
    /// can't be managed. `ENOMEM`: the limit on mappings is reached. `EFAULT`: a part of it is not
    /// mapped; the rest may be registered now. A part that is mapped anew meanwhile makes no error:
    /// [`coverage`](Self::coverage) tells.
    pub fn register(&self, range: PageRange) -> Result<(), Errno> {
        // SAFETY: the space's `Adoption` vouches for registered memory.
        unsafe {
            if self.can_hold {
                self.uffd.register_tracked(range)?;
            } else {
                self.uffd.register(range)?;
            }
        }
        self.keep_pages_small(range)
    }

    /// Forbids huge pages, which would have to be split before a part is moved. It also finds
    /// holes, which a registration passes over.
    pub(crate) fn keep_pages_small(&self, range: PageRange) -> Result<(), Errno> {
        let at = std::ptr::with_exposed_provenance_mut(range.start());
        // SAFETY: the advice changes no content.
        match unsafe { madvise(at, range.len(), Advice::LinuxNoHugepage) } {
            Err(Errno::NOMEM) => Err(Errno::FAULT),
            // A kernel without huge pages looks at no mapping.
            Err(Errno::INVAL) if has_hole(range) => Err(Errno::FAULT),
            // Nor has it pages to keep small. Or there was no room to split a mapping: the pages
            // may be huge.
            _ => Ok(()),
        }
    }

    /// Lets [`PagemapScanner::take_written`](crate::procfs::pagemap::PagemapScanner::take_written)
    /// see writes to `range`, which is managed. It stays so as long as it is managed, and costs
    /// nothing until it is scanned.
    ///
    /// # Errors
    /// `ENOSYS`: the space was opened without [`feature::WP_ASYNC`]. Else those of
    /// [`register`](Self::register).
    pub fn track_writes(&self, range: PageRange) -> Result<(), Errno> {
        if !self.can_track {
            return Err(Errno::NOSYS);
        }
        // SAFETY: as for `register`; it was registered before.
        unsafe { self.uffd.register_tracked(range) }
    }

    /// Removes the marks of scans for writes from the page tables: no write to `range` is seen any
    /// more, nor costs anything.
    ///
    /// # Errors
    /// See [`Uffd::unprotect`].
    pub fn forget_writes(&self, range: PageRange) -> Result<(), Errno> {
        self.uffd.unprotect(range)
    }

    /// Ends the management of `range`. All its pages must be swapped in before.
    pub fn unregister(&self, range: PageRange) -> Result<(), Errno> {
        self.uffd.unregister(range)
    }

    /// Empties `range`, which was managed until now and whose owner gave its content up: it reads
    /// as zero afterwards. If it is still registered this waits until the event is read.
    ///
    /// # Errors
    /// Those of madvise(2): a part is locked.
    pub fn empty(&self, range: PageRange) -> io::Result<()> {
        let at = std::ptr::with_exposed_provenance_mut(range.start());
        // SAFETY: it is adopted memory (`Adoption`): its owner vouched that it is not unmapped and
        // replaced while it is given up. Its content is the owner's to give up, and to all others
        // this is like zeroes that are written, page by page.
        Ok(unsafe { madvise(at, range.len(), Advice::LinuxDontNeed) }?)
    }

    /// Moves the pages of `from`, managed memory, into slots, which must follow each other in the
    /// arena; `offset` bytes into the first. Holes are skipped. The target places in the slots must
    /// be empty.
    ///
    /// # Panics
    /// If the slots don't follow each other or `from` is longer than they are.
    pub fn evict(&self, from: PageRange, slots: &[Slot], offset: usize) -> Progress {
        let to = self.run(slots);
        assert!(offset + from.len() <= to.len(), "the evicted pages fit the slots");
        // SAFETY: the source is adopted memory (`Adoption`); the destination is slots that the
        // caller holds.
        let out = || unsafe { self.uffd.move_out(to.start() + offset, from, &self.occupancy) };
        self.of_any_access(to, out)
    }

    /// Moves pages from the slot at `offset`, where all of them must be, to `to`, managed memory,
    /// and wakes threads that wait there.
    pub fn fill(&self, to: PageRange, slot: &Slot, offset: usize) -> Progress {
        assert!(offset + to.len() <= self.slot_bytes, "a fill stays within the slot");
        let from = PageRange::at(self.address(slot.index()) + offset, to.len());
        // SAFETY: the source is a slot that the caller holds; the destination is adopted memory,
        // where the kernel fills only missing pages.
        self.of_any_access(from, || unsafe { self.uffd.move_in(to.start(), from, &self.occupancy) })
    }

    /// Moves pages from slots that follow each other, from `offset` bytes into the first on, to
    /// `to`, managed memory, and wakes threads that wait there. All of them must be there.
    ///
    /// # Panics
    /// If the slots don't follow each other or `to` is longer than they are.
    pub fn fill_run(&self, to: PageRange, slots: &[Slot], offset: usize) -> Progress {
        let from = self.run(slots);
        assert!(offset + to.len() <= from.len(), "a fill stays within the slots");
        let from = PageRange::at(from.start() + offset, to.len());
        // SAFETY: the source is slots that the caller holds; the destination is adopted memory,
        // where the kernel fills only missing pages.
        self.of_any_access(from, || unsafe { self.uffd.move_in(to.start(), from, &self.occupancy) })
    }

    /// Fills `to`, managed memory, with a copy of the slot's content at `offset`, where a move is
    /// not possible.
    pub fn fill_by_copy(&self, to: PageRange, slot: &Slot, offset: usize) -> Progress {
        self.copy_up_to_guards(to, &self.bytes(slot)[offset..offset + to.len()])
    }

    /// The same, with the pages of `to` protected: the next
    /// [scan](crate::procfs::pagemap::PagemapScanner::take_only_written) tells whether they were
    /// written since. Its writes must be [tracked](Self::track_writes).
    pub fn fill_by_protected_copy(&self, to: PageRange, slot: &Slot, offset: usize) -> Progress {
        let content = self.up_to_guards(to, &self.bytes(slot)[offset..offset + to.len()]);
        // SAFETY: the destination is adopted memory, where the kernel fills only missing pages.
        content.map_or_else(|stop| stop, |content| unsafe { self.uffd.copy_protected(to.start(), content) })
    }

    /// Fills `to`, managed memory, with a copy of `content`.
    pub fn fill_with(&self, to: PageRange, content: &[u8]) -> Progress {
        assert_eq!(to.len(), content.len(), "a page range is filled whole");
        // SAFETY: the destination is adopted memory, where the kernel fills only missing pages.
        unsafe { self.uffd.copy(to.start(), content) }
    }

    /// Fills `to`, managed memory of at most one slot's length, with fresh pages of zeroes.
    pub fn fill_with_zeroes(&self, to: PageRange) -> Progress {
        self.copy_up_to_guards(to, &self.zeroes[..to.len()])
    }

    /// Copies `content`, of sixteen OS pages at most, to the missing pages of `to`, up to the first
    /// page that is not missing.
    fn copy_up_to_guards(&self, to: PageRange, content: &[u8]) -> Progress {
        let content = self.up_to_guards(to, content);
        // SAFETY: the destination is adopted memory, where the kernel fills only missing pages.
        content.map_or_else(|stop| stop, |content| unsafe { self.uffd.copy(to.start(), content) })
    }

    /// The part of `content` for the missing pages that `to` begins with: to the kernel's copy a
    /// guard would be missing, too.
    fn up_to_guards<'a>(&self, to: PageRange, content: &'a [u8]) -> Result<&'a [u8], Progress> {
        if !guards::may_be() {
            return Ok(&content[..to.len()]);
        }
        let missing = self.missing_pages(to).runs().next();
        match missing.filter(|run| run.0 == 0) {
            Some(run) => Ok(&content[..run.1 as usize * OS_PAGE]),
            None => Err(Progress { bytes: 0, stop: Some(Stop::Exists) }),
        }
    }

    /// Maps the shared zero page all over `to`.
    pub fn fill_with_zero_page(&self, to: PageRange) -> Progress {
        self.uffd.zero(to)
    }

    /// Poisons the missing pages of `range`, managed memory; see [`Uffd::poison`].
    pub fn poison(&self, range: PageRange) -> Progress {
        self.uffd.poison(range)
    }

    /// Which OS pages of `range`, sixteen at most, hold something; all of them, where the kernel
    /// does not say.
    #[must_use]
    pub fn held_pages(&self, range: PageRange) -> Granules {
        let all = Granules::range(0, (range.len() / OS_PAGE) as u32);
        self.occupancy.of(range).unwrap_or(all)
    }

    /// Which OS pages of `range`, sixteen at most, hold nothing; all of them, where the kernel does
    /// not say.
    #[must_use]
    pub fn missing_pages(&self, range: PageRange) -> Granules {
        let all = Granules::range(0, (range.len() / OS_PAGE) as u32);
        self.occupancy.of(range).map_or(all, |held| all.without(held))
    }

    /// How much of `range` is registered.
    #[must_use]
    pub fn coverage(&self, range: PageRange) -> Coverage {
        self.uffd.coverage(range)
    }

    /// Whether the page at `address` is registered, also during changes of mappings: here, or by
    /// the program itself.
    #[must_use]
    pub fn is_registered(&self, address: usize) -> bool {
        self.exit_uffd.is_registered_elsewhere(address)
    }

    /// Whether no event is unread and no mapping is being changed just now.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.uffd.is_quiet()
    }

    /// Wakes threads that wait for a page of `range`.
    pub fn wake(&self, range: PageRange) {
        self.uffd.wake(range);
    }

    /// Waits for a message, for `timeout_ms` at most. All threads that wait are woken: the thread
    /// on the processor of the one that faulted is there first, and costs a third of one that wakes
    /// up on another.
    #[must_use]
    pub fn wait(&self, timeout_ms: u32) -> Wait {
        self.uffd.wait(timeout_ms)
    }

    /// Reads messages without waiting.
    ///
    /// # Errors
    /// See [`Uffd::read`].
    pub fn read(&self, sink: impl FnMut(Message)) -> Result<usize, Errno> {
        self.uffd.read(sink)
    }

    /// The arena's address range.
    #[must_use]
    pub fn arena_range(&self) -> PageRange {
        self.arena.range()
    }
}

/// Whether a part of `range` is not mapped, by a call that walks the mappings and changes nothing:
/// it asks for a write-back that the kernel makes anyway.
fn has_hole(range: PageRange) -> bool {
    let at = std::ptr::with_exposed_provenance_mut(range.start());
    // SAFETY: the call touches no memory, and changes no content.
    unsafe { msync(at, range.len(), MsyncFlags::ASYNC) == Err(Errno::NOMEM) }
}

#[cfg(test)]
pub(crate) mod tests {
    use rustix::mm::munmap;

    use super::*;
    use crate::mem::region_memory::{RegionMemory, own_regions};
    use crate::testing::skip::skip;
    use crate::uffd::feature;

    /// A space without events, of 16 slots. Where it can't be had, `what` is skipped.
    pub(crate) fn open(what: &str, slot_bytes: usize, huge_slots: u32) -> Option<Space> {
        open_with(what, 16, slot_bytes, huge_slots)
    }

    /// The same, of so many slots.
    pub(crate) fn open_with(what: &str, slots: u32, slot_bytes: usize, huge_slots: u32) -> Option<Space> {
        let sizes = ArenaSizes { slots, slot_bytes, huge_slots };
        let fresh = Descriptor::Fresh(Mode::UserOnly);
        let occupancy = Occupancy::open().expect("pagemap");
        let space = Space::open(&own_regions(), fresh, feature::MOVE, sizes, occupancy).ok();
        if space.is_none() {
            skip(what, "no userfaultfd with UFFDIO_MOVE");
        }
        space
    }

    #[test]
    fn a_range_with_a_hole_is_not_registered_whole() {
        let Some(space) = open("holes", OS_PAGE, 0) else { return };
        let memory = RegionMemory::map(16 * OS_PAGE).expect("map");
        assert_eq!(space.register(memory.range()), Ok(()));
        let hole = std::ptr::with_exposed_provenance_mut(memory.range().start() + 4 * OS_PAGE);
        // SAFETY: a part of the test's own mapping, which nothing uses.
        unsafe { munmap(hole, OS_PAGE).expect("unmap") };
        assert_eq!(space.register(memory.range()), Err(Errno::FAULT));
    }

    #[test]
    fn a_hole_is_told_also_where_the_kernel_has_no_huge_pages() {
        let mut memory = crate::testing::foreign::Foreign::private(16).expect("map");
        let whole = PageRange::at(memory.address(0), 16 * OS_PAGE);
        // Of several mappings.
        memory.protect(8..9, libc::PROT_READ).expect("protected");
        assert!(!has_hole(whole));
        memory.unmap(4..5).expect("unmap");
        let pages = |from, to| PageRange::at(memory.address(from), (to - from) * OS_PAGE);
        for (range, has) in [
            (whole, true),
            (pages(0, 4), false),
            (pages(0, 5), true),
            (pages(4, 5), true),
            (pages(4, 8), true),
            (pages(5, 16), false),
        ] {
            assert_eq!(has_hole(range), has, "{range:?}");
        }
    }
}
