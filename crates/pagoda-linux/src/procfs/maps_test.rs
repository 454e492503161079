//! Synthetic text, cut at every place, and the maps of the test process itself.

use super::*;

const TEXT: &str = "\
55d0c0a00000-55d0c0a21000 rw-p 00000000 00:00 0                          [heap]
7f0000000000-7f0000021000 rw-p 00000000 00:00 0 
7f1000000000-7f1000001000 r-xp 00002000 fd:01 1234567                    /usr/lib/with space/libc.so.6 (deleted)
7f2000000000-7f2000001000 rw-s 00000000 00:01 1027                       /memfd:x (deleted)
7f3000000000-7f3000001000 ---p 00000000 00:00 0                          [anon:glibc: malloc arena]
7f4000000000-7f4000001000 r--p 00000000 00:2a 99                         [heap]
7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0                          [stack]
7ffc00100000-7ffc00102000 r-xp 00000000 00:00 0                          [vdso]
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
";

const KINDS: [MappingKind; 9] = [
    MappingKind::Heap,
    MappingKind::Anonymous,
    MappingKind::File,
    MappingKind::SharedMemory,
    MappingKind::NamedAnonymous,
    MappingKind::File,
    MappingKind::MainStack,
    MappingKind::Special,
    MappingKind::Special,
];

fn scan_text(text: &str, buffer_bytes: usize, read_bytes: usize) -> io::Result<Vec<Mapping>> {
    let mut found = Vec::new();
    let read = |into: &mut [u8], offset: u64| {
        let rest = &text.as_bytes()[offset as usize..];
        let got = rest.len().min(into.len()).min(read_bytes);
        into[..got].copy_from_slice(&rest[..got]);
        Ok(got)
    };
    scan(&mut vec![0; buffer_bytes], read, |mapping| found.push(*mapping))?;
    Ok(found)
}

#[test]
fn every_kind_is_told_however_the_text_is_cut() {
    let whole = scan_text(TEXT, 8192, 8192).expect("whole");
    assert_eq!(whole.iter().map(|mapping| mapping.kind).collect::<Vec<_>>(), KINDS);
    for read_bytes in 1..200 {
        for buffer_bytes in [BUFFER_BYTES_MIN, 300, 8192] {
            assert_eq!(scan_text(TEXT, buffer_bytes, read_bytes).expect("cut"), whole, "{read_bytes}");
        }
    }
    assert_eq!(scan_text(TEXT.trim_end_matches('\n'), 256, 256).expect("no last end of line"), whole);
}

#[test]
fn shared_memory_is_told_from_files_by_its_name() {
    let kind = |name: &str| {
        let line = format!("7f2000000000-7f2000001000 rw-s 00000000 00:01 1027       {name}");
        parse_line(line.as_bytes()).expect("a mapping").kind
    };
    for name in ["/dev/zero (deleted)", "/memfd:x (deleted)", "/SYSV00000000 (deleted)", "/dev/shm/x"] {
        assert_eq!(kind(name), MappingKind::SharedMemory, "{name}");
    }
    for name in [
        "/dev/shm/pagoda-1-2-0",
        "/memfd:pagoda-trace (deleted)",
        "/memfd:pagoda-holds (deleted)",
        "/home/memfd:x",
        "/dev/shmx",
    ] {
        assert_eq!(kind(name), MappingKind::File, "{name}");
    }
}

#[test]
fn fields_are_read_exactly() {
    let line = b"7f1000000000-7f1000003000 r-xs 00002000 fd:01 1234567    /lib";
    let expected = Mapping {
        start: 0x7f10_0000_0000,
        end: 0x7f10_0000_3000,
        read: true,
        write: false,
        execute: true,
        shared: true,
        offset: 0x2000,
        device: (0xfd, 1),
        inode: 1_234_567,
        kind: MappingKind::File,
    };
    assert_eq!(parse_line(line), Some(expected));
    assert_eq!(expected.len_bytes(), 0x3000);
    assert!(!expected.is_private_anonymous());
}

#[test]
fn a_name_longer_than_the_buffer_is_skipped_and_the_next_line_is_read() {
    let long = format!("1000-2000 r--p 00000000 fd:01 5 /{}\n{TEXT}", "n".repeat(5000));
    for buffer_bytes in 256..400 {
        let found = scan_text(&long, buffer_bytes, 4096).expect("long");
        assert_eq!((found.len(), found[0].kind, found[0].end), (10, MappingKind::File, 0x2000));
        assert_eq!(found[1].kind, MappingKind::Heap);
    }
}

#[test]
fn a_line_of_no_mapping_is_an_error_and_never_a_guess() {
    for line in [
        "",
        "x",
        "1000-2000",
        "1000-2000 rwx",
        "1000-2000 rwqp 0 0:0 0",
        "1000-2000 rwxz 0 0:0 0",
        "2000-1000 rwxp 0 0:0 0",
        "1000-11112222333344445 rwxp 0 0:0 0",
        "1000-2000 rwxp 0 0:0 x",
    ] {
        assert_eq!(parse_line(line.as_bytes()), None, "{line:?}");
    }
    let error = scan_text("garbage\n", 256, 256).expect_err("garbage");
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
}

#[test]
fn this_process_is_seen_as_it_is_each_time() {
    let mut reader = MapsReader::new(0).expect("the smallest buffer");
    let on_stack = 0u8;
    let on_heap = vec![0u8; 32 << 20];
    for _ in 0..3 {
        let (mut stack, mut heap, mut code, mut last) = (None, None, None, 0);
        reader
            .for_each(|mapping| {
                assert!(mapping.start >= last, "in order of address");
                last = mapping.end;
                let holds = |address: usize| (mapping.start..mapping.end).contains(&address);
                if holds((&raw const on_stack).addr()) {
                    stack = Some(*mapping);
                }
                if holds(on_heap.as_ptr().addr()) {
                    heap = Some(*mapping);
                }
                if holds(scan_text as *const () as usize) {
                    code = Some(*mapping);
                }
            })
            .expect("read");
        assert!(stack.expect("stack").is_private_anonymous());
        assert!(heap.is_some_and(|heap| heap.is_private_anonymous() && heap.len_bytes() >= on_heap.len()));
        assert!(code.is_some_and(|code| code.execute && code.kind == MappingKind::File && code.inode != 0));
    }
}
