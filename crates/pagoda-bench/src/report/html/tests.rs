//! Tests of the page: canned figures, one file for each bench as it printed them, through the code
//! of the real run. Never measures.

use std::collections::BTreeSet;

use html5ever::tendril::TendrilSink;
use html5ever::{ParseOpts, parse_document};
use markup5ever_rcdom::{Handle, NodeData, RcDom};

use super::svg::Bar;
use super::*;
use crate::help;
use crate::list::BENCHES;
use crate::report::keys::{expect_documented, expect_words_for};

fn outcomes() -> Vec<Outcome> {
    let of = |entry: &'static Entry| Outcome {
        entry,
        json: Some(canned(entry.name)),
        failure: None,
        seconds: 12.3,
    };
    BENCHES.iter().map(of).collect()
}

fn about() -> About {
    About { machine: "a <b>machine</b>".to_owned(), version: "1.2.3", when: "today".to_owned(), quick: true }
}

#[test]
fn each_key_that_a_bench_prints_is_in_its_help() {
    for entry in &BENCHES {
        expect_words_for(&help(entry.name), &canned(entry.name));
    }
    expect_documented(crate::suites::clear::KEYS, &canned("clear"));
    let prezeroed = canned("clear")["orders"]["prezeroed"].clone();
    assert!(prezeroed.is_object(), "the keys of frames that are cleared ahead are looked at, too");
}

/// A figure as `pagoda trace` draws it.
const HEAT: &str = "<figure><figcaption>Faults and evictions by address and time</figcaption>\
    <svg viewBox=\"0 0 9 9\">\
    <title>Faults and evictions by address and time</title><rect width=\"9\" height=\"9\"/></svg></figure>\n";

/// The parsed document. Quirks mode is an error here, as are faults that a browser would swallow.
fn parsed(html: &str) -> RcDom {
    let dom = parse_document(RcDom::default(), ParseOpts::default()).one(html);
    let errors = dom.errors.borrow();
    assert!(errors.is_empty(), "{errors:?}");
    drop(errors);
    dom
}

fn walk(node: &Handle, visit: &mut impl FnMut(&Handle)) {
    visit(node);
    node.children.borrow().iter().for_each(|child| walk(child, visit));
}

fn elements(dom: &RcDom, named: &str) -> Vec<Handle> {
    let mut found = Vec::new();
    walk(&dom.document, &mut |node| {
        if matches!(&node.data, NodeData::Element { name, .. } if &*name.local == named) {
            found.push(node.clone());
        }
    });
    found
}

fn attribute(node: &Handle, named: &str) -> Option<String> {
    let NodeData::Element { attrs, .. } = &node.data else { return None };
    let attrs = attrs.borrow();
    attrs.iter().find(|attr| &*attr.name.local == named).map(|attr| attr.value.to_string())
}

fn text_of(node: &Handle) -> String {
    let mut text = String::new();
    walk(node, &mut |node| {
        if let NodeData::Text { contents } = &node.data {
            text += &contents.borrow();
        }
    });
    text
}

#[test]
fn the_page_parses_and_has_a_plot_of_everything_that_was_measured() {
    let (dom, outcomes) = (parsed(&page(&about(), &outcomes(), HEAT)), outcomes());
    let charts: Vec<Chart> = outcomes
        .iter()
        .flat_map(|outcome| (outcome.entry.charts)(outcome.json.as_ref().expect("canned")))
        .collect();
    for chart in &charts {
        let of_here = chart.bars.iter().filter(|bar| bar.side != Side::Published).count();
        assert!(of_here >= 2, "{} has {of_here} figures of this machine", chart.title);
        assert!(chart.bars.iter().all(|bar| bar.value.is_finite()), "{}", chart.title);
    }
    let plots = elements(&dom, "svg");
    // The last plot is the heat map.
    assert_eq!((plots.len(), elements(&dom, "figure").len()), (charts.len() + 1, charts.len() + 1));
    assert!(text_of(plots.last().expect("plots")).contains("Faults and evictions by address and time"));
    for (plot, chart) in plots.iter().zip(&charts) {
        let mut bars = 0;
        walk(plot, &mut |node| {
            bars +=
                usize::from(matches!(&node.data, NodeData::Element { name, .. } if &*name.local == "rect"));
        });
        assert_eq!(bars, chart.bars.len(), "{}", chart.title);
    }
    for side in Side::ALL {
        assert!(charts.iter().flat_map(|chart| &chart.bars).any(|bar| bar.side == side), "{}", side.name());
    }
}

/// Charts of counts beside published ones. They have no spread: the same count results each time.
const COUNTED: [&str; 4] = ["A: ", "B: ", "C: ", "D: "];

#[test]
fn what_stands_beside_a_published_figure_has_its_spread() {
    let mut looked_at = 0;
    for entry in &BENCHES {
        for chart in (entry.charts)(&canned(entry.name)) {
            let is_beside_published = chart.bars.iter().any(|bar| bar.side == Side::Published);
            if !is_beside_published || COUNTED.iter().any(|counted| chart.title.starts_with(counted)) {
                continue;
            }
            // The baseline of a ratio is 1 by definition.
            let is_base = |bar: &Bar| bar.side == Side::Baseline && bar.value == 1.0 && bar.spread.is_none();
            for bar in chart.bars.iter().filter(|bar| bar.side != Side::Published && !is_base(bar)) {
                assert!(bar.spread.is_some(), "{}, {}: {}", entry.name, chart.title, bar.label);
                looked_at += 1;
            }
        }
    }
    assert!(looked_at > 40, "{looked_at} bars");
}

#[test]
fn figures_of_rounds_have_their_spread_wherever_they_are_drawn() {
    for (bench, titles) in [
        ("clear", &["From a touch to its return, 2 MiB"][..]),
        ("tree", &["redis while it saves", "redis while it saves, p99"]),
        ("migrate", &["live: nobody can write", "live: until all of it is there", "Content of 3:1 by codec"]),
    ] {
        let entry = BENCHES.iter().find(|entry| entry.name == bench).expect("a bench");
        let charts = (entry.charts)(&canned(bench));
        for title in titles {
            let chart = charts.iter().find(|chart| chart.title == *title).expect(title);
            let mut bars = chart.bars.iter().filter(|bar| bar.side != Side::Published);
            assert!(bars.all(|bar| bar.spread.is_some()), "{title}: {:?}", chart.bars);
        }
    }
}

#[test]
fn the_page_refers_to_nothing_outside_of_itself() {
    let html = page(&about(), &outcomes(), HEAT);
    for outside in
        ["http:", "https:", "url(", "@import", "<script", "<link", "<img", "<iframe", "javascript:"]
    {
        assert!(!html.contains(outside), "{outside}");
    }
    let dom = parsed(&html);
    let (mut names, mut targets) = (BTreeSet::new(), Vec::new());
    walk(&dom.document, &mut |node| {
        names.extend(attribute(node, "id"));
        for reference in ["href", "src", "data", "action", "xlink:href", "srcset"] {
            targets.extend(attribute(node, reference));
        }
    });
    assert!(targets.len() >= BENCHES.len());
    for target in targets {
        let name = target.strip_prefix('#').unwrap_or_else(|| panic!("{target} lies outside"));
        assert!(names.contains(name), "{target} leads nowhere");
    }
}

#[test]
fn what_each_bench_printed_is_in_the_page_as_it_was() {
    let dom = parsed(&page(&about(), &outcomes(), HEAT));
    let raw = elements(&dom, "pre");
    assert_eq!(raw.len(), BENCHES.len());
    for entry in &BENCHES {
        let id = Some(format!("{}-json", entry.name));
        let node = raw.iter().find(|node| attribute(node, "id") == id).expect("its JSON");
        assert_eq!(serde_json::from_str::<Value>(&text_of(node)).expect("JSON"), canned(entry.name));
    }
}

#[test]
fn a_bench_that_failed_has_its_message_and_the_rest_their_plots() {
    let mut outcomes = outcomes();
    outcomes[0].json = None;
    outcomes[0].failure = Some("pagoda: no <userfaultfd> & \"nothing\"\u{1b}".to_owned());
    outcomes[1].failure = Some("one side".to_owned());
    let html = page(&about(), &outcomes, HEAT);
    let dom = parsed(&html);
    let text = text_of(&dom.document);
    assert!(
        text.contains("pagoda: no <userfaultfd> & \"nothing\"\u{fffd}") && text.contains("failed in part"),
        "{text}"
    );
    assert!(text.contains("a <b>machine</b>") && elements(&dom, "b").is_empty());
    assert_eq!(elements(&dom, "pre").len(), BENCHES.len() - 1);
    assert!(!elements(&dom, "svg").is_empty());
}

#[test]
fn figures_that_are_null_or_missing_draw_nothing() {
    for (entry, json) in
        BENCHES.iter().flat_map(|entry| [(entry, Value::Null), (entry, serde_json::json!({"a": []}))])
    {
        let known = [Side::Published, Side::Baseline];
        let bars: Vec<_> = (entry.charts)(&json).into_iter().flat_map(|chart| chart.bars).collect();
        assert!(
            bars.iter().all(|bar| known.contains(&bar.side) && bar.spread.is_none()),
            "{}: {bars:?}",
            entry.name
        );
        parsed(&page(&about(), &[Outcome { entry, json: Some(json), failure: None, seconds: 0.0 }], ""));
    }
}

#[test]
fn the_published_figures_lead_to_the_benches_that_there_are() {
    for seed in &SEEDS {
        assert!(BENCHES.iter().any(|entry| entry.name == seed.bench), "{}", seed.title);
    }
    let text = text_of(&parsed(&page(&about(), &outcomes(), HEAT)).document);
    for seed in &SEEDS {
        assert!(text.contains(seed.published), "{}", seed.title);
    }
}

/// Benches whose tables have empty cells: a row without such a figure, or without a reason.
const EMPTY_CELLS: [&str; 4] = ["base-page", "clear", "migrate", "tree"];

#[test]
fn the_tables_of_canned_figures_lack_no_figure() {
    for entry in &BENCHES {
        let text = (entry.table)(&canned(entry.name));
        for line in text.lines() {
            let mut cells = line.trim_matches('|').split('|');
            let lacks = if line.starts_with('|') {
                !EMPTY_CELLS.contains(&entry.name) && cells.any(|cell| cell.trim().is_empty())
            } else {
                line.contains("  ") || line.contains('{')
            };
            assert!(!lacks, "{}: {line}", entry.name);
        }
    }
}
