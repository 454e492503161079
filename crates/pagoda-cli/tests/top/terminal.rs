//! `pagoda top` on a terminal of a test's own: the user's view, and the state of the terminal
//! afterwards.

#![allow(dead_code, reason = "a test of the screen's own code only waits for its end")]

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

#[path = "../run/terminal.rs"]
mod pair;

/// Only ever reached by a test that fails.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A program that has a terminal for itself.
pub struct Shown {
    pub child: Child,
    user: File,
    screen: Arc<Mutex<vt100::Parser>>,
    reader: JoinHandle<()>,
    modes: LocalModes,
}

impl Shown {
    /// Starts it on a terminal of so many lines and columns.
    pub fn start(mut command: Command, lines: u16, columns: u16) -> Self {
        let terminal = pair::Terminal::open().expect("a terminal");
        let user = terminal.user.try_clone().expect("a descriptor");
        let modes = tcgetattr(&user).expect("modes").local_modes;
        set_size(&user, lines, columns);
        let mut output = terminal.give_to(&mut command).expect("taken");
        let child = command.spawn().expect("it starts");
        // It holds the program's end of the terminal, which has to be closed for the output to end.
        drop(command);
        let screen = Arc::new(Mutex::new(vt100::Parser::new(lines, columns, 0)));
        let seen = Arc::clone(&screen);
        let reader = std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // An error says that no process has the other end any more.
            while let Ok(count @ 1..) = output.read(&mut bytes) {
                seen.lock().expect("no panic").process(&bytes[..count]);
            }
        });
        Self { child, user, screen, reader, modes }
    }

    pub fn resize(&self, lines: u16, columns: u16) {
        self.screen.lock().expect("no panic").screen_mut().set_size(lines, columns);
        set_size(&self.user, lines, columns);
    }

    pub fn press(&mut self, keys: &str) {
        self.user.write_all(keys.as_bytes()).expect("typed");
    }

    /// The text on the screen.
    pub fn text(&self) -> String {
        self.screen.lock().expect("no panic").screen().contents()
    }

    pub fn wait_for(&self, what: &str) {
        self.wait_until(what, |text| text.contains(what));
    }

    /// `what` names the awaited state.
    pub fn wait_until(&self, what: &str, is_so: impl Fn(&str) -> bool) {
        let begun = Instant::now();
        while !is_so(&self.text()) {
            assert!(begun.elapsed() < PATIENCE, "not shown: {what}\n{}", self.text());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits for its end, and asserts that the terminal is as it was.
    pub fn end(mut self) -> (ExitStatus, String) {
        let begun = Instant::now();
        let status = loop {
            match self.child.try_wait().expect("our own child") {
                Some(status) => break status,
                None if begun.elapsed() > PATIENCE => {
                    let _ = self.child.kill();
                    panic!("it does not end:\n{}", self.text());
                }
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        // The reader may be some bytes behind; it ends with the program's end of the terminal.
        while !self.reader.is_finished() {
            assert!(begun.elapsed() < PATIENCE, "a process still has the terminal:\n{}", self.text());
            std::thread::sleep(Duration::from_millis(10));
        }
        let is_back = |seen: &vt100::Screen| !seen.alternate_screen() && !seen.hide_cursor();
        assert!(
            is_back(self.screen.lock().expect("no panic").screen()),
            "the screen is not given back:\n{}",
            self.text()
        );
        assert_eq!(tcgetattr(&self.user).expect("modes").local_modes, self.modes, "the terminal stays raw");
        (status, self.text())
    }
}

fn set_size(user: &File, lines: u16, columns: u16) {
    tcsetwinsize(user, Winsize { ws_row: lines, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 })
        .expect("sized");
}
