//! `pagoda image unpack`: the memory of an image as a raw file.

use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::ExitCode;

use pagoda_image::{Content, ImageError};
use pagoda_linux::io::unfinished_file::UnfinishedFile;
use serde::Serialize;

use super::{Opened, report};
use crate::exit_error::ExitError;
use crate::migrate::shown;

/// Bytes that are read at once: a multiple of every block.
const PART_BYTES: u64 = 1 << 20;

/// Unpack an image into a raw memory file.
///
/// Zeroes become holes. The file has its name only when all of it is on disk.
#[derive(clap::Args)]
pub struct UnpackArgs {
    #[command(flatten)]
    opened: Opened,
    /// The file to make. Nothing may be there.
    #[arg(value_name = "MEMORY")]
    memory: PathBuf,
}

#[derive(Serialize)]
struct Unpacked {
    memory: String,
    raw_bytes: u64,
    data_bytes: u64,
}

/// Unpacks it.
pub fn run(args: &UnpackArgs) -> Result<ExitCode, ExitError> {
    let (from, to) = (args.opened.name(), shown(&args.memory));
    let unwritten = |error| ImageError::Write { path: args.memory.clone(), error };
    let line = |done: &Unpacked| {
        format!("unpacked {from} into {to}: {} bytes, {} of them data", done.raw_bytes, done.data_bytes)
    };
    report(&args.opened.common, "unpacking", &format!("unpack {from} into {to}"), line, |progress| {
        let image = args.opened.open()?;
        let unfinished = UnfinishedFile::create(&args.memory).map_err(unwritten)?;
        unfinished.file().set_len(image.len_bytes()).map_err(unwritten)?;
        let (mut content, mut data_bytes) = (vec![0; PART_BYTES as usize], 0);
        for at in (0..image.len_bytes()).step_by(PART_BYTES as usize) {
            if progress(at, image.len_bytes()).is_break() {
                return Err(ImageError::Cancelled);
            }
            let end = image.len_bytes().min(at + PART_BYTES);
            let block = u64::from(image.block_bytes());
            image.read_at(at, &mut content[..(end - at) as usize])?;
            for from in (at..end).step_by(block as usize) {
                let len = block.min(end - from) as usize;
                if image.content_at(from, len) != Content::Zero {
                    let own = &content[(from - at) as usize..][..len];
                    unfinished.file().write_all_at(own, from).map_err(unwritten)?;
                    data_bytes += len as u64;
                }
            }
        }
        unfinished.publish().map_err(unwritten)?;
        Ok(Unpacked { memory: to.clone(), raw_bytes: image.len_bytes(), data_bytes })
    })
}
