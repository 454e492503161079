use super::*;

fn range(from: usize, to: usize) -> PageRange {
    PageRange::new(from * 4096, to * 4096).expect("a range")
}
fn remap(from: usize, to: usize, pages: usize) -> Message {
    Message::Remap { from: from * 4096, to: to * 4096, len: pages * 4096 }
}

#[test]
fn a_move_into_a_place_that_is_still_to_be_unmapped_waits_for_that() {
    let mut order = EventOrder::default();
    let (free, mapped) = (|_| true, |_| true);
    assert!(!order.must_wait(&remap(10, 20, 4), free, mapped));
    order.moved(range(10, 14), None);
    assert!(order.must_wait(&remap(30, 10, 4), free, mapped), "its target is announced to go");
    order.defer(remap(30, 10, 4));
    assert!(!order.must_wait(&Message::Unmap(range(10, 14)), free, mapped), "the awaited event goes ahead");
    assert!(
        order.must_wait(&Message::Unmap(range(30, 34)), free, mapped),
        "its own source's unmapping comes after it"
    );
    assert!(
        order.must_wait(&Message::Remove(range(12, 13)), free, mapped),
        "a discard of the moved range, too"
    );
    order.unmapped(range(10, 14));
    assert_eq!(order.take_deferred().len(), 1);
    assert!(!order.must_wait(&remap(30, 10, 4), free, mapped));
}

#[test]
fn a_second_move_of_a_range_waits_behind_the_first() {
    let mut order = EventOrder::default();
    let known = range(16, 20);
    let (free, mapped) = (|asked: PageRange| !overlap(asked, known), |_| true);
    assert!(order.must_wait(&remap(30, 10, 8), free, mapped), "the range in the table is still to leave");
    order.defer(remap(30, 10, 8));
    assert!(order.must_wait(&Message::Unmap(range(30, 38)), free, mapped), "the move's own");
    order.defer(Message::Unmap(range(30, 38)));
    assert!(order.must_wait(&remap(10, 50, 8), free, mapped), "its thread went on");
    order.defer(remap(10, 50, 8));
    assert!(order.must_wait(&Message::Unmap(range(10, 18)), free, mapped), "that move's own");
    assert!(
        !order.must_wait(&remap(16, 60, 4), free, mapped),
        "the event that the first move awaits goes ahead"
    );
    assert!(!order.must_wait(&Message::Unmap(range(16, 20)), free, mapped));
}

#[test]
fn two_moves_from_one_place_are_told_apart_by_the_present_mappings() {
    let known = range(10, 18);
    let free = |asked: PageRange| !overlap(asked, known);
    // The range that was there moves to 60, and its event is late. The new one moves on to 50.
    let late = remap(10, 60, 8);
    let on = remap(10, 50, 8);
    let mut order = EventOrder::default();
    order.defer(remap(30, 10, 8));
    order.defer(Message::Unmap(range(30, 38)));
    assert!(!order.must_wait(&late, free, |_| true), "the new range is still there");
    assert!(order.must_wait(&on, free, |_| false), "nothing is there any more");
    order.defer(on);
    assert!(order.must_wait(&Message::Unmap(range(10, 18)), free, |_| false), "its own");
    order.defer(Message::Unmap(range(10, 18)));
    assert!(!order.must_wait(&late, free, |_| false), "the other has moved on already");
    assert!(!order.must_wait(&Message::Unmap(range(10, 18)), free, |_| false));
}

#[test]
fn a_late_event_is_not_about_a_range_whose_moving_thread_is_still_in_the_move() {
    let mut order = EventOrder::default();
    let nothing = |_| false;
    assert_eq!(order.concerned(range(10, 20), nothing), [range(10, 20)]);
    order.moved(range(40, 44), Some(range(12, 16)));
    order.moved(range(50, 52), Some(range(18, 20)));
    order.moved(range(60, 64), None);
    assert_eq!(order.concerned(range(10, 20), nothing), [range(10, 12), range(16, 18)]);
    assert_eq!(order.concerned(range(13, 15), nothing), []);
    assert_eq!(order.concerned(range(60, 64), nothing), [range(60, 64)]);
    order.unmapped(range(40, 44));
    assert_eq!(order.concerned(range(10, 20), nothing), [range(10, 18)], "its thread may have gone on");
}

#[test]
fn a_late_event_is_not_about_an_arrived_range_that_is_still_there() {
    let mut order = EventOrder::default();
    let anything = |_| true;
    order.moved(range(40, 44), Some(range(12, 16)));
    order.unmapped(range(40, 44));
    assert_eq!(order.concerned(range(10, 20), anything), [range(10, 12), range(16, 20)]);
    assert_eq!(
        order.concerned(range(11, 14), |at| at == 12 * 4096),
        [range(11, 12)],
        "asked where they meet"
    );
    for leaves in [range(12, 16), range(12, 20), range(14, 16)] {
        assert_eq!(order.concerned(leaves, anything), [leaves], "whatever is there since");
    }
    // A part of it has left; the range that is there now came otherwise.
    order.left(range(11, 13));
    assert_eq!(order.concerned(range(10, 20), anything), [range(10, 13), range(16, 20)]);
    // Another moves to there, and waits for it to leave.
    order.defer(remap(30, 15, 4));
    assert_eq!(order.concerned(range(10, 20), anything), [range(10, 20)]);
    assert_eq!(order.take_deferred().len(), 1);
    assert_eq!(order.concerned(range(10, 20), anything), [range(10, 13), range(16, 20)]);
    order.moved(range(70, 72), Some(range(14, 16)));
    assert_eq!(order.concerned(range(10, 20), |_| false), [range(10, 14), range(16, 20)]);
    order.all_was_told();
    assert_eq!(order.concerned(range(10, 20), anything), [range(10, 20)]);
    for from in 0..2 * ARRIVED_MOST {
        order.moved(range(1000 + from, 1001 + from), Some(range(10, 11)));
        order.moved(range(4000 + from, 4001 + from), Some(range(8000 + from, 8001 + from)));
    }
    assert_eq!(order.arrived.len(), ARRIVED_MOST);
}

#[test]
fn of_waiting_moves_the_first_is_one_whose_target_no_other_leaves() {
    // One moves from 30 to 10. Another has moved from there to 50, where an unannounced range
    // is.
    let mut order = EventOrder::default();
    let known = |asked: PageRange| !overlap(asked, range(10, 18)) && !overlap(asked, range(50, 58));
    order.defer(remap(30, 10, 8));
    order.defer(Message::Unmap(range(30, 38)));
    order.defer(remap(10, 50, 8));
    let first = |order: &EventOrder, is_mapped| order.first(known, |_| is_mapped);
    assert_eq!(first(&order, true), Some(2), "the new range is still there");
    assert!(matches!(order.take(2), Message::Remap { from, .. } if from == 10 * 4096));
    assert_eq!(first(&order, true), Some(0));
    order.take(0);
    assert_eq!(first(&order, true), None, "no move waits");
    assert_eq!(order.deferred(), 1);
    // The second move took on the range of the first one.
    let mut order = EventOrder::default();
    order.defer(remap(30, 10, 8));
    order.defer(Message::Unmap(range(30, 38)));
    order.defer(remap(10, 50, 8));
    assert_eq!(first(&order, false), Some(0), "nothing is there any more");
    // Each waits for the other.
    let mut order = EventOrder::default();
    order.defer(remap(10, 50, 8));
    order.defer(remap(50, 10, 8));
    assert_eq!(first(&order, true), Some(0));
}

#[test]
fn a_move_onto_a_range_that_the_table_still_has_waits() {
    let order = EventOrder::default();
    assert!(order.must_wait(&remap(30, 10, 4), |_| false, |_| true));
}
