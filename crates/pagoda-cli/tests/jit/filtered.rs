//! System call filters: a thread, and a child, that may call almost nothing any more touch memory that is out.

use crate::pressure::{Arena, check, fill};
use crate::support::memory::Mapping;

const PAGES: usize = 96;
const LOAD_NUMBER: (u16, u32) = (0x20, 0);
const JUMP_IF_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;
const ALLOW: u32 = 0x7fff_0000;
const NOT_PERMITTED: u32 = 0x0005_0000 | libc::EPERM as u32;

/// From now on this thread's system calls with these numbers are not permitted; or, with `only`, all others.
fn filter(calls: &[libc::c_long], only: bool) -> Result<(), String> {
    let step = |code, k, jt| libc::sock_filter { code, jt, jf: 0, k };
    let (listed, other) = if only { (ALLOW, NOT_PERMITTED) } else { (NOT_PERMITTED, ALLOW) };
    let mut program = vec![step(LOAD_NUMBER.0, LOAD_NUMBER.1, 0)];
    for (i, &call) in calls.iter().enumerate() {
        // Past the other comparisons and the answer to what is not listed.
        program.push(step(JUMP_IF_EQUAL, call as u32, (calls.len() - i) as u8));
    }
    program.extend([step(RETURN, other, 0), step(RETURN, listed, 0)]);
    let given = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the first call takes numbers only; for the second the kernel reads the program, which lives until it
    // returns.
    let done = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const given) == 0
    };
    if done { Ok(()) } else { Err(format!("seccomp: {}", std::io::Error::last_os_error())) }
}

/// A thread that may not use what an engine in it would need.
pub fn thread(arena: &Arena, _: u64) -> Result<(), String> {
    let mut mapping = Mapping::new(PAGES).map_err(|error| error.to_string())?;
    let mut tag = 0;
    while arena.next_round() {
        tag += 1;
        fill(&mut mapping, 0..PAGES, tag);
        arena.wait_until_managed(&mapping);
        let mapping = &mapping;
        let work = move || {
            let calls =
                [libc::SYS_userfaultfd, libc::SYS_ioctl, libc::SYS_mremap, libc::SYS_openat, libc::SYS_clone];
            filter(&calls, false)?;
            check(mapping, 0..PAGES, tag)
        };
        std::thread::scope(|scope| scope.spawn(work).join()).expect("it does not panic")?;
    }
    Ok(())
}

/// A child that may only write, end, and wait.
pub fn child(arena: &Arena, _: u64) -> Result<(), String> {
    let mut mapping = Mapping::new(PAGES).map_err(|error| error.to_string())?;
    let mut tag = 0;
    while arena.next_round() {
        tag += 1;
        fill(&mut mapping, 0..PAGES, tag);
        arena.wait_until_managed(&mapping);
        // SAFETY: the child filters, reads, writes one line and ends: it takes no lock.
        match unsafe { libc::fork() } {
            0 => in_child(&mut mapping, tag),
            pid if pid > 0 => {
                let mut status = 0;
                // SAFETY: `status` is ours to write.
                unsafe { libc::waitpid(pid, &raw mut status, 0) };
                if status != 0 {
                    return Err(format!("the filtered child ended with {status:#x}"));
                }
            }
            _ => return Err(format!("fork: {}", std::io::Error::last_os_error())),
        }
        check(&mapping, 0..PAGES, tag)?;
    }
    Ok(())
}

fn in_child(mapping: &mut Mapping, tag: u64) -> ! {
    let calls = [
        libc::SYS_read,
        libc::SYS_write,
        libc::SYS_exit_group,
        libc::SYS_exit,
        libc::SYS_futex,
        libc::SYS_rt_sigreturn,
        libc::SYS_sched_yield,
        libc::SYS_brk,
    ];
    let right = filter(&calls, true).and_then(|()| {
        check(mapping, 0..PAGES, tag)?;
        fill(mapping, 0..PAGES, tag + 1);
        check(mapping, 0..PAGES, tag + 1)
    });
    let status = match right {
        Ok(()) => 0,
        Err(wrong) => {
            // SAFETY: the kernel reads this many bytes.
            unsafe { libc::write(2, wrong.as_ptr().cast(), wrong.len()) };
            9
        }
    };
    // SAFETY: it has no precondition.
    unsafe { libc::_exit(status) }
}
