//! The end of the program that the user named, where `pagoda run` was killed before: the tree's
//! file and its socket are removed all the same.
//!
//! It ends here if it returns or calls exit(3). After _exit(2) or a signal no destructor runs, and
//! the next `pagoda run` removes the file. This module must never remove it from a live
//! `pagoda run`, which has yet to read it; nor allocate, for it runs on the program's own stack,
//! which is managed memory.

use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::OnceLock;

use pagoda::tree::{Member, place};

static NAMED: OnceLock<(Member, [&'static CStr; 2])> = OnceLock::new();

/// This process is the program that the user named, and `file` is its tree's. For its beginning.
pub fn remember(member: Member, file: &Path) {
    let leaked = |path: &Path| {
        CString::new(path.as_os_str().as_bytes()).map(|path| &*Box::leak(path.into_boxed_c_str()))
    };
    if let (Ok(file), Ok(socket)) = (leaked(file), leaked(&place::custody_of(file))) {
        let _ = NAMED.set((member, [file, socket]));
    }
}

#[used]
// SAFETY: the section holds pointers to functions that the C library calls when the process calls
// exit(3), with itself usable.
#[unsafe(link_section = ".fini_array")]
static DESTRUCTOR: extern "C" fn() = destruct;

extern "C" fn destruct() {
    if let Some((member, files)) = NAMED.get()
        // A child has the pointer, and not its target; but it is no heir.
        && member.is_heir()
    {
        for file in files {
            // SAFETY: it is a C string, leaked in this process. The name is of one file alone: it
            // has its maker's number and the time.
            unsafe { libc::unlink(file.as_ptr()) };
        }
    }
}
