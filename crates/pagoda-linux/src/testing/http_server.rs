//! A server on loopback that answers requests for files, and the answers of a bad one.
//!
//! It knows what the tests of remote images ask: GET with one range, keep-alive, a tag. Nothing
//! here may answer a host other than this one.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

/// A connection, perhaps encrypted.
pub trait Line: Read + Write {}
impl<T: Read + Write> Line for T {}

/// A request: its path without the query, its range, and all of its head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The path.
    pub path: String,
    /// The first and the last byte.
    pub range: Option<(u64, u64)>,
    /// The head, as it came.
    pub head: String,
}

type Answer = dyn Fn(&Request, &mut dyn Line) -> io::Result<bool> + Send + Sync;
type Wrap = dyn Fn(TcpStream) -> Box<dyn Line> + Send + Sync;

/// The server. It accepts until it is dropped.
pub struct HttpServer {
    port: u16,
    requests: Arc<Mutex<Vec<Request>>>,
    ends: Arc<AtomicBool>,
}

impl HttpServer {
    /// Answers each request by `answer`, which writes to the connection, and tells whether it stays
    /// open.
    ///
    /// # Panics
    /// Without a port.
    pub fn start(
        answer: impl Fn(&Request, &mut dyn Line) -> io::Result<bool> + Send + Sync + 'static,
    ) -> Self {
        Self::start_over(|stream| Box::new(stream), answer)
    }

    /// The same, over what `wrap` makes of a connection.
    ///
    /// # Panics
    /// Without a port.
    pub fn start_over(
        wrap: impl Fn(TcpStream) -> Box<dyn Line> + Send + Sync + 'static,
        answer: impl Fn(&Request, &mut dyn Line) -> io::Result<bool> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let port = listener.local_addr().expect("a port").port();
        let (requests, ends) = (Arc::<Mutex<Vec<Request>>>::default(), Arc::new(AtomicBool::new(false)));
        let (seen, end): (_, Arc<AtomicBool>) = (Arc::clone(&requests), Arc::clone(&ends));
        let (wrap, answer): (Arc<Wrap>, Arc<Answer>) = (Arc::new(wrap), Arc::new(answer));
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if end.load(Ordering::Relaxed) {
                    return;
                }
                let (wrap, answer, seen) = (Arc::clone(&wrap), Arc::clone(&answer), Arc::clone(&seen));
                thread::spawn(move || {
                    let _ = stream.set_nodelay(true);
                    let mut line = wrap(stream);
                    while let Ok(Some(request)) = read(&mut *line) {
                        seen.lock().expect("whole").push(request.clone());
                        if !matches!(answer(&request, &mut *line), Ok(true)) {
                            return;
                        }
                    }
                });
            }
        });
        Self { port, requests, ends }
    }

    /// Serves the files of a directory.
    ///
    /// # Panics
    /// Without a port.
    #[must_use]
    pub fn directory(directory: &Path) -> Self {
        let directory = directory.to_owned();
        Self::start(move |request, line| answer_file(&directory, request, line))
    }

    /// The address of a file, without the scheme.
    #[must_use]
    pub fn address(&self, path: &str) -> String {
        format!("127.0.0.1:{}/{path}", self.port)
    }

    /// The address of a file.
    #[must_use]
    pub fn url(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("http://{}", self.address(path)))
    }

    /// The requests since the last call.
    ///
    /// # Panics
    /// If a connection's thread has panicked.
    #[must_use]
    pub fn requests(&self) -> Vec<Request> {
        std::mem::take(&mut *self.requests.lock().expect("whole"))
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

/// The next request of a connection.
fn read(line: &mut dyn Line) -> io::Result<Option<Request>> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") && head.len() < 1 << 16 {
        if line.read(&mut byte)? == 0 {
            return Ok(None);
        }
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let path = head.split(' ').nth(1).unwrap_or("/").split('?').next().unwrap_or("/");
    let range = header(&head, "range").and_then(|range| {
        let (first, last) = range.strip_prefix("bytes=")?.split_once('-')?;
        Some((first.parse().ok()?, last.parse().ok()?))
    });
    Ok(Some(Request { path: path.to_owned(), range, head }))
}

/// A line of a head.
#[must_use]
pub fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = head.lines().filter_map(|line| line.split_once(": "));
    lines.find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value)
}

/// An answer without a body.
///
/// # Errors
/// Those of the connection.
pub fn refuse(line: &mut dyn Line, status: &str, headers: &str) -> io::Result<bool> {
    write!(line, "HTTP/1.1 {status}\r\ncontent-length: 0\r\n{headers}\r\n")?;
    Ok(true)
}

/// The right answer to a request for a file of a directory. The tag is made of its content.
///
/// # Errors
/// Those of the connection.
pub fn answer_file(directory: &Path, request: &Request, line: &mut dyn Line) -> io::Result<bool> {
    let Ok(content) = fs::read(directory.join(request.path.trim_start_matches('/'))) else {
        return refuse(line, "404 Not Found", "");
    };
    let tag = content
        .iter()
        .fold(content.len() as u64, |tag, byte| (tag ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    answer_content(&content, &format!("etag: \"{tag:x}\"\r\n"), request, line)
}

/// The right answer with this content, and headers of the caller's.
///
/// # Errors
/// Those of the connection.
pub fn answer_content(
    content: &[u8],
    headers: &str,
    request: &Request,
    line: &mut dyn Line,
) -> io::Result<bool> {
    let wanted = header(&request.head, "if-match");
    if wanted.is_some_and(|wanted| header(headers, "etag").is_some_and(|tag| tag != wanted)) {
        return refuse(line, "412 Precondition Failed", "");
    }
    let len = content.len() as u64;
    let Some((first, last)) = request.range else {
        write!(line, "HTTP/1.1 200 OK\r\ncontent-length: {len}\r\n{headers}\r\n")?;
        return line.write_all(content).map(|()| true);
    };
    if first >= len {
        return refuse(line, "416 Range Not Satisfiable", "");
    }
    let last = last.min(len - 1);
    let part = &content[first as usize..=last as usize];
    write!(
        line,
        "HTTP/1.1 206 Partial Content\r\ncontent-range: bytes {first}-{last}/{len}\r\ncontent-length: {}\r\n{headers}\r\n",
        part.len()
    )?;
    line.write_all(part)?;
    line.flush().map(|()| true)
}
