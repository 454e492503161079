//! The documentation: its pages are a book, and every command in it runs.
//!
//! A block marked `console` holds commands, each line that begins with `$ `; any other block is no command. A command that
//! ends with `&` goes on beside the next ones. All commands of a page run in one shell, in a directory of their own.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
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

#[test]
fn what_looks_like_a_command_is_marked_as_one() {
    for name in pages() {
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
    for name in pages() {
        let blocks = blocks(&page(&name)).into_iter().filter(|(language, _)| language == "console");
        let commands = blocks.flat_map(|(_, lines)| lines);
        let commands: Vec<String> = commands.map(|line| line.trim_start_matches("$ ").to_owned()).collect();
        if commands.is_empty() {
            continue;
        }
        if let Some(why) = cannot_manage() {
            assert!(std::env::var_os("PAGODA_NO_SKIPS").is_none(), "skipped: {why}");
            return eprintln!("SKIPPED the commands of the documentation: {why}");
        }
        run(&name, &commands);
        ran += commands.len();
    }
    assert!(ran > 10, "{ran} commands");
}

fn cannot_manage() -> Option<String> {
    let output =
        pagoda().args(["run", "--quiet", "--memory", "64M", "--", "true"]).output().expect("it runs");
    (!output.status.success()).then(|| String::from_utf8_lossy(&output.stderr).into_owned())
}

fn pagoda() -> Command {
    Command::new(env!("CARGO_BIN_EXE_pagoda"))
}

fn run(name: &str, commands: &[String]) {
    let scratch = tempfile::tempdir().expect("a directory");
    let own = Path::new(env!("CARGO_BIN_EXE_pagoda")).parent().expect("a directory");
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
}
