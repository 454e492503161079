//! The rows of each tree and member: two looks, and the events between them. Pure.
//!
//! This module must never show a count of a member as it stands: its place counted for others
//! before it. Only the increase since the last look is the member's own.

use std::path::PathBuf;
use std::time::Duration;

use pagoda::frames::zones::ZoneStats;
use pagoda::stats::counters::{Stats, Status};
use pagoda::stats::latencies::Latencies;
use pagoda::tree::{BaseView, MigrationState, MigrationView, RegionView, View};
use pagoda_core::budget::thrashing::advice;
use pagoda_core::size::Bytes;
use serde::{Serialize, Serializer};

use super::find::{Look, Tree};
use crate::latency::LatencyUs;

/// A tree, and its members; or a library's manager, its process, and its regions.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Group {
    /// The tree as a whole; its number is that of `pagoda run`, its share the budget.
    #[serde(flatten)]
    pub tree: Row,
    /// The claims of all members on the budget.
    pub claimed_bytes: u64,
    /// The living ones.
    pub members: Vec<Row>,
    /// How many regions a library's manager has.
    pub regions_count: u64,
    /// The largest of them, each with its known values.
    #[serde(serialize_with = "regions_alone")]
    pub regions: Vec<Row>,
    /// A name that is never used twice.
    #[serde(skip)]
    pub file: PathBuf,
}

fn regions_alone<S: Serializer>(rows: &[Row], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(rows.iter().filter_map(|row| row.region))
}

/// A tree, a member, or a region. Sizes are bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Row {
    pub pid: u32,
    /// The kernel's name of the process; of a tree, its first program.
    pub name: String,
    /// `managed`, `small` (watched, too small to need an engine), `released`, `failed` or
    /// `unmanaged`; of a tree `tree`, of a library's manager `library`, of a region `region` or the
    /// step of its migration.
    pub status: &'static str,
    pub base_page_bytes: u64,
    pub share_bytes: u64,
    /// By the kernel's count.
    pub anon_bytes: u64,
    /// The memory that it would hold without Pagoda.
    pub held_bytes: u64,
    pub unmanaged_bytes: u64,
    pub own_bytes: u64,
    pub resident_bytes: u64,
    pub staged_bytes: u64,
    /// Before compression.
    pub stored_bytes: u64,
    /// Of the store, compressed.
    pub store_memory_bytes: u64,
    /// Of the store's file.
    pub spilled_bytes: u64,
    /// At the remote store, as it is stored.
    pub remote_bytes: u64,
    /// Stored bytes over the memory for them in all three; null if nothing is stored.
    pub compression: Option<f64>,
    pub ready_bytes: u64,
    pub free_bytes: u64,
    pub free_min_bytes: u64,
    pub free_low_bytes: u64,
    pub free_high_bytes: u64,
    pub release_queued_bytes: u64,
    pub copied_on_write_bytes: u64,
    /// Of the budget, as they were named; none if it is not divided, or there is no engine.
    pub zones: Vec<Zone>,
    /// Null of a member that was not there at the look before.
    pub rates: Option<Rates>,
    /// If it is a region: then only the name and the resident, staged, stored and held bytes are
    /// known.
    #[serde(skip)]
    pub region: Option<Region>,
}

/// A region of a library's manager.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Region {
    /// The address of its first byte.
    pub start: u64,
    pub bytes: u64,
    pub resident_bytes: u64,
    pub staged_bytes: u64,
    /// Before compression.
    pub stored_bytes: u64,
    pub base_page: BasePage,
    /// Null if it is not being moved.
    pub migration: Option<Migration>,
}

/// The base page of a region: the memory that a touch brings in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct BasePage {
    /// For one that goes by density, the most that a first touch brings in just now.
    pub bytes: u64,
    pub by_density: bool,
    /// By density: how often it has become larger, and smaller.
    pub grown: u64,
    pub shrunk: u64,
}

/// How a region's migration gets on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Migration {
    /// `sending`, `receiving`, or `arriving` if it is used already.
    pub state: &'static str,
    /// Over the wire so far.
    pub wire_bytes: u64,
    /// After a switch: how often all channels were lost and connected once more.
    pub recoveries: u64,
    /// And how long there were none.
    pub waited_ms: f64,
    /// Values that only a sender knows; null of a receiver.
    pub sender: Option<Sender>,
}

/// Values that only a sender knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Sender {
    /// Rounds that are done.
    pub rounds: u64,
    pub left_bytes: u64,
    /// Of the last round; null in the first.
    pub pace: Option<Pace>,
}

/// The prediction from a round for the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Pace {
    pub sent_bytes_s: u64,
    pub written_bytes_s: u64,
    /// How long the writer would stand still for the remaining pages.
    pub downtime_ms: f64,
    /// Faults that have waited to slow the writer down, and how long in all.
    pub delayed_faults: u64,
    pub delayed_ms: f64,
}

impl Migration {
    fn of(view: &MigrationView) -> Self {
        let pace = (view.rounds > 0).then(|| Pace {
            sent_bytes_s: view.sent_per_s.get(),
            written_bytes_s: view.written_per_s.get(),
            downtime_ms: view.downtime_us as f64 / 1000.0,
            delayed_faults: view.delayed_faults,
            delayed_ms: view.delayed_us as f64 / 1000.0,
        });
        let sends = view.state == MigrationState::Sending;
        Self {
            state: view.state.name(),
            wire_bytes: view.wire.get(),
            recoveries: view.recoveries,
            waited_ms: view.waited_us as f64 / 1000.0,
            sender: sends.then_some(Sender { rounds: view.rounds, left_bytes: view.left.get(), pace }),
        }
    }
}

/// The present state of one zone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Zone {
    /// Its part of the budget.
    pub bytes: u64,
    /// In frames: in the program's memory, staged and ready.
    pub held_bytes: u64,
    pub free_bytes: u64,
    pub low_bytes: u64,
    pub high_bytes: u64,
}

impl Zone {
    fn of(stats: &ZoneStats) -> Self {
        Self {
            bytes: stats.bytes.get(),
            held_bytes: stats.held.get(),
            free_bytes: stats.free.get(),
            low_bytes: stats.low.get(),
            high_bytes: stats.high.get(),
        }
    }
}

/// The zones of a whole tree.
pub fn zones(view: &View) -> Vec<ZoneStats> {
    let mut zones = ZoneStats::all(&view.totals);
    // Every engine has all zones, however small its share: together they are no larger.
    for (at, zone) in zones.iter_mut().enumerate() {
        let of_members = view
            .members
            .iter()
            .filter_map(|member| ZoneStats::all(&member.counters).get(at).map(|zone| zone.bytes));
        zone.bytes = of_members.max().unwrap_or(zone.bytes);
    }
    zones
}

/// Events between two looks, by second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Rates {
    pub faults_s: f64,
    pub faults_zero_s: f64,
    pub faults_staged_s: f64,
    pub faults_stored_s: f64,
    /// Of them, those whose content was read from the file or the remote store.
    pub faults_spilled_s: f64,
    pub faults_spurious_s: f64,
    /// Faults that waited for memory.
    pub faults_throttled_s: f64,
    pub fetched_ahead_s: f64,
    pub evictions_s: f64,
    /// Of them, those whose copy the store still had.
    pub evictions_clean_s: f64,
    pub stores_s: f64,
    /// The time that faults on stored pages took, as a part of the time that went by: more than one
    /// if several threads waited.
    pub refault_wait: f64,
    /// If that is much, the bytes that the budget lacks.
    pub lacks_bytes: Option<u64>,
    /// How long the faults took.
    pub latency_us: LatencyUs,
}

impl Rates {
    fn of(before: (&Stats, &Latencies), now: (&Stats, &Latencies), elapsed: Duration) -> Option<Self> {
        let seconds = elapsed.as_secs_f64();
        if seconds <= 0.0 {
            return None;
        }
        let rate = |count: fn(&Stats) -> u64| count(now.0).saturating_sub(count(before.0)) as f64 / seconds;
        Some(Self {
            faults_s: rate(|counters| counters.faults),
            faults_zero_s: rate(|counters| counters.faults_zero),
            faults_staged_s: rate(|counters| counters.faults_staged),
            faults_stored_s: rate(|counters| counters.faults_stored),
            faults_spilled_s: rate(|counters| counters.faults_spilled),
            faults_spurious_s: rate(|counters| counters.faults_spurious),
            faults_throttled_s: rate(|counters| counters.faults_throttled),
            fetched_ahead_s: rate(|counters| counters.fetched_ahead),
            evictions_s: rate(|counters| counters.evictions),
            evictions_clean_s: rate(|counters| counters.evictions_clean),
            stores_s: rate(|counters| counters.stores),
            refault_wait: rate(|counters| counters.refault_wait_ns) / 1e9,
            lacks_bytes: lacks(before.0, now.0, elapsed),
            latency_us: LatencyUs::of(&now.1.since(before.1)),
        })
    }
}

/// What the budget lacks by refaults, if they took much of the time between two looks.
fn lacks(before: &Stats, now: &Stats, elapsed: Duration) -> Option<u64> {
    let [share, lacks, held] = [now.share_bytes, now.refault_distance_bytes, now.held_bytes].map(Bytes::new);
    let waited_ns = now.refault_wait_ns.saturating_sub(before.refault_wait_ns);
    let elapsed_ns = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
    Some(advice(share, lacks, held, waited_ns, elapsed_ns)?.get() - share.get())
}

impl Row {
    fn of(pid: u32, name: &str, status: &'static str, counters: &Stats) -> Self {
        let beyond_memory = counters.spilled_bytes.saturating_add(counters.remote_bytes);
        let takes = counters.store_memory_bytes.saturating_add(beyond_memory);
        let stores = counters.stored_bytes > 0 && takes > 0;
        Self {
            pid,
            name: name.to_owned(),
            status,
            base_page_bytes: counters.base_page_bytes,
            share_bytes: counters.share_bytes,
            anon_bytes: counters.anon_bytes,
            held_bytes: counters.held_bytes,
            unmanaged_bytes: counters.unmanaged_bytes,
            own_bytes: counters.own_bytes,
            resident_bytes: counters.resident_bytes,
            staged_bytes: counters.staged_bytes,
            stored_bytes: counters.stored_bytes,
            store_memory_bytes: counters.store_memory_bytes,
            spilled_bytes: counters.spilled_bytes,
            remote_bytes: counters.remote_bytes,
            compression: stores.then(|| counters.stored_bytes as f64 / takes as f64),
            ready_bytes: counters.ready_bytes,
            free_bytes: counters.free_bytes,
            free_min_bytes: counters.free_min_bytes,
            free_low_bytes: counters.free_low_bytes,
            free_high_bytes: counters.free_high_bytes,
            release_queued_bytes: counters.release_queued_bytes,
            copied_on_write_bytes: counters.copied_on_write_bytes,
            zones: ZoneStats::all(counters).iter().map(Zone::of).collect(),
            rates: None,
            region: None,
        }
    }

    fn of_region(pid: u32, view: &RegionView) -> Self {
        let region = Region {
            start: view.start,
            bytes: view.len.get(),
            resident_bytes: view.resident.get(),
            staged_bytes: view.staged.get(),
            stored_bytes: view.stored.get(),
            base_page: BasePage::of(&view.base),
            migration: view.migration.as_ref().map(Migration::of),
        };
        let in_frames = region.resident_bytes.saturating_add(region.staged_bytes);
        Self {
            pid,
            name: format!("{:#x}", region.start),
            status: region.migration.map_or("region", |migration| migration.state),
            resident_bytes: region.resident_bytes,
            staged_bytes: region.staged_bytes,
            stored_bytes: region.stored_bytes,
            held_bytes: in_frames.saturating_add(region.stored_bytes),
            region: Some(region),
            ..Self::default()
        }
    }
}

impl BasePage {
    fn of(base: &BaseView) -> Self {
        Self { bytes: base.size.get(), by_density: base.by_density, grown: base.grown, shrunk: base.shrunk }
    }
}

/// Of all trees of a look, with rates where the look before has the same tree or member.
pub fn groups(before: Option<&Look>, now: &Look) -> Vec<Group> {
    let of_tree = |tree: &Tree| {
        let earlier = before.and_then(|look| {
            let known = look.trees.iter().find(|earlier| earlier.path == tree.path)?;
            Some((known, now.at.saturating_duration_since(look.at)))
        });
        group(earlier, tree)
    };
    now.trees.iter().map(of_tree).collect()
}

fn group(earlier: Option<(&Tree, Duration)>, tree: &Tree) -> Group {
    let Tree { path, maker, view, names } = tree;
    let name = tree.program().unwrap_or("(its program has ended)");
    let kind = if view.regions.is_some() { "library" } else { "tree" };
    let mut whole = Row::of(*maker, name, kind, &view.totals);
    whole.share_bytes = view.totals.budget_bytes;
    whole.rates = earlier.and_then(|(known, elapsed)| {
        let known = &known.view;
        Rates::of((&known.totals, &known.latencies), (&view.totals, &view.latencies), elapsed)
    });
    let members = view.members.iter().zip(names).map(|(member, name)| {
        let status = Status::from_word(member.counters.status).name();
        let mut row = Row::of(member.identity.pid(), name, status, &member.counters);
        row.rates = earlier.and_then(|(known, elapsed)| {
            let known = known.view.members.iter().find(|known| known.identity == member.identity)?;
            let now = (&member.counters, &member.latencies);
            Rates::of((&known.counters, &known.latencies), now, elapsed)
        });
        row
    });
    let members: Vec<Row> = members.collect();
    whole.zones = zones(view).iter().map(Zone::of).collect();
    let regions = view.regions.as_ref();
    let rows = regions.map(|regions| regions.shown.iter().map(|region| Row::of_region(*maker, region)));
    Group {
        tree: whole,
        claimed_bytes: view.claimed.get(),
        members,
        regions_count: regions.map_or(0, |regions| regions.all),
        regions: rows.into_iter().flatten().collect(),
        file: path.clone(),
    }
}

#[cfg(test)]
#[path = "rows_test.rs"]
mod tests;
