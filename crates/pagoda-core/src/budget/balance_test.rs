//! Programs as distributions of their reuse distances, in a budget of 128 MiB with compression 2:1.

use super::*;

const MIB: f64 = 1024.0 * 1024.0;
const BUDGET: f64 = 128.0;
const STORE_MOST: f64 = 96.0;
const RATIO: f64 = 2.0;
const STORED_NS: f64 = 20_000.0;
const SPILLED_NS: f64 = 200_000.0;
const ACCESSES: f64 = 20_000.0;
const LOOK_NS: u64 = 100_000_000;

/// The share of accesses whose page is up to so many MiB of distinct pages behind.
type Reuse = dyn Fn(f64) -> f64;

struct Model {
    balance: Balance,
    now_ns: u64,
    parts: u64,
}

impl Model {
    fn new() -> Self {
        Self { balance: Balance::default(), now_ns: 0, parts: WHOLE }
    }

    /// What faults wait in a look's time, in seconds, with so much compressed.
    fn waited(reuse: &Reuse, store: f64) -> f64 {
        let (near, far) = (BUDGET - store, BUDGET - store + RATIO * store);
        let (stored, spilled) = (reuse(far) - reuse(near), 1.0 - reuse(far));
        ACCESSES * (stored * STORED_NS + spilled * SPILLED_NS) / 1e9
    }

    fn store(&self) -> f64 {
        STORE_MOST * self.parts as f64 / WHOLE as f64
    }

    fn look(&mut self, reuse: &Reuse) {
        let store = self.store();
        let (resident, far) = (BUDGET - store, BUDGET - store + RATIO * store);
        let hits = |from: f64, to: f64| (ACCESSES * (reuse(to) - reuse(from))) as u64;
        let (near, edge) = (resident / 8.0, store / 4.0);
        let (stored, spilled) = (hits(resident, far), (ACCESSES * (1.0 - reuse(far))) as u64);
        let seen = Refaults {
            stored,
            stored_ns: stored * STORED_NS as u64,
            near: hits(resident, far.min(resident + near)),
            near_spilled: hits(far, far.max(resident + near)),
            near_bytes: (near * MIB) as u64,
            spilled,
            spilled_ns: spilled * SPILLED_NS as u64,
            edge: hits(far, far + RATIO * edge),
            edge_bytes: (edge * MIB) as u64,
        };
        self.now_ns += LOOK_NS;
        self.parts = self.balance.look(&seen, self.parts, self.now_ns);
        assert!((LEAST..=WHOLE).contains(&self.parts));
    }

    /// The mean of what faults wait over this many looks.
    fn run(&mut self, reuse: &Reuse, looks: u32) -> f64 {
        let mut waited = 0.0;
        for _ in 0..looks {
            waited += Self::waited(reuse, self.store());
            self.look(reuse);
        }
        waited / f64::from(looks)
    }
}

/// All accesses go to so many MiB alike.
fn alike(mib: f64) -> impl Fn(f64) -> f64 {
    move |distance| (distance / mib).min(1.0)
}

#[test]
fn a_working_set_that_nearly_fits_gets_its_memory() {
    let mut model = Model::new();
    let hot = alike(90.0);
    model.run(&hot, 40);
    assert!(BUDGET - model.store() >= 85.0, "{} MiB are compressed", model.store());
    assert!(model.run(&hot, 100) < Model::waited(&hot, STORE_MOST) / 10.0);
}

#[test]
fn a_program_that_touches_more_than_fits_alike_keeps_all_compressed() {
    for mib in [260.0, 400.0, 1000.0] {
        let all = alike(mib);
        let mut model = Model::new();
        let best = Model::waited(&all, STORE_MOST);
        let waited = model.run(&all, 600);
        assert!(waited < best * 1.02, "{mib} MiB: {waited} for {best}");
    }
}

#[test]
fn a_wrong_step_is_a_small_one() {
    // It all fits, compressed.
    let all = alike(223.0);
    let mut model = Model::new();
    let mut least = WHOLE;
    for _ in 0..600 {
        model.look(&all);
        least = least.min(model.parts);
    }
    assert!(least < WHOLE, "it tries");
    assert!(least >= WHOLE - WHOLE / 16, "{least} parts");
}

#[test]
fn it_is_near_the_best_division_or_the_whole_for_skewed_programs() {
    for skew in [0.3, 0.5, 0.8] {
        let skewed = move |distance: f64| (distance / 600.0).min(1.0).powf(skew);
        let best = (12..=96).map(|store| Model::waited(&skewed, f64::from(store))).fold(f64::MAX, f64::min);
        let waited = Model::new().run(&skewed, 600);
        assert!(waited < best * 1.1, "{skew}: {waited} for {best}");
    }
}

#[test]
fn another_phase_of_the_program_has_its_own_division() {
    let mut model = Model::new();
    model.run(&alike(90.0), 100);
    let all = alike(400.0);
    model.run(&all, 40);
    assert!(model.parts > WHOLE * 9 / 10, "{} parts", model.parts);
    // It waits before it tries again, for longer the more often it was wrong, and not for good.
    model.run(&all, 600);
    model.run(&alike(90.0), 700);
    assert!(BUDGET - model.store() >= 85.0, "{} MiB are compressed", model.store());
}

#[test]
fn without_faults_nothing_changes() {
    let mut balance = Balance::default();
    assert_eq!(balance.look(&Refaults::default(), WHOLE, LOOK_NS), WHOLE);
    let few = Refaults { stored: 9, stored_ns: 900_000, near: 9, near_bytes: 1, ..Refaults::default() };
    assert_eq!(balance.look(&few, WHOLE, 2 * LOOK_NS), WHOLE);
}

#[test]
fn a_step_waits_until_the_last_one_has_taken_effect() {
    let seen =
        Refaults { stored: 900, stored_ns: 9_000_000, near: 900, near_bytes: 1, ..Refaults::default() };
    let mut balance = Balance::default();
    let lower = balance.look(&seen, WHOLE, LOOK_NS);
    assert!(lower < WHOLE);
    assert_eq!(balance.look(&seen, WHOLE, 2 * LOOK_NS), lower, "too much is compressed still");
    assert!(balance.look(&seen, lower, 3 * LOOK_NS) < lower);
}

/// A working set that does not fit, beside colder pages that are all compressed.
#[test]
fn a_share_that_is_not_used_is_lowered_from_what_is_used() {
    let seen =
        Refaults { stored: 900, stored_ns: 9_000_000, near: 900, near_bytes: 1, ..Refaults::default() };
    let mut balance = Balance::default();
    assert_eq!(balance.look(&seen, WHOLE / 2, LOOK_NS), WHOLE, "it does not wait for long");
    let from_file = Refaults { near_spilled: 20, ..seen };
    assert!(balance.look(&from_file, WHOLE / 2, 2 * LOOK_NS) < WHOLE / 2);
    let waits = Refaults { stored_ns: 3 * seen.stored_ns, ..seen };
    assert_eq!(Balance::default().look(&waits, LEAST, LOOK_NS), WHOLE, "so little is not worth it");
    assert!(Balance::default().look(&waits, WHOLE / 2, LOOK_NS) < WHOLE / 2);
}

#[test]
fn without_room_in_the_file_all_stays_compressed_for_a_while() {
    let mut model = Model::new();
    let hot = alike(90.0);
    model.run(&hot, 40);
    assert!(model.parts < WHOLE);
    model.parts = model.balance.can_not_spill(model.now_ns);
    model.run(&hot, 600);
    assert_eq!(model.parts, WHOLE);
    model.run(&hot, 100);
    assert!(model.parts < WHOLE, "it tries again");
}
