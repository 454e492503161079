//! A line between both sides of a migration that holds still at a byte, so that one of them can be
//! killed just there.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// The line from the sender to the receiver: it passes all bytes up to one, and the rest when it is
/// released.
pub struct Line {
    /// Bytes that still pass.
    pub left: Mutex<u64>,
    pub passed: AtomicU64,
    pub held: AtomicBool,
    pub released: AtomicBool,
}

impl Line {
    /// A line to the receiver at this address, as [`Line::to`], and the address of its own end.
    pub fn behind(address: &str, bytes: u64) -> (Arc<Self>, String) {
        let port = address.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).expect("a port");
        let (line, port) = Self::to(port, bytes);
        (line, format!("tcp://127.0.0.1:{port}"))
    }

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
