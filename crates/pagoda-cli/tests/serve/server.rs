//! A running `pagoda serve`, and the image that it serves.

use std::fs;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};

use pagoda_linux::testing::mapping::{PAGE, WORDS};
use pagoda_linux::testing::random::mix;
use pagoda_linux::testing::wait::until;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// A word of the image. Each fifth page is zero.
pub fn word(page: usize, word: usize) -> u64 {
    if page % 5 == 3 { 0 } else { mix((page * WORDS + word) as u64) | 1 }
}

/// The bytes of a page of the image.
pub fn content(page: usize) -> Vec<u8> {
    (0..WORDS).flat_map(|at| word(page, at).to_ne_bytes()).collect()
}

/// A directory with an image of so many pages, packed, with a key beside it.
pub fn packed(pages: usize) -> TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    let memory: Vec<u8> = (0..pages).flat_map(content).collect();
    pack(memory, &directory.path().join("mem"));
    directory
}

/// Packs this memory into an image, with a key beside it.
pub fn pack(memory: Vec<u8>, image: &Path) {
    let key = pagoda_image::make_key(image).expect("a key");
    let options = pagoda_image::PackOptions::new(key);
    pagoda_image::pack(&memory, image, options, &mut |_| ControlFlow::Continue(())).expect("packed");
}

/// A served image.
pub struct Server {
    pub directory: TempDir,
    child: Child,
}

impl Server {
    /// Serves an image of so many pages with these options.
    pub fn start(pages: usize, options: &[&str]) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let image = fs::File::create(directory.path().join("mem")).expect("made");
        for page in 0..pages {
            image.write_all_at(&content(page), (page * PAGE) as u64).expect("written");
        }
        Self::start_in(directory, options)
    }

    /// Serves an image of so many pages, packed, with a key beside it.
    pub fn start_packed(pages: usize, options: &[&str]) -> Self {
        Self::start_in(packed(pages), options)
    }

    /// Serves the image at an address. Its key lies in the directory `files`.
    #[cfg(feature = "remote")]
    pub fn start_remote(address: &Path, files: &Path, options: &[&str]) -> Self {
        let key = files.join("mem.key");
        let options = [&["--key", key.to_str().expect("text")], options].concat();
        Self::start_with(tempfile::tempdir().expect("a directory"), address, &options)
    }

    /// Serves the image that lies in this directory.
    pub fn start_in(directory: TempDir, options: &[&str]) -> Self {
        let image = directory.path().join("mem");
        Self::start_with(directory, &image, options)
    }

    fn start_with(directory: TempDir, image: &Path, options: &[&str]) -> Self {
        let at = |name| directory.path().join(name);
        let lines = fs::File::create(at("lines")).expect("made");
        let child = Command::new(env!("CARGO_BIN_EXE_pagoda"))
            .arg("serve")
            .arg("--socket")
            .arg(at("socket"))
            .arg("--stats")
            .arg(at("stats"))
            .args(options)
            .arg(image)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(lines)
            .spawn()
            .expect("it starts");
        let server = Self { directory, child };
        until("it serves", || server.lines().contains("serving"));
        server
    }

    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("socket")
    }

    pub fn image(&self) -> PathBuf {
        self.directory.path().join("mem")
    }

    /// All it has said.
    pub fn lines(&self) -> String {
        fs::read_to_string(self.directory.path().join("lines")).expect("there")
    }

    /// The statistics, as soon as they are as `is_so` wants them.
    pub fn stats_when(&self, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let mut last = Value::Null;
        until(what, || {
            let text = fs::read(self.directory.path().join("stats")).unwrap_or_default();
            last = serde_json::from_slice(&text).unwrap_or(Value::Null);
            !last.is_null() && is_so(&last)
        });
        last
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it runs");
    }

    /// The process of the handler, once there is one.
    pub fn handler(&self) -> Pid {
        let path = format!("/proc/{0}/task/{0}/children", self.child.id());
        let mut found = None;
        until("there is a handler", || {
            let children = fs::read_to_string(&path).unwrap_or_default();
            found = children.split_whitespace().next().and_then(|pid| Pid::from_raw(pid.parse().ok()?));
            // Between fork and exec it is still a copy of its supervisor.
            found.is_some_and(|pid| {
                let line = fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default();
                line.windows(10).any(|word| word == b"--handler\0")
            })
        });
        found.expect("found")
    }

    /// Waits for its end. Returns its status and its output.
    pub fn wait(mut self) -> (ExitStatus, Output, String) {
        until("it ends", || self.child.try_wait().expect("ours").is_some());
        let lines = self.lines();
        let child = std::mem::replace(&mut self.child, Command::new("true").spawn().expect("it starts"));
        let output = child.wait_with_output().expect("ended");
        (output.status, output, lines)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // With its handler: by its second signal it ends at once.
        let pid = Pid::from_child(&self.child);
        for _ in 0..200 {
            if self.child.try_wait().is_ok_and(|ended| ended.is_some()) {
                return;
            }
            let _ = kill_process(pid, Signal::TERM);
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How many descriptors a process has open.
pub fn descriptors(pid: Pid) -> usize {
    fs::read_dir(Path::new("/proc").join(pid.as_raw_nonzero().to_string()).join("fd"))
        .map_or(0, Iterator::count)
}
