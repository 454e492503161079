//! Whether valgrind runs this process.
//!
//! Valgrind translates the program's code and serves its system calls itself. It can't follow raw
//! threads, and its own memory lies in the same address space. This module must never change
//! anything but the answer.

/// `VG_USERREQ__RUNNING_ON_VALGRIND` of valgrind.h.
const RUNNING_ON_VALGRIND: usize = 0x1001;

/// Whether valgrind runs this process. A few instructions that do nothing elsewhere.
#[must_use]
pub fn is_in_valgrind() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        let request = [RUNNING_ON_VALGRIND, 0, 0, 0, 0, 0];
        let depth: usize;
        // SAFETY: the four rotations are by 128 bits in all, and the exchange is with itself. Only
        // valgrind, which knows this sequence as a request, puts an answer into `rdx`.
        unsafe {
            std::arch::asm!(
                "rol rdi, 3",
                "rol rdi, 13",
                "rol rdi, 61",
                "rol rdi, 51",
                "xchg rbx, rbx",
                in("rax") request.as_ptr(),
                inout("rdx") 0usize => depth,
                options(nostack, readonly),
            );
        }
        depth != 0
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_itself_is_not_taken_for_valgrind() {
        assert!(!is_in_valgrind());
    }
}
