//! The system calls that `rustix` does not offer, made by hand.
//!
//! Not through the C library: its wrapper writes `errno`, which lies in thread-local storage, and a
//! thread of the engine inside another program has none of its own. This file must never touch
//! memory other than its arguments.

use rustix::io::Errno;

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("Pagoda runs on x86_64 and aarch64 Linux");

/// Makes system call `number` with six arguments.
///
/// # Safety
/// The call must be sound with these arguments: every pointer among them is valid for the kernel's
/// use of it, and the call changes nothing that safe code relies on.
#[inline]
pub(crate) unsafe fn syscall6(number: u32, arguments: [usize; 6]) -> Result<usize, Errno> {
    let [a, b, c, d, e, f] = arguments;
    let result: isize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller vouches for the call; the clobbers are those of the x86_64 system call
    // convention.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack)
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the caller vouches for the call; the kernel preserves every register but the result.
    unsafe {
        std::arch::asm!(
            "svc #0",
            in("x8") number as usize,
            inlateout("x0") a => result,
            in("x1") b, in("x2") c, in("x3") d, in("x4") e, in("x5") f,
            options(nostack)
        );
    }
    // The kernel returns errors as -4095..=-1.
    if (-4095..0).contains(&result) {
        return Err(Errno::from_raw_os_error(-result as i32));
    }
    Ok(result as usize)
}

/// [`syscall6`] with the rest of the arguments zero.
///
/// # Safety
/// As for [`syscall6`].
#[inline]
pub(crate) unsafe fn syscall3(number: u32, a: usize, b: usize, c: usize) -> Result<usize, Errno> {
    // SAFETY: passed on to the caller.
    unsafe { syscall6(number, [a, b, c, 0, 0, 0]) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linux_raw_sys::general::{__NR_close, __NR_getpid};

    #[test]
    fn results_and_errors_are_told_apart() {
        // SAFETY: getpid takes no arguments.
        let pid = unsafe { syscall3(__NR_getpid, 0, 0, 0) };
        assert_eq!(pid, Ok(std::process::id() as usize));
        // SAFETY: no descriptor has this number, so nothing is closed.
        let closed = unsafe { syscall3(__NR_close, i32::MAX as usize, 0, 0) };
        assert_eq!(closed, Err(Errno::BADF));
    }
}
