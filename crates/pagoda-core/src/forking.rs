//! The forks that are under way, as one word: those that an engine which has registered nothing lets pass, and those that it
//! was told of and has yet to hear of from the kernel.
//!
//! As long as nothing is registered a child lacks nothing, and the kernel tells nobody of its fork, which spares it two waits for a
//! thread to be woken. So a fork that begins then keeps anything from being registered until it is over; one that comes while that
//! is waited for waits itself; and each that begins later is announced, for the kernel will tell of it. Nothing is
//! unregistered for good, so there is no way back. Pure: the caller swaps the word atomically. It must never have forks that
//! pass beside memory that is registered.

/// Nothing is registered, it is about to be, or it may be.
const PHASE: u64 = 0b11;
const OPENING: u64 = 1;
const OPEN: u64 = 2;

/// One fork that passes: 31 bits, more than there are threads.
const PASSES: u64 = 1 << 2;
const PASSES_MASK: u64 = ((1 << 31) - 1) * PASSES;

/// One that was announced: the other 31.
const ANNOUNCED: u64 = 1 << 33;

/// How a fork may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// The kernel won't tell of it: [`Forking::passed`] has to.
    Passes(Forking),
    /// The kernel will tell of it: [`Forking::heard`].
    Announced(Forking),
    /// Not now: forks that pass are being waited for.
    Waits,
}

/// The word. Zero in the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forking(u64);

impl Forking {
    /// From an atomic's bits.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// For an atomic.
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

    /// A fork that passes is over, in the parent.
    ///
    /// # Panics
    /// If none passes.
    #[must_use]
    pub fn passed(self) -> Self {
        assert!(self.is_any_passing(), "a fork ends once");
        Self(self.0 - PASSES)
    }

    /// The kernel told of a fork, or one that was announced has failed: one announcement fewer. None if there is none: it was
    /// of a fork that nobody announced.
    #[must_use]
    pub fn heard(self) -> Option<Self> {
        self.is_any_announced().then(|| Self(self.0 - ANNOUNCED))
    }

    /// Memory is to be registered: no more forks pass.
    #[must_use]
    pub fn opening(self) -> Self {
        if self.is_open() { self } else { Self(self.0 & !PHASE | OPENING) }
    }

    /// Children can be waited on now, or that failed: then it is as before.
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

    /// Whether an announced fork is yet to be heard of.
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
    fn a_fork_that_failed_to_be_announced_is_not_heard_of() {
        assert_eq!(Forking::default().heard(), None);
        let open = Forking::default().opening().opened(true);
        assert_eq!(open.heard(), None);
        let Begin::Announced(announced) = open.begin() else { panic!("it is open") };
        assert_eq!(announced.heard(), Some(open));
        assert_eq!(announced.opening(), announced, "it is for good");
    }

    proptest! {
        #[test]
        fn counts_are_exact_and_nothing_passes_where_memory_is_registered(steps in prop::collection::vec(0..6u8, 0..200)) {
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
