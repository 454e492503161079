//! The forks in progress, as one word: those that pass, and those that are announced and not yet
//! reported by the kernel.
//!
//! While nothing is registered a child needs nothing from the engine, and the kernel reports no
//! fork event. That spares the fork two waits for a thread to wake up. So a fork that begins then
//! *passes*, and nothing may be registered until it is over. A fork that begins while the engine
//! waits for passing forks waits itself. Every later fork is announced, because the kernel will
//! report it. Registration never ends for good, so there is no way back. Pure: the caller swaps the
//! word atomically. A fork must never pass while memory is registered.

/// The phase: nothing is registered (0), registration is about to begin, or it may happen.
const PHASE: u64 = 0b11;
const OPENING: u64 = 1;
const OPEN: u64 = 2;

/// One passing fork: 31 bits, more than there are threads.
const PASSES: u64 = 1 << 2;
const PASSES_MASK: u64 = ((1 << 31) - 1) * PASSES;

/// One announced fork: the other 31 bits.
const ANNOUNCED: u64 = 1 << 33;

/// How a fork may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// The kernel won't report it: the caller must call [`Forking::passed`].
    Passes(Forking),
    /// The kernel will report it: [`Forking::heard`].
    Announced(Forking),
    /// Not now: the engine waits for passing forks.
    Waits,
}

/// The word. Zero at the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forking(u64);

impl Forking {
    /// From the bits of an atomic.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The bits for an atomic.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// A thread is about to fork.
    #[must_use]
    pub fn begin(self) -> Begin {
        match self.0 & PHASE {
            OPENING => Begin::Waits,
            OPEN => Begin::Announced(Self(self.0 + ANNOUNCED)),
            _ => Begin::Passes(Self(self.0 + PASSES)),
        }
    }

    /// A passing fork is over, in the parent.
    ///
    /// # Panics
    /// If no fork passes.
    #[must_use]
    pub fn passed(self) -> Self {
        assert!(self.is_any_passing(), "a fork ends once");
        Self(self.0 - PASSES)
    }

    /// The kernel reported a fork, or an announced fork has failed: one announcement fewer. None if
    /// there is none: the fork was not announced.
    #[must_use]
    pub fn heard(self) -> Option<Self> {
        self.is_any_announced().then(|| Self(self.0 - ANNOUNCED))
    }

    /// Memory is to be registered: no more forks pass.
    #[must_use]
    pub fn opening(self) -> Self {
        if self.is_open() { self } else { Self(self.0 & !PHASE | OPENING) }
    }

    /// Ends the opening. If `is_open`, fork events can be handled now. If not, opening failed and
    /// forks pass again.
    #[must_use]
    pub fn opened(self, is_open: bool) -> Self {
        Self(self.0 & !PHASE | if is_open { OPEN } else { 0 })
    }

    /// Whether forks are announced, and memory may be registered.
    #[must_use]
    pub fn is_open(self) -> bool {
        self.0 & PHASE == OPEN
    }

    /// Whether a fork passes: nothing may be registered.
    #[must_use]
    pub fn is_any_passing(self) -> bool {
        self.0 & PASSES_MASK != 0
    }

    /// Whether the kernel has yet to report an announced fork.
    #[must_use]
    pub fn is_any_announced(self) -> bool {
        self.0 >= ANNOUNCED
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_report_of_an_unannounced_fork_is_ignored() {
        assert_eq!(Forking::default().heard(), None);
        let open = Forking::default().opening().opened(true);
        assert_eq!(open.heard(), None);
        let Begin::Announced(announced) = open.begin() else { panic!("it is open") };
        assert_eq!(announced.heard(), Some(open));
        assert_eq!(announced.opening(), announced, "it never closes");
    }

    proptest! {
        #[test]
        fn counts_are_exact_and_no_fork_passes_while_memory_is_registered(steps in prop::collection::vec(0..6u8, 0..200)) {
            let (mut word, mut passing, mut announced) = (Forking::default(), 0u32, 0u32);
            for step in steps {
                word = match (step, word.begin()) {
                    (0, Begin::Passes(next)) => {
                        passing += 1;
                        next
                    }
                    (0, Begin::Announced(next)) => {
                        prop_assert_eq!(passing, 0);
                        announced += 1;
                        next
                    }
                    (0, Begin::Waits) => {
                        prop_assert!(!word.is_open());
                        word
                    }
                    (1, _) if passing > 0 => {
                        passing -= 1;
                        word.passed()
                    }
                    (2, _) => {
                        prop_assert_eq!(word.heard().is_some(), announced > 0);
                        announced = announced.saturating_sub(1);
                        word.heard().unwrap_or(word)
                    }
                    (3, _) => word.opening(),
                    (4 | 5, Begin::Waits) if !word.is_any_passing() => word.opened(step == 4),
                    _ => word,
                };
                prop_assert_eq!(word.is_any_passing(), passing > 0);
                prop_assert_eq!(word.is_any_announced(), announced > 0);
                prop_assert!(passing == 0 || !word.is_open());
            }
        }
    }
}
