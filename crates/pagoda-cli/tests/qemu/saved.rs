//! A machine whose memory QEMU itself saved in a file by its capability `mapped-ram`: the image
//! that is packed from it has the guest's bytes. The files of other tests are laid out by hand.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use pagoda_linux::testing::skip::tell;
use pagoda_linux::testing::wait::{HANG, until};
use serde_json::{Value, json};

use crate::{GUEST_MIB, MIB, machine};

/// A QEMU that stands in for the installed one: it is Debian 13's that has `mapped-ram`.
const OTHER: &str = "PAGODA_QEMU";
/// jmp to itself: the guest waits for its end.
const WAITS: [u8; 2] = [0xEB, 0xFE];

struct Qemu(Child);

impl Drop for Qemu {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A connection to QEMU's monitor.
struct Monitor(BufReader<UnixStream>);

impl Monitor {
    fn connect(socket: &Path) -> Self {
        until("QEMU listens", || UnixStream::connect(socket).is_ok());
        let stream = UnixStream::connect(socket).expect("it listens");
        stream.set_read_timeout(Some(HANG)).expect("set");
        let mut monitor = Self(BufReader::new(stream));
        monitor.0.read_line(&mut String::new()).expect("its greeting");
        monitor.ask("qmp_capabilities", &json!({})).expect("it begins");
        monitor
    }

    /// Its answer to a command, or its error.
    fn ask(&mut self, command: &str, arguments: &Value) -> Result<Value, Value> {
        let line = json!({"execute": command, "arguments": arguments}).to_string() + "\n";
        self.0.get_mut().write_all(line.as_bytes()).expect("sent");
        loop {
            let mut line = String::new();
            assert_ne!(self.0.read_line(&mut line).expect("a line"), 0, "QEMU has ended");
            let mut answer: Value = serde_json::from_str(&line).expect("JSON");
            // Whatever else comes is an event.
            if let Some(error) = answer.get_mut("error") {
                return Err(error.take());
            }
            if let Some(value) = answer.get_mut("return") {
                return Ok(value.take());
            }
        }
    }
}

#[test]
fn an_image_of_a_file_of_qemus_has_the_guests_bytes() {
    const WHAT: &str = "the file of QEMU's mapped-ram";
    if crate::skips() {
        return;
    }
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let at = |name| directory.path().join(name);
    let program = std::env::var(OTHER).unwrap_or_else(|_| crate::QEMU.to_owned());
    let said = fs::File::create(at("said")).expect("made");
    let qemu = Command::new(program)
        .args(machine(directory.path(), "memory-backend-ram", "", &WAITS))
        .args(["-qmp", &format!("unix:{},server=on,wait=off", at("monitor").display())])
        .stdin(Stdio::null())
        .stdout(said)
        .spawn()
        .expect("it starts");
    let _qemu = Qemu(qemu);
    let mut monitor = Monitor::connect(&at("monitor"));
    let capability = json!({"capabilities": [{"capability": "mapped-ram", "state": true}]});
    if let Err(why) = monitor.ask("migrate-set-capabilities", &capability) {
        tell(WHAT, format!("{} (QEMU 9 and newer have it; {OTHER} names one)", why["desc"]));
        return;
    }
    until("the guest has read its memory", || fs::read(at("said")).is_ok_and(|said| said == b"FR"));
    monitor.ask("stop", &json!({})).expect("it stops");
    let saved = at("saved");
    monitor.ask("migrate", &json!({"uri": format!("file:{}", saved.display())})).expect("it begins");
    until("QEMU has saved it", || {
        let state = monitor.ask("query-migrate", &json!({})).expect("a state");
        assert_ne!(state["status"], "failed", "{state}");
        state["status"] == "completed"
    });
    let memory = json!({"val": 0, "size": GUEST_MIB * MIB, "filename": at("memory")});
    monitor.ask("pmemsave", &memory).expect("the guest's memory");

    for (command, from, to) in [("pack", "saved", "image"), ("unpack", "image", "raw")] {
        let mut image = Command::new(env!("CARGO_BIN_EXE_pagoda"));
        let output = image.args(["image", command]).args([at(from), at(to)]).output().expect("it runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let [raw, memory] = ["raw", "memory"].map(|name| fs::read(at(name)).expect("there"));
    assert_eq!(raw.len(), memory.len());
    // Below 1 MiB the guest sees the firmware in place of its memory.
    let pages = |memory| <[u8]>::chunks(memory, 4096).skip(256);
    let other = pages(&raw).zip(pages(&memory)).position(|(raw, memory)| raw != memory);
    assert_eq!(other, None, "a page with other bytes");
}
