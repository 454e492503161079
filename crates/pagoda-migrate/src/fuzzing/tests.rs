//! Runs every file of the corpora under `fuzz/corpus`, so that each past finding of a fuzzer is
//! tried in each run of the tests.
//!
//! The first of them are made here: `PAGODA_WRITE_CORPUS=1` writes them anew. Others may be added
//! beside them.

use std::fs;
use std::path::PathBuf;

use pagoda_core::migrate::channel::Outbound;
use pagoda_core::migrate::frame::Body;
use pagoda_core::migrate::geometry::STRIPE_PAGES;
use pagoda_core::migrate::handshake::{Answer, Codec, Greeting, PROOF_BYTES, Refusal, VERSION};
use pagoda_core::migrate::reply::Reply;
use pagoda_linux::codec::pack::{self, BlockPacker};
use pagoda_linux::codec::zstd::{Compressor, DEFAULT_LEVEL};

use super::*;
use crate::testing::{KEY, PAGE, digest, eight_pages, extent, hello, packed};

/// An input of a target, and how far it gets.
struct Seed {
    target: &'static str,
    name: String,
    input: Vec<u8>,
    got: Got,
}

fn folder(target: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "../../fuzz/corpus", target].iter().collect()
}

fn feed(target: &str, input: &[u8]) -> Got {
    match target {
        "wire" => wire(input),
        "unpack" => unpack(input),
        "receive" => receive(input),
        other => panic!("there is no target {other}"),
    }
}

const TARGETS: [&str; 3] = ["wire", "unpack", "receive"];

/// A base page of 64 KiB as a store packs it.
fn store_packed() -> Vec<u8> {
    let digits = (0..8 * PAGE as u32).map(|i| b'0' + (i.wrapping_mul(2_654_435_761) >> 24) as u8 % 10);
    let content: Vec<u8> = (0..8 * PAGE).map(|i| (i / 9) as u8).chain(digits).collect();
    let mut into = vec![0; content.len()];
    let len = pack::pack(&content, &mut into, &mut BlockPacker::default()).expect("it packs");
    into.truncate(len);
    into
}

/// The same page as a store packs a cold page.
fn store_packed_whole() -> Vec<u8> {
    let content: Vec<u8> = (0..16 * PAGE).map(|i| (i / 9) as u8).collect();
    let mut into = vec![0; content.len()];
    let mut compressor = Compressor::new(content.len(), DEFAULT_LEVEL);
    let len = pack::pack_dense(&content, &mut into, &mut compressor).expect("it packs");
    into.truncate(len);
    into
}

/// A whole channel: of each kind a frame, of pages that belong to channel 0.
fn channel(codec: Codec) -> Vec<u8> {
    let (mut outbound, content) = (Outbound::default(), eight_pages());
    let mut says = packed(&mut outbound, codec, extent(0, 8), &content);
    let noise: Vec<u8> = (0..PAGE as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    says.extend(
        outbound.frame(Body::Stored { extent: extent(8, 1), digest: digest(extent(8, 1), &noise) }).encode(),
    );
    says.extend(noise);
    if codec != Codec::None {
        let packed = store_packed();
        let digest = KEY.block(&packed);
        let body = Body::Packed { extent: extent(16, 16), packed_bytes: packed.len() as u32, digest };
        says.extend(outbound.frame(body).encode());
        says.extend(packed);
        let packed = store_packed_whole();
        let digest = KEY.block(&packed);
        let body = Body::Packed { extent: extent(48, 16), packed_bytes: packed.len() as u32, digest };
        says.extend(outbound.frame(body).encode());
        says.extend(packed);
    }
    says.extend(outbound.frame(Body::Filled { extent: extent(64, 8), word: [7; 8] }).encode());
    says.extend(outbound.frame(Body::Zero { extent: extent(32, 8) }).encode());
    says.extend(outbound.sync().0.encode());
    // Zero after content, and the last page of the image, which is cut.
    says.extend(outbound.frame(Body::Zero { extent: extent(0, 4) }).encode());
    says.extend(outbound.frame(Body::Filled { extent: extent(1280, 1), word: [9; 8] }).encode());
    says.extend(outbound.sync().0.encode());
    says.extend(outbound.end().encode());
    says
}

/// A channel of frames about pages, and its end.
fn frames(bodies: &[Body]) -> Vec<u8> {
    let mut outbound = Outbound::default();
    let mut says: Vec<u8> = bodies.iter().flat_map(|body| outbound.frame(*body).encode()).collect();
    says.extend(outbound.sync().0.encode());
    says.extend(outbound.end().encode());
    says
}

fn seeds() -> Vec<Seed> {
    let mut all = Vec::new();
    let mut seed = |target, name: &str, input: Vec<u8>, got| {
        all.push(Seed { target, name: name.to_owned(), input, got });
    };
    let zero = |first, count| Body::Zero { extent: extent(first, count) };
    let owed = |first, count| Body::Owed { extent: extent(first, count) };
    let greeting = Greeting { version: VERSION, wants_token: true, nonce: [5; PROOF_BYTES] };
    seed("wire", "greeting", greeting.encode().to_vec(), Got::Somewhere);
    seed("wire", "taken", Answer::Taken { proof: [3; PROOF_BYTES] }.encode().to_vec(), Got::Somewhere);
    seed("wire", "refused", Answer::Refused(Refusal::Busy).encode().to_vec(), Got::Somewhere);
    seed("wire", "wanted", Reply::Wanted { page: 17 }.encode().to_vec(), Got::Somewhere);
    seed("wire", "hello", hello(Codec::Lz4, 2, 1).encode().to_vec(), Got::Somewhere);
    let with = |which: u8, says: Vec<u8>| [vec![which], says].concat();
    // A first byte that is even leaves the numbers as they are said; a third of it is the channel.
    seed("wire", "rounds", with(0, frames(&[zero(0, 8), owed(8, 4)])), Got::ToTheEnd);
    seed("wire", "numbered", with(1, frames(&[zero(0, 8), owed(8, 4)])), Got::ToTheEnd);
    seed("wire", "not-owned", with(0, frames(&[zero(8, 8), zero(512, 8)])), Got::Somewhere);
    let second = frames(&[zero(u64::from(STRIPE_PAGES), 8)]);
    seed("wire", "second-channel", with(2, second.clone()), Got::ToTheEnd);
    seed("wire", "asked", with(4, second), Got::Somewhere);

    let content = eight_pages();
    for (how, codec) in (0..).zip(Codec::ALL) {
        let mut into = vec![0; content.len()];
        let len = crate::wire::codec::Packer::new(codec).expect("memory").pack(&content, &mut into);
        // Of 8 pages, or of one more.
        let packed = &into[..len.unwrap_or(64)];
        let got = if len.is_some() { Got::ToTheEnd } else { Got::Nowhere };
        seed("unpack", &format!("{codec}"), [&[how, 7], packed].concat(), got);
        seed("unpack", &format!("{codec}-short"), [&[how, 8], packed].concat(), Got::Nowhere);
    }
    seed("unpack", "store", [&[4, 15], &store_packed()[..]].concat(), Got::ToTheEnd);
    seed("unpack", "store-short", [&[4, 14], &store_packed()[..]].concat(), Got::Nowhere);
    seed("unpack", "store-dense", vec![4, 3, 0xff, 0xff, 1, 2, 3], Got::Nowhere);
    seed("unpack", "store-whole", [&[4, 15], &store_packed_whole()[..]].concat(), Got::ToTheEnd);
    seed("unpack", "store-whole-short", [&[4, 14], &store_packed_whole()[..]].concat(), Got::Nowhere);

    for (at, codec) in (0..).zip(Codec::ALL) {
        let which = 4 * at;
        let input = |how| [vec![which, how], channel(codec)].concat();
        // As it is, under each policy.
        for zero in 0..3 {
            seed("receive", &format!("{codec}-{zero}"), input(2 * zero), Got::ToTheEnd);
        }
        let mut damaged = input(0);
        let last = damaged.len() - 400;
        damaged[last] ^= 1;
        seed("receive", &format!("{codec}-damaged"), damaged.clone(), Got::Somewhere);
        damaged.truncate(last);
        seed("receive", &format!("{codec}-cut"), damaged, Got::Somewhere);
    }
    let said = |which, how, bodies: &[Body]| [vec![which, how], frames(bodies)].concat();
    seed("receive", "owed", said(2, 0, &[zero(0, 4), owed(4, 4)]), Got::ToTheEnd);
    seed("receive", "owed-and-sent", said(2, 0, &[owed(4, 4), zero(4, 4)]), Got::Somewhere);
    seed("receive", "owed-without-leave", said(0, 0, &[zero(0, 4), owed(4, 4)]), Got::Somewhere);
    seed("receive", "beyond", said(0, 0, &[zero(0, 4), zero(1280, 2)]), Got::Somewhere);
    seed("receive", "not-owned", said(1, 0, &[zero(512, 4), zero(4, 4)]), Got::Somewhere);
    seed("receive", "mended", [vec![4, 1], channel(Codec::Lz4)].concat(), Got::ToTheEnd);
    seed("receive", "asked", said(3, 0, &[zero(512, 4), zero(4, 4)]), Got::ToTheEnd);
    let mut outbound = Outbound::default();
    let twice = [zero(0, 4), zero(3, 1)].map(|body| outbound.frame(body).encode()).concat();
    seed("receive", "asked-twice", [vec![3, 0], twice].concat(), Got::Somewhere);
    seed("receive", "nothing", vec![0, 0], Got::Nowhere);
    all
}

#[test]
fn every_input_of_the_corpora_is_taken_or_refused_and_nothing_worse() {
    for Seed { target, name, input, got } in seeds() {
        let path = folder(target).join(&name);
        if std::env::var_os("PAGODA_WRITE_CORPUS").is_some() {
            fs::create_dir_all(folder(target)).expect("made");
            fs::write(&path, &input).expect("written");
        }
        // A codec may pack the same content differently in another version; the existing files must
        // keep their meaning.
        let input = fs::read(&path).unwrap_or_else(|error| panic!("{target}/{name}: {error}"));
        assert_eq!(
            feed(target, &input),
            got,
            "{target}/{name}; if the protocol is another: PAGODA_WRITE_CORPUS=1"
        );
    }
    for target in TARGETS {
        for entry in fs::read_dir(folder(target)).expect("a corpus") {
            let path = entry.expect("an entry").path();
            eprintln!("{}", path.display());
            feed(target, &fs::read(&path).expect("read"));
        }
    }
}

#[test]
fn an_input_that_is_cut_anywhere_is_none_the_worse() {
    for Seed { target, input, .. } in seeds() {
        let step = (input.len() / 24).max(1);
        for len in (0..input.len()).step_by(step) {
            feed(target, &input[..len]);
        }
    }
}
