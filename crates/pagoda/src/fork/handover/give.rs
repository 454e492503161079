//! The giving side: a parent offers its child all that the child lacks, serves its faults until it
//! accepts, and sends it.
//!
//! Everything here happens with the gate held exclusively, so that nothing comes in or goes out
//! meanwhile. This module must never serve a fault of a child that has accepted, nor send the end
//! before all swapped-out pages.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use pagoda_core::budget::shares;
use pagoda_core::page::OS_PAGE;
use pagoda_core::page_entry::{Backing, Granules, Word};
use pagoda_core::size::Bytes;
use pagoda_linux::mem::range::PageRange;
use pagoda_linux::process::offer::{State, Stream};
use pagoda_linux::process::thread::{now_ns, ran_ns, sleep_us};
use pagoda_linux::uffd::Stop;

use super::stream::{Kind, Record, send_page};
use crate::engine::Engine;
use crate::fork::copy::Child;
use crate::fork::wiped::Wiped;
use crate::stats::counters::Counter;
use crate::store::{Handle, Loan, Scratch};
use crate::table::{Page, Span, Table, give};

/// How long a child may take from its fork until it accepts: it comes to its fork handlers and
/// makes an engine.
const PATIENCE_NS: u64 = 2_000_000_000;

/// The time between two looks at the child's messages.
const LOOK_US: u32 = 50;

/// The outcome of an offer.
pub(crate) enum HandedOver {
    /// The child has everything, or is gone.
    Everything,
    /// It gets copies. These are children of its own that it has made by now.
    Nothing(Vec<Child>),
}

impl Engine {
    /// Offers a child to take over its swapped-out pages, if that is worth an engine, and sends
    /// them if it accepts. With the gate held exclusively.
    pub(crate) fn hand_over(
        &self,
        table: &Table,
        child: &mut Child,
        is_announced: bool,
        buffer: &mut [u8],
        scratch: &mut Scratch,
    ) -> HandedOver {
        let mut born = Vec::new();
        if !is_announced || !child.is_as_it_was() || !self.hands_over() {
            return HandedOver::Nothing(born);
        }
        let loan = self.store.loan();
        let lent = loan.as_ref().map(Loan::descriptors);
        let Some(made) = self.space.offer(&child.uffd, lent) else {
            return HandedOver::Nothing(born);
        };
        let begin = ran_ns();
        let mut waiting = Vec::new();
        while made.state() == State::Open {
            let children = child.hear(|address| waiting.push(address));
            born.extend(children.unwrap_or_else(|errno| self.stop_unread(errno)));
            waiting.retain(|address| !self.serve_child(table, child, *address, buffer, scratch));
            let is_odd = !child.is_as_it_was() || !born.is_empty();
            if (is_odd || ran_ns().saturating_sub(begin) > PATIENCE_NS) && made.revoke() {
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
        child.leave(&waiting);
        // A child that is gone, or runs and takes nothing for too long, gets no end, and ends
        // itself. So does one that changed a mapping in the moment before it accepted: its thread
        // does nothing there that would.
        if child.is_as_it_was() {
            let stream = Arc::new(made.into_stream());
            if let Some(loan) = &loan {
                self.store.begin_loan(loan, &stream);
            }
            self.announcements.reader.store(stream.peer().unwrap_or(0), Ordering::Relaxed);
            if self.send_all(table, &stream, (loan.as_ref(), &child.wiped), buffer, scratch).is_err() {
                // A child that lacks the end reads nothing for its program: it holds nothing any
                // more.
                stream.end();
            }
            self.announcements.reader.store(0, Ordering::Relaxed);
        }
        HandedOver::Everything
    }

    /// The bytes that a child has to be given.
    pub(crate) fn out_bytes(&self) -> Bytes {
        let stored = self.store.usage().raw_bytes.get().saturating_sub(self.ledger.copied_bytes());
        Bytes::new(stored + self.ledger.staged_bytes())
    }

    /// Whether so many bytes are swapped out that a child would begin with an engine anyway.
    pub(crate) fn hands_over(&self) -> bool {
        self.space.can_offer() && self.out_bytes() >= shares::engine_from(self.full_budget)
    }

    /// Fills the missing page that a thread of the child waits for. False if a mapping of the child
    /// is just changing.
    fn serve_child(
        &self,
        table: &Table,
        child: &Child,
        address: usize,
        buffer: &mut [u8],
        scratch: &mut Scratch,
    ) -> bool {
        let at = PageRange::page(address);
        // Empty in the child, or discarded by it: it reads zero.
        let span = if child.place(address).is_some() { table.find(address) } else { None };
        let out = span.and_then(|span| {
            let page = table.page_at(span, address);
            let granule = page.granule_of(address);
            let out = self.copy_out(span, &page, buffer, scratch).has(granule);
            out.then_some(granule as usize * OS_PAGE)
        });
        let filled = match out {
            Some(offset) => self.space.fill_child(&child.uffd, at, &buffer[offset..][..OS_PAGE]),
            // The same if it was never written.
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
        (loan, wiped): (Option<&Loan>, &Wiped),
        buffer: &mut [u8],
        scratch: &mut Scratch,
    ) -> io::Result<()> {
        if loan.is_some() {
            send_page(stream, Kind::Keys, 0, &self.store.lent_keys())?;
        }
        for span in table.spans() {
            let (address, len) = (span.range().start(), span.range().len());
            let skipped = span.skipped_bytes(table.entry_bytes());
            Record { kind: Kind::Managed, address, len, skipped }.send(stream)?;
        }
        for span in table.spans() {
            for index in span.used(span.range(), table.entry_bytes()) {
                if span.word(index) != Word::EMPTY {
                    let page = span.page(index, span.range(), table.entry_bytes());
                    match wiped.of_page(&page) {
                        Granules::NONE => self.send_page(stream, loan, span, &page, buffer, scratch)?,
                        empty => self.send_wiped(stream, span, (&page, empty), buffer, scratch)?,
                    }
                    self.note_fork_goes_on();
                }
            }
        }
        Record { kind: Kind::End, address: 0, len: 0, skipped: 0 }.send(stream)
    }

    /// Sends the swapped-out granules of a page of which some are `empty` in the child. A stored
    /// page may have content of granules that are resident here, and no more there: so it is never
    /// sent as it is stored.
    fn send_wiped(
        &self,
        stream: &Stream,
        span: &Span,
        (page, empty): (&Page, Granules),
        buffer: &mut [u8],
        scratch: &mut Scratch,
    ) -> io::Result<()> {
        let missing = self.copy_out(span, page, buffer, scratch);
        Wiped::clear(empty, buffer);
        let Some((first, _)) = missing.without(empty).runs().next() else { return Ok(()) };
        let bytes = u64::from(missing.without(empty).count()) * OS_PAGE as u64;
        self.counters.add(Counter::ForkTakenOverBytes, bytes);
        send_page(stream, Kind::Plain, page.addresses(first, first + 1).start(), buffer)
    }

    /// Sends the swapped-out granules of a page, by the address of the first; of a page in the file
    /// only its place.
    fn send_page(
        &self,
        stream: &Stream,
        loan: Option<&Loan>,
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
        let bytes = u64::from(missing.count()) * OS_PAGE as u64;
        self.counters.add(Counter::ForkTakenOverBytes, bytes);
        let lent = match (word.backing(), loan) {
            (Backing::Handle(handle), Some(loan)) => self.store.lend(Handle::from_bits(handle), loan),
            _ => None,
        };
        if let Some(lent) = lent {
            give(span.entry(page.index), word);
            self.counters.add(Counter::ForkLentBytes, bytes);
            return send_page(stream, Kind::Lent, address, &lent);
        }
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
