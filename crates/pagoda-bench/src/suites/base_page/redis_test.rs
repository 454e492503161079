use indicatif::ProgressBar;

use super::super::rows::Size;
use super::*;
use crate::measure::stats::Measured;

#[test]
fn a_server_is_filled_compared_and_timed() {
    const KEYS: u64 = 2000;
    let setup = Setup {
        program: "/nonexistent".to_owned(),
        size: Size { buffer: 2 << 20, loads: 1000 },
        rounds: 1,
        quick: true,
        progress: ProgressBar::hidden(),
    };
    let cancel = Cancel::default();
    let bench = Bench { setup: &setup, cancel: &cancel, keys: KEYS, need: Bytes::mib(2) };
    // A name of no checked side: the server starts with its defaults.
    match bench.run("as it is") {
        Ok(figures) => {
            let Figures { get_ops, set_ops, p50_ms } = figures;
            assert!(get_ops > 0.0 && set_ops > 0.0 && p50_ms > 0.0, "{figures:?}");
        }
        Err(error) => {
            let text = format!("{error:#}");
            assert!(text.contains("starting redis-"), "{text}");
            pagoda_linux::testing::skip::skip("a server in memory", text);
        }
    }
}

#[test]
fn what_redis_benchmark_says_of_a_request_is_found_by_its_names() {
    let csv = "\"test\",\"rps\",\"min_latency_ms\",\"p50_latency_ms\"\n\"SET\",\"10.5\",\"0.1\",\"0.2\"\n\"GET\",\"20\",\"0.3\",\"0.4\"\n";
    assert_eq!(figures_of("GET", csv), Some((20.0, 0.4)));
    assert_eq!(figures_of("SET", csv), Some((10.5, 0.2)));
    assert_eq!(figures_of("INCR", csv), None);
    // The CSV of an old version, which prints no header.
    assert_eq!(figures_of("GET", "\"GET\",\"20\"\n"), None);
}

#[test]
fn requests_are_compared_with_those_of_the_same_round() {
    let figures = |get_ops| Figures { get_ops, set_ops: 1.0, p50_ms: 1.0 };
    let mut samples = BTreeMap::from([
        ("kernel_4k", vec![figures(100.0), figures(50.0), figures(80.0)]),
        ("pagoda_64k", vec![figures(150.0), figures(100.0), figures(80.0)]),
    ]);
    let measured = Measured { median: 1.5, least: 1.0, most: 2.0 };
    assert_eq!(get_ratios(&samples)["pagoda_64k"], measured);
    samples.remove("kernel_4k");
    assert_eq!(get_ratios(&samples), Ratios::default());
}

#[test]
fn only_who_was_forbidden_large_pages_is_called_small() {
    assert!(may_have_large("Threads:\t1\nTHP_enabled:\t1\n"));
    assert!(!may_have_large("Threads:\t1\nTHP_enabled:\t0\n") && !may_have_large("Threads:\t1\n"));
}
