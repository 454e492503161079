use std::os::unix::fs::FileExt;

use pagoda_core::page::BasePage;
use pagoda_core::size::Bytes;
use pagoda_linux::testing::skip::skip_without_moves;

use super::*;
use crate::file::tests::mapped;
use crate::state::hand::Step;
use crate::store::Scratch;

#[test]
fn whole_entries_are_written_unread_and_parts_are_read_before() {
    if skip_without_moves("writes of whole entries") {
        return;
    }
    for base in [BasePage::K4, BasePage::K64] {
        let (file, manager, region) = mapped(base);
        let entry_bytes = manager.engine().entry_bytes();
        let value = |at: usize| (at / entry_bytes % 239) as u8;
        // The file is three times as large as the budget, and ends within an entry.
        let whole = region.len() / entry_bytes * entry_bytes;
        for at in (0..whole).step_by(entry_bytes) {
            region.write_at(at, &vec![value(at); entry_bytes]).expect("memory");
        }
        assert_eq!(region.stats().read, Bytes::ZERO, "base page {base}");
        assert!(region.stats().written > Bytes::mib(32) && manager.stats().stores == 0);
        let mut found = vec![0; entry_bytes];
        for at in (0..whole).step_by(entry_bytes).rev() {
            region.read_at(at, &mut found).expect("a disk");
            assert!(found.iter().all(|byte| *byte == value(at)), "{at}, base page {base}");
        }
        // A part of an entry that is not in memory, and one in the region.
        region.write_at(entry_bytes / 2, &[250]).expect("a disk");
        region.write_at(entry_bytes, &vec![251; entry_bytes]).expect("a disk");
        region.sync().expect("a disk");
        let found = std::fs::read(file.path()).expect("there");
        assert_eq!(found.len(), region.len());
        for (at, byte) in found[..whole].iter().enumerate() {
            let expected = match at {
                _ if at == entry_bytes / 2 => 250,
                _ if at / entry_bytes == 1 => 251,
                _ => value(at),
            };
            assert_eq!(*byte, expected, "{at}, base page {base}");
        }
    }
}

/// A page that was read, evicted, changed by another program and then overwritten with what had
/// been read would be taken for clean by its digest.
#[test]
fn a_whole_entry_that_a_call_overwrites_is_the_later_write() {
    if skip_without_moves("writes of whole entries") {
        return;
    }
    let (file, manager, region) = mapped(BasePage::K64);
    let (engine, bytes) = (manager.engine(), manager.engine().entry_bytes());
    let start = region.inner().memory().range().start();
    let others = file.as_file();
    let ours = [3, 9, 12];
    let before: Vec<Vec<u8>> = ours.map(|index| read(others, index * bytes, bytes)).into();
    for index in ours {
        region.read_at(index * bytes, &mut [0]).expect("a disk");
        let table = engine.gate_shared();
        engine.stage_page(&table, table.find(start).expect("mapped"), index, &mut Vec::new());
    }
    let mut scratch = Scratch::new(engine.base);
    let is_out = |index| {
        let table = engine.gate_shared();
        is_only_in_file(table.find(start).expect("mapped").entries(), index)
    };
    while !ours.into_iter().all(is_out) {
        assert!(matches!(engine.store_oldest(&mut scratch), Some(Step::FrameReady)));
    }
    for index in [2, 3, 9] {
        others.write_all_at(&vec![30; bytes], (index * bytes) as u64).expect("room");
    }
    region.write_at(3 * bytes, &before[0]).expect("memory");
    region.write_at(9 * bytes, &vec![7; bytes]).expect("memory");
    region.write_at(12 * bytes, &before[2]).expect("memory");
    // Neither a change elsewhere nor one there makes an error of it.
    for index in [4, 12] {
        others.write_all_at(&vec![31; bytes], (index * bytes) as u64).expect("room");
    }
    assert_eq!(region.sync(), Ok(()));
    let values = [(2, vec![30; bytes]), (3, before[0].clone()), (4, vec![31; bytes])];
    for (index, expected) in values.into_iter().chain([(9, vec![7; bytes]), (12, before[2].clone())]) {
        assert!(read(others, index * bytes, bytes) == expected, "the file at {index}");
        let mut found = vec![0; bytes];
        region.read_at(index * bytes, &mut found).expect("a disk");
        assert!(found == expected, "the memory at {index}");
    }
}

fn read(file: &std::fs::File, at: usize, bytes: usize) -> Vec<u8> {
    let mut content = vec![0; bytes];
    file.read_exact_at(&mut content, at as u64).expect("it is there");
    content
}
