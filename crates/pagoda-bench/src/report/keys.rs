//! Test checks of the keys of a bench's JSON: `--help` explains each, and the figures of the page's
//! tests have it. Never checks a value.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::help;
use crate::report::html::canned;

/// The report of another command, whose documentation explains its content.
const TOLD_ELSEWHERE: &str = "pagoda_stats";

/// Keys with the reason for a missing figure, there only then.
const WHY: [&str; 5] = ["reason", "reasons", "why", "left_out", "failed"];

/// Checks a bench's JSON: `--help` has each of its keys and no other, and the page's tests have
/// figures with each.
pub fn expect_told(name: &str, keys: &str, json: &Value) {
    expect_documented(keys, json);
    expect_words_for(&help(name), json);
    expect_paths_of(json, &canned(name));
}

/// Checks that each key of the first level in `--help` is there. Such a line has two blanks and
/// keys, then two blanks and their meaning.
pub fn expect_documented(keys: &str, json: &Value) {
    let lines = keys.lines().filter_map(|line| line.strip_prefix("  ").filter(|line| !line.starts_with(' ')));
    let named = lines.filter_map(|line| Some(line.split_once("  ")?.0.split(", ")));
    let mut count = 0;
    for key in named.flatten().filter(|key| !says_why(key)) {
        let first = key.split('.').next().unwrap_or(key);
        assert!(json.get(first).is_some(), "there is no {key}");
        count += 1;
    }
    assert!(count > 4, "{count} keys");
}

/// Checks the other way round: each key, on every level, is a word of `--help`. Left out are the
/// suffixes `_least` and `_most`, and keys that are numbers.
pub fn expect_words_for(help: &str, json: &Value) {
    let words: BTreeSet<&str> =
        help.split(|char: char| !(char.is_alphanumeric() || "_-".contains(char))).collect();
    for path in paths(json) {
        let key = path.rsplit('.').next().unwrap_or(&path);
        let of = key.strip_suffix("_least").or_else(|| key.strip_suffix("_most"));
        let is_word = words.contains(of.unwrap_or(key));
        assert!(is_word || key == NUMBER, "nobody says what {path} is");
    }
}

/// Checks that `figures` of an earlier run have every key of `json`, at the same place.
pub fn expect_paths_of(json: &Value, figures: &Value) {
    let there = paths(figures);
    let missing: Vec<_> =
        paths(json).into_iter().filter(|path| !says_why(path) && !there.contains(path)).collect();
    assert!(missing.is_empty(), "the figures of the page's tests are older than {missing:?}");
}

const NUMBER: &str = "#";

fn says_why(path: &str) -> bool {
    path.split('.').any(|key| {
        WHY.iter().any(|why| key.strip_suffix(why).is_some_and(|of| of.is_empty() || of.ends_with('_')))
    })
}

/// The keys on all levels, each after its parents. Elements of arrays are not told apart, nor are
/// keys that are numbers.
fn paths(json: &Value) -> BTreeSet<String> {
    let (mut paths, mut rest) = (BTreeSet::new(), vec![(String::new(), json)]);
    while let Some((above, value)) = rest.pop() {
        match value {
            Value::Object(members) => {
                for (key, value) in members {
                    let is_number = key.bytes().all(|byte| byte.is_ascii_digit());
                    let path = format!("{above}.{}", if is_number { NUMBER } else { key });
                    if key != TOLD_ELSEWHERE {
                        rest.push((path.clone(), value));
                    }
                    paths.insert(path);
                }
            }
            Value::Array(values) => rest.extend(values.iter().map(|value| (above.clone(), value))),
            _ => {}
        }
    }
    paths
}

#[test]
fn a_key_is_looked_for_wherever_it_is_but_in_another_commands_report() {
    let json = serde_json::json!({
        "by_threads": { "16": [{ "mib_s": 1, "mib_s_least": 1 }, { "reason": "none" }] },
        "pagoda_stats": { "counters": { "faults": 1 } },
    });
    let looked_for = [".by_threads", ".by_threads.#", ".by_threads.#.mib_s", ".by_threads.#.mib_s_least"];
    let all: Vec<_> = paths(&json).into_iter().filter(|path| !says_why(path)).collect();
    assert_eq!(all, [&looked_for[..], &[".pagoda_stats"]].concat());
    assert!(says_why(".kernel_zram_reason") && says_why(".clusters.why.auto") && !says_why(".evicted_busy"));
}
