//! `pagoda serve --offload` with a VMM of the tests' own that speaks Cloud Hypervisor's protocol.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use pagoda_linux::io::local_socket::receive;
use pagoda_linux::testing::mapping::PAGE;
use pagoda_linux::testing::random::Random;
use pagoda_linux::testing::wait::until;

use crate::server::content;

/// The slots: number, address in the guest, pages, where in the file. Both have one zone.
const SLOTS: [(u32, u64, usize, u64); 2] = [(0, 0, 512, 0), (3, 4 << 30, 256, 512 * PAGE as u64)];

/// The pages of the guest's memory: its slot, and the page of that.
fn pages() -> Vec<(usize, usize)> {
    (0..SLOTS.len()).flat_map(|slot| (0..SLOTS[slot].2).map(move |page| (slot, page))).collect()
}

/// The page of the tests' image that lies in a page of a slot.
fn image_page(slot: usize, page: usize) -> usize {
    slot * 1000 + page
}

fn snapshot(directory: &Path) {
    let slots: Vec<String> = SLOTS
        .iter()
        .map(|(slot, gpa, pages, offset)| {
            format!(
                r#"{{"slot":{slot},"gpa":{gpa},"size":{},"file_offset":{offset},"zone_id":"a"}}"#,
                pages * PAGE
            )
        })
        .collect();
    let config = format!(
        r#"{{"vm_config":{{}},"memory_manager_data":{{"guest_ram_mappings":[{}]}}}}"#,
        slots.join(",")
    );
    fs::write(directory.join("migration_config.json"), config).expect("written");
    fs::write(directory.join("state.json"), "{}").expect("written");
    for (slot, (number, _, pages, _)) in SLOTS.iter().enumerate() {
        let bytes: Vec<u8> = (0..*pages).flat_map(|page| content(image_page(slot, page))).collect();
        fs::write(directory.join(format!("memory-{number}")), bytes).expect("written");
    }
}

/// The VMM's side of a restore.
struct Vmm {
    listener: UnixListener,
    line: UnixStream,
    fault_line: Option<UnixStream>,
    memory: Vec<File>,
}

impl Vmm {
    /// Waits for its peer.
    fn accept(listener: UnixListener) -> Self {
        let (line, _) = listener.accept().expect("it connects");
        Self { listener, line, fault_line: None, memory: Vec::new() }
    }

    /// The command of the next request, and its payload.
    fn request(&mut self) -> (u16, Vec<u8>) {
        let mut header = [0; 16];
        self.line.read_exact(&mut header).expect("a request");
        let length = u64::from_le_bytes(header[8..].try_into().expect("8 bytes")) as usize;
        let command = u16::from_le_bytes([header[0], header[1]]);
        let mut payload = vec![0; length];
        if command == 7 {
            until("a descriptor comes", || {
                let came = receive(&self.line, &mut payload).expect("whole");
                came.map(|came| self.memory.extend(came.descriptors.into_iter().map(File::from))).is_some()
            });
        } else {
            self.line.read_exact(&mut payload).expect("whole");
        }
        (command, payload)
    }

    fn answer(&mut self, status: u16) {
        let mut answer = [0; 16];
        answer[..2].copy_from_slice(&status.to_le_bytes());
        self.line.write_all(&answer).expect("it reads");
    }

    /// Takes everything up to the State, and answers all but that.
    fn receive_all(&mut self) {
        for expected in [1, 7, 7, 2] {
            let (command, payload) = self.request();
            assert_eq!(command, expected);
            if command == 7 {
                let slot = u32::from_le_bytes(payload.try_into().expect("4 bytes"));
                assert_eq!(slot, SLOTS[self.memory.len() - 1].0);
            }
            self.answer(1);
        }
        let (mut fault_line, _) = self.listener.accept().expect("it connects again");
        let mut role = [0; 2];
        fault_line.read_exact(&mut role).expect("its role");
        assert_eq!(role, [2, 0]);
        self.fault_line = Some(fault_line);
        assert_eq!(self.request(), (3, b"{}".to_vec()));
    }

    /// Asks for a page. Returns the status.
    fn fault(&mut self, gpa: u64, len: u64) -> u16 {
        let mut bytes = [0; 32];
        bytes[..2].copy_from_slice(&9_u16.to_le_bytes());
        bytes[8..16].copy_from_slice(&16_u64.to_le_bytes());
        bytes[16..24].copy_from_slice(&gpa.to_le_bytes());
        bytes[24..].copy_from_slice(&len.to_le_bytes());
        let line = self.fault_line.as_mut().expect("connected");
        line.write_all(&bytes).expect("it reads");
        let mut answer = [0; 16];
        line.read_exact(&mut answer).expect("an answer");
        assert_eq!(answer[8..], [0; 8], "content comes by the memory");
        u16::from_le_bytes([answer[0], answer[1]])
    }

    /// Asks for a page of a slot, checks it, and writes it as the guest would.
    fn touch(&mut self, slot: usize, page: usize) {
        let (_, gpa, _, offset) = SLOTS[slot];
        assert_eq!(self.fault(gpa + (page * PAGE) as u64, PAGE as u64), 1);
        let mut bytes = vec![0; PAGE];
        let at = offset + (page * PAGE) as u64;
        self.memory[slot].read_exact_at(&mut bytes, at).expect("there");
        assert!(bytes == content(image_page(slot, page)), "slot {slot}, page {page}");
        self.memory[slot].write_all_at(&[page as u8; PAGE], at).expect("written");
    }
}

fn serve(directory: &Path, options: &[&str]) -> (UnixListener, Child) {
    let socket = directory.join("vmm");
    let listener = UnixListener::bind(&socket).expect("it listens");
    let child = Command::new(env!("CARGO_BIN_EXE_pagoda"))
        .args(["serve", "--offload", "--json", "--socket"])
        .arg(&socket)
        .args(options)
        .arg(directory)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    (listener, child)
}

fn ended(mut child: Child) -> Output {
    until("it ends", || child.try_wait().expect("ours").is_some());
    child.wait_with_output().expect("ended")
}

#[test]
fn a_vm_of_cloud_hypervisors_gets_every_page_and_keeps_its_writes() {
    for (options, complete) in [(&["--resume"][..], 5), (&[], 8)] {
        let directory = tempfile::tempdir().expect("a directory");
        snapshot(directory.path());
        let (listener, child) = serve(directory.path(), options);
        let mut vmm = Vmm::accept(listener);
        vmm.receive_all();
        // A device's memory is read while the state is taken.
        vmm.touch(1, 7);
        vmm.answer(1);
        assert_eq!(vmm.request().0, complete);
        vmm.answer(1);
        let (mut random, mut left) = (Random::new(complete.into(), 0), pages());
        left.retain(|page| *page != (1, 7));
        while !left.is_empty() {
            let (slot, page) = left.swap_remove(random.below(left.len()));
            vmm.touch(slot, page);
        }
        // It may ask again; the page is the guest's by now.
        assert_eq!(vmm.fault(0, 2 << 20), 1);
        for (slot, page) in pages() {
            let mut bytes = [0; PAGE];
            vmm.memory[slot].read_exact_at(&mut bytes, SLOTS[slot].3 + (page * PAGE) as u64).expect("there");
            assert_eq!(bytes, [page as u8; PAGE], "slot {slot}, page {page}");
        }
        drop(vmm);
        let output = ended(child);
        let told: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert!(output.status.success());
        assert_eq!((&told["faults"], &told["memory_bytes"]), (&769.into(), &(768 * PAGE).into()));
    }
}

#[test]
fn a_fault_outside_of_the_vm_and_a_refusal_end_the_restore_with_a_line() {
    let directory = tempfile::tempdir().expect("a directory");
    snapshot(directory.path());
    for (gpa, len) in [(SLOTS[0].2 * PAGE, PAGE), (100, PAGE), (0, 0), (0, 1 << 30)] {
        let _ = fs::remove_file(directory.path().join("vmm"));
        let (listener, child) = serve(directory.path(), &[]);
        let mut vmm = Vmm::accept(listener);
        vmm.receive_all();
        vmm.answer(1);
        assert_eq!(vmm.request().0, 8);
        vmm.answer(1);
        assert_eq!(vmm.fault(gpa as u64, len as u64), 2);
        let output = ended(child);
        let line = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && line.contains("in no slot"), "{line}");
    }
    let _ = fs::remove_file(directory.path().join("vmm"));
    let (listener, child) = serve(directory.path(), &[]);
    let mut vmm = Vmm::accept(listener);
    assert_eq!(vmm.request().0, 1);
    vmm.answer(2);
    let output = ended(child);
    assert!(String::from_utf8_lossy(&output.stderr).contains("refused Start"));
    fs::write(directory.path().join("migration_config.json"), "{}").expect("written");
    let _ = fs::remove_file(directory.path().join("vmm"));
    let output = ended(serve(directory.path(), &[]).1);
    assert!(String::from_utf8_lossy(&output.stderr).contains("migration_config.json is not"));
}
