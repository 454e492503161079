//! A forked child of a process with a manager: it may drop, call and exit as it likes, its parent
//! loses nothing, and its own managers work.
//!
//! Each test forks in the middle of a process with swapped-out pages, and then compares all of the
//! parent's memory.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use pagoda::region::RegionError;
use pagoda::{AccessError, Bytes, FileError, Manager, ManagerBuilder, OtherProcess, PageOutError, Region};
use pagoda_linux::testing::address::load;
use pagoda_linux::testing::area::Area;
use pagoda_linux::testing::foreign::Foreign;
use pagoda_linux::testing::process::{end, fork, raw_fork, sleep_until_killed, wait};
use pagoda_linux::testing::skip::skip_without_moves;
use pagoda_linux::testing::wait::{EndsWith, HANG, Waited};
use rustix::process::{Pid, WaitOptions, waitpid};

const BUDGET: Bytes = Bytes::mib(40);
const REGION: Bytes = Bytes::mib(64);
const PAGE: usize = 4096;

/// The three ways in which faults come.
const MODES: [&str; 3] = ["full", "user", "thread"];

/// Of a mode, unless this machine does not allow it.
fn manager(mode: &str) -> Option<Manager> {
    if skip_without_moves("children of a library's process") {
        return None;
    }
    let manager = builder(mode).build();
    // Faults of system calls need a privilege.
    if mode == "full" { manager.ok() } else { Some(manager.expect("a manager")) }
}

fn builder(mode: &str) -> ManagerBuilder {
    let builder = Manager::builder().budget(BUDGET).spill_to("/var/tmp", Bytes::gib(1));
    match mode {
        "user" => builder.user_mode_only(true),
        "thread" => builder.serve_in_thread(true),
        _ => builder,
    }
}

fn filled(manager: &Manager, seed: u64) -> Region {
    let mut region = manager.region(REGION).create().expect("a region");
    for page in 0..region.len() / PAGE {
        let words = [seed ^ page as u64, !seed, page as u64];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        region.write_at(page * PAGE + 8 * (page % 500), &bytes).expect("written");
    }
    region
}

fn wrong(region: &Region, seed: u64) -> usize {
    let is_wrong = |page: &usize| {
        let mut found = [0; 24];
        region.read_at(page * PAGE + 8 * (page % 500), &mut found).expect("read");
        let words = [seed ^ *page as u64, !seed, *page as u64];
        let expected: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        found[..] != expected[..]
    };
    (0..region.len() / PAGE).filter(is_wrong).count()
}

/// The status of a child that ends by itself.
fn status_of(child: Pid) -> Option<i32> {
    let mut waited = Waited::default();
    loop {
        if let Some((_, status)) = waitpid(Some(child), WaitOptions::NOHANG).expect("waited for") {
            return status.exit_status();
        }
        if waited.so_far() > HANG {
            end(child).expect("ended");
            panic!("a child hangs");
        }
        thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_region_that_a_child_drops_is_not_lost_to_its_parent() {
    for mode in MODES {
        let Some(manager) = manager(mode) else { continue };
        let mut region = Some(filled(&manager, 1));
        let foreign = Foreign::private(1024).expect("memory");
        (0..1024).for_each(|page| foreign.write(page, page as u8));
        let mut adopted = Some(manager.adopt(foreign.give(0..1024)).expect("adopted"));
        let mut manager = Some(manager);
        for raw in [false, true] {
            let drop_all = || {
                drop((region.take(), adopted.take()));
                drop(manager.take());
                0
            };
            let child = if raw { raw_fork(drop_all) } else { fork(drop_all) };
            assert_eq!(status_of(child.expect("forked")), Some(0), "{mode}, raw: {raw}");
            let region = region.as_ref().expect("the parent's");
            assert_eq!(wrong(region, 1), 0, "{mode}, raw: {raw}");
            assert!((0..1024).all(|page| foreign.read(page) == page as u8), "{mode}, raw: {raw}");
        }
        // A child of a child, whose parent is no more.
        let grandchildren = || {
            let child = fork(|| {
                drop(region.take());
                drop(manager.take());
                0
            });
            status_of(child.expect("forked")).expect("ended")
        };
        assert_eq!(status_of(fork(grandchildren).expect("forked")), Some(0), "{mode}");
        let region = region.as_mut().expect("the parent's");
        assert_eq!(wrong(region, 1), 0, "{mode}");
        region.write_at(0, &[1]).expect("the parent goes on");
    }
}

#[test]
fn every_call_of_a_child_is_refused_or_forgotten() {
    let directory = tempfile::tempdir_in("/var/tmp").expect("a directory");
    let path = directory.path().join("mapped");
    std::fs::write(&path, vec![7; 1 << 20]).expect("a file");
    for mode in MODES {
        let Some(manager) = manager(mode) else { continue };
        let mut region = Some(filled(&manager, 2));
        let own = region.as_ref().expect("made");
        assert_eq!((own.check_process(), own.serves_the_kernel()), (Ok(()), mode == "full"), "{mode}");
        let map = || manager.map_file(&path).writable(true).buffered(true).map();
        let mut file = Some(map().expect("mapped"));
        file.as_ref().expect("mapped").write_at(5, b"by the parent").expect("written");
        let foreign = Foreign::private(16).expect("memory");
        let child = fork(|| {
            let (mut region, file) = (region.take().expect("inherited"), file.take().expect("inherited"));
            let refused = AccessError::OtherProcess(OtherProcess);
            assert_eq!(region.check_process(), Err(OtherProcess));
            assert_eq!(region.read_at(0, &mut [0; 8]), Err(refused));
            assert_eq!(region.write_at(0, &[0; 8]), Err(refused));
            assert_eq!(region.write_words(0, &[0; 8]), Err(refused));
            let told = region.discard(0, PAGE).expect_err("refused");
            assert!(told.get_ref().is_some_and(|error| error.is::<OtherProcess>()), "{told}");
            assert_eq!(region.page_out(0, PAGE), Err(PageOutError::OtherProcess(OtherProcess)));
            let refused = Some(RegionError::OtherProcess(OtherProcess));
            assert_eq!(manager.region(Bytes::mib(1)).create().err(), refused);
            assert_eq!(manager.adopt(foreign.give(0..16)).err(), refused);
            assert!(map().err().expect("refused").to_string().contains("build a manager in the child"));
            assert!(manager.resize_zone("all", BUDGET).is_err());
            let refused = Err(FileError::OtherProcess(OtherProcess));
            assert_eq!((file.read_at(0, &mut [0; 8]), file.write_at(0, &[0; 8])), (refused, refused));
            assert_eq!((file.sync(), file.stats().written), (refused, Bytes::ZERO));
            assert_eq!((manager.stats(), manager.zones().len()), (Default::default(), 0));
            manager.flush_releases();
            assert_eq!((region.len(), file.len()), (REGION.as_usize(), 1 << 20));
            region.close();
            assert_eq!(file.close(), refused);
            0
        });
        assert_eq!(status_of(child.expect("forked")), Some(0), "{mode}");
        assert_eq!(wrong(region.as_ref().expect("the parent's"), 2), 0, "{mode}");
        let file = file.take().expect("the parent's");
        file.close().expect("synced");
        assert_eq!(&std::fs::read(&path).expect("read")[5..18], b"by the parent", "{mode}");
    }
}

#[test]
fn a_child_builds_a_manager_of_its_own_in_every_mode_of_its_parents() {
    for (of_parent, of_child) in MODES.iter().flat_map(|mode| MODES.map(|other| (mode, other))) {
        let Some(manager) = manager(of_parent) else { continue };
        let region = filled(&manager, 3);
        let child = fork(|| {
            let Some(own) = self::manager(of_child) else { return 0 };
            let made = filled(&own, 4);
            let works = wrong(&made, 4) == 0 && own.stats().spilled_bytes + own.stats().stored_bytes > 0;
            // And so does the child of that child.
            let grandchild = fork(|| {
                let Some(own) = self::manager(of_parent) else { return 0 };
                i32::from(wrong(&filled(&own, 5), 5) != 0)
            });
            let works = works && status_of(grandchild.expect("forked")) == Some(0) && wrong(&made, 4) == 0;
            drop((made, own));
            i32::from(!works)
        });
        assert_eq!(status_of(child.expect("forked")), Some(0), "{of_parent}, then {of_child}");
        assert_eq!(wrong(&region, 3), 0, "{of_parent}, then {of_child}");
    }
}

/// Threads of the program and of the manager hold all kinds of locks when it is forked.
#[test]
fn a_child_that_is_forked_amid_faults_neither_hangs_nor_harms() {
    for mode in MODES {
        let Some(manager) = manager(mode) else { continue };
        let mut region = Some(filled(&manager, 6));
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let _ends = EndsWith(&over);
            for thread in 0..2 {
                let (manager, over) = (&manager, &over);
                scope.spawn(move || {
                    let busy = filled(manager, 7 + thread);
                    while !over.load(Ordering::Acquire) {
                        busy.page_out(0, 1 << 20).expect("paged out");
                        assert_eq!(wrong(&busy, 7 + thread), 0);
                        // Servers of faults come and go as well.
                        drop(builder(mode).build().expect("another manager"));
                    }
                });
            }
            for round in 0..20 {
                let child = fork(|| {
                    drop(region.take());
                    assert_eq!(manager.stats(), Default::default());
                    assert!(manager.region(Bytes::mib(1)).create().is_err());
                    drop(manager.clone());
                    if round % 4 != 0 {
                        return 0;
                    }
                    let own = builder(mode).build().expect("a manager of its own");
                    let mut made = own.region(Bytes::mib(2)).create().expect("a region");
                    made.words_mut().fill(9);
                    i32::from(made.words_mut().iter().any(|word| *word != 9))
                });
                assert_eq!(status_of(child.expect("forked")), Some(0), "{mode}, round {round}");
            }
        });
        assert_eq!(wrong(region.as_ref().expect("the parent's"), 6), 0, "{mode}");
    }
}

/// The child keeps the descriptors open, so that closing them ends nothing.
#[test]
fn a_parent_drops_its_manager_while_a_child_lives() {
    for mode in MODES {
        let Some(manager) = manager(mode) else { continue };
        let region = filled(&manager, 10);
        let child = fork(sleep_until_killed).expect("forked");
        let (tell, told) = channel();
        thread::spawn(move || {
            drop((region, manager));
            tell.send(()).expect("waited for");
        });
        let ended = told.recv_timeout(HANG);
        end(child).expect("ended");
        assert!(ended.is_ok(), "{mode}: dropping a manager hangs while a child lives");
    }
}

/// The address that the child gets for memory of its own may be that of its parent's region.
#[test]
fn memory_that_a_child_maps_where_its_parent_has_a_region_stays() {
    let Some(manager) = manager("user") else { return };
    let mut region = Some(filled(&manager, 11));
    let at = region.as_ref().expect("a region").as_ptr();
    let own = Area::of_region(at, 16);
    let child = fork(|| {
        own.map(0..16).expect("the place is free in a child");
        drop(region.take());
        drop(manager.clone());
        // If it was unmapped this ends the child.
        i32::from(load::<8>(at) != [0; 8])
    });
    assert_eq!(status_of(child.expect("forked")), Some(0));
    assert_eq!(wrong(region.as_ref().expect("the parent's"), 11), 0);
}

/// Adopted memory is its owner's, and a child would read zeroes where a page is out.
#[test]
fn adopted_memory_is_not_in_children_until_it_is_its_owners_again() {
    let Some(manager) = manager("user") else { return };
    let foreign = Foreign::private(1024).expect("memory");
    (0..1024).for_each(|page| foreign.write(page, page as u8 | 1));
    let is_whole = || i32::from(!(0..1024).all(|page| foreign.read(page) == page as u8 | 1));
    let adopted = manager.adopt(foreign.give(0..1024)).expect("adopted");
    adopted.page_out(0, 1024 * PAGE).expect("paged out");
    // SIGSEGV, and no content.
    assert_eq!(status_of(fork(is_whole).expect("forked")), None);
    drop(adopted);
    assert_eq!(status_of(fork(is_whole).expect("forked")), Some(0));
    assert_eq!(is_whole(), 0);
}

#[test]
fn an_exit_of_a_child_by_the_c_library_is_harmless() {
    let Some(manager) = manager("user") else { return };
    let region = filled(&manager, 12);
    let child = fork(|| std::process::exit(5)).expect("forked");
    assert_eq!(wait(child).expect("waited for").exit_status(), Some(5));
    assert_eq!(wrong(&region, 12), 0);
}
