//! A terminal of a test's own: what a user types, and a program that has it as its controlling terminal.
//!
//! Where there are none (a container without devpts), one is made by a file system that is mounted nowhere.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

/// The two ends of a terminal.
pub(crate) struct Terminal {
    /// Where the user sits.
    pub(crate) user: File,
    program: OwnedFd,
}

impl Terminal {
    pub(crate) fn open() -> io::Result<Self> {
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let user = openat(CWD, c"/dev/ptmx", flags, Mode::empty()).or_else(|_| -> rustix::io::Result<_> {
            let devpts = fsopen(c"devpts", FsOpenFlags::FSOPEN_CLOEXEC)?;
            fsconfig_create(&devpts)?;
            let mount = fsmount(&devpts, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
            openat(&mount, c"ptmx", flags, Mode::empty())
        })?;
        let unlocked: libc::c_int = 0;
        // SAFETY: reads one int, which is there.
        if unsafe { libc::ioctl(user.as_raw_fd(), libc::TIOCSPTLCK, &unlocked) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
        // SAFETY: touches no memory of ours, and returns a new descriptor.
        let program = unsafe { libc::ioctl(user.as_raw_fd(), libc::TIOCGPTPEER, flags) };
        if program < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was made just now, and nobody else has it.
        let program = unsafe { OwnedFd::from_raw_fd(program) };
        Ok(Self { user: user.into(), program })
    }

    /// Makes this the controlling terminal of a new session that `command` leads, and all three of its streams.
    pub(crate) fn give_to(self, command: &mut Command) -> io::Result<File> {
        let Self { user, program } = self;
        command.stdin(program.try_clone()?).stdout(program.try_clone()?).stderr(program);
        let take = || {
            // SAFETY: makes this process the leader of a session; touches no memory.
            let session = unsafe { libc::setsid() };
            // SAFETY: standard input is the terminal by now; touches no memory.
            if session < 0 || unsafe { libc::ioctl(0, libc::TIOCSCTTY, 0) } != 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(())
        };
        // SAFETY: two system calls, both allowed between fork and exec.
        unsafe { command.pre_exec(take) };
        Ok(user)
    }
}
