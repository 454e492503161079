//! The page of `--stats`: every key, as in its own documentation.
//!
//! The table of counters is made from the comments in the source. A comment that is added or
//! changed there makes the page old. With `PAGODA_WRITE_REFERENCE=1` the test writes the table.
//! Text outside of it is written by hand.

use std::fs;
use std::path::{Path, PathBuf};

use pagoda::stats::counters::{COUNT, Stats};
use pagoda_linux::testing::skip::skip;

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../pagoda/src")
}

fn page_file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/stats.md")
}

/// The first paragraph of a comment, as one line that can stand in a table.
fn first_paragraph(comment: &[String]) -> String {
    let lines: Vec<&str> = comment.iter().map(String::as_str).take_while(|line| !line.is_empty()).collect();
    let mut text = lines.join(" ").replace('|', "\\|");
    // A link of the documentation: its text, and not its target.
    while let Some(at) = text.find("](") {
        let end = text[at..].find(')').map_or(text.len(), |end| at + end + 1);
        text.replace_range(at..end, "]");
    }
    text.replace(['[', ']'], "")
}

/// Lines of a source with the comment that stands above each; attributes in between are passed
/// over.
fn commented(source: &str) -> Vec<(&str, Vec<String>)> {
    let (mut lines, mut comment) = (Vec::new(), Vec::new());
    for line in source.lines() {
        match line.trim_start().strip_prefix("///") {
            Some(said) => comment.push(said.strip_prefix(' ').unwrap_or(said).to_owned()),
            None if line.trim_start().starts_with("#[") => {}
            None => lines.push((line, std::mem::take(&mut comment))),
        }
    }
    lines
}

/// By the macro that declares them: a kind, a variant and a name.
fn counters() -> Vec<(String, String)> {
    let source = fs::read_to_string(sources().join("stats/counters.rs")).expect("a source");
    let declared = source.split_once("\ncounters! {\n").expect("counters").1;
    let of = |(line, comment): (&str, Vec<String>)| {
        let [_, _, name] = line.trim_end_matches(',').split_whitespace().collect::<Vec<_>>()[..] else {
            return None;
        };
        Some((name.to_owned(), first_paragraph(&comment)))
    };
    commented(declared).into_iter().filter_map(of).collect()
}

fn table(head: &str, rows: &[(String, String)]) -> String {
    let rows: String = rows.iter().map(|(name, is)| format!("| `{name}` | {is} |\n")).collect();
    format!("| {head} | is |\n|---|---|\n{rows}")
}

/// The page with its table of counters.
fn with_table(page: &str) -> String {
    let counters = counters();
    let names: Vec<&str> = counters.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, Stats::default().fields().map(|(name, _)| name), "the {COUNT} counters");
    let above = "<!-- counters -->\n";
    let at = page.find(above).expect("the page marks its table") + above.len();
    let is = page[at..].split_inclusive('\n').take_while(|line| line.starts_with('|')).map(str::len);
    let end = at + is.sum::<usize>();
    let mut page = page.to_owned();
    page.replace_range(at..end, &table("key of `counters`", &counters));
    page
}

#[test]
fn the_page_agrees_with_the_counters() {
    let file = page_file();
    let page = fs::read_to_string(&file).expect("the page");
    let right = with_table(&page);
    if std::env::var_os("PAGODA_WRITE_REFERENCE").is_some() {
        return fs::write(file, right).expect("written");
    }
    assert!(page == right, "docs/stats.md is old: run this test with PAGODA_WRITE_REFERENCE=1");
}

#[test]
fn every_key_of_the_stats_of_a_run_is_on_the_page() {
    if let Err(why) = pagoda_linux::probe::can_run() {
        return skip("the keys of --stats", why);
    }
    let scratch = tempfile::tempdir().expect("a directory");
    let file = scratch.path().join("stats.json");
    // More than the budget, so that it has an engine when it ends, and the engine its zones.
    let numbers = scratch.path().join("numbers");
    let lines: String = (0..1_500_000).map(|number| format!("{number}\n")).collect();
    fs::write(&numbers, lines).expect("written");
    let ran = std::process::Command::new(env!("CARGO_BIN_EXE_pagoda"))
        .args(["run", "-q", "--zone", "near=32M", "--zone", "far=32M@remote", "--stats"])
        .arg(&file)
        .args(["--", "sort", "-r", "-S", "200M", "-o", "/dev/null"])
        .arg(&numbers)
        .output()
        .expect("pagoda starts");
    assert!(ran.status.success(), "{}: {}", ran.status, String::from_utf8_lossy(&ran.stderr));
    let page = fs::read_to_string(page_file()).expect("the page");
    let stats: serde_json::Value = serde_json::from_slice(&fs::read(file).expect("written")).expect("JSON");
    let mut found = 0;
    for path in ["", "/counters", "/latency_us", "/processes/0", "/zones/0"] {
        let object = stats.pointer(path).and_then(serde_json::Value::as_object);
        for key in object.unwrap_or_else(|| panic!("no {path}: {stats}")).keys() {
            assert!(page.contains(&format!("`{key}`")), "{path}/{key}");
            found += 1;
        }
    }
    assert!(found > COUNT + 20, "{found} keys");
}

#[test]
fn comments_become_rows() {
    let comment =
        ["See [`Region`](crate::Region) and [this](x): a | b,", "on.", "", "More."].map(str::to_owned);
    assert_eq!(first_paragraph(&comment), "See `Region` and this: a \\| b, on.");
    let source = "/// Does it.\n#[must_use]\npub fn it() {}\nlet x;\n";
    assert_eq!(commented(source)[0], ("pub fn it() {}", vec!["Does it.".to_owned()]));
    assert_eq!(commented(source)[1].1, Vec::<String>::new());
}
