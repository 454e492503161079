//! `pagoda serve --offload` with a VMM of the tests' own that speaks Cloud Hypervisor's protocol.

use std::fs;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use pagoda_bench::cloud_hypervisor::{OK, Slot, Vmm, config};
use pagoda_linux::testing::mapping::PAGE;
use pagoda_linux::testing::random::Random;
use pagoda_linux::testing::wait::until;

use crate::server::content;

/// The status of a refusal.
const REFUSED: u16 = 2;

/// The slots. Both have one zone.
const SLOTS: [Slot; 2] = [
    Slot { number: 0, gpa: 0, pages: 512, file_offset: 0 },
    Slot { number: 3, gpa: 4 << 30, pages: 256, file_offset: 512 * PAGE as u64 },
];

/// The pages of the guest's memory: its slot, and the page of that.
fn pages() -> Vec<(usize, usize)> {
    (0..SLOTS.len()).flat_map(|slot| (0..SLOTS[slot].pages).map(move |page| (slot, page))).collect()
}

/// The page of the tests' image that lies in a page of a slot.
fn image_page(slot: usize, page: usize) -> usize {
    slot * 1000 + page
}

fn snapshot(directory: &Path) {
    fs::write(directory.join("migration_config.json"), config(&SLOTS)).expect("written");
    fs::write(directory.join("state.json"), "{}").expect("written");
    for (slot, Slot { number, pages, .. }) in SLOTS.iter().enumerate() {
        let bytes: Vec<u8> = (0..*pages).flat_map(|page| content(image_page(slot, page))).collect();
        fs::write(directory.join(format!("memory-{number}")), bytes).expect("written");
    }
}

/// A restore whose peer has sent all up to the state.
fn begun(listener: UnixListener) -> Vmm {
    let mut vmm = Vmm::accept(listener).expect("it connects");
    vmm.receive_all(&SLOTS).expect("all is as the protocol has it");
    vmm
}

fn answer_ok(vmm: &mut Vmm) {
    vmm.answer(OK).expect("it reads");
}

fn command(vmm: &mut Vmm) -> u16 {
    vmm.request().expect("a request").0
}

/// Asks for a page of a slot, checks it, and writes it as the guest would.
fn touch(vmm: &mut Vmm, slot: usize, page: usize) {
    let Slot { gpa, file_offset, .. } = SLOTS[slot];
    assert_eq!(vmm.fault(gpa + (page * PAGE) as u64, PAGE as u64).expect("an answer"), OK);
    let mut bytes = vec![0; PAGE];
    let at = file_offset + (page * PAGE) as u64;
    vmm.memory[slot].read_exact_at(&mut bytes, at).expect("there");
    assert!(bytes == content(image_page(slot, page)), "slot {slot}, page {page}");
    vmm.memory[slot].write_all_at(&[page as u8; PAGE], at).expect("written");
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
        let mut vmm = begun(listener);
        // A device's memory is read while the state is taken.
        touch(&mut vmm, 1, 7);
        answer_ok(&mut vmm);
        assert_eq!(command(&mut vmm), complete);
        answer_ok(&mut vmm);
        let (mut random, mut left) = (Random::new(complete.into(), 0), pages());
        left.retain(|page| *page != (1, 7));
        while !left.is_empty() {
            let (slot, page) = left.swap_remove(random.below(left.len()));
            touch(&mut vmm, slot, page);
        }
        // It may ask again; the page is the guest's by now.
        assert_eq!(vmm.fault(0, 2 << 20).expect("an answer"), OK);
        for (slot, page) in pages() {
            let mut bytes = [0; PAGE];
            vmm.memory[slot]
                .read_exact_at(&mut bytes, SLOTS[slot].file_offset + (page * PAGE) as u64)
                .expect("there");
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
    for (gpa, len) in [(SLOTS[0].pages * PAGE, PAGE), (100, PAGE), (0, 0), (0, 1 << 30)] {
        let _ = fs::remove_file(directory.path().join("vmm"));
        let (listener, child) = serve(directory.path(), &[]);
        let mut vmm = begun(listener);
        answer_ok(&mut vmm);
        assert_eq!(command(&mut vmm), 8);
        answer_ok(&mut vmm);
        assert_eq!(vmm.fault(gpa as u64, len as u64).expect("an answer"), REFUSED);
        let output = ended(child);
        let line = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && line.contains("in no slot"), "{line}");
    }
    let _ = fs::remove_file(directory.path().join("vmm"));
    let (listener, child) = serve(directory.path(), &[]);
    let mut vmm = Vmm::accept(listener).expect("it connects");
    assert_eq!(command(&mut vmm), 1);
    vmm.answer(REFUSED).expect("it reads");
    let output = ended(child);
    assert!(String::from_utf8_lossy(&output.stderr).contains("refused Start"));
    fs::write(directory.path().join("migration_config.json"), "{}").expect("written");
    let _ = fs::remove_file(directory.path().join("vmm"));
    let output = ended(serve(directory.path(), &[]).1);
    assert!(String::from_utf8_lossy(&output.stderr).contains("migration_config.json is not"));
}
