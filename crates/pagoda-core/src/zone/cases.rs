//! Four situations that tell the policies apart by counts alone, for tests and for the benchmark.
//!
//! | case | local zones, in order | tries | shows |
//! |---|---|---|---|
//! | A | batches 1000 and 100 (a) | 1000 | whether no frames are taken for no batches |
//! | B | batches 1000 and 100 (b) | 1000 | whether a blocked zone holds up the reset |
//! | C | batches 300 and 100, and a remote zone | 8000 | whether a remote zone holds up the reset |
//! | D | batches 300 and 100 | 8000 | the cost of the policy when nothing is short |
//!
//! (a) Both at their low watermark. (b) The first at its low watermark, the second's used up.
//!
//! Nothing is given back meanwhile. Like all of the policy, a case must never depend on anything
//! but its arguments.

use super::{Counters, Zone, ZonePolicy, Zones};

/// How many zones of each case are local: the first ones.
pub const LOCAL_ZONES: usize = 2;

const LOW_FRAMES: u64 = 1000;
/// More than any case takes.
const PLENTY_FRAMES: u64 = 1 << 20;

/// One situation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Case {
    /// Both local zones are short of frames.
    A,
    /// The first zone is short of frames, the second one's batch is used up.
    B,
    /// 3:1, beside a remote zone.
    C,
    /// 3:1, no pressure.
    D,
}

impl Case {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::A, Self::B, Self::C, Self::D];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::A => "A",
            Self::B => "B",
            Self::C => "C",
            Self::D => "D",
        }
    }

    /// How many allocations of one frame are tried.
    #[must_use]
    pub const fn tries(self) -> u32 {
        match self {
            Self::A | Self::B => 1000,
            Self::C | Self::D => 8000,
        }
    }

    /// The zones before the first allocation.
    #[must_use]
    pub fn zones(self, policy: ZonePolicy) -> Zones {
        let zone = |free_frames, batch_frames| Zone {
            free_frames,
            low_frames: LOW_FRAMES,
            high_frames: LOW_FRAMES + batch_frames,
        };
        let blocked = |batch_frames| zone(LOW_FRAMES, batch_frames);
        let plenty = |batch_frames| zone(PLENTY_FRAMES, batch_frames);
        match self {
            Self::A => Zones::new(policy, &[blocked(1000), blocked(100)], &[]),
            Self::B => {
                let mut zones = Zones::new(policy, &[blocked(1000), plenty(100)], &[]);
                zones.zones[1].batch = 0;
                zones
            }
            Self::C => Zones::new(policy, &[plenty(300), plenty(100)], &[plenty(300)]),
            Self::D => Zones::new(policy, &[plenty(300), plenty(100)], &[]),
        }
    }

    /// Plays it through.
    #[must_use]
    pub fn run(self, policy: ZonePolicy) -> Counters {
        let mut zones = self.zones(policy);
        for _ in 0..self.tries() {
            // Failures are counted as wake-ups.
            let _ = zones.allocate(1);
        }
        zones.counters
    }
}
