//! `pagoda export`: metrics of managed programs, library managers and servers, for Prometheus.
//!
//! It reads the files that `pagoda top` reads, by the same readers, and those that `pagoda serve`
//! writes, and writes nothing: no process notices. This module must never ask a process for
//! anything.

mod exposition;
mod metrics;
mod served;
mod server;

use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::exit_error::ExitError;
use crate::top::find::Finder;
use exposition::Format;
use server::Answer;

/// Print or serve metrics for Prometheus.
///
/// Of each `pagoda run` of this user, and of each manager of a library that publishes
/// (`ManagerBuilder::publish`): every counter of `--stats`, faults by kind, how long they took, the
/// processes that hold most, zones and regions. The programs don't notice.
///
/// Without --listen it prints them once, in the format of OpenMetrics. With it they are at
/// http://ADDRESS:PORT/metrics until a signal ends it. It asks for no password: every program that
/// reaches the address sees the names of your programs and how much memory they have, other users
/// of this machine included.
#[derive(clap::Args, Debug)]
pub struct ExportArgs {
    /// Serve them here: without an address at 127.0.0.1:9464.
    #[arg(long, value_name = "ADDRESS:PORT", num_args = 0..=1, default_missing_value = "127.0.0.1:9464")]
    listen: Option<SocketAddr>,
    /// Tell of a `pagoda serve`, too, that writes this file by its --stats. May be repeated.
    #[arg(long, value_name = "FILE")]
    serve: Vec<PathBuf>,
}

/// A page that was made so lately is given again: however often it is asked for, the files are
/// read twice a second at most.
const FRESH_FOR: Duration = Duration::from_millis(500);

const INDEX: &str = "pagoda export: the metrics are at /metrics\n";

/// Runs it. Exit status 125 if the address can't be listened to.
pub fn run(args: &ExportArgs) -> Result<ExitCode, ExitError> {
    let finder = Finder::new(std::env::var_os("XDG_RUNTIME_DIR"), None);
    let Some(address) = args.listen else {
        let text = metrics::render(&finder.look(), &served::read(&args.serve), Format::OpenMetrics);
        // To a closed standard output nothing can be said.
        let _ = std::io::stdout().write_all(text.as_bytes());
        return Ok(ExitCode::SUCCESS);
    };
    let listened = TcpListener::bind(address).and_then(|listener| Ok((listener.local_addr()?, listener)));
    let (address, listener) = listened.map_err(|error| {
        ExitError::own(format!("could not listen to {address} ({error}); give another --listen ADDRESS:PORT"))
    })?;
    crate::say(format_args!("metrics at http://{address}/metrics"));
    let mut pages = Pages { finder, served: &args.serve, kept: [const { None }; 2] };
    let error =
        server::serve(&listener, server::CONNECTION_TIME, &mut |path, accept| pages.page(path, accept));
    Err(ExitError::own(format!("could not go on listening to {address} ({error}); please report this")))
}

/// The pages, of which the last ones are kept for a moment.
struct Pages<'a> {
    finder: Finder,
    served: &'a [PathBuf],
    kept: [Option<(Instant, String)>; 2],
}

impl Pages<'_> {
    fn page(&mut self, path: &str, accept: &str) -> Option<Answer> {
        let format = Format::of_accept(accept);
        let (content_type, body) = match path {
            "/" => ("text/plain; charset=utf-8", INDEX.to_owned()),
            "/metrics" => (format.content_type(), self.metrics(format)),
            _ => return None,
        };
        Some(Answer { status: "200 OK", content_type, body })
    }

    fn metrics(&mut self, format: Format) -> String {
        let kept = &mut self.kept[usize::from(format == Format::OpenMetrics)];
        match kept {
            Some((made, text)) if made.elapsed() < FRESH_FOR => text.clone(),
            _ => {
                let text = metrics::render(&self.finder.look(), &served::read(self.served), format);
                kept.insert((Instant::now(), text)).1.clone()
            }
        }
    }
}
