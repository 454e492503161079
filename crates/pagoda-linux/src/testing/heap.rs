//! Blocks of malloc, for programs that use the C library's heap as C does.
//!
//! This module must never show bytes that were not written.

use std::ptr::NonNull;

/// One block of malloc's; it is freed on drop.
#[derive(Debug)]
pub struct Block {
    at: NonNull<u8>,
    len: usize,
    /// Bytes at its start that were written.
    written: usize,
}

// SAFETY: malloc's blocks are of no thread: any may use one, change its length and free it, and the
// value is the only way to it.
unsafe impl Send for Block {}

impl Block {
    /// malloc(3) of `len` bytes, of which none is written.
    ///
    /// # Panics
    /// If there is no memory.
    pub fn new(len: usize) -> Self {
        // SAFETY: it has no precondition.
        let at = unsafe { libc::malloc(len.max(1)) };
        Self { at: NonNull::new(at.cast()).expect("malloc"), len, written: 0 }
    }
    /// Its length.
    pub fn len(&self) -> usize {
        self.len
    }
    /// Whether its length is 0.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// Its address.
    pub fn address(&self) -> usize {
        self.at.addr().get()
    }
    /// realloc(3): written bytes stay, as far as they fit.
    ///
    /// # Panics
    /// If there is no memory.
    pub fn resize(&mut self, len: usize) {
        // SAFETY: malloc or realloc gave the address, and it was not freed; the old one is
        // forgotten at once, and nothing borrows the block.
        let at = unsafe { libc::realloc(self.at.as_ptr().cast(), len.max(1)) };
        self.at = NonNull::new(at.cast()).expect("realloc");
        self.len = len;
        self.written = self.written.min(len);
    }
    /// The written bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `written` is at most the length of malloc's block, and as many bytes were
        // initialised; they are changed by exclusive borrowers only.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.written) }
    }
    /// Writes the bytes that are not written yet: byte `i` is to be `byte(i)`.
    pub fn write_rest(&mut self, byte: impl Fn(usize) -> u8) {
        while self.written < self.len {
            // SAFETY: `written` is less than the length of malloc's block; the block is borrowed
            // exclusively.
            unsafe { self.at.add(self.written).write(byte(self.written)) };
            self.written += 1;
        }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: malloc or realloc gave it, it was not freed, and nothing borrows it.
        unsafe { libc::free(self.at.as_ptr().cast()) };
    }
}

/// From now on all threads share one heap, on brk, that shrinks when its top is free. For a
/// program's beginning.
pub fn share_one_on_brk() {
    let parameters =
        [(libc::M_ARENA_MAX, 1), (libc::M_MMAP_THRESHOLD, 32 << 20), (libc::M_TRIM_THRESHOLD, 128 << 10)];
    for (parameter, value) in parameters {
        // SAFETY: it takes numbers; the C library changes its parameters with the heap locked.
        unsafe { libc::mallopt(parameter, value) };
    }
}
