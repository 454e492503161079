//! `pagoda send`: an image from here.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use pagoda_core::migrate::geometry::CHANNELS_MAX;
use pagoda_core::migrate::handshake::Codec;
use pagoda_core::size::Bytes;
use pagoda_migrate::{ClientTls, Endpoint, Error, ImageSource, SendOptions, send};

use super::{Bar, Cancel, Common, seconds, shown, told};
use crate::exit_error::ExitError;

/// Send a memory image, or any file, to a `pagoda recv`.
///
/// Holes are never read and stay holes; pages of zeroes, or of one word again and again, cost some
/// bytes. The image is only read, and must not be written meanwhile; a write that is noticed makes
/// the transfer fail. What a `pagoda recv --resume` still has of an earlier transfer is compared by
/// digests, and only the rest is sent. Without --cert, --key and --ca nothing is encrypted. A
/// running process, named by its PID, is not moved: that takes its registers, files and sockets
/// along, which is CRIU's trade; this moves its memory once it is in a file.
#[derive(clap::Args)]
pub struct SendArgs {
    /// The image: a regular file.
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
    /// Where `pagoda recv` listens: tcp://HOST:PORT or unix:///PATH. Over several, as
    /// tcp://HOST:PORT,HOST:PORT, the connections are spread.
    #[arg(value_name = "ADDRESS")]
    to: Endpoint,
    /// How many connections, each with a thread on either side.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=i64::from(CHANNELS_MAX)))]
    channels: u16,
    /// How content is packed: none, lz4, zlib or zstd [default: lz4 where that is faster than none,
    /// which is tried].
    #[arg(long, value_name = "CODEC")]
    codec: Option<Codec>,
    /// The most that all channels together send in a second, like 100M.
    #[arg(long, value_name = "SIZE")]
    bandwidth: Option<Bytes>,
    #[command(flatten)]
    common: Common,
}

/// Sends it.
pub fn run(args: &SendArgs) -> Result<ExitCode, ExitError> {
    let image = shown(&args.image);
    let tried = format!("send {image} to {}", args.to);
    let refused = |error: Error| ExitError::own(format_args!("could not {tried}: {error}"));
    let options = SendOptions {
        channels: args.channels,
        codec: args.codec.unwrap_or_default(),
        only_if_faster: args.codec.is_none(),
        token: args.common.trust.token()?,
        tls: args.common.trust.credentials().map(ClientTls::new).transpose().map_err(refused)?,
        bandwidth: args.bandwidth,
        stall: seconds(args.common.timeout),
        ..SendOptions::default()
    };
    let source = ImageSource::open(&args.image).map_err(|error| {
        let pid = image.parse::<u32>().is_ok();
        let mend = if pid {
            "a process is not moved, CRIU does that"
        } else {
            "name a regular file that this user can read"
        };
        ExitError::own(format_args!("could not open {image} ({error}); {mend}"))
    })?;
    let cancel = Cancel::on_signals()?;
    let (bar, started) = (Bar::new(args.common.quiet), Instant::now());
    let sent = send(&source, &args.to, &options, &mut |progress| {
        bar.show("sending", progress, Bytes::new(progress.counts().image_bytes));
        cancel.look()
    });
    bar.clear();
    let done = sent.map(|counts| format!("sent {image}: {}", told(&counts, started.elapsed())));
    cancel.outcome(&tried, done)
}
