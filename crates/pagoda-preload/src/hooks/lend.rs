//! The calls of the C library that lend a program's pages to the kernel without pinning them: they
//! copy here, or fail.
//!
//! The kernel lets a page be moved away that a pipe or a socket still holds (`vmsplice`,
//! `MSG_ZEROCOPY`). Its frame would serve another page then, and the reader of the pipe would read
//! that. A copy in place of a loan keeps the promise of both calls to a reader. This module must
//! never lend a page, in any process of a tree: an engine may begin while it is held.

use std::ffi::{c_int, c_uint, c_void};

use pagoda_core::page::OS_PAGE;

use super::real::{errno, own_errno, place, required};
use crate::current::tree;

/// Of asm-generic/socket.h.
const SO_ZEROCOPY: c_int = 60;

type Vmsplice = unsafe extern "C" fn(c_int, *const libc::iovec, usize, c_uint) -> isize;
type SetSockOpt = unsafe extern "C" fn(c_int, c_int, c_int, *const c_void, libc::socklen_t) -> c_int;

/// As vmsplice(2), except that its pages are copied to the pipe.
///
/// # Safety
/// As for the real function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmsplice(
    pipe: c_int,
    parts: *const libc::iovec,
    count: usize,
    flags: c_uint,
) -> isize {
    // SAFETY: it looks at a descriptor.
    let mode = unsafe { libc::fcntl(pipe, libc::F_GETFL) };
    // Out of a pipe it copies anyway, and a descriptor of no pipe is refused.
    if tree().is_some() && mode != -1 && mode & libc::O_ACCMODE != libc::O_RDONLY && is_pipe(pipe) {
        // SAFETY: the caller's arguments.
        let put = unsafe { put_copies(pipe, parts, count, flags) };
        // Where a pipe can't be written to without waiting, the kernel has no moves either, and
        // nothing is managed.
        if put != -1 {
            return put;
        }
        if own_errno() != libc::EOPNOTSUPP {
            errno().set(own_errno());
            return put;
        }
    }
    let real = required(const { place("vmsplice") });
    // SAFETY: `real` found the function of this name behind this library, which has this type; the
    // caller's arguments.
    unsafe { std::mem::transmute::<*mut c_void, Vmsplice>(real)(pipe, parts, count, flags) }
}

/// Copies as much into a pipe as there is room for. If there is none it waits, unless the flags say
/// otherwise, and puts one page there: a thread that is about to read the pipe itself must not wait
/// for more.
///
/// # Safety
/// As for vmsplice(2).
unsafe fn put_copies(pipe: c_int, parts: *const libc::iovec, count: usize, flags: c_uint) -> isize {
    let number = count.cast_signed();
    // SAFETY: the caller's parts, which may be read. A pipe has no offset.
    let put =
        unsafe { libc::syscall(libc::SYS_pwritev2, pipe, parts, number, -1isize, 0isize, libc::RWF_NOWAIT) }
            as isize;
    if put != -1 || own_errno() != libc::EAGAIN || flags & libc::SPLICE_F_NONBLOCK != 0 {
        return put;
    }
    // SAFETY: the kernel has read all of them just now.
    let parts = unsafe { std::slice::from_raw_parts(parts, count) };
    let first = parts.iter().find(|part| part.iov_len > 0);
    // SAFETY: as above. A write of at most a page is atomic: it waits until there is room for one.
    first.map_or(0, |part| unsafe {
        libc::syscall(libc::SYS_write, pipe, part.iov_base, part.iov_len.min(OS_PAGE)) as isize
    })
}

fn is_pipe(descriptor: c_int) -> bool {
    let mut about = std::mem::MaybeUninit::<libc::stat64>::uninit();
    // SAFETY: it fills its argument, which is read only if it says so.
    unsafe {
        libc::fstat64(descriptor, about.as_mut_ptr()) == 0
            && about.assume_init().st_mode & libc::S_IFMT == libc::S_IFIFO
    }
}

/// As setsockopt(2), but that `SO_ZEROCOPY` is not known: a sender copies then.
///
/// # Safety
/// As for the real function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setsockopt(
    socket: c_int,
    level: c_int,
    option: c_int,
    value: *const c_void,
    length: libc::socklen_t,
) -> c_int {
    if level == libc::SOL_SOCKET && option == SO_ZEROCOPY && tree().is_some() {
        errno().set(libc::ENOPROTOOPT);
        return -1;
    }
    let real = required(const { place("setsockopt") });
    // SAFETY: as in `vmsplice`.
    unsafe { std::mem::transmute::<*mut c_void, SetSockOpt>(real)(socket, level, option, value, length) }
}
