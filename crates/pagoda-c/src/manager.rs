//! The manager's handle: its budget and its figures.
//!
//! This module must never outlive a call with a reference to what it was given.

use std::ffi::c_char;

use pagoda::{Bytes, ResizeError};

use crate::error::{Code, Error, Failure, call, drop_quietly, shared, string, take_back};

/// Manages regions within a budget. It lives as long as its handle or a region of it.
pub struct Manager(pub pagoda::Manager);

/// The figures that are asked for most. Sizes are bytes.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Stats {
    /// The budget.
    pub budget_bytes: u64,
    /// Now: what the manager holds of it.
    pub anon_bytes: u64,
    /// Now: in regions.
    pub resident_bytes: u64,
    /// Now: out of the regions with their frames intact.
    pub staged_bytes: u64,
    /// Now: stored, before compression.
    pub stored_bytes: u64,
    /// Now: memory that the compressed store takes.
    pub store_memory_bytes: u64,
    /// Now: in the spill file.
    pub spilled_bytes: u64,
    /// Now: the manager's own tables, stacks and heap, which are not in the budget.
    pub own_bytes: u64,
    /// Now: by how much the budget is passed, because nothing could be moved out.
    pub passed_budget_bytes: u64,
    /// Since the start: faults of all kinds.
    pub faults: u64,
    /// Since the start: faults whose page was fetched from the store.
    pub faults_stored: u64,
    /// Since the start: base pages that were moved out.
    pub evictions: u64,
}

/// The current figures.
///
/// # Safety
/// `manager` is a handle or null, `stats` valid for a write or null, `error` null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagoda_manager_stats(
    manager: *const Manager,
    stats: *mut Stats,
    error: *mut Error,
) -> Code {
    let body = || {
        // SAFETY: the caller vouches for it.
        let now = unsafe { shared(manager, "manager") }?.0.stats();
        if stats.is_null() {
            return Err(Failure::argument("stats", "is null; give an address"));
        }
        let told = Stats {
            budget_bytes: now.budget_bytes,
            anon_bytes: now.anon_bytes,
            resident_bytes: now.resident_bytes,
            staged_bytes: now.staged_bytes,
            stored_bytes: now.stored_bytes,
            store_memory_bytes: now.store_memory_bytes,
            spilled_bytes: now.spilled_bytes,
            own_bytes: now.own_bytes,
            passed_budget_bytes: now.passed_budget_bytes,
            faults: now.faults,
            faults_stored: now.faults_stored,
            evictions: now.evictions,
        };
        // SAFETY: it is not null, and the caller vouches for it.
        unsafe { stats.write(told) };
        Ok(())
    };
    // SAFETY: the caller vouches for `error`.
    unsafe { call(error, body) }
}

/// Any counter, by its name as `pagoda run --stats` writes it, like "fetched_ahead".
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
    let body = || {
        // SAFETY: the caller vouches for both.
        let (manager, name) = unsafe { (shared(manager, "manager")?, string(name, "name")?) };
        let name = name.to_string_lossy();
        let found = manager.0.stats().fields().into_iter().find(|(known, _)| *known == name);
        let (_, count) = found.ok_or_else(|| {
            Failure::argument("name", &format!("{name:?} is no counter; docs/stats.md lists them"))
        })?;
        if value.is_null() {
            return Err(Failure::argument("value", "is null; give an address"));
        }
        // SAFETY: it is not null, and the caller vouches for it.
        unsafe { value.write(count) };
        Ok(())
    };
    // SAFETY: the caller vouches for `error`.
    unsafe { call(error, body) }
}

/// Changes the budget, up to twice the one that the manager was made with. It returns at once; to a
/// smaller one pages are evicted in the background.
///
/// # Safety
/// `manager` is a handle or null, `error` null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagoda_manager_set_budget(
    manager: *const Manager,
    bytes: u64,
    error: *mut Error,
) -> Code {
    let body = || {
        // SAFETY: the caller vouches for it.
        let manager = unsafe { shared(manager, "manager") }?;
        manager.0.set_budget(Bytes::new(bytes)).map_err(|error| match error {
            ResizeError::OtherProcess(error) => Failure::new(Code::OtherProcess, error),
            error => Failure::new(Code::Budget, error),
        })
    };
    // SAFETY: the caller vouches for `error`.
    unsafe { call(error, body) }
}

/// Waits until all stored content of closed regions is freed.
///
/// # Safety
/// `manager` is a handle or null, `error` null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagoda_manager_flush_releases(manager: *const Manager, error: *mut Error) -> Code {
    let body = || {
        // SAFETY: the caller vouches for it.
        unsafe { shared(manager, "manager") }?.0.flush_releases();
        Ok(())
    };
    // SAFETY: the caller vouches for `error`.
    unsafe { call(error, body) }
}

/// Gives the handle up. The manager ends with its last region, and waits for its threads then.
///
/// # Safety
/// `manager` is a handle or null, and not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagoda_manager_close(manager: *mut Manager) {
    // SAFETY: the caller vouches for it.
    drop_quietly(unsafe { take_back(manager) });
}
