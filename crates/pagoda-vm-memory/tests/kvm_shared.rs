//! A guest of KVM in a memfd writes its memory while that is sent to another memfd, and its writes
//! are told by KVM's own log; or by the kernel's protection of the mapping.

mod support;

use std::fs::File;
use std::io;
use std::ops::ControlFlow::Continue;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use kvm_bindings::{KVM_MEM_LOG_DIRTY_PAGES, kvm_userspace_memory_region};
use kvm_ioctls::VmFd;
use pagoda::Bytes;
use pagoda::migrate::{
    DirtyLog, DirtyPages, Listener, LiveOptions, Moved, Otherwise, OwnWrites, ReceiveOptions, SendOptions,
    SharedMemory, Writer,
};
use pagoda_linux::io::shared_file::memory_file;
use pagoda_linux::testing::skip::skip;
use vm_memory::{FileOffset, GuestAddress, GuestMemoryBackend as _, GuestMemoryMmap};

use support::guest::{Guest, PORT, START};

const GUEST: Bytes = Bytes::mib(16);
/// One word a page, at another place in each.
const STEP: u32 = 4100;

/// Code that writes the number of its round each `STEP` bytes of ESI..EDI, reports it, and begins
/// another round. Lost writes show an older number.
fn write_rounds() -> Vec<u8> {
    let mut code = vec![0x43]; // inc ebx
    code.extend([0x89, 0xF1]); // mov ecx, esi
    let begin = code.len();
    code.extend([0x89, 0x19]); // mov [ecx], ebx
    code.extend([0x81, 0xC1]); // add ecx, STEP
    code.extend(STEP.to_le_bytes());
    code.extend([0x39, 0xF9]); // cmp ecx, edi
    let back = code.len() + 2 - begin;
    code.extend([0x72, (back as u8).wrapping_neg()]); // jb begin
    code.extend([0x66, 0xBA, PORT, 0, 0x88, 0xD8, 0xEE]); // mov dx, PORT; mov al, bl; out
    let back = code.len() + 2;
    code.extend([0xEB, (back as u8).wrapping_neg()]); // jmp
    code
}

/// `KVM_GET_DIRTY_LOG` of the one slot, which clears it as well.
struct KvmLog(Arc<VmFd>);

impl DirtyLog for KvmLog {
    fn take(&mut self, dirty: &mut DirtyPages<'_>) -> io::Result<()> {
        let log = self.0.get_dirty_log(0, GUEST.as_usize());
        dirty.add_bitmap(0, &log.map_err(|error| io::Error::from_raw_os_error(error.errno()))?);
        Ok(())
    }
}

/// Stops the guest after a round of its own.
#[derive(Default)]
struct Processor {
    wanted: AtomicBool,
    stands: AtomicBool,
}

impl Writer for &Processor {
    fn throttle(&mut self, _percent: u8) {}
    fn stop(&mut self) {
        self.wanted.store(true, Ordering::Release);
        while !self.stands.load(Ordering::Acquire) {
            thread::yield_now();
        }
    }
}

fn options() -> LiveOptions {
    let send = SendOptions { stall: Duration::from_secs(60), ..SendOptions::default() };
    LiveOptions {
        send,
        downtime: Duration::ZERO,
        rounds: 4,
        otherwise: Otherwise::StopForLonger,
        slow_most_percent: 0,
    }
}

/// Moves the memory of a guest that runs meanwhile, and compares. `log` makes its log, of the
/// memory at an address.
fn move_guest<L: DirtyLog>(log: impl FnOnce(&Guest, &SharedMemory, *const u8) -> io::Result<L>) {
    let file = |name| memory_file(name, GUEST.get()).expect("a memfd");
    let (here_file, there_file) = (file(c"here"), file(c"there"));
    let clone = |file: &File| file.try_clone().expect("a descriptor");
    let memory = GuestMemoryMmap::<()>::from_ranges_with_files([(
        GuestAddress(0),
        GUEST.as_usize(),
        Some(FileOffset::new(clone(&here_file), 0)),
    )])
    .expect("mapped");
    let address = memory.get_host_address(GuestAddress(0)).expect("mapped");
    let region = kvm_userspace_memory_region {
        flags: KVM_MEM_LOG_DIRTY_PAGES,
        memory_size: GUEST.get(),
        userspace_addr: address.addr() as u64,
        ..kvm_userspace_memory_region::default()
    };
    let mut guest = match Guest::with_code(&memory, GUEST, &[region], &write_rounds()) {
        Ok(guest) => guest,
        Err(error) => return skip("guests of KVM", format!("/dev/kvm does not work: {error}")),
    };
    let shared = |file| SharedMemory::new(clone(file), 0, GUEST).expect("shared memory");
    let (here, mut there) = (shared(&here_file), shared(&there_file));
    let mut log = match log(&guest, &here, address) {
        Ok(log) => log,
        Err(error) => return skip("tracking a guest's writes", error),
    };
    assert_eq!(guest.run(), 1, "the first round");
    let listener = Listener::bind(&"tcp://127.0.0.1:0".parse().expect("an address")).expect("a listener");
    let to = listener.endpoint().expect("an address");
    let processor = Processor::default();
    let (moved, rounds) = thread::scope(|scope| {
        let runs = scope.spawn(|| {
            let mut rounds = 1;
            while !processor.wanted.load(Ordering::Acquire) {
                guest.run();
                rounds += 1;
            }
            processor.stands.store(true, Ordering::Release);
            rounds
        });
        let receives =
            scope.spawn(|| there.receive(listener, &ReceiveOptions::default(), &mut |_| Continue(())));
        let moved = here.migrate_to(&to, &options(), &mut log, &mut &processor, &mut |_, _| Continue(()));
        // A failure must not leave it running.
        processor.wanted.store(true, Ordering::Release);
        receives.join().expect("no panic").expect("received");
        (moved.expect("sent"), runs.join().expect("no panic"))
    });
    check(&moved, rounds, &here_file, &there_file);
}

fn check(moved: &Moved, rounds: u32, here: &File, there: &File) {
    let words = (START..GUEST.get() as u32).step_by(STEP as usize);
    let word = |file: &File, at: u32| {
        let mut word = [0; 4];
        file.read_exact_at(&mut word, at.into()).expect("read");
        u32::from_le_bytes(word)
    };
    for at in words {
        assert_eq!((word(here, at), word(there, at)), (rounds, rounds), "at {at:#x}: {moved:?}");
    }
    let content = |file: &File| {
        let mut content = vec![0; GUEST.as_usize()];
        file.read_exact_at(&mut content, 0).expect("read");
        content
    };
    assert!(content(here) == content(there), "all else: {moved:?}");
    assert!(moved.pace.rounds > 1 && rounds > 1, "it was written meanwhile: {rounds}, {moved:?}");
}

#[test]
fn a_guest_in_shared_memory_is_followed_by_the_log_of_kvm() {
    move_guest(|guest, _, _| Ok(KvmLog(guest.vm())));
}

#[test]
fn a_guest_in_shared_memory_is_followed_by_the_protection_of_its_mapping() {
    move_guest(|_, memory, address| OwnWrites::new(memory, address));
}
