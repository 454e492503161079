//! A strict reader of OpenMetrics 1.0, for as much of it as we write: what it refuses, Prometheus
//! may refuse as a whole.

use std::collections::{BTreeMap, BTreeSet};

/// The labels of a sample, by name.
pub type Labels = BTreeMap<String, String>;

/// A family that was read.
#[derive(Debug)]
pub struct Family {
    pub kind: String,
    pub help: String,
    /// Each sample: its name, its labels and its value.
    pub samples: Vec<(String, Labels, f64)>,
}

/// All families by name, or the first line that is wrong.
pub fn read(text: &str) -> Result<BTreeMap<String, Family>, String> {
    let Some(body) = text.strip_suffix("# EOF\n") else { return Err("it has no end".to_owned()) };
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let (mut now, mut seen) = (String::new(), BTreeSet::new());
    for line in body.lines() {
        let wrong = |why: &str| Err(format!("{why}: {line}"));
        let comment = line.strip_prefix("# ").map(|rest| rest.splitn(3, ' ').collect::<Vec<_>>());
        match comment.as_deref() {
            Some(["TYPE", name, kind]) => {
                if !is_name(name) || !["counter", "gauge", "histogram", "info"].contains(kind) {
                    return wrong("no family's type");
                }
                let family = Family { kind: (*kind).to_owned(), help: String::new(), samples: Vec::new() };
                if families.insert((*name).to_owned(), family).is_some() {
                    return wrong("a family in two places");
                }
                now = (*name).to_owned();
            }
            Some(["UNIT", name, unit]) if *name == now && name.ends_with(&format!("_{unit}")) => {}
            Some(["HELP", name, help]) if *name == now && unescaped(help).is_some() => {
                families.get_mut(&now).expect("the present one").help = (*help).to_owned();
            }
            Some(_) => return wrong("a comment of another family, or none"),
            None => {
                let Some(sample) = sample(line) else { return wrong("no sample") };
                let Some(family) = families.get_mut(&now) else { return wrong("before any family") };
                let suffix = sample.0.strip_prefix(now.as_str()).unwrap_or("another family");
                let is_of_it = match family.kind.as_str() {
                    "counter" => suffix == "_total" && sample.2 >= 0.0,
                    "info" => suffix == "_info" && sample.2 == 1.0,
                    "histogram" => suffix == "_bucket" && sample.1.contains_key("le"),
                    _ => suffix.is_empty(),
                };
                if !is_of_it {
                    return wrong("not a sample of its family's kind");
                }
                if !seen.insert((sample.0.clone(), sample.1.clone())) {
                    return wrong("a series twice");
                }
                family.samples.push(sample);
            }
        }
    }
    for (name, family) in &families {
        if family.help.is_empty() {
            return Err(format!("{name} has no help"));
        }
        if family.kind == "histogram" {
            buckets(family).map_err(|why| format!("{name}: {why}"))?;
        }
    }
    Ok(families)
}

/// The buckets of each histogram grow, in their bounds and in their counts, and end with all.
fn buckets(family: &Family) -> Result<(), String> {
    let mut by_series: BTreeMap<Labels, Vec<(f64, f64)>> = BTreeMap::new();
    for (_, labels, count) in &family.samples {
        let mut labels = labels.clone();
        let bound = labels.remove("le").unwrap_or_default();
        let most = if bound == "+Inf" { Some(f64::INFINITY) } else { number(&bound) };
        by_series.entry(labels).or_default().push((most.ok_or("a bound is no number")?, *count));
    }
    for (labels, buckets) in by_series {
        let grows = buckets.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1);
        if !grows || buckets.last().is_none_or(|last| last.0 != f64::INFINITY) {
            return Err(format!("{labels:?}: {buckets:?}"));
        }
    }
    Ok(())
}

/// `name{label="value",…} number`, with one space and nothing else.
fn sample(line: &str) -> Option<(String, Labels, f64)> {
    let (name, mut rest) = line.split_at(line.find(['{', ' '])?);
    let mut labels = Labels::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        loop {
            let (label, after) = rest.split_once("=\"")?;
            let end = end_of_value(after)?;
            let value = unescaped(&after[..end])?;
            if !is_name(label) || label.contains(':') || labels.insert(label.to_owned(), value).is_some() {
                return None;
            }
            rest = &after[end + 1..];
            match rest.strip_prefix(',') {
                Some(next) => rest = next,
                None => break,
            }
        }
        rest = rest.strip_prefix('}')?;
    }
    let value = number(rest.strip_prefix(' ')?)?;
    is_name(name).then(|| (name.to_owned(), labels, value))
}

/// The first quote that no backslash escapes.
fn end_of_value(text: &str) -> Option<usize> {
    let mut escaped = false;
    text.char_indices().find_map(|(at, char)| {
        let ends = char == '"' && !escaped;
        escaped = char == '\\' && !escaped;
        ends.then_some(at)
    })
}

fn unescaped(text: &str) -> Option<String> {
    let (mut plain, mut chars) = (String::new(), text.chars());
    while let Some(char) = chars.next() {
        plain.push(match char {
            '\\' => match chars.next()? {
                'n' => '\n',
                same @ ('\\' | '"') => same,
                _ => return None,
            },
            char => char,
        });
    }
    Some(plain)
}

fn is_name(text: &str) -> bool {
    let is_of_it = |char: char| char.is_ascii_alphanumeric() || char == '_' || char == ':';
    !text.is_empty() && !text.starts_with(|first: char| first.is_ascii_digit()) && text.chars().all(is_of_it)
}

/// Digits with at most one point: neither `inf` nor a sign, which no value of ours has.
fn number(text: &str) -> Option<f64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
    let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if is_digits(whole) && is_digits(part) { text.parse().ok() } else { None }
}
