//! Recovery of a post-copy migration: the network is cut after the switch, at seeded points, and
//! restored.
//!
//! Each run compares the content at the destination, as any other does. The figures are the pages
//! that arrived twice or never, and the time without progress once there was a connection again.
//! This module must never count a run that ended without all of its content.

use std::time::Duration;

use pagoda::Region;
use pagoda::migrate::{Codec, ZeroPolicy};

use super::cut_line::{Cut, Plan};
use super::destination::Into;
use super::trial::{Idle, Route, run_over};
use crate::load::data::Random;

/// The most cuts of a line in one run.
const CUTS_MOST: u64 = 3;

/// The time that the line stays cut.
const OUTAGE: Duration = Duration::from_millis(20);

/// The figures of all points together.
#[derive(Clone, Copy, Debug, Default)]
pub struct Recovery {
    /// Cuts.
    pub points: u64,
    /// Owed pages that never arrived.
    pub lost: u64,
    /// Pages that arrived more than once.
    pub twice: u64,
    /// The longest time without progress after a reconnection.
    pub no_progress: Duration,
}

/// Moves `region` again and again, until the line was cut `points` times, and not more often.
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
