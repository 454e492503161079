//! The messages between the supervisor and its handler: 16 bytes each, some with descriptors.
//!
//! Both are this program, of one build. Neither waits for room: what can't be sent now is sent with
//! the next tick.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use pagoda_linux::io::local_socket::{self, Received};

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// To the handler: serve this guest. With its connection and its record.
    Serve(u64),
    /// To the handler: give every guest all of its memory, then end.
    Drain,
    /// From the handler: it is not stuck.
    Alive,
    /// From the handler: this guest needs nothing more.
    Ended(u64),
}

const BYTES: usize = 16;

impl Message {
    fn encode(self) -> [u8; BYTES] {
        let (kind, guest) = match self {
            Self::Serve(guest) => (1, guest),
            Self::Drain => (2, 0),
            Self::Alive => (3, 0),
            Self::Ended(guest) => (4, guest),
        };
        let mut bytes = [0; BYTES];
        bytes[..8].copy_from_slice(&u64::to_le_bytes(kind));
        bytes[8..].copy_from_slice(&guest.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (kind, guest) = bytes.split_first_chunk::<8>()?;
        let guest = u64::from_le_bytes(guest.try_into().ok()?);
        match u64::from_le_bytes(*kind) {
            1 => Some(Self::Serve(guest)),
            2 => Some(Self::Drain),
            3 => Some(Self::Alive),
            4 => Some(Self::Ended(guest)),
            _ => None,
        }
    }

    /// Sends it; false if there is no room now.
    pub(crate) fn send(self, to: &OwnedFd, descriptors: &[BorrowedFd<'_>]) -> io::Result<bool> {
        local_socket::send(to, &self.encode(), descriptors)
    }
}

/// The outcome of a read of the channel.
#[derive(Debug)]
pub(crate) enum Came {
    /// A message with its descriptors.
    Message(Message, Vec<OwnedFd>),
    /// Nothing more for now.
    Nothing,
    /// The other side has ended.
    End,
}

/// Takes the next message.
pub(crate) fn receive(from: &OwnedFd) -> Came {
    let mut buffer = [0; BYTES];
    match local_socket::receive(from, &mut buffer) {
        Ok(None) => Came::Nothing,
        Ok(Some(Received { bytes, descriptors })) => match Message::decode(&buffer[..bytes]) {
            Some(message) => Came::Message(message, descriptors),
            None => Came::End,
        },
        Err(_) => Came::End,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_comes_as_it_was_sent() {
        let (one, other) = local_socket::pair().expect("a pair");
        for message in [Message::Serve(7), Message::Drain, Message::Alive, Message::Ended(u64::MAX)] {
            assert!(message.send(&one, &[]).expect("sent"));
            assert!(matches!(receive(&other), Came::Message(came, _) if came == message));
        }
        assert!(matches!(receive(&other), Came::Nothing));
        drop(one);
        assert!(matches!(receive(&other), Came::End));
    }
}
