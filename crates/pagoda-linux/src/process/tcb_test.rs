//! The threads and robust locks of the test process itself.

use super::*;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;

use crate::testing::wait::EndsWith;

/// A thread's number and thread pointer as it sees them itself.
fn own_view() -> (u32, usize) {
    (rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned(), thread_pointer())
}

fn areas(walker: &mut ThreadWalker) -> Vec<ThreadArea> {
    let mut found = Vec::new();
    walker.for_each_thread(|area| found.push(area)).expect("walk");
    found
}

#[test]
fn every_thread_is_found_with_the_thread_pointer_that_it_sees_itself() {
    const THREADS: usize = 40;
    let layout = ThreadLayout::of_current_thread().expect("a robust list");
    std::thread::scope(|scope| {
        let (tell, told) = mpsc::channel();
        let mut hold = Vec::new();
        for _ in 0..THREADS {
            let tell = tell.clone();
            let (done, wait) = mpsc::channel::<()>();
            hold.push(done);
            scope.spawn(move || {
                tell.send(own_view()).expect("told");
                let _ = wait.recv();
            });
        }
        let views: Vec<_> = told.iter().take(THREADS).collect();
        let mut walker = ThreadWalker::new(Some(layout)).expect("open");
        for _ in 0..3 {
            let areas = areas(&mut walker);
            for (tid, pointer) in &views {
                let area = areas.iter().find(|area| area.tid == *tid).expect("every live thread");
                assert_eq!(area.thread_pointer, Some(*pointer));
                assert!(area.control_block.abs_diff(*pointer) < 4096, "{area:x?}");
            }
        }
        let bare = areas(&mut ThreadWalker::new(None).expect("open"));
        assert!(bare.iter().all(|area| area.thread_pointer.is_none() && area.rseq.is_none()));
        assert!(bare.len() >= THREADS);
        drop(hold);
    });
}

#[test]
fn threads_that_come_and_go_never_hide_one_that_stays() {
    let (tid, _) = own_view();
    let stop = AtomicBool::new(false);
    let mut walker = ThreadWalker::new(None).expect("open");
    std::thread::scope(|scope| {
        let _ends = EndsWith(&stop);
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let _ = std::thread::spawn(|| {}).join();
                }
            });
        }
        for _ in 0..300 {
            let mut seen = false;
            let walk = walker.for_each_thread(|area| seen |= area.tid == tid).expect("walk");
            assert!(seen || walk == Walk::MaybeIncomplete);
        }
    });
}

#[test]
fn the_rseq_area_holds_the_cpu_number_that_the_kernel_keeps_there() {
    let layout = ThreadLayout::of_current_thread().expect("a robust list");
    let (tid, _) = own_view();
    let areas = areas(&mut ThreadWalker::new(Some(layout)).expect("open"));
    let mine = areas.iter().find(|area| area.tid == tid).expect("this thread");
    // A C library before glibc 2.35, or one told not to, registers none.
    let Some(rseq) = &mine.rseq else { return assert_eq!(layout.rseq, None) };
    assert!(rseq.start.is_multiple_of(32) && rseq.len() >= 32, "{rseq:x?}");
    // struct rseq { u32 cpu_id_start; u32 cpu_id; … }: the kernel keeps both equal while it is
    // registered.
    let [cpus] = read_words::<1>(rseq.start).expect("read").expect("readable");
    assert_eq!(cpus as u32, (cpus >> 32) as u32);
    let online = std::thread::available_parallelism().map_or(1, std::num::NonZero::get).max(1024);
    assert!((cpus as u32 as usize) < online);
}

#[test]
fn the_word_that_the_kernel_clears_at_a_threads_exit_is_pinned() {
    const PR_GET_TID_ADDRESS: usize = 40;
    let layout = ThreadLayout::of_current_thread().expect("a robust list");
    let (tid, _) = own_view();
    let mut address = 0usize;
    // SAFETY: the kernel writes one address to the borrowed variable.
    let asked = unsafe {
        syscall3(
            linux_raw_sys::general::__NR_prctl,
            PR_GET_TID_ADDRESS,
            (&raw mut address).expose_provenance(),
            0,
        )
    };
    let areas = areas(&mut ThreadWalker::new(Some(layout)).expect("open"));
    let mine = areas.iter().find(|area| area.tid == tid).expect("this thread");
    assert!(mine.kernel_reads().any(|range| range.contains(&mine.control_block)));
    assert!(mine.rseq.as_ref().is_none_or(|rseq| mine.kernel_reads().any(|range| range == *rseq)));
    // Only a kernel with checkpoints tells.
    if asked.is_ok() {
        assert!(mine.kernel_reads().any(|range| range.contains(&address)), "{address:x} {mine:x?}");
    }
}

/// As the kernel defines it: the list head that a thread registers, and an entry of its list.
#[repr(C)]
struct Head {
    next: usize,
    futex_offset: isize,
    pending: usize,
}

fn locks(head: &Head) -> Vec<usize> {
    let mut found = Vec::new();
    for_each_robust_lock((&raw const *head).expose_provenance(), |futex| found.push(futex)).expect("walk");
    found
}

#[test]
fn a_list_of_robust_locks_is_walked_and_a_wild_or_endless_one_ends() {
    let entries = [const { AtomicUsize::new(0) }; 3];
    let at = |index: usize| (&raw const entries[index]).expose_provenance();
    let set = |index: usize, next: usize| entries[index].store(next, Ordering::Relaxed);
    let mut head = Head { next: 0, futex_offset: -32, pending: 0 };
    head.next = (&raw const head).addr();
    assert_eq!(locks(&head), []);

    set(0, at(1) | 1);
    set(1, (&raw const head).addr());
    (head.next, head.pending) = (at(0), at(2));
    assert_eq!(locks(&head), [at(2) - 32, at(0) - 32, at(1) - 32]);

    set(1, 0xdead_0000_0000_0000);
    assert_eq!(locks(&head).len(), 3, "an address that can't be read ends the walk");
    set(1, at(0));
    assert_eq!(locks(&head).len(), 1 + ROBUST_LOCKS_MAX, "a ring is not walked for ever");
    let mut told = 0;
    for_each_robust_lock(8, |_| told += 1).expect("a wild head");
    assert_eq!(told, 0);
}

#[test]
fn a_thread_that_is_gone_is_skipped() {
    let gone = std::thread::spawn(|| own_view().0).join().expect("joined");
    // The number is free once the thread has left the kernel, which may be a moment after the join.
    while rustix::fs::stat(format!("/proc/self/task/{gone}")).is_ok() {
        std::thread::yield_now();
    }
    assert_eq!(robust_list_head_of(gone).expect("no error"), None);
    assert_eq!(tid_from(c".."), None);
    assert_eq!(tid_from(c"123"), Some(123));
}
