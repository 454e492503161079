//! Changes of a region in the pause of its save, at the moment between the copy and the check.

use pagoda_core::page::BasePage;
use pagoda_image::{Image, Key};
use pagoda_linux::testing::directory::names;
use pagoda_linux::testing::skip::skip_without_moves;

use super::*;
use crate::manager::Manager;

const LEN: usize = 2 << 20;

/// The page that changes. Its base page has other pages, too.
const AT: usize = 37 * OS_PAGE;

fn key() -> Key {
    Key::new([6; 32])
}

/// A region of words that all differ, with its content.
fn filled(base: BasePage) -> (Manager, Region, Vec<u8>) {
    let builder = Manager::builder().budget(Bytes::mib(64)).base_page(base).user_mode_only(true);
    let manager = builder.build().expect("a manager");
    let region = manager.region(Bytes::new(LEN as u64)).create().expect("a region");
    let lines: Vec<u8> = (0..LEN as u64 / 8).flat_map(|word| (word * 7919).to_le_bytes()).collect();
    region.write_words(0, &lines).expect("written");
    (manager, region, lines)
}

/// Whether a save notices that `meanwhile` happens in its pause.
fn is_noticed(region: &Region, path: &Path, dirty: bool, meanwhile: impl FnOnce()) -> bool {
    let source = RegionSource::begin(region).expect("not sent");
    let mut saving = Saving::begin(&source, path, PackOptions::new(key())).expect("begun");
    saving.collect().expect("collected");
    saving.pack_left().expect("packed");
    if dirty {
        region.write_words(AT, b"in round").expect("written");
    }
    let mut copied = Copied::new(saving.left.pages);
    saving.copy_left(&mut copied).expect("copied");
    assert!((copied.pages > 0) >= dirty);
    meanwhile();
    !saving.is_unchanged(&mut vec![copied]).expect("looked")
}

#[test]
fn a_write_in_the_pause_is_noticed_also_if_its_page_is_evicted() {
    if skip_without_moves("saving a region") {
        return;
    }
    let directory = tempfile::tempdir_in("/var/tmp").expect("a directory");
    let path = directory.path().join("saved.pim");
    for base in BasePage::ALL {
        let (_manager, region, lines) = filled(base);
        region.snapshot(&path, PackOptions::new(key()), || {}, || {}).expect("saved");
        let page_out = || region.page_out(0, LEN).expect("stored");
        let write = |text: &[u8; 8]| region.write_words(AT, text).expect("written");
        for dirty in [false, true] {
            let noticed = |meanwhile: &dyn Fn()| is_noticed(&region, &path, dirty, meanwhile);
            assert!(!noticed(&|| {}), "{base:?}: nothing happened");
            assert!(!noticed(&page_out), "{base:?}: eviction changes nothing");
            let is_out = region.usage().resident == Bytes::ZERO;
            assert!(is_out, "{base:?}: all was evicted");
            let mut back = vec![0; LEN];
            region.read_at(0, &mut back).expect("read");
            for round in 0..3 {
                assert!(noticed(&|| write(b"newer..1")), "{base:?}, {round}: a write");
                let write_and_evict = || {
                    write(b"newer..2");
                    page_out();
                };
                assert!(noticed(&write_and_evict), "{base:?}, {round}: a write of an evicted page");
                let discard = || region.discard(AT, OS_PAGE).expect("discarded");
                assert!(noticed(&discard), "{base:?}, {round}: a discard");
                write(b"newer..3");
                region.read_at(0, &mut back).expect("read");
            }
        }
        // The image of before is there, and nothing beside it.
        let image = Image::open(&path, Some(key())).expect("an image");
        let mut back = vec![0; LEN];
        image.read_at(0, &mut back).expect("read");
        assert!(back == lines);
        assert_eq!(names(directory.path()), ["saved.pim"]);
    }
}

/// Changes in the pause are copied again: a page that is read, and so swapped in, and a few
/// writes. The image is of the moment after the last.
#[test]
fn pages_that_change_in_the_pause_are_copied_again_until_none_does() {
    if skip_without_moves("saving a region") {
        return;
    }
    let directory = tempfile::tempdir_in("/var/tmp").expect("a directory");
    let path = directory.path().join("saved.pim");
    for base in BasePage::ALL {
        let (_manager, region, mut lines) = filled(base);
        let mut stamp = 0;
        for changes in [0, 1, 5, usize::MAX] {
            region.page_out(0, LEN).expect("stored");
            let source = RegionSource::begin(&region).expect("not sent");
            let mut saving = Saving::begin(&source, &path, PackOptions::new(key())).expect("begun");
            saving.collect().expect("collected");
            saving.pack_left().expect("packed");
            let mut copies = vec![Copied::new(saving.left.pages)];
            let mut calls = 0;
            let mut meanwhile = || {
                calls += 1;
                if calls == 1 {
                    region.read_at(3 * AT, &mut [0; 8]).expect("swapped in");
                } else if calls - 1 <= changes {
                    stamp += 1;
                    let (at, word) = (AT + calls % 3 * OS_PAGE, [stamp; 8]);
                    region.write_words(at, &word).expect("written");
                    lines[at..at + 8].copy_from_slice(&word);
                    if calls % 2 == 0 {
                        region.page_out(0, LEN).expect("stored");
                    }
                }
            };
            let outcome = saving.copy_all(&mut copies, &mut meanwhile);
            if changes == usize::MAX {
                assert!(matches!(outcome, Err(SnapshotError::NotStopped)), "{base:?}: it never ends");
                continue;
            }
            outcome.expect("it ends");
            assert_eq!(calls, changes + 2, "{base:?}");
            saving.pack_copied(&copies).expect("packed");
            saving.finish().expect("written");
            let image = Image::open(&path, Some(key())).expect("an image");
            let mut back = vec![0; LEN];
            image.read_at(0, &mut back).expect("read");
            assert!(back == lines, "{base:?}, {changes} changes");
        }
    }
}
