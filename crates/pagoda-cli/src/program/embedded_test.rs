use std::os::unix::fs::{PermissionsExt, symlink};

use tempfile::TempDir;

use super::*;

const LIBRARY: Embedded = Embedded { name: "libpagoda_preload-0.1.0-new.so", content: b"the library" };

/// A directory of this user's that the loader would take files from.
fn scratch() -> TempDir {
    tempfile::Builder::new().prefix("pagoda").tempdir_in("/var/tmp").expect("a directory")
}

fn place(directory: &Path) -> Result<PathBuf, String> {
    LIBRARY.place([directory.to_owned()])
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("there").mode() & 0o777
}

#[test]
fn it_is_written_once_for_this_user_alone() {
    let scratch = scratch();
    let path = place(&scratch.path().join("cache/pagoda")).expect("placed");
    assert_eq!(fs::read(&path).expect("there"), LIBRARY.content);
    assert_eq!(mode(path.parent().expect("a directory")), 0o700);
    assert_eq!(mode(&path), 0o600);
    let inode = fs::metadata(&path).expect("there").ino();
    assert_eq!(place(&scratch.path().join("cache/pagoda")).expect("found"), path);
    assert_eq!(fs::metadata(&path).expect("there").ino(), inode);
}

#[test]
fn a_file_that_is_not_the_library_is_replaced() {
    let scratch = scratch();
    let directory = scratch.path().join("pagoda");
    let path = place(&directory).expect("placed");
    let other = scratch.path().join("other");
    for spoil in [
        &|| fs::write(&path, "the Library").expect("written"),
        &|| fs::write(&path, "the library and more").expect("written"),
        &|| fs::set_permissions(&path, fs::Permissions::from_mode(0o620)).expect("set"),
        &|| {
            fs::write(&other, LIBRARY.content).expect("written");
            fs::remove_file(&path).expect("there");
            symlink(&other, &path).expect("made");
        },
    ] as [&dyn Fn(); 4]
    {
        spoil();
        assert_eq!(place(&directory).as_ref(), Ok(&path));
        assert_eq!(fs::read(&path).expect("there"), LIBRARY.content);
        assert!(fs::symlink_metadata(&path).expect("there").is_file() && mode(&path) == 0o600);
    }
}

#[test]
fn a_directory_that_another_user_could_change_is_passed_over() {
    let scratch = scratch();
    let (open, below_open) = (scratch.path().join("open"), scratch.path().join("public/pagoda"));
    for (directory, mode) in [(&open, 0o777), (&below_open.parent().expect("one").to_owned(), 0o777)] {
        fs::create_dir(directory).expect("made");
        fs::set_permissions(directory, fs::Permissions::from_mode(mode)).expect("set");
    }
    let link = scratch.path().join("link");
    fs::create_dir(scratch.path().join("aim")).expect("made");
    symlink(scratch.path().join("aim"), &link).expect("made");
    let good = scratch.path().join("good");
    let path = LIBRARY.place([open.clone(), below_open.clone(), link, good.clone()]).expect("placed");
    assert_eq!(path.parent(), Some(good.as_path()));
    assert!(!below_open.exists(), "it is not even made");
    assert_eq!(fs::read_dir(scratch.path().join("aim")).expect("there").count(), 0);
    let reasons = LIBRARY.place([open, below_open]).expect_err("neither is private");
    assert!(reasons.contains("this user alone") && reasons.contains("other users can change"), "{reasons}");
}

#[test]
fn a_path_that_the_loader_does_not_take_is_passed_over() {
    let scratch = scratch();
    let reason = place(&scratch.path().join("a b/pagoda")).expect_err("a space");
    assert!(reason.contains("space"), "{reason}");
}

#[test]
fn only_the_builds_that_were_used_last_are_kept() {
    let scratch = scratch();
    let directory = scratch.path().join("pagoda");
    fs::create_dir(&directory).expect("made");
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o700)).expect("set");
    for age in 1..=BUILDS_MAX as u64 + 2 {
        let file = File::create(directory.join(format!("{PREFIX}{age}.so"))).expect("made");
        let then = SystemTime::now() - std::time::Duration::from_secs(60 * age);
        file.set_modified(then).expect("set");
    }
    fs::write(directory.join("not ours"), "").expect("written");
    place(&directory).expect("placed");
    let names = fs::read_dir(&directory).expect("there").flatten().map(|entry| entry.file_name());
    let mut names: Vec<_> = names.map(|name| name.into_string().expect("text")).collect();
    names.sort_unstable();
    let kept = [1, 2, 3].map(|age| format!("{PREFIX}{age}.so"));
    let mut expected = vec![LIBRARY.name.to_owned(), "not ours".to_owned()];
    expected.extend(kept);
    expected.sort_unstable();
    assert_eq!(names, expected);
}
