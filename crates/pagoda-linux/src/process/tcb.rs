//! The memory of this process's threads that the kernel reads on its own: control block, robust
//! locks, rseq area.
//!
//! The kernel reads these at a thread's exit and on the way back to user mode, where it serves no
//! userfault. If one of them was evicted, `pthread_join` hangs for good: so the engine must know
//! where they are. Looking must never allocate, take a lock, use thread-local storage, or fault on
//! the memory that it reads.
//!
//! How to find it from outside a thread: glibc registers the head of its list of robust locks in
//! each thread at start, and that head lies inside the thread's control block (`struct pthread`).
//! The kernel tells its address for any thread (`get_robust_list`). The distance from the head to
//! the thread pointer is the same in all threads of a process, and so is that of the rseq area:
//! [`ThreadLayout`] measures both once, in a thread of the C library.
//!
//! A thread that registered no robust list is not found: a raw clone (Go's threads, the engine's
//! own), or a thread of musl before its first robust lock.

use std::ffi::{CStr, c_char, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::OwnedFd;

use linux_raw_sys::general::{__NR_get_robust_list, __NR_process_vm_readv, robust_list_head};
use rustix::fs::{Mode, OFlags, RawDir, SeekFrom};
use rustix::io::Errno;

use crate::raw_syscall::{syscall3, syscall6};

/// The kernel's own limit for the locks that one thread holds (`ROBUST_LIST_LIMIT`); it walks no
/// further at exit, so that later entries never hurt.
pub const ROBUST_LOCKS_MAX: usize = 2048;

/// One read of a directory: at 24 bytes an entry about 1,300 threads. More are read in further
/// pieces.
const DIRECTORY_BYTES: usize = 32 << 10;

/// How often a walk starts over because threads that exited meanwhile may have hidden others.
const WALKS_MAX: usize = 4;

/// The known areas of one thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadArea {
    /// Its number.
    pub tid: u32,
    /// An address inside its control block: the head of its list of robust locks.
    pub control_block: usize,
    /// Its thread pointer, if the layout is known. The control block of glibc starts here on x86_64
    /// and ends here on aarch64.
    pub thread_pointer: Option<usize>,
    /// Its rseq area, if the layout is known and the C library registers one (glibc 2.35).
    pub rseq: Option<Range<usize>>,
}

/// How far the kernel reads or writes on its own around the head of the robust list: the thread's
/// number, which it clears at exit. glibc keeps it 16 bytes before the head on every 64-bit
/// architecture. (musl has the kernel clear a lock in the data of the C library instead, which
/// can't be found from here.)
const AROUND_HEAD_BYTES: usize = 256;

impl ThreadArea {
    /// The ranges that the kernel reads and writes on its own and that must therefore stay in
    /// memory: around the head of the robust list, and the rseq area. Without a layout the latter
    /// is missing. The locks themselves are elsewhere: see [`for_each_robust_lock`].
    pub fn kernel_reads(&self) -> impl Iterator<Item = Range<usize>> {
        let head = self.control_block;
        let around = head.saturating_sub(AROUND_HEAD_BYTES)..head.saturating_add(AROUND_HEAD_BYTES);
        [Some(around), self.rseq.clone()].into_iter().flatten()
    }
}

/// Whether a walk saw every thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Walk {
    /// Every thread that lived from before the walk until after it was seen.
    Complete,
    /// Threads started and ended so fast that each try may have missed some.
    MaybeIncomplete,
}

/// How a control block is laid out, the same for all threads of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadLayout {
    /// From the thread pointer to the head of the list of robust locks.
    robust_offset: isize,
    /// From the thread pointer to the rseq area, and its length; `None` if the C library registers
    /// none.
    rseq: Option<(isize, usize)>,
}

impl ThreadLayout {
    /// Measures the layout in the calling thread. `None` if it registered no robust list.
    ///
    /// Call it on a thread that the C library made (the constructor of a preloaded library runs on
    /// one), never on a raw clone: that one runs with another thread's pointer. It asks the dynamic
    /// linker for symbols and may take its lock; the rest of this module does not.
    #[must_use]
    pub fn of_current_thread() -> Option<Self> {
        let head = robust_list_head_of(0).ok()??;
        let robust_offset = head.wrapping_sub(thread_pointer()).cast_signed();
        // glibc: `extern const ptrdiff_t __rseq_offset; extern const unsigned int __rseq_size;`, 0
        // if not registered.
        let rseq = match (exported::<isize>(c"__rseq_offset"), exported::<u32>(c"__rseq_size")) {
            // glibc 2.35 to 2.39 say 20 while the kernel uses 32 bytes: never less than those.
            (Some(offset), Some(size)) if size > 0 => Some((offset, (size as usize).max(32))),
            _ => None,
        };
        Some(Self { robust_offset, rseq })
    }
}

/// Lists the threads of this process, any number of times.
pub struct ThreadWalker {
    tasks: OwnedFd,
    buffer: Box<[MaybeUninit<u8>]>,
    /// The threads of a listing before the walk.
    listed: Vec<u32>,
    layout: Option<ThreadLayout>,
}

/// The most threads of a process for which a walk can report that it saw all: as many as Linux
/// numbers by default (`kernel.pid_max`). With more it never does. Only the used part of the list
/// takes memory.
const LISTED_MOST: usize = 32768;

impl ThreadWalker {
    /// Opens `/proc/self/task` and allocates the only memory that this walker will ever use.
    /// Without a layout it reports control blocks only. Call it on the thread that will walk, if
    /// that thread has a file table of its own. After a fork the child needs a walker of its own:
    /// this one goes on showing the parent's threads.
    ///
    /// # Errors
    /// Those of opening it: no `/proc` (`NotFound`), or no descriptor left.
    pub fn new(layout: Option<ThreadLayout>) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let tasks = rustix::fs::open(c"/proc/self/task", flags, Mode::empty())?;
        let (buffer, listed) = (Box::new_uninit_slice(DIRECTORY_BYTES), Vec::with_capacity(LISTED_MOST));
        Ok(Self { tasks, buffer, listed, layout })
    }

    /// Calls `f` with each thread that registered a robust list; with some more than once if the
    /// walk had to start over. A thread that exits meanwhile may or may not be reported, and one
    /// that starts meanwhile too: a caller that must not miss those needs another way to leave
    /// fresh memory alone.
    ///
    /// # Errors
    /// The kernel's, other than that a thread is gone; a sandbox may refuse `get_robust_list`
    /// (`PermissionDenied`), and then nothing is known.
    pub fn for_each_thread(&mut self, mut f: impl FnMut(ThreadArea)) -> io::Result<Walk> {
        let layout = self.layout;
        let mut tell = |tid| -> io::Result<()> {
            if let Some(control_block) = robust_list_head_of(tid)? {
                let bare = ThreadArea { tid, control_block, thread_pointer: None, rseq: None };
                f(layout.map_or(bare, |layout| layout.area(tid, control_block)));
            }
            Ok(())
        };
        let mut listed = std::mem::take(&mut self.listed);
        let walk = self.walk(&mut listed, &mut tell);
        self.listed = listed;
        walk
    }

    fn walk(
        &mut self,
        listed: &mut Vec<u32>,
        tell: &mut impl FnMut(u32) -> io::Result<()>,
    ) -> io::Result<Walk> {
        for _ in 0..WALKS_MAX {
            // A thread that exits while the kernel lists it ends the listing early, and continuing
            // by position then skips as many as have gone. So threads that were listed may make up
            // for some that were not. A thread in two listings was alive between them, when the
            // directory counted two links and one for each thread alive: if it is as many, it is
            // all of them.
            listed.clear();
            self.list(|tid| {
                if listed.len() < LISTED_MOST {
                    listed.push(tid);
                }
                Ok(())
            })?;
            listed.sort_unstable();
            let alive = (rustix::fs::fstat(&self.tasks)?.st_nlink as usize).saturating_sub(2);
            let mut seen = 0;
            self.list(|tid| {
                seen += usize::from(listed.binary_search(&tid).is_ok());
                tell(tid)
            })?;
            if seen >= alive {
                return Ok(Walk::Complete);
            }
        }
        Ok(Walk::MaybeIncomplete)
    }

    /// Calls `f` with each thread of one listing.
    fn list(&mut self, mut f: impl FnMut(u32) -> io::Result<()>) -> io::Result<()> {
        rustix::fs::seek(&self.tasks, SeekFrom::Start(0))?;
        let mut entries = RawDir::new(&self.tasks, &mut self.buffer);
        while let Some(entry) = entries.next() {
            let entry = match entry {
                Err(Errno::INTR) => continue,
                entry => entry?,
            };
            if let Some(tid) = tid_from(entry.file_name()) {
                f(tid)?;
            }
        }
        Ok(())
    }
}

impl ThreadLayout {
    fn area(self, tid: u32, control_block: usize) -> ThreadArea {
        let pointer = control_block.wrapping_add_signed(self.robust_offset.wrapping_neg());
        let rseq = self.rseq.map(|(offset, bytes)| {
            let start = pointer.wrapping_add_signed(offset);
            start..start.saturating_add(bytes)
        });
        ThreadArea { tid, control_block, thread_pointer: Some(pointer), rseq }
    }
}

/// Calls `f` with the address of the futex word of each robust lock that a thread holds or is about
/// to take or release, given its [`ThreadArea::control_block`]. At most [`ROBUST_LOCKS_MAX`] and
/// one pending.
///
/// The list is read while its owner may change it: some reported words may be no lock any more, and
/// a lock taken meanwhile may be missing. It is read by `process_vm_readv`, so that a wild pointer
/// ends the walk instead of the process. **It blocks on evicted memory until that is swapped in**:
/// never call it on the thread that does so.
///
/// # Errors
/// The kernel's, other than that an address can't be read, which ends the walk.
pub fn for_each_robust_lock(control_block: usize, mut f: impl FnMut(usize)) -> io::Result<()> {
    // list.next, futex_offset, list_op_pending
    let Some([first, futex_offset, pending]) = read_words::<3>(control_block)? else { return Ok(()) };
    // Bit 0 of a pointer says that the lock inherits priority.
    let entry_of = |word: usize| word & !1;
    let futex_of = |entry: usize| entry.wrapping_add_signed(futex_offset.cast_signed());
    if entry_of(pending) != 0 {
        f(futex_of(entry_of(pending)));
    }
    let mut entry = entry_of(first);
    for _ in 0..ROBUST_LOCKS_MAX {
        if entry == control_block || entry == 0 {
            break;
        }
        let Some([next]) = read_words::<1>(entry)? else { break };
        f(futex_of(entry));
        entry = entry_of(next);
    }
    Ok(())
}

/// Words of our own memory; `None` if they can't be read.
fn read_words<const COUNT: usize>(address: usize) -> io::Result<Option<[usize; COUNT]>> {
    let mut words = [0usize; COUNT];
    let local = [(&raw mut words).expose_provenance(), size_of_val(&words)];
    let remote = [address, size_of_val(&words)];
    let pid = rustix::process::getpid().as_raw_nonzero().get() as usize;
    let arguments =
        [pid, (&raw const local).expose_provenance(), 1, (&raw const remote).expose_provenance(), 1, 0];
    // SAFETY: the two arrays are laid out as `struct iovec`; the kernel writes to `words` only,
    // whose length is given, and answers EFAULT where the remote side can't be read.
    match unsafe { syscall6(__NR_process_vm_readv, arguments) } {
        Ok(bytes) if bytes == size_of_val(&words) => Ok(Some(words)),
        Ok(_) | Err(Errno::FAULT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The head of a thread's list of robust locks, 0 for the calling thread. `None` if it has none or
/// is gone.
fn robust_list_head_of(tid: u32) -> io::Result<Option<usize>> {
    let mut head: *const robust_list_head = std::ptr::null();
    let mut bytes: usize = 0;
    // SAFETY: the kernel writes one pointer and one length to the two borrowed variables.
    let done = unsafe {
        syscall3(
            __NR_get_robust_list,
            tid as usize,
            (&raw mut head).expose_provenance(),
            (&raw mut bytes).expose_provenance(),
        )
    };
    match done {
        Ok(_) => Ok(Some(head.addr()).filter(|head| *head != 0)),
        Err(Errno::SRCH) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The name of a directory of `/proc/self/task`; `None` for `.` and `..`.
fn tid_from(name: &CStr) -> Option<u32> {
    name.to_str().ok()?.parse().ok()
}

fn thread_pointer() -> usize {
    let pointer: usize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the ABI puts the thread pointer's own address at its start.
    unsafe {
        std::arch::asm!("mov {}, fs:[0]", out(reg) pointer, options(nostack, preserves_flags, readonly));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: reads a register.
    unsafe {
        std::arch::asm!("mrs {}, tpidr_el0", out(reg) pointer, options(nostack, preserves_flags, nomem));
    }
    pointer
}

/// A constant that the C library may export.
fn exported<T: Copy>(name: &CStr) -> Option<T> {
    // By hand: these symbols are missing from older C libraries, and a plain `extern` would not
    // link there.
    unsafe extern "C" {
        fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
    }
    const RTLD_DEFAULT: *mut c_void = std::ptr::null_mut();
    // SAFETY: the name is a C string; only `__rseq_offset` and `__rseq_size` are asked for, whose
    // types glibc documents as those that the callers here give, and which live as long as the
    // process.
    unsafe { dlsym(RTLD_DEFAULT, name.as_ptr()).cast::<T>().as_ref().copied() }
}

#[cfg(test)]
#[path = "tcb_test.rs"]
mod tests;
