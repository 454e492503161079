use std::process::Command;

use super::*;

#[path = "../../tests/top/terminal.rs"]
mod terminal;

const ROLE: &str = "PAGODA_TEST_PANIC";

/// The program: it panics while the terminal is its own.
#[test]
fn as_a_screen_that_panics() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let _screen = Screen::take().expect("a terminal");
    panic!("a drawing that went wrong");
}

#[test]
fn a_panic_gives_the_terminal_back_and_is_told_on_it() {
    let mut command = Command::new(std::env::current_exe().expect("a path"));
    command.args(["--exact", "top::screen::tests::as_a_screen_that_panics", "--nocapture"]).env(ROLE, "1");
    // A backtrace would push the message off the screen.
    command.env_remove("RUST_BACKTRACE");
    let (status, text) = terminal::Shown::start(command, 24, 120).end();
    assert!(!status.success() && text.contains("a drawing that went wrong"), "{status}\n{text}");
}
