//! The kinds of faults, by the place of the page: the cost depends on that more than on all else.
//!
//! The kind is that of the try that served it: a page that was read from the file by a try that
//! then found no frame counts as stored. This module must never know how a fault is served.

/// Where a fault found its page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// Nowhere: it never was, or was discarded.
    Zero,
    /// Nowhere, and it got a huge frame.
    Huge,
    /// In a frame that was taken out of the region: the second chance.
    Staged,
    /// In the store's memory, compressed.
    Stored,
    /// In the store's file, at the remote store, or in the file whose page it is.
    Spilled,
    /// It was there already, or another thread is about to bring it.
    Spurious,
}

/// How many kinds there are.
pub const KINDS: usize = FaultKind::ALL.len();

impl FaultKind {
    /// All of them, in the order of their declaration.
    pub const ALL: [Self; 6] =
        [Self::Zero, Self::Huge, Self::Staged, Self::Stored, Self::Spilled, Self::Spurious];

    /// Its name in JSON and for people.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Zero => "zero",
            Self::Huge => "huge",
            Self::Staged => "staged",
            Self::Stored => "stored",
            Self::Spilled => "spilled",
            Self::Spurious => "spurious",
        }
    }
}
