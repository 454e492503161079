//! The descriptor: its messages, its handshake, and what the kernel says of a call.

use super::*;

#[test]
fn opcodes_are_those_of_the_kernel_headers() {
    assert_eq!(
        [
            UFFDIO_API,
            UFFDIO_REGISTER,
            UFFDIO_UNREGISTER,
            UFFDIO_WAKE,
            UFFDIO_COPY,
            UFFDIO_ZEROPAGE,
            UFFDIO_MOVE
        ],
        [0xc018_aa3f, 0xc020_aa00, 0x8010_aa01, 0x8010_aa02, 0xc028_aa03, 0xc020_aa04, 0xc028_aa05]
    );
    assert_eq!(USERFAULTFD_IOC_NEW, 0xaa00);
    assert_eq!(size_of::<RawMessage>(), 32);
}

#[test]
fn an_unread_event_is_no_quiet() {
    let Ok(uffd) = Uffd::open(Mode::UserOnly, feature::PROCESS) else {
        return crate::testing::skip::skip("events", "no userfaultfd with UFFDIO_MOVE");
    };
    let memory = crate::mem::region_memory::RegionMemory::map(1 << 20).expect("map");
    // SAFETY: the test's own mapping, which nothing else uses.
    unsafe { uffd.register(memory.range()).expect("register") };
    assert!(uffd.is_quiet());
    std::thread::scope(|scope| {
        let discard = scope.spawn(move || memory.discard(0, 4096));
        assert_eq!(uffd.wait(5000), Wait::Ready, "the event arrives");
        assert!(!uffd.is_quiet());
        let mut seen = 0;
        uffd.read(|message| {
            seen += usize::from(matches!(message, Message::Remove(range) if range.len() == 4096));
        })
        .expect("read");
        assert_eq!(seen, 1);
        // The mapping's drop unmaps it, and waits for that event to be read.
        assert_eq!(uffd.wait(5000), Wait::Ready, "the unmapping's event arrives");
        uffd.read(|message| assert!(matches!(message, Message::Unmap(_)), "{message:?}")).expect("read");
        discard.join().expect("join").expect("discard");
    });
    assert!(uffd.is_quiet());
}

/// Bytes of a page that are touched, none of them at its beginning.
const BYTES: [usize; 3] = [1, 2049, 4095];

#[test]
fn a_fault_names_the_byte_where_that_was_asked_for_and_its_page_in_any_case() {
    let Ok(uffd) = Uffd::open(Mode::UserOnly, feature::PROCESS) else {
        return crate::testing::skip::skip("exact addresses", "no userfaultfd with UFFDIO_MOVE");
    };
    drop(uffd);
    for features in [feature::PROCESS | feature::EXACT_ADDRESS, feature::PROCESS] {
        let uffd = Uffd::open(Mode::UserOnly, features).expect("a descriptor");
        let mut memory = crate::mem::region_memory::RegionMemory::map(1 << 20).expect("map");
        let start = memory.range().start();
        // SAFETY: the test's own mapping, which nothing else uses.
        unsafe { uffd.register(memory.range()).expect("register") };
        for (page, byte) in BYTES.into_iter().enumerate() {
            let offset = 4096 * (3 + page) + byte;
            std::thread::scope(|scope| {
                let toucher = scope.spawn(|| memory.write_at(offset, &[7]));
                assert_eq!(uffd.wait(5000), Wait::Ready, "the fault arrives");
                let mut found = None;
                uffd.read(|message| match message {
                    Message::Fault { at, write: true, .. } => found = Some(at),
                    other => panic!("{other:?}"),
                })
                .expect("read");
                let at = found.expect("a fault");
                let is_exact = features & feature::EXACT_ADDRESS != 0;
                let expected = if is_exact { start + offset } else { start + offset - byte };
                assert_eq!((at.byte(), at.page()), (expected, start + offset - byte));
                assert_eq!(uffd.zero(at.page_range()).stop, None);
                toucher.join().expect("join");
            });
        }
        // Its unmapping would wait for that event to be read.
        drop(uffd);
    }
}

#[test]
fn a_descriptor_that_was_refused_a_feature_can_do_without() {
    let Ok(fd) = Uffd::from_call(USER_MODE_ONLY) else {
        return crate::testing::skip::skip("handshakes", "no userfaultfd");
    };
    // No kernel has this one: it answers like one that lacks exact addresses.
    assert_eq!(handshake(&fd, feature::EXACT_ADDRESS | 1 << 63), Err(Errno::INVAL));
    assert_eq!(handshake(&fd, 0), Ok(()));
    assert_eq!(
        Uffd::open(Mode::UserOnly, feature::EXACT_ADDRESS | 1 << 63).err(),
        Some(Errno::INVAL),
        "whatever else is lacking is not done without"
    );
}

#[test]
fn a_short_count_is_progress_and_an_error_without_one_is_named() {
    assert_eq!(progress(8192, 4096, Err(Errno::AGAIN)), Progress { bytes: 4096, stop: None });
    assert_eq!(progress(8192, -16, Err(Errno::BUSY)), Progress { bytes: 0, stop: Some(Stop::Busy) });
    assert_eq!(progress(8192, 8192, Ok(())), Progress { bytes: 8192, stop: None });
    assert_eq!(progress(8192, 0, Err(Errno::INVAL)), Progress { bytes: 0, stop: Some(Stop::Refused) });
}

#[test]
fn a_write_to_a_protected_page_waits_until_it_is_let() {
    let Ok(uffd) = Uffd::open(Mode::UserOnly, feature::PROCESS) else {
        return crate::testing::skip::skip("held writes", "no userfaultfd with UFFDIO_MOVE");
    };
    let mut memory = crate::mem::region_memory::RegionMemory::map(1 << 20).expect("map");
    let range = memory.range();
    memory.write_at(0, &[1]);
    // SAFETY: the test's own mapping, which nothing else uses.
    unsafe { uffd.register_tracked(range).expect("register") };
    uffd.protect(range).expect("protected");
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| memory.write_at(1, &[7]));
        assert_eq!(uffd.wait(5000), Wait::Ready, "the fault arrives");
        let mut seen = Vec::new();
        uffd.read(|message| seen.push(message)).expect("read");
        let is_held = |message: &Message| matches!(message, Message::Fault { at, write: true, held: true, .. } if at.page() == range.start());
        assert!(matches!(&seen[..], [fault] if is_held(fault)), "{seen:?}");
        assert!(uffd.let_writes(PageRange::page(range.start())));
        writer.join().expect("join");
    });
    assert!(uffd.let_writes(PageRange::at(range.end(), 4096)), "where nothing is managed none waits");
    drop(uffd);
}
