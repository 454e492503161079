//! A terminal of a test's own: the user's keys, and a program that has it as its controlling
//! terminal.
//!
//! Where there are none (a container without devpts), one is made by a file system that is mounted
//! nowhere.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::process::Command;

use pagoda_linux::testing::terminal::{control_by_standard_input, program_end};
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
        let program = program_end(&user)?;
        Ok(Self { user: user.into(), program })
    }

    /// Makes this the controlling terminal of a new session that `command` leads, and all three of
    /// its streams.
    pub(crate) fn give_to(self, command: &mut Command) -> io::Result<File> {
        let Self { user, program } = self;
        command.stdin(program.try_clone()?).stdout(program.try_clone()?).stderr(program);
        control_by_standard_input(command);
        Ok(user)
    }
}
