use std::collections::BTreeSet;
use std::process::{Command, Stdio};

use clap::ValueEnum;

use super::*;

/// The names of all commands that are not hidden, as `pagoda-run`.
fn commands() -> BTreeSet<String> {
    fn enter(command: &clap::Command, name: &str, names: &mut BTreeSet<String>) {
        names.insert(name.to_owned());
        for below in
            command.get_subcommands().filter(|below| !below.is_hide_set() && below.get_name() != "help")
        {
            enter(below, &format!("{name}-{}", below.get_name()), names);
        }
    }
    let (mut command, mut names) = (crate::Arguments::command(), BTreeSet::new());
    command.build();
    enter(&command, "pagoda", &mut names);
    names
}

#[test]
fn every_command_has_a_manual_page_with_all_its_options() {
    let scratch = tempfile::tempdir().expect("a directory");
    let directory = scratch.path().join("made").join("for it");
    man(&ManArgs { directory: directory.clone() }).expect("written");
    let written = fs::read_dir(&directory).expect("there").flatten();
    let written: BTreeSet<_> = written.map(|file| file.file_name().to_string_lossy().into_owned()).collect();
    assert_eq!(written, commands().iter().map(|name| format!("{name}.1")).collect());
    let page = |name: &str| fs::read_to_string(directory.join(name)).expect("text");
    assert!(page("pagoda-run.1").contains("\\-\\-memory"));
    assert!(page("pagoda-bench-all.1").contains("\\-\\-html"));
    assert!(page("pagoda.1").contains("pagoda\\-top(1)"));
}

#[test]
fn a_directory_that_can_not_be_made_is_said() {
    let refusal = man(&ManArgs { directory: "/dev/null/pages".into() }).expect_err("no directory");
    assert!(refusal.to_string().contains("/dev/null/pages can't be written"));
}

#[test]
fn completions_of_every_shell_know_every_command() {
    for shell in Shell::value_variants() {
        let mut text = Vec::new();
        clap_complete::generate(*shell, &mut crate::Arguments::command(), "pagoda", &mut text);
        let text = String::from_utf8(text).expect("text");
        for command in commands() {
            let last = command.rsplit('-').next().expect("a word");
            assert!(text.contains(last), "{shell}: {command}");
        }
        assert!(text.contains("best-effort"), "{shell}");
    }
}

#[test]
fn bash_takes_its_completions_and_completes_by_them() {
    let mut text = Vec::new();
    clap_complete::generate(Shell::Bash, &mut crate::Arguments::command(), "pagoda", &mut text);
    let mut script = String::from_utf8(text).expect("text");
    script +=
        "\nCOMP_WORDS=(pagoda bench al); COMP_CWORD=2; _pagoda pagoda al bench; echo \"${COMPREPLY[@]}\"\n";
    let bash = Command::new("bash").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut bash = match bash {
        Ok(bash) => bash,
        Err(error) => {
            return pagoda_linux::testing::skip::skip("completions in bash", error);
        }
    };
    bash.stdin.take().expect("piped").write_all(script.as_bytes()).expect("written");
    let output = bash.wait_with_output().expect("it ends");
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "all");
}

/// The page of the documentation that has every command's help.
const REFERENCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference.md");

fn reference() -> String {
    fn enter(command: &mut clap::Command, name: &str, page: &mut String) {
        let help = command.render_long_help().to_string();
        let lines: Vec<&str> = help.lines().map(str::trim_end).collect();
        page.push_str(&format!("\n## {name}\n\n```text\n{}\n```\n", lines.join("\n").trim_end()));
        for below in command.get_subcommands_mut() {
            if !below.is_hide_set() && below.get_name() != "help" {
                let name = format!("{name} {}", below.get_name());
                enter(below, &name, page);
            }
        }
    }
    let mut page = "# Reference: the command line\n\n\
                    What `--help` says of each command. `pagoda bench` without a name prints:\n\n```text\n"
        .to_owned();
    page.push_str(&pagoda_bench::list());
    page.push_str("```\n");
    let mut command = crate::Arguments::command();
    command.build();
    enter(&mut command, "pagoda", &mut page);
    page.push_str("\n## The table of pagoda run\n\n`pagoda run --explain` prints:\n\n```text\n");
    page.push_str(&crate::run::explain::explain(None));
    page.push_str("```\n");
    page
}

/// With `PAGODA_WRITE_REFERENCE=1` it writes the page.
#[test]
fn the_reference_says_what_help_says() {
    if std::env::var_os("PAGODA_WRITE_REFERENCE").is_some() {
        fs::write(REFERENCE, reference()).expect("written");
    }
    let page = fs::read_to_string(REFERENCE).expect("the page");
    assert!(page == reference(), "docs/reference.md is old: run this test with PAGODA_WRITE_REFERENCE=1");
}
