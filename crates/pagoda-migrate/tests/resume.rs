//! A transfer of a file that breaks off at any byte, and the next one that goes on from there: the
//! file is right, for any damage to the part that was kept, and confirmed content is sent once.
//!
//! `PAGODA_RUNS` says how many there are, `PAGODA_SEED` repeats one of them.

mod support;

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};

use pagoda_core::migrate::handshake::Codec;
use pagoda_linux::testing::random::{Random, runs};
use pagoda_linux::testing::together;
use pagoda_migrate::{ResumedDestination, SendOptions};
use support::proxy::{Fault, Plan, line};
use support::{Outcome, Place, any_port, receive_options, send_options, transfer_to};

/// One attempt, over a line that is cut there if at all.
fn attempt(place: &Place, channels: u16, codec: Codec, cut: Option<usize>) -> Outcome {
    let mut destination = ResumedDestination::new(&place.arrived()).expect("nothing else has it");
    let sending = SendOptions { channels, codec, ..send_options() };
    let route = |to| match cut {
        Some(at) => line(&to, Plan { fault: Fault::Cut, channel: 0, at, is_of_the_receiver: false }),
        None => to,
    };
    transfer_to(&place.image(), &mut destination, &any_port(), &sending, &receive_options(), route)
}

#[test]
fn a_transfer_goes_on_where_it_broke_off_and_believes_nothing() {
    let [kept, broken] = [const { AtomicU64::new(0) }; 2];
    together::each(runs(24), 4, |seed| {
        let mut random = Random::new(seed, 7);
        let place = Place::with_image(seed, (12 << 20) + 100 * (seed % 2));
        let codec = Codec::ALL[random.below(4)];
        let most = if codec == Codec::None { 1_500_000 } else { 300_000 };
        let first = attempt(&place, 1 + random.below(2) as u16, codec, Some(random.below(most)));
        let part = place.arrived().with_file_name("arrived.partial");
        if first.1.is_ok() {
            // It was cut behind its last byte.
            assert!(place.is_equal(), "PAGODA_SEED={seed}");
            return;
        }
        broken.fetch_add(1, Ordering::Relaxed);
        assert!(first.0.is_err() && !place.arrived().exists(), "PAGODA_SEED={seed}: {first:?}");
        // Now and then the part is damaged, or of another length.
        let file = OpenOptions::new().write(true).open(&part).expect("a part is kept");
        match seed % 4 {
            1 => file.write_all_at(&[0x5a; 3], random.below(12 << 20) as u64).expect("written"),
            2 => file.set_len(random.below(14 << 20) as u64).expect("a length"),
            _ => {}
        }
        drop(file);
        let (sent, received) = attempt(&place, 1 + random.below(4) as u16, codec, None);
        let context = format!("PAGODA_SEED={seed}: {sent:?}, {received:?}");
        let (sent, received) = (sent.expect(&context), received.expect(&context));
        assert!(place.is_equal(), "{context}");
        assert_eq!(place.names(), ["arrived", "image"], "{context}");
        assert_eq!(sent.kept_pages, received.kept_pages, "{context}");
        kept.fetch_add(sent.kept_pages, Ordering::Relaxed);
    });
    let [kept, broken] = [kept, broken].map(AtomicU64::into_inner);
    assert!(broken > 0 || runs(24).count() < 24, "nothing broke off");
    assert!(kept > 0 || runs(24).count() < 24, "nothing was kept");
}

#[test]
fn a_whole_part_is_only_compared() {
    let place = Place::with_image(5, 8 << 20);
    let part = place.arrived().with_file_name("arrived.partial");
    fs::copy(place.image(), &part).expect("copied");
    let own = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    fs::set_permissions(&part, own).expect("set");
    let (sent, received) = attempt(&place, 2, Codec::Lz4, None);
    let (sent, received) = (sent.expect("sent"), received.expect("received"));
    assert!(place.is_equal());
    assert_eq!((sent.data_pages, sent.filled_pages, received.data_pages), (0, 0, 0), "{sent:?}");
    assert!(sent.kept_pages > 0 && sent.wire_bytes < 4096, "{sent:?}");
}

#[test]
fn one_receiver_at_a_time_has_a_part() {
    let place = Place::with_image(6, 1 << 20);
    let first = ResumedDestination::new(&place.arrived()).expect("made");
    let second = ResumedDestination::new(&place.arrived()).map(drop).expect_err("it is taken");
    assert_eq!(second.kind(), io::ErrorKind::ResourceBusy);
    assert!(first.partial_path().exists());
    drop(first);
    ResumedDestination::new(&place.arrived()).expect("it is free again");
}
