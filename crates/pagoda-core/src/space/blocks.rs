//! Blocks of the memory store: the free blocks, and the chain of each object.
//!
//! An object of any length is a chain of equal blocks. They come from as few segments as possible,
//! the fullest first, so that other segments empty and can be given back. A chain may use any free
//! block, so external fragmentation loses nothing. A caller that keeps a chain from being released
//! may follow its links without a lock; everything else needs exclusive access to the pool. This
//! module must never touch the blocks themselves.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

/// Blocks and owners are numbered below this: a link keeps two bits for its tag.
pub const NUMBERS: u32 = 1 << 30;

/// The parts of a link. The two high bits are the tag, the rest a number.
const TAG_NEXT: u32 = 0;
const TAG_END: u32 = 1 << 30;
const TAG_FREE: u32 = 2 << 30;
const TAGS: u32 = 3 << 30;
/// The end of a free list.
const NONE: u32 = NUMBERS - 1;

/// The links of all blocks. A segment's links exist from its first use on, and stay.
pub struct BlockLinks {
    segments: Box<[OnceLock<Box<[AtomicU32]>>]>,
    shift: u32,
}

impl BlockLinks {
    fn of(&self, block: u32) -> &AtomicU32 {
        let segment = self.segments[(block >> self.shift) as usize].get();
        &segment.expect("a block in use lies in a segment that was added")
            [(block & ((1 << self.shift) - 1)) as usize]
    }
    fn get(&self, block: u32) -> u32 {
        self.of(block).load(Ordering::Relaxed)
    }
    fn set(&self, block: u32, link: u32) {
        self.of(block).store(link, Ordering::Relaxed);
    }

    /// The blocks of a chain, in order. The caller must keep the chain from being released
    /// meanwhile; a chain that is released anyway ends early or goes astray, but never out of the
    /// pool.
    pub fn chain(&self, first: u32) -> impl Iterator<Item = u32> + '_ {
        let mut at = Some(first);
        std::iter::from_fn(move || {
            let block = at?;
            let link = self.get(block);
            at = (link & TAGS == TAG_NEXT).then_some(link);
            Some(block)
        })
    }

    /// Bytes that the links of one segment take.
    #[must_use]
    pub fn bytes_per_segment(blocks: u32) -> u64 {
        u64::from(blocks) * size_of::<AtomicU32>() as u64
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Presence {
    /// No memory stands behind it.
    Absent,
    /// A thread is populating its memory or giving it back; nothing in it is free or used.
    Changing,
    /// Its blocks are free or used.
    Ready,
}

#[derive(Clone, Copy)]
struct Segment {
    presence: Presence,
    free_blocks: u32,
    free_head: u32,
    /// Neighbours in the list of its class; `NONE` at the ends.
    before: u32,
    after: u32,
}

/// Segments with free blocks are listed by how much of them is free, in this many classes; one more
/// lists those that are wholly free.
const CLASSES: usize = 16;

/// The pool: segments of blocks, their free lists, and the chains.
pub struct BlockPool {
    links: Arc<BlockLinks>,
    blocks_per_segment: u32,
    segments: Vec<Segment>,
    segments_max: u32,
    class_heads: [u32; CLASSES + 1],
    absent: Vec<u32>,
    free_blocks: u64,
    ready_segments: u32,
    empty_segments: u32,
}

impl BlockPool {
    /// A pool of at most `segments_max` segments, none of them present yet. `blocks_per_segment` is
    /// a power of two.
    ///
    /// # Panics
    /// If it isn't, or if there would be more than [`NUMBERS`] blocks.
    #[must_use]
    pub fn new(segments_max: u32, blocks_per_segment: u32) -> Self {
        assert!(blocks_per_segment.is_power_of_two());
        assert!(u64::from(segments_max) * u64::from(blocks_per_segment) < u64::from(NUMBERS));
        let links = BlockLinks {
            segments: (0..segments_max).map(|_| OnceLock::new()).collect(),
            shift: blocks_per_segment.trailing_zeros(),
        };
        Self {
            links: Arc::new(links),
            blocks_per_segment,
            segments: Vec::new(),
            segments_max,
            class_heads: [NONE; CLASSES + 1],
            absent: Vec::new(),
            free_blocks: 0,
            ready_segments: 0,
            empty_segments: 0,
        }
    }

    /// The links, to walk chains without the pool.
    #[must_use]
    pub fn links(&self) -> Arc<BlockLinks> {
        Arc::clone(&self.links)
    }
    /// Free blocks in present segments.
    #[must_use]
    pub fn free_blocks(&self) -> u64 {
        self.free_blocks
    }
    /// Blocks in chains.
    #[must_use]
    pub fn used_blocks(&self) -> u64 {
        u64::from(self.ready_segments) * u64::from(self.blocks_per_segment) - self.free_blocks
    }
    /// Segments that memory stands behind.
    #[must_use]
    pub fn present_segments(&self) -> u32 {
        self.segments.len() as u32 - self.absent.len() as u32
    }
    /// Segments that are present and wholly free.
    #[must_use]
    pub fn empty_segments(&self) -> u32 {
        self.empty_segments
    }
    /// Segments whose links exist, present or not.
    #[must_use]
    pub fn linked_segments(&self) -> u32 {
        self.segments.len() as u32
    }

    /// Picks an absent segment to make present: the caller populates it, then calls
    /// [`add`](Self::add), or [`retired`](Self::retired) if it could not. `None`: all are present.
    pub fn grow(&mut self) -> Option<u32> {
        let segment = match self.absent.pop() {
            Some(segment) => segment,
            None if (self.segments.len() as u32) < self.segments_max => {
                let fresh = Segment {
                    presence: Presence::Absent,
                    free_blocks: 0,
                    free_head: NONE,
                    before: NONE,
                    after: NONE,
                };
                self.segments.push(fresh);
                self.segments.len() as u32 - 1
            }
            None => return None,
        };
        self.segments[segment as usize].presence = Presence::Changing;
        Some(segment)
    }

    /// A segment that [`grow`](Self::grow) picked now has memory behind it.
    pub fn add(&mut self, segment: u32) {
        let (first, blocks) = (segment * self.blocks_per_segment, self.blocks_per_segment);
        self.links.segments[segment as usize]
            .get_or_init(|| (0..blocks).map(|_| AtomicU32::new(0)).collect());
        for block in first..first + blocks - 1 {
            self.links.set(block, TAG_FREE | (block + 1));
        }
        self.links.set(first + blocks - 1, TAG_FREE | NONE);
        let state = &mut self.segments[segment as usize];
        assert_eq!(state.presence, Presence::Changing, "only a segment that grow() picked is added");
        (state.presence, state.free_blocks, state.free_head) = (Presence::Ready, blocks, first);
        self.free_blocks += u64::from(blocks);
        self.ready_segments += 1;
        self.empty_segments += 1;
        self.list(segment);
    }

    /// Takes a wholly free segment out, for the caller to give its memory back and then call
    /// [`retired`](Self::retired). `None` if no more than `keep` are wholly free.
    pub fn retire(&mut self, keep: u32) -> Option<u32> {
        if self.empty_segments <= keep {
            return None;
        }
        let segment = self.class_heads[CLASSES];
        self.unlist(segment);
        self.segments[segment as usize].presence = Presence::Changing;
        self.free_blocks -= u64::from(self.blocks_per_segment);
        self.ready_segments -= 1;
        self.empty_segments -= 1;
        Some(segment)
    }

    /// No memory stands behind this segment any more.
    pub fn retired(&mut self, segment: u32) {
        let state = &mut self.segments[segment as usize];
        assert_eq!(
            state.presence,
            Presence::Changing,
            "only a segment that grow() or retire() picked is retired"
        );
        state.presence = Presence::Absent;
        self.absent.push(segment);
    }

    /// A chain of `blocks` blocks for `owner`. `None` if fewer are free; then nothing has changed.
    ///
    /// # Panics
    /// If `blocks` is zero or `owner` is not below [`NUMBERS`].
    pub fn allocate(&mut self, blocks: u32, owner: u32) -> Option<u32> {
        self.allocate_outside(blocks, owner, NONE)
    }

    /// [`allocate`](Self::allocate) that takes nothing from one segment (for emptying it) nor from
    /// a wholly free one.
    pub fn allocate_to_empty(&mut self, blocks: u32, owner: u32, segment: u32) -> Option<u32> {
        let per_segment = u64::from(self.blocks_per_segment);
        let own = u64::from(self.segments[segment as usize].free_blocks);
        let empty = u64::from(self.empty_segments) * per_segment;
        let own = if own == per_segment { 0 } else { own };
        if self.free_blocks - own - empty < u64::from(blocks) {
            return None;
        }
        self.allocate_outside(blocks, owner, segment)
    }

    fn allocate_outside(&mut self, blocks: u32, owner: u32, avoid: u32) -> Option<u32> {
        assert!(blocks > 0 && owner < NUMBERS);
        if self.free_blocks < u64::from(blocks) {
            return None;
        }
        if avoid != NONE {
            self.unlist(avoid);
        }
        let (mut first, mut last, mut wanted) = (NONE, NONE, blocks);
        while wanted > 0 {
            let segment =
                *self.class_heads.iter().find(|head| **head != NONE).expect("enough blocks are free");
            self.unlist(segment);
            let state = &mut self.segments[segment as usize];
            if state.free_blocks == self.blocks_per_segment {
                self.empty_segments -= 1;
            }
            let taken = wanted.min(state.free_blocks);
            for _ in 0..taken {
                let block = state.free_head;
                state.free_head = self.links.get(block) & !TAGS;
                if last == NONE {
                    first = block;
                } else {
                    self.links.set(last, TAG_NEXT | block);
                }
                last = block;
            }
            state.free_blocks -= taken;
            wanted -= taken;
            self.list(segment);
        }
        self.links.set(last, TAG_END | owner);
        self.free_blocks -= u64::from(blocks);
        if avoid != NONE {
            self.list(avoid);
        }
        Some(first)
    }

    /// Frees a chain. Returns how many blocks it had.
    ///
    /// # Panics
    /// If a block of it is free already.
    pub fn release(&mut self, first: u32) -> u32 {
        self.release_all(std::iter::once(first))
    }

    /// Frees chains, best in the order in which they were made. Returns how many blocks they had.
    ///
    /// # Panics
    /// If a block of one is free already.
    pub fn release_all(&mut self, chains: impl IntoIterator<Item = u32>) -> u32 {
        let links = Arc::clone(&self.links);
        let in_segment = (1 << links.shift) - 1;
        // The segment that is out of its list, and how many blocks it has gained: a run of chains
        // within one segment is relisted once.
        let (mut open, mut gained) = (NONE, 0);
        let mut released = 0;
        for first in chains {
            let mut at = first;
            'chain: loop {
                let segment = at >> links.shift;
                if segment != open {
                    self.close_segment(open, gained);
                    self.unlist(segment);
                    (open, gained) = (segment, 0);
                }
                let words: &[AtomicU32] = links.segments[segment as usize]
                    .get()
                    .expect("a block in use lies in a segment that was added");
                // The run keeps its order: a chain that ran upwards is handed out running upwards
                // again (copying one that runs down takes half as long again).
                let state = &mut self.segments[segment as usize];
                let old_head = std::mem::replace(&mut state.free_head, at);
                loop {
                    let word = &words[(at & in_segment) as usize];
                    let link = word.load(Ordering::Relaxed);
                    assert_ne!(link & TAGS, TAG_FREE, "a block is freed once");
                    gained += 1;
                    released += 1;
                    if link & TAGS == TAG_NEXT && link >> links.shift == segment {
                        word.store(TAG_FREE | link, Ordering::Relaxed);
                        at = link;
                        continue;
                    }
                    word.store(TAG_FREE | old_head, Ordering::Relaxed);
                    if link & TAGS != TAG_NEXT {
                        break 'chain;
                    }
                    at = link;
                    break;
                }
            }
        }
        self.close_segment(open, gained);
        self.free_blocks += u64::from(released);
        released
    }

    /// Lists a segment again that gained free blocks.
    fn close_segment(&mut self, segment: u32, gained: u32) {
        if segment == NONE {
            return;
        }
        let state = &mut self.segments[segment as usize];
        state.free_blocks += gained;
        if state.free_blocks == self.blocks_per_segment {
            self.empty_segments += 1;
        }
        self.list(segment);
    }

    /// The emptiest segment that is not wholly free, if the free blocks of the other segments could
    /// take its content.
    #[must_use]
    pub fn worth_emptying(&self) -> Option<u32> {
        let per_segment = self.blocks_per_segment;
        let segment = self.class_heads[..CLASSES].iter().rev().copied().find(|head| *head != NONE)?;
        let own_free = self.segments[segment as usize].free_blocks;
        let elsewhere =
            self.free_blocks - u64::from(own_free) - u64::from(self.empty_segments) * u64::from(per_segment);
        // Emptying a segment that is mostly full copies more than it gains.
        (own_free * 4 >= per_segment && elsewhere >= u64::from(per_segment - own_free)).then_some(segment)
    }

    /// Looks for a used block at or after the `from`th of a segment: where to go on, and the owner
    /// of its chain.
    #[must_use]
    pub fn owner_at_or_after(&self, segment: u32, from: u32) -> Option<(u32, u32)> {
        let base = segment * self.blocks_per_segment;
        let index =
            (from..self.blocks_per_segment).find(|index| self.links.get(base + index) & TAGS != TAG_FREE)?;
        let last = self.links.chain(base + index).last()?;
        Some((index + 1, self.links.get(last) & !TAGS))
    }

    fn class(&self, segment: u32) -> Option<usize> {
        match self.segments[segment as usize] {
            Segment { presence: Presence::Ready, free_blocks: 1.., .. } => {}
            _ => return None,
        }
        let free = self.segments[segment as usize].free_blocks as usize;
        let all = self.blocks_per_segment as usize;
        Some(if free == all { CLASSES } else { free * CLASSES / all })
    }

    fn list(&mut self, segment: u32) {
        let Some(class) = self.class(segment) else { return };
        let head = std::mem::replace(&mut self.class_heads[class], segment);
        let state = &mut self.segments[segment as usize];
        (state.before, state.after) = (NONE, head);
        if head != NONE {
            self.segments[head as usize].before = segment;
        }
    }

    fn unlist(&mut self, segment: u32) {
        let Some(class) = self.class(segment) else { return };
        let Segment { before, after, .. } = self.segments[segment as usize];
        match before {
            NONE => self.class_heads[class] = after,
            _ => self.segments[before as usize].after = after,
        }
        if after != NONE {
            self.segments[after as usize].before = before;
        }
    }
}

#[cfg(test)]
#[path = "blocks_test.rs"]
mod tests;
