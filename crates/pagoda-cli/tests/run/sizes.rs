//! What a run tells of the memory that its program used: budgets are chosen by it.

use std::fs;
use std::process::Command;

use serde_json::Value;

use crate::{output, skip, text};

/// The counters of a perl script that ran within 32 MiB. None where nothing is managed.
fn counters(script: &str) -> Option<Value> {
    pagoda_linux::probe::can_run().map_err(skip).ok()?;
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("stats.json");
    let mut command = Command::new(env!("CARGO_BIN_EXE_pagoda"));
    command.args(["run", "--memory", "32M", "--stats"]).arg(&path).args(["--", "perl", "-e", script]);
    command.env_remove("PAGODA_PRELOAD").env_remove("LD_PRELOAD");
    let output = output(&mut command);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let stats: Value = serde_json::from_slice(&fs::read(&path).expect("read")).expect("JSON");
    Some(stats["counters"].clone())
}

fn mib(counters: &Value, name: &str) -> u64 {
    counters[name].as_u64().expect("a counter") >> 20
}

/// 16,384 OS pages of noise, one in each 64 KiB, that are all read again: 64 MiB.
const SPARSE: &str = r#"
my ($mmap, $read, $count) = (9, 0, 16384);
my $at = syscall $mmap, 0, $count << 16, 3, 0x22, -1, 0;
open my $noise, '<', '/dev/urandom' or die;
sub sum { unpack '%32C*', unpack 'P4096', pack 'Q', $at + ($_[0] << 16) }
my @sums;
for (0 .. $count - 1) {
    syscall($read, fileno $noise, $at + ($_ << 16), 4096) == 4096 or die;
    push @sums, sum($_);
}
for (0 .. $count - 1) { die "page $_ is wrong" if sum($_) != $sums[$_] }
"#;

#[test]
fn sparse_memory_is_told_and_stored_by_the_os_pages_that_were_used() {
    let Some(counters) = counters(SPARSE) else { return };
    let mib = |name| mib(&counters, name);
    assert!((64..88).contains(&mib("held_peak_bytes")), "{counters}");
    assert!(mib("stored_peak_bytes") < 72, "{counters}");
    assert!(mib("store_memory_peak_bytes") + mib("spilled_peak_bytes") < 112, "{counters}");
}

#[test]
fn pages_of_one_word_are_told_though_they_take_no_room() {
    let Some(counters) = counters(r#"my ($zero, $one) = ("\0" x (64 << 20), "\1" x (64 << 20));"#) else {
        return;
    };
    assert!(mib(&counters, "held_peak_bytes") >= 128, "{counters}");
    assert!(mib(&counters, "stored_peak_bytes") < 32, "{counters}");
}
