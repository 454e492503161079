//! A bell for one sleeping thread.
//!
//! It allocates nothing and is never held while anything else is done.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

/// A sleeper's bell. Rung before the sleep, it ends that sleep at once.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    rung: Mutex<bool>,
    condition: Condvar,
    /// Ringing a bell that has not been heard yet costs one load.
    fast: AtomicBool,
    /// How often it was rung, whether that was heard or not.
    #[cfg(test)]
    rings: std::sync::atomic::AtomicU64,
}

impl Bell {
    pub(crate) fn ring(&self) {
        #[cfg(test)]
        self.rings.fetch_add(1, Ordering::Relaxed);
        if self.fast.swap(true, Ordering::AcqRel) {
            return;
        }
        *self.rung.lock().expect("nothing panics with this lock held") = true;
        self.condition.notify_one();
    }

    #[cfg(test)]
    pub(crate) fn is_rung(&self) -> bool {
        self.fast.load(Ordering::Acquire)
    }

    #[cfg(test)]
    pub(crate) fn rings(&self) -> u64 {
        self.rings.load(Ordering::Relaxed)
    }

    /// Sleeps until the bell rings, for `limit_us` at most.
    pub(crate) fn sleep(&self, limit_us: u32) {
        let rung = self.rung.lock().expect("nothing panics with this lock held");
        let limit = Duration::from_micros(u64::from(limit_us));
        let (mut rung, _) = self
            .condition
            .wait_timeout_while(rung, limit, |rung| !*rung)
            .expect("nothing panics with this lock held");
        *rung = false;
        self.fast.store(false, Ordering::Release);
    }
}
