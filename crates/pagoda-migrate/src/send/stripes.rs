//! The content of a channel's stripes: finds the data between holes, reads it, and tells zero and
//! filled pages from content.
//!
//! Holes are never read and never sent: a page that no frame names is zero at the receiver. A
//! stripe that the receiver has of an earlier transfer is only read, and named if it is the same.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::ops::Range;

use pagoda_core::migrate::digest::{BLOCKS, KnownBlocks};
use pagoda_core::migrate::geometry::{Extent, STRIPE_BYTES};
use pagoda_core::page::OS_PAGE;
use pagoda_core::size::Bytes;
use pagoda_linux::mem::zero_scan::repeated_word;

use crate::error::Error;
use crate::send::source::Source;
use crate::wire::frame_writer::Outlet;
use crate::wire::stripe_digest::{StripeDigest, stripe_digest};

const PAGE: u64 = OS_PAGE as u64;

/// Sends all stripes of the outlet's channel.
pub(crate) fn send_all(
    source: &dyn Source,
    outlet: &mut Outlet<'_>,
    offered: &BTreeMap<u64, StripeDigest>,
) -> Result<(), Error> {
    let geometry = outlet.geometry();
    let size = geometry.image().get();
    let mut room = vec![0; STRIPE_BYTES];
    // The first data that was not passed yet; it may begin in another channel's stripe.
    let mut data = 0..0;
    for first_page in geometry.stripes_of(outlet.channel()) {
        outlet.check()?;
        let stripe = first_page * PAGE..size.min(first_page * PAGE + STRIPE_BYTES as u64);
        let mut at = stripe.start;
        if let Some(digest) = offered.get(&first_page) {
            let content = &mut room[..(stripe.end - stripe.start) as usize];
            read(source, stripe.start, content)?;
            if stripe_digest(content) == *digest {
                outlet.kept(first_page, stripe.end.div_ceil(PAGE))?;
                at = stripe.end;
            }
        }
        while at < stripe.end {
            if data.end <= at {
                let found = source.data_in(at..size).map_err(Error::Source)?;
                // Without any there is nothing up to the end: no need to ask again.
                data = found.unwrap_or(u64::MAX..u64::MAX);
            }
            let from = at.max(data.start / PAGE * PAGE);
            if from >= stripe.end {
                break;
            }
            let to = data.end.min(stripe.end).next_multiple_of(PAGE);
            piece(source, outlet, from..to, &mut room)?;
            at = to;
        }
        outlet.done(Bytes::new(stripe.end - stripe.start));
        // A sign of life for the receiver when there is little to send.
        outlet.flush()?;
    }
    Ok(())
}

/// Sends pages of one stripe, all of which may have content.
fn piece(
    source: &dyn Source,
    outlet: &mut Outlet<'_>,
    bytes: Range<u64>,
    room: &mut [u8],
) -> Result<(), Error> {
    let len = (bytes.end - bytes.start) as usize;
    let in_image = (bytes.end.min(outlet.geometry().image().get()) - bytes.start) as usize;
    read(source, bytes.start, &mut room[..in_image])?;
    room[in_image..len].fill(0);
    send_pages(outlet, bytes.start / PAGE, &room[..len], &[None; BLOCKS])
}

fn read(source: &dyn Source, offset: u64, into: &mut [u8]) -> Result<(), Error> {
    source.read_at(offset, into).map_err(|error| match error.kind() {
        // It was cut off.
        ErrorKind::UnexpectedEof => Error::SourceChanged,
        _ => Error::Source(error),
    })
}

/// Sends pages of one stripe, from `first` on, each as zero, filled or content. The digests of some
/// of its blocks are `known`.
pub(crate) fn send_pages(
    outlet: &mut Outlet<'_>,
    first: u64,
    content: &[u8],
    known: &KnownBlocks,
) -> Result<(), Error> {
    let pages: Vec<Option<[u8; 8]>> = content.chunks(OS_PAGE).map(repeated_word).collect();
    let mut from = 0;
    for run in pages.chunk_by(|one, next| one == next) {
        let Some(extent) = Extent::new(first + from as u64, run.len() as u32) else { break };
        match run[0] {
            Some(word) => outlet.repeated(extent, word)?,
            None => outlet.content(extent, &content[from * OS_PAGE..(from + run.len()) * OS_PAGE], known)?,
        }
        from += run.len();
    }
    Ok(())
}
