//! Figures as JSON, whose keys other tools read. Pure.
//!
//! A member `x` that is a [`Measured`](crate::measure::stats::Measured) becomes three numbers: `x`,
//! the median, `x_least` and `x_most`; a list of them becomes three lists. This module must never
//! change any other member.

use serde_json::{Map, Value};

use crate::measure::machine::Machine;

/// The members of a `Measured`, and the suffix of the key for each.
const PARTS: [(&str, &str); 3] = [("median", ""), ("least", "_least"), ("most", "_most")];

/// The report of a bench: its figures, and the keys that all benches have.
pub fn report(bench: &str, quick: bool, figures: Value) -> Value {
    let mut report = plain(figures);
    report["bench"] = bench.into();
    report["quick"] = quick.into();
    report["machine"] = serde_json::json!(Machine::this());
    report
}

/// The value with three numbers for each measured figure.
pub fn plain(value: Value) -> Value {
    match value {
        Value::Object(members) => {
            let mut all = Map::new();
            for (key, value) in members {
                if is_measured(&value) {
                    all.extend(PARTS.map(|(part, suffix)| (format!("{key}{suffix}"), part_of(&value, part))));
                } else {
                    all.insert(key, plain(value));
                }
            }
            Value::Object(all)
        }
        Value::Array(values) => Value::Array(values.into_iter().map(plain).collect()),
        other => other,
    }
}

fn is_measured(value: &Value) -> bool {
    match value {
        Value::Object(members) => {
            members.len() == PARTS.len() && PARTS.iter().all(|(part, _)| members.contains_key(*part))
        }
        Value::Array(values) => !values.is_empty() && values.iter().all(is_measured),
        _ => false,
    }
}

fn part_of(value: &Value, part: &str) -> Value {
    match value {
        Value::Array(values) => values.iter().map(|value| part_of(value, part)).collect(),
        value => value[part].clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json as value;

    use super::*;
    use crate::measure::stats::Measured;

    #[test]
    fn a_measured_figure_is_three_numbers_and_all_else_stays() {
        let us = Measured { median: 2.0, least: 1.0, most: 3.0 };
        let rest = value!({ "median": 1, "list": [], "rows": [{ "x": null }] });
        let figures = value!({ "us": us, "all": [us, Measured::once(5.0)], "none": null, "rest": rest });
        let expected = value!({
            "us": 2.0, "us_least": 1.0, "us_most": 3.0,
            "all": [2.0, 5.0], "all_least": [1.0, 5.0], "all_most": [3.0, 5.0],
            "none": null, "rest": rest,
        });
        assert_eq!(plain(figures), expected);
    }
}
