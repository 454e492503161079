//! `pagoda image info`: the sizes, blocks and base of an image.

use std::io::Write;
use std::process::ExitCode;

use comfy_table::{Table, presets};
use pagoda_core::size::Bytes;

use super::{Opened, Summary, print_json};
use crate::exit_error::ExitError;

/// Show the size of an image, its blocks, and its base.
///
/// Only the index is read and checked; `pagoda image verify` reads all.
#[derive(clap::Args)]
pub struct InfoArgs {
    #[command(flatten)]
    opened: Opened,
}

/// Shows it.
pub fn run(args: &InfoArgs) -> Result<ExitCode, ExitError> {
    let summary =
        args.opened.open().and_then(|image| Summary::of(&image)).map_err(|error| {
            ExitError::own(format_args!("could not look at {}: {error}", args.opened.name()))
        })?;
    if args.opened.common.json {
        print_json(&summary)?;
    } else {
        // To a closed standard output nothing can be said.
        let _ = std::io::stdout().write_all(table(&summary).as_bytes());
    }
    Ok(ExitCode::SUCCESS)
}

fn table(summary: &Summary) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    let mut row = |name: &str, value: String| {
        table.add_row([name, &value]);
    };
    let share = summary.ratio_vs_raw * 100.0;
    row("memory", Bytes::new(summary.raw_bytes).to_string());
    row("file", format!("{} ({share:.1} %)", Bytes::new(summary.bytes)));
    row("block", Bytes::new(summary.block_bytes.into()).to_string());
    row("stored blocks", format!("{}, in {}", summary.stored_blocks, Bytes::new(summary.packed_bytes)));
    row("blocks of zeroes", summary.zero_blocks.to_string());
    row("blocks of one word", summary.same_blocks.to_string());
    row("blocks of the base", summary.base_blocks.to_string());
    row("received pages", summary.received_pages.to_string());
    row("working set", summary.working_set_blocks.map_or("none".to_owned(), |n| format!("{n} blocks")));
    row("digest", summary.root.clone());
    row("base", summary.base.clone().unwrap_or_else(|| "none".to_owned()));
    table.trim_fmt() + "\n"
}
