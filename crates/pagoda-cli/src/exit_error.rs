//! Pagoda's own errors: one line with the attempt, the cause and the remedy, and the exit
//! status.
//!
//! The statuses are those that `env`, `nohup` and `docker run` use. Nothing here may use a status a
//! program could as well return by habit (1, 2).

use std::fmt;
use std::process::ExitCode;

/// Pagoda itself failed or refused.
pub const OWN_ERROR: u8 = 125;
/// The program was found and can't be run.
pub const NOT_EXECUTABLE: u8 = 126;
/// The program was not found.
pub const NOT_FOUND: u8 = 127;

/// Why the command ends without a program's exit status.
#[derive(Debug)]
pub struct ExitError {
    status: u8,
    message: String,
}

impl ExitError {
    /// Pagoda's own error.
    pub fn own(message: impl fmt::Display) -> Self {
        Self { status: OWN_ERROR, message: message.to_string() }
    }
    /// The program was found and can't be run.
    pub fn not_executable(message: impl fmt::Display) -> Self {
        Self { status: NOT_EXECUTABLE, message: message.to_string() }
    }
    /// The program was not found.
    pub fn not_found(message: impl fmt::Display) -> Self {
        Self { status: NOT_FOUND, message: message.to_string() }
    }
    /// The exit status that tells it.
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.status)
    }
}

impl fmt::Display for ExitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}
