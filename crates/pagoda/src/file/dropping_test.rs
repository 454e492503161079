use pagoda_core::page::BasePage;
use pagoda_linux::testing::skip::skip_without_moves;

use super::*;
use crate::file::tests::mapped;
use crate::state::hand::Step;
use crate::store::Scratch;

#[test]
fn dirty_entries_go_with_the_one_before_them_and_a_clean_one_stays() {
    const FIRST: usize = 100;
    const CLEAN: usize = FIRST + 3;
    if skip_without_moves("entries that are dropped together") {
        return;
    }
    let (file, manager, region) = mapped(BasePage::K64);
    let (engine, bytes) = (manager.engine(), manager.engine().entry_bytes());
    // Downwards: nothing is read ahead.
    for index in (FIRST..FIRST + 5).rev() {
        match index {
            CLEAN => region.read_at(index * bytes, &mut [0]).expect("a disk"),
            _ => region.write_at(index * bytes + 1, &vec![7; bytes - 1]).expect("a disk"),
        }
    }
    let start = region.inner().memory().range().start();
    let words = || {
        let table = engine.gate_shared();
        let span = table.find(start).expect("mapped");
        (FIRST..FIRST + 5).map(|index| span.word(index).backing()).collect::<Vec<_>>()
    };
    {
        let table = engine.gate_shared();
        let span = table.find(start).expect("mapped");
        for index in FIRST..FIRST + 5 {
            engine.stage_page(&table, span, index, &mut Vec::new());
        }
    }
    assert!(words().iter().all(|backing| matches!(backing, Backing::Slot(_))), "{:?}", words());
    let mut scratch = Scratch::new(engine.base);
    assert!(matches!(engine.store_oldest(&mut scratch), Some(Step::FrameReady)));
    let after = words();
    assert_eq!(after[..3], [Backing::None; 3]);
    assert!(after[3..].iter().all(|backing| matches!(backing, Backing::Slot(_))), "{after:?}");
    let content = std::fs::read(file.path()).expect("it is there");
    for index in FIRST..CLEAN {
        assert!(content[index * bytes + 1..(index + 1) * bytes].iter().all(|byte| *byte == 7), "{index}");
    }
    // The other dirty one goes by itself. What the queue has of those is passed over.
    while words()[4] != Backing::None {
        assert!(matches!(engine.store_oldest(&mut scratch), Some(Step::FrameReady)));
    }
    let mut byte = [0];
    for index in FIRST..FIRST + 5 {
        region.read_at((index + 1) * bytes - 1, &mut byte).expect("a disk");
        let expected = if index == CLEAN { (((index + 1) * bytes - 1) / OS_PAGE % 251) as u8 } else { 7 };
        assert_eq!(byte[0], expected, "{index}");
    }
}
