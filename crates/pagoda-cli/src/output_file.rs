//! A file that a run writes when its program has ended, opened before the program starts: one that
//! can't be written is an error at once.
//!
//! This module must never change the status of a run whose program has ended: a failed write is
//! reported on standard error.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::exit_error::ExitError;

/// The file.
pub struct OutputFile {
    file: File,
    path: PathBuf,
}

impl OutputFile {
    /// Opens the file that `option` names; its content stays until there is something to write.
    pub fn open(path: &Path, option: &str) -> Result<Self, ExitError> {
        // A pipe or a terminal can't be cut, and a regular file is cut when it is written.
        let file =
            OpenOptions::new().write(true).create(true).truncate(false).open(path).map_err(|error| {
                ExitError::own(format!(
                    "{} can't be written ({error}); give another file: {option} FILE",
                    path.display()
                ))
            })?;
        Ok(Self { file, path: path.to_owned() })
    }

    /// Replaces its content by the output of `write`.
    pub fn write(self, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) {
        if let Err(error) = self.try_write(write) {
            crate::say(format_args!(
                "could not write {} ({error}); the exit status is the program's all the same; give another file",
                self.path.display()
            ));
        }
    }

    fn try_write(&self, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
        if self.file.metadata()?.is_file() {
            self.file.set_len(0)?;
        }
        let mut buffered = BufWriter::new(&self.file);
        write(&mut buffered)?;
        buffered.flush()
    }
}
