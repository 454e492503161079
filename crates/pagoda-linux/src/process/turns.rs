//! How long a thread keeps a processor that others want, too.
//!
//! Since Linux 6.12 each thread may have a turn of its own length; before that all have the same.
//! This module must never change a thread's policy or nice value.

use linux_raw_sys::general as raw;

use crate::raw_syscall::syscall6;

/// A turn: a tenth of the usual one on two processors (`base_slice_ns` of sched's debugfs).
const TURN_NS: u64 = 300_000;

/// The policies whose threads take turns by their slices: SCHED_OTHER and SCHED_BATCH of
/// linux/sched.h.
const TAKES_TURNS: [u32; 2] = [0, 3];

/// Lets the calling thread take short turns, from now on: others wait less for its processor. An
/// older kernel changes nothing.
pub fn take_short_turns() {
    if let Some(mut attributes) = own_attributes()
        && TAKES_TURNS.contains(&attributes.sched_policy)
    {
        attributes.sched_runtime = TURN_NS;
        let from = std::ptr::from_ref(&attributes).expose_provenance();
        // SAFETY: the kernel reads a `struct sched_attr` of the size that it names, and changes how
        // this thread is scheduled alone.
        let _ = unsafe { syscall6(raw::__NR_sched_setattr, [0, from, 0, 0, 0, 0]) };
    }
}

/// How the calling thread is scheduled.
fn own_attributes() -> Option<libc::sched_attr> {
    let mut attributes = std::mem::MaybeUninit::<libc::sched_attr>::zeroed();
    let (into, size) = (attributes.as_mut_ptr().expose_provenance(), size_of::<libc::sched_attr>());
    // SAFETY: the kernel writes at most `size` bytes to `attributes`, which has as many.
    let result = unsafe { syscall6(raw::__NR_sched_getattr, [0, into, size, 0, 0, 0]) };
    // SAFETY: it was zeroed, and every field is a number for which all bits are valid.
    result.ok().map(|_| unsafe { attributes.assume_init() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_become_short_and_nothing_else_changes() {
        let (before, after) = std::thread::spawn(|| {
            let before = own_attributes().expect("it is scheduled somehow");
            take_short_turns();
            (before, own_attributes().expect("it is scheduled somehow"))
        })
        .join()
        .expect("it ends");
        assert_eq!((after.sched_policy, after.sched_nice), (before.sched_policy, before.sched_nice));
        // An older kernel tells no turn at all.
        if before.sched_runtime != 0 {
            assert_eq!(after.sched_runtime, TURN_NS);
        }
    }
}
