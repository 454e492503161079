//! What is shown of each tree and member: two looks, and what happened between them. Pure.
//!
//! This module must never show a count of a member as it stands: its place counted for others before it. Only what was added
//! since the last look is the member's own.

use std::time::Duration;

use pagoda::counters::{Snapshot, Status};
use pagoda::latencies::Latencies;
use pagoda::zones::ZoneStats;
use serde::Serialize;

use super::find::{Look, Tree};
use crate::latency::LatencyUs;

/// A tree, and its members.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Group {
    /// The tree as a whole; its number is that of `pagoda run`, its share the budget.
    #[serde(flatten)]
    pub tree: Row,
    /// What all members claim of the budget.
    pub claimed_bytes: u64,
    /// The living ones.
    pub members: Vec<Row>,
}

/// A tree or a member. Sizes are bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Row {
    pub pid: u32,
    /// What the kernel calls the process; of a tree, its first program.
    pub name: String,
    /// `managed`, `small` (watched, too small to need an engine), `released`, `failed` or `unmanaged`; of a tree `tree`.
    pub status: &'static str,
    pub base_page_bytes: u64,
    pub share_bytes: u64,
    /// By the kernel's count.
    pub anon_bytes: u64,
    /// What it would hold without Pagoda.
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
    /// What is stored over what it takes; null if nothing is stored.
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
}

/// What one zone has now.
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
    fn all(counters: &Snapshot) -> Vec<Self> {
        let zone = |stats: &ZoneStats| Self {
            bytes: stats.bytes.get(),
            held_bytes: stats.held.get(),
            free_bytes: stats.free.get(),
            low_bytes: stats.low.get(),
            high_bytes: stats.high.get(),
        };
        ZoneStats::all(counters).iter().map(zone).collect()
    }
}

/// What happened between two looks, by second.
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
    /// How long the faults took.
    pub latency_us: LatencyUs,
}

impl Rates {
    fn of(before: (&Snapshot, &Latencies), now: (&Snapshot, &Latencies), elapsed: Duration) -> Option<Self> {
        let seconds = elapsed.as_secs_f64();
        if seconds <= 0.0 {
            return None;
        }
        let rate =
            |count: fn(&Snapshot) -> u64| count(now.0).saturating_sub(count(before.0)) as f64 / seconds;
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
            latency_us: LatencyUs::of(&now.1.since(before.1)),
        })
    }
}

impl Row {
    fn of(pid: u32, name: &str, status: &'static str, counters: &Snapshot) -> Self {
        let takes = counters.store_memory_bytes.saturating_add(counters.spilled_bytes);
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
            compression: stores.then(|| counters.stored_bytes as f64 / takes as f64),
            ready_bytes: counters.ready_bytes,
            free_bytes: counters.free_bytes,
            free_min_bytes: counters.free_min_bytes,
            free_low_bytes: counters.free_low_bytes,
            free_high_bytes: counters.free_high_bytes,
            release_queued_bytes: counters.release_queued_bytes,
            copied_on_write_bytes: counters.copied_on_write_bytes,
            zones: Zone::all(counters),
            rates: None,
        }
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
    let Tree { maker, view, names, .. } = tree;
    let first = view.members.iter().position(|member| member.is_first);
    let name = first.map_or("(its program has ended)", |at| &names[at]);
    let mut whole = Row::of(*maker, name, "tree", &view.totals);
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
    // Every engine has all zones, however small its share: together they are no larger.
    for (at, zone) in whole.zones.iter_mut().enumerate() {
        let of_members = members.iter().filter_map(|row| row.zones.get(at));
        zone.bytes = of_members.map(|zone| zone.bytes).max().unwrap_or(zone.bytes);
    }
    Group { tree: whole, claimed_bytes: view.claimed.get(), members }
}

#[cfg(test)]
#[path = "rows_test.rs"]
mod tests;
