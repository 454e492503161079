//! The page of figures: its tables are made from the runs that lie in `docs/figures`.
//!
//! `tables.json` there names the command of each table, its rows, and where a report has their
//! figures. Each other file is one run with its machine and commit; `.ci/figures` writes them. With
//! `PAGODA_WRITE_REFERENCE=1` the test writes the tables. Text outside of them is written by hand,
//! and this test must never pass with a figure in a table that no run has.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::DeserializeOwned;

/// A table: its subject, and the command that makes it.
#[derive(Deserialize)]
struct Table {
    name: String,
    command: String,
    /// Of both sides' figures.
    unit: String,
    /// The name of the other side.
    baseline: String,
    /// The name of the last figure's column.
    #[serde(default = "ratio")]
    figure: String,
    rows: Vec<Row>,
}

fn ratio() -> String {
    "ratio".into()
}

/// A row: the places of its figures in the command's report.
#[derive(Deserialize)]
struct Row {
    row: String,
    pagoda: Option<String>,
    baseline: Option<String>,
    ratio: String,
    aim: Option<Aim>,
}

/// The bound that the ratio was meant to keep.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Aim {
    AtLeast(f64),
    AtMost(f64),
}

/// One run of a table's command.
#[derive(Deserialize)]
struct Run {
    table: String,
    commit: String,
    machine: Machine,
    figures: BTreeMap<String, f64>,
}

#[derive(Deserialize)]
struct Machine {
    cpu: String,
    cores: u32,
    kernel: String,
}

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

fn read<T: DeserializeOwned>(file: &Path) -> T {
    let text = fs::read(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    serde_json::from_slice(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

/// All runs, in the order of their files' names.
fn runs() -> Vec<Run> {
    let files = fs::read_dir(docs().join("figures")).expect("there").flatten().map(|entry| entry.path());
    let mut files: Vec<_> = files.filter(|file| !file.ends_with("tables.json")).collect();
    files.sort();
    files.iter().map(|file| read(file)).collect()
}

/// Three significant digits.
fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let (low, high) = (values.get(values.len().wrapping_sub(1) / 2)?, values.get(values.len() / 2)?);
    Some((low + high) / 2.0)
}

impl Row {
    /// Its line of a table that has the sides' own figures, or has ratios alone.
    fn line(&self, runs: &[&Run], has_sides: bool) -> String {
        let all = |place: &str| -> Vec<f64> {
            runs.iter().filter_map(|run| run.figures.get(place).copied()).collect()
        };
        let side = |place: &Option<String>| {
            let values = place.as_ref().map(|place| all(place)).unwrap_or_default();
            median(values).map_or_else(|| "–".to_owned(), number)
        };
        let ratios = all(&self.ratio);
        let ratio = median(ratios.clone()).unwrap_or_else(|| panic!("no run has {}", self.ratio));
        let ends = [all(&format!("{}_least", self.ratio)), all(&format!("{}_most", self.ratio))].concat();
        let ends = ratios.iter().chain(&ends).copied();
        let (least, most) = (ends.clone().fold(ratio, f64::min), ends.fold(ratio, f64::max));
        let (aim, reached) = match self.aim {
            Some(Aim::AtLeast(aim)) => {
                (format!("at least {aim}"), if ratio >= aim { "yes" } else { "**no**" })
            }
            Some(Aim::AtMost(aim)) => (format!("at most {aim}"), if ratio <= aim { "yes" } else { "**no**" }),
            None => ("–".to_owned(), "–"),
        };
        let spread = format!("{} ({}–{})", number(ratio), number(least), number(most));
        let sides = if has_sides {
            format!("{} | {} | ", side(&self.pagoda), side(&self.baseline))
        } else {
            String::new()
        };
        format!("| {} | {sides}{spread} | {aim} | {reached} |\n", self.row)
    }
}

impl Table {
    /// Its command and its runs, and a line for each row.
    fn text(&self, runs: &[Run]) -> String {
        let runs: Vec<&Run> = runs.iter().filter(|run| run.table == self.name).collect();
        let count = runs.len();
        let first = runs.first().unwrap_or_else(|| panic!("there is no run of {}", self.name));
        let mut commits: Vec<_> = runs.iter().map(|run| run.commit.as_str()).collect();
        commits.dedup();
        let Machine { cpu, cores, kernel } = &first.machine;
        let plural = if count == 1 { "" } else { "s" };
        let Self { command, unit, baseline, figure, rows, .. } = self;
        let has_sides = rows.iter().any(|row| row.pagoda.is_some() || row.baseline.is_some());
        let (sides, under) = if has_sides {
            (format!("Pagoda, {unit} | {baseline}, {unit} | "), "---|---|")
        } else {
            (String::new(), "")
        };
        let commits = commits.join(", ");
        let head = format!(
            "`{command}`, {count} run{plural}, commit {commits}, {cores} processors ({cpu}), Linux {kernel}:\n\n\
             | row | {sides}{figure} | aim | reached |\n|---|{under}---|---|---|\n"
        );
        head + &rows.iter().map(|row| row.line(&runs, has_sides)).collect::<String>()
    }
}

/// The page with its tables, each between a line that names it and one that ends it.
fn with_tables(page: &str, tables: &[Table], runs: &[Run]) -> String {
    const END: &str = "<!-- end -->\n";
    let mut page = page.to_owned();
    for table in tables {
        let above = format!("<!-- figures {} -->\n", table.name);
        let at = page.find(&above).unwrap_or_else(|| panic!("the page lacks {above}")) + above.len();
        let end = at + page[at..].find(END).expect("the table's end is marked");
        page.replace_range(at..end, &table.text(runs));
    }
    page
}

#[test]
fn the_tables_are_those_of_the_runs() {
    let (tables, runs): (Vec<Table>, _) = (read(&docs().join("figures/tables.json")), runs());
    for run in &runs {
        assert!(tables.iter().any(|table| table.name == run.table), "no table {}", run.table);
    }
    let file = docs().join("figures.md");
    let page = fs::read_to_string(&file).expect("the page");
    let right = with_tables(&page, &tables, &runs);
    if std::env::var_os("PAGODA_WRITE_REFERENCE").is_some() {
        return fs::write(file, right).expect("written");
    }
    assert!(page == right, "docs/figures.md is old: run .ci/figures");
}

#[test]
fn a_row_has_the_medians_of_all_runs_and_the_ends_of_their_spread() {
    let run = |own: f64, ratio: f64, most: f64| Run {
        table: "t".into(),
        commit: "c".into(),
        machine: Machine { cpu: "p".into(), cores: 2, kernel: "6.18".into() },
        figures: [("/a", own), ("/r", ratio), ("/r_most", most)].map(|(at, is)| (at.into(), is)).into(),
    };
    let runs = [run(1.0, 2.0, 2.5), run(3.0, 1.0, 1.0), run(120.4, 1.5, 1.5)];
    let of =
        |aim| Row { row: "fill".into(), pagoda: Some("/a".into()), baseline: None, ratio: "/r".into(), aim };
    let runs: Vec<&Run> = runs.iter().collect();
    let line = of(Some(Aim::AtLeast(1.5))).line(&runs, true);
    assert_eq!(line, "| fill | 3.00 | – | 1.50 (1.00–2.50) | at least 1.5 | yes |\n");
    assert!(of(Some(Aim::AtMost(1.0))).line(&runs, true).ends_with("| at most 1 | **no** |\n"));
    assert!(of(None).line(&runs[..2], false).contains("| fill | 1.50 (1.00–2.50) | – | – |"));
}
