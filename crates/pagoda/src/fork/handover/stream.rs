//! The stream from a parent to its child: records of four words, some with the bytes of a page
//! behind them.
//!
//! A record has a kind, an address and a length. One of a range also has its offset into its first
//! entry, which differs where the program has moved it. Both sides are of one build on one machine,
//! and so the words are in its byte order. This module must never accept a record of an unknown
//! kind.

use std::io;

use pagoda_linux::process::offer::Stream;

/// The kind of a record of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(super) enum Kind {
    /// A range that the parent manages.
    Managed,
    /// A page as it is packed; its bytes follow.
    Packed,
    /// A page as it is; its bytes follow.
    Plain,
    /// The keys of the parent's file, if it is lent; they follow. Comes before all else.
    Keys,
    /// A page that lies in the parent's file and stays there. Its place and digest follow.
    Lent,
    End,
}

impl Kind {
    const ALL: [Self; 6] = [Self::Managed, Self::Packed, Self::Plain, Self::Keys, Self::Lent, Self::End];
}

const RECORD: usize = 4 * size_of::<u64>();

/// The head before the bytes of a page, or the record of a range.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    pub(super) kind: Kind,
    pub(super) address: usize,
    pub(super) len: usize,
    pub(super) skipped: usize,
}

impl Record {
    pub(super) fn send(self, stream: &Stream) -> io::Result<()> {
        let words = [self.kind as u64, self.address as u64, self.len as u64, self.skipped as u64];
        let mut record = [0; RECORD];
        for (to, word) in record.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        stream.send(&record)
    }

    pub(super) fn receive(stream: &Stream) -> io::Result<Self> {
        let mut record = [0; RECORD];
        stream.receive(&mut record)?;
        let word = |i: usize| u64::from_ne_bytes(record[i * 8..][..8].try_into().expect("8 bytes"));
        let kind = Kind::ALL.into_iter().find(|kind| *kind as u64 == word(0));
        let kind = kind.ok_or(io::ErrorKind::InvalidData)?;
        let [address, len, skipped] = [1, 2, 3].map(|i| word(i) as usize);
        Ok(Self { kind, address, len, skipped })
    }
}

/// A page, packed, plain or lent, whose content begins at `address`; or keys.
pub(super) fn send_page(stream: &Stream, kind: Kind, address: usize, bytes: &[u8]) -> io::Result<()> {
    Record { kind, address, len: bytes.len(), skipped: 0 }.send(stream)?;
    stream.send(bytes)
}
