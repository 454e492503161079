//! The rights of raw threads: they give up most of them, and follow a change of the program's ids.
//!
//! User and group ids and capabilities belong to a thread. When a program drops its rights, the C
//! library changes those of all threads that it knows; raw threads it does not know. They would
//! keep the rights of root in an address space in which a dropped program can write. So a raw
//! thread keeps only the capabilities to change its ids, and changes them at its next look once the
//! program has. This module must never give a thread a right that the program does not have.

mod reader;

use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use linux_raw_sys::general as raw;

use crate::process::caller::{current_id, exit_process, now_ns, sleep_us};
use crate::raw_syscall::{syscall3, syscall6};

pub use reader::RightsReader;

/// User ids (real, effective, saved), group ids in the same order, and capabilities, of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rights {
    users: [u32; 3],
    groups: [u32; 3],
    permitted: u64,
    in_effect: u64,
}

impl Rights {
    /// Whether a raw thread has other ids, or a capability more.
    fn are_exceeded_by(&self, own: Self) -> bool {
        (self.users, self.groups) != (own.users, own.groups)
            || own.permitted & !self.permitted != 0
            || own.in_effect & !self.in_effect != 0
    }
}

/// Raw threads at once: four handlers, a few workers, a reclaimer and a watcher are far below it.
const THREADS_MOST: usize = 64;

/// The raw threads of this process, 0 for a free place, and the change that each has followed.
static THREADS: [(AtomicU32, AtomicU32); THREADS_MOST] =
    [const { (AtomicU32::new(0), AtomicU32::new(0)) }; THREADS_MOST];

/// Changes of the program's rights so far. Raw threads of a process without one pay for one load.
static CHANGES: AtomicU32 = AtomicU32::new(0);

/// The rights of the program since the last change: written before [`CHANGES`] is raised, by one
/// thread at a time.
static RIGHTS: [AtomicU64; 5] = [const { AtomicU64::new(0) }; 5];

/// Held by the thread that writes [`RIGHTS`].
static WRITING: AtomicU32 = AtomicU32::new(0);

/// How long a change waits for the raw threads. Each looks at least ten times a second, unless a
/// disk holds it up.
const FOLLOW_NS: u64 = 2_000_000_000;

const CAP_SETGID: u64 = 1 << 6;
const CAP_SETUID: u64 = 1 << 7;
/// In a program that locks all its memory to come, a mapping of the engine's counts towards the
/// limit of locked memory.
const CAP_IPC_LOCK: u64 = 1 << 14;

/// To hold a thread on a processor that has capabilities itself.
const CAP_SYS_NICE: u64 = 1 << 23;

/// The capabilities that a raw thread keeps in effect, as long as the program has them.
const KEPT_IN_EFFECT: u64 = CAP_IPC_LOCK | CAP_SYS_NICE;

/// Those that it keeps.
const KEPT: u64 = CAP_SETUID | CAP_SETGID | KEPT_IN_EFFECT;

const CAP_DAC_OVERRIDE: u64 = 1 << 1;
const CAP_SYS_PTRACE: u64 = 1 << 19;
const CAP_SYS_RESOURCE: u64 = 1 << 24;

/// The capabilities that a thread keeps, too, that may start an engine: for a directory of another
/// user, events of forks, the priority of a thread, the node of its memory, a descriptor limit.
const KEPT_TO_START: u64 = KEPT | CAP_DAC_OVERRIDE | CAP_SYS_PTRACE | CAP_SYS_RESOURCE;

/// How often a raw thread kept rights that the program had given up.
static KEPT_RIGHTS: AtomicU64 = AtomicU64::new(0);

/// How often a raw thread could not follow a change, or not within two seconds.
#[must_use]
pub fn times_kept() -> u64 {
    KEPT_RIGHTS.load(Ordering::Relaxed)
}

/// `PR_SET_NO_NEW_PRIVS`, `PR_GET_DUMPABLE` and `PR_SET_DUMPABLE` of linux/prctl.h.
const PR_SET_NO_NEW_PRIVS: usize = 38;
const PR_GET_DUMPABLE: usize = 3;
/// `PR_SET_KEEPCAPS` of linux/prctl.h.
const PR_SET_KEEPCAPS: usize = 8;
const PR_SET_DUMPABLE: usize = 4;

/// Raw threads that are made and have not begun yet. They have the rights of their maker, and no
/// place among [`THREADS`].
static BEGINNING: AtomicU32 = AtomicU32::new(0);

/// A raw thread is about to be made by the calling thread. A change of rights waits for it.
pub(crate) fn thread_is_made() {
    BEGINNING.fetch_add(1, Ordering::SeqCst);
}

/// It begins in its place, or could not be made.
pub(crate) fn thread_was_made() {
    BEGINNING.fetch_sub(1, Ordering::SeqCst);
}

/// The calling raw thread begins.
pub(crate) fn thread_begins() {
    let own = current_id();
    let take = |(thread, _): &&(AtomicU32, AtomicU32)| {
        thread.compare_exchange(0, own, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    };
    // A thread beyond the bound could not follow, and would keep its rights.
    if !THREADS.iter().any(|place| take(&place)) {
        exit_process(125);
    }
    thread_was_made();
    // Of a change before it had its place.
    follow();
}

/// The calling raw thread ends.
pub(crate) fn thread_ends() {
    if let Some((thread, followed)) = place_of(current_id()) {
        // Before the place is free: its next thread has followed nothing.
        followed.store(0, Ordering::SeqCst);
        thread.store(0, Ordering::SeqCst);
    }
}

fn place_of(id: u32) -> Option<&'static (AtomicU32, AtomicU32)> {
    THREADS.iter().find(|(thread, _)| thread.load(Ordering::SeqCst) == id)
}

/// In a child of a fork, on its one thread: the raw threads and their changes are the parent's.
pub fn forget_threads() {
    for (thread, followed) in &THREADS {
        // A page that is not written is not copied.
        if thread.load(Ordering::Relaxed) != 0 {
            followed.store(0, Ordering::Relaxed);
            thread.store(0, Ordering::Relaxed);
        }
    }
    BEGINNING.store(0, Ordering::SeqCst);
    CHANGES.store(0, Ordering::SeqCst);
    WRITING.store(0, Ordering::SeqCst);
    KEPT_RIGHTS.store(0, Ordering::Relaxed);
}

/// The calling thread's.
///
/// # Errors
/// A filter of system calls forbids to ask.
pub fn of_this_thread() -> io::Result<Rights> {
    let three = |call| -> io::Result<[u32; 3]> {
        let mut ids = [0u32; 3];
        let [real, effective, saved] = &mut ids;
        let at = |id: &mut u32| std::ptr::from_mut(id).expose_provenance();
        // SAFETY: getresuid and getresgid write three numbers to the places that they are given.
        unsafe { syscall3(call, at(real), at(effective), at(saved)) }?;
        Ok(ids)
    };
    let all = capabilities()?;
    Ok(Rights {
        users: three(raw::__NR_getresuid)?,
        groups: three(raw::__NR_getresgid)?,
        permitted: all.permitted(),
        in_effect: all.in_effect(),
    })
}

/// Gives up all capabilities of the calling raw thread but those to change its ids, which are no
/// more in effect, to lock memory and to hold threads on a processor; its supplementary groups; and
/// the right to gain any by exec. Of a thread without rights it changes nothing.
pub fn give_up() {
    // SAFETY: no supplementary group is fewer than before, of the calling thread alone.
    let _ = unsafe { syscall3(raw::__NR_setgroups, 0, 0, 0) };
    give_up_all_but(KEPT);
    // SAFETY: it takes numbers, and concerns this thread alone.
    let _ = unsafe { syscall6(raw::__NR_prctl, [PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0]) };
}

/// The calling raw thread may start an engine later: it keeps what that takes, not in effect.
pub fn give_up_until_start() {
    give_up_all_but(KEPT_TO_START);
}

/// The calling raw thread starts an engine: the capabilities kept for that are in effect.
pub fn take_back_for_start() {
    if let Ok(all) = capabilities() {
        set_capabilities(all.permitted(), all.permitted());
    }
}

fn give_up_all_but(kept: u64) {
    if let Ok(all) = capabilities() {
        set_capabilities(all.permitted() & kept, all.in_effect() & KEPT_IN_EFFECT);
    }
}

/// The program has these rights now: has all raw threads follow, and waits for them, for two
/// seconds at most.
pub fn follow_program(rights: Rights) {
    let followers = loop {
        if let Some(followers) = have_follow(rights) {
            break followers;
        }
        // The other change waits for this thread, too, if it is a raw one.
        follow();
        sleep_us(50);
    };
    while !followers.are_done() {
        sleep_us(200);
    }
    drop(followers);
    follow();
}

/// A change that raw threads follow. There is one at a time, as long as this lives.
#[derive(Debug)]
struct Followers {
    change: u32,
    until_ns: u64,
}

/// Has all raw threads follow to `rights`, and does not wait for them: a thread that waits looks at
/// no memory. None while another change goes on.
fn have_follow(rights: Rights) -> Option<Followers> {
    WRITING.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).ok()?;
    let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    let words = [
        pair(rights.users[0], rights.users[1]),
        pair(rights.users[2], rights.groups[0]),
        pair(rights.groups[1], rights.groups[2]),
        rights.permitted,
        rights.in_effect,
    ];
    RIGHTS.iter().zip(words).for_each(|(kept, word)| kept.store(word, Ordering::SeqCst));
    let change = CHANGES.fetch_add(1, Ordering::SeqCst) + 1;
    Some(Followers { change, until_ns: now_ns() + FOLLOW_NS })
}

impl Followers {
    /// Whether all have followed but the calling thread, or the time for it is over, which counts
    /// as rights that were kept.
    fn are_done(&self) -> bool {
        let own = current_id();
        // Before the places: a thread takes one first.
        let have_begun = BEGINNING.load(Ordering::SeqCst) == 0;
        let all_follow = have_begun
            && THREADS.iter().all(|(thread, followed)| {
                let id = thread.load(Ordering::SeqCst);
                id == 0 || id == own || followed.load(Ordering::SeqCst) >= self.change
            });
        if all_follow {
            return true;
        }
        let is_late = now_ns() >= self.until_ns;
        KEPT_RIGHTS.fetch_add(u64::from(is_late), Ordering::Relaxed);
        is_late
    }
}

impl Drop for Followers {
    fn drop(&mut self) {
        WRITING.store(0, Ordering::Release);
    }
}

/// The calling thread follows the program's last change, if it is a raw one that has not yet.
pub fn follow() {
    let change = CHANGES.load(Ordering::SeqCst);
    if change == 0 {
        return;
    }
    let Some((_, followed)) = place_of(current_id()) else { return };
    if followed.load(Ordering::SeqCst) < change {
        let [a, b, c, permitted, in_effect] =
            [0, 1, 2, 3, 4].map(|i: usize| RIGHTS[i].load(Ordering::SeqCst));
        let (low, high) = (|word: u64| word as u32, |word: u64| (word >> 32) as u32);
        let (users, groups) = ([low(a), high(a), low(b)], [high(b), low(c), high(c)]);
        let program = Rights { users, groups, permitted, in_effect };
        take_on(program);
        // A filter of system calls over all threads may forbid it.
        if of_this_thread().is_ok_and(|own| program.are_exceeded_by(own)) {
            KEPT_RIGHTS.fetch_add(1, Ordering::Relaxed);
        }
        followed.store(change, Ordering::SeqCst);
    }
}

/// Gives the calling thread these ids, no supplementary group, and those of [`KEPT`] that the
/// program has, too.
fn take_on(rights: Rights) {
    let own = capabilities().map_or(0, |all| all.permitted());
    let to_change = own & (CAP_SETUID | CAP_SETGID);
    if to_change != 0 {
        set_capabilities(own, to_change);
    }
    // The program may keep its capabilities over a change of users (`PR_SET_KEEPCAPS`), and change
    // them again. SAFETY: it takes numbers, and concerns this thread alone.
    let _ = unsafe { syscall6(raw::__NR_prctl, [PR_SET_KEEPCAPS, 1, 0, 0, 0, 0]) };
    // A change of ids makes the address space undumpable. Where it is dumpable the program wants it
    // so. SAFETY: these calls take numbers. Ids are the calling thread's alone, and none is more
    // than the program has.
    unsafe {
        let dumpable = syscall6(raw::__NR_prctl, [PR_GET_DUMPABLE, 0, 0, 0, 0, 0]);
        let ids = |[real, effective, saved]: [u32; 3]| [real, effective, saved].map(|id| id as usize);
        let [real, effective, saved] = ids(rights.groups);
        let _ = syscall3(raw::__NR_setgroups, 0, 0, 0);
        let _ = syscall3(raw::__NR_setresgid, real, effective, saved);
        let [real, effective, saved] = ids(rights.users);
        let _ = syscall3(raw::__NR_setresuid, real, effective, saved);
        if dumpable == Ok(1) {
            let _ = syscall6(raw::__NR_prctl, [PR_SET_DUMPABLE, 1, 0, 0, 0, 0]);
        }
    }
    let kept = own & KEPT & rights.permitted;
    set_capabilities(kept, kept & rights.in_effect & KEPT_IN_EFFECT);
}

/// `struct __user_cap_header_struct` of linux/capability.h, its third version.
#[repr(C)]
struct Header {
    version: u32,
    thread: u32,
}

const VERSION: u32 = 0x2008_0522;

/// Two `struct __user_cap_data_struct`: effective, permitted and inheritable, the low words first.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Capabilities([[u32; 3]; 2]);

impl Capabilities {
    fn permitted(self) -> u64 {
        u64::from(self.0[0][1]) | u64::from(self.0[1][1]) << 32
    }

    fn in_effect(self) -> u64 {
        u64::from(self.0[0][0]) | u64::from(self.0[1][0]) << 32
    }
}

fn capabilities() -> io::Result<Capabilities> {
    let header = Header { version: VERSION, thread: 0 };
    let mut all = Capabilities::default();
    let (of, into) = (std::ptr::from_ref(&header), std::ptr::from_mut(&mut all));
    // SAFETY: capget reads the header and, for this version, writes six words.
    unsafe { syscall3(raw::__NR_capget, of.expose_provenance(), into.expose_provenance(), 0) }?;
    Ok(all)
}

/// Sets those of the calling thread; none is inheritable. One that it does not have is refused, and
/// changes nothing.
fn set_capabilities(permitted: u64, effective: u64) {
    let header = Header { version: VERSION, thread: 0 };
    let half = |shift: u32| [(effective >> shift) as u32, (permitted >> shift) as u32, 0];
    let all = Capabilities([half(0), half(32)]);
    let (of, from) = (std::ptr::from_ref(&header), std::ptr::from_ref(&all));
    // SAFETY: capset reads the header and, for this version, six words; it concerns the calling
    // thread alone.
    let _ = unsafe { syscall3(raw::__NR_capset, of.expose_provenance(), from.expose_provenance(), 0) };
}

#[cfg(test)]
#[path = "rights_test.rs"]
mod tests;
