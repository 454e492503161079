//! Zero-page policies: how the receiver treats pages that are zero.
//!
//! The baseline reads each page to see whether it is zero already, and so faults in untouched
//! memory: 121,357 faults instead of 2,716 for an idle 64 GB guest that uses 2 GB (QEMU's list,
//! April 2024). The received map avoids this: a page for which nothing has arrived is untouched,
//! and untouched memory is zero. A page that became zero after it had content is better dropped
//! than cleared, because a zeroed frame still uses memory.
//!
//! All of this requires a destination that was zero before the first frame.

use std::fmt;
use std::str::FromStr;

/// How zero pages are received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ZeroPolicy {
    /// Read each page, and clear it if it is not zero.
    CheckThenClear,
    /// Leave pages that the received map shows as new, and clear the rest.
    ReceivedMap,
    /// Leave pages that the received map shows as new, and free the frames of the rest.
    #[default]
    Drop,
}

/// The action for a run of zero pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZeroAction {
    /// None: they are zero and untouched.
    Leave,
    /// Read them, and write zeroes over those that have content.
    Check,
    /// Write zeroes.
    Clear,
    /// Free their frames; the pages then read as zero.
    Discard,
}

impl ZeroPolicy {
    /// All policies.
    pub const ALL: [Self; 3] = [Self::CheckThenClear, Self::ReceivedMap, Self::Drop];

    /// The action for zero pages for which something has arrived before (`again`) or nothing has.
    #[must_use]
    pub const fn action(self, again: bool) -> ZeroAction {
        match (self, again) {
            (Self::CheckThenClear, _) => ZeroAction::Check,
            (Self::ReceivedMap | Self::Drop, false) => ZeroAction::Leave,
            (Self::ReceivedMap, true) => ZeroAction::Clear,
            (Self::Drop, true) => ZeroAction::Discard,
        }
    }
}

impl fmt::Display for ZeroPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::CheckThenClear => "check-then-clear",
            Self::ReceivedMap => "received-map",
            Self::Drop => "drop",
        })
    }
}

impl FromStr for ZeroPolicy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|policy| policy.to_string() == text);
        found.ok_or_else(|| format!("{text:?} is no policy; write check-then-clear, received-map or drop"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_reads_back_what_it_shows() {
        for policy in ZeroPolicy::ALL {
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
        assert!("clear".parse::<ZeroPolicy>().is_err());
    }
}
