use proptest::prelude::*;

use super::*;

const LENGTH: Bytes = Bytes::gib(1);

/// `touched_pages` OS pages at the start of each block of `stride` bytes, in the first 16 MiB.
fn regular(stride: u64, touched_pages: u64) -> Touched {
    let blocks = (16 << 20) / stride;
    Touched::of((0..blocks).map(|i| i * stride..i * stride + touched_pages * OS_PAGE as u64))
}

fn sparse() -> Touched {
    regular(64 << 10, 1)
}
fn dense() -> Touched {
    regular(2 << 20, 512)
}

fn any_use() -> impl Strategy<Value = Use> {
    prop::sample::select([Use::Buffer, Use::Heap, Use::Stack, Use::Reserved, Use::Unknown].as_slice())
}

fn touched() -> impl Strategy<Value = Touched> {
    let stride = prop::sample::select([4u64 << 10, 16 << 10, 64 << 10, 2 << 20].as_slice());
    prop_oneof![
        1 => Just(Touched::default()),
        6 => (stride, 0.0..=1.0f64).prop_map(|(stride, part)| {
            let pages = stride / OS_PAGE as u64;
            regular(stride, ((pages as f64 * part) as u64).max(1))
        }),
    ]
}

/// The sizes after each of `looks` looks that all find the same.
fn sizes(chooser: &mut Chooser, touched: &Touched, looks: usize) -> Vec<BasePage> {
    let look = |_| {
        chooser.look(touched);
        chooser.size()
    };
    (0..looks).map(look).collect()
}

#[test]
fn a_range_starts_at_the_size_its_use_suggests() {
    let start = |of: Use, length| of.start(length);
    assert_eq!(start(Use::Buffer, Bytes::mib(32)), BasePage::M2);
    assert_eq!(start(Use::Buffer, Bytes::mib(31)), BasePage::K64);
    assert_eq!(start(Use::Buffer, Bytes::kib(63)), BasePage::K16);
    assert_eq!(start(Use::Heap, Bytes::gib(1)), BasePage::K64);
    assert_eq!(start(Use::Stack, Bytes::mib(8)), BasePage::K16);
    assert_eq!(start(Use::Reserved, Bytes::gib(1024)), BasePage::K4);
    assert_eq!(start(Use::Heap, Bytes::ZERO), BasePage::K4);
}

#[test]
fn a_range_that_is_in_use_starts_as_small_as_it_is_sparse() {
    let size = |touched: &Touched| Chooser::in_use(LENGTH, touched).size();
    assert_eq!(size(&sparse()), BasePage::K4);
    assert_eq!(size(&dense()), BasePage::K64);
    assert_eq!(size(&regular(64 << 10, 8)), BasePage::K64, "half of it is used");
    assert_eq!(size(&regular(64 << 10, 4)), BasePage::K16, "its four pages lie together");
    assert_eq!(size(&Touched::default()), BasePage::K64, "nothing is known");
    assert_eq!(size(&Touched::of([0..4096, 65536..69632])), BasePage::K64, "two pages are no evidence");
    // A sparse range grows by its later touches, as any range does.
    let mut chooser = Chooser::in_use(LENGTH, &sparse());
    assert_eq!(sizes(&mut chooser, &dense(), 6).last(), Some(&BasePage::K64));
}

#[test]
fn one_page_in_sixteen_ends_in_the_smallest_pages() {
    let mut chooser = Chooser::new(Use::Heap, LENGTH);
    assert_eq!(
        (chooser.look(&sparse()), chooser.look(&sparse())),
        (Reason::Unconfirmed, Reason::Unconfirmed)
    );
    assert_eq!((chooser.look(&sparse()), chooser.size()), (Reason::Sparse, BasePage::K16));
    assert_eq!(sizes(&mut chooser, &sparse(), 3)[2], BasePage::K4);
    assert_eq!(chooser.look(&sparse()), Reason::Settled);
    let expected = Counters { shrunk: 2, unconfirmed: 4, settled: 1, ..Counters::default() };
    assert_eq!(chooser.counters(), expected);
}

#[test]
fn a_dense_reservation_ends_in_the_largest_pages() {
    let mut chooser = Chooser::new(Use::Reserved, LENGTH);
    let sizes = sizes(&mut chooser, &dense(), 9);
    assert_eq!([sizes[2], sizes[5], sizes[8]], [BasePage::K16, BasePage::K64, BasePage::M2]);
    assert_eq!(chooser.look(&dense()), Reason::Settled);
}

#[test]
fn full_small_pages_far_apart_do_not_grow() {
    // Each 16 KiB page is full, and one in four of them is used: dense at the present size, a
    // quarter at the next.
    let mut chooser = Chooser::new(Use::Stack, LENGTH);
    let touched = regular(64 << 10, 4);
    assert_eq!((touched.density_percent(BasePage::K16), touched.density_percent(BasePage::K64)), (100, 25));
    assert_eq!((chooser.look(&touched), chooser.size()), (Reason::Settled, BasePage::K16));
}

#[test]
fn a_range_that_is_just_being_filled_is_left_alone() {
    let mut chooser = Chooser::new(Use::Buffer, LENGTH);
    for end in (0..64u64 << 20).step_by(1 << 20) {
        let reason = chooser.look(&Touched::of(std::iter::once(0..end + OS_PAGE as u64)));
        assert!(matches!(reason, Reason::TooLittle | Reason::Settled), "{reason} at {end:#x}");
    }
}

#[test]
fn a_place_begins_small_and_bears_out_a_size_by_four_dense_pages_of_it() {
    let here = |pages: u64| {
        borne_out(BasePage::K4, BasePage::K64, &Touched::of(std::iter::once(0..pages * OS_PAGE as u64)))
    };
    let sizes = [0, 12, 13, 47, 60, 512].map(here);
    let [small, middle, large] = [BasePage::K4, BasePage::K16, BasePage::K64];
    // Of the fourth page of a size not all need be there.
    assert_eq!(sizes, [small, small, small, middle, large, large]);
    assert_eq!(here(15), middle);
    for at_most in [small, middle, large] {
        assert_eq!(borne_out(small, at_most, &dense()), at_most);
        assert_eq!(borne_out(small, at_most, &sparse()), small);
        // Its use is not asked for again.
        assert_eq!(borne_out(large, at_most, &sparse()), at_most);
    }
}

#[test]
fn an_alternating_program_is_followed_ever_more_seldom() {
    // As many looks as a change takes at that moment, dense and sparse by turns.
    let mut chooser = Chooser::new(Use::Heap, LENGTH);
    let (sparse, dense) = (sparse(), dense());
    let mut until = |touched| (1..).find(|_| chooser.look(touched) != Reason::Unconfirmed).unwrap();
    let needed: Vec<u32> = (0..8).map(|i| until(if i % 2 == 0 { &sparse } else { &dense })).collect();
    assert_eq!(needed, [3, 3, 6, 12, 24, 48, 96, 96]);
    assert_eq!(chooser.counters().reversed, 7);
}

proptest! {
    #[test]
    fn a_steady_program_is_settled_after_three_changes_in_one_direction(
        of in any_use(), length in 0u64..1 << 34, touched in touched(),
    ) {
        let mut chooser = Chooser::new(of, Bytes::new(length));
        let start = chooser.size();
        let sizes = sizes(&mut chooser, &touched, 3 * LOOKS_LEAST as usize);
        prop_assert!(sizes.is_sorted() && start <= sizes[0]
            || sizes.iter().rev().is_sorted() && sizes[0] <= start);
        let end = chooser.size();
        prop_assert!((0..200).all(|_| !matches!(chooser.look(&touched), Reason::Dense | Reason::Sparse)));
        prop_assert_eq!((chooser.size(), chooser.counters().reversed), (end, 0));
    }

    #[test]
    fn changes_take_their_looks_and_are_counted(
        of in any_use(),
        length in 0u64..1 << 34,
        looks in prop::collection::vec((touched(), 1usize..12), 1..40),
    ) {
        let mut chooser = Chooser::new(of, Bytes::new(length));
        let (mut since, mut done) = (0, 0);
        for touched in looks.iter().flat_map(|(touched, times)| std::iter::repeat_n(touched, *times)) {
            let (before, counters) = (chooser.size(), chooser.counters());
            let reason = chooser.look(touched);
            (since, done) = (since + 1, done + 1);
            let density = |size| touched.density_percent(size);
            match reason {
                Reason::Dense => prop_assert!(
                    chooser.size() > before && density(chooser.size()) >= DENSE_PERCENT
                ),
                Reason::Sparse => prop_assert!(
                    chooser.size() < before && density(before) < SPARSE_PERCENT
                ),
                _ => prop_assert_eq!(chooser.size(), before),
            }
            if chooser.size() != before {
                let needed = (LOOKS_LEAST << counters.reversed.min(5)).min(LOOKS_MOST);
                prop_assert!(since >= needed);
                since = 0;
                prop_assert!(at(chooser.size()).abs_diff(at(before)) == 1);
                prop_assert!(chooser.size().bytes() as u64 <= length.max(OS_PAGE as u64));
            }
            let Counters { grown, shrunk, unconfirmed, settled, too_little, reversed } = chooser.counters();
            prop_assert_eq!(grown + shrunk + unconfirmed + settled + too_little, done);
            prop_assert!(reversed <= grown + shrunk);
        }
    }

    #[test]
    fn density_falls_as_the_size_grows(touched in touched()) {
        let density = BasePage::ALL.map(|size| touched.density_percent(size));
        prop_assert!(density.iter().rev().is_sorted());
        prop_assert_eq!(density[0], 100);
    }
}

#[test]
fn a_range_with_a_most_never_passes_it() {
    let mut chooser = Chooser::new(Use::Buffer, LENGTH).up_to(BasePage::K64);
    assert_eq!(chooser.size(), BasePage::K64);
    assert_eq!(sizes(&mut chooser, &dense(), 20), [BasePage::K64; 20]);
    let mut chooser = Chooser::new(Use::Unknown, LENGTH).up_to(BasePage::K16);
    assert_eq!((chooser.size(), sizes(&mut chooser, &dense(), 20)[19]), (BasePage::K4, BasePage::K16));
}

#[test]
fn used_parts_of_large_pages_count_in_them() {
    let used = |pages| Touched::of_large(pages, 64).density_percent(BasePage::K64);
    assert_eq!([0, 64, 512, 1024].map(used), [0, 6, 50, 100]);
    let mut chooser = Chooser::new(Use::Heap, LENGTH).up_to(BasePage::K64);
    assert_eq!(sizes(&mut chooser, &Touched::of_large(64, 64), 3)[2], BasePage::K16);
}
