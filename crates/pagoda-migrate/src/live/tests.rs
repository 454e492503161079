//! What channels share of live memory: stripes in each round, and in the last one the remaining
//! pages.

use std::io;
use std::sync::atomic::AtomicUsize;

use pagoda_core::migrate::geometry::STRIPE_PAGES;
use pagoda_core::migrate::zero::ZeroPolicy;
use pagoda_linux::testing::wait::until;

use super::*;
use crate::live::source::{LiveReader, TakePacked};
use crate::send::SendOptions;
use crate::testing::{IMAGE, PAGE, options, receive_from};
use crate::{Destination, MemoryDestination};

/// Not all of the stripe: one of which all is left goes as a whole.
const HOT: Range<u64> = 513..1020;

/// Memory that is written whole at first, and one stripe again until it is stopped: every third
/// page of that is zero then.
struct Hot {
    collected: AtomicUsize,
    /// Readers that have begun the last round.
    sharing: AtomicUsize,
}

impl Hot {
    /// The byte of a page after so many collections.
    fn byte(page: u64, collected: usize) -> u8 {
        match (HOT.contains(&page) && collected > 1, page % 3) {
            (true, 0) => 0,
            (true, _) => page as u8 | 128,
            (false, _) => (page % 100) as u8 + 1,
        }
    }
}

impl LiveSource for Hot {
    fn size(&self) -> Bytes {
        IMAGE
    }

    fn collect(&self, data: &PageSet, zero: &PageSet) -> io::Result<u64> {
        let collected = self.collected.fetch_add(1, Ordering::Relaxed) + 1;
        let written = match collected {
            1 => 0..IMAGE.get() / PAGE as u64,
            // After the first round, and when the writer is stopped.
            2 | 3 => HOT,
            _ => 0..0,
        };
        for page in written.clone() {
            let set = if Self::byte(page, collected) == 0 { zero } else { data };
            set.add(page..page + 1);
        }
        Ok(written.end - written.start)
    }

    fn hand_out_again(&self) -> io::Result<()> {
        Ok(())
    }

    fn reader<'a>(&'a self, _packs: bool) -> io::Result<Box<dyn LiveReader + 'a>> {
        Ok(Box::new(Reader { hot: self, shares: false }))
    }
}

struct Reader<'a> {
    hot: &'a Hot,
    shares: bool,
}

impl LiveReader for Reader<'_> {
    fn read(&mut self, first: u64, room: &mut Room, _packed: &mut TakePacked<'_>) -> io::Result<()> {
        let collected = self.hot.collected.load(Ordering::Relaxed);
        if collected > 2 && !self.shares {
            self.shares = true;
            self.hot.sharing.fetch_add(1, Ordering::Relaxed);
            // The first channel leaves something to the other, so that both have a part of the one
            // remaining stripe.
            until("both channels read of one stripe", || self.hot.sharing.load(Ordering::Relaxed) == 2);
        }
        for pages in room.content().runs() {
            for page in pages {
                room.put(page..page + 1).fill(Hot::byte(first + u64::from(page), collected));
            }
        }
        Ok(())
    }
}

struct Nobody;

impl Writer for Nobody {
    fn throttle(&mut self, _percent: u8) {}
    fn stop(&mut self) {}
}

fn two_channels() -> LiveOptions {
    LiveOptions {
        send: SendOptions { channels: 2, ..SendOptions::default() },
        downtime: Duration::from_secs(60),
        // One while it is written, however much a second one would shorten the downtime.
        rounds: 1,
        otherwise: Otherwise::StopForLonger,
        slow_most_percent: 0,
    }
}

#[test]
fn the_rest_of_one_stripe_goes_over_all_channels() {
    for zero in ZeroPolicy::ALL {
        let hot = Hot { collected: AtomicUsize::new(0), sharing: AtomicUsize::new(0) };
        let mut destination = MemoryDestination::new();
        let receives = crate::ReceiveOptions { zero, ..options() };
        let (received, sent) = receive_from(&mut destination, &receives, |to| {
            send_live(&hot, &to, &two_channels(), &mut Nobody, &mut |_, _| ControlFlow::Continue(()))
        });
        let (received, sent) = (received.expect("received"), sent.expect("sent").counts);
        let pages = IMAGE.get() / PAGE as u64;
        assert!(pages > 2 * u64::from(STRIPE_PAGES));
        let gone = HOT.filter(|page| page % 3 == 0).count() as u64;
        // Each page of the last round is named once, by one of the two.
        assert_eq!(sent.filled_pages, pages + HOT.end - HOT.start - gone);
        assert_eq!((sent.zero_pages, received.zero_pages), (gone, gone));
        for page in 0..pages {
            let mut is = [0x55; PAGE];
            destination.read_at(page * PAGE as u64, &mut is).expect("read");
            assert_eq!(is, [Hot::byte(page, 3); PAGE], "page {page} under {zero:?}");
        }
    }
}

/// Stripes of memory that is not written. The first one is not read before all others were.
struct Uneven {
    collected: AtomicUsize,
    read: AtomicUsize,
}

const STRIPES: usize = IMAGE.get() as usize / STRIPE_BYTES;

impl LiveSource for Uneven {
    fn size(&self) -> Bytes {
        IMAGE
    }

    fn collect(&self, data: &PageSet, _zero: &PageSet) -> io::Result<u64> {
        if self.collected.fetch_add(1, Ordering::Relaxed) > 0 {
            return Ok(0);
        }
        let pages = self.size().get() / PAGE as u64;
        data.add(0..pages);
        Ok(pages)
    }

    fn hand_out_again(&self) -> io::Result<()> {
        Ok(())
    }

    fn reader<'a>(&'a self, _packs: bool) -> io::Result<Box<dyn LiveReader + 'a>> {
        Ok(Box::new(self))
    }
}

impl LiveReader for &Uneven {
    fn read(&mut self, first: u64, room: &mut Room, _packed: &mut TakePacked<'_>) -> io::Result<()> {
        if first == 0 {
            until("another channel reads the others", || self.read.load(Ordering::Relaxed) == STRIPES - 1);
        }
        self.read.fetch_add(1, Ordering::Relaxed);
        for page in 0..STRIPE_PAGES {
            room.put(page..page + 1).fill((first % 251) as u8 + 1);
        }
        Ok(())
    }
}

#[test]
fn a_channel_that_is_busy_leaves_its_stripes_to_others() {
    let uneven = Uneven { collected: AtomicUsize::new(0), read: AtomicUsize::new(0) };
    let mut destination = MemoryDestination::new();
    let (received, sent) = receive_from(&mut destination, &options(), |to| {
        send_live(&uneven, &to, &two_channels(), &mut Nobody, &mut |_, _| ControlFlow::Continue(()))
    });
    received.expect("received");
    sent.expect("sent");
    for stripe in 0..STRIPES as u64 {
        let mut is = [0; PAGE];
        destination.read_at(stripe * STRIPE_BYTES as u64, &mut is).expect("read");
        assert_eq!(is, [(stripe * u64::from(STRIPE_PAGES) % 251) as u8 + 1; PAGE], "stripe {stripe}");
    }
}
