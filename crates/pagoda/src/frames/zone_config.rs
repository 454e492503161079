//! The zones of a budget, as a user gives them, and whether they are valid.
//!
//! A zone is written `NAME=SIZE`, `NAME=SIZE@nodeN` or `NAME=SIZE@remote`; a weight `*N` may follow
//! the size. This module must never
//! ask the machine: a missing node shows when the engine binds its arena.

use std::fmt;
use std::num::NonZeroU8;
use std::str::FromStr;

use pagoda_core::size::Bytes;

use crate::error::other_process::OtherProcess;

/// The most zones of one engine: as many have counters in the tree file.
pub const ZONES_MAX: usize = 4;

/// The longest name of a zone, in bytes.
pub const NAME_BYTES_MAX: usize = 16;

/// Where a zone's memory is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Place {
    /// Wherever the kernel takes it from.
    #[default]
    Local,
    /// On this NUMA node. It is local if the first zone is on the same node, or the first zone has
    /// no node and the engine starts on this one. Else it is remote.
    Node(u32),
    /// On any node, but only for spilling: used when no local zone has a frame to spare, and before
    /// anything is reclaimed.
    Remote,
}

/// One zone of a budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneConfig {
    /// Its name: 1 to [`NAME_BYTES_MAX`] small letters, digits and hyphens.
    pub name: String,
    /// Its part of the budget.
    pub bytes: Bytes,
    /// Where its memory is.
    pub place: Place,
    /// The frames that it is preferred for in its turn, by
    /// [`ZonePolicy::WeightedInterleave`](crate::ZonePolicy::WeightedInterleave) alone.
    pub weight: NonZeroU8,
}

impl ZoneConfig {
    pub(crate) fn is_named_well(&self) -> bool {
        let is_good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        (1..=NAME_BYTES_MAX).contains(&self.name.len()) && self.name.bytes().all(is_good)
    }
}

/// A zone that could not be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ZoneError {
    /// It is not `NAME=SIZE`, with or without a place.
    #[error(
        "a zone is written NAME=SIZE, NAME=SIZE@nodeN or NAME=SIZE@remote, like fast=1G or slow=3G@node1"
    )]
    Form,
    /// The weight.
    #[error("a zone's weight is 1 to 255, and is written behind the size, like fast=1G*3")]
    Weight,
    /// The name.
    #[error("a zone's name is 1 to {NAME_BYTES_MAX} small letters, digits and hyphens")]
    Name,
    /// The size.
    #[error("a zone's size is written like 512M or 2G")]
    Size,
    /// The place.
    #[error("a zone is @nodeN, with the node's number, or @remote")]
    Place,
}

impl FromStr for ZoneConfig {
    type Err = ZoneError;

    fn from_str(text: &str) -> Result<Self, ZoneError> {
        let (name, rest) = text.split_once('=').ok_or(ZoneError::Form)?;
        let (size, place) = rest.split_once('@').map_or((rest, None), |(size, place)| (size, Some(place)));
        let place = match place {
            None => Place::Local,
            Some("remote") => Place::Remote,
            Some(node) => {
                let number = node.strip_prefix("node").and_then(|number| number.parse().ok());
                Place::Node(number.ok_or(ZoneError::Place)?)
            }
        };
        let (size, weight) = match size.split_once('*') {
            None => (size, NonZeroU8::MIN),
            Some((size, weight)) => (size, weight.parse().map_err(|_| ZoneError::Weight)?),
        };
        let bytes = size.parse().map_err(|_| ZoneError::Size)?;
        let zone = Self { name: name.to_owned(), bytes, place, weight };
        if zone.is_named_well() { Ok(zone) } else { Err(ZoneError::Name) }
    }
}

/// As it is read, with the size in bytes.
impl fmt::Display for ZoneConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.name, self.bytes.get())?;
        if self.weight > NonZeroU8::MIN {
            write!(f, "*{}", self.weight)?;
        }
        match self.place {
            Place::Local => Ok(()),
            Place::Node(node) => write!(f, "@node{node}"),
            Place::Remote => f.write_str("@remote"),
        }
    }
}

/// The reason why zones don't fit a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unfit;

/// A zone in its place in the order of preference.
#[derive(Clone, Debug)]
pub(crate) struct Ranked {
    /// Its number, as they were named.
    pub(crate) number: usize,
    pub(crate) zone: ZoneConfig,
    pub(crate) is_remote: bool,
}

/// Puts the zones of a `budget` in their order of preference, local ones first. `here` is the node
/// that the engine starts on, and each zone has at least `least`. Without zones there is one, of
/// all of the budget.
pub(crate) fn in_order(
    zones: &[ZoneConfig],
    budget: Bytes,
    least: Bytes,
    here: u32,
) -> Result<Vec<Ranked>, Unfit> {
    if zones.is_empty() {
        let zone =
            ZoneConfig { name: "all".to_owned(), bytes: budget, place: Place::Local, weight: NonZeroU8::MIN };
        return Ok(vec![Ranked { number: 0, zone, is_remote: false }]);
    }
    let sum = zones.iter().try_fold(0u64, |sum, zone| sum.checked_add(zone.bytes.get()));
    let twice = |(i, zone): (usize, &ZoneConfig)| zones[..i].iter().any(|other| other.name == zone.name);
    let bad = |zone: &ZoneConfig| zone.bytes < least || !zone.is_named_well();
    if zones.len() > ZONES_MAX
        || sum != Some(budget.get())
        || zones.iter().any(bad)
        || zones.iter().enumerate().any(twice)
    {
        return Err(Unfit);
    }
    let home = match zones[0].place {
        Place::Node(node) => node,
        Place::Local | Place::Remote => here,
    };
    let is_remote = |zone: &ZoneConfig| match zone.place {
        Place::Local => false,
        Place::Node(node) => node != home,
        Place::Remote => true,
    };
    let ranked = |(number, zone): (usize, &ZoneConfig)| Ranked {
        number,
        zone: zone.clone(),
        is_remote: is_remote(zone),
    };
    let mut ordered: Vec<Ranked> = zones.iter().enumerate().map(ranked).collect();
    ordered.sort_by_key(|ranked| ranked.is_remote);
    if ordered[0].is_remote { Err(Unfit) } else { Ok(ordered) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn zone(text: &str) -> ZoneConfig {
        text.parse().expect(text)
    }

    proptest! {
        #[test]
        fn a_written_zone_is_parsed_again(
            name in "[a-z0-9-]{1,16}",
            bytes in 0..=u64::MAX,
            weight in 1..=u8::MAX,
            place in prop_oneof![
                Just(Place::Local), Just(Place::Remote), any::<u32>().prop_map(Place::Node)
            ],
        ) {
            let weight = NonZeroU8::new(weight).expect("above 0");
            let zone = ZoneConfig { name, bytes: Bytes::new(bytes), place, weight };
            prop_assert_eq!(zone.to_string().parse(), Ok(zone));
        }

        #[test]
        fn no_text_makes_reading_panic(text in "\\PC{0,40}") {
            let _ = text.parse::<ZoneConfig>();
        }
    }

    #[test]
    fn an_error_names_the_wrong_part() {
        for (text, error) in [
            ("fast", ZoneError::Form),
            ("fast=", ZoneError::Size),
            ("fast=1X", ZoneError::Size),
            ("=1G", ZoneError::Name),
            ("Fast=1G", ZoneError::Name),
            ("a-name-of-17-byte=1G", ZoneError::Name),
            ("fast=1G*0", ZoneError::Weight),
            ("fast=1G*256@node1", ZoneError::Weight),
            ("fast=1G@", ZoneError::Place),
            ("fast=1G@node", ZoneError::Place),
            ("fast=1G@far", ZoneError::Place),
        ] {
            assert_eq!(text.parse::<ZoneConfig>(), Err(error), "{text}");
        }
    }

    #[test]
    fn zones_are_local_on_the_first_ones_node_and_remote_ones_come_last() {
        let order = |texts: &[&str], here| {
            let zones: Vec<_> = texts.iter().map(|text| zone(text)).collect();
            let sum = Bytes::new(zones.iter().map(|zone| zone.bytes.get()).sum());
            let ordered = in_order(&zones, sum, Bytes::kib(512), here)?;
            for Ranked { number, zone, .. } in &ordered {
                assert_eq!(zones[*number], *zone);
            }
            Ok(ordered.into_iter().map(|ranked| (ranked.zone.name, ranked.is_remote)).collect::<Vec<_>>())
        };
        let named = |names: &[(&str, bool)]| {
            Ok(names.iter().map(|(name, remote)| ((*name).to_owned(), *remote)).collect::<Vec<_>>())
        };
        assert_eq!(order(&["a=1M", "b=2M@node1"], 0), named(&[("a", false), ("b", true)]));
        assert_eq!(order(&["a=1M", "b=2M@node1"], 1), named(&[("a", false), ("b", false)]));
        assert_eq!(order(&["a=1M@node1", "b=2M@node1"], 0), named(&[("a", false), ("b", false)]));
        let last = order(&["r=1M@remote", "a=1M", "s=2M@node1"], 0);
        assert_eq!(last, named(&[("a", false), ("r", true), ("s", true)]));
        assert_eq!(order(&["r=1M@remote"], 0), Err(Unfit));
        assert_eq!(order(&["a=1M", "a=1M"], 0), Err(Unfit));
        assert_eq!(order(&["a=1M", "b=511K"], 0), Err(Unfit));
        assert_eq!(order(&["a=1M"; ZONES_MAX + 1], 0), Err(Unfit));
        assert_eq!(in_order(&[zone("a=2M")], Bytes::mib(3), Bytes::mib(1), 0).err(), Some(Unfit));
        assert_eq!(in_order(&[], Bytes::mib(3), Bytes::mib(4), 0).map(|zones| zones.len()), Ok(1));
    }
}

/// Why a zone keeps its size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ResizeError {
    /// No zone has this name.
    #[error("there is no zone {name:?} to be resized; there are: {zones}")]
    Unknown {
        /// The name that was given.
        name: String,
        /// The zones that exist.
        zones: String,
    },
    /// It would be too small to serve faults.
    #[error("the zone {name:?} can't have {bytes}; give it {least} at least")]
    TooSmall {
        /// The zone.
        name: String,
        /// The size that was asked for.
        bytes: Bytes,
        /// The least size.
        least: Bytes,
    },
    /// It would be larger than there are addresses for its frames.
    #[error(
        "the zone {name:?} can't have {bytes}: it has addresses for {most}; make the manager with a larger one"
    )]
    TooLarge {
        /// The zone.
        name: String,
        /// The size that was asked for.
        bytes: Bytes,
        /// The most that it can have.
        most: Bytes,
    },
    /// The manager is of another process.
    #[error(transparent)]
    OtherProcess(#[from] OtherProcess),
    /// All zones together would be too small.
    #[error("{budget} in all zones together are below what serving faults needs; leave {least} at least")]
    BudgetTooSmall {
        /// The budget that would be left.
        budget: Bytes,
        /// The least budget.
        least: Bytes,
    },
}

/// The least zone: twice the bytes that a program fills between two looks.
pub(crate) const ZONE_LEAST: Bytes = Bytes::mib(4);
