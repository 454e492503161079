use super::*;

fn numbers(missing: &[(u64, Arc<Piece>)]) -> Vec<u64> {
    missing.iter().map(|(number, _)| *number).collect()
}

fn bytes() -> Arc<[u8]> {
    vec![1; 10].into()
}

#[test]
fn a_piece_is_missing_once_and_reads_in_order_ask_for_more() {
    let pieces = Pieces::new(Duration::MAX);
    let first = pieces.claim(3..5, 100, 32);
    assert_eq!(numbers(&first.missing), [3, 4]);
    let second = pieces.claim(4..6, 100, 32);
    assert_eq!(numbers(&second.missing), [5, 6], "one ahead");
    assert_eq!(numbers(&pieces.announce(6..8)), [7]);
    second.missing[0].1.set(Ok(bytes()));
    second.missing[0].1.set(Err(Failure::Cut));
    assert_eq!(pieces.claim(5..6, 100, 32).pieces[0].wait(Instant::now(), Duration::ZERO), Ok(bytes()));
    pieces.forget(&(5..6));
    assert_eq!(numbers(&pieces.claim(5..6, 100, 32).missing), [5]);
    let mut at = 6;
    for _ in 0..40 {
        let claim = pieces.claim(at..at + 1, 2000, 8);
        assert!(claim.missing.len() <= 9);
        claim.missing.iter().for_each(|(_, piece)| piece.set(Ok(bytes())));
        at += claim.missing.len().max(1) as u64;
    }
    assert!(pieces.claim(1999..2000, 2000, 8).missing.len() <= 1, "nothing beyond the end");
}

#[test]
fn the_table_keeps_its_bound_but_for_pieces_on_their_way() {
    let pieces = Pieces::new(Duration::MAX);
    for number in 0..1000 {
        let claim = pieces.claim(number * 10..number * 10 + 1, u64::MAX, 0);
        claim.missing[0].1.set(Ok(bytes()));
    }
    let table = pieces.lock();
    assert!(table.pieces.len() <= PIECES_MOST && table.order.len() <= 2 * PIECES_MOST);
    drop(table);
    assert!(!pieces.announce(20_000..30_000).is_empty());
    assert!(pieces.announce(40_000..50_000).is_empty(), "as many as there may be are on their way");
}

#[test]
fn a_wait_ends_and_a_failure_is_told_to_the_queue() {
    let pieces = Pieces::new(Duration::MAX);
    let claim = pieces.claim(0..1, 1, 0);
    assert_eq!(claim.pieces[0].wait(Instant::now(), Duration::from_secs(7)), Err(Failure::Late(7)));
    claim.missing[0].1.set(Err(Failure::Cut));
    let again = pieces.claim(0..1, 1, 0);
    assert!(again.missing.is_empty());
    assert_eq!(again.pieces[0].wait(Instant::now(), Duration::ZERO), Err(Failure::Cut));
    pieces.lock().failure_lasts = Duration::ZERO;
    assert_eq!(numbers(&pieces.claim(0..1, 1, 0).missing), [0], "it is asked for again");
}
