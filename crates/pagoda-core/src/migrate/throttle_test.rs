use super::*;
use crate::migrate::convergence::{Convergence, LastResort, Limits, Round, Verdict};
use crate::page::OS_PAGE;
use crate::size::Bytes;
use proptest::prelude::*;

/// Threads that write pages at random, and a line that carries pages.
struct Writer {
    threads: u32,
    pages: u64,
    writes_per_s: u64,
    line_per_s: u64,
}

/// The outcome of a migration.
#[derive(Debug)]
struct Told {
    verdict: Verdict,
    /// Pages written in each round.
    written: Vec<u64>,
    strongest: u8,
    delayed: u64,
}

const S: u64 = 1_000_000_000;

/// A migration with the throttle at `most` percent at most, 0 for none. Checks that each thread
/// keeps its time.
fn migrate(writer: &Writer, most: u8) -> Told {
    let limits = Limits { downtime_ms: 300, rounds: 30, last_resort: LastResort::GiveUp };
    let mut convergence = Convergence::new(limits);
    let mut accounts = Accounts::new(0);
    let each_ns = S * u64::from(writer.threads) / writer.writes_per_s;
    // When each thread runs again, how much each has waited, and since when it is throttled.
    let mut runs_at = vec![0u64; writer.threads as usize];
    let mut waited = vec![0u64; writer.threads as usize];
    let mut throttled_from = None;
    let (mut random, mut began, mut left) = (1u64, 0u64, writer.pages);
    let mut faults = vec![false; writer.pages as usize];
    let mut told = Told { verdict: Verdict::Again, written: Vec::new(), strongest: 0, delayed: 0 };
    loop {
        let took_ns = left * S / writer.line_per_s;
        let ends = began + took_ns;
        let mut written = vec![false; writer.pages as usize];
        while let Some(thread) = (0..writer.threads as usize).min_by_key(|thread| runs_at[*thread])
            && runs_at[thread] < ends
        {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let page = ((random >> 33) % writer.pages) as usize;
            let at = runs_at[thread];
            if std::mem::take(&mut faults[page]) {
                let wait_ns = accounts.wait_ns(thread as u32, at);
                assert!(wait_ns == 0 || (WAIT_LEAST_NS..=WAIT_MOST_NS).contains(&wait_ns));
                if wait_ns > 0 {
                    told.delayed += 1;
                    waited[thread] += wait_ns;
                    runs_at[thread] += wait_ns;
                    accounts.waited(thread as u32, wait_ns, runs_at[thread]);
                    let since = runs_at[thread] - throttled_from.expect("only then pages fault");
                    let most = since * u64::from(told.strongest) / 100;
                    assert!(waited[thread] <= most + WAIT_MOST_NS, "{} of {since} ns", waited[thread]);
                }
                continue;
            }
            written[page] = true;
            runs_at[thread] += each_ns;
        }
        let pages = written.iter().filter(|written| **written).count() as u64;
        told.written.push(pages);
        let bytes = |pages: u64| Bytes::new(pages * OS_PAGE as u64);
        let took_ms = took_ns / 1_000_000;
        let round = Round { sent: bytes(left), took_ms, left: bytes(pages), written: bytes(pages) };
        (began, left) = (ends, pages);
        told.verdict = convergence.judge(round);
        match told.verdict {
            Verdict::Again => {}
            Verdict::Throttle(percent) => {
                told.strongest = percent.min(most);
                accounts.set_percent(told.strongest);
                throttled_from.get_or_insert(began);
            }
            _ => return told,
        }
        let chosen = pages_to_fault(told.strongest, Duration::from_nanos(took_ns), pages);
        faults.fill(false);
        for (nth, page) in (0..).zip((0..writer.pages as usize).filter(|page| written[*page])) {
            faults[page] = is_chosen(nth, chosen, pages);
        }
    }
}

#[test]
fn a_writer_that_outruns_the_line_converges_by_its_own_faults_alone() {
    // Twice to three times what the line carries.
    for threads in [1, 4, 16] {
        let writer = Writer { threads, pages: 32_768, writes_per_s: 30_000, line_per_s: 12_800 };
        let free = migrate(&writer, 0);
        assert_eq!(free.verdict, Verdict::GiveUp, "{free:?}");
        assert_eq!(free.delayed, 0);
        let slowed = migrate(&writer, 90);
        assert_eq!(slowed.verdict, Verdict::StopAndCopy, "{threads} threads: {slowed:?}");
        assert!(slowed.strongest > 0 && slowed.delayed > 0);
    }
}

#[test]
fn a_throttle_that_is_limited_takes_no_more() {
    let writer = Writer { threads: 2, pages: 32_768, writes_per_s: 60_000, line_per_s: 12_800 };
    let slowed = migrate(&writer, 30);
    assert_eq!((slowed.verdict, slowed.strongest), (Verdict::GiveUp, 30), "{slowed:?}");
}

#[test]
fn a_wait_that_lasts_too_long_is_paid_back() {
    let mut accounts = Accounts::new(50);
    assert_eq!(accounts.wait_ns(7, S), 0, "the first fault opens the account");
    assert_eq!(accounts.wait_ns(7, S + 2_000_000), 2_000_000);
    accounts.waited(7, 5_000_000, S + 7_000_000);
    assert_eq!(accounts.wait_ns(7, S + 10_000_000), 0, "it has waited for 3 ms too long");
    assert_eq!(accounts.wait_ns(7, S + 11_000_000), 1_000_000);
    // Another thread owes nothing for that.
    assert_eq!(accounts.wait_ns(8, S + 11_000_000), 0);
    // Nor is a long time without a fault paid at once.
    assert_eq!(accounts.wait_ns(8, 100 * S), WAIT_MOST_NS);
}

#[test]
fn a_machine_that_stood_still_does_not_end_the_throttle() {
    let mut accounts = Accounts::new(50);
    assert_eq!(accounts.wait_ns(1, S), 0);
    accounts.waited(1, 3600 * S, 3601 * S);
    let mut at = 3601 * S;
    let waits = (0..30).any(|_| {
        at += WAIT_MOST_NS;
        accounts.wait_ns(1, at) > 0
    });
    assert!(waits);
}

proptest! {
    #[test]
    fn as_many_pages_fault_as_were_chosen_and_no_more_than_were_written(
        percent in 0u8..=100, took_us in 0u64..1 << 36, written in 0u64..5000,
    ) {
        let chosen = pages_to_fault(percent, Duration::from_micros(took_us), written);
        prop_assert!(chosen <= written && (percent > 0 || chosen == 0));
        prop_assert_eq!((0..written).filter(|nth| is_chosen(*nth, chosen, written)).count() as u64, chosen);
    }

    #[test]
    fn each_thread_keeps_its_time_at_any_distance_of_faults(
        percent in 1u8..=90, runs in prop::collection::vec((0u32..3, 0u64..20_000_000, 0u64..3_000_000), 1..200),
    ) {
        let mut accounts = Accounts::new(percent);
        let (mut now, mut waited) = ([S; 3], [0u64; 3]);
        for (thread, ran_ns, late_ns) in runs {
            let at = thread as usize;
            now[at] += ran_ns;
            let wait_ns = accounts.wait_ns(thread, now[at]);
            prop_assert!(wait_ns <= WAIT_MOST_NS);
            // Before the lateness of this wait, which the next one makes up for.
            let passed = u128::from(now[at] - S + wait_ns);
            let all = u128::from(waited[at] + wait_ns) * 100;
            prop_assert!(wait_ns == 0 || all <= passed * u128::from(percent) + 100, "{} of {}", all, passed);
            if wait_ns > 0 {
                now[at] += wait_ns + late_ns;
                waited[at] += wait_ns + late_ns;
                accounts.waited(thread, wait_ns + late_ns, now[at]);
            }
        }
    }
}
