//! Either side is killed at any byte of the transfer, by a line between them that holds still there.
//!
//! `PAGODA_RUNS` says how many times (50, and 1,000 for a thorough run), `PAGODA_SEED` repeats one of them.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::pair::{Place, Side, ended, mix};

/// What passes from the sender to the receiver: all of it up to a byte, and the rest when it is released.
struct Line {
    left: Mutex<u64>,
    passed: AtomicU64,
    held: AtomicBool,
    released: AtomicBool,
}

impl Line {
    /// A line to `port` that holds still after `bytes`, and its own port.
    fn to(port: u16, bytes: u64) -> (Arc<Self>, u16) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let own = listener.local_addr().expect("an address").port();
        let line = Arc::new(Self {
            left: Mutex::new(bytes),
            passed: AtomicU64::new(0),
            held: AtomicBool::new(false),
            released: AtomicBool::new(false),
        });
        let shared = Arc::clone(&line);
        thread::spawn(move || {
            for sender in listener.incoming() {
                let (Ok(sender), Ok(receiver)) = (sender, TcpStream::connect(("127.0.0.1", port))) else {
                    return;
                };
                let (back_from, back_to) = (receiver.try_clone(), sender.try_clone());
                let (Ok(mut back_from), Ok(mut back_to)) = (back_from, back_to) else { return };
                thread::spawn(move || {
                    let _ = std::io::copy(&mut back_from, &mut back_to);
                    let _ = back_to.shutdown(Shutdown::Both);
                });
                let shared = Arc::clone(&shared);
                thread::spawn(move || shared.forward(sender, receiver));
            }
        });
        (line, own)
    }

    fn forward(&self, mut from: TcpStream, mut to: TcpStream) {
        let mut buffer = [0; 16 << 10];
        while let Ok(len @ 1..) = from.read(&mut buffer) {
            let may = {
                let mut left = self.left.lock().expect("no panic");
                let may = (len as u64).min(*left);
                *left -= may;
                may as usize
            };
            self.passed.fetch_add(len as u64, Ordering::Relaxed);
            if to.write_all(&buffer[..may]).is_err() {
                break;
            }
            if may < len {
                self.held.store(true, Ordering::Release);
                while !self.released.load(Ordering::Acquire) {
                    thread::sleep(Duration::from_millis(1));
                }
                if to.write_all(&buffer[may..len]).is_err() {
                    break;
                }
            }
        }
        let _ = to.shutdown(Shutdown::Write);
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn start(place: &Place, hold_after: u64) -> (Side, Side, Arc<Line>) {
    let mut receiver = place.receiver(&[]);
    let port = receiver.address().rsplit_once(':').and_then(|(_, port)| port.parse().ok()).expect("a port");
    let (line, port) = Line::to(port, hold_after);
    let to = format!("tcp://127.0.0.1:{port}");
    (Side::start(&["send", &place.path("image"), &to]), receiver, line)
}

#[test]
fn a_side_that_is_killed_leaves_the_image_intact_and_no_half_of_it() {
    let whole = Place::new(0);
    let (mut sender, mut receiver, line) = start(&whole, u64::MAX);
    assert_eq!((ended(&mut sender).0, ended(&mut receiver).0), (Some(0), Some(0)));
    let total = line.passed.load(Ordering::Relaxed);
    let seeds = match number("PAGODA_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("PAGODA_RUNS").unwrap_or(50),
    };
    let mut arrived = 0;
    for seed in seeds {
        let place = Place::new(0);
        // Anywhere, or where the channels end and the image gets its name; a line that never holds still is killed at once.
        let at = if seed % 4 < 2 { mix(seed) % total } else { total + 20 - mix(seed) % 400 };
        let (mut sender, mut receiver, line) = start(&place, at);
        let until = Instant::now() + Duration::from_secs(30);
        let is_over = |side: &mut Side| side.child.try_wait().expect("a child").is_some();
        while !(line.held.load(Ordering::Acquire) || is_over(&mut sender) && is_over(&mut receiver)) {
            assert!(
                Instant::now() < until,
                "PAGODA_SEED={seed}: it stands still, after {at} of {total} bytes"
            );
            thread::sleep(Duration::from_micros(200));
        }
        let kill_sender = seed % 2 == 0;
        let killed = if kill_sender { &mut sender } else { &mut receiver };
        killed.child.kill().expect("killed");
        line.released.store(true, Ordering::Release);
        let (sent, received) = (ended(&mut sender), ended(&mut receiver));
        let context = format!("PAGODA_SEED={seed}, after {at} of {total} bytes: {sent:?}, {received:?}");
        assert!(place.is_intact(), "{context}");
        let is_there = place.names() == ["arrived", "image"];
        if is_there {
            arrived += 1;
            assert!(place.is_equal(), "{context}");
        } else {
            assert_eq!(place.names(), ["image"], "{context}");
        }
        // Whoever says that all went well is right, and whoever failed says so in one line that helps.
        for (status, said) in [sent, received] {
            match status {
                Some(0) => assert!(is_there, "{context}"),
                Some(status) => {
                    let last = said.lines().last().unwrap_or_default();
                    assert!(
                        status == 125 && last.starts_with("pagoda: could not ") && last.contains(';'),
                        "{context}"
                    );
                }
                None => {}
            }
        }
    }
    println!("{arrived} arrived all the same");
}
