//! `pagoda recv`: an image to here.

use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use pagoda_core::migrate::zero::ZeroPolicy;
use pagoda_core::size::Bytes;
use pagoda_migrate::{
    Destination, Endpoint, Error, Event, ImageDestination, Listener, ReceiveOptions, ResumedDestination,
    ServerTls, receive,
};

use super::{Bar, Cancel, Common, seconds, shown, told};
use crate::exit_error::ExitError;

/// Receive one memory image from a `pagoda send`.
///
/// The image has its name only when all of it has arrived, is what its digests say, and is on disk;
/// until then there is nothing to see, after any failure, unless --resume keeps it. The listening
/// address is of this machine alone, unless another address is given, and then a token or
/// certificates have to be given as well. A running process is not taken over: that is CRIU's
/// trade.
#[derive(clap::Args)]
pub struct RecvArgs {
    /// Where to listen: HOST:PORT, tcp://HOST:PORT, unix:///PATH, or at several addresses,
    /// tcp://HOST:PORT,HOST:PORT. Port 0 takes any, which is then shown.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7000")]
    listen: Endpoint,
    /// The file to make. Nothing may be there.
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,
    /// Keep what arrives in FILE.partial if the transfer breaks off, and go on from there the next
    /// time: content that the sender confirms by its digest is not sent again.
    #[arg(long)]
    resume: bool,
    /// What to do with pages of zeroes: check-then-clear, received-map or drop.
    #[arg(long, value_name = "POLICY", default_value_t)]
    zero: ZeroPolicy,
    /// The largest image to take, as it is shown by ls.
    #[arg(long, value_name = "SIZE", default_value = "1T")]
    max_size: Bytes,
    /// How long to wait for a sender, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u32).range(1..=86_400 * 30))]
    wait: u32,
    #[command(flatten)]
    common: Common,
}

/// Receives it.
pub fn run(args: &RecvArgs) -> Result<ExitCode, ExitError> {
    let output = shown(&args.output);
    let tried = format!("receive {output} on {}", args.listen);
    let refused = |error: Error| ExitError::own(format_args!("could not {tried}: {error}"));
    let options = ReceiveOptions {
        token: args.common.trust.token()?,
        tls: args.common.trust.credentials().map(ServerTls::new).transpose().map_err(refused)?,
        zero: args.zero,
        image_most: args.max_size,
        wait: seconds(args.wait),
        stall: seconds(args.common.timeout),
        ..ReceiveOptions::default()
    };
    if !args.listen.is_local() && options.token.is_none() && options.tls.is_none() {
        return Err(ExitError::own(format_args!(
            "could not {tried}: anyone could send to it; give --token-file, or --cert, --key and --ca, or listen on 127.0.0.1"
        )));
    }
    let made: io::Result<Box<dyn Destination>> = match args.resume {
        true => ResumedDestination::new(&args.output).map(|file| Box::new(file) as _),
        false => ImageDestination::new(args.output.clone()).map(|file| Box::new(file) as _),
    };
    let mut destination = made.map_err(|error| {
        let why = match error.kind() {
            ErrorKind::AlreadyExists => {
                format!("{output} is there already; remove it, or choose another name")
            }
            ErrorKind::ResourceBusy => {
                format!("another process receives {output}; wait for it, or choose another name")
            }
            _ => format!("no file can be made there ({error}); check the directory"),
        };
        ExitError::own(format_args!("could not {tried}: {why}"))
    })?;
    let listener = Listener::bind(&args.listen).map_err(|error| refused(Error::Listen(error)))?;
    let at = listener.endpoint().map_err(|error| refused(Error::Listen(error)))?;
    let cancel = Cancel::on_signals()?;
    crate::say(format_args!("listening on {at}"));
    let bar = Bar::new(args.common.quiet);
    let (mut started, mut turned_away, mut last_turned) = (Instant::now(), 0_u64, String::new());
    let received = receive(listener, destination.as_mut(), &options, &mut |event| {
        match event {
            Event::Waiting => started = Instant::now(),
            Event::Turned(error) => {
                turned_away += 1;
                last_turned = error.to_string();
                // The first at once, because it may be the sender with a wrong token; strangers may
                // be many.
                if turned_away == 1 {
                    crate::say(format_args!("{last_turned}; still waiting"));
                }
            }
            Event::Moving(progress) => bar.show("receiving", progress, progress.reached()),
        }
        cancel.look()
    });
    bar.clear();
    if turned_away > 1 {
        crate::say(format_args!(
            "turned {turned_away} connections away, the last one because: {last_turned}"
        ));
    }
    if received.is_err() && args.resume {
        crate::say(format_args!(
            "what has arrived is kept in {output}.partial; the same command goes on from there"
        ));
    }
    let done = received.map(|counts| format!("received {output}: {}", told(&counts, started.elapsed())));
    cancel.outcome(&tried, done)
}
