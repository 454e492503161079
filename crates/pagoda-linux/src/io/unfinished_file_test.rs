use std::io::Write;

use super::*;
use crate::testing::directory::names;

#[test]
fn a_file_has_its_name_when_it_is_finished_and_not_before() {
    let directory = tempfile::tempdir_in("/var/tmp").expect("a directory");
    let path = directory.path().join("image");
    for create in [UnfinishedFile::create, UnfinishedFile::create_hidden] {
        let unfinished = create(&path).expect("created");
        unfinished.file().write_all(b"content").expect("written");
        assert!(!path.exists());
        drop(unfinished);
        assert!(names(directory.path()).is_empty(), "nothing stays");
        let unfinished = create(&path).expect("created");
        unfinished.file().write_all(b"content").expect("written");
        unfinished.publish().expect("published");
        assert_eq!(names(directory.path()), ["image"]);
        assert_eq!(fs::read(&path).expect("read"), b"content");
        fs::remove_file(&path).expect("removed");
    }
}

#[test]
fn an_existing_file_is_never_replaced() {
    let directory = tempfile::tempdir_in("/var/tmp").expect("a directory");
    let path = directory.path().join("image");
    for create in [UnfinishedFile::create, UnfinishedFile::create_hidden] {
        let unfinished = create(&path).expect("created");
        fs::write(&path, b"another's").expect("written");
        let exists = |error: io::Error| error.kind() == io::ErrorKind::AlreadyExists;
        assert!(unfinished.publish().is_err_and(exists));
        assert!(UnfinishedFile::create(&path).is_err_and(exists));
        assert_eq!(fs::read(&path).expect("read"), b"another's");
        assert_eq!(names(directory.path()), ["image"]);
        fs::remove_file(&path).expect("removed");
    }
}

#[test]
fn a_file_is_replaced_only_by_a_finished_one_that_was_made_for_that() {
    let directory = tempfile::tempdir_in("/var/tmp").expect("a directory");
    let path = directory.path().join("image");
    for content in [b"older", b"newer"] {
        let before = fs::read(&path).ok();
        let unfinished = UnfinishedFile::create_to_replace(&path).expect("created");
        unfinished.file().write_all(content).expect("written");
        assert_eq!(fs::read(&path).ok(), before);
        unfinished.publish().expect("published");
        assert_eq!(fs::read(&path).expect("read"), content);
        drop(UnfinishedFile::create_to_replace(&path).expect("created"));
        assert_eq!(names(directory.path()), ["image"]);
    }
}

#[test]
fn a_file_that_is_not_surely_on_disk_is_not_shown() {
    use rustix::process::{Resource, Rlimit, setrlimit};

    use crate::testing::process::{fork, wait};

    let directory = tempfile::tempdir_in("/var/tmp").expect("a directory");
    let path = directory.path().join("image");
    for create in [UnfinishedFile::create, UnfinishedFile::create_hidden] {
        let mut unfinished = create(&path).ok();
        // In a child, because no descriptor can be had there any more: not the directory's,
        // either.
        let publish = || {
            let none = Rlimit { current: Some(0), maximum: Some(0) };
            let limited = setrlimit(Resource::Nofile, none).is_ok();
            let published = unfinished.take().map(UnfinishedFile::publish);
            i32::from(!limited || !matches!(published, Some(Err(_))))
        };
        let ended = wait(fork(publish).expect("a child")).expect("waited for");
        assert_eq!(ended.exit_status(), Some(0), "it is an error");
        drop(unfinished);
        assert!(names(directory.path()).is_empty(), "and nothing is there");
    }
}
