//! The metrics of one look at all trees, library managers and servers. Pure.
//!
//! Every counter of [`Stats`] is one, by its own name and kind, so that none is forgotten; faults
//! are one family with a label for their kind, and zones with one for their number. Counts are
//! those of whole trees: a place of a tree counted for other processes before its present one, so
//! of single processes only gauges are told. This module must never write the same series twice: a
//! reader refuses the whole answer for it.

use pagoda::frames::zones::ZoneStats;
use pagoda::stats::counters::{Counter, Kind as CounterKind, Stats};
use pagoda::stats::fault_kind::FaultKind;
use pagoda_core::size::Bytes;
use pagoda_core::time::latency;

use super::exposition::{Exposition, Format, Kind, seconds};
use super::served;
use crate::top::find::{Look, Tree};

/// The processes of a tree that are told, those that hold most: more make a series a process of a
/// build.
const PROCESSES_MAX: usize = 64;

/// The bounds of the histogram: the powers of two from 2^10 to 2^35 ns (1 µs to 34 s). Each is the
/// end of a group of eight buckets of [`latency`], so that no observation is split.
const BOUND_BITS: std::ops::RangeInclusive<u32> = 10..=35;

/// Whether a counter is a family of its own: not one that only a single process has, nor a kind of
/// faults or a zone's, which have families with a label.
fn stands_alone(counter: Counter) -> bool {
    let of_tree = counter == Counter::BasePageBytes;
    let in_another = counter.name().starts_with("zone") && !counter.name().starts_with("zones_")
        || [
            "faults",
            "faults_zero",
            "faults_huge",
            "faults_staged",
            "faults_stored",
            "faults_spilled",
            "faults_spurious",
        ]
        .contains(&counter.name());
    (of_tree || counter.kind() != CounterKind::Own) && !in_another
}

/// A tree with its two labels.
struct Labelled<'a> {
    name: String,
    program: &'a str,
    tree: &'a Tree,
}

impl Labelled<'_> {
    fn labels(&self) -> [(&str, &str); 2] {
        [("tree", &self.name), ("program", self.program)]
    }
}

/// The text of all metrics.
pub fn render(look: &Look, told: &[served::Told], format: Format) -> String {
    let trees = labelled(look);
    let mut to = Exposition::new(format);
    to.family("pagoda_build", Kind::Info, "The version of the exporter.");
    to.sample(&[("version", env!("CARGO_PKG_VERSION"))], 1);
    to.family("pagoda_trees", Kind::Gauge, "Trees of pagoda run and managers of libraries that were found.");
    to.sample(&[], trees.len());
    to.family("pagoda_files_rejected", Kind::Gauge, "Files with a tree file's name that could not be read.");
    to.sample(&[], look.rejected.len());
    to.family(
        "pagoda_tree",
        Kind::Info,
        "A tree: the process that made it, and whether that is a pagoda run or a library.",
    );
    for tree in &trees {
        let kind = if tree.tree.view.regions.is_some() { "library" } else { "run" };
        let [name, program] = tree.labels();
        to.sample(&[name, program, ("pid", &tree.tree.maker.to_string()), ("kind", kind)], 1);
    }
    to.family("pagoda_budget_bytes", Kind::Gauge, "The budget of all processes together.");
    for tree in &trees {
        to.sample(&tree.labels(), tree.tree.view.totals.budget_bytes);
    }
    to.family("pagoda_claimed_bytes", Kind::Gauge, "The claims of all processes on the budget.");
    for tree in &trees {
        to.sample(&tree.labels(), tree.tree.view.claimed.get());
    }
    faults(&mut to, &trees);
    counters(&mut to, &trees);
    zones(&mut to, &trees);
    processes(&mut to, &trees);
    regions(&mut to, &trees);
    served::write(&mut to, told);
    to.finish()
}

/// Each tree once. Its label is its file's name, which is never used twice.
fn labelled(look: &Look) -> Vec<Labelled<'_>> {
    let mut trees: Vec<Labelled> = Vec::new();
    for tree in &look.trees {
        let (name, program) = (tree.label(), tree.program().unwrap_or_default());
        // The same file by two directories.
        if trees.iter().all(|known| known.name != name) {
            trees.push(Labelled { name, program, tree });
        }
    }
    trees
}

fn faults(to: &mut Exposition, trees: &[Labelled]) {
    to.family("pagoda_faults", Kind::Counter, "Faults that were served, by where they found their page.");
    for (tree, kind) in each_kind(trees) {
        let [name, program] = tree.labels();
        let count = tree.tree.view.latencies.of(kind).iter().fold(0u64, |sum, n| sum.saturating_add(*n));
        to.sample(&[name, program, ("kind", kind.name())], count);
    }
    to.family(
        "pagoda_fault_duration_seconds",
        Kind::Histogram,
        "How long faults took, from having been read to having been served; the sum of all kinds is \
         pagoda_fault_service_seconds_total.",
    );
    for (tree, kind) in each_kind(trees) {
        let [name, program] = tree.labels();
        let labels = [name, program, ("kind", kind.name())];
        let counts = tree.tree.view.latencies.of(kind);
        let until = |end: usize| counts[..end].iter().fold(0u64, |sum, n| sum.saturating_add(*n));
        for bits in BOUND_BITS {
            let most = (1u64 << bits) - 1;
            to.bucket(&labels, &seconds(most), until(latency::index_of(most) + 1));
        }
        to.bucket(&labels, "+Inf", until(counts.len()));
    }
}

fn each_kind<'a>(trees: &'a [Labelled<'a>]) -> impl Iterator<Item = (&'a Labelled<'a>, FaultKind)> {
    trees.iter().flat_map(|tree| FaultKind::ALL.map(|kind| (tree, kind)))
}

fn counters(to: &mut Exposition, trees: &[Labelled]) {
    for counter in Counter::ALL.into_iter().filter(|counter| stands_alone(*counter)) {
        let name = counter.name();
        let stem = name.strip_suffix("_ns");
        let family = stem.map_or_else(|| format!("pagoda_{name}"), |stem| format!("pagoda_{stem}_seconds"));
        to.family(&family, kind_of(counter), &help_of(counter));
        for tree in trees {
            let value = value_of(&tree.tree.view.totals, counter);
            match stem {
                Some(_) => to.sample(&tree.labels(), seconds(value)),
                None => to.sample(&tree.labels(), value),
            }
        }
    }
}

/// A family of zones: the rest of its name, its kind, its help, and its value.
type ZoneFamily = (&'static str, Kind, &'static str, fn(&ZoneStats) -> Bytes);

const ZONE_FAMILIES: [ZoneFamily; 7] = [
    ("", Kind::Gauge, "A zone's part of the budget.", |zone| zone.bytes),
    ("held_", Kind::Gauge, "Bytes of a zone in frames: in regions, staged and ready.", |zone| zone.held),
    ("free_", Kind::Gauge, "Free bytes of a zone.", |zone| zone.free),
    ("low_", Kind::Gauge, "Below so many free bytes another zone is preferred.", |zone| zone.low),
    ("high_", Kind::Gauge, "Reclaim raises a zone's free bytes to this.", |zone| zone.high),
    ("allocated_", Kind::Counter, "Bytes that a zone gave.", |zone| zone.allocated),
    ("evicted_", Kind::Counter, "Bytes that reclaim moved out of a zone's frames.", |zone| zone.evicted),
];

fn zones(to: &mut Exposition, trees: &[Labelled]) {
    for (what, kind, help, value) in ZONE_FAMILIES {
        to.family(&format!("pagoda_zone_{what}bytes"), kind, help);
        for tree in trees {
            for (at, zone) in crate::top::rows::zones(&tree.tree.view).iter().enumerate() {
                let [name, program] = tree.labels();
                to.sample(&[name, program, ("zone", &at.to_string())], value(zone).get());
            }
        }
    }
}

/// A part of a name, its help, and its value.
type Family<T> = (&'static str, &'static str, fn(&T) -> u64);

fn processes(to: &mut Exposition, trees: &[Labelled]) {
    let families: [Family<Stats>; 3] = [
        ("anon", "Anonymous memory of a process by the kernel's count.", |stats| stats.anon_bytes),
        ("held", "What a process would hold without Pagoda.", |stats| stats.held_bytes),
        ("share", "A process's share of the budget; 0 without an engine.", |stats| stats.share_bytes),
    ];
    for (what, help, value) in families {
        to.family(&format!("pagoda_process_{what}_bytes"), Kind::Gauge, help);
        for tree in trees {
            let mut members: Vec<_> = tree.tree.view.members.iter().zip(&tree.tree.names).collect();
            members.sort_by_key(|(member, _)| std::cmp::Reverse(member.counters.held_bytes));
            for (member, own_name) in members.into_iter().take(PROCESSES_MAX) {
                let [name, program] = tree.labels();
                let pid = member.identity.pid().to_string();
                to.sample(&[name, program, ("pid", &pid), ("name", own_name)], value(&member.counters));
            }
        }
    }
}

fn regions(to: &mut Exposition, trees: &[Labelled]) {
    let families: [Family<pagoda::tree::RegionView>; 4] = [
        ("size", "The length of a region; of a manager's the largest are told.", |region| region.len.get()),
        ("resident", "Bytes of a region in frames.", |region| region.resident.get()),
        ("staged", "Bytes of a region that are out of it with their frames intact.", |region| {
            region.staged.get()
        }),
        ("stored", "Bytes of a region that are stored, before compression.", |region| region.stored.get()),
    ];
    for (what, help, value) in families {
        to.family(&format!("pagoda_region_{what}_bytes"), Kind::Gauge, help);
        for tree in trees {
            for region in tree.tree.view.regions.iter().flat_map(|regions| &regions.shown) {
                let [name, program] = tree.labels();
                let start = format!("{:#x}", region.start);
                to.sample(&[name, program, ("region", &start)], value(region));
            }
        }
    }
}

fn kind_of(counter: Counter) -> Kind {
    match counter.kind() {
        CounterKind::Total => Kind::Counter,
        CounterKind::Own | CounterKind::Gauge | CounterKind::Peak => Kind::Gauge,
    }
}

/// A counter's documentation, without the marks that rustdoc knows.
fn help_of(counter: Counter) -> String {
    let help = counter.help().trim();
    let help = help.strip_prefix("Gauge: ").unwrap_or(help).replace(['`', '[', ']'], "");
    let first = help.chars().next().map_or(0, char::len_utf8);
    help[..first].to_uppercase() + &help[first..]
}

fn value_of(stats: &Stats, counter: Counter) -> u64 {
    stats.fields()[counter as usize].1
}

#[cfg(test)]
#[path = "metrics_test.rs"]
mod tests;
