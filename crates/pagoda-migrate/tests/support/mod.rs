//! Shared by the tests: random images with holes, and whole transfers between two threads.

#![allow(dead_code, reason = "each of the tests uses its own part")]

pub mod authority;
pub mod proxy;
pub mod shared_file;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use pagoda_core::size::Bytes;
use pagoda_linux::testing::directory::names;
use pagoda_linux::testing::random::Random;
use pagoda_migrate::{
    Counts, Destination, Endpoint, Error, ImageDestination, ImageSource, Listener, ReceiveOptions,
    SendOptions, receive, send,
};
use tempfile::TempDir;

/// Long enough for a busy machine where nothing should stall.
pub const STALL: Duration = Duration::from_secs(20);

/// Bytes of which every third page can't be packed, and the others can.
fn content(random: &mut Random, len: usize) -> Vec<u8> {
    (0..len).map(|i| if i / 4096 % 3 == 0 { random.next() as u8 } else { (i / 11) as u8 }).collect()
}

/// A directory with an image in it, and the files that a test puts beside it.
pub struct Place {
    pub directory: TempDir,
    pub size: u64,
}

impl Place {
    /// An image of `size` bytes with extents of data, zeroes and words between holes.
    pub fn with_image(seed: u64, size: u64) -> Self {
        // On a disk: not every tmpfs has holes that can be seen.
        let place = Self { directory: tempfile::tempdir_in("/var/tmp").expect("a directory"), size };
        let mut random = Random::new(seed, 0);
        let file = File::create(place.image()).expect("an image");
        file.set_len(size).expect("a length");
        for _ in 0..size / (256 << 10) {
            let at = random.below(size as usize) as u64;
            let len = (1 + random.below(96 << 10)).min((size - at) as usize);
            // Dense data begins on a page; other data anywhere.
            let at = if random.below(2) == 0 { at / 4096 * 4096 } else { at };
            let bytes = match random.below(4) {
                0 => vec![0; len],
                1 => {
                    let word = random.next().to_le_bytes();
                    word.into_iter().cycle().take(len).collect()
                }
                _ => content(&mut random, len),
            };
            file.write_all_at(&bytes, at).expect("written");
        }
        place
    }

    pub fn image(&self) -> PathBuf {
        self.directory.path().join("image")
    }
    pub fn arrived(&self) -> PathBuf {
        self.directory.path().join("arrived")
    }

    /// Whether the arrived file equals the image.
    pub fn is_equal(&self) -> bool {
        fs::read(self.image()).expect("read") == fs::read(self.arrived()).expect("read")
    }

    /// The names of all files: the image alone if nothing was kept.
    pub fn names(&self) -> Vec<String> {
        names(self.directory.path())
    }
}

pub fn send_options() -> SendOptions {
    SendOptions { stall: STALL, ..SendOptions::default() }
}

pub fn receive_options() -> ReceiveOptions {
    ReceiveOptions { image_most: Bytes::gib(4), wait: STALL, stall: STALL, ..ReceiveOptions::default() }
}

pub fn any_port() -> Endpoint {
    "127.0.0.1:0".parse().expect("an address")
}

/// The outcome of a transfer.
pub type Outcome = (Result<Counts, Error>, Result<Counts, Error>);

/// Sends an image to a destination; `route` maps the listener's address to the one that the sender
/// uses. A refusal by the receiver ends it, with that error.
pub fn transfer_to(
    image: &Path,
    destination: &mut dyn Destination,
    at: &Endpoint,
    sending: &SendOptions,
    receiving: &ReceiveOptions,
    route: impl FnOnce(Endpoint) -> Endpoint,
) -> Outcome {
    let listener = Listener::bind(at).expect("a listener");
    let to = listener.endpoint().expect("an address");
    thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            let mut turned = None;
            let received = receive(listener, destination, receiving, &mut |event| match event {
                pagoda_migrate::Event::Turned(error) => {
                    turned = Some(error.to_string());
                    ControlFlow::Break(())
                }
                _ => ControlFlow::Continue(()),
            });
            match turned {
                Some(text) => Err(Error::Tls(text)),
                None => received,
            }
        });
        let source = ImageSource::open(image).expect("an image");
        let sent = send(&source, &route(to), sending, &mut |_| ControlFlow::Continue(()));
        (sent, receiver.join().expect("the receiver"))
    })
}

/// The same, to the file beside the image.
pub fn transfer(place: &Place, sending: &SendOptions, receiving: &ReceiveOptions) -> Outcome {
    let mut destination = ImageDestination::new(place.arrived()).expect("nothing is there");
    transfer_to(&place.image(), &mut destination, &any_port(), sending, receiving, |to| to)
}

/// How often each value occurs.
pub fn tally<T: Ord>(values: impl IntoIterator<Item = T>) -> BTreeMap<T, usize> {
    let mut counts = BTreeMap::new();
    values.into_iter().for_each(|value| *counts.entry(value).or_default() += 1);
    counts
}
