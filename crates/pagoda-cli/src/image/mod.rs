//! `pagoda image`: memory images in files.
//!
//! Shared by its commands: the key, the base, progress, and the result as a line or as JSON. This
//! module must never tell that an image is whole before all of it was read or written.

mod info;
mod pack;
mod unpack;
mod verify;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Args, Subcommand};
use pagoda_core::size::Bytes;
use pagoda_image::{Image, ImageError, Key, Totals, Written, load_key};
use serde::Serialize;

use crate::exit_error::ExitError;
use crate::migrate::{Bar, Cancel};
use crate::remote_image::{self, RemoteArgs, is_remote};

/// Pack memory into an image, and read images.
///
/// An image is a file with the memory of a VM, a sandbox or a data set: compressed in blocks, so
/// that one page is had by one small read, and each block checked by a keyed digest. Its key is
/// given with --key, or lies beside it as IMAGE.key, where `pack` makes it.
#[derive(Args)]
pub struct ImageArgs {
    #[command(subcommand)]
    command: Commands,
}

#[derive(Subcommand)]
enum Commands {
    Pack(pack::PackArgs),
    Unpack(unpack::UnpackArgs),
    Info(info::InfoArgs),
    Verify(verify::VerifyArgs),
    Diff(pack::DiffArgs),
}

/// Runs one of the commands.
pub fn run(args: &ImageArgs) -> Result<ExitCode, ExitError> {
    match &args.command {
        Commands::Pack(args) => pack::run(args),
        Commands::Unpack(args) => unpack::run(args),
        Commands::Info(args) => info::run(args),
        Commands::Verify(args) => verify::run(args),
        Commands::Diff(args) => pack::run_diff(args),
    }
}

/// Options of all commands.
#[derive(Args)]
struct Common {
    /// The file with the image's key: 64 hexadecimal digits. IMAGE.key without it.
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
    /// Show no progress.
    #[arg(long, short)]
    quiet: bool,
}

/// An image to read, and how to open it.
#[derive(Args)]
struct Opened {
    /// The image: a file, or an address: http://…, https://… or s3://BUCKET/KEY.
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
    /// The image that it is a difference to, if that is not where it was when it was made.
    #[arg(long, value_name = "FILE")]
    base: Option<PathBuf>,
    #[command(flatten)]
    remote: RemoteArgs,
    #[command(flatten)]
    common: Common,
}

impl Common {
    fn key(&self) -> Result<Option<Key>, ImageError> {
        self.key.as_deref().map(load_key).transpose()
    }

    /// A function that shows how far it is, and ends the work on a signal.
    fn progress<'a>(
        &self,
        what: &'static str,
        bar: &'a Bar,
        cancel: &'a Cancel,
    ) -> impl FnMut(u64, u64) -> std::ops::ControlFlow<()> + use<'a> {
        move |done, of| {
            bar.show_bytes(what, done, of);
            cancel.look()
        }
    }
}

impl Opened {
    fn open(&self) -> Result<Image, ImageError> {
        let key = self.common.key()?;
        let Some(base) = &self.base else {
            return remote_image::open(&self.image, key, None, &self.remote);
        };
        // A key beside the difference is its base's, too.
        let key = match key {
            None if !is_remote(&self.image) => Some(load_key(&pagoda_image::key_path(&self.image))?),
            key => key,
        };
        let base = Arc::new(remote_image::open(base, key.clone(), None, &self.remote)?);
        remote_image::open(&self.image, key, Some(base), &self.remote)
    }

    /// How the image is named to the user.
    fn name(&self) -> String {
        remote_image::shown(&self.image)
    }
}

/// Runs `work` with progress on a terminal, and prints its result: a line, or JSON.
fn report<T: Serialize>(
    common: &Common,
    what: &'static str,
    tried: &str,
    line: impl FnOnce(&T) -> String,
    work: impl FnOnce(&mut dyn FnMut(u64, u64) -> std::ops::ControlFlow<()>) -> Result<T, ImageError>,
) -> Result<ExitCode, ExitError> {
    let cancel = Cancel::on_signals()?;
    let bar = Bar::new(common.quiet);
    let outcome = work(&mut common.progress(what, &bar, &cancel));
    bar.clear();
    match outcome {
        Ok(value) if common.json => {
            print_json(&value)?;
            Ok(ExitCode::SUCCESS)
        }
        other => cancel.outcome(&tried, other.map(|value| line(&value))),
    }
}

fn print_json(value: &impl Serialize) -> Result<(), ExitError> {
    use std::io::Write;
    let text = serde_json::to_string(value).map_err(ExitError::own)? + "\n";
    // To a closed standard output nothing can be said.
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(())
}

/// The figures of an image that was written or read.
#[derive(Serialize)]
struct Summary {
    image: String,
    root: String,
    base: Option<String>,
    raw_bytes: u64,
    bytes: u64,
    ratio_vs_raw: f64,
    block_bytes: u32,
    zero_blocks: u64,
    same_blocks: u64,
    base_blocks: u64,
    stored_blocks: u64,
    packed_bytes: u64,
    index_bytes: u64,
    received_pages: u64,
    working_set_blocks: Option<u64>,
}

impl Summary {
    fn of(image: &Image) -> Result<Self, ImageError> {
        let totals = image.totals()?;
        let bytes = image.file_bytes()?;
        let Totals { zero_blocks, same_blocks, base_blocks, stored_blocks, packed_bytes, .. } = totals;
        Ok(Self {
            image: crate::migrate::shown(image.path()),
            root: image.root().to_string(),
            base: image.base().map(|base| base.root().to_string()),
            raw_bytes: image.len_bytes(),
            bytes,
            ratio_vs_raw: bytes as f64 / image.len_bytes() as f64,
            block_bytes: image.block_bytes(),
            zero_blocks,
            same_blocks,
            base_blocks,
            stored_blocks,
            packed_bytes,
            index_bytes: image.index_bytes(),
            received_pages: image.received().map(|run| run.end - run.start).sum(),
            working_set_blocks: image.working_set().map(|set| set.touches().len() as u64),
        })
    }
}

/// The summary of an image that was just written.
fn summary_of(path: &Path, key: Key, base: Option<Arc<Image>>) -> Result<Summary, ImageError> {
    let image = match base {
        Some(base) => Image::open_over(path, Some(key), base)?,
        None => Image::open(path, Some(key))?,
    };
    Summary::of(&image)
}

/// A line about an image that was written.
fn told(written: &Written) -> String {
    let share = written.file_bytes as f64 / written.len_bytes as f64 * 100.0;
    format!(
        "{} of memory in {} ({share:.1} %)",
        Bytes::new(written.len_bytes),
        Bytes::new(written.file_bytes)
    )
}
