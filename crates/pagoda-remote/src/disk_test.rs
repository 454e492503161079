use super::*;

fn piece(number: u64) -> Vec<u8> {
    vec![number as u8; 1000]
}

fn bytes_in(directory: &Path) -> u64 {
    let entries = fs::read_dir(directory).expect("a directory").flatten();
    let pieces = entries.filter(|entry| entry.file_name().as_encoded_bytes().ends_with(SUFFIX.as_bytes()));
    pieces.map(|entry| entry.metadata().expect("there").len()).sum()
}

#[test]
fn two_caches_of_one_directory_keep_its_bound() {
    let directory = tempfile::tempdir().expect("a directory");
    fs::write(directory.path().join("foreign"), [0; 5000]).expect("written");
    let limit = Bytes::new(20 * 1008);
    for round in 0..10 {
        let caches = [0, 1].map(|_| Disk::open(directory.path(), limit).expect("a cache"));
        for number in 0..10 {
            caches.iter().zip([1, 2]).for_each(|(cache, file)| {
                cache.keep(file, round * 10 + number, &piece(number));
            });
        }
        drop(caches);
        assert!(bytes_in(directory.path()) <= limit.get());
    }
    assert_eq!(fs::read(directory.path().join("foreign")).expect("not ours").len(), 5000);
    drop(Disk::open(directory.path(), Bytes::new(3000)).expect("a smaller bound"));
    assert!(bytes_in(directory.path()) <= 3000);
}

#[test]
fn pieces_that_were_not_used_for_the_longest_time_go_first() {
    let directory = tempfile::tempdir().expect("a directory");
    let limit = Bytes::new(8 * 1008);
    let open = || Disk::open(directory.path(), limit).expect("a cache");
    let cache = open();
    (0..8).for_each(|number| cache.keep(1, number, &piece(number)));
    drop(cache);
    let cache = open();
    for number in 0..8 {
        let file = File::options().write(true).open(cache.path_of(1, number)).expect("there");
        file.set_modified(SystemTime::now() - Duration::from_secs(1000 - number)).expect("set");
    }
    assert_eq!(cache.load(1, 0), Some(piece(0)), "now it is the newest");
    cache.keep(1, 8, &piece(8));
    drop(cache);
    let cache = open();
    let there: Vec<u64> = (0..9).filter(|&number| cache.load(1, number).is_some()).collect();
    assert_eq!(there, [0, 3, 4, 5, 6, 7, 8]);
}

#[test]
fn a_damaged_piece_is_a_missing_one() {
    let directory = tempfile::tempdir().expect("a directory");
    let cache = Disk::open(directory.path(), Bytes::mib(1)).expect("a cache");
    for number in 0..4 {
        cache.keep(7, number, &piece(number));
    }
    drop(cache);
    let cache = Disk::open(directory.path(), Bytes::mib(1)).expect("a cache");
    let path = |number| cache.path_of(7, number);
    let mut bytes = fs::read(path(0)).expect("there");
    bytes[500] ^= 1;
    fs::write(path(0), &bytes).expect("written");
    fs::write(path(1), &bytes[..3]).expect("written");
    fs::rename(path(3), path(2)).expect("renamed");
    for number in 0..4 {
        assert_eq!(cache.load(7, number), None, "{number}");
    }
    assert!(!path(0).exists(), "it is removed");
    cache.keep(7, 0, &piece(0));
    drop(cache);
    let cache = Disk::open(directory.path(), Bytes::mib(1)).expect("a cache");
    assert_eq!(cache.load(7, 0), Some(piece(0)));
    cache.forget(7, 0..1);
    assert_eq!(cache.load(7, 0), None);
}
