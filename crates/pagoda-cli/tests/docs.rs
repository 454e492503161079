//! The documentation: its pages are a book, and every command in it and in the READMEs runs.
//!
//! A block marked `console` holds commands, each line that begins with `$ `; any other block is no command. A command that
//! ends with `&` goes on beside the next ones. All commands of a page run in one shell, in a directory of their own, where
//! `target/release` is that of this build; what Cargo does is left out, but that its examples are there. A block marked `sh`
//! is one command with placeholders: its options are asked for their help. A block marked `rust` is a part of an example of the
//! crate `pagoda`, which its documentation tests run.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

/// What is read outside of the book, by its path from there.
const READMES: [&str; 3] = ["../README.md", "../crates/pagoda/README.md", "../crates/pagoda-cli/README.md"];

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

/// What each link of a page leads to within the book.
fn links(text: &str) -> Vec<String> {
    let links = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let own = links.filter(|link| !link.contains("://"));
    own.map(|link| link.split('#').next().unwrap_or_default().to_owned()).collect()
}

#[test]
fn every_page_is_in_the_book_and_every_link_leads_somewhere() {
    let summary: BTreeSet<String> = links(&page("SUMMARY.md")).into_iter().collect();
    assert_eq!(summary, pages());
    for name in pages() {
        let directory = docs().join(&name).parent().expect("a directory").to_owned();
        for link in links(&page(&name)) {
            assert!(directory.join(&link).exists(), "{name}: {link}");
        }
    }
}

/// The commands of a page, without what Cargo does: a first one may build before it runs.
fn commands(name: &str) -> Vec<String> {
    let blocks = blocks(&page(name)).into_iter().filter(|(language, _)| language == "console");
    let mut commands = Vec::new();
    for line in blocks.flat_map(|(_, lines)| lines) {
        let command = line.trim_start_matches("$ ");
        let command = command.strip_prefix("cargo build --release && ").unwrap_or(command);
        match command.split_once("--example ") {
            Some((cargo, example)) if cargo.starts_with("cargo run --release -p pagoda ") => {
                let example = example.split(' ').next().unwrap_or_default();
                let file = docs().join(format!("../crates/pagoda/examples/{example}.rs"));
                assert!(file.exists(), "{name}: there is no example {example}");
            }
            _ if command == "cargo test --release --workspace" => {}
            _ => {
                assert!(!command.starts_with("cargo "), "{name}: who runs `{command}`?");
                commands.push(command.to_owned());
            }
        }
    }
    commands
}

#[test]
fn what_looks_like_a_command_is_marked_as_one() {
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
    let mut ran = 0;
    for name in pages().into_iter().chain(readmes()) {
        let commands = commands(&name);
        if commands.is_empty() {
            continue;
        }
        if let Some(why) = cannot_manage() {
            return pagoda_linux::testing::skip::skip("the commands of the documentation", why);
        }
        let printed = run(&name, &commands);
        // The READMEs say what their commands print.
        let says = name.ends_with("README.md");
        for sum in printed.lines().filter(|line| says && line.ends_with("  -")) {
            assert!(page(&name).contains(sum), "{name}: {printed}");
        }
        ran += commands.len();
    }
    assert!(ran > 20, "{ran} commands");
}

#[test]
fn the_options_of_commands_with_placeholders_are_right() {
    let mut asked = 0;
    for name in pages().into_iter().chain(readmes()) {
        for (_, lines) in blocks(&page(&name)).into_iter().filter(|(language, _)| language == "sh") {
            let command = lines.join("\n");
            let options = command.split(" -- ").next().expect("a command");
            let printed = run(&name, &[format!("{options} --help")]);
            assert!(printed.contains("Usage: pagoda"), "{name}: {options}\n{printed}");
            asked += 1;
        }
    }
    assert!(asked > 0, "no command");
}

/// What a reader takes along of lines of code: not what makes a program of them, nor what is hidden in documentation.
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
    let mut found = 0;
    for name in pages().into_iter().chain(readmes()) {
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

fn cannot_manage() -> Option<String> {
    let output =
        pagoda().args(["run", "--quiet", "--memory", "64M", "--", "true"]).output().expect("it runs");
    (!output.status.success()).then(|| String::from_utf8_lossy(&output.stderr).into_owned())
}

fn pagoda() -> Command {
    Command::new(env!("CARGO_BIN_EXE_pagoda"))
}

/// What they print.
fn run(name: &str, commands: &[String]) -> String {
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
    String::from_utf8_lossy(&output.stdout).into_owned()
}
