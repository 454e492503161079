//! Custody: `pagoda run` holds a copy of each member's userfaultfd, for processes that share a
//! member's memory and outlive it (a raw `clone(CLONE_VM)`, a vfork whose parent is killed).
//!
//! Registrations end with the last descriptor, and from then on missing pages read as zero. With
//! the copy such a process waits at a missing page instead. Its fault is answered with poison: it
//! gets SIGBUS, because nothing is left that could bring the page back. Each member keeps a
//! connection in its engine's own table of descriptors, so that the kernel itself tells when the
//! engine has ended.
//!
//! This module must never read a message of a descriptor whose engine still runs, and never make a
//! member wait.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, chmodat, openat};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, accept_with, bind, connect, listen, recvmsg, sendmsg,
};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::arena::Space;
use crate::io::local_socket::socket_for;
use crate::io::ring::is_filtered;
use crate::mem::range::PageRange;
use crate::process::caller::sleep_us;
use crate::process::thread::now_ns;
use crate::uffd::{Message, Stop, Uffd};

/// What a member leaves with its descriptor; all zero if nothing.
pub type Note = [u8; 16];

/// Members that are held at a time: one in each place of a tree, and as many more for children of
/// orphans. Each takes two descriptors at most. Those beyond are given back at once, and their
/// members go without.
const HELD_MOST: usize = 2048;

/// Members that wait to be let in. A member that finds the queue full tries again for a moment.
const QUEUE: i32 = 1024;
const TRIES: u32 = 20;
const TRY_US: u32 = 500;

/// The pause after an error that no call of ours mends.
const PAUSE_US: u32 = 20_000;

/// How often it is checked whether an orphan's memory is gone: nothing tells of it.
const CHECK_NS: i64 = 200_000_000;

/// How long a member's own threads may go on after its engine: those of a killed process end one
/// after the other. After this the member has executed another program.
const ENDING_NS: u64 = 1_000_000_000;

/// How often it is checked whether a member has ended: as rarely as its survivors may wait.
const ENDING_CHECK_NS: i64 = 5_000_000;

/// All addresses that a page can be waited for at.
const EVERYTHING: (usize, usize) = (1 << 16, 0x7fff_ffff_f000);

/// A page that is hardly ever mapped. A call on it tells whether there is memory at all.
const TOP_PAGE: (usize, usize) = (0x7fff_ffff_d000, 0x7fff_ffff_e000);

fn range((start, end): (usize, usize)) -> PageRange {
    PageRange::new(start, end).expect("a constant range of whole pages")
}

impl Space {
    /// Gives a copy of its descriptor to the custodian at this path, for as long as this process's
    /// engine lives, with a `note` that the custodian's owner gets when it has ended. Waits for
    /// some milliseconds at most.
    ///
    /// # Errors
    /// There is no custodian, no descriptor, or a filter of system calls that might end the
    /// process. Processes that outlive this one in its memory read zeroes then.
    pub fn entrust(&self, at: &Path, note: Note) -> io::Result<()> {
        entrust(at, &self.uffd, note).map(std::mem::forget)
    }
}

/// The connection on which a copy of `uffd` went to the custodian.
fn entrust(at: &Path, uffd: &Uffd, note: Note) -> io::Result<OwnedFd> {
    if is_filtered() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let (socket, address, _directory) = socket_for(at)?;
    let mut tries = 0;
    loop {
        match connect(&socket, &address) {
            Ok(()) => break,
            Err(Errno::AGAIN | Errno::INTR) if tries < TRIES => sleep_us(TRY_US),
            Err(errno) => return Err(errno.into()),
        }
        tries += 1;
    }
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut rights = SendAncillaryBuffer::new(&mut room);
    let descriptors = [uffd.as_fd()];
    rights.push(SendAncillaryMessage::ScmRights(&descriptors));
    sendmsg(&socket, &[IoSlice::new(&note)], &mut rights, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?;
    Ok(socket)
}

/// A copy of a descriptor.
struct Held {
    /// The process that gave it.
    member: u32,
    /// Open as long as that process's engine lives.
    line: Option<OwnedFd>,
    /// From when on its threads are not waited for; while they are, faults may be theirs.
    ending_until_ns: Option<u64>,
    /// Not here yet, as long as the process has only connected.
    uffd: Option<Uffd>,
    note: Note,
}

impl Held {
    fn waits_at(&self) -> Option<BorrowedFd<'_>> {
        let uffd = self.uffd.as_ref().filter(|_| self.ending_until_ns.is_none());
        self.line.as_ref().map(AsFd::as_fd).or_else(|| uffd.map(AsFd::as_fd))
    }

    /// Whether threads of the member itself may still be there. They are ended and not refused a
    /// page, though one that was killed on its way to a page leaves a fault for a moment.
    fn is_ending(&mut self) -> bool {
        let until_ns = self.ending_until_ns;
        self.ending_until_ns = until_ns.filter(|until_ns| now_ns() < *until_ns && !has_ended(self.member));
        self.ending_until_ns.is_some()
    }

    /// Reads what the member sent, and whether its engine has ended: `ended` gets its note then.
    /// False if nothing can come of it.
    fn listen(&mut self, ended: &mut impl FnMut(Note)) -> bool {
        let Some(line) = &self.line else { return true };
        loop {
            let mut note = Note::default();
            let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut rights = RecvAncillaryBuffer::new(&mut room);
            let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
            match recvmsg(line, &mut [IoSliceMut::new(&mut note)], &mut rights, flags) {
                Ok(message) if message.bytes == 0 => break,
                Ok(_) => {
                    let descriptors = rights.drain().filter_map(|message| match message {
                        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
                        _ => None,
                    });
                    let came = descriptors.flatten().last().map(Uffd::of_parent);
                    // Without a descriptor there was no room for it.
                    if came.is_none() {
                        return false;
                    }
                    (self.uffd, self.note) = (came, note);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return true,
                Err(_) => break,
            }
        }
        (self.line, self.ending_until_ns) = (None, Some(now_ns() + ENDING_NS));
        if self.note != Note::default() {
            ended(self.note);
        }
        // Faults that the engine had read, and not answered, are told again.
        self.uffd.iter().for_each(|uffd| uffd.wake(range(EVERYTHING)));
        self.uffd.is_some()
    }

    /// Whether anything still has the memory of an engine that has ended.
    fn is_orphan(&self) -> bool {
        let is_gone = |uffd: &Uffd| uffd.poison(range(TOP_PAGE)).stop == Some(Stop::Gone);
        self.line.is_none() && self.uffd.as_ref().is_some_and(|uffd| !is_gone(uffd))
    }

    /// Answers the faults and events of an orphan. Returns how many pages were refused to it, and
    /// the descriptors of its children.
    fn answer(&mut self) -> (u64, Vec<Self>) {
        let (mut faults, mut held, mut born) = (Vec::new(), Vec::new(), Vec::new());
        if self.is_ending() {
            return (0, born);
        }
        let Some(uffd) = self.uffd.as_ref().filter(|_| self.line.is_none()) else { return (0, born) };
        // What can't be read now, for want of descriptors, is read later: the process waits.
        let _ = uffd.read(|message| match message {
            // There is no engine any more that could pace its copies.
            Message::Fault { at, held: true, .. } => held.push(at.page_range()),
            Message::Fault { at, .. } => faults.push(at.page_range()),
            Message::Fork(child) => {
                let (member, note) = (self.member, Note::default());
                born.push(Self { member, line: None, ending_until_ns: None, uffd: Some(child), note });
            }
            Message::Remap { .. } | Message::Remove(_) | Message::Unmap(_) => {}
        });
        for page in held {
            if !uffd.let_writes(page) {
                sleep_us(TRY_US);
                uffd.wake(page);
            }
        }
        let mut refused = 0;
        for page in faults {
            match uffd.poison(page).stop {
                None => refused += 1,
                Some(Stop::Gone) => break,
                // An event is unread, or the mapping has changed: the thread faults again, or has
                // its page.
                Some(_) => {
                    sleep_us(TRY_US);
                    uffd.wake(page);
                }
            }
        }
        (refused, born)
    }
}

/// What became of processes that outlived the engine of their memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// The first member with such a process, if any page was refused.
    pub member: Option<u32>,
    /// Pages that were refused to them.
    pub pages: u64,
}

/// Holds the descriptors of members.
pub struct Custodian {
    listener: Option<OwnedFd>,
    /// Reads as ended when the [`Bell`] is dropped.
    bell: OwnedFd,
    held: Vec<Held>,
    /// Closed for the moment in which a connection is refused that there is no descriptor for.
    spare: Option<OwnedFd>,
    found: Found,
}

/// Dropping it ends [`Custodian::serve`].
#[derive(Debug)]
pub struct Bell(#[expect(dead_code, reason = "its end is what tells")] OwnedFd);

impl Custodian {
    /// Listens at `at`, for this user alone.
    ///
    /// # Errors
    /// Those of bind(2); there is no descriptor.
    pub fn open(at: &Path) -> io::Result<(Self, Bell)> {
        let (listener, address, _directory) = socket_for(at)?;
        bind(&listener, &address)?;
        // No process can connect before it listens.
        chmodat(CWD, at, Mode::RUSR | Mode::WUSR, AtFlags::empty())?;
        listen(&listener, QUEUE)?;
        let (bell, ringer) = pipe_with(PipeFlags::CLOEXEC)?;
        let (held, found) = (Vec::new(), Found::default());
        Ok((Self { listener: Some(listener), bell, held, spare: spare(), found }, Bell(ringer)))
    }

    /// Serves until its bell is dropped. `ended` gets the note of each engine that has ended.
    pub fn serve(&mut self, mut ended: impl FnMut(Note)) {
        while self.look(true, &mut ended) {}
    }

    /// Serves its members until none is left, and takes no more.
    pub fn serve_the_rest(&mut self, mut ended: impl FnMut(Note)) {
        while self.is_needed(&mut ended) {
            self.look(false, &mut ended);
        }
    }

    /// Takes no more, and tells whether an engine still runs, or a process that outlived its own.
    pub fn is_needed(&mut self, ended: &mut impl FnMut(Note)) -> bool {
        if self.listener.is_some() {
            self.accept_all();
            self.listener = None;
        }
        self.held.retain_mut(|held| held.listen(ended) && (held.line.is_some() || held.is_orphan()));
        !self.held.is_empty()
    }

    /// Its findings so far.
    #[must_use]
    pub fn found(&self) -> Found {
        self.found
    }

    /// The numbers of the descriptors that [`serve_the_rest`](Self::serve_the_rest) needs.
    #[must_use]
    pub fn descriptors(&self) -> Vec<RawFd> {
        let held = self.held.iter().flat_map(|held| {
            [
                held.line.as_ref().map(AsRawFd::as_raw_fd),
                held.uffd.as_ref().map(|uffd| uffd.as_fd().as_raw_fd()),
            ]
        });
        held.flatten().chain([self.bell.as_raw_fd()]).collect()
    }

    /// Waits for something to do, and does it. False once the bell is dropped; without
    /// `hears_bell` that is not looked at.
    fn look(&mut self, hears_bell: bool, ended: &mut impl FnMut(Note)) -> bool {
        let any = |is: fn(&Held) -> bool| self.held.iter().any(is);
        let period_ns = match any(|held| held.ending_until_ns.is_some()) {
            true => Some(ENDING_CHECK_NS),
            false => any(|held| held.line.is_none()).then_some(CHECK_NS),
        };
        let timeout = period_ns.map(|tv_nsec| Timespec { tv_sec: 0, tv_nsec });
        let wait = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        let bell = hears_bell.then_some(self.bell.as_fd());
        let others = self.held.iter().filter_map(Held::waits_at);
        let mut waits: Vec<_> =
            bell.into_iter().chain(self.listener.as_ref().map(AsFd::as_fd)).chain(others).map(wait).collect();
        if poll(&mut waits, timeout.as_ref()).is_err_and(|errno| errno != Errno::INTR) {
            sleep_us(PAUSE_US);
        }
        if hears_bell && !waits[0].revents().is_empty() {
            return false;
        }
        self.accept_all();
        let mut born = Vec::new();
        let found = &mut self.found;
        self.held.retain_mut(|held| {
            if !held.listen(ended) {
                return false;
            }
            let (refused, children) = held.answer();
            if refused > 0 {
                found.pages += refused;
                found.member.get_or_insert(held.member);
            }
            born.extend(children);
            held.line.is_some() || held.is_orphan()
        });
        born.truncate(HELD_MOST.saturating_sub(self.held.len()));
        self.held.extend(born);
        true
    }

    fn accept_all(&mut self) {
        let Some(listener) = &self.listener else { return };
        loop {
            match accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(line) if self.held.len() < HELD_MOST => {
                    let peer = socket_peercred(&line);
                    let member = peer.map_or(0, |peer| peer.pid.as_raw_nonzero().get().unsigned_abs());
                    let (ending_until_ns, uffd, note) = (None, None, Note::default());
                    self.held.push(Held { member, line: Some(line), ending_until_ns, uffd, note });
                }
                Ok(_) | Err(Errno::INTR | Errno::CONNABORTED) => {}
                // A descriptor that stays in the queue would keep its process waiting for good.
                Err(Errno::MFILE | Errno::NFILE) if self.spare.take().is_some() => {
                    let refused = accept_with(listener, SocketFlags::CLOEXEC);
                    drop(refused);
                    self.spare = spare();
                }
                Err(Errno::AGAIN) => return,
                // It stays ready: without a pause this would spin.
                Err(_) => return sleep_us(PAUSE_US),
            }
        }
    }
}

/// Whether no thread of this process is left. False too for one that can't be asked.
fn has_ended(process: u32) -> bool {
    let Some(process) = i32::try_from(process).ok().and_then(Pid::from_raw) else { return false };
    match pidfd_open(process, PidfdFlags::empty()) {
        Ok(process) => {
            let mut wait = [PollFd::new(&process, PollFlags::IN)];
            poll(&mut wait, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(1)
        }
        Err(errno) => errno == Errno::SRCH,
    }
}

fn spare() -> Option<OwnedFd> {
    openat(CWD, c"/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()
}

#[cfg(test)]
#[path = "custody_test.rs"]
mod tests;
