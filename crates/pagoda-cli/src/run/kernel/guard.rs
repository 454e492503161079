//! The guard of a run by the kernel's swap: a process that undoes the run if pagoda is killed.
//!
//! It also adds the run's zram devices, and notes them: a SIGKILL of pagoda can't come between the
//! two. Both processes have the note's lock, so that no other run takes the note before all is
//! undone. Where the guard is killed as well, the next run undoes what the note names; an empty
//! device that was not noted yet stays. This module must never undo a run whose pagoda still runs.

use std::fmt::Display;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use pagoda_linux::process::detached;
use pagoda_linux::swap::zram::{self, DeviceId};
use rustix::net::{SendFlags, send};

use super::note::{self, Note};

/// The longest wait for a device: far more than the module takes to load.
const ANSWER_TIME: Duration = Duration::from_secs(10);

/// The guard. It ends with this value, or with the process that has it.
pub struct Guard {
    channel: BufReader<UnixStream>,
}

impl Guard {
    /// Starts it. This process has to have one thread only.
    pub fn start(note: &Note) -> io::Result<Self> {
        let (own, other) = UnixStream::pair()?;
        own.set_read_timeout(Some(ANSWER_TIME))?;
        detached::leave_behind(&[other.as_raw_fd(), note.file().as_raw_fd()], || guard(&other, note))?;
        Ok(Self { channel: BufReader::new(own) })
    }

    /// Has it add a zram device. The note names the device already.
    pub fn add_zram(&mut self) -> io::Result<DeviceId> {
        // A SIGPIPE would be passed on to the program.
        send(self.channel.get_ref(), &[0], SendFlags::NOSIGNAL)?;
        let mut answer = String::new();
        self.channel.read_line(&mut answer)?;
        let answer = answer.trim();
        parse(answer).ok_or_else(|| match answer {
            "" => io::Error::other("the process that adds zram devices was ended"),
            error => io::Error::other(error.to_owned()),
        })
    }
}

fn answer(added: Result<DeviceId, impl Display>) -> String {
    match added {
        Ok(id) => format!("{} {}\n", id.number, id.sequence),
        Err(error) => format!("{error}\n"),
    }
}

fn parse(answer: &str) -> Option<DeviceId> {
    let (number, sequence) = answer.split_once(' ')?;
    Some(DeviceId { number: number.parse().ok()?, sequence: sequence.parse().ok()? })
}

/// The body of the guard. Its end of the channel closes with the last thread of pagoda.
fn guard(mut channel: &UnixStream, note: &Note) {
    while channel.read_exact(&mut [0]).is_ok() {
        let noted = |id| {
            let noted = note.zram(id).map(|()| id);
            // It is empty, whatever its owner.
            noted.inspect_err(|_| drop(zram::remove_left(id, note::label(), 0)))
        };
        let added = zram::add().and_then(noted);
        if channel.write_all(answer(added).as_bytes()).is_err() {
            break;
        }
    }
    note.undo();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_a_device_or_an_error() {
        let id = DeviceId { number: 3, sequence: 41 };
        assert_eq!(parse(answer(Ok::<_, io::Error>(id)).trim()), Some(id));
        assert_eq!(parse(answer(Err("adding a zram device: no")).trim()), None);
    }
}
