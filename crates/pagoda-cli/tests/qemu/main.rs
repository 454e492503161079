//! A whole virtual machine under `pagoda run`: QEMU with a guest that fills three times the budget
//! and reads it back, one that gives memory back by its balloon, and one that QEMU saves in a file.
//!
//! The guest is a firmware of our own, some hundred bytes of machine code, so that no kernel and no
//! boot loader is needed. QEMU runs it by TCG, its translator, which needs no KVM.

mod balloon;
mod saved;

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Instant;

use pagoda_linux::testing::guest_code::{RIGHT, fill_and_read};
use pagoda_linux::testing::skip::{skip, tell};

const QEMU: &str = "qemu-system-x86_64";
const MIB: u64 = 1 << 20;
const BUDGET_MIB: u64 = 64;
const GUEST_MIB: u64 = 192;

/// Where the firmware begins: it ends at 4 GiB.
const FIRMWARE: u32 = 0xFFFF_0000;
const FIRMWARE_BYTES: usize = 0x1_0000;
/// Addresses within the firmware: the processor's first instruction, and the start of our code.
const RESET: usize = 0xFFF0;
const GDT: usize = 0x100;
const FLAT: usize = 0x200;
const REST: usize = 0x400;
/// QEMU prints the bytes of the first port, and ends by a byte at the second.
const PORT: u8 = 0xE9;
const END: u8 = 0xF4;
/// A word for each line of the processor's cache.
const STEP: u32 = 64;
const START: u32 = 1 << 20;

/// The code of the end: AL has the report.
const ENDS: [u8; 3] = [0xE6, END, 0xF4];

/// A firmware that leads the processor from its reset into 32-bit code, which fills the memory up
/// to `bytes`, reads it back, and then does the `rest` with the report in AL.
fn firmware(bytes: u32, rest: &[u8]) -> Vec<u8> {
    let mut rom = vec![0xF4; FIRMWARE_BYTES];
    let put = |rom: &mut Vec<u8>, at: usize, bytes: &[u8]| rom[at..at + bytes.len()].copy_from_slice(bytes);
    let flat = (FIRMWARE + FLAT as u32).to_le_bytes();
    let back = (0u16.wrapping_sub(RESET as u16 + 3)).to_le_bytes();
    put(&mut rom, RESET, &[0xE9, back[0], back[1]]); // jmp to the start
    let mut code = vec![0xFA]; // cli
    code.extend([0x2E, 0x66, 0x0F, 0x01, 0x16]); // lgdt cs:[the descriptor behind the table]
    code.extend((GDT as u16 + 24).to_le_bytes());
    code.extend([0x0F, 0x20, 0xC0, 0x0C, 0x01, 0x0F, 0x22, 0xC0]); // the bit of protected mode in cr0
    code.extend([0x66, 0xEA]); // jmp 8:flat
    code.extend(flat);
    code.extend([8, 0]);
    put(&mut rom, 0, &code);
    // None, code and data: all addresses, 32 bits.
    let segments: [u64; 3] = [0, 0x00CF_9A00_0000_FFFF, 0x00CF_9200_0000_FFFF];
    let mut table: Vec<u8> = segments.into_iter().flat_map(u64::to_le_bytes).collect();
    table.extend(23u16.to_le_bytes());
    table.extend((FIRMWARE + GDT as u32).to_le_bytes());
    put(&mut rom, GDT, &table);
    let mut code = vec![0x66, 0xB8, 16, 0, 0x8E, 0xD8]; // mov ds, the data segment
    code.push(0xBE); // mov esi
    code.extend(START.to_le_bytes());
    code.push(0xBF); // mov edi
    code.extend(bytes.to_le_bytes());
    let mut on = vec![0xBB]; // mov ebx, the rest; jmp ebx
    on.extend((FIRMWARE + REST as u32).to_le_bytes());
    on.extend([0xFF, 0xE3]);
    let (body, _) = fill_and_read(PORT.into(), STEP, &on);
    code.extend(body);
    put(&mut rom, FLAT, &code);
    put(&mut rom, REST, rest);
    rom
}

/// The arguments of a machine whose memory is of this kind, with our firmware.
fn machine(directory: &Path, memory: &str, device: &str, rest: &[u8]) -> Vec<String> {
    let image = directory.join("firmware");
    std::fs::write(&image, firmware((GUEST_MIB * MIB) as u32, rest)).expect("written");
    let backend = format!("{memory},id=ram,size={GUEST_MIB}M");
    let words = [
        "-nodefaults -no-user-config -display none -accel tcg,thread=single -M pc,memory-backend=ram",
        &format!("-m {GUEST_MIB}M -object {backend} -debugcon stdio -device isa-debug-exit,iobase={END:#x}"),
        &format!("-bios {}", image.display()),
        device,
    ];
    words.iter().flat_map(|words| words.split_whitespace()).map(str::to_owned).collect()
}

/// Whether QEMU and managed programs can be had here.
fn skips() -> bool {
    // As beside the bench of migration: it is only tested where it is installed.
    let version = Command::new(QEMU).arg("--version").stdout(Stdio::null()).status();
    if version.is_err() {
        tell("QEMU under pagoda run", format!("{QEMU} is not installed (Debian: qemu-system-x86)"));
        return true;
    }
    match pagoda_linux::probe::can_run() {
        Ok(_) => false,
        Err(why) => {
            skip("QEMU under pagoda run", why);
            true
        }
    }
}

/// Runs the guest, and returns the counters of its run.
fn run(memory: &str) -> serde_json::Value {
    run_with(memory, "", &ENDS, "FR")
}

/// Runs the guest with another device, for which it has code of its own; it has to say `says`.
fn run_with(memory: &str, device: &str, rest: &[u8], says: &str) -> serde_json::Value {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let stats = directory.path().join("stats");
    let begin = Instant::now();
    let output = Command::new("timeout")
        .args(["--kill-after=5", "120", env!("CARGO_BIN_EXE_pagoda"), "run", "--quiet", "--stats"])
        .arg(&stats)
        .args(["--memory", &format!("{BUDGET_MIB}M"), "--", QEMU])
        .args(machine(directory.path(), memory, device, rest))
        .stdin(Stdio::null())
        .env_remove("LD_PRELOAD")
        .output()
        .expect("timeout is there");
    let Output { status, stdout, stderr } = output;
    let (said, errors) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert_eq!(said, says, "what the guest filled, read back, and then did: {status}\n{errors}");
    // QEMU doubles the byte that the guest ends with, and adds one.
    assert_eq!(status.code(), Some(i32::from(RIGHT) * 2 + 1), "{errors}");
    let text = std::fs::read_to_string(&stats).expect("--stats");
    println!("{memory}: {:.1} s\n{text}", begin.elapsed().as_secs_f64());
    let stats: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(stats["status"], "managed", "{text}");
    stats
}

fn counter(stats: &serde_json::Value, name: &str) -> u64 {
    stats["counters"][name].as_u64().expect(name)
}

#[test]
fn a_guest_of_three_budgets_reads_its_own_words() {
    if skips() {
        return;
    }
    let stats = run("memory-backend-ram");
    assert!(counter(&stats, "stores") > 0 && counter(&stats, "faults_stored") > 0, "{stats}");
    let peak = counter(&stats, "anon_peak_bytes");
    assert!(peak <= (BUDGET_MIB + 16) * MIB, "{peak} is over budget");
}

/// Memory that can be shared is in no budget, and told beside it.
#[test]
fn a_guest_in_shared_memory_is_left_to_the_kernel_and_told() {
    if skips() {
        return;
    }
    for memory in ["memory-backend-memfd", "memory-backend-ram,share=on"] {
        let stats = run(memory);
        let anonymous = counter(&stats, "anon_peak_bytes");
        let with_files = stats["resident_peak_bytes"].as_u64().expect("told");
        assert!(anonymous <= BUDGET_MIB * MIB && counter(&stats, "evictions") == 0, "{stats}");
        assert!(with_files >= GUEST_MIB * MIB, "{with_files} bytes are told: {stats}");
    }
}

/// By the balloon and by its report of free pages: QEMU discards them, and they take nothing.
#[test]
fn pages_that_a_guest_gives_back_are_discarded() {
    if skips() {
        return;
    }
    const INFLATED: u32 = 16 << 20;
    const REPORTED: u32 = 96 << 20;
    let (inflated, reported) = (16 << 20..(16 << 20) + INFLATED, 64 << 20..(64 << 20) + REPORTED);
    let rest = balloon::give_back(PORT, &inflated, &reported, &ENDS);
    let says = format!("FR{}", char::from(balloon::GONE));
    let gone = run_with("memory-backend-ram", balloon::DEVICE, &rest, &says);
    let kept = run("memory-backend-ram");
    let [gone, kept] = [gone, kept].map(|stats| counter(&stats, "stored_bytes"));
    let given_back = u64::from(INFLATED + REPORTED);
    println!("stored at the end: {gone} bytes, without a balloon {kept}");
    assert!(gone + given_back / 4 * 3 <= kept, "{given_back} bytes were given back");
}
