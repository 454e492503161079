use super::*;

fn walk(spans: &mut Spans<u32>, taker: Taker, wants: Wants) -> Option<(u32, Sweep, Range<u64>, Outcome)> {
    let piece = spans.take(taker, wants, 0)?;
    let outcome = spans.done(taker, &piece, None, 0);
    Some((piece.owner, piece.sweep, piece.entries, outcome))
}

#[test]
fn frames_of_all_owners_come_before_the_stored_pages_of_any() {
    let mut spans = Spans::default();
    spans.hand_over(1, PIECE_WALK + 1, 0).expect("room");
    spans.hand_over(2, 5, 0).expect("room");
    let mut next = || walk(&mut spans, Taker::Worker, Wants::All).expect("a piece");
    assert_eq!(next(), (1, Sweep::Frames, 0..PIECE_WALK, Outcome::Going));
    assert_eq!(next(), (1, Sweep::Frames, PIECE_WALK..PIECE_WALK + 1, Outcome::FramesBack));
    assert_eq!(next(), (2, Sweep::Frames, 0..5, Outcome::FramesBack));
    assert_eq!(next(), (1, Sweep::Stored, 0..PIECE_WALK, Outcome::Going));
    assert_eq!(next(), (1, Sweep::Stored, PIECE_WALK..PIECE_WALK + 1, Outcome::Released));
    assert_eq!(next(), (2, Sweep::Stored, 0..5, Outcome::Released));
    assert!(spans.is_idle());
    assert_eq!([spans.reap(), spans.reap(), spans.reap()], [Some(2), Some(1), None]);
}

#[test]
fn the_second_sweep_waits_for_pieces_of_the_first_in_others_hands() {
    let mut spans = Spans::default();
    spans.hand_over(1, PIECE_WALK * 2, 0).expect("room");
    let [first, second] =
        [Taker::Worker, Taker::Helper].map(|taker| spans.take(taker, Wants::Room, 0).expect("a piece"));
    assert!(spans.take(Taker::Worker, Wants::All, 0).is_none());
    assert_eq!(spans.done(Taker::Worker, &first, None, 0), Outcome::Going);
    assert!(spans.take(Taker::Worker, Wants::All, 0).is_none(), "the helper has the rest");
    assert!(spans.has_frames(), "which are worth waiting for");
    assert_eq!(spans.done(Taker::Helper, &second, None, 0), Outcome::FramesBack);
    assert_eq!(spans.take(Taker::Worker, Wants::All, 0).expect("a piece").sweep, Sweep::Stored);
}

#[test]
fn busy_entries_are_walked_again_and_not_by_a_thread_that_needs_room() {
    let mut spans = Spans::default();
    spans.hand_over(1, 100, 0).expect("room");
    let piece = spans.take(Taker::Helper, Wants::Frames, 0).expect("a piece");
    assert_eq!(spans.done(Taker::Helper, &piece, Some(7..9), 0), Outcome::Going);
    assert!(spans.take(Taker::Helper, Wants::Room, 0).is_none(), "it may hold entry 7 itself");
    let piece = spans.take(Taker::Worker, Wants::All, 0).expect("a piece");
    assert!(piece.is_again && piece.entries == (7..9) && piece.sweep == Sweep::Frames);
    let walked = spans.walked();
    assert_eq!(spans.done(Taker::Worker, &piece, Some(7..8), 0), Outcome::Going);
    assert_eq!(spans.walked(), walked, "it found one busy still");
    let piece = spans.take(Taker::Worker, Wants::All, 0).expect("a piece");
    assert_eq!(piece.entries, 7..8);
    assert_eq!(spans.done(Taker::Worker, &piece, None, 0), Outcome::FramesBack);
    assert_eq!(spans.walked(), walked + 1);
    let piece = spans.take(Taker::Helper, Wants::Room, 0).expect("a piece");
    assert!(!piece.is_again && piece.entries == (0..100), "the next sweep is whole");
}

#[test]
fn a_stalled_worker_gets_nothing_until_it_gets_on() {
    let mut spans = Spans::default();
    spans.hand_over(1, 10, 0).expect("room");
    assert!(!spans.look(STALL_US - 1) && spans.look(STALL_US) && !spans.look(STALL_US), "news once");
    assert_eq!(spans.hand_over(2, 10, STALL_US), Err(2));
    while walk(&mut spans, Taker::Helper, Wants::Room).is_some() {}
    assert!(spans.is_idle());
    assert_eq!(spans.hand_over(2, 10, STALL_US), Err(2), "no worker got on");
    spans.worker_gets_on(STALL_US);
    spans.hand_over(2, 10, STALL_US).expect("it runs again");
}

#[test]
fn a_queue_takes_owners_up_to_its_bound() {
    let mut spans = Spans::default();
    for owner in 0..OWNERS_MOST as u32 {
        spans.hand_over(owner, 1, 0).expect("room");
    }
    assert_eq!(spans.hand_over(7, 1, 0), Err(7));
    while walk(&mut spans, Taker::Worker, Wants::All).is_some() {}
    assert_eq!(spans.hand_over(7, 1, 0), Err(7), "their tables are still there");
    assert!(spans.reap().is_some());
    spans.hand_over(7, 1, 0).expect("room");
}
