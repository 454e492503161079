//! `pagoda image pack` and `diff`: memory from a file to an image.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use pagoda_core::image::is_block_size;
use pagoda_core::migrate::handshake::Codec;
use pagoda_core::size::Bytes;
use pagoda_image::import::{MappedRam, RawFile, RawMemory, is_mapped_ram};
use pagoda_image::{Image, ImageError, PackOptions, load_key, make_key, pack};
use serde::Serialize;

use super::{Common, Summary, report, summary_of, told};
use crate::exit_error::ExitError;
use crate::migrate::shown;

/// Pack memory into an image.
///
/// The memory is a raw file, as Firecracker and Cloud Hypervisor save it, or a migration file of
/// QEMU's with the capability mapped-ram, which is known by its beginning. Zeroes and repeated
/// words take no room. An image that is there is replaced when all of the new one is on disk; until
/// then, and after any failure, the old one stays.
#[derive(clap::Args)]
pub struct PackArgs {
    /// The memory.
    #[arg(value_name = "MEMORY")]
    memory: PathBuf,
    /// The image to make.
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
    /// The size of a block: 4K, 8K, 16K, 32K or 64K. Smaller ones are read faster one by one,
    /// larger ones pack better.
    #[arg(long, value_name = "SIZE", default_value = "16K")]
    block: Bytes,
    #[command(flatten)]
    how: How,
    #[command(flatten)]
    common: Common,
}

/// Pack the difference of memory to an image.
///
/// Only blocks that are not the base's take room. The base is named by its digest, and has the same
/// key; it has to lie in the directory of the difference, or be named with --base, when the
/// difference is read.
#[derive(clap::Args)]
pub struct DiffArgs {
    /// The image to compare with.
    #[arg(value_name = "BASE")]
    base: PathBuf,
    /// The memory.
    #[arg(value_name = "MEMORY")]
    memory: PathBuf,
    /// The image to make.
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
    #[command(flatten)]
    how: How,
    #[command(flatten)]
    common: Common,
}

#[derive(clap::Args)]
struct How {
    /// How blocks are packed: none, lz4 or zstd.
    #[arg(long, value_name = "CODEC", default_value_t, value_parser = codec)]
    codec: Codec,
    /// Which block of a QEMU machine's memory to take, like pc.ram; the longest without it.
    #[arg(long, value_name = "NAME")]
    ram_block: Option<String>,
}

fn codec(text: &str) -> Result<Codec, String> {
    match text.parse()? {
        Codec::Zlib => Err("an image is packed by none, lz4 or zstd".to_owned()),
        codec => Ok(codec),
    }
}

fn open_memory(path: &Path, how: &How) -> Result<Box<dyn RawMemory>, ImageError> {
    Ok(if is_mapped_ram(path)? {
        Box::new(MappedRam::open(path, how.ram_block.as_deref())?)
    } else if how.ram_block.is_some() {
        let reason = "it is no migration file of QEMU's; leave --ram-block away".to_owned();
        return Err(ImageError::Import { path: path.to_owned(), reason });
    } else {
        Box::new(RawFile::open(path)?)
    })
}

/// Packs it.
pub fn run(args: &PackArgs) -> Result<ExitCode, ExitError> {
    let tried = format!("pack {} into {}", shown(&args.memory), shown(&args.image));
    let block_bytes = u32::try_from(args.block.get()).ok().filter(|bytes| is_block_size(*bytes));
    let block_bytes = block_bytes.ok_or_else(|| {
        ExitError::own(format_args!(
            "could not {tried}: a block is 4K, 8K, 16K, 32K or 64K; give one of these"
        ))
    })?;
    let key = || match &args.common.key {
        Some(path) => load_key(path),
        None => make_key(&args.image),
    };
    make(&args.memory, &args.image, &args.how, &args.common, &tried, || {
        Ok(PackOptions { block_bytes, codec: args.how.codec, ..PackOptions::new(key()?) })
    })
}

/// Packs the difference.
pub fn run_diff(args: &DiffArgs) -> Result<ExitCode, ExitError> {
    let (base, memory) = (shown(&args.base), shown(&args.memory));
    let tried = format!("pack the difference of {memory} to {base} into {}", shown(&args.image));
    make(&args.memory, &args.image, &args.how, &args.common, &tried, || {
        let base = Arc::new(Image::open(&args.base, args.common.key()?)?);
        let options = PackOptions::new(base.key().clone());
        Ok(PackOptions { codec: args.how.codec, base: Some(base), ..options })
    })
}

#[derive(Serialize)]
struct Packed {
    #[serde(flatten)]
    summary: Summary,
    #[serde(skip)]
    line: String,
}

fn make(
    memory: &Path,
    image: &Path,
    how: &How,
    common: &Common,
    tried: &str,
    options: impl FnOnce() -> Result<PackOptions, ImageError>,
) -> Result<ExitCode, ExitError> {
    let line = |done: &Packed| format!("packed {}: {}", shown(image), done.line);
    let work = |progress: &mut dyn FnMut(u64, u64) -> std::ops::ControlFlow<()>| {
        let memory = open_memory(memory, how)?;
        let options = options()?;
        let (key, base) = (options.key.clone(), options.base.clone());
        let written = pack(&*memory, image, options, &mut |at| progress(at.done_bytes, at.of_bytes))?;
        Ok(Packed { summary: summary_of(image, key, base)?, line: told(&written) })
    };
    report(common, "packing", tried, line, work)
}
