//! `pagoda send` and `pagoda recv`: a memory image to another process or host.
//!
//! Shared by both: their identity and trust, their end on a signal, and their progress. This module
//! must never say that an image was moved unless both sides know it.

pub mod recv;
pub mod send;

use std::fmt;
use std::fs;
use std::io::Read;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use pagoda_core::size::Bytes;
use pagoda_migrate::{Counts, Credentials, Progress, Token};
use rustix::process::Signal;
use signal_hook::flag::{register, register_conditional_shutdown, register_usize};

use crate::exit_error::ExitError;

/// A token file is a line of text; a longer file is another one.
const TOKEN_FILE_MOST: u64 = 64 << 10;

/// The options of both sides.
#[derive(clap::Args)]
struct Common {
    /// How long a channel may stand still, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    timeout: u32,
    #[command(flatten)]
    trust: Trust,
    /// Show no progress.
    #[arg(long, short)]
    quiet: bool,
}

/// This side's identity, and the authority that it trusts.
#[derive(clap::Args)]
struct Trust {
    /// A file with the token that both sides have: at least 16 bytes, for example of
    /// `head -c 32 /dev/urandom | base64`.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// This side's certificate, in PEM; with --key and --ca it turns TLS on.
    #[arg(long, value_name = "FILE", requires_all = ["key", "ca"])]
    cert: Option<PathBuf>,
    /// The private key of that certificate, in PEM.
    #[arg(long, value_name = "FILE", requires_all = ["cert", "ca"])]
    key: Option<PathBuf>,
    /// The authority that signs both sides' certificates, in PEM.
    #[arg(long, value_name = "FILE", requires_all = ["cert", "key"])]
    ca: Option<PathBuf>,
}

impl Trust {
    fn token(&self) -> Result<Option<Token>, ExitError> {
        let Some(path) = &self.token_file else { return Ok(None) };
        let refusal = |what: &dyn fmt::Display| {
            ExitError::own(format_args!("could not take the token in {}: {what}", path.display()))
        };
        let mut bytes = Vec::new();
        let read =
            fs::File::open(path).and_then(|file| file.take(TOKEN_FILE_MOST + 1).read_to_end(&mut bytes));
        read.map_err(|error| refusal(&format_args!("{error}; give a file that this user can read")))?;
        if bytes.len() as u64 > TOKEN_FILE_MOST {
            return Err(refusal(&"it is longer than 64 KiB; give a file with a line of text"));
        }
        Token::new(&bytes).map(Some).map_err(|error| refusal(&error))
    }

    fn credentials(&self) -> Option<Credentials<'_>> {
        let (certificate, key, authority) =
            (self.cert.as_deref()?, self.key.as_deref()?, self.ca.as_deref()?);
        Some(Credentials { certificate, key, authority })
    }
}

fn seconds(seconds: u32) -> Duration {
    Duration::from_secs(seconds.into())
}

/// Set by a signal that asks to end: that there was one, and which.
pub(crate) struct Cancel(Arc<AtomicBool>, Arc<AtomicUsize>);

impl Cancel {
    pub(crate) fn on_signals() -> Result<Self, ExitError> {
        let cancel = Self(Arc::new(AtomicBool::new(false)), Arc::default());
        let failed =
            |error| ExitError::own(format_args!("could not watch for signals ({error}); please report this"));
        for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
            let number = signal.as_raw();
            // A second one ends it at once, in any wait: nothing half done has a name.
            register_conditional_shutdown(number, 128 + number, Arc::clone(&cancel.0)).map_err(failed)?;
            register(number, Arc::clone(&cancel.0)).map_err(failed)?;
            register_usize(number, Arc::clone(&cancel.1), number.unsigned_abs() as usize).map_err(failed)?;
        }
        Ok(cancel)
    }

    pub(crate) fn look(&self) -> ControlFlow<()> {
        if self.0.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// The exit status: as the shell reports a program that a signal has ended.
    pub(crate) fn outcome(
        &self,
        tried: &dyn fmt::Display,
        result: Result<String, impl fmt::Display>,
    ) -> Result<ExitCode, ExitError> {
        match result {
            Ok(done) => {
                crate::say(done);
                Ok(ExitCode::SUCCESS)
            }
            Err(error) => {
                let refusal = ExitError::own(format_args!("could not {tried}: {error}"));
                match self.1.load(Ordering::Relaxed) {
                    0 => Err(refusal),
                    signal => {
                        crate::say(refusal);
                        Ok(ExitCode::from(128 + signal as u8))
                    }
                }
            }
        }
    }
}

/// How far it is, on a terminal; nothing elsewhere.
pub(crate) struct Bar(ProgressBar);

/// Both sides of a transfer count holes as gone through.
const LINE: &str =
    "{msg} [{bar:30}] {binary_bytes} of {binary_total_bytes}, {binary_bytes_per_sec}, {eta} to go";

impl Bar {
    pub(crate) fn new(quiet: bool) -> Self {
        let bar = if quiet { ProgressBar::hidden() } else { ProgressBar::new(0) };
        // The template is a constant; one that can't be read would leave the bar as it comes.
        Self(match ProgressStyle::with_template(LINE) {
            Ok(style) => bar.with_style(style),
            Err(_) => bar,
        })
    }

    /// Shows that so much of the image is done.
    fn show(&self, what: &'static str, progress: &Progress, done: Bytes) {
        self.show_bytes(what, done.get(), progress.image().get());
    }

    pub(crate) fn show_bytes(&self, what: &'static str, done: u64, of: u64) {
        self.0.set_length(of);
        self.0.set_position(done);
        self.0.set_message(what);
    }

    pub(crate) fn clear(&self) {
        self.0.finish_and_clear();
    }
}

/// The pages on the way, in words.
fn told(counts: &Counts, took: Duration) -> String {
    let pages = |pages: u64| Bytes::new(pages * pagoda_core::page::OS_PAGE as u64);
    let kept = match counts.kept_pages {
        0 => String::new(),
        kept => format!("{} kept of an earlier transfer, ", pages(kept)),
    };
    format!(
        "{kept}{} of content, {} of one word, {} of zeroes, {} on the wire, in {:.1} s",
        pages(counts.data_pages + counts.packed_pages),
        pages(counts.filled_pages),
        pages(counts.zero_pages),
        Bytes::new(counts.wire_bytes),
        took.as_secs_f64()
    )
}

/// A path in a message: one that says nothing to the terminal.
pub(crate) fn shown(path: &Path) -> String {
    path.display().to_string().escape_debug().to_string()
}
