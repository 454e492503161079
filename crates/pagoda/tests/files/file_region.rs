//! Files as memory: every byte against a shadow, files that become shorter or vanish, and processes
//! that are killed.

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;

use pagoda::{BasePage, Bytes, FileError, FileRegion, Manager, ManagerBuilder, MapFileError};
use pagoda_linux::testing::address::load;
use pagoda_linux::testing::directory::on_disk;
use pagoda_linux::testing::disk::shut_down_ext4;
use pagoda_linux::testing::length::length;
use pagoda_linux::testing::page_cache;
use pagoda_linux::testing::random::Random;
use pagoda_linux::testing::skip::{skip, skip_without_moves};
use pagoda_linux::testing::wait::{EndsWith, HANG, until, until_ended};

const PAGE: usize = 4096;

/// The purpose of a process in which a test runs its own binary again.
const ROLE: &str = "PAGODA_FILE_REGION_TEST";

fn budget_mib(base: BasePage) -> usize {
    if base == BasePage::M2 { 64 } else { 16 }
}

fn builder(base: BasePage) -> ManagerBuilder {
    Manager::builder().budget(Bytes::mib(budget_mib(base) as u64)).base_page(base).user_mode_only(true)
}

/// A directory on a disk.
fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in(on_disk()).expect("room")
}

/// The content of page `page` as of `value`: no two alike, and no word twice.
fn content(page: usize, value: u64) -> [u8; PAGE] {
    let mut content = [0; PAGE];
    for (i, word) in content.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let mixed = (page as u64) << 32 ^ value.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (i as u64) << 50;
        *word = mixed.to_le_bytes();
    }
    content
}

/// A file of `len` bytes, all of it as of value 0.
fn make(path: &Path, len: usize) {
    let bytes: Vec<u8> = (0..len.div_ceil(PAGE)).flat_map(|page| content(page, 0)).take(len).collect();
    std::fs::write(path, bytes).expect("room");
    std::fs::File::open(path).and_then(|file| file.sync_all()).expect("a disk");
}

/// Pages of the file that are in the kernel's cache.
fn cached_pages(path: &Path) -> usize {
    page_cache::cached_pages(path).expect("it is there")
}

fn is_whole(path: &Path, len: usize, values: impl Fn(usize) -> u64) {
    let found = std::fs::read(path).expect("it is there");
    assert_eq!(found.len(), len, "a file keeps its length");
    for (page, found) in found.chunks(PAGE).enumerate() {
        assert!(*found == content(page, values(page))[..found.len()], "page {page} of the file");
    }
}

#[test]
fn threads_read_and_write_a_file_beyond_the_budget_at_each_base_page() {
    const THREADS: usize = 4;
    if skip_without_moves("file regions") {
        return;
    }
    let directory = directory();
    let path = directory.path().join("file");
    for base in BasePage::ALL {
        let len = ((budget_mib(base) * 3 / 2) << 20) + 1234;
        let pages = len.div_ceil(PAGE);
        make(&path, len);
        let manager = builder(base).build().expect("manager");
        let region = manager.map_file(&path).writable(true).map().expect("a disk");
        let values: Vec<AtomicU64> = (0..pages).map(|_| AtomicU64::new(0)).collect();
        let done = AtomicBool::new(false);
        let check = |page: usize, case: &str| {
            let mut found = vec![0; (len - page * PAGE).min(PAGE)];
            region.read_at(page * PAGE, &mut found).expect("a disk");
            let value = values[page].load(Ordering::Relaxed);
            assert!(found == content(page, value)[..found.len()], "page {page}, {case}, base page {base}");
        };
        std::thread::scope(|scope| {
            // A wrong byte is a panic of a worker, and has to end the syncs, too.
            let ends = EndsWith(&done);
            let workers: Vec<_> = (0..THREADS)
                .map(|thread| {
                    let (check, values, region) = (&check, &values, &region);
                    scope.spawn(move || {
                        let mut random = Random::new(base.bytes() as u64, thread as u64);
                        let own = |number: usize| number * THREADS + thread;
                        let count = (pages - thread).div_ceil(THREADS);
                        for round in 0..count + count / length(2, 1) {
                            let page = own(if round < count { round } else { random.below(count) });
                            check(page, "while it is written");
                            if random.below(3) > 0 {
                                let value = random.next() | 1;
                                let here = (len - page * PAGE).min(PAGE);
                                values[page].store(value, Ordering::Relaxed);
                                region.write_at(page * PAGE, &content(page, value)[..here]).expect("memory");
                            }
                        }
                    })
                })
                .collect();
            let syncs = scope.spawn(|| {
                while !done.load(Ordering::Acquire) {
                    region.sync().expect("a disk");
                }
            });
            for worker in workers {
                worker.join().expect("every page is right");
            }
            drop(ends);
            syncs.join().expect("every sync succeeds");
        });
        let stats = manager.stats();
        assert!(stats.anon_peak_bytes <= stats.budget_bytes + (16 << 20), "{} held", stats.anon_peak_bytes);
        assert_eq!(stats.stores, 0, "pages in the file are nowhere else");
        region.sync().expect("a disk");
        let written = region.stats().written;
        region.sync().expect("a disk");
        assert_eq!(region.stats().written, written, "nothing is dirty after a sync");
        assert_eq!(cached_pages(&path), 0, "the kernel's cache has nothing of it");
        (0..pages).for_each(|page| check(page, "after a sync"));
        region.close().expect("a disk");
        // The thread that wrote a page back last counts that after it gave the entry back.
        until("nothing of it is held", || {
            let held = manager.stats();
            (held.resident_bytes, held.staged_bytes) == (0, 0)
        });
        is_whole(&path, len, |page| values[page].load(Ordering::Relaxed));
    }
}

/// Reads all of the file by address, upwards.
fn read_by_address(region: &FileRegion) {
    for offset in (0..region.len()).step_by(8) {
        if region.len() - offset < 8 {
            break;
        }
        let word: [u8; 8] = load(region.as_ptr().wrapping_add(offset));
        let (page, at) = (offset / PAGE, offset % PAGE);
        if at == 0 || at == PAGE - 8 {
            assert!(word == content(page, 0)[at..at + 8], "page {page}");
        }
    }
}

#[test]
fn reading_by_address_gets_the_file_and_nothing_is_read_twice() {
    if skip_without_moves("file regions by address") {
        return;
    }
    let directory = directory();
    let path = directory.path().join("file");
    let len = (64 << 20) + 100;
    make(&path, len);
    for (base, in_thread) in
        [(BasePage::K64, false), (BasePage::K4, false), (BasePage::K16, true), (BasePage::M2, false)]
    {
        let manager = builder(base).serve_in_thread(in_thread).build().expect("manager");
        let region = manager.map_file(&path).map().expect("a disk");
        read_by_address(&region);
        let stats = region.stats();
        assert!(stats.read_ahead.get() >= len as u64 / 4, "it was read ahead: {stats:?}");
        assert!(stats.read.get() <= len as u64 * 3 / 2, "once: {stats:?} at base page {base}");
        assert_eq!((stats.written, cached_pages(&path)), (Bytes::ZERO, 0));
        assert_eq!(region.write_at(0, &[1]), Err(FileError::ReadOnly));
        region.close().expect("nothing to write");
    }
    is_whole(&path, len, |_| 0);
}

#[test]
fn a_file_that_becomes_shorter_is_an_error_and_stays_as_short() {
    if skip_without_moves("truncated files") {
        return;
    }
    let directory = directory();
    let path = directory.path().join("file");
    for base in BasePage::ALL {
        let (len, kept) = (budget_mib(base) << 21, (8 << 20) + 5000);
        make(&path, len);
        let manager = builder(base).build().expect("manager");
        let region = manager.map_file(&path).writable(true).map().expect("a disk");
        let mut found = [0; PAGE];
        for page in (0..len / PAGE).rev() {
            region.write_at(page * PAGE, &content(page, 1)).expect("memory");
        }
        let file = std::fs::OpenOptions::new().write(true).open(&path).expect("it is there");
        file.set_len(kept as u64).expect("a disk");
        for page in (kept / PAGE + 1..len / PAGE).step_by(7) {
            assert_eq!(region.read_at(page * PAGE, &mut found), Err(FileError::Truncated));
            assert_eq!(region.write_at(page * PAGE, &found), Err(FileError::Truncated));
        }
        for page in 0..kept / PAGE {
            region.read_at(page * PAGE, &mut found).expect("it is still there");
            assert!(found == content(page, 1), "page {page}, base page {base}");
        }
        assert_eq!(region.sync(), Err(FileError::Truncated));
        assert_eq!(region.close(), Err(FileError::Truncated), "as long as it is so");
        let found = std::fs::read(&path).expect("it is there");
        assert_eq!(found.len(), kept, "it was not made longer");
        for page in 0..kept / PAGE {
            assert!(found[page * PAGE..][..PAGE] == content(page, 1), "page {page} was safe");
        }
    }
}

#[test]
fn a_file_without_a_name_goes_on() {
    if skip_without_moves("files that vanish") {
        return;
    }
    let directory = directory();
    let path = directory.path().join("file");
    let len = 40 << 20;
    make(&path, len);
    let manager = builder(BasePage::K64).build().expect("manager");
    let region = manager.map_file(&path).writable(true).map().expect("a disk");
    std::fs::remove_file(&path).expect("it was there");
    let mut found = [0; PAGE];
    for page in 0..len / PAGE {
        region.write_at(page * PAGE, &content(page, 3)).expect("memory");
    }
    for page in 0..len / PAGE {
        region.read_at(page * PAGE, &mut found).expect("it is there");
        assert!(found == content(page, 3), "page {page}");
    }
    region.close().expect("a disk");
}

#[test]
fn a_path_without_a_file_or_without_direct_io_is_refused() {
    if skip_without_moves("refused files") {
        return;
    }
    let directory = directory();
    let manager = builder(BasePage::K64).build().expect("manager");
    let map = |path: &Path| manager.map_file(path).map().map(|region| region.len());
    let path: PathBuf = directory.path().join("file");
    assert!(matches!(map(&path), Err(MapFileError::Open { .. })));
    assert!(matches!(map(directory.path()), Err(MapFileError::NotAFile { kind: "a directory", .. })));
    std::fs::write(&path, []).expect("room");
    assert!(matches!(map(&path), Err(MapFileError::Empty { .. })));
    if let Ok(file) = tempfile::NamedTempFile::new_in("/dev/shm") {
        make(file.path(), 3 * PAGE);
        assert!(matches!(map(file.path()), Err(MapFileError::InMemory { .. })));
        let region = manager.map_file(file.path()).buffered(true).writable(true).map().expect("allowed");
        region.write_at(0, &content(0, 9)).expect("memory");
        region.close().expect("memory");
        is_whole(file.path(), 3 * PAGE, |page| if page == 0 { 9 } else { 0 });
    }
    std::fs::write(&path, vec![1; 100]).expect("room");
    let region = manager.map_file(&path).map().expect("a disk");
    let mut found = [0; 100];
    assert!(matches!(region.read_at(1, &mut found), Err(FileError::BeyondEnd { .. })));
    region.read_at(0, &mut found).expect("a disk");
    assert_eq!(found, [1; 100]);
}

/// Runs this test binary again for `test`, in the role of one that is killed or kills itself.
fn again(test: &str, path: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("a path"));
    command.args(["--exact", test, "--nocapture"]).env(ROLE, path).stderr(Stdio::null());
    command
}

const KILLED: &str = "files::file_region::synced_writes_outlive_a_killed_process";
const KILLED_LEN: usize = (24 << 20) + 777;

/// Writes all pages as of one value after the other; says when the first is safe.
fn write_until_killed(path: &Path) {
    let manager = builder(BasePage::K64).build().expect("manager");
    let region = manager.map_file(path).writable(true).map().expect("a disk");
    for value in 1.. {
        for page in 0..KILLED_LEN.div_ceil(PAGE) {
            let here = (KILLED_LEN - page * PAGE).min(PAGE);
            region.write_at(page * PAGE, &content(page, value)[..here]).expect("memory");
        }
        if value == 1 {
            region.sync().expect("a disk");
            println!("synced");
        }
    }
}

#[test]
fn synced_writes_outlive_a_killed_process() {
    if skip_without_moves("killed processes with files") {
        return;
    }
    if let Some(path) = std::env::var_os(ROLE) {
        return write_until_killed(Path::new(&path));
    }
    let directory = directory();
    let path = directory.path().join("file");
    let mut random = Random::new(11, 0);
    let mut newer = 0;
    for _ in 0..4 {
        make(&path, KILLED_LEN);
        let mut child = again(KILLED, &path).stdout(Stdio::piped()).spawn().expect("a process");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let (says, said) = mpsc::channel();
        let reader = std::thread::spawn(move || {
            let _ = says.send(lines.map_while(Result::ok).any(|line| line.contains("synced")));
        });
        let synced = said.recv_timeout(HANG);
        if synced == Ok(true) {
            std::thread::sleep(std::time::Duration::from_millis(random.below(300) as u64));
        }
        child.kill().expect("it was not waited for");
        child.wait().expect("a process");
        reader.join().expect("it does not panic");
        assert_eq!(synced, Ok(true), "it came so far");
        let found = std::fs::read(&path).expect("it is there");
        assert_eq!(found.len(), KILLED_LEN);
        for (page, found) in found.chunks(PAGE).enumerate() {
            // As of which value, its first word tells.
            let is = |value: u64| *found == content(page, value)[..found.len()];
            let value = (1..1000).find(|value| is(*value));
            assert!(value.is_some(), "page {page} is neither as it was synced nor newer (old: {})", is(0));
            newer += usize::from(value > Some(1));
        }
    }
    println!("{newer} pages were newer");
}

const POWER: &str = "files::file_region::synced_writes_outlive_a_disk_that_loses_power";

/// An ext4 image, mounted for the command that follows, and once more after it: writes that are not
/// in its journal are lost by then. Arguments: the directory of the image, and the command.
const MOUNTED_TWICE: &str =
    "set -e; cd \"$1\"; shift; mkdir disk; truncate -s 64M image; mkfs.ext4 -q -F image
    mount -o loop image disk; \"$@\"; umount disk; mount -o loop image disk; cp disk/file file; umount disk";

/// Of the second the last OS page is written by way of the kernel's cache, which is safe by itself.
const POWER_LENS: [usize; 2] = [4 << 20, (4 << 20) + 777];
const POWER_LEN: &str = "PAGODA_FILE_REGION_LEN";

/// Writes a file of which nothing was allocated, and takes the disk away when it is said to be
/// safe.
fn sync_and_lose_power(path: &Path) {
    let len: usize = std::env::var(POWER_LEN).ok().and_then(|len| len.parse().ok()).expect("a length");
    std::fs::File::create(path).and_then(|file| file.set_len(len as u64)).expect("room");
    std::fs::File::open(path).and_then(|file| file.sync_all()).expect("a disk");
    let manager = builder(BasePage::K64).build().expect("manager");
    let region = manager.map_file(path).writable(true).map().expect("a disk");
    let write = |page: usize, value| {
        let here = (len - page * PAGE).min(PAGE);
        region.write_at(page * PAGE, &content(page, value)[..here]).expect("memory");
    };
    (0..len.div_ceil(PAGE)).for_each(|page| write(page, 1));
    region.sync().expect("a disk");
    let directory = std::fs::File::open(path.parent().expect("a directory")).expect("it is there");
    shut_down_ext4(&directory).expect("an ext4");
    write(0, 2);
    assert!(matches!(region.sync(), Err(FileError::Unwritten { .. } | FileError::Unsafe { .. })));
}

#[test]
fn synced_writes_outlive_a_disk_that_loses_power() {
    if skip_without_moves("a disk that loses power") {
        return;
    }
    if let Some(path) = std::env::var_os(ROLE) {
        return sync_and_lose_power(Path::new(&path));
    }
    for len in POWER_LENS {
        let directory = directory();
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", MOUNTED_TWICE, "sh"]).arg(directory.path());
        command.arg(std::env::current_exe().expect("a path"));
        command
            .args(["--exact", POWER, "--nocapture"])
            .env(ROLE, "disk/file")
            .env(POWER_LEN, len.to_string());
        let output = match command.output() {
            Ok(output) => output,
            Err(error) => return skip("a disk that loses power", format!("unshare does not start: {error}")),
        };
        if !directory.path().join("file").exists() {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            let is_ours = String::from_utf8_lossy(&output.stdout).contains(POWER);
            assert!(!is_ours, "{said}");
            return skip("a disk that loses power", format!("no image can be mounted here: {}", said.trim()));
        }
        is_whole(&directory.path().join("file"), len, |_| 1);
    }
}

const LOST: &str = "files::file_region::touching_a_cut_off_page_is_a_bus_error";

#[test]
fn touching_a_cut_off_page_is_a_bus_error() {
    if skip_without_moves("bus errors of files") {
        return;
    }
    let Some(role) = std::env::var_os(ROLE) else {
        let directory = directory();
        for way in ["handler", "in-thread"] {
            let path = directory.path().join(way);
            make(&path, 4 << 20);
            let mut child = again(LOST, &path).stdout(Stdio::null()).spawn().expect("a process");
            let status = until_ended(way, &mut child).expect("waited for");
            assert_eq!(status.signal(), Some(libc::SIGBUS), "{way}: {status}");
        }
        return;
    };
    let path = Path::new(&role);
    let in_thread = path.ends_with("in-thread");
    let manager = builder(BasePage::K64).serve_in_thread(in_thread).build().expect("manager");
    let region = manager.map_file(path).map().expect("a disk");
    let mut found = [0; PAGE];
    region.read_at(0, &mut found).expect("a disk");
    let file = std::fs::OpenOptions::new().write(true).open(path).expect("it is there");
    file.set_len(1 << 20).expect("a disk");
    // Bytes before the end are read, by address, too; an access behind it ends the process.
    for offset in [0, (1 << 20) - 1, 2 << 20] {
        let [byte] = load(region.as_ptr().wrapping_add(offset));
        assert_eq!(byte, content(offset / PAGE, 0)[offset % PAGE], "at {offset}");
    }
    std::process::exit(3);
}
