use html5ever::tendril::TendrilSink;
use html5ever::{ParseOpts, parse_document};
use markup5ever_rcdom::RcDom;

use super::super::file::Header;
use super::*;

const MIB: u64 = 1 << 20;

fn trace(lines: Vec<Line>) -> Trace {
    let header = Header::new(vec!["x".to_owned()], 64 << 20, 64 << 10, 1_280_000);
    Trace { header: Header { events: lines.len() as u64, ..header }, lines }
}

fn fault(time_us: u64, pid: u32, address: u64) -> Line {
    Line(time_us, pid, Kind::Zero, address, 4096, Some(1.0))
}

#[test]
fn gaps_are_cut_out_and_every_event_is_in_its_field() {
    let far = 0x7f00_0000_0000;
    let heat = Heat::of(&trace(vec![
        fault(0, 7, far),
        fault(5, 7, far),
        fault(1_280_000, 7, 16 * MIB),
        Line(640_000, 7, Kind::Eviction, 16 * MIB, 128 << 10, None),
        fault(10, 9, 16 * MIB),
    ]));
    let block = MIB >> 4;
    let low = 16 * MIB / block;
    assert_eq!(heat.rows, [(7, low), (7, low + 1), (7, far / block), (9, low)]);
    assert_eq!((heat.block_bits, heat.column_us), (16, 10_001));
    let at = |kind: usize, row: usize, column: usize| heat.counts[kind][row * COLUMNS + column];
    assert_eq!((at(0, 2, 0), at(0, 0, COLUMNS - 1), at(0, 3, 0)), (2, 1, 1));
    assert_eq!((at(1, 0, 63), at(1, 1, 63)), (1, 1), "an eviction is in all that it moved");
    let sums = heat.counts.each_ref().map(|counts| counts.iter().sum::<u64>());
    assert_eq!(sums, [4, 2]);
    let svg = heat.svg();
    // The strongest: two faults of a block; the evictions' right half of the column, in both rows.
    let far_top = TOP + 8 + 8 + GAP;
    assert!(
        svg.contains(&format!("M{LEFT} {far_top}h3v8h-3z\" fill=\"#d55e00\" fill-opacity=\"1\"")),
        "{svg}"
    );
    let x = LEFT + 63 * CELL + CELL / 2;
    assert!(svg.contains(&format!("M{x} 8h3v8h-3zM{x} 16h3v8h-3z\" fill=\"#0072b2\"")), "{svg}");
    for label in ["7 1000000<", "7 7f0000000000<", "9 1000000<", "0.00 s", "1.28 s"] {
        // Labels that would overlap are left out.
        assert_eq!(svg.contains(label), label != "9 1000000<", "{label} {svg}");
    }
}

#[test]
fn where_there_is_no_room_for_two_names_the_larger_memory_has_its_own() {
    let large = (0..50).map(|at| fault(1, 7, (1 << 40) + at * MIB / 16));
    let svg = Heat::of(&trace(large.chain([fault(1, 7, 1 << 30)]).collect())).svg();
    assert!(svg.contains("7 10000000000<") && !svg.contains("7 40000000<"), "{svg}");
}

#[test]
fn any_spread_of_events_is_drawn_in_few_rows() {
    let wide = Heat::of(&trace((0..100_000).map(|at| fault(at, 7, at << 24)).collect()));
    assert!(wide.rows.len() <= ROWS_MAX && wide.rows.len() > ROWS_MAX / 3, "{}", wide.rows.len());
    let ends = [fault(0, 7, 0), Line(1, 7, Kind::Eviction, 0, u64::MAX, None), fault(2, 7, u64::MAX)];
    assert!(Heat::of(&trace(ends.to_vec())).rows.len() <= ROWS_MAX);
    let late = Heat::of(&trace(vec![fault(u64::MAX, 7, 0)])).svg();
    assert!(late.contains("18446744073709.55 s"), "{late}");
    let many: Vec<Line> = (0..100u32).flat_map(|pid| (0..=pid).map(move |_| fault(1, pid, 0))).collect();
    let heat = Heat::of(&trace(many));
    assert_eq!((heat.rows.len(), heat.left_out), (PROCESSES_MAX, 100 - PROCESSES_MAX));
    assert!(heat.rows.contains(&(99, 0)) && heat.caption().contains("68 processes"), "{}", heat.caption());
}

#[test]
fn nothing_is_no_plot() {
    let heat = Heat::of(&trace(Vec::new()));
    assert_eq!((heat.rows.len(), heat.svg().as_str()), (0, ""));
}

#[test]
fn the_page_of_a_trace_is_one_document_with_its_map() {
    let lines = vec![fault(10, 7, 1 << 30), Line(500, 7, Kind::Eviction, 1 << 30, 1 << 20, None)];
    let trace = trace(lines);
    let page = crate::trace::page(&trace, &crate::trace::summary::Summary::of(&trace));
    let dom = parse_document(RcDom::default(), ParseOpts::default()).one(page.as_str());
    assert!(dom.errors.borrow().is_empty(), "{:?}", dom.errors.borrow());
    // `pagoda bench all` takes the figure out of the page by these.
    assert_eq!((page.matches("<figure>").count(), page.matches("</figure>").count()), (1, 1));
    let map = page.split("<svg").nth(1).expect("a map");
    assert!(map.contains("Faults and evictions by address and time") && map.contains("<rect"), "{map}");
}
