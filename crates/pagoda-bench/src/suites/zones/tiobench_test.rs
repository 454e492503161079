//! Tests of the streams: a row reports the run with the median rate, and its sides take turns. They
//! must never depend on the disk's speed.

use super::*;

fn cell(mib_s: f64) -> Cell {
    Cell {
        mib_s: Measured::once(mib_s),
        allocs_by_zone: [mib_s as u64; 2],
        resets: mib_s as u64,
        shortages: 0,
        evicted_before_use: 0,
        bytes_read_twice: 0,
        age_ratio: None,
    }
}

#[test]
fn the_run_in_the_middle_is_told_whole() {
    let told = middle(vec![cell(3.0), cell(1.0), cell(2.0)]).expect("three runs");
    let mib_s = Measured { median: 2.0, least: 1.0, most: 3.0 };
    assert_eq!((told.mib_s, told.resets), (mib_s, 2));
    assert!(middle(Vec::new()).is_none());
}

#[test]
fn a_quick_plan_says_how_many_runs_it_has_and_one_thread_comes_first() {
    let plan = Plan { threads: vec![1, 3], ..Plan::new(true, 1, String::new()) };
    assert_eq!(plan.file_bytes(), 64 << 20);
    // The kernel in two rounds, one of which is discarded, and the second reads.
    assert_eq!(plan.runs(), 2 * 6 * 4 + 2 + 6 + 1);
    assert!(Plan::new(false, 3, String::new()).threads[0] == 1 && plan.threads[0] == 1);
    let writes = Plan { patterns: vec![Pattern::SeqWrite], ..plan };
    assert_eq!(writes.runs(), 2 * 6 + 1, "the kernel only reads");
}

#[test]
fn each_side_goes_first_as_often_as_the_others_and_the_kernel_is_one() {
    for with_kernel in [false, true] {
        let count = ZonePolicy::ALL.len() + usize::from(with_kernel);
        let mut first: Vec<_> = (0..count).map(|turn| sides(turn, with_kernel)[0]).collect();
        first.sort_by_key(|side| side.map(ZonePolicy::name));
        first.dedup();
        assert_eq!((first.len(), first.contains(&None)), (count, with_kernel));
        assert!((0..count).all(|turn| sides(turn, with_kernel).len() == count));
    }
}

#[test]
fn a_policy_is_compared_with_the_kernel_within_rounds() {
    let mut figures = json!({});
    let content = Content::new(1);
    let mut kernel = kernel_mmap::Side::new(None, Path::new("/nonexistent"), &content, Bytes::mib(1));
    // The disk is twice as fast in the second round, and half as fast in the third.
    kernel.plain = vec![100.0, 200.0, 50.0];
    kernel.advised = vec![200.0, 400.0, 100.0];
    let fair = [50.0, 120.0, 20.0].map(cell);
    note_kernel(&mut figures, kernel, &fair);
    let figures = crate::report::json::plain(figures);
    let ratio = ["", "_least", "_most"].map(|end| figures[format!("ratio_vs_mmap{end}")].as_f64());
    assert_eq!(ratio, [Some(0.5), Some(0.4), Some(0.6)]);
    assert_eq!(figures["ratio_vs_mmap_advised"], 0.25);
    assert_eq!(figures["kernel_mmap"]["seq_read_mib_s"], 100.0);
}
