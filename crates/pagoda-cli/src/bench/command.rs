//! What the commands of `pagoda bench` do alike: find this program, ask for what they need, draw progress, print.

use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

/// The path of this program, which runs what is measured in processes of their own.
pub fn this_program() -> anyhow::Result<String> {
    Ok(std::env::current_exe().context("finding this program")?.display().to_string())
}

/// An error where this machine has no managers for libraries.
pub fn needs_managers() -> anyhow::Result<()> {
    if !pagoda::userfaultfd_allows_managers() {
        bail!("this machine offers no userfaultfd with UFFDIO_MOVE; `pagoda doctor` says why");
    }
    Ok(())
}

/// A bar of so many steps, each a `unit`. Drawn on standard error, and there only if that is a terminal.
pub fn progress(steps: u64, unit: &str) -> anyhow::Result<ProgressBar> {
    let template = format!("{{msg}} [{{bar:30}}] {unit} {{pos}} of {{len}}, {{elapsed}} gone, {{eta}} to go");
    let style = ProgressStyle::with_template(&template).context("the progress bar's template")?;
    Ok(ProgressBar::new(steps).with_style(style))
}

/// Checks that each key of the first level that `--help` names is there: lines of two blanks and keys, then two blanks and what they are.
#[cfg(test)]
pub fn expect_documented(keys: &str, json: &serde_json::Value) {
    let lines = keys.lines().filter_map(|line| line.strip_prefix("  ").filter(|line| !line.starts_with(' ')));
    let named = lines.filter_map(|line| Some(line.split_once("  ")?.0.split(", ")));
    let mut count = 0;
    for key in named.flatten() {
        let first = key.split('.').next().unwrap_or(key);
        assert!(json.get(first).is_some(), "there is no {key}");
        count += 1;
    }
    assert!(count > 4, "{count} keys");
}

/// Checks the other way round: each key of the figures, on whatever level, is a word of what `--help` says, but for `_spread`.
#[cfg(test)]
pub fn expect_words_for(help: &str, json: &serde_json::Value) {
    use serde_json::Value;
    let words: std::collections::BTreeSet<&str> =
        help.split(|char: char| !(char.is_alphanumeric() || "_-".contains(char))).collect();
    let mut rest = vec![json];
    while let Some(value) = rest.pop() {
        match value {
            Value::Object(members) => {
                for (key, value) in members {
                    let is_word = words.contains(key.strip_suffix("_spread").unwrap_or(key));
                    assert!(is_word, "nobody says what {key} is");
                    rest.push(value);
                }
            }
            Value::Array(values) => rest.extend(values),
            _ => {}
        }
    }
}

/// Prints what was found out: JSON on one line, or the table for people.
pub fn print<R: Serialize>(report: &R, json: bool, table: impl FnOnce(&R) -> String) -> anyhow::Result<()> {
    if json {
        println!("{}", serde_json::to_string(report)?);
    } else {
        print!("{}", table(report));
    }
    Ok(())
}
