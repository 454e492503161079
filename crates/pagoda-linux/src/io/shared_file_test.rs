use super::*;
use std::sync::atomic::Ordering;

#[test]
fn one_mapping_sees_the_others_writes_and_a_foreign_file_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("counters");
    let writer = SharedWords::create(&path, 2).expect("create");
    let reader = SharedWords::open(&path, 2).expect("open");
    writer[1].store(7, Ordering::Relaxed);
    drop(writer);
    assert_eq!((reader[0].load(Ordering::Relaxed), reader[1].load(Ordering::Relaxed)), (0, 7));
    assert!(SharedWords::create(&path, 2).is_err(), "an existing file is never taken over");
    std::fs::write(&path, b"short").expect("write");
    assert!(SharedWords::open(&path, 2).is_err());
}

#[test]
fn a_nameless_file_is_shared_by_its_path_and_gone_with_its_maker() {
    let maker = NamelessWords::create(c"test", 600).expect("create");
    assert!(own_memory::is_own(maker.words.range()));
    let (path, other) = (maker.path(), SharedWords::open(&maker.path(), 600).expect("open"));
    other[599].store(7, Ordering::Relaxed);
    assert_eq!(maker[599].load(Ordering::Relaxed), 7);
    assert!(SharedWords::open(&path, 1200).is_err(), "of another version");
    for bytes in [0, 1 << 20] {
        assert!(maker.file.set_len(bytes).is_err(), "a reader would be killed");
    }
    drop(maker);
    assert!(SharedWords::open(&path, 600).is_err());
    assert_eq!(other[599].load(Ordering::Relaxed), 7, "a mapping keeps it");
}

#[test]
fn a_nameless_file_that_its_maker_can_cut_is_refused() {
    let file = File::from(memfd_create(c"test", MemfdFlags::CLOEXEC).expect("memory"));
    file.set_len(SharedWords::bytes(600) as u64).expect("as long as ours");
    let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    assert!(SharedWords::open(Path::new(&path), 600).is_err());
}

#[test]
fn a_file_that_another_could_have_put_there_is_not_mapped() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("tree");
    drop(SharedWords::create(&path, 600).expect("create"));
    let why = |path: &Path| SharedWords::open(path, 600).err().map(|error| error.to_string());
    assert_eq!(why(&path), None);
    let mode = |mode| std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).expect("mode");
    mode(0o666);
    assert!(why(&path).is_some_and(|why| why.contains("others than its user")));
    mode(0o600);
    let (link, second) = (dir.path().join("link"), dir.path().join("second"));
    std::os::unix::fs::symlink(&path, &link).expect("linked");
    assert!(why(&link).is_some_and(|why| why.contains("a link")));
    std::fs::hard_link(&path, &second).expect("a second name");
    assert!(why(&path).is_some_and(|why| why.contains("another name")));
    std::fs::remove_file(&second).expect("removed");
    assert_eq!(why(&path), None);
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&path, Some(65534), None).expect("given away");
        assert!(why(&path).is_some_and(|why| why.contains("another user")));
    }
}

#[test]
fn a_look_sees_the_written_words_and_takes_no_other_file() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("counters");
    let writer = SharedWords::create(&path, 600).expect("create");
    writer[511].store(9, Ordering::Relaxed);
    let look = WordFile::open(&path, 600).expect("open");
    assert_eq!(look.read(510, 3).expect("read"), [0, 9, 0]);
    let flags = rustix::fs::fcntl_getfl(&look.file).expect("flags");
    assert_eq!(flags & OFlags::RWMODE, OFlags::RDONLY, "a look can change nothing");
    let why = |path: &Path, words| WordFile::open(path, words).err().expect("refused").to_string();
    assert!(why(&path, 1200).contains("another length"));
    let (link, pipe, open) = (dir.path().join("link"), dir.path().join("pipe"), dir.path().join("open"));
    std::os::unix::fs::symlink(&path, &link).expect("linked");
    assert!(WordFile::open(&link, 600).is_err());
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &pipe,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .expect("a pipe");
    assert!(why(&pipe, 600).contains("no plain file"));
    std::fs::write(&open, vec![0; 8192]).expect("written");
    std::fs::set_permissions(&open, std::os::unix::fs::PermissionsExt::from_mode(0o644)).expect("mode");
    assert!(why(&open, 600).contains("others than its user"));
    std::fs::OpenOptions::new().write(true).open(&path).expect("open").set_len(100).expect("cut");
    assert!(look.read(510, 3).is_err(), "cut short under the reader");
}
