//! `pagoda image verify`: whether every block is as it was written.

use std::process::ExitCode;

use pagoda_core::size::Bytes;
use pagoda_image::ImageError;
use serde::Serialize;

use super::{Opened, report};
use crate::exit_error::ExitError;

/// Bytes that are read at once: a multiple of every block.
const PART_BYTES: u64 = 1 << 20;

/// Read all of an image, and check it.
///
/// Ends with the first block that is damaged, and names it. The layers below a difference are read
/// as far as it needs them.
#[derive(clap::Args)]
pub struct VerifyArgs {
    #[command(flatten)]
    opened: Opened,
}

#[derive(Serialize)]
struct Verified {
    image: String,
    root: String,
    raw_bytes: u64,
    is_whole: bool,
}

/// Checks it.
pub fn run(args: &VerifyArgs) -> Result<ExitCode, ExitError> {
    let name = args.opened.name();
    let line = |done: &Verified| format!("{name} is whole: {} of memory", Bytes::new(done.raw_bytes));
    report(&args.opened.common, "reading", &format!("verify {name}"), line, |progress| {
        let image = args.opened.open()?;
        let mut content = vec![0; PART_BYTES as usize];
        for at in (0..image.len_bytes()).step_by(PART_BYTES as usize) {
            if progress(at, image.len_bytes()).is_break() {
                return Err(ImageError::Cancelled);
            }
            let len = PART_BYTES.min(image.len_bytes() - at) as usize;
            image.read_at(at, &mut content[..len])?;
        }
        let root = image.root().to_string();
        Ok(Verified { image: name.clone(), root, raw_bytes: image.len_bytes(), is_whole: true })
    })
}
