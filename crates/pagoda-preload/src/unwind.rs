//! In place of an unwinder: a panic in this library ends the process with a reason (the hook that
//! `start` sets), on any thread.
//!
//! No caller could catch one: raw threads have nothing to return to, and hooks are called by C. The
//! standard library's unwinder would be one more library that every short process of a tree loads,
//! maps and relocates. These symbols are hidden, so that the program's own exceptions never meet
//! them; and no frame of ours is ever on a stack that other code unwinds (`hooks::threads::begin`).
//! This module must never return as if anything had been unwound.

use std::arch::global_asm;

// `_URC_END_OF_STACK`: nothing catches it, so the panic aborts; and a backtrace ends at once.
global_asm!(
    ".macro pagoda_end_of_stack name",
    ".globl \\name",
    ".hidden \\name",
    ".type \\name, @function",
    "\\name: mov eax, 5",
    "ret",
    ".endm",
    ".macro pagoda_never name",
    ".globl \\name",
    ".hidden \\name",
    ".type \\name, @function",
    "\\name: ud2",
    ".endm",
    ".pushsection .text.pagoda_unwind, \"ax\", @progbits",
    "pagoda_end_of_stack _Unwind_RaiseException",
    "pagoda_end_of_stack _Unwind_Backtrace",
    // Only an unwinder calls these.
    "pagoda_never _Unwind_Resume",
    "pagoda_never _Unwind_DeleteException",
    "pagoda_never _Unwind_FindEnclosingFunction",
    "pagoda_never _Unwind_GetCFA",
    "pagoda_never _Unwind_GetDataRelBase",
    "pagoda_never _Unwind_GetIP",
    "pagoda_never _Unwind_GetIPInfo",
    "pagoda_never _Unwind_GetLanguageSpecificData",
    "pagoda_never _Unwind_GetRegionStart",
    "pagoda_never _Unwind_GetTextRelBase",
    "pagoda_never _Unwind_SetGR",
    "pagoda_never _Unwind_SetIP",
    ".popsection",
    ".purgem pagoda_end_of_stack",
    ".purgem pagoda_never",
);
