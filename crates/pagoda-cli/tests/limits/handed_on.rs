//! Memory that the program puts into a pipe without copying it, and that is read there after its
//! frames were needed for other pages.

use std::io::Read;
use std::net::UdpSocket;

use pagoda_linux::testing::handed_on;

use crate::program::{PAGES_PER_MIB, fill, stamp, write};
use crate::run::begin;
use crate::support::memory::{Mapping, PAGE};

/// Three times the largest pipe of an ordinary user.
const PAGES: usize = 3 * PAGES_PER_MIB;

/// From outside.
pub fn is_right() -> Result<String, String> {
    let ended = begin(&[], &["-m", "32M"], &["handed-on"])?.end()?;
    ended.expect_success()?;
    let evictions = ended.counter("evictions")?;
    if evictions == 0 { Err("nothing was evicted".to_owned()) } else { Ok(format!("evictions {evictions}")) }
}

/// In the program: twice the budget is filled while the pipe is full, and the rest is put there as
/// it is read.
pub fn program() -> Result<(), String> {
    let told = |error: std::io::Error| error.to_string();
    let mut mapping = Mapping::new(PAGES).map_err(told)?;
    write(&mut mapping, 0..PAGES);
    let (reads, writes) = std::io::pipe().map_err(told)?;
    rustix::pipe::fcntl_setpipe_size(&writes, PAGES_PER_MIB * PAGE).map_err(|error| error.to_string())?;
    let memory = mapping.bytes(0..PAGES);
    // As much as there is room for, as the kernel does: there is no reader yet.
    let mut put = handed_on::to_pipe(&writes, memory).map_err(told)?;
    fill(60, |_| Ok(()))?;
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| check_read(reads));
        while put < memory.len() {
            put += handed_on::to_pipe(&writes, &memory[put..]).map_err(told)?;
        }
        reader.join().expect("it returns its fault")
    })?;
    check_sockets()
}

fn check_read(mut reads: impl Read) -> Result<(), String> {
    let mut page = [0; PAGE];
    for number in 0..PAGES {
        reads.read_exact(&mut page).map_err(|error| error.to_string())?;
        let words: Vec<u64> = page.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word)).collect();
        if let Some(wrong) = stamp(number).wrong(&words) {
            return Err(format!("page {number} in the pipe: {wrong}"));
        }
    }
    Ok(())
}

/// Nor is memory handed on to sockets.
fn check_sockets() -> Result<(), String> {
    let socket = UdpSocket::bind("127.0.0.1:0").map_err(|error| error.to_string())?;
    match handed_on::by_socket(&socket) {
        Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => Ok(()),
        other => Err(format!("SO_ZEROCOPY is refused in another way: {other:?}")),
    }
}
