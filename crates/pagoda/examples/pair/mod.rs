//! Shared by both examples of migration: a region between two processes, of which the second is the
//! first's child.

use std::error::Error;
use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdout, Command, Stdio};

use pagoda::migrate::{Endpoint, Listener};
use pagoda::{Bytes, Manager};

const BUDGET: Bytes = Bytes::mib(64);
/// More than the budget: a part of it is compressed, and travels so.
pub const REGION: Bytes = Bytes::mib(96);
pub const RECORD_BYTES: usize = 4096;

pub type Outcome = Result<(), Box<dyn Error>>;

/// Runs whichever of the two this process is.
pub fn run(source: fn() -> Outcome, destination: fn() -> Outcome) -> Outcome {
    match std::env::args().nth(1).as_deref() {
        None => source(),
        Some("destination") => destination(),
        Some(other) => Err(format!("{other} is no argument; it takes none").into()),
    }
}

pub fn manager() -> Result<Manager, Box<dyn Error>> {
    Ok(Manager::builder().budget(BUDGET).user_mode_only(true).build()?)
}

/// The destination in the source's hands: a process that listens, and its output.
pub struct Destination {
    pub address: Endpoint,
    pub child: Child,
    said: Lines<BufReader<ChildStdout>>,
}

impl Destination {
    /// Starts this program once more.
    pub fn start() -> Result<Self, Box<dyn Error>> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("destination")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut said = BufReader::new(child.stdout.take().ok_or("no pipe")?).lines();
        let address = said.next().ok_or("the destination did not start")??.parse()?;
        Ok(Self { address, child, said })
    }

    /// Repeats its output, up to its end.
    pub fn finish(mut self) -> Outcome {
        for line in self.said {
            println!("{}", line?);
        }
        if self.child.wait()?.success() { Ok(()) } else { Err("the destination found it otherwise".into()) }
    }
}

/// The destination's first step: it listens, and prints its address.
pub fn listen() -> Result<Listener, Box<dyn Error>> {
    let listener = Listener::bind(&"tcp://127.0.0.1:0".parse()?)?;
    println!("{}", listener.endpoint()?);
    std::io::stdout().flush()?;
    Ok(listener)
}
