//! Threads that thrash the cache, as other programs on a machine do. They must never outlive the
//! measurement.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

/// Threads that write through memory twice as large as the last-level cache, until this is dropped.
pub struct Thrashers {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Thrashers {
    /// Starts `count` of them.
    pub fn start(count: usize, llc_bytes: u64) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let thrash = |stop: Arc<AtomicBool>| {
            move || {
                let mut memory = vec![0u8; 2 * llc_bytes as usize];
                while !stop.load(Ordering::Relaxed) {
                    memory.iter_mut().step_by(64).for_each(|byte| *byte = byte.wrapping_add(1));
                    std::hint::black_box(&mut memory);
                }
            }
        };
        let threads = (0..count).map(|_| thread::spawn(thrash(Arc::clone(&stop)))).collect();
        Self { stop, threads }
    }
}

impl Drop for Thrashers {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A thread that panicked has thrashed until then.
            let _ = thread.join();
        }
    }
}
