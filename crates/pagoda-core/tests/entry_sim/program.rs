//! The program: threads that write, read, discard, unmap, map, move, protect and pin, and know
//! their own writes.
//!
//! Each thread has blocks of its own, at addresses that the kernel chooses without regard to base
//! pages: neighbours in a base page are often different threads', and an address that one gives up
//! the next one gets.

mod tenant;

use std::rc::Rc;

use crate::kernel::{Message, PROGRAM_PAGES, Range, overlap};
use crate::world::{World, step};

pub use tenant::tenant;

/// Steps of one thread's program.
const OPERATIONS: usize = 26;
/// OS pages of a block at most.
const BLOCK: usize = 7;
/// The most OS pages that are protected: a budget full of unevictable pages would leave nothing to
/// run in.
const PROTECTED: usize = 14;

struct Block {
    at: usize,
    content: Vec<u64>,
    read_only: bool,
}

impl Block {
    fn range(&self) -> Range {
        self.at..self.at + self.content.len()
    }
}

struct Program {
    world: Rc<World>,
    thread: usize,
    blocks: Vec<Block>,
}

pub async fn program(world: Rc<World>, thread: usize) {
    let mut program = Program { world: Rc::clone(&world), thread, blocks: Vec::new() };
    program.map();
    for _ in 0..OPERATIONS {
        step().await;
        if program.blocks.is_empty() {
            program.map();
            continue;
        }
        let block = world.below(program.blocks.len());
        match world.below(16) {
            0..5 => program.write(block, 0).await,
            5..9 => program.read_all(block).await,
            9..11 => program.discard(block, 0, false).await,
            11 => program.unmap(block).await,
            12 => program.remap(block).await,
            13 => program.grow_and_trim(block).await,
            14 => program.protect(block),
            _ => program.pin_for_a_while(block).await,
        }
        if program.blocks.len() < 2 && world.below(2) == 0 {
            program.map();
        }
    }
    for block in 0..program.blocks.len() {
        program.read_all(block).await;
    }
    world.programs_left.set(world.programs_left.get() - 1);
}

impl Program {
    /// The first place from a random one on that is free.
    fn place(&self, len: usize) -> Option<usize> {
        let kernel = self.world.kernel.borrow();
        let first = self.world.below(PROGRAM_PAGES);
        let starts =
            (0..PROGRAM_PAGES).map(|i| (first + i) % PROGRAM_PAGES).filter(|at| at + len <= PROGRAM_PAGES);
        starts.into_iter().find(|&at| kernel.is_free(at..at + len))
    }

    fn map(&mut self) {
        let len = 1 + self.world.below(BLOCK);
        let Some(at) = self.place(len) else { return };
        self.world.note(|| format!("thread {}: map {at}+{len}", self.thread));
        self.world.kernel.borrow_mut().map(at..at + len);
        self.blocks.push(Block { at, content: vec![0; len], read_only: false });
    }

    /// Waits until the page is there.
    async fn touch(&self, address: usize) {
        loop {
            step().await;
            if self.world.kernel.borrow_mut().touch(self.thread, address) {
                return;
            }
            while self.world.kernel.borrow().is_waiting(self.thread) {
                step().await;
            }
        }
    }

    async fn write(&mut self, block: usize, from: usize) {
        if self.blocks[block].read_only {
            return;
        }
        for _ in 0..1 + self.world.below(4) {
            let i = from + self.world.below(self.blocks[block].content.len() - from);
            let address = self.blocks[block].at + i;
            let value = self.world.next_value.replace(self.world.next_value.get() + 1);
            self.touch(address).await;
            self.world.kernel.borrow_mut().pages[address].content = Some(value);
            self.world.note(|| format!("thread {}: {address} = {value}", self.thread));
            self.blocks[block].content[i] = value;
        }
    }

    async fn read_all(&self, block: usize) {
        let block = &self.blocks[block];
        for (i, &wrote) in block.content.iter().enumerate() {
            let address = block.at + i;
            self.touch(address).await;
            let read = self.world.kernel.borrow().pages[address].content;
            if read != Some(wrote) {
                self.world.fail(format!("wrong read: page {address} holds {read:?}, {wrote} was written"));
            }
        }
    }

    /// Posts an event and waits until it is read.
    async fn tell(&self, message: Message) {
        step().await;
        self.world.note(|| format!("thread {}: post {message:?}", self.thread));
        let number = self.world.kernel.borrow_mut().post(message);
        while !self.world.kernel.borrow().is_read(number) {
            step().await;
        }
        self.world.kernel.borrow_mut().end_change();
    }

    fn is_registered(&self, range: &Range) -> bool {
        self.world.kernel.borrow().pages[range.clone()].iter().any(|page| page.registered)
    }

    /// The parts of `range` that are registered: each has an event of its own.
    fn registered(&self, range: Range) -> Vec<Range> {
        let mut parts: Vec<Range> = Vec::new();
        for address in range.filter(|&address| self.is_registered(&(address..address + 1))) {
            match parts.last_mut() {
                Some(part) if part.end == address => part.end += 1,
                _ => parts.push(address..address + 1),
            }
        }
        parts
    }

    /// madvise(MADV_DONTNEED) of a part: each mapping's event first, then its pages go. A library
    /// splits huge frames before.
    async fn discard(&mut self, block: usize, lowest: usize, by_library: bool) {
        let world = Rc::clone(&self.world);
        let len = self.blocks[block].content.len();
        let from = lowest + world.below(len - lowest);
        let to = from + 1 + world.below(len - from);
        let at = self.blocks[block].at;
        let (mut start, end) = (at + from, at + to);
        if by_library {
            world.take_huge_apart(&(start..end)).await;
        }
        while start < end {
            // Adoption runs while the thread waits: look at the registered ranges anew.
            let is_registered = |address: usize| self.is_registered(&(address..address + 1));
            let first = is_registered(start);
            let stop = (start..end).find(|&address| is_registered(address) != first).unwrap_or(end);
            if first {
                world.kernel.borrow_mut().begin_change();
                world.kernel.borrow_mut().announce_discard(start..stop);
                self.tell(Message::Remove(start..stop)).await;
                step().await;
            }
            world.note(|| format!("thread {}: drop {start}..{stop}", self.thread));
            world.kernel.borrow_mut().drop_content(start..stop);
            start = stop;
        }
        self.blocks[block].content[from..to].fill(0);
    }

    /// munmap of a block or of its end: its pages go first, then come the events.
    async fn unmap(&mut self, block: usize) {
        let world = Rc::clone(&self.world);
        let len = self.blocks[block].content.len();
        let keep = if world.below(2) == 0 { 0 } else { world.below(len) };
        let gone = self.blocks[block].at + keep..self.blocks[block].range().end;
        if keep == 0 {
            self.blocks.swap_remove(block);
        } else {
            self.blocks[block].content.truncate(keep);
        }
        let events = self.registered(gone.clone());
        for _ in &events {
            world.kernel.borrow_mut().begin_change();
        }
        world.note(|| format!("thread {}: unmap {gone:?}", self.thread));
        world.kernel.borrow_mut().leaving.push((self.thread, gone.clone()));
        world.kernel.borrow_mut().unmap(gone);
        for range in events {
            self.tell(Message::Unmap(range)).await;
        }
        self.has_left();
    }

    fn has_left(&self) {
        self.world.kernel.borrow_mut().leaving.retain(|&(thread, _)| thread != self.thread);
    }

    /// mremap to any place with room, perhaps longer than before: the move, its event, and the
    /// event that the old place is unmapped.
    async fn remap(&mut self, block: usize) {
        let world = Rc::clone(&self.world);
        let from = self.blocks[block].range();
        let grown = from.len() + world.below(3);
        let Some(to) = self.place(grown) else { return };
        // A part of a block that is not registered yet is a mapping of its own, which mremap
        // refuses to move along.
        let is_registered = self.is_registered(&from);
        if is_registered && self.registered(from.clone()) != [from.clone()] {
            return;
        }
        {
            let mut kernel = world.kernel.borrow_mut();
            let mut pages: Vec<_> = kernel.pages[from.clone()].to_vec();
            kernel.unmap(from.clone());
            kernel.map(to..to + grown);
            for page in &mut kernel.pages[to..to + grown] {
                page.registered = is_registered;
                page.read_only = self.blocks[block].read_only;
            }
            let pages = pages.drain(..);
            for (page, moved) in kernel.pages[to..].iter_mut().zip(pages) {
                *page = moved;
            }
            if is_registered {
                kernel.begin_change();
                kernel.begin_change();
                kernel.leaving.push((self.thread, from.clone()));
            }
        }
        world.note(|| format!("thread {}: move {from:?} to {to}", self.thread));
        self.blocks[block].at = to;
        self.blocks[block].content.resize(grown, 0);
        if is_registered {
            self.tell(Message::Remap { from: from.clone(), to }).await;
            self.tell(Message::Unmap(from)).await;
            self.has_left();
            // The one case that is left out: another thread that gave this place up before and has
            // not posted its event yet, in all the time of these two. A third event could not be
            // assigned to one of the two.
            let target = to..to + grown;
            while world.kernel.borrow().leaving.iter().any(|(_, range)| overlap(range, &target)) {
                step().await;
            }
        }
    }

    /// mremap in place, which sends no event; then the new part is used and discarded, perhaps
    /// before it is adopted.
    async fn grow_and_trim(&mut self, block: usize) {
        let world = Rc::clone(&self.world);
        let end = self.blocks[block].range().end;
        let grown = end..(end + 1 + world.below(3)).min(PROGRAM_PAGES);
        if grown.is_empty() || self.blocks[block].read_only || !world.kernel.borrow().is_free(grown.clone()) {
            return;
        }
        {
            let mut kernel = world.kernel.borrow_mut();
            kernel.map(grown.clone());
            let is_registered = kernel.pages[end - 1].registered;
            for page in &mut kernel.pages[grown.clone()] {
                page.registered = is_registered;
            }
        }
        let from = self.blocks[block].content.len();
        self.blocks[block].content.resize(from + grown.len(), 0);
        self.write(block, from).await;
        self.discard(block, from, false).await;
        self.read_all(block).await;
    }

    /// mprotect: it sends no event.
    fn protect(&mut self, block: usize) {
        let block = &mut self.blocks[block];
        let mut kernel = self.world.kernel.borrow_mut();
        let protected = kernel.pages.iter().filter(|page| page.read_only).count();
        if !block.read_only && protected + block.content.len() > PROTECTED {
            return;
        }
        block.read_only = !block.read_only;
        for page in &mut kernel.pages[block.range()] {
            page.read_only = block.read_only;
        }
    }

    /// A page that the kernel holds for direct I/O.
    async fn pin_for_a_while(&mut self, block: usize) {
        let address = self.blocks[block].at + self.world.below(self.blocks[block].content.len());
        self.touch(address).await;
        self.world.kernel.borrow_mut().pages[address].pinned = true;
        for _ in 0..self.world.below(100) {
            step().await;
        }
        self.world.kernel.borrow_mut().pages[address].pinned = false;
    }
}
