//! The functions of the C library that compiled code of this library refers to, defined inside it
//! and hidden.
//!
//! Any object of the program may define a symbol of the C library anew: the program itself, an
//! allocator, another preloaded library. A reference of ours that the dynamic linker binds would
//! call that definition on an engine thread, which has no thread-local storage of the program's; or
//! the definition would fault on managed memory, which that very thread has to serve. So the
//! standard library, LZ4, zstd and the compiler's own calls are bound at link time to the
//! definitions here. Nothing is imported but weak symbols. So every loader can load this library,
//! also in a process of another C library.
//!
//! A function here makes its system call itself, or does without. It must never call the C library,
//! nor write the program's `errno`: an error goes to a word of this library's own.

/// Defines a hidden function of this name in assembly.
macro_rules! hidden {
    ($($name:literal)+: $($line:expr),+ $(; $($operand:tt)+)?) => {
        core::arch::global_asm!(
            ".pushsection .text.pagoda_c_library, \"ax\", @progbits",
            ".p2align 4",
            $(concat!(".globl ", $name),)+
            $(concat!(".hidden ", $name),)+
            $(concat!(".type ", $name, ", @function"),)+
            $(concat!($name, ":"),)+
            $($line,)+
            ".popsection",
            $($($operand)+)?
        );
    };
}
mod calls;
mod memory;
mod symbols;

pub use symbols::{is_defined, is_glibc, next};
