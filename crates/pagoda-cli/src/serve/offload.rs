//! `pagoda serve --offload`: one VM of Cloud Hypervisor's.
//!
//! There is no supervisor: the VMM ends its VM when the connection ends, so a second handler would
//! come too late.

use std::io::Write;
use std::process::ExitCode;
use std::time::Instant;

use pagoda_core::size::Bytes;
use pagoda_serve::cloud_hypervisor::{Failure, restore};
use pagoda_serve::source::SourceError;

use crate::exit_error::ExitError;
use crate::serve::{ServeArgs, open};

/// Restores it, and returns when it has all of its memory.
pub fn run(args: &ServeArgs) -> Result<ExitCode, ExitError> {
    let begin = Instant::now();
    let slot = |slot| {
        let path = args.image.join(format!("memory-{slot}"));
        open(args, &path).map_err(|error| Failure::Content(SourceError(error.to_string())))
    };
    let restored = restore(&args.image, &args.socket, args.resume, &slot).map_err(|failure| {
        ExitError::own(format_args!(
            "could not restore {} at {}: {failure}",
            args.image.display(),
            args.socket.display()
        ))
    })?;
    if args.json {
        let text = serde_json::to_string(&restored).expect("plain numbers") + "\n";
        // To a closed standard output nothing can be said.
        let _ = std::io::stdout().write_all(text.as_bytes());
    } else {
        crate::say(format_args!(
            "restored {} in {:.1} s: the VM was ready after {:.1} ms, {} requests, {} written before they came",
            Bytes::new(restored.memory_bytes),
            begin.elapsed().as_secs_f64(),
            restored.started_ms,
            restored.faults,
            Bytes::new(restored.prefetched_bytes),
        ));
    }
    Ok(ExitCode::SUCCESS)
}
