//! `pagoda serve` with the VMMs themselves, where they are installed: Firecracker, and Cloud
//! Hypervisor with its `offload_daemon`, found by PATH.
//!
//! The guest is a kernel of our own, some hundred bytes of machine code, that fills its memory and
//! reads it back again and again. It is frozen in the middle of that, and goes on from the image.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use pagoda_linux::testing::guest_code::{FILLED, RIGHT, WRONG, fill_and_read};
use pagoda_linux::testing::skip::tell;
use pagoda_linux::testing::wait::{HANG, until};
use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};

use crate::server::{Server, pack};

const MIB: u32 = 1 << 20;
/// The first serial port.
const PORT: u16 = 0x3F8;
/// Where the guest's code begins, and the memory that it fills.
const CODE: u32 = MIB;
const MEMORY: Range<u32> = 2 * MIB..64 * MIB;
const GUEST_MIB: u32 = 64;
/// Few words, for a processor that is emulated.
const STEP: u32 = 1024;

/// The kernel's file, with the note by which VMMs start it in 32-bit code without paging (PVH, of
/// Xen).
fn kernel() -> Vec<u8> {
    let set = [(0xBE, MEMORY.start), (0xBF, MEMORY.end)]; // mov esi; mov edi
    let mut code: Vec<u8> = set.into_iter().flat_map(|(op, to)| with_operand(op, to)).collect();
    // mov ebx; jmp ebx
    let jump = |to: u32| with_operand(0xBB, to).chain([0xFF, 0xE3]).collect::<Vec<u8>>();
    let (_, reads_from) = fill_and_read(PORT, STEP, &jump(0));
    let again = jump(CODE + (code.len() + reads_from) as u32);
    code.extend(fill_and_read(PORT, STEP, &again).0);
    let note = [4, 4, 18, u32::from_le_bytes(*b"Xen\0"), CODE];
    let note: Vec<u8> = note.into_iter().flat_map(u32::to_le_bytes).collect();
    let (entry, noted, length) = (u64::from(CODE), note.len() as u64, code.len() as u64);
    // An ELF file in words: its header of 64 bytes (x86-64, an executable), and two program headers
    // of 56, for the note and the code, which lie behind them.
    let headers = 64 + 2 * 56;
    let header = [0x0001_0102_464C_457F, 0, 0x1_003E_0002, entry, 64, 0, 0x0038_0040_0000_0000, 2];
    let note_lies = [4 << 32 | 4, headers, 0, 0, noted, noted, 4];
    let code_lies = [7 << 32 | 1, headers + noted, entry, entry, length, length, 4];
    let words = header.into_iter().chain(note_lies).chain(code_lies);
    let mut file: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    file.extend(note);
    file.extend(code);
    file
}

/// An instruction of one byte with an operand of four.
fn with_operand(op: u8, operand: u32) -> impl Iterator<Item = u8> {
    std::iter::once(op).chain(operand.to_le_bytes())
}

/// A VMM that is ended with this.
struct Vmm {
    child: Child,
    api: PathBuf,
    /// What its guest prints.
    serial: PathBuf,
}

impl Vmm {
    /// Starts it with its files in `directory`, named by `name`.
    fn start(program: &str, arguments: &[&str], directory: &Path, name: &str) -> Self {
        let at = |end| directory.join(format!("{name}.{end}"));
        let serial = File::create(at("serial")).expect("made");
        let child = Command::new(program)
            .args(arguments)
            .arg(at("api"))
            .current_dir(directory)
            .stdin(Stdio::null())
            .stdout(serial)
            .stderr(File::create(at("errors")).expect("made"))
            .spawn()
            .expect("it starts");
        let vmm = Self { child, api: at("api"), serial: at("serial") };
        until("it listens", || UnixStream::connect(&vmm.api).is_ok());
        vmm
    }

    /// A request to its interface: it has to be granted.
    fn request(&self, method: &str, path: &str, body: &Value) {
        self.granted(self.send(method, path, body));
    }

    fn send(&self, method: &str, path: &str, body: &Value) -> UnixStream {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let kind = "Host: vmm\r\nContent-Type: application/json\r\nAccept: application/json";
        let length = body.len();
        let mut stream = UnixStream::connect(&self.api).expect("it listens");
        write!(stream, "{method} {path} HTTP/1.1\r\n{kind}\r\nContent-Length: {length}\r\n\r\n{body}")
            .expect("sent");
        stream
    }

    fn granted(&self, mut stream: UnixStream) {
        stream.set_read_timeout(Some(HANG)).expect("set");
        let mut answer = vec![0; 4096];
        let length = stream.read(&mut answer).expect("an answer");
        let answer = String::from_utf8_lossy(&answer[..length]);
        assert!(answer.starts_with("HTTP/1.1 20"), "{answer}\n{}", self.said());
    }

    fn said(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.serial).expect("there")).into_owned()
    }

    /// Waits for so many reports that all is right. None may say otherwise.
    fn until_right(&self, count: usize) {
        let reports = |report: u8| self.said().bytes().filter(|byte| *byte == report).count();
        until("the guest reads its memory", || {
            assert_eq!(reports(WRONG), 0, "the guest read other bytes: {}", self.said());
            reports(RIGHT) >= count
        });
    }
}

impl Drop for Vmm {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether these programs can't be had here, or no VM.
fn skips(what: &str, programs: &[&str]) -> bool {
    let is_missing = |name: &&&str| Command::new(name).arg("--help").stdout(Stdio::null()).status().is_err();
    if let Some(name) = programs.iter().find(is_missing) {
        tell(what, format!("{name} is not installed"));
        return true;
    }
    let kvm = File::options().read(true).write(true).open("/dev/kvm");
    if let Err(error) = &kvm {
        tell(what, format!("/dev/kvm: {error}"));
    }
    kvm.is_err()
}

fn firecracker(directory: &Path, name: &str) -> Vmm {
    let log = format!("{name}.log");
    File::create(directory.join(&log)).expect("made");
    let arguments = ["--no-seccomp", "--level", "Error", "--log-path", &log, "--api-sock"];
    Vmm::start("firecracker", &arguments, directory, name)
}

/// Its memory is served by three handlers, of which two are killed.
#[test]
fn a_guest_of_firecrackers_goes_on_from_the_image() {
    if crate::skips("serving Firecracker") || skips("Firecracker", &["firecracker"]) {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let at = |name| directory.path().join(name);
    fs::write(at("kernel"), kernel()).expect("written");
    let first = firecracker(directory.path(), "first");
    first.request("PUT", "/boot-source", &json!({"kernel_image_path": "kernel"}));
    first.request("PUT", "/machine-config", &json!({"vcpu_count": 1, "mem_size_mib": GUEST_MIB}));
    first.request("PUT", "/actions", &json!({"action_type": "InstanceStart"}));
    first.until_right(1);
    assert!(first.said().contains(char::from(FILLED)));
    first.request("PATCH", "/vm", &json!({"state": "Paused"}));
    let files = json!({"snapshot_type": "Full", "snapshot_path": "state", "mem_file_path": "raw"});
    first.request("PUT", "/snapshot/create", &files);
    drop(first);
    pack(fs::read(at("raw")).expect("its memory"), &at("mem"));

    let server = Server::start_in(directory, &["--around", "4K", "--prefetch", "none"]);
    let vmm = firecracker(server.directory.path(), "second");
    let backend = json!({"backend_type": "Uffd", "backend_path": server.socket()});
    let load = json!({"snapshot_path": "state", "resume_vm": true, "mem_backend": backend});
    vmm.request("PUT", "/snapshot/load", &load);
    for (restarts, faults) in [1000, 8000].into_iter().enumerate() {
        server.stats_when("the guest reads", |stats| {
            stats["restarts"] == restarts && stats["total"]["faults"].as_u64() > Some(faults)
        });
        kill_process(server.handler(), Signal::KILL).expect("it runs");
    }
    vmm.until_right(3);
    let stats = server.stats_when("restarts are counted", |stats| stats["restarts"] == 2);
    assert_eq!(stats["total"]["refused_bytes"], 0, "{stats}");
    let pages = u64::from((MEMORY.end - MEMORY.start) / 4096);
    assert!(stats["total"]["filled_bytes"].as_u64() >= Some(pages * 4096), "{stats}");
}

fn cloud_hypervisor(directory: &Path, name: &str) -> Vmm {
    Vmm::start("cloud-hypervisor", &["--seccomp", "false", "--api-socket"], directory, name)
}

#[test]
fn a_guest_of_cloud_hypervisors_goes_on_from_its_snapshot() {
    let programs = ["cloud-hypervisor", "offload_daemon"];
    if skips("Cloud Hypervisor", &programs) {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let at = |name| directory.path().join(name);
    fs::write(at("kernel"), kernel()).expect("written");
    let first = cloud_hypervisor(directory.path(), "first");
    let config = json!({
        "payload": {"kernel": at("kernel")},
        "cpus": {"boot_vcpus": 1, "max_vcpus": 1},
        "memory": {"size": GUEST_MIB * MIB, "shared": true},
        "serial": {"mode": "Tty"},
        "console": {"mode": "Off"},
    });
    first.request("PUT", "/api/v1/vm.create", &config);
    first.request("PUT", "/api/v1/vm.boot", &Value::Null);
    first.until_right(1);
    first.request("PUT", "/api/v1/vm.pause", &Value::Null);
    let mut daemon = Command::new("offload_daemon")
        .args(["snapshot", "--socket"])
        .arg(at("offload"))
        .arg("--output-dir")
        .arg(at("snapshot"))
        .spawn()
        .expect("it starts");
    until("the daemon listens", || at("offload").exists());
    let url = format!("unix:{}", at("offload").display());
    first.request("PUT", "/api/v1/vm.send-migration", &json!({"destination_url": url, "local": true}));
    until("the daemon ends", || daemon.try_wait().expect("ours").is_some());
    if !daemon.wait().expect("ours").success() {
        let why = fs::read_to_string(at("first.errors")).unwrap_or_default();
        tell("Cloud Hypervisor", format!("it can't save its own VM on this machine: {why}"));
        return;
    }
    drop(first);
    let raw = memory_of(&at("snapshot"));
    let memory = fs::read(&raw).expect("its memory");
    fs::remove_file(&raw).expect("removed");
    pack(memory, &raw);

    let vmm = cloud_hypervisor(directory.path(), "second");
    let url = format!("unix:{}", at("restore").display());
    let receive = json!({"receiver_url": url, "memory_mode": "Postcopy"});
    let received = vmm.send("PUT", "/api/v1/vm.receive-migration", &receive);
    until("it waits for its memory", || at("restore").exists());
    let served = Command::new(env!("CARGO_BIN_EXE_pagoda"))
        .args(["serve", "--offload", "--resume", "--json", "--socket"])
        .arg(at("restore"))
        .arg(at("snapshot"))
        .output()
        .expect("it starts");
    let errors = String::from_utf8_lossy(&served.stderr);
    assert!(served.status.success(), "{errors}");
    vmm.granted(received);
    vmm.until_right(3);
    let told: Value = serde_json::from_slice(&served.stdout).expect("JSON");
    assert_eq!(told["memory_bytes"], GUEST_MIB * MIB, "{told}");
}

/// The memory of the one slot that a snapshot has.
fn memory_of(snapshot: &Path) -> PathBuf {
    let files = fs::read_dir(snapshot).expect("a snapshot").map(|file| file.expect("read").path());
    let names: Vec<PathBuf> = files.collect();
    let is_memory =
        |path: &&PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("memory-"));
    names.iter().find(is_memory).unwrap_or_else(|| panic!("memory among {names:?}")).clone()
}
