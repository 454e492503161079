//! Images that lie elsewhere: read through [`RemoteFile`], whose copies may be damaged.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::support::{memory, packed, scratch};
use pagoda_image::{Image, ImageError, Key, PackOptions, RemoteFile, Touch, WorkingSet};

fn key() -> Key {
    Key::new([5; 32])
}

/// A file of this machine as if it were elsewhere, with damaged bytes in the copies of it.
struct Elsewhere {
    path: PathBuf,
    damaged: Arc<Mutex<Vec<Range<u64>>>>,
    forgotten: Arc<AtomicU64>,
}

impl Elsewhere {
    fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), damaged: Arc::default(), forgotten: Arc::default() }
    }
}

impl RemoteFile for Elsewhere {
    fn name(&self) -> &Path {
        &self.path
    }
    fn len_bytes(&self) -> u64 {
        fs::metadata(&self.path).expect("there").len()
    }
    fn read_exact_at(&self, into: &mut [u8], at: u64) -> io::Result<()> {
        into.copy_from_slice(&fs::read(&self.path)?[at as usize..][..into.len()]);
        for (byte, at) in into.iter_mut().zip(at..) {
            *byte ^= u8::from(self.damaged.lock().expect("whole").iter().any(|range| range.contains(&at)));
        }
        Ok(())
    }
    fn forget(&self, range: Range<u64>) {
        self.forgotten.fetch_add(1, Ordering::Relaxed);
        self.damaged
            .lock()
            .expect("whole")
            .retain(|damaged| damaged.end <= range.start || damaged.start >= range.end);
    }
    fn open_beside(&self, name: &OsStr) -> io::Result<Box<dyn RemoteFile>> {
        let path = self.path.with_file_name(name);
        fs::metadata(&path)?;
        Ok(Box::new(Self::new(&path)))
    }
    fn open_suffixed(&self, suffix: &str) -> io::Result<Box<dyn RemoteFile>> {
        self.open_beside(OsStr::new(&format!("{}{suffix}", self.path.file_name().expect("a name").display())))
    }
}

#[test]
fn a_remote_image_reads_as_a_local_one_with_its_base_and_working_set() {
    let (_directory, path) = scratch();
    let base_memory = memory(64, 1);
    packed(&base_memory, &path, PackOptions::new(key()));
    let base = Arc::new(Image::open(&path, Some(key())).expect("the base"));
    let mut changed = base_memory.clone();
    changed[20 * 4096..20 * 4096 + 5].copy_from_slice(b"other");
    let later = path.with_file_name("later.pim");
    packed(&changed, &later, PackOptions { base: Some(base), ..PackOptions::new(key()) });
    let local = Image::open(&later, Some(key())).expect("local");
    WorkingSet::record(&local, &[Touch { block: 5, at_us: 0 }]).expect("recorded");

    let image = Image::open_remote(Box::new(Elsewhere::new(&later)), key(), None).expect("remote");
    let mut found = vec![1; changed.len()];
    image.read_at(0, &mut found).expect("read");
    assert!(found == changed);
    assert_eq!(image.file_bytes().expect("known"), fs::metadata(&later).expect("there").len());
    let set = image.working_set().expect("beside it");
    let mut blocks = Vec::new();
    set.read(&image, 0..1, &mut |touch, content| blocks.push((touch.block, content.to_vec()))).expect("read");
    assert_eq!(blocks, [(5, changed[5 * 16384..6 * 16384].to_vec())]);
    assert!(WorkingSet::record(&image, set.touches()).is_err(), "nothing is written on a server");

    fs::remove_file(&path).expect("removed");
    let missing = Image::open_remote(Box::new(Elsewhere::new(&later)), key(), None);
    assert!(matches!(missing, Err(ImageError::NoBase { .. })));
}

#[test]
fn a_damaged_copy_is_had_again_and_a_damaged_original_is_an_error() {
    let (_directory, path) = scratch();
    let content: Vec<u8> =
        (0..64 * 4096u32).flat_map(|i| (i.wrapping_mul(2_654_435_761)).to_le_bytes()).collect();
    packed(&content, &path, PackOptions::new(key()));
    let len = fs::metadata(&path).expect("there").len();
    // The header, the index at the end, and a block between them.
    for damaged in [40, len - 50, 100_000] {
        let file = Elsewhere::new(&path);
        file.damaged.lock().expect("whole").push(damaged..damaged + 1);
        let forgotten = Arc::clone(&file.forgotten);
        let image = Image::open_remote(Box::new(file), key(), None).expect("had again");
        let mut found = vec![1; content.len()];
        image.read_at(0, &mut found).expect("had again");
        assert!(found == content);
        assert_eq!(forgotten.load(Ordering::Relaxed), 1);
    }
    let file = Elsewhere::new(&path);
    let image = Image::open_remote(Box::new(file), key(), None).expect("opened");
    let mut bytes = fs::read(&path).expect("read");
    bytes[100_000] ^= 1;
    fs::write(&path, bytes).expect("written");
    let mut found = vec![1; content.len()];
    assert!(matches!(image.read_at(0, &mut found), Err(ImageError::DamagedBlock { .. })));
    assert!(found.iter().all(|&byte| byte == 0));
}
