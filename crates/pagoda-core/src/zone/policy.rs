//! The rules by which zones share allocations: the fair one, and those it is compared with.
//!
//! | policy | first pass | refills the batches | second pass |
//! |---|---|---|---|
//! | `first-fit` | open | never | none |
//! | `reset-on-failure` | fair | when the first pass fails | open |
//! | `first-version` | fair | when it fails and no zone, remote or local, has a batch left | open |
//! | `fair` | fair | when it fails and skipped a zone | open, after a reset or with remote zones |
//! | `global-list` | open | never | none |
//! | `weighted-interleave` | the zone in turn by weights | never | open |
//!
//! `fair` is Linux's from 3.17 to 4.7 ("mm: page_alloc: reduce cost of the fair zone allocation
//! policy"); the flag that Linux keeps beside each batch says no more than its sign.
//! `reset-on-failure` is that of 3.15-rc5: when zones are short of frames, not of batches, it
//! resets and scans twice for nothing. `first-version` is the first proposal to mend that, with its
//! bug: a remote zone's batch holds up the reset, and the first zone gives nearly everything.
//! `global-list` is Linux's from 4.8 on: zones are filled in order, and their pages age on one
//! list, so that age does not depend on the zone. `weighted-interleave` is Linux's memory policy of
//! that name, from 6.9 on: remote zones have their turns, too, by their weights.
//!
//! This module must never see a zone: the caller passes the outcome of a pass.

use std::fmt;
use std::str::FromStr;

/// How zones share allocations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ZonePolicy {
    /// The first zone that has a frame to spare.
    FirstFit,
    /// Batches that are refilled whenever the fair pass fails.
    ResetOnFailure,
    /// Batches that are refilled when no zone has one left, remote zones included: a bug, kept as a
    /// baseline.
    FirstVersion,
    /// Batches that are refilled when the fair pass fails and one was used up.
    #[default]
    Fair,
    /// First fit, over local zones whose pages age on one list.
    GlobalList,
    /// Each zone in turn, remote ones included, for as many frames as its weight says.
    WeightedInterleave,
}

/// The outcome of a fair pass when no zone could give.
#[derive(Clone, Copy)]
pub(super) struct Unserved {
    /// It skipped a local zone, whose batch was used up.
    pub(super) skipped: bool,
    /// A zone had a batch left, among all that it looked at.
    pub(super) any_batch_left: bool,
}

impl ZonePolicy {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::FirstFit,
        Self::ResetOnFailure,
        Self::FirstVersion,
        Self::Fair,
        Self::GlobalList,
        Self::WeightedInterleave,
    ];

    /// Its name for people and for JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::FirstFit => "first-fit",
            Self::ResetOnFailure => "reset-on-failure",
            Self::FirstVersion => "first-version",
            Self::Fair => "fair",
            Self::GlobalList => "global-list",
            Self::WeightedInterleave => "weighted-interleave",
        }
    }

    /// Whether zones take turns by their batches.
    pub(super) const fn has_turns(self) -> bool {
        !matches!(self, Self::FirstFit | Self::GlobalList | Self::WeightedInterleave)
    }

    /// Whether all local batches are refilled after a fair pass in vain.
    pub(super) const fn resets_after(self, unserved: Unserved) -> bool {
        match self {
            Self::FirstFit | Self::GlobalList | Self::WeightedInterleave => false,
            Self::ResetOnFailure => true,
            Self::FirstVersion => !unserved.any_batch_left,
            // If no zone was skipped, the zones are short of frames, and full batches would not
            // help.
            Self::Fair => unserved.skipped,
        }
    }
}

/// There is no policy of this name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownPolicy;

impl fmt::Display for UnknownPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no such policy; there are")?;
        ZonePolicy::ALL.iter().try_for_each(|policy| write!(f, " {}", policy.name()))
    }
}

impl std::error::Error for UnknownPolicy {}

/// By its [name](ZonePolicy::name).
impl FromStr for ZonePolicy {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, UnknownPolicy> {
        Self::ALL.into_iter().find(|policy| policy.name() == name).ok_or(UnknownPolicy)
    }
}

impl fmt::Display for ZonePolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_is_read_by_its_name() {
        for policy in ZonePolicy::ALL {
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
        let error = "fairest".parse::<ZonePolicy>().expect_err("none such");
        assert!(error.to_string().ends_with("first-version fair global-list weighted-interleave"));
    }
}
