use proptest::prelude::*;

use super::*;

const QUIET: Situation = Situation {
    pressure: false,
    budget: Bytes::gib(1),
    room: Bytes::new(u64::MAX),
    base: BasePage::K64,
    executable: false,
};
const PRESSED: Situation = Situation { pressure: true, ..QUIET };

/// A heap that has been there for a while.
fn heap(populated: Bytes) -> MappingFacts {
    MappingFacts {
        length: Bytes::mib(512),
        populated: Some(populated),
        read: true,
        write: true,
        execute: false,
        shared: false,
        anonymous: true,
        locked: false,
        unforked: false,
        own: false,
        main_stack: false,
        age_scans: 1,
        holds_thread_control_block: false,
    }
}
fn less(bytes: Bytes) -> Bytes {
    bytes.saturating_sub(Bytes::new(1))
}
const SMALL: Decision = Decision::Leave(Reason::Small);
const YOUNG: Decision = Decision::Leave(Reason::Young);

#[test]
fn empty_memory_that_exceeds_the_room_is_adopted_at_first_sight() {
    let room = Bytes::mib(64);
    let mapping = MappingFacts { length: Bytes::mib(65), age_scans: 0, ..heap(Bytes::ZERO) };
    assert_eq!(decide(&mapping, &QUIET), SMALL);
    let short = Situation { room, ..QUIET };
    assert_eq!(decide(&mapping, &short), Decision::Adopt);
    // A filled mapping takes no more room.
    let filled = MappingFacts { populated: Some(Bytes::mib(1)), ..mapping };
    assert_eq!(decide(&filled, &short), YOUNG);
    let reserved = MappingFacts { read: false, write: false, ..mapping };
    assert_eq!(decide(&reserved, &short), Decision::Leave(Reason::NoAccess));
}

#[test]
fn much_memory_that_is_written_and_executed_is_managed() {
    let code = MappingFacts { execute: true, ..heap(Bytes::mib(512)) };
    let (quiet, pressed) =
        (Situation { executable: true, ..QUIET }, Situation { executable: true, ..PRESSED });
    assert_eq!(decide(&code, &quiet), Decision::Adopt);
    let only_read = MappingFacts { write: false, ..code };
    assert_eq!(decide(&only_read, &quiet), Decision::Leave(Reason::Executable));
    // A trampoline stays, whatever is short.
    let trampoline = MappingFacts { populated: Some(less(POPULATED_LEAST)), ..code };
    assert_eq!(decide(&trampoline, &pressed), SMALL);
    assert_eq!(decide(&MappingFacts { execute: false, ..trampoline }, &pressed), Decision::Adopt);
    assert!(!executable_pays(Bytes::mib(16), Bytes::mib(64)));
    assert!(executable_pays(Bytes::mib(17), Bytes::mib(64)));
}

#[test]
fn each_kind_that_the_kernel_does_not_move_is_left_for_its_own_reason() {
    let full = heap(Bytes::mib(512));
    for (mapping, reason) in [
        (MappingFacts { own: true, ..full }, Reason::Own),
        (MappingFacts { shared: true, ..full }, Reason::Shared),
        (MappingFacts { anonymous: false, ..full }, Reason::File),
        (MappingFacts { execute: true, ..full }, Reason::Executable),
        (MappingFacts { read: false, write: false, ..full }, Reason::NoAccess),
        (MappingFacts { read: false, ..full }, Reason::NoAccess),
        (MappingFacts { write: false, ..full }, Reason::ReadOnly),
        (MappingFacts { write: false, locked: true, ..full }, Reason::ReadOnly),
        (MappingFacts { locked: true, ..full }, Reason::Locked),
        (MappingFacts { unforked: true, ..full }, Reason::Unforked),
    ] {
        assert_eq!(decide(&mapping, &QUIET), Decision::Leave(reason));
        assert_eq!(decide(&mapping, &PRESSED), Decision::Leave(reason));
        assert!(!reason.is_passing());
    }
}

#[test]
fn a_quarter_mebibyte_is_worth_it_and_under_pressure_one_base_page() {
    assert_eq!(decide(&heap(POPULATED_LEAST), &QUIET), Decision::Adopt);
    assert_eq!(decide(&heap(less(POPULATED_LEAST)), &QUIET), SMALL);
    assert_eq!(decide(&heap(Bytes::kib(64)), &PRESSED), Decision::Adopt);
    assert_eq!(decide(&heap(less(Bytes::kib(64))), &PRESSED), SMALL);
}

#[test]
fn less_than_can_go_at_once_is_never_worth_it() {
    for (base, least) in [(BasePage::K16, Bytes::kib(16)), (BasePage::M2, Bytes::kib(64))] {
        let situation = Situation { base, ..PRESSED };
        assert_eq!(decide(&heap(less(least)), &situation), SMALL);
        assert_eq!(decide(&heap(least), &situation), Decision::Adopt);
    }
}

#[test]
fn a_new_mapping_waits_for_a_second_look_unless_memory_is_short_or_it_takes_much_of_it() {
    let new = |populated| MappingFacts { age_scans: 0, ..heap(populated) };
    assert_eq!(decide(&new(Bytes::mib(1)), &QUIET), YOUNG);
    assert_eq!(decide(&new(Bytes::mib(1)), &PRESSED), Decision::Adopt);
    assert_eq!(decide(&new(less(Bytes::mib(128))), &QUIET), YOUNG);
    assert_eq!(decide(&new(Bytes::mib(128)), &QUIET), Decision::Adopt);
}

#[test]
fn the_main_stack_needs_a_mebibyte_always_and_no_second_look() {
    let stack = |populated| MappingFacts { main_stack: true, age_scans: 0, ..heap(populated) };
    for situation in [QUIET, PRESSED] {
        assert_eq!(decide(&stack(less(MAIN_STACK_LEAST)), &situation), SMALL);
        assert_eq!(decide(&stack(MAIN_STACK_LEAST), &situation), Decision::Adopt);
    }
}

#[test]
fn a_thread_stack_needs_a_page_beyond_its_live_part() {
    let stack = |populated| MappingFacts { holds_thread_control_block: true, ..heap(populated) };
    assert_eq!(decide(&stack(Bytes::kib(128)), &PRESSED), SMALL);
    assert_eq!(decide(&stack(Bytes::kib(192)), &PRESSED), Decision::Adopt);
}

#[test]
fn an_unscanned_mapping_counts_as_full() {
    let unknown = |length| MappingFacts { populated: None, length, ..heap(Bytes::ZERO) };
    assert_eq!(decide(&unknown(Bytes::mib(1)), &QUIET), Decision::Adopt);
    assert_eq!(decide(&unknown(Bytes::kib(128)), &QUIET), SMALL);
}

#[test]
fn a_reason_counts_at_its_own_place() {
    for (place, reason) in Reason::ALL.into_iter().enumerate() {
        assert_eq!(reason as usize, place);
    }
}

proptest! {
    #[test]
    fn pressure_age_and_more_memory_never_turn_an_adoption_away(
        populated in 0u64..64 << 20,
        more in 0u64..64 << 20,
        age_scans in 0u32..3,
        main_stack in any::<bool>(),
        holds_thread_control_block in any::<bool>(),
        base in prop::sample::select(BasePage::ALL.as_slice()),
    ) {
        let mapping =
            MappingFacts { age_scans, main_stack, holds_thread_control_block, ..heap(Bytes::new(populated)) };
        let quiet = Situation { base, ..QUIET };
        if decide(&mapping, &quiet) == Decision::Adopt {
            let fuller = MappingFacts { populated: Some(Bytes::new(populated + more)), ..mapping };
            let older = MappingFacts { age_scans: age_scans + 1, ..mapping };
            prop_assert_eq!(decide(&fuller, &quiet), Decision::Adopt);
            prop_assert_eq!(decide(&older, &quiet), Decision::Adopt);
            prop_assert_eq!(decide(&mapping, &Situation { pressure: true, ..quiet }), Decision::Adopt);
        }
    }
}
