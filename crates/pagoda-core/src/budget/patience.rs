//! How long reclaim goes on without success, and how often it tries.
//!
//! A budget that can't be met ends its program, and a wrong end is far worse than a late one. So
//! only a time without any gain counts, in which memory was lacking and reclaim ran. The longer it
//! lasts, the longer are the pauses between two tries. This module must never read a clock or a
//! counter: the caller passes the numbers.

/// How long a program may wait for memory that can't be had before it is ended: long enough for a
/// slow disk to finish its writes, short enough not to look like a hang.
pub const GIVE_UP_NS: u64 = 10_000_000_000;

/// The most that counts of the time between two looks. On a busy machine reclaim runs seldom, and
/// has tried little in a long time.
const LOOK_MOST_NS: u64 = 50_000_000;

/// How long memory must not be lacking, while a fault waits, before the time starts anew. For
/// shorter moments there is memory that a fault takes without being served.
const APART_NS: u64 = 1_000_000_000;

/// The time without a gain before there are pauses: many rounds.
const CALM_NS: u64 = 100_000_000;

/// A pause takes one part in so many of the time without a gain, up to the most. So memory that the
/// program itself makes movable, as by `munlock`, is found soon.
const PAUSE_PART: u64 = 16;
const PAUSE_MOST_NS: u64 = 20_000_000;

/// The time without a gain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Patience {
    waited_ns: u64,
    apart_ns: u64,
    looked_ns: Option<u64>,
}

impl Patience {
    /// Something was gained: the time starts anew.
    pub fn renew(&mut self) {
        *self = Self::default();
    }

    /// A look after a try that gained nothing. Memory `lacks` if a fault may find none; it
    /// `is_awaited` if a fault is in service. If the try was `refused` by the store, all of its
    /// time counts: a server that hangs takes long for that.
    pub fn look(&mut self, now_ns: u64, lacks: bool, is_awaited: bool, refused: bool) {
        if !lacks && !is_awaited {
            return self.renew();
        }
        let passed = self.looked_ns.map_or(0, |looked| now_ns.saturating_sub(looked));
        let passed = if refused { passed } else { passed.min(LOOK_MOST_NS) };
        self.looked_ns = Some(now_ns);
        if lacks {
            self.waited_ns += if self.apart_ns == 0 { passed } else { 0 };
            self.apart_ns = 0;
        } else {
            self.apart_ns += passed.max(1);
            if self.apart_ns > APART_NS {
                self.renew();
            }
        }
    }

    /// The program has waited for more than `give_up_ns`: [`GIVE_UP_NS`] but for tests.
    #[must_use]
    pub fn is_over(&self, give_up_ns: u64) -> bool {
        self.waited_ns > give_up_ns
    }

    /// The time without a gain so far.
    #[must_use]
    pub fn waited_ns(&self) -> u64 {
        self.waited_ns
    }

    /// How long to pause before the next try; 0 as long as there is much hope.
    #[must_use]
    pub fn pause_ns(&self) -> u64 {
        if self.waited_ns < CALM_NS { 0 } else { (self.waited_ns / PAUSE_PART).min(PAUSE_MOST_NS) }
    }
}

/// Whether anything was gained from one look to the next.
#[derive(Clone, Copy, Debug, Default)]
pub struct Gains<T> {
    seen: T,
    store_least: u64,
}

impl<T: PartialEq> Gains<T> {
    /// Compares with the last look. Any change of `seen` is a gain. The store's memory has to be
    /// less than ever since the last gain. A page that is read into it for a fault that then finds
    /// no frame goes back to the file, again and again.
    pub fn look(&mut self, seen: T, store_bytes: u64) -> bool {
        let is_gain = seen != self.seen || store_bytes < self.store_least;
        self.seen = seen;
        if is_gain {
            self.store_least = store_bytes;
        }
        is_gain
    }
}

#[cfg(test)]
#[path = "patience_test.rs"]
mod tests;
