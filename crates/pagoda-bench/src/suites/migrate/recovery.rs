//! The network is cut after a switch to post-copy, at seeded points, and comes back.
//!
//! Each run compares what arrived, as any other does. What is told is how many pages came twice or never, and how long
//! nothing moved once there was a connection again.

use std::time::Duration;

use pagoda::Region;
use pagoda::migrate::{Codec, ZeroPolicy};

use super::cut_line::{Cut, Plan};
use super::destination::Into;
use super::trial::{Idle, Route, run_over};
use crate::load::data::Random;

/// How often a line is cut in one run, at most.
const CUTS_MOST: u64 = 3;

/// How long it stays away.
const OUTAGE: Duration = Duration::from_millis(20);

/// What was seen at all points together.
#[derive(Clone, Copy, Debug, Default)]
pub struct Recovery {
    /// Cuts.
    pub points: u64,
    /// Pages that were owed and did not come.
    pub lost: u64,
    /// Pages that came more often than once.
    pub twice: u64,
    /// The longest time without progress after a reconnection.
    pub no_progress: Duration,
}

/// Moves `region` again and again, until the line was cut `points` times; not more often than that.
pub fn measure(region: &Region, points: u64) -> anyhow::Result<Recovery> {
    let (mut random, mut all) = (Random::new(3), Recovery::default());
    for _ in 0..points {
        let count = 1 + random.below(CUTS_MOST);
        let most = region.len() as u64 / CUTS_MOST;
        let cuts = (0..count).map(|_| (random.below(most), Cut::Ends)).collect();
        let route = Route::Cut(Plan { cuts, outage: OUTAGE });
        let outcome =
            run_over(region, &route, ZeroPolicy::default(), Into::LateRegion, Codec::None, &mut Idle)?;
        let (named, owed) = (outcome.arrived.named_pages, outcome.arrived.owed_pages);
        all.points += outcome.seen.cuts as u64;
        all.lost += owed.saturating_sub(named);
        all.twice += named.saturating_sub(owed);
        all.no_progress = all.no_progress.max(outcome.seen.no_progress);
        if all.points >= points {
            break;
        }
    }
    Ok(all)
}
