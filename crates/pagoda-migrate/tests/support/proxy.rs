//! A line between both sides that does one thing wrong, at one byte of one channel. It knows
//! nothing of the protocol.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use pagoda_migrate::Endpoint;

/// The fault of the bytes of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// The connection ends there.
    Cut,
    /// Nothing more comes, without an end of file.
    Silence,
    /// One bit is flipped.
    Flip,
    /// Some bytes are missing.
    Lose,
    /// Some bytes come twice.
    Double,
    /// Two pieces come the wrong way round.
    Swap,
    /// There is a pause, shorter than the stall.
    Pause,
}

pub const FAULTS: [Fault; 6] =
    [Fault::Cut, Fault::Silence, Fault::Flip, Fault::Lose, Fault::Double, Fault::Swap];

/// Where: the channel, by the order of connections, and the byte of its sender's stream; or of its
/// receiver's.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub fault: Fault,
    pub channel: usize,
    pub at: usize,
    pub is_of_the_receiver: bool,
}

/// How long a line that fell silent is kept open.
const SILENCE: Duration = Duration::from_secs(3);

/// A line to `to`; the threads end with its connections.
pub fn line(to: &Endpoint, plan: Plan) -> Endpoint {
    counted_line(to, Some(plan)).0
}

/// A line, and the number of its connections so far.
pub fn counted_line(to: &Endpoint, plan: Option<Plan>) -> (Endpoint, Arc<AtomicUsize>) {
    let count = Arc::<AtomicUsize>::default();
    let counted = Arc::clone(&count);
    let Endpoint::Tcp { host, port } = to.clone() else { panic!("a line is of TCP") };
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port_here = listener.local_addr().expect("an address").port();
    thread::spawn(move || {
        for (channel, sender) in listener.incoming().enumerate() {
            let Ok(sender) = sender else { return };
            counted.fetch_add(1, Ordering::SeqCst);
            let Ok(receiver) = TcpStream::connect((host.as_str(), port)) else { return };
            let _ = (sender.set_nodelay(true), receiver.set_nodelay(true));
            let (back_from, back_to) =
                (receiver.try_clone().expect("a handle"), sender.try_clone().expect("a handle"));
            let plan = plan.filter(|plan| channel == plan.channel);
            let (back, there): (Option<Plan>, Option<Plan>) = match plan {
                Some(plan) if plan.is_of_the_receiver => (Some(plan), None),
                plan => (None, plan),
            };
            thread::spawn(move || forward(back_from, back_to, back));
            thread::spawn(move || forward(sender, receiver, there));
        }
    });
    (Endpoint::Tcp { host: "127.0.0.1".to_owned(), port: port_here }, count)
}

fn forward(mut from: TcpStream, mut to: TcpStream, plan: Option<Plan>) {
    const PIECE: usize = 64;
    let mut buffer = vec![0; 64 << 10];
    let mut passed = 0;
    // Bytes that wait for a fault's whole piece.
    let mut held: Vec<u8> = Vec::new();
    let mut done = plan.is_none();
    loop {
        let len = match from.read(&mut buffer) {
            Ok(0) | Err(_) => break,
            Ok(len) => len,
        };
        held.extend_from_slice(&buffer[..len]);
        if let Some(plan) = plan.filter(|_| !done) {
            // At the end of the stream the piece may never get whole; then it goes as it is.
            let needed = plan.at + 2 * PIECE;
            if passed + held.len() > plan.at && (passed + held.len() >= needed || len < PIECE) {
                let at = plan.at - passed;
                let end = held.len().min(at + PIECE);
                match plan.fault {
                    Fault::Cut => {
                        let _ = to.write_all(&held[..at]);
                        break;
                    }
                    Fault::Silence => {
                        let _ = to.write_all(&held[..at]);
                        thread::sleep(SILENCE);
                        break;
                    }
                    Fault::Pause => thread::sleep(Duration::from_millis(300)),
                    Fault::Flip => held[at] ^= 0x10,
                    Fault::Lose => drop(held.drain(at..end)),
                    Fault::Double => {
                        let piece = held[at..end].to_vec();
                        held.splice(at..at, piece);
                    }
                    Fault::Swap => {
                        let other = held.len().min(end + PIECE);
                        held[at..other].rotate_left(end - at);
                    }
                }
                done = true;
            } else if passed + held.len() > plan.at {
                continue;
            }
        }
        passed += held.len();
        if to.write_all(&held).is_err() {
            break;
        }
        held.clear();
    }
    let _ = to.write_all(&held);
    let _ = to.shutdown(Shutdown::Write);
    // The receiver's last messages have to pass.
    let until = Instant::now() + Duration::from_secs(1);
    while Instant::now() < until && from.read(&mut buffer).is_ok_and(|len| len > 0) {}
    let _ = from.shutdown(Shutdown::Read);
}
