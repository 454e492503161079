//! The documentation: its pages are a book whose links lead somewhere in it, and every command in
//! it and in the READMEs runs.
//!
//! A block marked `console` holds commands, each line that begins with `$ `; any other block is no
//! command. A command that ends with `&` runs beside the next ones. All commands of a page run in
//! one shell, in a directory of their own, where `target/release` is that of this build; Cargo's
//! commands are left out: its examples are run by tests of `pagoda`, all else by `.ci/run`. A block
//! marked `sh` is one command with placeholders: its options are asked for their help. A block
//! marked `rust` is a part of an example of the crate `pagoda`, or of a README that is a crate's
//! documentation: documentation tests run both.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

/// The files outside of the book, by their paths from there.
const READMES: [&str; 16] = [
    "../README.md",
    "../CONTRIBUTING.md",
    "../crates/pagoda/README.md",
    "../crates/pagoda-bench/README.md",
    "../crates/pagoda-c/README.md",
    "../crates/pagoda-cli/README.md",
    "../crates/pagoda-core/README.md",
    "../crates/pagoda-image/README.md",
    "../crates/pagoda-linux/README.md",
    "../crates/pagoda-migrate/README.md",
    "../crates/pagoda-preload/README.md",
    "../crates/pagoda-python/README.md",
    "../crates/pagoda-remote/README.md",
    "../crates/pagoda-serve/README.md",
    "../crates/pagoda-vm-memory/README.md",
    "../crates/pagoda-wasmtime/README.md",
];

fn readmes() -> impl Iterator<Item = String> {
    READMES.into_iter().map(str::to_owned)
}

fn page(name: &str) -> String {
    fs::read_to_string(docs().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The pages of the book, by their paths in it.
fn pages() -> BTreeSet<String> {
    let names = ["", "internals/"].into_iter().flat_map(|directory| {
        let files = fs::read_dir(docs().join(directory)).expect("there").flatten();
        files.map(move |file| format!("{directory}{}", file.file_name().to_string_lossy()))
    });
    names.filter(|name| name.ends_with(".md") && name != "SUMMARY.md").collect()
}

/// Units that only a measurement gives: bounds are told in milliseconds and seconds.
const MEASURED: [&str; 3] = ["µs", "GiB/s", "MiB/s"];

/// Whether a text tells a number of such a unit, or has a table of them.
fn tells_a_measured_number(text: &str) -> bool {
    let mut rows = text.lines().filter(|line| line.starts_with('|'));
    if rows.any(|row| MEASURED.iter().any(|unit| row.contains(unit))) {
        return true;
    }
    let words: Vec<&str> = text.split_whitespace().collect();
    words.windows(2).any(|pair| {
        let is_number = pair[0].trim_start_matches('(').starts_with(|char: char| char.is_ascii_digit());
        is_number && MEASURED.iter().any(|unit| pair[1].starts_with(unit))
    })
}

#[test]
fn numbers_stand_beside_their_command_and_with_the_machine() {
    let mut told = 0;
    for name in pages().into_iter().chain(readmes()) {
        let text = prose(&page(&name));
        for section in text.split("\n#").filter(|section| tells_a_measured_number(section)) {
            let says_by_what = ["pagoda bench", "Published", "published", "/tests/", "/bench/"]
                .iter()
                .any(|by| section.contains(by));
            let heading = section.lines().next().unwrap_or_default();
            assert!(says_by_what, "{name}, {heading}: which command prints these numbers?");
            let says_where = ["igures", "AMD EPYC"].iter().any(|machine| text.contains(machine));
            assert!(says_where, "{name}, {heading}: on which machine?");
            told += 1;
        }
    }
    assert!(told >= 5, "{told} sections");
    assert!(tells_a_measured_number("it takes (3 µs) here") && !tells_a_measured_number("every 25 ms, µs"));
    assert!(tells_a_measured_number("so:\n| row | Pagoda, GiB/s |\n"));
}

/// Language and lines of each block of code.
fn blocks(text: &str) -> Vec<(String, Vec<String>)> {
    let (mut blocks, mut open) = (Vec::new(), None);
    for line in text.lines() {
        match (line.strip_prefix("```"), &mut open) {
            (Some(language), None) => open = Some((language.to_owned(), Vec::new())),
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (None, Some((_, lines))) => lines.push(line.to_owned()),
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "a block has no end");
    blocks
}

/// A page without its blocks of code.
fn prose(text: &str) -> String {
    let mut is_code = false;
    let lines = text.lines().filter(|line| {
        let is_fence = line.starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    });
    lines.map(|line| line.to_owned() + "\n").collect()
}

/// Where each link of a page leads within the repository: a path, and the name of a heading there
/// or nothing.
fn links(text: &str) -> Vec<(String, String)> {
    let text = prose(text);
    let links = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let own = links.filter(|link| !link.contains("://"));
    own.map(|link| link.split_once('#').unwrap_or((link, "")))
        .map(|(path, heading)| (path.to_owned(), heading.to_owned()))
        .collect()
}

/// The names by which links find the headings of a page, as mdBook and GitHub make them of the
/// headings' text.
fn headings(text: &str) -> BTreeSet<String> {
    let of = |line: &str| {
        let says = line.trim_start_matches('#').trim().to_lowercase();
        let kept = says.chars().filter(|char| char.is_alphanumeric() || " _-".contains(*char));
        kept.map(|char| if char == ' ' { '-' } else { char }).collect()
    };
    prose(text).lines().filter(|line| line.starts_with('#')).map(of).collect()
}

/// Checks that each link of a page leads to a file, and to a heading of it if it names one; within
/// the book to another page of it.
fn expect_links_to_lead_somewhere(name: &str, is_of_the_book: bool) {
    let own = docs().join(name);
    let directory = own.parent().expect("a directory");
    let book = docs().canonicalize().expect("there");
    for (path, heading) in links(&page(name)) {
        let to = if path.is_empty() { own.clone() } else { directory.join(&path) };
        let to = to.canonicalize().unwrap_or_else(|error| panic!("{name}: {path}: {error}"));
        assert!(!is_of_the_book || to.starts_with(&book), "{name}: {path} is not in the book");
        if !heading.is_empty() {
            let there = headings(&fs::read_to_string(&to).expect("a page"));
            assert!(there.contains(&heading), "{name}: {path} has no heading {heading}: {there:?}");
        }
    }
}

#[test]
fn every_page_is_in_the_book_and_every_link_leads_somewhere() {
    let summary: BTreeSet<String> = links(&page("SUMMARY.md")).into_iter().map(|(path, _)| path).collect();
    assert_eq!(summary, pages());
    pages().iter().for_each(|name| expect_links_to_lead_somewhere(name, true));
    readmes().for_each(|name| expect_links_to_lead_somewhere(&name, false));
}

#[test]
fn links_are_looked_at_with_their_headings_and_not_in_code() {
    let text =
        "## What `it` asks for, and why\n[a](b.md#libraries) [c](https://d)\n```text\n# no [e](f)\n```\n";
    assert_eq!(links(text), [("b.md".to_owned(), "libraries".to_owned())]);
    assert_eq!(headings(text), BTreeSet::from(["what-it-asks-for-and-why".to_owned()]));
}

#[test]
fn source_files_that_pages_name_are_there() {
    let mut named = 0;
    for name in pages() {
        for code in prose(&page(&name)).split('`').skip(1).step_by(2) {
            let is_path =
                code.starts_with("pagoda") && code.contains("/src/") && !code.contains(['*', ' ', '{']);
            if is_path {
                let file = docs().join("../crates").join(code);
                assert!(file.exists(), "{name}: there is no {code}");
                named += 1;
            }
        }
    }
    assert!(named > 40, "{named} files");
}

#[test]
fn modules_that_readmes_list_are_there() {
    let mut named = 0;
    for name in readmes() {
        let sources = docs().join(&name).with_file_name("src");
        let page = prose(&page(&name));
        let Some((_, table)) = page.split_once("\n| module |") else { continue };
        for row in table.lines().skip(2).map_while(|line| line.strip_prefix("| `")) {
            let module = row.split('`').next().unwrap_or_default();
            let is_there = sources.join(module).is_dir() || sources.join(format!("{module}.rs")).is_file();
            assert!(is_there, "{name}: there is no module {module}");
            named += 1;
        }
    }
    assert!(named > 20, "{named} modules");
}

/// The commands of a page, without Cargo's: a first one may build before it runs.
fn commands(name: &str) -> Vec<String> {
    let blocks = blocks(&page(name)).into_iter().filter(|(language, _)| language == "console");
    let mut commands = Vec::new();
    for line in blocks.flat_map(|(_, lines)| lines) {
        let command = line.trim_start_matches("$ ");
        let command = command.strip_prefix("cargo build --release && ").unwrap_or(command);
        match command.split_once("--example ") {
            Some((cargo, example)) if cargo.starts_with("cargo run --release -p pagoda-vm ") => {
                let example = example.split(' ').next().unwrap_or_default();
                let tests = page("../crates/pagoda/tests/examples.rs");
                let runs = format!("says(\"{example}\"");
                assert!(tests.contains(&runs), "{name}: no test runs {example}");
            }
            _ if command.starts_with("cargo ") => {
                assert!(is_run_before_a_change_is_taken(command), "{name}: which test runs `{command}`?");
            }
            _ => commands.push(command.to_owned()),
        }
    }
    commands
}

/// Whether `.ci/run` has this command of Cargo's, perhaps with more options.
fn is_run_before_a_change_is_taken(command: &str) -> bool {
    let mut words = command.split(' ').filter(|word| *word != "--");
    let [Some(_), Some(does)] = [words.next(), words.next()] else { return false };
    let asked: Vec<&str> = words.collect();
    page("../.ci/run").lines().any(|line| {
        let Some((_, ran)) = line.split_once(&format!("cargo {does} ")) else { return false };
        asked.iter().all(|word| ran.split(' ').any(|other| other == *word))
    })
}

#[test]
fn a_line_that_looks_like_a_command_is_marked_as_one() {
    for name in pages().into_iter().chain(readmes()) {
        for (language, lines) in blocks(&page(&name)) {
            let commands = lines.iter().filter(|line| line.starts_with("$ ")).count();
            match language.as_str() {
                "console" => {
                    assert_eq!(commands, lines.len(), "{name}: output has a block of its own: {lines:?}");
                }
                _ => assert_eq!(commands, 0, "{name}: {lines:?}"),
            }
        }
    }
}

#[test]
fn every_command_runs() {
    if let Some(why) = cannot_manage() {
        return pagoda_linux::testing::skip::skip("the commands of the documentation", why);
    }
    // Each page has a directory of its own, and its commands wait most of their time.
    let left = Mutex::new(pages().into_iter().chain(readmes()));
    let ran = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..PAGES_AT_ONCE {
            scope.spawn(|| {
                loop {
                    let Some(name) = left.lock().expect("no panic holds it").next() else { break };
                    ran.fetch_add(run_commands(&name), Ordering::Relaxed);
                }
            });
        }
    });
    let ran = ran.into_inner();
    assert!(ran > 20, "{ran} commands");
}

/// Pages whose commands run at a time.
const PAGES_AT_ONCE: usize = 4;

/// Runs the commands of a page, and compares what a README shows of them. Returns how many there
/// are.
fn run_commands(name: &str) -> usize {
    let commands = commands(name);
    if commands.is_empty() {
        return 0;
    }
    let (printed, errors) = run(name, &commands);
    // The READMEs show the output of their commands.
    let says = name.ends_with("README.md");
    for sum in printed.lines().filter(|line| says && line.ends_with("  -")) {
        assert!(page(name).contains(sum), "{name}: {printed}");
    }
    for (_, shown) in blocks(&page(name)).iter().filter(|(language, _)| says && language == "text") {
        let rows = rows_of(shown.iter().map(String::as_str));
        assert!(!rows.is_empty() && rows == rows_of(errors.lines()), "{name}: {shown:?}\n{errors}");
    }
    commands.len()
}

/// The names of the rows of the first table of `pagoda run`, but of those that only some runs have.
fn rows_of<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let table = lines.skip_while(|line| !line.starts_with("pagoda: ")).skip(1);
    // A wide number begins where others have blanks.
    let rows = table.map_while(|line| line.strip_prefix("  ")?.split_once("  "));
    rows.map(|(row, _)| row).filter(|row| !["waited", "thrashing"].contains(row)).collect()
}

#[test]
fn rows_of_a_table_are_the_words_before_their_numbers() {
    let lines = [
        "sum",
        "pagoda: ran",
        "  with files     69.9 MiB  set",
        "  waited              931  faults",
        "  own          1003.5 KiB  all",
        "end",
    ];
    assert_eq!(rows_of(lines.into_iter()), ["with files", "own"]);
}

#[test]
fn the_options_of_commands_with_placeholders_are_right() {
    let mut asked = 0;
    for name in pages().into_iter().chain(readmes()) {
        for (_, lines) in blocks(&page(&name)).into_iter().filter(|(language, _)| language == "sh") {
            let command = lines.join("\n");
            let options = command.split(" -- ").next().expect("a command");
            let (printed, _) = run(&name, &[format!("{options} --help")]);
            assert!(printed.contains("Usage: pagoda"), "{name}: {options}\n{printed}");
            asked += 1;
        }
    }
    assert!(asked > 0, "no command");
}

/// The lines of code that a reader takes along: not the frame of a program, nor lines hidden in
/// documentation.
fn statements(lines: impl Iterator<Item = String>) -> Vec<String> {
    let around = ["use ", "fn main", "# ", "Ok(())"];
    let own = lines.map(|line| line.trim().to_owned());
    own.filter(|line| line.len() > 1 && !around.iter().any(|start| line.starts_with(start))).collect()
}

#[test]
fn rust_of_the_documentation_is_a_part_of_examples_that_are_tested() {
    let sources = ["lib.rs", "manager.rs"].map(|file| {
        let source = page(&format!("../crates/pagoda/src/{file}"));
        let documented = source.lines().filter_map(|line| {
            let line = line.trim_start();
            line.strip_prefix("//! ").or_else(|| line.strip_prefix("/// ")).map(str::to_owned)
        });
        statements(documented)
    });
    let guests = page("../crates/pagoda-vm-memory/README.md");
    assert!(is_documentation_of_a_crate("../crates/pagoda-vm-memory/README.md"));
    let sources = sources.into_iter().chain([statements(guests.lines().map(str::to_owned))]);
    let sources: Vec<_> = sources.collect();
    let mut found = 0;
    for name in pages().into_iter().chain(readmes().filter(|name| !is_documentation_of_a_crate(name))) {
        for (_, lines) in
            blocks(&page(&name)).into_iter().filter(|(language, _)| language.starts_with("rust"))
        {
            let wanted = statements(lines.into_iter());
            let is_tested = sources
                .iter()
                .any(|source| source.windows(wanted.len()).any(|part| part == wanted.as_slice()));
            assert!(is_tested && !wanted.is_empty(), "{name}: {wanted:?}");
            found += 1;
        }
    }
    assert!(found > 2, "{found} blocks");
}

/// Whether a README stands in its crate's documentation, all of it, so that its Rust is run by
/// itself.
fn is_documentation_of_a_crate(name: &str) -> bool {
    let source = docs().join(name).with_file_name("src").join("lib.rs");
    let is_included = fs::read_to_string(source)
        .is_ok_and(|source| source.contains("#[doc = include_str!(\"../README.md\")]"));
    assert!(!is_included || !page(name).contains("```rust,no_run"), "{name}: it is only compiled");
    is_included
}

fn cannot_manage() -> Option<String> {
    let output =
        pagoda().args(["run", "--quiet", "--memory", "64M", "--", "true"]).output().expect("it runs");
    (!output.status.success()).then(|| String::from_utf8_lossy(&output.stderr).into_owned())
}

fn pagoda() -> Command {
    Command::new(env!("CARGO_BIN_EXE_pagoda"))
}

/// Their standard output and standard error.
fn run(name: &str, commands: &[String]) -> (String, String) {
    let scratch = tempfile::tempdir().expect("a directory");
    let own = Path::new(env!("CARGO_BIN_EXE_pagoda")).parent().expect("a directory");
    fs::create_dir(scratch.path().join("target")).expect("made");
    std::os::unix::fs::symlink(own, scratch.path().join("target/release")).expect("linked");
    let path = format!("{}:{}", own.display(), std::env::var("PATH").expect("a path"));
    let script = commands.iter().map(|command| format!("{command}\n")).collect::<String>();
    let output = Command::new("bash")
        .args(["-e", "-o", "pipefail", "-c", &script])
        .current_dir(scratch.path())
        .env("PATH", path)
        // By this `pagoda bench` builds before it runs.
        .env_remove("CARGO")
        .stdin(Stdio::null())
        .output()
        .expect("bash starts");
    assert!(
        output.status.success(),
        "{name}: {}\n{}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}
