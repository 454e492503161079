//! Threads end while the memory around their control block is being taken out: whoever joins them gets them. The kernel
//! clears a thread's ID in its control block without serving faults, so a page that is out there would mean a hang.
//!
//! The threads are the C library's own, on stacks of our choice, which no safe interface offers. None may outlive the round
//! that started it.

use std::ffi::c_void;
use std::time::Duration;

use crate::pressure::Arena;
use crate::support::memory::{Mapping, PAGE};
use crate::support::random::Random;

/// Pages of a stack of our own making: 512 KiB.
const STACK_PAGES: usize = 128;

/// What a thread does: uses some of its stack, rests for so long, uses it again, and ends.
struct Task {
    depth: usize,
    rest_us: u64,
}

extern "C" fn thread(task: *mut c_void) -> *mut c_void {
    // SAFETY: the argument is a Task, which whoever started this thread keeps and does not write until it has joined it.
    let task = unsafe { &*task.cast::<Task>() };
    let sum = dive(task.depth, task.rest_us);
    std::ptr::without_provenance_mut(sum)
}

/// 4 KiB of stack a level, checked on the way back. Returns how many levels were right.
#[inline(never)]
fn dive(depth: usize, rest_us: u64) -> usize {
    let mut words = [depth; PAGE / 8];
    std::hint::black_box(&mut words);
    let below = if depth > 1 {
        dive(depth - 1, rest_us)
    } else {
        if rest_us > 0 {
            std::thread::sleep(Duration::from_micros(rest_us));
        }
        0
    };
    std::hint::black_box(&mut words);
    below + usize::from(words.iter().all(|&word| word == depth))
}

pub fn body(arena: &Arena, seed: u64) -> Result<(), String> {
    let mut random = Random::new(seed, 8);
    let mut stacks = Vec::new();
    for _ in 0..4 {
        let mut stack = Mapping::new(STACK_PAGES).map_err(|error| error.to_string())?;
        // As if it had been used deeply before.
        stack.words_mut(0..STACK_PAGES).fill(0xdead);
        stacks.push(stack);
    }
    arena.wait_until_managed(&stacks[0]);
    while arena.next_round() {
        // Each thread has a task, and half of them a stack of our own making.
        let rest_us = if random.one_in(16) { random.below(30_000) as u64 } else { 0 };
        let tasks: Vec<Task> =
            stacks.iter().map(|_| Task { depth: random.between(1, 80), rest_us }).collect();
        let mut threads = Vec::new();
        for (stack, task) in stacks.iter().zip(&tasks) {
            arena.look(stack);
            let own = random.one_in(2).then_some(stack);
            threads.push((start(own, task)?, task.depth));
        }
        for (thread, depth) in threads {
            let mut right = std::ptr::null_mut();
            // SAFETY: the thread was started above, is not detached, and is joined once; `right` is there to be written.
            let joined = unsafe { libc::pthread_join(thread, &raw mut right) };
            if joined != 0 || right.addr() != depth {
                return Err(format!("join: {joined}; {} of {depth} stack frames are right", right.addr()));
            }
        }
    }
    Ok(())
}

fn start(stack: Option<&Mapping>, task: &Task) -> Result<libc::pthread_t, String> {
    let mut attributes = std::mem::MaybeUninit::<libc::pthread_attr_t>::uninit();
    let mut id = 0;
    let argument = std::ptr::from_ref(task).cast_mut().cast();
    // SAFETY: the attributes are initialised first and destroyed last. The stack is whole pages of a mapping that nobody reads
    // or writes until the thread is joined, and large enough for the deepest dive; the task is a Task, as `thread` expects, and
    // stays as long. The caller joins every thread before it lets go of either.
    let started = unsafe {
        libc::pthread_attr_init(attributes.as_mut_ptr());
        if let Some(stack) = stack {
            let at = std::ptr::with_exposed_provenance_mut(stack.start());
            libc::pthread_attr_setstack(attributes.as_mut_ptr(), at, stack.pages() * PAGE);
        }
        let started = libc::pthread_create(&raw mut id, attributes.as_ptr(), thread, argument);
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        started
    };
    if started == 0 { Ok(id) } else { Err(format!("pthread_create: {started}")) }
}
