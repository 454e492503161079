//! An access that may be a fault of the program's own: the word it read, or the signal that it got.
//!
//! The handler continues behind the instruction. It must never hide a fault of anything else: those
//! end the process as ever.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

/// Where the current access continues after a signal; 0 if there is none.
static RESUME: AtomicUsize = AtomicUsize::new(0);
static TAKEN: Mutex<()> = Mutex::new(());

/// The right to try accesses: one thread's at a time. SIGSEGV and SIGBUS are its own for good.
pub struct Access {
    _taken: MutexGuard<'static, ()>,
}

extern "C" fn skip(signal: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let resume = RESUME.swap(0, Ordering::SeqCst);
    if resume == 0 {
        // SAFETY: it puts the default back; the instruction runs again, and the process ends by it.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
        return;
    }
    // SAFETY: the kernel hands the interrupted thread's registers to a handler with SA_SIGINFO, for
    // it to change.
    let context = unsafe { &mut *context.cast::<libc::ucontext_t>() };
    context.uc_mcontext.gregs[libc::REG_RIP as usize] = resume as i64;
    context.uc_mcontext.gregs[libc::REG_RAX as usize] = i64::from(signal);
}

/// Runs one instruction that may fault, with the operands it names: the signal that came, or 0.
///
/// A fault sets rax and continues at the label, with all other registers as they were. So the
/// caller vouches that the instruction can be left out, and that it leaves rax and the stack alone.
macro_rules! tried {
    ($instruction:literal, $($operands:tt)+) => {{
        let signal: u64;
        std::arch::asm!(
            "lea {resume}, [rip + 2f]",
            "mov qword ptr [{slot}], {resume}",
            "xor eax, eax",
            $instruction,
            "2:",
            resume = out(reg) _,
            slot = in(reg) RESUME.as_ptr(),
            $($operands)+,
            out("rax") signal,
            options(nostack),
        );
        RESUME.store(0, Ordering::SeqCst);
        signal as i32
    }};
}

impl Access {
    /// Takes the right and both signals.
    ///
    /// # Errors
    /// The kernel's.
    pub fn begin() -> io::Result<Self> {
        // A holder that panicked was a test that failed.
        let taken = TAKEN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // SAFETY: all zeroes is a sigaction without flags; the handler only uses atomics and the
        // context.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = skip as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        for signal in [libc::SIGSEGV, libc::SIGBUS] {
            // SAFETY: as above.
            if unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) } != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(Self { _taken: taken })
    }

    /// Reads the word at `address`.
    ///
    /// # Errors
    /// The signal that came.
    ///
    /// # Safety
    /// If something is there, no other thread writes it meanwhile.
    pub unsafe fn read(&self, address: usize) -> Result<u64, i32> {
        let mut word = 0;
        // SAFETY: it loads one word, from an address for which the caller vouches.
        let signal =
            unsafe { tried!("mov {word}, qword ptr [{at}]", at = in(reg) address, word = inout(reg) word) };
        if signal == 0 { Ok(word) } else { Err(signal) }
    }

    /// Reads the word at `address` and forgets it: so other threads may write it meanwhile.
    ///
    /// # Errors
    /// The signal that came.
    pub fn touch(&self, address: usize) -> Result<(), i32> {
        // SAFETY: the word is not used, and to the compiler it is the instruction's, not a load of
        // its own.
        unsafe { self.read(address) }.map(|_| ())
    }

    /// Writes the word at `address`.
    ///
    /// # Errors
    /// The signal that came.
    ///
    /// # Safety
    /// If something is there, it is the caller's to write, and not borrowed.
    pub unsafe fn write(&self, address: usize, word: u64) -> Result<(), i32> {
        // SAFETY: it stores one word, to an address for which the caller vouches.
        let signal =
            unsafe { tried!("mov qword ptr [{at}], {word}", at = in(reg) address, word = in(reg) word) };
        if signal == 0 { Ok(()) } else { Err(signal) }
    }
}
