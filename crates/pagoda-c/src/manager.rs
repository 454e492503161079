//! The manager's handle: its budget and its figures.
//!
//! This module must never keep a reference to the caller's memory beyond a call.

use std::ffi::c_char;

use pagoda::{Bytes, ResizeError};

use crate::error::{Code, Error, Failure, call_on, drop_quietly, put, string, take_back};

/// Manages regions within a budget. It lives as long as its handle or a region of it.
pub struct Manager(pub pagoda::Manager);

/// The figures that are asked for most. Sizes are bytes.
#[derive(Debug)]
#[repr(C)]
pub struct Stats {
    /// The budget.
    pub budget_bytes: u64,
    /// Now: the part of the budget that is in use.
    pub anon_bytes: u64,
    /// Now: resident in regions.
    pub resident_bytes: u64,
    /// Now: evicted from regions, with their frames intact.
    pub staged_bytes: u64,
    /// Now: stored, before compression.
    pub stored_bytes: u64,
    /// Now: memory that the compressed store takes.
    pub store_memory_bytes: u64,
    /// Now: in the spill file.
    pub spilled_bytes: u64,
    /// Now: the manager's own tables, stacks and heap, which are not in the budget.
    pub own_bytes: u64,
    /// Now: by how much the budget is passed, because nothing could be evicted.
    pub passed_budget_bytes: u64,
    /// Since the start: faults of all kinds.
    pub faults: u64,
    /// Since the start: faults whose page was swapped in from the store.
    pub faults_stored: u64,
    /// Since the start: base pages that were evicted.
    pub evictions: u64,
}

impl Stats {
    fn of(stats: &pagoda::Stats) -> Self {
        Self {
            budget_bytes: stats.budget_bytes,
            anon_bytes: stats.anon_bytes,
            resident_bytes: stats.resident_bytes,
            staged_bytes: stats.staged_bytes,
            stored_bytes: stats.stored_bytes,
            store_memory_bytes: stats.store_memory_bytes,
            spilled_bytes: stats.spilled_bytes,
            own_bytes: stats.own_bytes,
            passed_budget_bytes: stats.passed_budget_bytes,
            faults: stats.faults,
            faults_stored: stats.faults_stored,
            evictions: stats.evictions,
        }
    }
}

/// The current figures. All are 0 in the child of a fork.
///
/// # Safety
/// `manager` is a handle or null, `stats` valid for a write or null, `error` null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagoda_manager_stats(
    manager: *const Manager,
    stats: *mut Stats,
    error: *mut Error,
) -> Code {
    // SAFETY: the caller vouches for the handle, for `stats` and for `error`.
    unsafe {
        call_on(manager, "manager", error, |manager| put(stats, "stats", Stats::of(&manager.0.stats())))
    }
}

/// Any counter, by its name as `pagoda run --stats` writes it, like "fetched_ahead". It is 0 in the
/// child of a fork.
///
/// # Safety
/// `manager` is a handle or null, `name` a string or null, `value` valid for a write or null,
/// `error` null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagoda_manager_counter(
    manager: *const Manager,
    name: *const c_char,
    value: *mut u64,
    error: *mut Error,
) -> Code {
    // SAFETY: the caller vouches for the handle, the string, `value` and `error`.
    unsafe {
        call_on(manager, "manager", error, |manager| {
            let name = string(name, "name")?.to_string_lossy();
            let found = manager.0.stats().fields().into_iter().find(|(known, _)| *known == name);
            let (_, count) = found.ok_or_else(|| {
                Failure::argument("name", &format!("{name:?} is no counter; docs/stats.md lists them"))
            })?;
            put(value, "value", count)
        })
    }
}

/// Changes the budget, up to twice the one that the manager was made with. It returns at once. For
/// a smaller budget pages are evicted in the background.
///
/// # Safety
/// `manager` is a handle or null, `error` null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagoda_manager_set_budget(
    manager: *const Manager,
    bytes: u64,
    error: *mut Error,
) -> Code {
    let set_budget = |manager: &Manager| {
        manager.0.set_budget(Bytes::new(bytes)).map_err(|error| match error {
            ResizeError::OtherProcess(error) => Failure::new(Code::OtherProcess, error),
            error => Failure::new(Code::Budget, error),
        })
    };
    // SAFETY: the caller vouches for the handle and for `error`.
    unsafe { call_on(manager, "manager", error, set_budget) }
}

/// Waits until all stored content of closed regions is freed. Does nothing in the child of a fork.
///
/// # Safety
/// `manager` is a handle or null, `error` null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagoda_manager_flush_releases(manager: *const Manager, error: *mut Error) -> Code {
    let flush = |manager: &Manager| {
        manager.0.flush_releases();
        Ok(())
    };
    // SAFETY: the caller vouches for the handle and for `error`.
    unsafe { call_on(manager, "manager", error, flush) }
}

/// Closes the handle. The manager ends with its last region. The call that ends it waits for the
/// manager's threads.
///
/// # Safety
/// `manager` is a handle or null, and not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagoda_manager_close(manager: *mut Manager) {
    // SAFETY: the caller does not use the handle again.
    drop_quietly(unsafe { take_back(manager) });
}
