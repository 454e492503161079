//! Names that are the shell's and no program's, and what to give in their place.
//!
//! A first command line often has one: `cd`, a pipeline in quotes, a variable in front. This module
//! must never decide that a name is no program: it is asked once none was found.

use std::ffi::OsStr;

/// Commands and keywords that a shell carries out itself and that Debian has no program for.
const OWN: [&str; 43] = [
    "!", ".", "[[", "alias", "bg", "builtin", "case", "cd", "command", "declare", "dirs", "eval", "exec",
    "exit", "export", "fc", "fg", "for", "function", "hash", "history", "if", "jobs", "let", "local", "popd",
    "pushd", "read", "readonly", "return", "set", "shift", "shopt", "source", "times", "trap", "type",
    "typeset", "ulimit", "umask", "unalias", "unset", "while",
];

/// What a name is, and what to do about it; `None` of a name that a program could have.
pub fn hint(name: &OsStr) -> Option<String> {
    let name = name.to_str()?;
    if OWN.contains(&name) {
        return Some(format!(
            "{name} is a command of the shell's own, not a program; start a shell that does it: -- sh -c '{name} …'"
        ));
    }
    if is_assignment(name) {
        return Some(format!(
            "{name} sets a variable, which a shell does; let env do it: -- env {name} PROGRAM"
        ));
    }
    let is_line = name.contains(|char: char| char.is_whitespace() || "|&;<>".contains(char));
    is_line.then(|| {
        let quoted = if name.contains('\'') { "…" } else { name };
        format!("{name:?} is a command line for a shell, not a program; start a shell: -- sh -c '{quoted}'")
    })
}

/// `NAME=VALUE`, with a name as shells take it.
fn is_assignment(text: &str) -> bool {
    text.split_once('=').is_some_and(|(name, _)| {
        name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
            && name.chars().all(|char| char.is_ascii_alphanumeric() || char == '_')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_the_shells_is_told_with_the_way_to_have_it_done() {
        for (name, says) in [
            ("cd", "-- sh -c 'cd …'"),
            ("sort x | head", "-- sh -c 'sort x | head'"),
            ("a&&b", "command line for a shell"),
            ("echo 'it'", "-- sh -c '…'"),
            ("/bin/ls -l", "command line for a shell"),
            ("THREADS=2", "-- env THREADS=2 PROGRAM"),
        ] {
            let hint = hint(OsStr::new(name)).unwrap_or_default();
            assert!(hint.contains(says), "{name}: {hint}");
        }
    }

    #[test]
    fn a_name_that_a_program_could_have_gets_no_hint() {
        for name in ["sort", "g++", "[", "b-c/d", "2x=3", "./a,b"] {
            assert_eq!(hint(OsStr::new(name)), None, "{name}");
        }
        assert!(OWN.is_sorted(), "kept in order, so that one is not there twice");
    }
}
