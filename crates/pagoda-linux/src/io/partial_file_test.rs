use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};

use super::*;
use crate::testing::directory::names;

#[test]
fn a_file_stays_until_it_has_its_name_and_belongs_to_one_process_at_a_time() {
    let directory = tempfile::tempdir_in("/var/tmp").expect("a directory");
    let path = directory.path().join("image");
    let first = PartialFile::open(&path).expect("made");
    first.file().write_all(b"one ").expect("written");
    let second = PartialFile::open(&path).map(drop).expect_err("it is taken");
    assert_eq!(second.kind(), io::ErrorKind::ResourceBusy);
    drop(first);
    assert_eq!(names(directory.path()), ["image.partial"]);
    let again = PartialFile::open(&path).expect("there");
    assert_eq!(again.file().metadata().expect("metadata").len(), 4);
    again.publish().expect("published");
    assert_eq!(names(directory.path()), ["image"]);
    let exists = PartialFile::open(&path).map(drop).expect_err("it has its name");
    assert_eq!(exists.kind(), io::ErrorKind::AlreadyExists);
}

#[test]
fn a_file_that_was_published_meanwhile_is_not_gone_on_with() {
    let directory = tempfile::tempdir_in("/var/tmp").expect("a directory");
    let path = directory.path().join("image");
    let first = PartialFile::open(&path).expect("made");
    let second = PartialFile::opened(&path).expect("it is not locked yet");
    first.publish().expect("published");
    let error = second.locked().map(drop).expect_err("it has its name");
    assert_eq!(error.kind(), io::ErrorKind::ResourceBusy);
    assert_eq!(names(directory.path()), ["image"]);
}

#[test]
fn nothing_but_a_file_of_this_users_alone_is_gone_on_with() {
    let directory = tempfile::tempdir_in("/var/tmp").expect("a directory");
    let path = directory.path().join("image");
    let partial = directory.path().join("image.partial");
    let other = directory.path().join("other");
    fs::write(&other, b"another's").expect("written");
    symlink(&other, &partial).expect("a link");
    assert!(PartialFile::open(&path).is_err(), "a link");
    fs::remove_file(&partial).expect("removed");
    fs::hard_link(&other, &partial).expect("a link");
    fs::set_permissions(&other, fs::Permissions::from_mode(0o600)).expect("set");
    assert!(PartialFile::open(&path).is_err(), "a file with another name");
    fs::remove_file(&other).expect("removed");
    fs::set_permissions(&partial, fs::Permissions::from_mode(0o644)).expect("set");
    assert!(PartialFile::open(&path).is_err(), "a file that others read");
    fs::set_permissions(&partial, fs::Permissions::from_mode(0o600)).expect("set");
    let file = PartialFile::open(&path).expect("a file of our own");
    fs::rename(&partial, &other).expect("renamed");
    fs::write(&partial, b"something else").expect("written");
    assert!(file.publish().is_err(), "it was replaced");
    assert!(!path.exists());
}
