//! The terminal: raw while it is ours, and as it was afterwards, for any end of this process.
//!
//! A panic, an error, a key and a signal that asks to end all leave by the same way, on which the
//! terminal is given back. This module must never wait longer than it takes to notice a signal.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crossterm::event::{self, Event};
use ratatui::DefaultTerminal;

use super::draw::{Picture, draw};
use super::find::{Finder, Look};
use super::rows::groups;
use super::state::{Asked, State};

/// How long a signal may wait.
const POLL: Duration = Duration::from_millis(100);

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// By a key.
    Quit,
    /// By this signal.
    Signal(u8),
}

/// The terminal, given back when this is dropped, and before the message of a panic.
struct Screen(DefaultTerminal);

impl Screen {
    fn take() -> io::Result<Self> {
        ratatui::try_init().map(Self)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // The hook of a panic has done it before the message; a second time the cursor would go
        // back and into it.
        if !std::thread::panicking() {
            // A terminal that is gone needs nothing back.
            let _ = ratatui::try_restore();
        }
    }
}

/// Shows the trees until a key or a signal ends it.
///
/// # Errors
/// The terminal can't be set up, or is gone.
pub fn show(finder: &Finder, interval: Duration) -> io::Result<Ended> {
    let signal = Arc::new(AtomicUsize::new(0));
    for number in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        signal_hook::flag::register_usize(number, Arc::clone(&signal), number as usize)?;
    }
    let mut screen = Screen::take()?;
    let mut state = State::default();
    let mut now = finder.look();
    let mut shown = groups(None, &now);
    loop {
        match signal.load(Ordering::Relaxed) {
            0 => {}
            number => return Ok(Ended::Signal(number as u8)),
        }
        let picture = Picture { groups: &shown, rejected: &now.rejected, interval };
        screen.0.draw(|frame| draw(frame, &picture, &state))?;
        let until_next = interval.saturating_sub(now.at.elapsed());
        if event::poll(if state.frozen { POLL } else { until_next.min(POLL) })?
            && let Event::Key(key) = event::read()?
        {
            let asked = state.key(key, &state.arrange(&shown));
            if asked == Asked::Quit {
                return Ok(Ended::Quit);
            }
        }
        if !state.frozen && now.at.elapsed() >= interval {
            let before = std::mem::replace(&mut now, finder.look());
            shown = groups(Some(&before), &now);
        }
    }
}

/// The rows of two looks, `interval` apart.
pub fn look_twice(finder: &Finder, interval: Duration) -> (Look, Look) {
    let before = finder.look();
    let begun = Instant::now();
    while let Some(rest) = interval.checked_sub(begun.elapsed()).filter(|rest| !rest.is_zero()) {
        std::thread::sleep(rest);
    }
    (before, finder.look())
}

#[cfg(test)]
#[path = "screen_test.rs"]
mod tests;
