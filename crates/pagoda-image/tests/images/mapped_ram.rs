//! Importing QEMU's migration files: as QEMU lays them out, and with bytes changed.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use pagoda_image::import::{MappedRam, RawMemory, is_mapped_ram};

/// A file as QEMU 9 writes it: the configuration with two subsections, and two blocks of memory.
fn write_file(path: &Path) -> Vec<u8> {
    let mut head = b"QEVM".to_vec();
    let mut put = |bytes: &[u8]| head.extend_from_slice(bytes);
    put(&3u32.to_be_bytes());
    put(&[7]);
    put(&10u32.to_be_bytes());
    put(b"pc-q35-9.2");
    for (name, content) in [
        ("configuration/target-page-bits", &12u32.to_be_bytes()[..]),
        ("configuration/capabilities", b"\0\0\0\x01\x0amapped-ram"),
    ] {
        put(&[5, name.len() as u8]);
        put(name.as_bytes());
        put(&1u32.to_be_bytes());
        put(content);
    }
    put(&[1]);
    put(&2u32.to_be_bytes());
    put(&[3]);
    put(b"ram");
    put(&0u32.to_be_bytes());
    put(&4u32.to_be_bytes());
    let (ram, rom) = (3u64 << 20, 65536u64);
    put(&((ram + rom) | 4).to_be_bytes());
    let file = File::create(path).expect("a file");
    let mut memory = vec![0; ram as usize];
    for (name, len, is_ram) in [("pc.ram", ram, true), ("pc.rom", rom, false)] {
        head.push(name.len() as u8);
        head.extend_from_slice(name.as_bytes());
        head.extend_from_slice(&len.to_be_bytes());
        let at = if is_ram { 0 } else { (1 << 20) + ram };
        let bitmap_at = at + head.len() as u64 + 28;
        let pages_at = (bitmap_at + 96).next_multiple_of(1 << 20);
        head.extend_from_slice(&1u32.to_be_bytes());
        for field in [4096, bitmap_at, pages_at] {
            head.extend_from_slice(&field.to_be_bytes());
        }
        file.write_all_at(&head, at).expect("written");
        head.clear();
        let mut bitmap = [0u8; 96];
        for page in (0..if is_ram { 768 } else { 0 }).filter(|page| page % 7 == 2 || page / 100 == 3) {
            bitmap[page / 8] |= 1 << (page % 8);
            let content = [page as u8; 4096];
            file.write_all_at(&content, pages_at + page as u64 * 4096).expect("written");
            memory[page * 4096..][..4096].copy_from_slice(&content);
        }
        file.write_all_at(&bitmap, bitmap_at).expect("written");
        // Left over from before the page became zero.
        file.write_all_at(&[9; 4096], pages_at).expect("written");
    }
    file.set_len(6 << 20).expect("the devices");
    memory
}

#[test]
fn the_longest_block_is_the_memory_and_unset_pages_are_zero() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("migration");
    let memory = write_file(&path);
    assert!(is_mapped_ram(&path).expect("asked"));
    let ram = MappedRam::open(&path, None).expect("a file of QEMU's");
    assert_eq!((ram.name(), ram.len_bytes()), ("pc.ram", 3 << 20));
    let mut back = vec![0; 3 << 20];
    let mut at = 0;
    while let Some(data) = ram.data_in(at..3 << 20).expect("asked") {
        ram.read_at(data.start, &mut back[data.start as usize..data.end as usize]).expect("read");
        at = data.end;
    }
    assert!(back == memory);
    assert_eq!(MappedRam::open(&path, Some("pc.rom")).expect("the other").len_bytes(), 65536);
    let error = MappedRam::open(&path, Some("none")).expect_err("no such block");
    assert!(error.to_string().contains("pc.ram, pc.rom"), "{error}");
}

#[test]
fn a_file_that_is_cut_or_changed_is_refused_or_still_within_itself() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("migration");
    write_file(&path);
    let whole = std::fs::read(&path).expect("read");
    for len in [0, 3, 20, 100, 200, 300] {
        std::fs::write(&path, &whole[..len]).expect("written");
        assert!(MappedRam::open(&path, None).is_err(), "{len} bytes");
    }
    for at in 0..250 {
        let mut changed = whole.clone();
        changed[at] ^= 0xff;
        std::fs::write(&path, &changed).expect("written");
        if let Ok(ram) = MappedRam::open(&path, None) {
            let _ = ram.data_in(0..ram.len_bytes()).expect("asked");
        }
    }
}
