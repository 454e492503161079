//! A peer's packed bytes: nothing panics, nothing is written beyond the output, and a part equals
//! the same part of the whole.

use pagoda_core::migrate::handshake::Codec;
use pagoda_linux::codec::pack::{self, PageUnpacker};

use super::Got;
use crate::wire::codec::Unpacker;

/// The most pages that it is asked to unpack to: those of a base page of 64 KiB.
const PAGES_MOST: usize = 16;

/// The bytes behind the output, which must stay.
const BEYOND: [u8; 64] = [0xa5; 64];

/// The first byte of the input chooses the codec, or a store's packing, and the second the output
/// length; the rest is packed.
pub fn unpack(input: &[u8]) -> Got {
    let [how, pages, packed @ ..] = input else { return Got::Nowhere };
    let len = (usize::from(*pages) % PAGES_MOST + 1) * pack::BLOCK;
    let mut room = vec![0; len + BEYOND.len()];
    room[len..].copy_from_slice(&BEYOND);
    let codecs = Codec::ALL.len();
    let unpacked = match Codec::ALL.get(usize::from(*how) % (codecs + 1)) {
        Some(codec) => {
            // Twice: by a context that is fresh, and by one that has seen it.
            let mut unpacker = Unpacker::new(*codec).expect("memory");
            let first = unpacker.unpack(packed, &mut room[..len]);
            let mut again = vec![0; len];
            assert_eq!(unpacker.unpack(packed, &mut again), first, "{codec}");
            assert!(first.is_none() || again == room[..len], "{codec}");
            first
        }
        None => {
            let mut unpacker = PageUnpacker::default();
            let whole = unpacker.unpack(packed, &mut room[..len]);
            let has_parts = whole.is_some() && !pack::is_dense(packed);
            for at in (0..len).step_by(pack::BLOCK).filter(|_| has_parts) {
                let part = &mut [0; pack::BLOCK];
                unpacker.unpack_part(packed, len, at, part).expect("the whole was unpacked");
                assert!(part[..] == room[at..at + pack::BLOCK], "{at} of {len}");
            }
            whole
        }
    };
    assert_eq!(room[len..], BEYOND);
    if unpacked.is_some() { Got::ToTheEnd } else { Got::Nowhere }
}
