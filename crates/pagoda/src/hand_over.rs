//! Handing what a forked child lacks over to its own engine, as it is stored: nothing is unpacked into the child's memory, where it
//! would have to be packed and evicted again.
//!
//! The child takes the descriptor that the kernel made for it out of its parent's table (`pagoda_linux::offer`), makes its own
//! engine over it, and accepts; until then the parent serves its faults. From there on the parent sends all that is out, with
//! the gate held exclusively as for copies, and the child puts it into its own table and store before any fault of its own is
//! served. Its one thread of the program waits in the library's fork handler until it has everything.
//!
//! On the stream are records of four words: what it is, an address, a length, and of a range how far it begins into its first
//! entry, which differs where the program has moved it. First come all ranges, then the pages, then the
//! end; without that the child ends itself. This module must never let the child's table miss a page that is out.

use std::io;
use std::sync::atomic::Ordering;

use pagoda_core::entry::{Backing, Granules, Word};
use pagoda_core::page::OS_PAGE;
use pagoda_core::shares;
use pagoda_core::size::Bytes;
use pagoda_linux::offer::{State, Stream};
use pagoda_linux::pack::{BLOCK, unpack};
use pagoda_linux::pagemap::PagemapScanner;
use pagoda_linux::range::PageRange;
use pagoda_linux::thread::{now_ns, sleep_us};
use pagoda_linux::uffd::{Errno as KernelErrno, Stop};

use crate::counters::Counter;
use crate::engine::Engine;
use crate::fork::Child;
use crate::store::{Handle, Put, PutError, Scratch, Store};
use crate::table::{Filler, Page, Span, Table, give};

/// How long a child may take from its fork until it accepts: it comes to its fork handlers and makes an engine.
const PATIENCE_NS: u64 = 2_000_000_000;

/// Between two looks at what the child wants.
const LOOK_US: u32 = 50;

/// The share of its budget that the child fills with what it is given before it spills: one part in this.
const STORED_SHARE: u64 = 2;

/// As much it may always fill.
const STORED_LEAST: u64 = 4 << 20;

/// What became of an offer.
pub(crate) enum HandedOver {
    /// The child has everything, or is gone.
    Everything,
    /// It gets copies. These are children of its own that it has made by now.
    Nothing(Vec<Child>),
}

/// What a record of the stream is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
enum Kind {
    /// A range that the parent manages.
    Managed,
    /// A range that the parent follows.
    Followed,
    /// A page as it is packed; its bytes follow.
    Packed,
    /// A page as it is; its bytes follow.
    Plain,
    End,
}

impl Kind {
    const ALL: [Self; 5] = [Self::Managed, Self::Followed, Self::Packed, Self::Plain, Self::End];
}

const RECORD: usize = 4 * size_of::<u64>();

/// What comes before the bytes of a page, or tells of a range.
#[derive(Clone, Copy, Debug)]
struct Record {
    kind: Kind,
    address: usize,
    len: usize,
    skipped: usize,
}

impl Record {
    fn send(self, stream: &Stream) -> io::Result<()> {
        let words = [self.kind as u64, self.address as u64, self.len as u64, self.skipped as u64];
        let mut record = [0; RECORD];
        for (to, word) in record.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        stream.send(&record)
    }

    fn receive(stream: &Stream) -> io::Result<Self> {
        let mut record = [0; RECORD];
        stream.receive(&mut record)?;
        let word = |i: usize| u64::from_ne_bytes(record[i * 8..][..8].try_into().expect("8 bytes"));
        let kind = Kind::ALL.into_iter().find(|kind| *kind as u64 == word(0));
        let kind = kind.ok_or(io::ErrorKind::InvalidData)?;
        let [address, len, skipped] = [1, 2, 3].map(|i| word(i) as usize);
        Ok(Self { kind, address, len, skipped })
    }
}

fn send_page(stream: &Stream, kind: Kind, address: usize, bytes: &[u8]) -> io::Result<()> {
    Record { kind, address, len: bytes.len(), skipped: 0 }.send(stream)?;
    stream.send(bytes)
}

/// The giving side.
impl Engine {
    /// Offers a child to take over what it lacks, if that is worth an engine, and gives it that if it accepts. With the gate held
    /// exclusively.
    pub(crate) fn hand_over(
        &self,
        table: &Table,
        child: &mut Child,
        is_announced: bool,
        buffer: &mut [u8],
        scratch: &mut Scratch,
    ) -> HandedOver {
        let mut born = Vec::new();
        let made = match is_announced && self.hands_over() {
            true => self.space.offer(&child.uffd),
            false => None,
        };
        let Some(made) = made else { return HandedOver::Nothing(born) };
        let begin = now_ns();
        let mut waiting = Vec::new();
        while made.state() == State::Open {
            born.extend(child.hear(|address| waiting.push(address)));
            waiting.retain(|address| !self.serve_child(table, child, *address, buffer, scratch));
            let is_odd = !child.is_as_it_was() || !born.is_empty();
            if (is_odd || now_ns() - begin > PATIENCE_NS) && made.revoke() {
                return HandedOver::Nothing(born);
            }
            if !self.space.is_alive(&child.uffd, &made) {
                return HandedOver::Everything;
            }
            self.counters.set(Counter::LastLookNs, now_ns());
            sleep_us(LOOK_US);
        }
        if made.state() == State::Refused {
            return HandedOver::Nothing(born);
        }
        // They fault again, and the child's own engine hears of it.
        waiting.iter().for_each(|address| child.uffd.wake(PageRange::page(*address)));
        // A child that is gone, or stands still for too long, gets no end, and ends itself. So does one that changed a mapping in
        // the moment before it accepted: its thread does nothing there that would.
        if child.is_as_it_was() {
            let _ = self.send_all(table, &made.into_stream(), buffer, scratch);
        }
        HandedOver::Everything
    }

    /// What a child has to be given.
    pub(crate) fn out_bytes(&self) -> Bytes {
        let stored = self.store.usage().raw_bytes.get().saturating_sub(self.ledger.copied_bytes());
        Bytes::new(stored + self.ledger.staged_bytes())
    }

    /// Whether so much is out that a child would begin with an engine anyway.
    pub(crate) fn hands_over(&self) -> bool {
        self.space.can_offer() && self.out_bytes() >= shares::engine_from(self.full_budget)
    }

    /// Fills the missing page that a thread of the child waits for. False if a mapping of the child is just changing.
    fn serve_child(
        &self,
        table: &Table,
        child: &Child,
        address: usize,
        buffer: &mut [u8],
        scratch: &mut Scratch,
    ) -> bool {
        let at = PageRange::page(address);
        let out = table.find(address).and_then(|span| {
            let page = table.page_at(span, address);
            let granule = page.granule_of(address);
            let out = self.copy_out(span, &page, buffer, scratch).has(granule);
            out.then_some(granule as usize * OS_PAGE)
        });
        let filled = match out {
            Some(offset) => self.space.fill_child(&child.uffd, at, &buffer[offset..][..OS_PAGE]),
            // It was never written, or discarded.
            None => self.space.fill_child_with_zero_page(&child.uffd, at),
        };
        match filled.stop {
            Some(Stop::Again) => false,
            Some(Stop::Exists) => {
                child.uffd.wake(at);
                true
            }
            _ => true,
        }
    }

    fn send_all(
        &self,
        table: &Table,
        stream: &Stream,
        buffer: &mut [u8],
        scratch: &mut Scratch,
    ) -> io::Result<()> {
        for span in table.spans() {
            let kind = match span.filler() {
                Filler::Kernel => Kind::Followed,
                Filler::Engine | Filler::EngineHuge => Kind::Managed,
            };
            let (address, len) = (span.range().start(), span.range().len());
            let skipped = span.skipped_bytes(table.entry_bytes());
            Record { kind, address, len, skipped }.send(stream)?;
        }
        for span in table.spans() {
            for index in span.indices(span.range(), table.entry_bytes()) {
                if span.entry(index).load(Ordering::Acquire) != 0 {
                    let page = span.page(index, span.range(), table.entry_bytes());
                    self.send_page(stream, span, &page, buffer, scratch)?;
                }
            }
            self.counters.set(Counter::LastLookNs, now_ns());
        }
        Record { kind: Kind::End, address: 0, len: 0, skipped: 0 }.send(stream)
    }

    /// Sends what is out of a page, by the address of its first granule that is.
    fn send_page(
        &self,
        stream: &Stream,
        span: &Span,
        page: &Page,
        buffer: &mut [u8],
        scratch: &mut Scratch,
    ) -> io::Result<()> {
        let word = self.take(span.entries(), page.index);
        let missing = page.granules.without(word.resident());
        let Some((first, _)) = missing.runs().next() else {
            give(span.entry(page.index), word);
            return Ok(());
        };
        let address = page.addresses(first, first + 1).start();
        self.counters.add(Counter::ForkTakenOverBytes, u64::from(missing.count()) * OS_PAGE as u64);
        let packed = match word.backing() {
            Backing::Handle(handle) => {
                self.store.get_packed(Handle::from_bits(handle), scratch).ok().flatten()
            }
            Backing::Slot(_) | Backing::None => None,
        };
        let sent = packed.map(|packed| send_page(stream, Kind::Packed, address, packed));
        give(span.entry(page.index), word);
        if let Some(sent) = sent {
            return sent;
        }
        match self.copy_out(span, page, buffer, scratch) {
            Granules::NONE => Ok(()),
            _ => send_page(stream, Kind::Plain, address, buffer),
        }
    }
}

/// The taking side.
impl Engine {
    /// Takes all that this process lacks from its parent. Before any other thread of this engine runs.
    ///
    /// # Errors
    /// The parent is gone or stands still, or there is no room for all of it: this process can't go on then.
    pub(crate) fn take_over(
        &self,
        stream: &Stream,
        present: &mut PagemapScanner,
        scratch: &mut Scratch,
    ) -> io::Result<()> {
        let mut table = self.gate_exclusive();
        let (mut content, mut packed) = (vec![0; self.entry_bytes()], vec![0; self.entry_bytes()]);
        loop {
            let Record { kind, address, len, skipped } = Record::receive(stream)?;
            let bytes = match kind {
                Kind::End => break,
                Kind::Managed | Kind::Followed => {
                    let range = PageRange::new(address, address.wrapping_add(len));
                    let range = range.ok_or(io::ErrorKind::InvalidData)?;
                    let filler = if kind == Kind::Followed { Filler::Kernel } else { Filler::Engine };
                    self.take_range(&mut table, present, range, skipped, filler)?;
                    continue;
                }
                Kind::Packed => packed.get_mut(..len).ok_or(io::ErrorKind::InvalidData)?,
                Kind::Plain => content.get_mut(..len).ok_or(io::ErrorKind::InvalidData)?,
            };
            stream.receive(bytes)?;
            if kind == Kind::Packed {
                let page = content.len();
                unpack(&packed[..len], page, 0, &mut content, &mut [0; BLOCK])
                    .ok_or(io::ErrorKind::InvalidData)?;
            }
            let packed = (kind == Kind::Packed).then_some(&packed[..len]);
            self.take_page(&table, address, packed, &content, scratch)?;
        }
        self.ledger.store_has(self.store.usage().memory_committed_bytes.get());
        Ok(())
    }

    fn take_range(
        &self,
        table: &mut Table,
        present: &mut PagemapScanner,
        range: PageRange,
        skipped: usize,
        filler: Filler,
    ) -> io::Result<()> {
        let registered = match filler {
            Filler::Kernel => self.space.follow(range),
            Filler::Engine | Filler::EngineHuge => self.space.register(range),
        };
        match registered {
            Ok(()) => {}
            Err(errno) if errno == KernelErrno::NOMEM => return Err(errno.into()),
            // There is no such memory here (madvise DONTFORK), and so no page of it.
            Err(_) => return Ok(()),
        }
        // Pages at a boundary of the parent's have content for each side: what the one side's page holds beyond it is nothing.
        table.insert_apart(range, skipped, filler);
        match filler {
            Filler::Engine | Filler::EngineHuge => self.mark_present(table, present, range),
            Filler::Kernel => self.follows.store(true, Ordering::Relaxed),
        }
        self.counters.add(Counter::AdoptedRanges, 1);
        self.counters.add(Counter::AdoptedBytes, range.len() as u64);
        Ok(())
    }

    fn take_page(
        &self,
        table: &Table,
        address: usize,
        packed: Option<&[u8]>,
        content: &[u8],
        scratch: &mut Scratch,
    ) -> io::Result<()> {
        let Some(span) = table.find(address) else { return Ok(()) };
        let page = table.page_at(span, address);
        let word = self.take(span.entries(), page.index);
        let is_missing = !page.granules.without(word.resident()).is_empty();
        let after = match if is_missing { self.put_taken(packed, content, scratch) } else { Ok(Put::Zero) } {
            Ok(Put::Stored(handle)) => Some(word.with_backing(Backing::Handle(handle.to_bits()))),
            Ok(Put::Zero) => Some(word),
            Err(_) => self.put_in_place(&page, word, content),
        };
        self.ledger.changed(word, after.unwrap_or(word));
        give(span.entry(page.index), after.unwrap_or(word));
        after.map(|_| ()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    /// Copies what is missing of a page to where it belongs, because the store takes no more. None if there is no memory for it.
    fn put_in_place(&self, page: &Page, word: Word, content: &[u8]) -> Option<Word> {
        for (from, to) in page.granules.without(word.resident()).runs() {
            let content = &content[from as usize * OS_PAGE..to as usize * OS_PAGE];
            let mut done = 0;
            while done < content.len() {
                let at = PageRange::at(page.addresses(from, to).start() + done, content.len() - done);
                let filled = self.space.fill_with(at, &content[done..]);
                done += filled.bytes;
                match filled.stop {
                    None => {}
                    // Its parent filled it before this process accepted.
                    Some(Stop::Exists) => done += OS_PAGE,
                    Some(_) => return None,
                }
            }
        }
        let missing = page.granules.without(word.resident());
        Some(self.came_in(word, missing, self.zone_of_kernel_memory(word)))
    }

    fn put_taken(
        &self,
        packed: Option<&[u8]>,
        content: &[u8],
        scratch: &mut Scratch,
    ) -> Result<Put, PutError> {
        let most = (self.marks().budget().get() / STORED_SHARE).max(STORED_LEAST);
        if self.store.usage().memory_used_bytes.get() > most {
            // By much at once, for each time is a trip to the disk. Where there is no other place, memory takes it.
            let _ = self.store.spill(Bytes::new(most / 2));
        }
        match packed.map(|packed| self.store.put_packed(packed, content)) {
            Some(Ok(Some(handle))) => Ok(Put::Stored(handle)),
            Some(Ok(None)) | None => self.store.put(content, scratch),
            Some(Err(error)) => Err(error),
        }
    }
}
