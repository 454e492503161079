//! A process that goes on after its maker: a fork that has left its maker's session, directory,
//! streams and signals.
//!
//! It must never keep a descriptor open that it does not need: a reader of a pipe would wait for
//! its end.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs `body` in such a process. Of the descriptors it has those in `keeps`. Its maker has to have
/// one thread only.
///
/// # Errors
/// Those of fork(2).
pub fn leave_behind(keeps: &[RawFd], body: impl FnOnce()) -> io::Result<()> {
    // SAFETY: the maker has one thread, so that the child has a copy of all its state, and no lock
    // in it is held.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            // A panic must not return into the maker's code.
            let _ = catch_unwind(AssertUnwindSafe(|| {
                detach(keeps);
                body();
            }));
            // SAFETY: it ends this process, without the maker's destructors.
            unsafe { libc::_exit(0) }
        }
        _ => Ok(()),
    }
}

fn detach(keeps: &[RawFd]) {
    // Each may fail only where the process is detached already.
    let _ = rustix::process::setsid();
    let _ = rustix::process::chdir(c"/");
    if let Ok(null) = fs::File::options().read(true).write(true).open("/dev/null") {
        for stream in 0..3 {
            // SAFETY: it replaces a standard stream, which no value here owns.
            unsafe { libc::dup2(null.as_raw_fd(), stream) };
        }
    }
    let numbers = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let numbers: Vec<RawFd> = numbers.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    for number in numbers.into_iter().filter(|number| *number > 2 && !keeps.contains(number)) {
        // SAFETY: the maker's values that own these are never used or dropped in this process.
        unsafe { libc::close(number) };
    }
    // SAFETY: both sets are valid, and the signals' actions are the defaults.
    unsafe {
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    #[test]
    fn it_has_the_descriptors_that_it_keeps_and_no_others() {
        let (mut kept, other) = UnixStream::pair().expect("a pair");
        let (mut closed, closed_other) = UnixStream::pair().expect("a pair");
        leave_behind(&[other.as_raw_fd()], || {
            let session = rustix::process::getsid(None).ok();
            let is_own = session == Some(rustix::process::getpid());
            let _ = rustix::io::write(&other, &[u8::from(is_own)]);
            // Until the test has ended.
            let _ = rustix::io::read(&other, &mut [0; 1]);
        })
        .expect("a process");
        drop(closed_other);
        assert_eq!(closed.read(&mut [0]).expect("its end"), 0, "it is open nowhere else");
        let mut byte = [0];
        kept.read_exact(&mut byte).expect("it runs");
        assert_eq!(byte, [1], "a session of its own");
    }
}
