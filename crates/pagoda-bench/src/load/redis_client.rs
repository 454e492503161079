//! A Redis server of the bench's own and connections to it, for the benches that send it requests.
//! Never talks to a server that the bench did not start.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use redis::{Connection, InfoDict, cmd, pipe};

use crate::measure::process::{Cancel, Running};

/// Requests in flight on a pipelined connection.
pub const PIPELINE: usize = 64;

/// How long a server may take to listen.
const LISTEN_LIMIT: Duration = Duration::from_secs(10);

/// The command line of a server at a socket. It never saves unasked.
pub fn server(directory: &Path, socket: &Path) -> Vec<String> {
    let [directory, at] = [directory, socket].map(|path| path.display().to_string());
    let server = ["redis-server", "--port", "0", "--save", "", "--appendonly", "no", "--dir", &directory];
    server.into_iter().chain(["--unixsocket", &at]).map(str::to_owned).collect()
}

/// A key as the server knows it, and as redis-benchmark names it.
pub fn name(key: u64) -> String {
    format!("key:{key:012}")
}

/// Connects to a server that was started just now, as soon as it listens. An answer that takes
/// longer than `limit` is an error.
pub fn connect(
    url: &str,
    limit: Duration,
    server: &mut Running,
    cancel: &Cancel,
) -> anyhow::Result<Connection> {
    let client = redis::Client::open(url)?;
    let start = Instant::now();
    loop {
        match client.get_connection() {
            Ok(connection) => {
                connection.set_read_timeout(Some(limit))?;
                return Ok(connection);
            }
            Err(error) if start.elapsed() > LISTEN_LIMIT || server.ended() => {
                return Err(error).context("the server does not listen");
            }
            Err(_) => thread::sleep(Duration::from_millis(5)),
        }
        cancel.check()?;
    }
}

/// Connects by the server's socket.
pub fn connect_at(
    socket: &Path,
    limit: Duration,
    server: &mut Running,
    cancel: &Cancel,
) -> anyhow::Result<Connection> {
    connect(&format!("unix://{}", socket.display()), limit, server, cancel)
}

/// Sets all `keys`.
pub fn set_all(
    connection: &mut Connection,
    pairs: impl IntoIterator<Item = (u64, Vec<u8>)>,
    cancel: &Cancel,
) -> anyhow::Result<()> {
    let mut pairs = pairs.into_iter().peekable();
    while pairs.peek().is_some() {
        cancel.check()?;
        let mut requests = pipe();
        for (key, value) in pairs.by_ref().take(PIPELINE) {
            requests.set(name(key), value).ignore();
        }
        requests.exec(connection)?;
    }
    Ok(())
}

/// Whether the server still saves, and whether its last save went well.
pub fn saving(connection: &mut Connection) -> anyhow::Result<(bool, bool)> {
    let info: InfoDict = cmd("INFO").arg("persistence").query(connection)?;
    let is = |name: &str, value: &str| info.get::<String>(name).is_some_and(|found| found == value);
    Ok((!is("rdb_bgsave_in_progress", "0"), is("rdb_last_bgsave_status", "ok")))
}

/// Asks the server to end without a save. It closes the connection instead of an answer.
pub fn shut_down(mut connection: Connection) -> anyhow::Result<()> {
    let request = cmd("SHUTDOWN").arg("NOSAVE").get_packed_command();
    connection.send_packed_command(&request).context("asking the server to end")
}
