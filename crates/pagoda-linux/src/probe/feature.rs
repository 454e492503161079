//! The features of a userfaultfd: the kernel's feature bits that Pagoda knows, by name and by the
//! kernel that brought them.
//!
//! Pure. The bits are the kernel's promise; the trials are elsewhere.

use std::fmt;

use linux_raw_sys::general as raw;

/// One thing that a userfaultfd can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
#[expect(missing_docs, reason = "the kernel's names; what each is for is told by `name` and `since`")]
pub enum Feature {
    WriteProtect = raw::UFFD_FEATURE_PAGEFAULT_FLAG_WP as u64,
    EventFork = raw::UFFD_FEATURE_EVENT_FORK as u64,
    EventRemap = raw::UFFD_FEATURE_EVENT_REMAP as u64,
    EventRemove = raw::UFFD_FEATURE_EVENT_REMOVE as u64,
    EventUnmap = raw::UFFD_FEATURE_EVENT_UNMAP as u64,
    Sigbus = raw::UFFD_FEATURE_SIGBUS as u64,
    ThreadId = raw::UFFD_FEATURE_THREAD_ID as u64,
    ExactAddress = raw::UFFD_FEATURE_EXACT_ADDRESS as u64,
    WpUnpopulated = raw::UFFD_FEATURE_WP_UNPOPULATED as u64,
    Poison = raw::UFFD_FEATURE_POISON as u64,
    WpAsync = raw::UFFD_FEATURE_WP_ASYNC as u64,
    Move = raw::UFFD_FEATURE_MOVE as u64,
}

impl Feature {
    /// All that Pagoda knows, oldest first.
    pub const ALL: [Self; 12] = [
        Self::EventFork,
        Self::EventRemap,
        Self::EventRemove,
        Self::EventUnmap,
        Self::Sigbus,
        Self::ThreadId,
        Self::WriteProtect,
        Self::ExactAddress,
        Self::WpUnpopulated,
        Self::Poison,
        Self::WpAsync,
        Self::Move,
    ];
    /// The features that `pagoda run` needs.
    pub const REQUIRED: [Self; 4] = [Self::Move, Self::EventRemap, Self::EventRemove, Self::EventUnmap];

    /// The kernel's name, without `UFFD_FEATURE_`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::WriteProtect => "PAGEFAULT_FLAG_WP",
            Self::EventFork => "EVENT_FORK",
            Self::EventRemap => "EVENT_REMAP",
            Self::EventRemove => "EVENT_REMOVE",
            Self::EventUnmap => "EVENT_UNMAP",
            Self::Sigbus => "SIGBUS",
            Self::ThreadId => "THREAD_ID",
            Self::ExactAddress => "EXACT_ADDRESS",
            Self::WpUnpopulated => "WP_UNPOPULATED",
            Self::Poison => "POISON",
            Self::WpAsync => "WP_ASYNC",
            Self::Move => "MOVE",
        }
    }

    /// The kernel that brought it.
    #[must_use]
    pub const fn since(self) -> &'static str {
        match self {
            Self::EventFork | Self::EventRemap | Self::EventRemove | Self::EventUnmap => "4.11",
            Self::Sigbus | Self::ThreadId => "4.14",
            Self::WriteProtect => "5.7",
            Self::ExactAddress => "5.18",
            Self::WpUnpopulated => "6.4",
            Self::Poison => "6.6",
            Self::WpAsync => "6.7",
            Self::Move => "6.8",
        }
    }
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A set of features, as the kernel gives it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features(pub u64);

impl Features {
    /// Whether it holds `feature`.
    #[must_use]
    pub const fn has(self, feature: Feature) -> bool {
        self.0 & feature as u64 != 0
    }
}

impl FromIterator<Feature> for Features {
    fn from_iter<I: IntoIterator<Item = Feature>>(features: I) -> Self {
        Self(features.into_iter().fold(0, |bits, feature| bits | feature as u64))
    }
}

impl From<Feature> for Features {
    fn from(feature: Feature) -> Self {
        Self(feature as u64)
    }
}
