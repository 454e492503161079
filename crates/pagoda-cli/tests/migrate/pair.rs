//! A directory with an image, and the two processes that move it.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

use pagoda_linux::testing::directory::names;
use pagoda_linux::testing::random::mix;
use tempfile::TempDir;

/// How long anything here may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// The command, with its standard error to be read.
pub fn pagoda(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pagoda"));
    command.args(arguments).stdin(Stdio::null()).stderr(Stdio::piped());
    command
}

pub struct Place {
    directory: TempDir,
    content: Vec<u8>,
}

impl Place {
    /// An image of 6 MiB: data that can't be packed, zeroes, and a hole.
    pub fn new(seed: u64) -> Self {
        let directory = tempfile::tempdir_in("/var/tmp").expect("a directory");
        let file = File::create(directory.path().join("image")).expect("an image");
        let noise: Vec<u8> =
            (0..3_u64 << 20).map(|i| mix(seed ^ (i / 8)).to_le_bytes()[i as usize % 8]).collect();
        file.write_all_at(&noise, 0).expect("written");
        file.write_all_at(&vec![0; 1 << 20], 3 << 20).expect("written");
        file.set_len((6 << 20) + 5).expect("a length");
        let content = fs::read(directory.path().join("image")).expect("read");
        Self { directory, content }
    }

    pub fn path(&self, name: &str) -> String {
        self.directory.path().join(name).display().to_string()
    }

    /// Whether the image is as it was at first, and the arrived one is the same.
    pub fn is_equal(&self) -> bool {
        self.is_intact() && fs::read(self.path("arrived")).expect("read") == self.content
    }

    pub fn is_intact(&self) -> bool {
        fs::read(self.path("image")).expect("read") == self.content
    }

    pub fn names(&self) -> Vec<String> {
        names(self.directory.path())
    }

    /// A receiver of `arrived`, on any port unless told otherwise.
    pub fn receiver(&self, arguments: &[&str]) -> Side {
        let output = self.path("arrived");
        let mut all = vec!["recv", "-o", &output];
        all.extend(if arguments.contains(&"--listen") { &[][..] } else { &["--listen", "127.0.0.1:0"] });
        all.extend(arguments);
        Side::start(&all)
    }
}

/// One of the two processes; killed when it is dropped.
pub struct Side {
    pub child: Child,
    said: BufReader<ChildStderr>,
    lines: String,
}

impl Side {
    pub fn start(arguments: &[&str]) -> Self {
        Self::spawn(&mut pagoda(arguments))
    }

    /// The same of any command, whose standard error is read.
    pub fn spawn(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().expect("start");
        let said = BufReader::new(child.stderr.take().expect("its standard error"));
        Self { child, said, lines: String::new() }
    }

    /// Where a receiver says that it listens.
    pub fn address(&mut self) -> String {
        self.said.read_line(&mut self.lines).expect("a line");
        let address = self.lines.trim().strip_prefix("pagoda: listening on ");
        address.unwrap_or_else(|| panic!("{}", self.lines)).to_owned()
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits for its end: its status, none after a signal, and all that it said.
pub fn ended(side: &mut Side) -> (Option<i32>, String) {
    let until = Instant::now() + LIMIT;
    let status = loop {
        if let Some(status) = side.child.try_wait().expect("a child") {
            break status;
        }
        assert!(Instant::now() < until, "it goes on and on");
        std::thread::sleep(Duration::from_millis(2));
    };
    side.said.read_to_string(&mut side.lines).expect("text");
    (status.code(), std::mem::take(&mut side.lines))
}
