//! The library's errors as Python's own exceptions, with the same words.
//!
//! An error of the operating system is an `OSError` with its number. From that Python chooses
//! `FileNotFoundError` and the like. This module must never drop the part of a message that says
//! what to do.

use std::io;

use pagoda::error::Errno;
use pagoda::region::RegionError;
use pagoda::{
    AccessError, FileError, MapFileError, OtherProcess, PageOutError, PinError, RestoreError, SnapshotError,
    StartError,
};
use pagoda_image::ImageError;
use pyo3::PyErr;
use pyo3::exceptions::{
    PyBufferError, PyMemoryError, PyOSError, PyPermissionError, PyRuntimeError, PyValueError,
};

pub(crate) fn other_process(error: OtherProcess) -> PyErr {
    PyRuntimeError::new_err(error.to_string())
}

pub(crate) fn system_error(error: &io::Error) -> PyErr {
    of_the_system(Errno::from(error), error.to_string())
}

/// A use of a region, a file or a manager that is closed.
pub(crate) fn closed(what: &str) -> PyErr {
    PyValueError::new_err(format!("the {what} is closed; make another one"))
}

fn of_the_system(errno: Errno, message: String) -> PyErr {
    if errno == Errno::NONE {
        PyRuntimeError::new_err(message)
    } else {
        PyOSError::new_err((errno.0, message))
    }
}

/// A manager did not start. `allows_user_mode` if the mode for system calls was asked for, and user
/// mode would have been allowed: the message names it then.
pub(crate) fn start(error: StartError, allows_user_mode: bool) -> PyErr {
    match error {
        StartError::Userfaultfd(_) if allows_user_mode => PyPermissionError::new_err(format!(
            "{error}. Without it pagoda.Manager(..., user_mode_only=True) works: NumPy and Python's own code may \
             use its arrays, and a system call that is handed an array (readinto, tofile, send) fails with EFAULT \
             where a page is swapped out, unless it is pinned (pagoda.pinned)"
        )),
        error => of_the_system(error.errno(), error.to_string()),
    }
}

pub(crate) fn region(error: RegionError) -> PyErr {
    match error {
        RegionError::OtherProcess(error) => other_process(error),
        RegionError::Map { .. } | RegionError::Entries { .. } => PyMemoryError::new_err(error.to_string()),
        error => PyRuntimeError::new_err(error.to_string()),
    }
}

pub(crate) fn map_file(error: MapFileError) -> PyErr {
    let message = error.to_string();
    match error {
        MapFileError::Open { path, errno } => PyOSError::new_err((errno.0, message, path)),
        MapFileError::NotAFile { .. }
        | MapFileError::Empty { .. }
        | MapFileError::NoPart { .. }
        | MapFileError::BeyondEnd { .. } => PyValueError::new_err(message),
        MapFileError::InMemory { .. } => PyOSError::new_err(message),
        MapFileError::NoDirectIo { errno, .. }
        | MapFileError::Copy { errno }
        | MapFileError::Thread { errno }
        | MapFileError::Random { errno } => of_the_system(errno, message),
        MapFileError::OtherProcess(error) => other_process(error),
        MapFileError::Region(error) => region(error),
        _ => PyRuntimeError::new_err(message),
    }
}

pub(crate) fn restore(error: RestoreError) -> PyErr {
    match error {
        RestoreError::OtherProcess(error) => other_process(error),
        RestoreError::Region(error) => region(error),
        RestoreError::Image(ref image) => of_image(image),
        error => PyRuntimeError::new_err(error.to_string()),
    }
}

pub(crate) fn snapshot(error: SnapshotError) -> PyErr {
    match error {
        SnapshotError::Image(ref image) => of_image(image),
        error => PyRuntimeError::new_err(error.to_string()),
    }
}

/// An image can't be read or written, or is damaged or none.
pub(crate) fn of_image(error: &ImageError) -> PyErr {
    let message = error.to_string();
    let source = match error {
        ImageError::Read { error, .. } | ImageError::Write { error, .. } => error,
        _ => return PyValueError::new_err(message),
    };
    source.raw_os_error().map_or_else(
        || PyOSError::new_err(message.clone()),
        |errno| PyOSError::new_err((errno, message.clone())),
    )
}

pub(crate) fn file(error: FileError) -> PyErr {
    match error {
        FileError::OtherProcess(error) => other_process(error),
        FileError::NoMemory => PyMemoryError::new_err(error.to_string()),
        FileError::Unreadable { errno, .. }
        | FileError::Unwritten { errno }
        | FileError::Unsafe { errno } => of_the_system(errno, error.to_string()),
        error => PyOSError::new_err(error.to_string()),
    }
}

pub(crate) fn access(error: AccessError) -> PyErr {
    match error {
        AccessError::OtherProcess(error) => other_process(error),
        error => PyRuntimeError::new_err(error.to_string()),
    }
}

pub(crate) fn page_out(error: PageOutError) -> PyErr {
    match error {
        PageOutError::OtherProcess(error) => other_process(error),
        error => PyOSError::new_err(error.to_string()),
    }
}

pub(crate) fn pin(error: PinError) -> PyErr {
    match error {
        PinError::Access(error) => access(error),
        error => PyBufferError::new_err(error.to_string()),
    }
}
