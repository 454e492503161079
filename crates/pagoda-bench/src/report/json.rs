//! Figures as JSON, whose keys other tools read. Pure.
//!
//! A member `x` that is a [`Measured`](crate::measure::stats::Measured) becomes three numbers: `x`,
//! the median, `x_least` and `x_most`; a list of them becomes three lists. This module must never
//! change any other member.

use serde::Serialize;
use serde_json::{Map, Value};

/// The members of a `Measured`, and what is appended to the key for each.
const PARTS: [(&str, &str); 3] = [("median", ""), ("least", "_least"), ("most", "_most")];

/// A report as JSON. An error of a report that is no JSON.
pub fn json(report: &impl Serialize) -> serde_json::Result<Value> {
    serde_json::to_value(report).map(plain)
}

fn plain(value: Value) -> Value {
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
        #[derive(Serialize)]
        struct Report {
            us: Measured,
            all: Vec<Measured>,
            none: Option<Measured>,
            rest: Value,
        }
        let us = Measured { median: 2.0, least: 1.0, most: 3.0 };
        let rest = value!({ "median": 1, "list": [], "rows": [{ "x": null }] });
        let report = Report { us, all: vec![us, Measured::once(5.0)], none: None, rest: rest.clone() };
        let expected = value!({
            "us": 2.0, "us_least": 1.0, "us_most": 3.0,
            "all": [2.0, 5.0], "all_least": [1.0, 5.0], "all_most": [3.0, 5.0],
            "none": null, "rest": rest,
        });
        assert_eq!(json(&report).expect("json"), expected);
    }
}
