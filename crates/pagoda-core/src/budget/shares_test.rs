use proptest::prelude::*;

use super::*;

fn bytes() -> impl Strategy<Value = Bytes> {
    prop_oneof![(0u64..64 << 20), (0u64..8 << 30), any::<u64>()].prop_map(Bytes::new)
}

fn pain() -> impl Strategy<Value = Pain> {
    prop::sample::select(Pain::ALL.as_slice())
}

fn any_use() -> impl Strategy<Value = Use> {
    prop_oneof![
        1 => (0u64..32 << 20).prop_map(|held| Use::Unlimited { held: Bytes::new(held) }),
        4 => (bytes(), pain()).prop_map(|(held, pain)| Use::Managed { held, pain }),
    ]
}

fn is_managed(member: &Use) -> bool {
    matches!(member, Use::Managed { .. })
}

fn targets(budget: Bytes, members: &[Use]) -> Vec<u64> {
    members.iter().map(|mine| target(budget, members.iter().copied(), *mine).get()).collect()
}

proptest! {
    #[test]
    fn targets_sum_to_no_more_than_the_budget_leaves(
        members in prop::collection::vec(any_use(), 1..60),
        budget in 1u64..64 << 30,
    ) {
        let targets = targets(Bytes::new(budget), &members);
        let sum = |managed| members.iter().zip(&targets)
            .filter(|(member, _)| is_managed(member) == managed)
            .map(|(_, target)| *target)
            .sum::<u64>();
        prop_assert!(sum(true) <= budget.saturating_sub(sum(false)));
    }

    #[test]
    fn each_has_its_floor_and_no_more_than_it_can_use_when_memory_is_short(
        members in prop::collection::vec((bytes(), pain()), 1..60),
        budget in 1u64..16 << 30,
    ) {
        let members: Vec<_> = members.into_iter().map(|(held, pain)| Use::Managed { held, pain }).collect();
        let needs: Vec<_> = members.iter().map(|member| member.need(budget)).collect();
        let targets = targets(Bytes::new(budget), &members);
        let floor = FLOOR.get().min(budget / members.len() as u64);
        for (target, need) in targets.iter().zip(&needs) {
            prop_assert!(*target >= floor.min(*need));
            prop_assert!(*target <= *need || needs.iter().sum::<u64>() <= budget);
        }
        // Scarce memory is used up, except for rounding.
        if needs.iter().sum::<u64>() > budget {
            prop_assert!(targets.iter().sum::<u64>() + 4 * members.len() as u64 >= budget);
        }
    }

    #[test]
    fn more_use_and_more_pain_never_mean_less(
        others in prop::collection::vec(any_use(), 0..20),
        held in bytes(), more in bytes(), pain in pain(), worse in pain(),
        budget in 1u64..16 << 30,
    ) {
        let of = |held, pain| {
            let mine = Use::Managed { held, pain };
            target(Bytes::new(budget), others.iter().copied().chain([mine]), mine)
        };
        prop_assert!(of(held.max(more), pain) >= of(held.min(more), pain));
        prop_assert!(of(held, pain.max(worse)) >= of(held, pain.min(worse)));
    }

    #[test]
    fn a_use_comes_back_from_its_word(member in any_use(), word: u64) {
        let capped = match member {
            Use::Unlimited { held } => Use::Unlimited { held: held.min(Bytes::new(USE_MOST)) },
            Use::Managed { held, pain } => Use::Managed { held: held.min(Bytes::new(USE_MOST)), pain },
        };
        prop_assert_eq!(Use::from_word(member.to_word()), Some(capped));
        prop_assert_ne!(member.to_word(), 0);
        // An arbitrary word does not make any of it panic.
        if let Some(strange) = Use::from_word(word) {
            let _ = target(Bytes::gib(1), [strange].into_iter(), strange);
        }
    }
}

#[test]
fn a_lone_member_has_all_and_several_leave_some_to_grow_into() {
    let small = Use::Managed { held: Bytes::ZERO, pain: Pain::None };
    assert_eq!(targets(Bytes::gib(1), &[small]), [1 << 30]);
    let sum: u64 = targets(Bytes::gib(1), &[small, small]).iter().sum();
    assert_eq!(sum, (4 << 20) + (1020 << 20) / 2);
    let other = Use::Unlimited { held: Bytes::mib(24) };
    assert_eq!(targets(Bytes::gib(1), &[small, other]), [1000 << 20, 24 << 20]);
}

#[test]
fn an_idle_member_leaves_its_floor_to_one_that_is_short() {
    let idle = Use::Managed { held: Bytes::mib(1), pain: Pain::None };
    let short = Use::Managed { held: Bytes::mib(58), pain: Pain::Much };
    assert_eq!(targets(Bytes::mib(36), &[idle, short]), [3 << 20, 33 << 20]);
    let grown = Use::Managed { held: Bytes::mib(58), pain: Pain::None };
    assert!(
        targets(Bytes::mib(36), &[grown, short])[0] >= FLOOR.get(),
        "it has it again as soon as it needs it"
    );
}

#[test]
fn a_small_tree_has_engines_sooner() {
    let from = [8, 45, 64, 128, 1024].map(|mib| engine_from(Bytes::mib(mib)).get() >> 10);
    assert_eq!(from, [4 << 10, 45 << 7, 8 << 10, 16 << 10, 16 << 10]);
}

#[test]
fn a_member_that_suffers_gets_more_of_a_scarce_budget() {
    let member = |pain| Use::Managed { held: Bytes::gib(1), pain };
    let got = targets(Bytes::mib(332), &[member(Pain::None), member(Pain::Much)]);
    assert_eq!(got, [(16 + 60) << 20, (16 + 240) << 20]);
}

#[test]
fn a_rate_is_the_bytes_fetched_in_a_second() {
    let mut rate = FetchRate::default();
    let mut last = Bytes::ZERO;
    for look in 0..100u64 {
        last = rate.update(1 + look * 50_000_000, Bytes::mib(look * 5));
    }
    assert!(last > Bytes::mib(99) && last <= Bytes::mib(100), "{last}");
    assert_eq!(Pain::of_rate(last, Bytes::gib(1)), Pain::Some);
    assert_eq!(Pain::of_rate(last, Bytes::mib(200)), Pain::Much);
    assert_eq!(Pain::of_rate(last, Bytes::gib(100)), Pain::None);
}

/// Numbers by a seed; no crate is worth its weight here.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % bound
    }
}

/// One process: its wishes and its progress in a look, which others' steps may interrupt anywhere.
struct Member {
    managed: bool,
    /// The memory that the program wants to hold, and the resident part of it.
    held: u64,
    real: u64,
    share: u64,
    claim: u64,
    /// The state that others see.
    published: Use,
    look: Option<(Look, Option<Bytes>)>,
}

impl Member {
    fn new(managed: bool) -> Self {
        let published = Use::Unlimited { held: Bytes::ZERO };
        Self { managed, held: 0, real: 0, share: 0, claim: 0, published, look: None }
    }
    fn now(&self) -> Use {
        let held = Bytes::new(self.held);
        if self.managed { Use::Managed { held, pain: Pain::None } } else { Use::Unlimited { held } }
    }
}

struct Tree {
    budget: u64,
    members: Vec<Member>,
    random: Random,
}

impl Tree {
    fn claims_beside(&self, at: usize) -> Bytes {
        let all: u64 = self.members.iter().map(|member| member.claim).sum();
        Bytes::new(all - self.members[at].claim)
    }

    /// One step of one member: begin a look, announce, or settle.
    fn step(&mut self, at: usize) {
        let (budget, others) = (Bytes::new(self.budget), self.claims_beside(at));
        let published = self.members[at].now();
        self.members[at].published = published;
        let uses: Vec<Use> = self.members.iter().map(|member| member.published).collect();
        let member = &mut self.members[at];
        if !member.managed {
            member.real = member.held;
            member.claim = member.held;
            return;
        }
        let held = Bytes::new(member.real);
        match member.look.take() {
            None => {
                let managed = uses.iter().filter(|member| is_managed(member)).count() as u32;
                let target = target(budget, uses.iter().copied(), published);
                let share = Bytes::new(member.share);
                member.look = Some((Look { budget, managed, target, share, held, others }, None));
            }
            Some((look, None)) => {
                let proposal = look.proposal();
                member.claim = claim(proposal.max(look.share), held).get();
                member.look = Some((look, Some(proposal)));
            }
            Some((look, Some(proposal))) => {
                member.share = look.settled(proposal, others).get();
                member.claim = claim(Bytes::new(member.share), held).get();
            }
        }
        // The engine takes its share, and gives the excess back a part at a time.
        let wish = member.held.min(member.share);
        member.real = if member.real > wish { wish.max(member.real - member.real / 8) } else { wish };
    }

    fn change(&mut self) {
        let random = &mut self.random;
        let at = random.below(self.members.len() as u64) as usize;
        match random.below(12) {
            0 if self.members.len() < 40 => {
                let managed = random.below(3) > 0;
                self.members.push(Member::new(managed));
            }
            1 if self.members.len() > 1 => drop(self.members.swap_remove(at)),
            2 => self.members[at].held /= 1 + random.below(4),
            _ => {
                let most = if self.members[at].managed { self.budget / 2 } else { 4 << 20 };
                let more = random.below(most / 4);
                let member = &mut self.members[at];
                member.held = (member.held + more).min(most);
            }
        }
    }

    /// The shares, without the floors that were given without asking for room, and beside the
    /// members without a limit.
    fn check(&self) {
        let managed = || self.members.iter().filter(|member| member.managed);
        let shares: u64 = managed().map(|member| member.share).sum();
        let floors = managed().filter(|member| member.share <= FLOOR.get()).count() as u64 * FLOOR.get();
        let unlimited: u64 =
            self.members.iter().filter(|member| !member.managed).map(|member| member.held).sum();
        assert!(shares <= self.budget + floors + unlimited, "{shares} of {}", self.budget);
    }
}

#[test]
fn shares_stay_within_the_budget_while_members_come_and_go_and_settle_when_they_stay() {
    for seed in 0..60 {
        let mut random = Random(seed);
        let budget = (32 + random.below(2000)) << 20;
        let members = (0..1 + random.below(24)).map(|_| Member::new(true)).collect();
        let mut tree = Tree { budget, members, random };
        for round in 0..1500 {
            if tree.random.below(3) == 0 {
                tree.change();
            }
            for _ in 0..tree.members.len() {
                let at = tree.random.below(tree.members.len() as u64) as usize;
                tree.step(at);
                tree.check();
            }
            // Now and then all stand still, in any order and in the midst of their looks.
            if round % 500 == 499 {
                for _ in 0..600 {
                    for at in 0..tree.members.len() {
                        tree.step(at);
                    }
                }
                settled(&tree, seed);
            }
        }
    }
}

fn settled(tree: &Tree, seed: u64) {
    let uses: Vec<Use> = tree.members.iter().map(|member| member.published).collect();
    let targets = targets(Bytes::new(tree.budget), &uses);
    let unlimited: u64 = tree.members.iter().filter(|member| !member.managed).map(|member| member.held).sum();
    let shares: u64 = tree.members.iter().map(|member| member.share).sum();
    assert!(
        shares <= tree.budget.saturating_sub(unlimited),
        "seed {seed}: {shares} + {unlimited} of {}",
        tree.budget
    );
    for (member, target) in tree.members.iter().zip(targets).filter(|(member, _)| member.managed) {
        let zone = dead_zone(Bytes::new(member.share.max(target))).get();
        assert!(member.share.abs_diff(target) <= zone, "seed {seed}: {} is not {target}", member.share);
        assert!(member.real <= member.share && member.claim == member.share);
    }
}
