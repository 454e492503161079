//! The image arrives unchanged: every policy, codec and number of channels, over images of every
//! kind. The long form has all combinations, the normal one each codec and policy over each image.

mod support;

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::thread;
use std::time::{Duration, Instant};

use pagoda_core::migrate::handshake::Codec;
use pagoda_core::migrate::zero::ZeroPolicy;
use pagoda_core::size::Bytes;
use pagoda_linux::testing::length::is_long;
use pagoda_linux::testing::random::runs;
use pagoda_migrate::{
    Destination, Endpoint, Error, ImageDestination, MemoryDestination, ReceiveOptions, SendOptions,
};
use support::{Place, any_port, receive_options, send_options, transfer, transfer_to};

#[test]
fn an_image_arrives_with_its_content_and_its_holes() {
    for seed in runs(4) {
        // Sizes that end within a page, within a stripe, and at neither.
        let size = [8 << 20, (5 << 20) + 1, (9 << 20) + 4096, 12 << 20][seed as usize % 4];
        for (codec_at, codec) in Codec::ALL.into_iter().enumerate() {
            for (zero_at, zero) in ZeroPolicy::ALL.into_iter().enumerate() {
                for (at, channels) in [1, 2, 5].into_iter().enumerate() {
                    if !is_long() && (seed as usize + codec_at + zero_at) % 3 != at {
                        continue;
                    }
                    let place = Place::with_image(seed, size);
                    let sending = SendOptions { codec, channels, ..send_options() };
                    let (sent, received) =
                        transfer(&place, &sending, &ReceiveOptions { zero, ..receive_options() });
                    let context = format!("PAGODA_SEED={seed}, {codec}, {zero}, {channels} channels");
                    let sent = sent.unwrap_or_else(|error| panic!("{context}: {error}"));
                    let received = received.unwrap_or_else(|error| panic!("{context}: {error}"));
                    assert!(place.is_equal(), "{context}");
                    assert_eq!(sent.data_pages, received.data_pages, "{context}");
                    assert_eq!(sent.zero_pages, received.zero_pages, "{context}");
                    assert_eq!(sent.image_bytes, size, "{context}");
                    let blocks = |path| fs::metadata(path).expect("metadata").blocks();
                    assert!(blocks(place.arrived()) <= blocks(place.image()), "{context}: holes were filled");
                    let (left, checked) = (received.zero_left_pages, received.zero_checked_pages);
                    let expected = match zero {
                        ZeroPolicy::CheckThenClear => (0, received.zero_pages),
                        _ => (received.zero_pages, 0),
                    };
                    assert_eq!((left, checked), expected, "{context}: each page comes once");
                }
            }
        }
    }
}

#[test]
fn an_image_arrives_in_memory_and_a_second_one_finds_it_clean() {
    let mut memory = MemoryDestination::new();
    for seed in 0..2 {
        let place = Place::with_image(seed, (6 << 20) + 77);
        let (sent, received) = transfer_to(
            &place.image(),
            &mut memory,
            &any_port(),
            &send_options(),
            &receive_options(),
            |to| to,
        );
        sent.expect("sent");
        received.expect("received");
        assert_eq!(memory.size(), Bytes::new(place.size));
        let mut content = vec![1; place.size as usize];
        memory.read_at(0, &mut content).expect("read");
        assert!(content == fs::read(place.image()).expect("read"), "image {seed}");
    }
}

#[test]
fn an_image_arrives_over_a_unix_socket_which_is_gone_afterwards() {
    let place = Place::with_image(1, 5 << 20);
    let path = place.directory.path().join("socket");
    let mut destination = ImageDestination::new(place.arrived()).expect("nothing is there");
    let at = Endpoint::Unix(path.clone());
    let (sent, received) =
        transfer_to(&place.image(), &mut destination, &at, &send_options(), &receive_options(), |to| to);
    sent.expect("sent");
    received.expect("received");
    assert!(place.is_equal() && !path.exists());
}

#[test]
fn an_empty_image_arrives() {
    let place = Place::with_image(0, 0);
    let (sent, received) = transfer(&place, &send_options(), &receive_options());
    sent.expect("sent");
    received.expect("received");
    assert_eq!(fs::metadata(place.arrived()).expect("metadata").len(), 0);
}

#[test]
fn a_terabyte_of_hole_is_not_read() {
    let place = Place::with_image(0, 0);
    let file = File::options().write(true).open(place.image()).expect("an image");
    file.set_len(1 << 40).expect("a length");
    for at in [0, 1 << 39, (1 << 40) - 5] {
        file.write_all_at(b"data!", at).expect("written");
    }
    let receiving = ReceiveOptions { image_most: Bytes::gib(1 << 10), ..receive_options() };
    let (sent, received) = transfer(&place, &send_options(), &receiving);
    assert_eq!(sent.expect("sent").data_pages, 3);
    received.expect("received");
    let arrived = File::open(place.arrived()).expect("arrived");
    let metadata = arrived.metadata().expect("metadata");
    assert!(metadata.len() == 1 << 40 && metadata.blocks() <= 3 * 128, "{} blocks", metadata.blocks());
    for at in [0, 1 << 39, (1 << 40) - 5] {
        let mut word = [0; 5];
        arrived.read_exact_at(&mut word, at).expect("read");
        assert_eq!(&word, b"data!");
    }
}

#[test]
fn an_image_that_is_written_meanwhile_is_not_shown() {
    let place = Place::with_image(3, 8 << 20);
    // Slow enough to be written to before it is done.
    let sending = SendOptions { bandwidth: Some(Bytes::mib(2)), codec: Codec::None, ..send_options() };
    let write = || {
        thread::sleep(Duration::from_millis(200));
        let file = File::options().write(true).open(place.image()).expect("an image");
        file.write_all_at(b"changed", 0).expect("written");
    };
    let mut destination = ImageDestination::new(place.arrived()).expect("nothing is there");
    let (sent, received) = thread::scope(|scope| {
        // The sender has opened the image when it asks for the way.
        let route = |to| {
            scope.spawn(write);
            to
        };
        transfer_to(&place.image(), &mut destination, &any_port(), &sending, &receive_options(), route)
    });
    assert!(matches!(sent, Err(Error::SourceChanged)), "{sent:?}");
    drop(destination);
    assert!(received.is_err() && place.names() == ["image"]);
}

#[test]
fn a_limited_line_carries_no_more_than_its_limit() {
    let place = Place::with_image(5, 8 << 20);
    let limit = Bytes::mib(4);
    let sending = SendOptions { bandwidth: Some(limit), codec: Codec::None, ..send_options() };
    let started = Instant::now();
    let (sent, received) = transfer(&place, &sending, &receive_options());
    let (wire, took) = (sent.expect("sent").wire_bytes, started.elapsed());
    received.expect("received");
    assert!(place.is_equal());
    // The last frame may have started just before the end. A slow machine only makes it take
    // longer.
    let may = limit.get() as f64 * took.as_secs_f64() + f64::from(2 << 20);
    assert!(wire as f64 <= may, "{wire} bytes in {took:?}");
}

#[test]
fn a_limit_that_would_look_like_a_lost_channel_is_refused() {
    let place = Place::with_image(5, 1 << 20);
    let sending =
        SendOptions { bandwidth: Some(Bytes::kib(64)), stall: Duration::from_secs(1), ..send_options() };
    let receiving = ReceiveOptions { wait: Duration::from_millis(100), ..receive_options() };
    let (sent, received) = transfer(&place, &sending, &receiving);
    assert!(matches!(sent, Err(Error::TooSlow { .. })), "{sent:?}");
    assert!(matches!(received, Err(Error::NobodyCame(_))), "{received:?}");
}

/// Packed for the first turn of each channel, and as it is for the second, to compare.
#[test]
fn a_sender_that_packs_only_if_that_is_faster_tries_both() {
    const SIZE: usize = 24 << 20;
    let place = Place::with_image(1, 0);
    let content: Vec<u8> = (0..SIZE).map(|i| (i / 11) as u8).collect();
    fs::write(place.image(), &content).expect("written");
    let wire_bytes = [false, true].map(|only_if_faster| {
        let sending = SendOptions { channels: 1, only_if_faster, ..send_options() };
        let (sent, received) = transfer(&place, &sending, &receive_options());
        received.expect("received");
        assert!(place.is_equal());
        fs::remove_file(place.arrived()).expect("it is there");
        sent.expect("sent").wire_bytes
    });
    assert!(wire_bytes[0] < SIZE as u64 / 4, "{wire_bytes:?}");
    // One piece at least went as it is, and one packed.
    let tried = (wire_bytes[0] + (1 << 20))..(SIZE as u64 - (1 << 20));
    assert!(tried.contains(&wire_bytes[1]), "{wire_bytes:?}");
}
