//! The promises of every order, for all targets of small frames and of a huge one, and for random
//! frames of any size.

use proptest::prelude::*;

use super::*;

fn target(pages: u32, page: u32) -> Target {
    Target::in_frame(pages, Some(page)).expect("a page of the frame")
}

/// The pages in the order in which they are cleared.
fn cleared(order: Order, target: Target) -> Vec<u32> {
    order.extents(target).flat_map(|extent| extent.first..extent.first + extent.pages).collect()
}

/// All that is promised of one frame and target.
fn check(pages: u32, page: u32) {
    let at = target(pages, page);
    for order in Order::ALL {
        let cleared = cleared(order, at);
        let mut sorted = cleared.clone();
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(0..pages), "{order:?} of {pages} towards {page} is no permutation");
        if order != Order::Ascending {
            assert_eq!(cleared.last(), Some(&page), "{order:?} of {pages}");
        }
    }
    let distances = cleared(Order::Converge, at).into_iter().map(|cleared| cleared.abs_diff(page));
    assert!(distances.is_sorted_by(|one, next| one >= next), "{pages} pages towards {page}");

    assert_eq!(Order::Ascending.extents(at).count(), 1);
    assert!(Order::Converge.extents(at).all(|extent| extent.pages == 1 && extent.manner == Manner::Cached));
    assert!(cleared(Order::ReverseInPage, at) == cleared(Order::Converge, at));
    let towards_target = |extent: Extent| (extent.manner == Manner::Backwards) == (extent.first > page);
    assert!(Order::ReverseInPage.extents(at).all(towards_target));

    // The neighbourhood's expected extents, computed from their places alone.
    let is_far = |cleared: u32| cleared.abs_diff(page) > RADIUS_PAGES;
    let around: Vec<_> = Order::Neighbourhood.extents(at).collect();
    assert!(around.iter().filter(|extent| extent.pages > RADIUS_PAGES + 1).count() <= 3, "{around:?}");
    let sides: Vec<_> = cleared(Order::Neighbourhood, at).into_iter().map(is_far).collect();
    assert!(sides.is_sorted_by(|before, after| before >= after), "far pages come first: {around:?}");
    let upwards = |extent: Extent| extent.manner == Manner::Cached;
    assert!(around.iter().all(|&extent| if is_far(extent.first) {
        upwards(extent)
    } else {
        towards_target(extent)
    }));
    let streamed: Vec<_> = Order::Streaming.extents(at).collect();
    for (extent, same) in streamed.iter().zip(&around) {
        assert_eq!((extent.first, extent.pages), (same.first, same.pages));
        let manner = if is_far(extent.first) { Manner::Streaming } else { same.manner };
        assert!((extent.first..extent.first + extent.pages).all(|page| is_far(page) == is_far(extent.first)));
        assert_eq!(extent.manner, manner, "{extent:?} of {pages} towards {page}");
    }
    assert_eq!(streamed.len(), around.len());
}

#[test]
fn every_target_of_small_and_huge_frames() {
    for pages in [1, 2, 3, 16, 512] {
        for page in 0..pages {
            check(pages, page);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_target_of_any_frame(pages in 1..4096u32, place: prop::sample::Index) {
        check(pages, place.index(pages as usize) as u32);
    }

    #[test]
    fn any_target_of_the_sizes_that_frames_have(order in 4..=18u32, place: prop::sample::Index) {
        check(1 << order, place.index(1 << order) as u32);
    }

    #[test]
    fn steps_are_the_extent_in_its_own_direction(first in 0..1000u32, pages in 1..5000u32, backwards: bool) {
        let manner = if backwards { Manner::Backwards } else { Manner::Cached };
        let extent = Extent { first, pages, manner };
        let mut steps: Vec<_> = extent.steps().collect();
        prop_assert!(steps.iter().all(|step| step.manner == manner && (1..=STEP_PAGES).contains(&step.pages)));
        if backwards {
            steps.reverse();
        }
        let covered = steps.iter().flat_map(|step| step.first..step.first + step.pages);
        prop_assert!(covered.eq(first..first + pages));
    }

    #[test]
    fn the_base_comes_from_the_address_itself(address: usize, order in 4..=18u32) {
        let size = FrameSize::new(Bytes::new((OS_PAGE as u64) << order)).expect("a frame size");
        let (base, target) = Target::of_address(address, size);
        prop_assert!(base.is_multiple_of(size.bytes()));
        let page = base + target.page() as usize * OS_PAGE;
        prop_assert_eq!(page, address & !(OS_PAGE - 1));
        prop_assert!(target.page() < target.pages() && target.pages() == size.pages());
    }
}

#[test]
fn the_threads_example_by_hand() {
    assert_eq!(cleared(Order::Converge, target(8, 2)), [7, 6, 5, 4, 0, 3, 1, 2]);
    assert_eq!(cleared(Order::Converge, target(8, 6)), [0, 1, 2, 3, 4, 7, 5, 6]);
    assert_eq!(cleared(Order::Converge, target(3, 1)), [2, 0, 1]);
}

#[test]
fn a_huge_frame_has_four_extents_around_its_middle() {
    let extents: Vec<_> = Order::Streaming.extents(target(512, 256)).collect();
    let extent = |first, pages, manner| Extent { first, pages, manner };
    let expected = |far| {
        [
            extent(265, 247, far),
            extent(0, 248, far),
            extent(257, 8, Manner::Backwards),
            extent(248, 9, Manner::Cached),
        ]
    };
    assert_eq!(extents, expected(Manner::Streaming));
    let extents: Vec<_> = Order::Neighbourhood.extents(target(512, 256)).collect();
    assert_eq!(extents, expected(Manner::Cached));
    assert_eq!(Order::Neighbourhood.extents(target(512, 0)).count(), 3);
}

#[test]
fn without_a_hint_the_beginning_is_the_target_and_one_past_the_end_is_refused() {
    assert_eq!(Target::in_frame(512, None).map(Target::page), Ok(0));
    assert_eq!(Target::in_frame(512, Some(511)).map(Target::page), Ok(511));
    assert_eq!(Target::in_frame(512, Some(512)), Err(HintBeyondEnd { hint: 512, pages: 512 }));
    let text = HintBeyondEnd { hint: 512, pages: 512 }.to_string();
    assert!(text.contains("page 512") && text.contains("below 512"), "{text}");
}

#[test]
fn frames_are_powers_of_two_from_64_kib_to_1_gib() {
    assert_eq!(FrameSize::new(Bytes::mib(2)), Ok(FrameSize::HUGE));
    for right in [FrameSize::LEAST, FrameSize::MOST] {
        assert_eq!(FrameSize::new(right).map(FrameSize::bytes), Ok(right.as_usize()));
    }
    for wrong in [Bytes::ZERO, Bytes::kib(32), Bytes::kib(96), Bytes::gib(2), Bytes::new(65537)] {
        assert_eq!(FrameSize::new(wrong), Err(NotAFrameSize(wrong)));
    }
}
