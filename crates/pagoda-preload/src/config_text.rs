//! The configuration's text, kept in this library's own data, which a forked child has, too.
//!
//! It is written once, before there is a second thread. This module must never allocate to keep it.

use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use pagoda::config::{Config, ENV_BYTES_MAX};

/// Written once, before there is a second thread. Its unused part takes no memory.
pub struct ConfigText {
    bytes: [AtomicU8; ENV_BYTES_MAX],
    len: AtomicUsize,
}

impl ConfigText {
    pub const fn new() -> Self {
        Self { bytes: [const { AtomicU8::new(0) }; ENV_BYTES_MAX], len: AtomicUsize::new(0) }
    }

    /// False if it is longer than `pagoda run` lets it be.
    pub fn keep(&self, text: &[u8]) -> bool {
        self.bytes.iter().zip(text).for_each(|(kept, byte)| kept.store(*byte, Ordering::Relaxed));
        self.len.store(text.len(), Ordering::Release);
        text.len() <= self.bytes.len()
    }

    /// None in a process that is in no tree.
    pub fn config(&self) -> Option<Config> {
        let kept = &self.bytes[..self.len.load(Ordering::Acquire)];
        let text: Vec<u8> = kept.iter().map(|byte| byte.load(Ordering::Relaxed)).collect();
        Config::from_env(&text).ok()
    }
}
