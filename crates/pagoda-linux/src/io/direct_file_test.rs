use super::*;

/// A directory on a disk.
pub(crate) fn disk() -> tempfile::TempDir {
    tempfile::tempdir_in(crate::testing::directory::on_disk()).expect("a directory")
}

#[test]
fn written_bytes_are_read_and_leave_no_name() {
    let directory = disk();
    let file = DirectFile::create_in(directory.path()).expect("a disk");
    let mut buffer = AlignedBuffer::new(2 * ALIGN);
    buffer[5000] = 7;
    file.write_at(3 * ALIGN as u64, &buffer).expect("room");
    buffer.fill(1);
    file.read_at(3 * ALIGN as u64, &mut buffer).expect("the written bytes");
    assert_eq!((buffer[5000], buffer[4999]), (7, 0));
    assert_eq!(file.read_at(4 * ALIGN as u64, &mut buffer), Err(FileError::Short));
    assert!(matches!(file.write_at(1, &buffer), Err(FileError::Os(_))));
    let reader = file.for_reading().expect("the same file");
    drop(file);
    reader.read_at(3 * ALIGN as u64, &mut buffer).expect("the written bytes");
    assert_eq!((buffer[5000], buffer[4999]), (7, 0));
    assert!(matches!(reader.write_at(3 * ALIGN as u64, &buffer), Err(FileError::Os(_))));
    assert_eq!(directory.path().read_dir().expect("readable").count(), 0);
}

#[test]
fn a_full_disk_is_told_from_other_failures() {
    let open = |mode| DirectFile::from(fs::openat(CWD, c"/dev/full", mode, Mode::empty()).expect("a device"));
    assert_eq!(open(OFlags::RDWR).write_at(0, &[0; ALIGN]), Err(FileError::Full));
    let error = open(OFlags::RDONLY).write_at(0, &[0; ALIGN]).expect_err("read only");
    assert!(error.to_string().contains("Bad file descriptor"), "{error}");
}

#[test]
fn without_nameless_files_the_name_is_gone_at_once() {
    let directory = disk();
    let mode = OFlags::PATH | OFlags::DIRECTORY;
    let at = fs::openat(CWD, directory.path(), mode, Mode::empty()).expect("a directory");
    let (one, two) = (create_and_unlink(&at).expect("room"), create_and_unlink(&at).expect("room"));
    assert_ne!(fs::fstat(one).expect("open").st_ino, fs::fstat(two).expect("open").st_ino);
    assert_eq!(directory.path().read_dir().expect("readable").count(), 0);
}

#[test]
fn memory_is_refused_by_name_and_by_behaviour() {
    if Path::new("/dev/shm").is_dir() {
        let error = DirectFile::create_in(Path::new("/dev/shm")).expect_err("tmpfs");
        assert!(matches!(error, DirectFileError::InMemory { filesystem: "tmpfs", .. }), "{error}");
    }
    let fd = fs::memfd_create(c"probe", fs::MemfdFlags::CLOEXEC).expect("a file in memory");
    if fs::fcntl_setfl(&fd, OFlags::DIRECT).is_ok() {
        assert_eq!(DirectFile { fd }.leaves_the_page_cache_alone(), Ok(false));
    }
}

#[test]
fn the_advice_is_that_for_the_cause() {
    for (cause, advice) in [
        (Errno::MFILE, "ulimit -n"),
        (Errno::NFILE, "fs.file-max"),
        (Errno::FBIG, "ulimit -f"),
        (Errno::NOSPC, "make room there"),
        (Errno::DQUOT, "make room there"),
        (Errno::ACCESS, "that this user can write to"),
        (Errno::ROFS, "that this user can write to"),
    ] {
        let error = DirectFileError::Create { directory: "/there".into(), source: cause.into() };
        let said = error.to_string();
        assert!(said.starts_with("can't create a spill file in /there: ") && said.contains(advice), "{said}");
    }
}

#[test]
fn a_directory_that_is_missing_or_not_one_says_so() {
    let directory = disk();
    std::fs::write(directory.path().join("file"), b"").expect("room");
    for name in ["missing", "file"] {
        let error = DirectFile::create_in(&directory.path().join(name)).expect_err(name);
        assert!(
            matches!(error, DirectFileError::Create { .. }) && error.to_string().contains(name),
            "{error}"
        );
    }
    // Not even root can create a file there.
    let error = DirectFile::create_in(Path::new("/proc/self")).expect_err("no files here");
    assert!(matches!(error, DirectFileError::Create { .. }), "{error}");
}
