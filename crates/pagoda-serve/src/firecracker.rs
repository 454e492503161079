//! Firecracker's message: which memory of its process is which part of the snapshot.
//!
//! One JSON array comes over the connection, with the userfaultfd beside it:
//! `[{"base_host_virt_addr":…,"size":…,"offset":…,"page_size":…,"page_size_kib":…}]`, all in bytes.
//! The last one has the wrong name: Firecracker 1.7 to 1.11 send it alone, later ones both. The
//! sender is not trusted: a message is bounded in length, and its regions may not overlap or leave
//! the image. This module must never take a message from the connection: a handler that comes after
//! this one looks at it again.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use pagoda_core::page::OS_PAGE;
use pagoda_linux::io::local_socket::{Awaited, peek, wait_any};
use pagoda_linux::mem::range::PageRange;
use pagoda_linux::uffd::foreign::ForeignUffd;
use serde::Deserialize;

/// The longest message. A region takes about 130 bytes, so it has some 250 of them. Firecracker
/// sends two, and one for each part of hotplugged memory. The kernel keeps so much in one piece: a
/// look sees no further than the piece that the descriptor came with.
pub const MESSAGE_BYTES_MOST: usize = 32 << 10;

/// How long a connection may be silent before its message.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// Between two looks at a message that is not whole.
const PAUSE: Duration = Duration::from_millis(10);

/// A huge page of hugetlbfs, the one other page size that Firecracker knows.
const HUGE: u64 = 2 << 20;

/// Why a connection can't be served.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// Nothing came, or not all of it.
    #[error("no whole message came within {} s; connect only when the snapshot is loaded", PATIENCE.as_secs())]
    Silent,
    /// It ended before its message was whole.
    #[error("it closed before its message was whole")]
    Closed,
    /// There is too much of it.
    #[error("its message is longer than {} KiB", MESSAGE_BYTES_MOST >> 10)]
    TooLong,
    /// It is no message of this protocol.
    #[error("its message is not Firecracker's: {0}")]
    NotJson(serde_json::Error),
    /// Its regions can't be served.
    #[error("region {region} of its message {why}")]
    Region {
        /// Which, from 0.
        region: usize,
        /// Why not.
        why: &'static str,
    },
    /// There is no region in it.
    #[error("its message has no region")]
    Empty,
    /// No userfaultfd came with it.
    #[error("no userfaultfd came with its message")]
    NoDescriptor,
    /// The connection failed.
    #[error("it failed ({0})")]
    Failed(std::io::Error),
}

/// One region as it is sent.
#[derive(Deserialize)]
struct Mapping {
    base_host_virt_addr: u64,
    size: u64,
    offset: u64,
    page_size: Option<u64>,
    page_size_kib: Option<u64>,
}

/// A range of the peer's memory, and its part of the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Where it is in the peer's address space.
    pub range: PageRange,
    /// Where its content begins in the image, in bytes.
    pub offset: u64,
    /// What a fill takes at least, in bytes: 4 KiB, or 2 MiB.
    pub page_bytes: usize,
}

/// All regions of a peer, by address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Regions(Vec<Region>);

impl Regions {
    /// The regions of a message, for an image of `len_bytes`.
    ///
    /// # Errors
    /// Each that is not of the protocol, overlaps another or leaves the image.
    pub fn parse(message: &[u8], len_bytes: u64) -> Result<Self, Refusal> {
        let mappings: Vec<Mapping> = serde_json::from_slice(message).map_err(Refusal::NotJson)?;
        let region = |(at, mapping): (usize, &Mapping)| {
            region_of(mapping, len_bytes).map_err(|why| Refusal::Region { region: at, why })
        };
        let regions: Vec<Region> = mappings.iter().enumerate().map(region).collect::<Result<_, _>>()?;
        if regions.is_empty() {
            return Err(Refusal::Empty);
        }
        let overlap = |by: fn(&Region) -> (u64, u64), why| {
            let mut order: Vec<usize> = (0..regions.len()).collect();
            order.sort_by_key(|&at| by(&regions[at]));
            let bad = order.windows(2).find(|pair| by(&regions[pair[0]]).1 > by(&regions[pair[1]]).0);
            bad.map_or(Ok(()), |pair| Err(Refusal::Region { region: pair[1], why }))
        };
        overlap(|region| (region.range.start() as u64, region.range.end() as u64), "overlaps another one")?;
        overlap(
            |region| (region.offset, region.offset + region.range.len() as u64),
            "has another one's content",
        )?;
        let mut regions = regions;
        regions.sort_by_key(|region| region.range);
        Ok(Self(regions))
    }

    /// The region that has this address.
    #[must_use]
    pub fn at(&self, address: usize) -> Option<&Region> {
        let after = self.0.partition_point(|region| region.range.start() <= address);
        self.0[..after].last().filter(|region| region.range.contains(address))
    }

    /// All of them, by address.
    pub fn iter(&self) -> impl Iterator<Item = &Region> {
        self.0.iter()
    }

    /// The sum of their lengths, in bytes: at most the image's.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.iter().map(|region| region.range.len() as u64).sum()
    }
}

fn region_of(mapping: &Mapping, len_bytes: u64) -> Result<Region, &'static str> {
    let page_bytes = match (mapping.page_size, mapping.page_size_kib) {
        (Some(one), Some(other)) if one != other => return Err("has two page sizes"),
        (Some(bytes), _) | (None, Some(bytes)) => bytes,
        (None, None) => return Err("has no page size"),
    };
    if page_bytes != OS_PAGE as u64 && page_bytes != HUGE {
        return Err("has a page size other than 4096 and 2097152 bytes");
    }
    let aligned = |bytes: u64, to| bytes.is_multiple_of(to);
    if !aligned(mapping.base_host_virt_addr, page_bytes)
        || !aligned(mapping.size, page_bytes)
        || !aligned(mapping.offset, OS_PAGE as u64)
    {
        return Err("is not aligned to its pages");
    }
    if mapping.offset.checked_add(mapping.size).is_none_or(|end| end > len_bytes) {
        return Err("ends beyond the image");
    }
    let end = mapping.base_host_virt_addr.checked_add(mapping.size);
    let range = end.and_then(|end| {
        PageRange::new(usize::try_from(mapping.base_host_virt_addr).ok()?, usize::try_from(end).ok()?)
    });
    let range = range.ok_or("is empty, or ends beyond the address space")?;
    Ok(Region { range, offset: mapping.offset, page_bytes: page_bytes as usize })
}

/// Looks at the message of a new connection, for [`PATIENCE`] at most.
///
/// # Errors
/// Why it can't be served.
pub fn look(line: &OwnedFd, len_bytes: u64) -> Result<(ForeignUffd, Regions), Refusal> {
    let until = Instant::now() + PATIENCE;
    let mut buffer = vec![0; MESSAGE_BYTES_MOST + 1];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Refusal::Silent);
        }
        let Some(seen) = peek(line, &mut buffer).map_err(Refusal::Failed)? else {
            let left_us = u32::try_from(left.as_micros()).unwrap_or(u32::MAX);
            wait_any([(line.as_fd(), Awaited::Input)], left_us);
            continue;
        };
        match Regions::parse(&buffer[..seen.bytes], len_bytes) {
            Ok(regions) => {
                let mut descriptors = seen.descriptors.into_iter();
                let uffd = descriptors.find_map(|descriptor| ForeignUffd::new(descriptor).ok());
                return Ok((uffd.ok_or(Refusal::NoDescriptor)?, regions));
            }
            Err(_) if seen.bytes == 0 => return Err(Refusal::Closed),
            Err(_) if seen.bytes > MESSAGE_BYTES_MOST => return Err(Refusal::TooLong),
            // More of it may be on its way, unless its sender has ended.
            Err(Refusal::NotJson(error)) if error.is_eof() => {
                let [ready] = wait_any([(line.as_fd(), Awaited::End)], PAUSE.as_micros() as u32);
                if ready.now {
                    return Err(Refusal::Closed);
                }
            }
            Err(refusal) => return Err(refusal),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn one(base: u64, size: u64, offset: u64, sizes: &str) -> String {
        format!(r#"{{"base_host_virt_addr":{base},"size":{size},"offset":{offset}{sizes}}}"#)
    }

    #[test]
    fn both_names_of_the_page_size_are_bytes() {
        for sizes in [
            r#","page_size":4096,"page_size_kib":4096"#,
            r#","page_size_kib":4096"#,
            r#","page_size":4096,"more":[1]"#,
        ] {
            let text = format!("[{}, {}]", one(GIB, 8192, 4096, sizes), one(1 << 20, 4096, 0, sizes));
            let regions = Regions::parse(text.as_bytes(), GIB).expect("right");
            assert_eq!(regions.len_bytes(), 12_288);
            let found = regions.at((GIB + 5000) as usize).expect("in the second");
            assert_eq!((found.offset, found.page_bytes), (4096, 4096));
            assert!(regions.at((GIB + 8192) as usize).is_none() && regions.at(0).is_none());
        }
        let huge = one(2 << 20, 4 << 20, 0, r#","page_size":2097152"#);
        let regions = Regions::parse(format!("[{huge}]").as_bytes(), GIB).expect("right");
        assert_eq!(regions.iter().next().expect("one").page_bytes, 2 << 20);
    }

    #[test]
    fn what_can_not_be_served_is_refused_with_its_reason() {
        const P: &str = r#","page_size":4096"#;
        let cases = [
            (one(GIB, 4096, 0, ""), "no page size"),
            (one(GIB, 4096, 0, r#","page_size":4096,"page_size_kib":4"#), "two page sizes"),
            (one(GIB, 4096, 0, r#","page_size_kib":4"#), "other than"),
            (one(GIB + 1, 4096, 0, P), "not aligned"),
            (one(GIB, 4095, 0, P), "not aligned"),
            (one(GIB, 4096, 7, P), "not aligned"),
            (one(GIB, 0, 0, P), "is empty"),
            (one(GIB, 2 * GIB, 0, P), "beyond the image"),
            (one(GIB, 4096, !4095, P), "beyond the image"),
            (one(!4095, 8192, 0, P), "beyond the address space"),
            (format!("{},{}", one(GIB, 8192, 0, P), one(GIB + 4096, 4096, 8192, P)), "overlaps"),
            (format!("{},{}", one(GIB, 8192, 0, P), one(2 * GIB, 4096, 4096, P)), "another one's content"),
            (String::new(), "no region"),
        ];
        for (regions, why) in cases {
            let refusal = Regions::parse(format!("[{regions}]").as_bytes(), GIB).expect_err(why);
            assert!(refusal.to_string().contains(why), "{refusal} and not {why}");
        }
        for text in ["", "{}", "[1]", "[[[[", "\u{0}", r#"[{"size":-1}]"#, r#"[{"size":1.5}]"#] {
            assert!(matches!(Regions::parse(text.as_bytes(), GIB), Err(Refusal::NotJson(_))), "{text}");
        }
        let deep = "[".repeat(60_000);
        assert!(matches!(Regions::parse(deep.as_bytes(), GIB), Err(Refusal::NotJson(_))));
    }
}
