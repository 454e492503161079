//! The C library's system calls, without the C library; stubs for functions that can't be had
//! without it; and thread-local storage.
//!
//! `errno` is a word of this library's own in static thread-local storage: at the same distance
//! from the thread pointer in each thread, so that the threads of the engine have it, too
//! (`pagoda_linux::process::thread::spawn_raw` reserves room for it). The rest of this library's
//! thread-local storage is found from there, and not by the dynamic linker, which knows of no
//! thread of the engine.

core::arch::global_asm!(
    ".pushsection .tbss.pagoda_errno, \"awT\", @nobits",
    ".p2align 2",
    ".globl pagoda_errno",
    ".hidden pagoda_errno",
    ".type pagoda_errno, @object",
    ".size pagoda_errno, 4",
    "pagoda_errno: .zero 4",
    ".popsection"
);

hidden!("__errno_location":
    "mov rax, qword ptr fs:[0]",
    "add rax, qword ptr [rip + pagoda_errno@gottpoff]",
    "ret"
);

// It is passed a module, which is this library, and an offset in its storage.
hidden!("__tls_get_addr":
    "mov rax, qword ptr fs:[0]",
    "add rax, qword ptr [rip + pagoda_errno@gottpoff]",
    "lea rcx, [pagoda_errno@dtpoff]",
    "sub rax, rcx",
    "add rax, qword ptr [rdi + 8]",
    "ret"
);

// The end of every system call: the kernel returns errors as -4095..=-1.
hidden!("pagoda_system_call_result":
    "cmp rax, -4095",
    "jae 20f",
    "ret",
    "20:",
    "neg eax",
    "mov rcx, qword ptr [rip + pagoda_errno@gottpoff]",
    "mov dword ptr fs:[rcx], eax",
    "mov rax, -1",
    "ret"
);

hidden!("syscall":
    "mov rax, rdi",
    "mov rdi, rsi",
    "mov rsi, rdx",
    "mov rdx, rcx",
    "mov r10, r8",
    "mov r8, r9",
    "mov r9, [rsp + 8]",
    "syscall",
    "jmp pagoda_system_call_result"
);

/// A function whose arguments are those of the system call of this number.
macro_rules! system_calls {
    ($($name:literal = $number:literal)+) => {$(
        hidden!($name:
            concat!("mov eax, ", $number),
            "mov r10, rcx",
            "syscall",
            "jmp pagoda_system_call_result"
);
    )+};
}

// Of x86-64, where a file's offset always has 64 bits, and the kernel's `struct stat` is the C
// library's.
system_calls! {
    "read" = 0
    "open64" = 2
    "close" = 3
    "stat64" = 4
    "fstat64" = 5
    "lstat64" = 6
    "lseek64" = 8
    "mmap64" = 9
    "munmap" = 11
    "getpid" = 39
    "fcntl" = 72
    "ftruncate64" = 77
    "unlink" = 87
    "readlink" = 89
    "geteuid" = 107
    "gettid" = 186
    "clock_gettime" = 228
    "statx" = 332
}

// This library prints nothing: descriptor 2 of a thread of the engine is no terminal. The standard
// library takes this error (`EBADF`) for a process without a terminal, and goes on.
hidden!("write" "writev":
    "mov rax, -9",
    "jmp pagoda_system_call_result"
);

// The environment is the constructor's argument, which `start` reads. Any other caller would ask
// for directories and backtraces.
hidden!("getenv":
    "xor eax, eax",
    "ret"
);

// There is no heap of the C library here. LZ4 and zstd get their memory from their caller
// (`pagoda_linux::codec::zstd`), and the standard library wants it for a backtrace alone, which
// `panic` leaves out. Any other request fails.
hidden!("malloc" "calloc" "realloc" "realpath" "getcwd":
    "xor eax, eax",
    "ret"
);
// Nothing was ever allocated. Destructors of thread-local values don't run: threads of the engine
// don't end, and the program's have none.
hidden!("free" "__cxa_thread_atexit_impl":
    "xor eax, eax",
    "ret"
);

// No trace of zstd's is wanted: 0 is one that is off.
hidden!("ZSTD_trace_compress_begin" "ZSTD_trace_compress_end" "ZSTD_trace_decompress_begin" "ZSTD_trace_decompress_end":
    "xor eax, eax",
    "ret"
);

// An error's number says enough: the text is empty.
hidden!("__xpg_strerror_r":
    "mov byte ptr [rsi], 0",
    "xor eax, eax",
    "ret"
);

// The standard library keeps no key where `__cxa_thread_atexit_impl` is there.
hidden!("pthread_key_create" "pthread_key_delete" "pthread_setspecific":
    "ud2"
);

// An abort has no way to continue.
hidden!("abort":
    "mov edi, 125",
    "mov eax, 231",
    "syscall",
    "ud2"
);
