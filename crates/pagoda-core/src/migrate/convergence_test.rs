use super::*;
use proptest::prelude::*;

const LIMITS: Limits = Limits { downtime_ms: 300, rounds: 30, last_resort: LastResort::GiveUp };

/// A source that writes pages of a working set at a rate, over a line of a rate; both in MiB a
/// second.
struct Source {
    image: u64,
    working_set: u64,
    writes_per_s: u64,
    line_per_s: u64,
}

/// All verdicts until the end, and how long the source stands still then, in ms.
fn migrate(source: &Source, limits: Limits) -> (Vec<Verdict>, u64) {
    let (mut convergence, mut verdicts) = (Convergence::new(limits), Vec::new());
    let (mut left, mut throttle) = (source.image, 0u64);
    loop {
        let sent = left;
        let took_ms = sent * 1000 / source.line_per_s;
        let written = source.writes_per_s * (100 - throttle) / 100 * took_ms / 1000;
        left = written.min(source.working_set);
        let round =
            Round { sent: Bytes::mib(sent), took_ms, left: Bytes::mib(left), written: Bytes::mib(left) };
        let verdict = convergence.judge(round);
        verdicts.push(verdict);
        match verdict {
            Verdict::Again => {}
            Verdict::Throttle(percent) => throttle = u64::from(percent),
            _ => return (verdicts, left * 1000 / source.line_per_s),
        }
    }
}

#[test]
fn an_idle_source_is_stopped_when_almost_nothing_is_left() {
    let idle = Source { image: 65_536, working_set: 16, writes_per_s: 1, line_per_s: 1024 };
    assert_eq!(migrate(&idle, LIMITS), (vec![Verdict::Again, Verdict::StopAndCopy], 0));
    // It may have one round alone.
    assert_eq!(migrate(&idle, Limits { rounds: 1, ..LIMITS }), (vec![Verdict::StopAndCopy], 15));
    let still = Source { writes_per_s: 0, ..idle };
    assert_eq!(migrate(&still, LIMITS), (vec![Verdict::StopAndCopy], 0));
}

#[test]
fn a_remainder_that_fits_is_sent_once_more_if_that_leaves_a_quarter() {
    let source = |writes_per_s| Source { image: 8192, working_set: 8192, writes_per_s, line_per_s: 1024 };
    // 8 s, 1 s, 125 ms that would do, 15 ms, and 1 ms.
    let again = Verdict::Again;
    assert_eq!(migrate(&source(128), LIMITS), (vec![again, again, again, Verdict::StopAndCopy], 0));
    let mut convergence = Convergence::new(LIMITS);
    let round = |sent, left| Round {
        sent: Bytes::mib(sent),
        took_ms: sent,
        left: Bytes::mib(left),
        written: Bytes::mib(left),
    };
    assert_eq!(convergence.judge(round(1000, 250)), Verdict::Again);
    // It writes the same pages all the while.
    assert_eq!(convergence.judge(round(250, 250)), Verdict::StopAndCopy);
}

#[test]
fn a_source_that_writes_at_half_the_lines_rate_needs_rounds_and_no_throttle() {
    let busy = Source { image: 8192, working_set: 8192, writes_per_s: 512, line_per_s: 1024 };
    let (verdicts, downtime_ms) = migrate(&busy, LIMITS);
    assert_eq!(verdicts.len(), 5, "8 s, 4 s, 2 s, 1 s, 0.5 s, and 0.25 s of downtime");
    assert!(verdicts[..4].iter().all(|verdict| *verdict == Verdict::Again));
    assert_eq!(downtime_ms, 250);
}

#[test]
fn a_source_that_outruns_the_line_is_throttled_until_it_does_not() {
    let fast = Source { image: 8192, working_set: 8192, writes_per_s: 2048, line_per_s: 1024 };
    let (verdicts, downtime_ms) = migrate(&fast, LIMITS);
    assert!(verdicts.contains(&Verdict::Throttle(60)), "{verdicts:?}");
    assert_eq!(verdicts.last(), Some(&Verdict::StopAndCopy), "{verdicts:?}");
    assert!(downtime_ms <= 300);
}

#[test]
fn one_that_outruns_it_throttled_takes_the_last_resort() {
    let wild = Source { image: 8192, working_set: 8192, writes_per_s: 65_536, line_per_s: 1024 };
    for (last_resort, verdict) in [
        (LastResort::GiveUp, Verdict::GiveUp),
        (LastResort::PostCopy, Verdict::PostCopy),
        (LastResort::StopAndCopy, Verdict::StopAndCopy),
    ] {
        let (verdicts, _) = migrate(&wild, Limits { last_resort, ..LIMITS });
        assert_eq!(verdicts.last(), Some(&verdict));
        assert_eq!(verdicts[verdicts.len() - 2], Verdict::Throttle(THROTTLE_MOST_PERCENT));
    }
}

#[test]
fn a_round_that_sent_nothing_is_not_divided_by() {
    let mut convergence = Convergence::new(LIMITS);
    let nothing = Round { sent: Bytes::ZERO, took_ms: 0, left: Bytes::ZERO, written: Bytes::ZERO };
    assert_eq!(convergence.judge(nothing), Verdict::StopAndCopy);
    let left = Round { left: Bytes::new(u64::MAX), written: Bytes::new(u64::MAX), ..nothing };
    assert_eq!(convergence.judge(left), Verdict::Throttle(THROTTLE_FIRST_PERCENT));
}

#[test]
fn a_source_whose_pages_go_out_for_others_is_not_throttled() {
    let mut convergence = Convergence::new(LIMITS);
    let round = |sent, left, written| Round {
        sent: Bytes::mib(sent),
        took_ms: sent,
        left: Bytes::mib(left),
        written: Bytes::mib(written),
    };
    // First as they are staged, and then as they are stored.
    for (sent, left) in [(4096, 4096), (4096, 4096), (4096, 2048)] {
        assert_eq!(convergence.judge(round(sent, left, 1)), Verdict::Again);
    }
    assert_eq!(convergence.judge(round(2048, 2048, 2048)), Verdict::Throttle(THROTTLE_FIRST_PERCENT));
    // Nor is it stopped for longer than asked because of them.
    assert_eq!(convergence.judge(round(512, 256, 0)), Verdict::StopAndCopy);
}

proptest! {
    #[test]
    fn it_ends_within_its_rounds_and_never_stops_for_longer_than_asked(
        image in 1u64..1 << 20, working_set in 0u64..1 << 20, writes_per_s in 0u64..1 << 17, line_per_s in 1u64..1 << 14,
        downtime_ms in 0u32..10_000, rounds in 1u32..60,
    ) {
        let source = Source { image, working_set: working_set.min(image), writes_per_s, line_per_s };
        let limits = Limits { downtime_ms, rounds, last_resort: LastResort::GiveUp };
        let (verdicts, downtime) = migrate(&source, limits);
        prop_assert!(verdicts.len() <= rounds as usize);
        if verdicts.last() == Some(&Verdict::StopAndCopy) {
            prop_assert!(downtime <= u64::from(downtime_ms), "{} ms", downtime);
        }
        let throttles: Vec<u8> =
            verdicts.iter().filter_map(|verdict| match verdict { Verdict::Throttle(percent) => Some(*percent), _ => None }).collect();
        prop_assert!(throttles.is_sorted_by(|a, b| a < b) && throttles.iter().all(|&percent| percent <= THROTTLE_MOST_PERCENT));
    }
}
