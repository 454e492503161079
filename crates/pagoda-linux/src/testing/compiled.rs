//! Code that is written at run time, as compilers do it: executed and written in turn, or both at
//! once.
//!
//! This module must never run bytes that it has not written itself.

use std::io;

use super::mapping::{Mapping, PAGE};

/// Bytes between two functions.
const STEP: usize = 256;

/// Functions in a page.
pub const FUNCTIONS: usize = PAGE / STEP;

/// Memory full of functions without arguments, each of which returns a number.
#[derive(Debug)]
pub struct Compiled {
    mapping: Mapping,
    /// Every function is there and whole.
    written: bool,
    writable: bool,
    executable: bool,
}

impl Compiled {
    /// Memory for that, without functions yet.
    ///
    /// # Errors
    /// The kernel's.
    pub fn new(pages: usize) -> io::Result<Self> {
        Ok(Self { mapping: Mapping::new(pages)?, written: false, writable: true, executable: false })
    }
    /// Where they are.
    pub fn mapping(&self) -> &Mapping {
        &self.mapping
    }
    /// Writes them all: function `i` of a page is to return `number(page, i)`.
    ///
    /// # Panics
    /// If it is not writable.
    pub fn write(&mut self, number: impl Fn(usize, usize) -> u32) {
        assert!(self.writable, "not writable");
        self.written = false;
        for page in 0..self.mapping.pages() {
            for (i, place) in self.mapping.bytes_mut(page..page + 1).chunks_mut(STEP).enumerate() {
                let code = function(number(page, i));
                place[..code.len()].copy_from_slice(&code);
            }
        }
        flush(&self.mapping);
        self.written = true;
    }
    /// Makes all of it executable and read-only.
    ///
    /// # Errors
    /// The kernel's.
    pub fn allow_execution(&mut self) -> io::Result<()> {
        self.writable = false;
        self.mapping.protect(0..self.mapping.pages(), libc::PROT_READ | libc::PROT_EXEC)?;
        self.executable = true;
        Ok(())
    }
    /// Makes all of it executable and writable.
    ///
    /// # Errors
    /// The kernel's.
    pub fn allow_both(&mut self) -> io::Result<()> {
        let both = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        self.mapping.protect(0..self.mapping.pages(), both)?;
        (self.writable, self.executable) = (true, true);
        Ok(())
    }
    /// Makes all of it writable and not executable.
    ///
    /// # Errors
    /// The kernel's.
    pub fn allow_writing(&mut self) -> io::Result<()> {
        self.executable = false;
        self.mapping.protect(0..self.mapping.pages(), libc::PROT_READ | libc::PROT_WRITE)?;
        self.writable = true;
        Ok(())
    }
    /// Runs function `i` of a page: its number.
    ///
    /// # Panics
    /// If it was not written, is not executable, or there is none of that number.
    pub fn run(&self, page: usize, i: usize) -> u32 {
        assert!(self.written && self.executable, "code that was written, and is executable");
        assert!(page < self.mapping.pages() && i < FUNCTIONS, "function {i} of page {page}");
        let at = std::ptr::with_exposed_provenance::<()>(self.mapping.start() + page * PAGE + i * STEP);
        // SAFETY: `write` put a function of this type at every STEP of every page: it takes
        // nothing, returns a number and touches no memory. The memory is executable, stays mapped
        // and is not written while `self` is borrowed, and the processor's view of it was flushed
        // since.
        let function = unsafe { std::mem::transmute::<*const (), extern "C" fn() -> u32>(at) };
        function()
    }
}

/// A function without arguments that returns a number.
#[cfg(target_arch = "x86_64")]
fn function(number: u32) -> Vec<u8> {
    // mov eax, imm32; ret
    [&[0xb8][..], &number.to_le_bytes(), &[0xc3]].concat()
}

#[cfg(target_arch = "aarch64")]
fn function(number: u32) -> Vec<u8> {
    // movz w0, low; movk w0, high, lsl 16; ret
    let movz = 0x5280_0000 | (number & 0xffff) << 5;
    let movk = 0x72a0_0000 | (number >> 16) << 5;
    [movz, movk, 0xd65f_03c0].iter().flat_map(|word: &u32| word.to_le_bytes()).collect()
}

#[cfg(target_arch = "aarch64")]
fn flush(mapping: &Mapping) {
    unsafe extern "C" {
        fn __clear_cache(start: *mut libc::c_void, end: *mut libc::c_void);
    }
    let at = |address| std::ptr::with_exposed_provenance_mut(address);
    // SAFETY: it is the compiler's own function of this name and type. It reads no more than the
    // caches of the range, which is all of a mapping that is borrowed.
    unsafe { __clear_cache(at(mapping.start()), at(mapping.start() + mapping.pages() * PAGE)) };
}

#[cfg(target_arch = "x86_64")]
fn flush(_: &Mapping) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_return_the_number_written_last() {
        let mut code = Compiled::new(2).expect("memory");
        for tag in [0x1234_5678, u32::MAX - 100] {
            code.write(|page, i| tag + (page * FUNCTIONS + i) as u32);
            code.allow_execution().expect("executable");
            assert_eq!(code.run(1, 3), tag + FUNCTIONS as u32 + 3);
            code.allow_writing().expect("writable");
        }
    }
}
