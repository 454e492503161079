//! One descriptor with its arena: everything that moves pages between managed memory and Pagoda's frames.
//!
//! The arena is registered on the same descriptor as the memory it takes pages from. That is what makes an eviction
//! safe against discards: while an event is unread, the kernel refuses every move on the descriptor, so none can
//! overtake it (with a descriptor of its own for the arena, a trial read wrong data twice in a thousand times).
//!
//! Frames that go back to the kernel leave through a second descriptor without events: giving memory of the first one
//! back would raise an event, and whoever gives it back would wait for the thread that may be waiting for the memory.
//!
//! This module must never decide what moves, and never keeps content: a slot's content is its owner's business.

use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use pagoda_core::page::OS_PAGE;
use rustix::io::Errno;
use rustix::mm::{Advice, madvise};

use crate::doorbell::Doorbell;
use crate::huge_arena::HugeArena;
use crate::offer::{Made, Offers};
use crate::own_memory::OwnMapping;
use crate::range::PageRange;
use crate::uffd::{Message, Mode, Progress, Stop, Uffd, feature, to_io_error};

/// The right to have the memory of this process managed.
///
/// Whoever makes one vouches for all memory that is later registered under it: it is private anonymous memory whose
/// owner agreed that its pages are moved out and back, and no thread that serves faults ever uses it.
#[derive(Debug)]
pub struct Adoption(());

impl Adoption {
    /// # Safety
    /// See the type: the obligation reaches to every [`Space::register`] and [`Space::evict`] of the space it is for.
    #[must_use]
    pub unsafe fn assume() -> Self {
        Self(())
    }
}

/// An arena's slot, held by one owner: the exclusive right to the memory at its address.
///
/// Not `Copy`: as long as it is held nobody else reads or writes there. [`Space::release_slot`] gives it back as a
/// number, [`Space::claim_slot`] makes it a right again.
#[derive(Debug)]
#[must_use = "a slot that is forgotten can never be claimed again"]
pub struct Slot {
    index: u32,
}

impl Slot {
    /// Its number.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }
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
    doorbell: Option<Doorbell>,
    offers: Option<Offers>,
    can_track: bool,
}

impl Space {
    /// Opens the descriptors and reserves an arena of `slots` slots of `slot_bytes` each, and one of `huge_slots` huge ones
    /// (address space only).
    ///
    /// # Errors
    /// Those of userfaultfd(2) (`EPERM`, `ENOSYS`, `EINVAL` for a feature that is missing) and of mmap(2).
    pub fn open(
        _: &Adoption,
        mode: Mode,
        features: u64,
        slots: u32,
        slot_bytes: usize,
        huge_slots: u32,
    ) -> io::Result<Self> {
        let uffd = Uffd::open(mode, features).map_err(to_io_error)?;
        Self::over(uffd, mode, features, slots, slot_bytes, huge_slots)
    }

    /// As [`open`](Self::open), with the descriptor that this process was forked with, which has `features`.
    ///
    /// # Errors
    /// As for [`open`](Self::open). The descriptor is closed before anything else is undone.
    pub fn open_over(
        _: &Adoption,
        uffd: Uffd,
        features: u64,
        slots: u32,
        slot_bytes: usize,
    ) -> io::Result<Self> {
        Self::over(uffd, Mode::Full, features, slots, slot_bytes, 0)
    }

    fn over(
        uffd: Uffd,
        mode: Mode,
        features: u64,
        slots: u32,
        slot_bytes: usize,
        huge_slots: u32,
    ) -> io::Result<Self> {
        let exit_uffd = Uffd::open(mode, feature::MOVE).map_err(to_io_error)?;
        let arena = OwnMapping::reserve(slots as usize * slot_bytes, 2 << 20, false)?;
        let exit = OwnMapping::reserve(EXIT_BYTES, 2 << 20, false)?;
        // SAFETY: both mappings are ours, just made, and used by nobody but through this value.
        unsafe {
            uffd.follow(arena.range()).map_err(to_io_error)?;
            exit_uffd.follow(exit.range()).map_err(to_io_error)?;
        }
        let huge = HugeArena::reserve(&uffd, huge_slots)?;
        let claimed = (0..slots.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        let zeroes = vec![0; slot_bytes.max(OS_PAGE)];
        let doorbell = (features & feature::EVENT_FORK != 0).then(|| Doorbell::install(&uffd)).transpose()?;
        let offers = doorbell.and_then(|_| Offers::new());
        let exit_taken = Mutex::new(());
        let can_track = features & feature::WP_ASYNC != 0;
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
            doorbell,
            offers,
            can_track,
        })
    }

    /// Has the kernel take what is written to these slots for the first time from `node` and no other. Frames that are moved
    /// there stay where they are.
    ///
    /// # Errors
    /// `EINVAL`: there is no such node, or it has no memory. `ENOSYS`: a kernel without nodes. `EPERM`: not allowed here.
    ///
    /// # Panics
    /// If there are no such slots.
    pub fn bind(&self, slots: std::ops::Range<u32>, node: u32) -> Result<(), Errno> {
        let range = PageRange::new(self.address(slots.start), self.address(slots.end)).expect("some slots");
        assert_eq!(self.arena.range().intersection(range), Some(range), "slots of the arena");
        crate::node::bind(range, node)
    }

    /// Takes `range` under management: its missing faults and its events arrive here from now on. In a range that was followed
    /// the kernel fills nothing more, from when this returns.
    ///
    /// # Errors
    /// `EBUSY`: the program registered it with userfaultfd itself. `EINVAL`: memory of a kind that can't be managed.
    /// `ENOMEM`: the limit on mappings is reached. Holes in the range are passed over.
    pub fn register(&self, range: PageRange) -> Result<(), Errno> {
        // SAFETY: the space's `Adoption` vouches for what is registered.
        unsafe { self.uffd.register(range)? };
        self.keep_pages_small(range);
        Ok(())
    }

    /// Follows `range`: its events arrive here from now on, but the kernel fills what is missing.
    ///
    /// # Errors
    /// As for [`register`](Self::register).
    pub fn follow(&self, range: PageRange) -> Result<(), Errno> {
        // SAFETY: as for `register`.
        unsafe { self.uffd.follow(range)? };
        self.keep_pages_small(range);
        Ok(())
    }

    /// Huge pages would have to be split before a part is moved.
    fn keep_pages_small(&self, range: PageRange) {
        let at = std::ptr::with_exposed_provenance_mut(range.start());
        // SAFETY: the advice changes no content.
        let _ = unsafe { madvise(at, range.len(), Advice::LinuxNoHugepage) };
    }

    /// Keeps `range` out of the children of a fork, or lets them have it again. A child without it dies of SIGSEGV instead
    /// of reading zeroes where a page is out.
    pub fn set_forked(&self, range: PageRange, yes: bool) {
        let advice = if yes { Advice::LinuxDoFork } else { Advice::LinuxDontFork };
        let at = std::ptr::with_exposed_provenance_mut(range.start());
        // SAFETY: it changes what a child inherits, and no content. A range that was unmapped meanwhile has no children.
        let _ = unsafe { madvise(at, range.len(), advice) };
    }

    /// Lets [`PagemapScanner::take_written`](crate::pagemap::PagemapScanner::take_written) see who writes to `range`, which is
    /// managed. It stays so as long as it is managed, and costs nothing until it is scanned.
    ///
    /// # Errors
    /// `ENOSYS`: the space was opened without [`feature::WP_ASYNC`]. Else those of [`register`](Self::register).
    pub fn track_writes(&self, range: PageRange) -> Result<(), Errno> {
        if !self.can_track {
            return Err(Errno::NOSYS);
        }
        // SAFETY: as for `register`; it was registered before.
        unsafe { self.uffd.register_tracked(range) }
    }

    /// Ends what scans for writes have left in the page tables: no write to `range` is seen any more, nor costs anything.
    ///
    /// # Errors
    /// See [`Uffd::unprotect`].
    pub fn forget_writes(&self, range: PageRange) -> Result<(), Errno> {
        self.uffd.unprotect(range)
    }

    /// Ends the management of `range`. Everything must be back in it.
    pub fn unregister(&self, range: PageRange) -> Result<(), Errno> {
        self.uffd.unregister(range)
    }

    /// Makes slot `index` a right. Panics if somebody holds it: the table would be wrong then, and data at risk.
    pub fn claim_slot(&self, index: u32) -> Slot {
        let (word, bit) = (index as usize / 64, 1u64 << (index % 64));
        let before = self.claimed[word].fetch_or(bit, Ordering::Acquire);
        assert!(before & bit == 0, "slot {index} is claimed twice");
        Slot { index }
    }

    /// Gives the right up and leaves the number.
    pub fn release_slot(&self, slot: Slot) -> u32 {
        let Slot { index } = slot;
        self.claimed[index as usize / 64].fetch_and(!(1u64 << (index % 64)), Ordering::Release);
        index
    }

    /// The length of a slot in bytes.
    #[must_use]
    pub fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    fn address(&self, index: u32) -> usize {
        self.arena.range().start() + index as usize * self.slot_bytes
    }

    /// The content of a slot. A hole in it reads as zero.
    #[must_use]
    pub fn bytes<'a>(&'a self, slot: &'a Slot) -> &'a [u8] {
        let at = std::ptr::with_exposed_provenance(self.address(slot.index));
        // SAFETY: the slot lies within the arena (it was claimed from its bitmap), which is mapped as long as `self`
        // lives; holding the `Slot` excludes every writer, and moves out of it need it too. Missing pages of the
        // arena are the kernel's business and read as zero.
        unsafe { std::slice::from_raw_parts(at, self.slot_bytes) }
    }

    /// The content of a slot, to be written. Writing to a hole takes a fresh page from the kernel.
    #[must_use]
    pub fn bytes_mut<'a>(&'a self, slot: &'a mut Slot) -> &'a mut [u8] {
        let at = std::ptr::with_exposed_provenance_mut(self.address(slot.index));
        // SAFETY: as for `bytes`, and `&mut Slot` excludes every other reader.
        unsafe { std::slice::from_raw_parts_mut(at, self.slot_bytes) }
    }

    /// Moves the pages of `from`, managed memory, into empty slots, which must follow each other in the arena;
    /// `offset` bytes into the first. Holes are skipped.
    ///
    /// # Panics
    /// If the slots don't follow each other or `from` is longer than they are.
    pub fn evict(&self, from: PageRange, slots: &[Slot], offset: usize) -> Progress {
        let (first, last) = (slots.first().expect("a slot"), slots.last().expect("a slot"));
        assert_eq!(last.index as usize - first.index as usize, slots.len() - 1, "slots follow each other");
        assert!(offset + from.len() <= slots.len() * self.slot_bytes, "what is evicted fits the slots");
        // SAFETY: the source is adopted memory (`Adoption`); the destination is slots that the caller holds.
        unsafe { self.uffd.move_pages(self.address(first.index) + offset, from) }
    }

    /// Moves pages from the slot at `offset` to `to`, managed memory, and wakes who waits there. Holes are skipped.
    pub fn fill(&self, to: PageRange, slot: &Slot, offset: usize) -> Progress {
        assert!(offset + to.len() <= self.slot_bytes, "a fill stays within the slot");
        // SAFETY: the source is a slot that the caller holds; the destination is adopted memory, where the kernel
        // fills only what is missing.
        unsafe {
            self.uffd.move_pages(to.start(), PageRange::at(self.address(slot.index) + offset, to.len()))
        }
    }

    /// Moves pages from slots that follow each other, from `offset` bytes into the first on, to `to`, managed memory, and wakes
    /// who waits there. Holes are skipped.
    ///
    /// # Panics
    /// If the slots don't follow each other or `to` is longer than they are.
    pub fn fill_run(&self, to: PageRange, slots: &[Slot], offset: usize) -> Progress {
        let (first, last) = (slots.first().expect("a slot"), slots.last().expect("a slot"));
        assert_eq!(last.index as usize - first.index as usize, slots.len() - 1, "slots follow each other");
        assert!(offset + to.len() <= slots.len() * self.slot_bytes, "a fill stays within the slots");
        let from = PageRange::at(self.address(first.index) + offset, to.len());
        // SAFETY: the source is slots that the caller holds; the destination is adopted memory, where the kernel fills
        // only what is missing.
        unsafe { self.uffd.move_pages(to.start(), from) }
    }

    /// Fills `to`, managed memory, with a copy of the slot's content at `offset`, where a move is not possible.
    pub fn fill_by_copy(&self, to: PageRange, slot: &Slot, offset: usize) -> Progress {
        let content = &self.bytes(slot)[offset..offset + to.len()];
        // SAFETY: the destination is adopted memory, where the kernel fills only what is missing.
        unsafe { self.uffd.copy(to.start(), content) }
    }

    /// Fills `to`, managed memory, with a copy of `content`.
    pub fn fill_with(&self, to: PageRange, content: &[u8]) -> Progress {
        assert_eq!(to.len(), content.len(), "a page range is filled whole");
        // SAFETY: as for `fill_by_copy`.
        unsafe { self.uffd.copy(to.start(), content) }
    }

    /// Fills `to`, managed memory of at most one slot's length, with fresh pages of zeroes.
    pub fn fill_with_zeroes(&self, to: PageRange) -> Progress {
        // SAFETY: as for `fill_by_copy`.
        unsafe { self.uffd.copy(to.start(), &self.zeroes[..to.len()]) }
    }

    /// Maps the shared zero page all over `to`.
    pub fn fill_with_zero_page(&self, to: PageRange) -> Progress {
        self.uffd.zero(to)
    }

    /// Makes what is missing of `range`, managed memory, poisonous; see [`Uffd::poison`].
    pub fn poison(&self, range: PageRange) -> Progress {
        self.uffd.poison(range)
    }

    /// Fills `to` in the memory of a forked child with `content`, where it is missing.
    pub fn fill_child(&self, child: &Uffd, to: PageRange, content: &[u8]) -> Progress {
        assert_eq!(to.len(), content.len(), "a page range is filled whole");
        // SAFETY: the child's descriptor serves the copies of the ranges that were adopted here.
        unsafe { child.copy(to.start(), content) }
    }

    /// Maps the page of zeroes at a missing OS page of a forked child.
    pub fn fill_child_with_zero_page(&self, child: &Uffd, at: PageRange) -> Progress {
        child.zero(at)
    }

    /// Offers a forked child, when it comes to its doorbell, to take over what it lacks. None where that is not to be had, or the
    /// child is changing its mappings.
    pub fn offer(&self, child: &Uffd) -> Option<Made<'_>> {
        let made = self.offers.as_ref()?.make(child).ok()?;
        self.doorbell?.offer(child, &made.offer).stop.is_none().then_some(made)
    }

    /// Whether a forked child that was made an offer, and has not settled it, is still there.
    #[must_use]
    pub fn is_alive(&self, child: &Uffd, made: &Made<'_>) -> bool {
        self.doorbell.is_some_and(|doorbell| doorbell.offer(child, &made.offer).stop != Some(Stop::Gone))
    }

    /// Whether children can be offered anything.
    #[must_use]
    pub fn can_offer(&self) -> bool {
        self.offers.is_some()
    }

    /// Tells a child that waits at its doorbell that it has everything.
    pub fn answer_doorbell(&self, child: &Uffd) {
        if let Some(doorbell) = self.doorbell {
            doorbell.answer(child);
        }
    }

    /// Makes the pages of `range`, managed memory, this process's own, where they are shared after a fork: a copy, or nothing
    /// but the kernel's note that nobody else has them any more. About 11 µs for 64 KiB. It may wait for a fault to be
    /// served; memory that is gone meanwhile is passed over.
    pub fn make_own(&self, range: PageRange) {
        let at = std::ptr::with_exposed_provenance_mut(range.start());
        // SAFETY: the advice changes no content.
        let _ = unsafe { madvise(at, range.len(), Advice::LinuxPopulateWrite) };
    }

    /// Gives the frames of these slots, whose content nobody wants, back to the kernel, and returns the bytes. Takes about
    /// 8 µs for 64 KiB, and waits for nobody: if another thread is at it, it gives nothing back and returns 0.
    pub fn give_back(&self, slots: &[Slot]) -> usize {
        let Ok(_way_out) = self.exit_taken.try_lock() else { return 0 };
        for batch in slots.chunks(EXIT_BYTES / self.slot_bytes) {
            for (i, slot) in batch.iter().enumerate() {
                let from = PageRange::at(self.address(slot.index), self.slot_bytes);
                // SAFETY: the source is a slot whose content the caller gave up; the destination is the way out,
                // which is ours and empty.
                unsafe { self.move_all(self.exit.range().start() + i * self.slot_bytes, from) };
            }
            // SAFETY: what is on the way out is nobody's any more.
            unsafe { self.exit.discard(self.exit.range()) };
        }
        slots.len() * self.slot_bytes
    }

    /// Gives the frames of slots that follow each other, whose content nobody wants, back to the kernel by a discard. It makes an
    /// event of the arena's range, and waits until somebody reads it.
    ///
    /// # Panics
    /// If the slots don't follow each other.
    pub fn discard(&self, slots: &[Slot]) {
        let (Some(first), Some(last)) = (slots.first(), slots.last()) else { return };
        assert_eq!(last.index as usize - first.index as usize, slots.len() - 1, "slots follow each other");
        let range = PageRange::at(self.address(first.index), slots.len() * self.slot_bytes);
        // SAFETY: the caller holds the slots and gave their content up.
        unsafe { self.arena.discard(range) };
    }

    /// Moves all of `from` out of the arena, in as many goes as it takes.
    ///
    /// # Safety
    /// As for [`Uffd::move_pages`], through the second descriptor.
    pub(crate) unsafe fn move_all(&self, to: usize, from: PageRange) {
        let mut done = 0;
        while let Some(rest) = PageRange::new(from.start() + done, from.end()) {
            // SAFETY: passed on to the caller.
            let out = unsafe { self.exit_uffd.move_pages(to + done, rest) };
            done += out.bytes;
            match out.stop {
                None | Some(Stop::Again) => {}
                // A page that can't be moved (pinned for a moment) stays in its slot: it is found there, and used.
                Some(_) => done += OS_PAGE,
            }
        }
    }

    /// Whether no event is unread and no mapping is being changed just now.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.uffd.is_quiet()
    }

    /// Wakes who waits for a page of `range`.
    pub fn wake(&self, range: PageRange) {
        self.uffd.wake(range);
    }

    /// Waits for a message, for `timeout_ms` at most. True if there is one. All who wait are woken: the thread on the
    /// processor of the one that faulted is there first, and costs a third of one that wakes up on another.
    pub fn wait(&self, timeout_ms: u32) -> bool {
        self.uffd.wait(timeout_ms)
    }

    /// Reads messages without waiting; see [`Uffd::read`].
    pub fn read(&self, sink: impl FnMut(Message)) -> usize {
        self.uffd.read(sink)
    }

    /// The arena's address range.
    #[must_use]
    pub fn arena_range(&self) -> PageRange {
        self.arena.range()
    }
}
