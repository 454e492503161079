//! Files with holes: where their data lies, and how a range becomes a hole again.
//!
//! Where a file system does not know holes, all of a file is data and a hole is written as zeroes:
//! slower, and never wrong.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use rustix::fs::{FallocateFlags, SeekFrom, fallocate, fstatfs, seek};
use rustix::io::Errno;

/// The first range of data that lies in `range` of the file, clipped to it; None if there is none,
/// as beyond the end.
///
/// Several threads may ask at once: it moves the file's position, which no other code may use
/// meanwhile.
///
/// # Errors
/// Those of lseek(2).
pub fn data_in(file: &File, range: Range<u64>) -> io::Result<Option<Range<u64>>> {
    if range.is_empty() {
        return Ok(None);
    }
    let start = match seek(file, SeekFrom::Data(range.start)) {
        Ok(start) if start < range.end => start,
        Ok(_) | Err(Errno::NXIO) => return Ok(None),
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(Some(range)),
        Err(error) => return Err(error.into()),
    };
    match seek(file, SeekFrom::Hole(start)) {
        Ok(end) => Ok(Some(start..end.min(range.end))),
        // It was cut off between the two.
        Err(Errno::NXIO) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Whether the kernel makes the file's content on each read, as in /proc and /sys. Its size says
/// nothing about its content.
///
/// # Errors
/// Those of fstatfs(2), fstat(2) or pread(2).
pub fn is_made_on_reading(file: &File) -> io::Result<bool> {
    /// `SYSFS_MAGIC` of linux/magic.h: its files claim the size of a page.
    const SYSFS: u32 = 0x6265_6572;
    if fstatfs(file)?.f_type as u32 == SYSFS {
        return Ok(true);
    }
    // All other such file systems give no size.
    Ok(file.metadata()?.len() == 0 && file.read_at(&mut [0], 0)? > 0)
}

/// Makes `range` of the file a hole: it reads as zero and takes no space. The length of the file
/// stays.
///
/// # Errors
/// Those of fallocate(2), or, where the file system has no holes, write(2).
pub fn make_hole(file: &File, range: Range<u64>) -> io::Result<()> {
    if range.is_empty() {
        return Ok(());
    }
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    loop {
        return match fallocate(file, flags, range.start, range.end - range.start) {
            Err(Errno::INTR) => continue,
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => write_zeroes(file, range),
            outcome => Ok(outcome?),
        };
    }
}

/// Writes zeroes over `range` of the file.
///
/// # Errors
/// Those of write(2).
pub fn write_zeroes(file: &File, range: Range<u64>) -> io::Result<()> {
    static ZEROES: [u8; 64 << 10] = [0; 64 << 10];
    let mut at = range.start;
    while at < range.end {
        let len = ZEROES.len().min(usize::try_from(range.end - at).unwrap_or(usize::MAX));
        file.write_all_at(&ZEROES[..len], at)?;
        at += len as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn data_is_found_between_holes_and_can_become_one() {
        let file = tempfile::tempfile_in("/var/tmp").expect("a file");
        file.set_len(1 << 40).expect("a sparse file");
        let data = (1 << 39)..(1 << 39) + 8192;
        file.write_all_at(&[1; 8192], data.start).expect("written");
        assert_eq!(data_in(&file, 0..1 << 40).expect("asked"), Some(data.clone()));
        assert_eq!(data_in(&file, 0..data.start + 4096).expect("asked"), Some(data.start..data.start + 4096));
        assert_eq!(data_in(&file, data.end..1 << 40).expect("asked"), None);
        assert_eq!(data_in(&file, 1 << 41..1 << 42).expect("asked"), None);
        write_zeroes(&file, data.start..data.start + 1).expect("written");
        let mut back = [9; 2];
        file.read_exact_at(&mut back, data.start).expect("read");
        assert_eq!(back, [0, 1]);
        make_hole(&file, data.clone()).expect("a hole");
        assert_eq!(data_in(&file, 0..1 << 40).expect("asked"), None);
        file.read_exact_at(&mut back, data.start).expect("read");
        let metadata = file.metadata().expect("metadata");
        assert_eq!((back, metadata.len(), metadata.blocks()), ([0, 0], 1 << 40, 0));
    }

    #[test]
    fn files_of_proc_and_sys_are_made_on_reading_and_empty_ones_are_not() {
        let made = |path: &str| is_made_on_reading(&File::open(path).expect("there")).expect("asked");
        assert!(made("/proc/self/maps") && made("/sys/kernel/mm/transparent_hugepage/enabled"));
        let file = tempfile::tempfile_in("/var/tmp").expect("a file");
        assert!(!is_made_on_reading(&file).expect("asked"));
        file.write_all_at(b"content", 0).expect("written");
        assert!(!is_made_on_reading(&file).expect("asked"));
    }
}
