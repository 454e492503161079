//! `pagoda image` as a person runs it: pack, look, verify, unpack, differences, damage, kills.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use pagoda_linux::testing::directory::names;

fn pagoda(directory: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pagoda"));
    command.arg("image").args(arguments).current_dir(directory).output().expect("run")
}

/// Runs it; it has to succeed. Returns standard output.
fn works(directory: &Path, arguments: &[&str]) -> String {
    let output = pagoda(directory, arguments);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {text}");
    String::from_utf8(output.stdout).expect("text")
}

/// Runs it; it has to fail with one line. Returns that.
fn fails(directory: &Path, arguments: &[&str]) -> String {
    let output = pagoda(directory, arguments);
    let text = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(125), "{arguments:?}: {text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    text
}

fn json(directory: &Path, arguments: &[&str]) -> serde_json::Value {
    serde_json::from_str(&works(directory, arguments)).expect("one JSON object")
}

/// A sparse raw file of 32 MiB with 6 MiB of data in it.
fn raw(directory: &Path, name: &str) -> Vec<u8> {
    let mut memory = vec![0u8; 32 << 20];
    memory[3 << 20..8 << 20].iter_mut().enumerate().for_each(|(i, byte)| *byte = (i / 11) as u8);
    memory[20 << 20..21 << 20]
        .iter_mut()
        .enumerate()
        .for_each(|(i, byte)| *byte = ((i as u32).wrapping_mul(2_654_435_761) >> 24) as u8);
    let file = File::create(directory.join(name)).expect("a file");
    file.set_len(memory.len() as u64).expect("sparse");
    for range in [3 << 20..8 << 20, 20 << 20..21 << 20] {
        file.write_all_at(&memory[range.clone()], range.start as u64).expect("written");
    }
    memory
}

#[test]
fn memory_is_packed_verified_and_unpacked() {
    let scratch = tempfile::tempdir_in("/var/tmp").expect("a directory");
    let directory = scratch.path();
    let memory = raw(directory, "raw");
    for (codec, block) in [("lz4", "16K"), ("zstd", "64K"), ("none", "4K")] {
        let packed = json(directory, &["pack", "--json", "--codec", codec, "--block", block, "raw", "image"]);
        assert_eq!(packed["raw_bytes"], 32 << 20);
        let bytes = fs::metadata(directory.join("image")).expect("there").len();
        assert_eq!(packed["bytes"], bytes);
        assert_eq!(packed["received_pages"], 6 << 8);
        let info = json(directory, &["info", "--json", "image"]);
        assert_eq!(info, packed);
        assert!(works(directory, &["info", "image"]).contains("blocks of zeroes"));
        assert_eq!(json(directory, &["verify", "--json", "image"])["is_whole"], true);
        let _ = fs::remove_file(directory.join("back"));
        works(directory, &["unpack", "image", "back"]);
        assert!(fs::read(directory.join("back")).expect("read") == memory);
    }
    let mode = fs::metadata(directory.join("image.key")).expect("a key").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(fails(directory, &["unpack", "image", "back"]).contains("exists"));
    assert_eq!(names(directory), ["back", "image", "image.key", "raw"]);
}

#[test]
fn differences_have_their_base_and_say_so_without_it() {
    let scratch = tempfile::tempdir_in("/var/tmp").expect("a directory");
    let directory = scratch.path();
    let mut memory = raw(directory, "raw");
    works(directory, &["pack", "raw", "image"]);
    memory[5 << 20] ^= 1;
    fs::write(directory.join("later"), &memory).expect("written");
    let made = json(directory, &["diff", "--json", "image", "later", "difference"]);
    assert_eq!(
        (&made["stored_blocks"], &made["base"]),
        (&1.into(), &json(directory, &["info", "--json", "image"])["root"])
    );
    works(directory, &["verify", "--key", "image.key", "difference"]);
    works(directory, &["unpack", "--key", "image.key", "difference", "back"]);
    assert!(fs::read(directory.join("back")).expect("read") == memory);
    fs::create_dir(directory.join("away")).expect("a directory");
    fs::rename(directory.join("image"), directory.join("away/image")).expect("renamed");
    assert!(fails(directory, &["verify", "--key", "image.key", "difference"]).contains("--base"));
    works(directory, &["verify", "--key", "image.key", "--base", "away/image", "difference"]);
}

#[test]
fn errors_name_the_file_the_place_and_the_remedy() {
    let scratch = tempfile::tempdir_in("/var/tmp").expect("a directory");
    let directory = scratch.path();
    raw(directory, "raw");
    works(directory, &["pack", "--codec", "none", "raw", "image"]);
    let mut bytes = fs::read(directory.join("image")).expect("read");
    bytes[4096 + 5 * 16384] ^= 1;
    fs::write(directory.join("image"), bytes).expect("written");
    let error = fails(directory, &["verify", "image"]);
    assert!(
        error.contains("image") && error.contains(&format!("offset {}", (3 << 20) + 5 * 16384)),
        "{error}"
    );
    assert!(fails(directory, &["info", "raw"]).contains("not an image"));
    assert!(fails(directory, &["info", "none"]).contains("none"));
    assert!(fails(directory, &["pack", "--codec", "zlib", "raw", "other"]).contains("lz4"));
    assert!(fails(directory, &["pack", "--block", "5K", "raw", "other"]).contains("64K"));
    assert!(fails(directory, &["pack", "--ram-block", "pc.ram", "raw", "other"]).contains("--ram-block"));
    assert!(fails(directory, &["pack", "/dev/zero", "other"]).contains("regular file"));
    fs::remove_file(directory.join("image.key")).expect("removed");
    assert!(fails(directory, &["verify", "image"]).contains("--key"));
}

/// Killed at any moment, the old image is there or the new one is.
#[test]
fn a_killed_pack_leaves_one_whole_image() {
    let scratch = tempfile::tempdir_in("/var/tmp").expect("a directory");
    let directory = scratch.path();
    let older = raw(directory, "raw");
    works(directory, &["pack", "raw", "image"]);
    let mut newer = older.clone();
    newer.iter_mut().step_by(999).for_each(|byte| *byte ^= 0x55);
    fs::write(directory.join("later"), &newer).expect("written");
    let mut command = Command::new(env!("CARGO_BIN_EXE_pagoda"));
    command.args(["image", "pack", "--quiet", "--codec", "zstd", "later", "image"]).current_dir(directory);
    for round in 0..6 {
        let mut child = command.spawn().expect("started");
        std::thread::sleep(Duration::from_millis(round * 15));
        child.kill().expect("killed, or it has ended");
        child.wait().expect("waited for");
        let _ = fs::remove_file(directory.join("back"));
        works(directory, &["unpack", "image", "back"]);
        let back = fs::read(directory.join("back")).expect("read");
        assert!(back == older || back == newer, "after {round}");
    }
    let left = names(directory);
    let known = ["back", "image", "image.key", "later", "raw"];
    let others = left.iter().filter(|name| !known.contains(&name.as_str()));
    assert!(others.clone().all(|name| name.ends_with(".unfinished")), "{others:?}");
}
