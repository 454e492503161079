//! Files on servers of loopback: right ones, slow ones, and ones that lie.

use std::fs;
use std::io;
use std::net::TcpListener;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use pagoda_core::size::Bytes;
use pagoda_image::RemoteFile;
use pagoda_linux::testing::http_server::{HttpServer, Line, Request, answer_content, answer_file, refuse};
use pagoda_linux::testing::random::Random;
use pagoda_remote::{Failure, Options, open};

/// The unit of requests.
const PIECE: usize = 128 << 10;
const TAG: &str = "etag: \"1\"\r\n";

fn content(len: usize) -> Vec<u8> {
    let mut random = Random::new(3, 0);
    (0..len.div_ceil(8)).flat_map(|_| (random.next()).to_le_bytes()).take(len).collect()
}

fn patient() -> Options {
    Options { patience: Duration::from_secs(60), cache: None }
}

fn hasty() -> Options {
    Options { patience: Duration::from_millis(400), cache: None }
}

fn failure(address: &Path, options: &Options) -> Failure {
    open(address, options).err().expect("refused")
}

/// Why a part can't be read.
fn unread(file: &dyn RemoteFile, at: usize, len: usize) -> Failure {
    let error = file.read_exact_at(&mut vec![0; len], at as u64).expect_err("refused");
    let inner = error.into_inner().expect("ours");
    *inner.downcast::<Failure>().expect("ours")
}

#[test]
fn any_part_is_read_and_a_piece_is_asked_for_once() {
    let content = content(40 * PIECE + 777);
    let own = content.clone();
    let server = HttpServer::start(move |request, line| answer_content(&own, TAG, request, line));
    let file = open(&server.url("dir/mem.pim?token=secret"), &patient()).expect("opened");
    assert_eq!(file.name(), server.url("dir/mem.pim"), "no secret");
    assert_eq!(file.len_bytes(), content.len() as u64);
    let mut random = Random::new(1, 0);
    for _ in 0..100 {
        let at = random.below(content.len());
        let len = random.below(3 * PIECE).min(content.len() - at);
        let mut found = vec![0; len];
        file.read_exact_at(&mut found, at as u64).expect("read");
        assert!(found == content[at..at + len], "{at} and {len}");
    }
    let mut found = vec![0; content.len()];
    file.read_exact_at(&mut found, 0).expect("read");
    assert!(found == content);
    let asked: u64 = server
        .requests()
        .iter()
        .map(|request| {
            assert!(request.head.contains("token=secret") && request.path == "/dir/mem.pim");
            let (first, last) = request.range.expect("a part");
            assert!(last - first < 8 * PIECE as u64, "{first} to {last}");
            last.min(content.len() as u64 - 1) - first + 1
        })
        .sum();
    assert_eq!(asked, content.len() as u64, "each byte once");
    assert!(file.read_exact_at(&mut [0; 8], content.len() as u64 - 7).is_err());
    file.forget(0..1);
    file.announce(0..u64::MAX);
    file.read_exact_at(&mut found[..10], 0).expect("read");
    let again = server.requests();
    assert!(again.len() == 1 && again[0].range == Some((0, PIECE as u64 - 1)), "{again:?}");
}

#[test]
fn many_readers_have_their_bytes_from_one_server() {
    let content = content(60 * PIECE);
    let own = content.clone();
    let server = HttpServer::start(move |request, line| answer_content(&own, TAG, request, line));
    let file = open(&server.url("mem"), &patient()).expect("opened");
    std::thread::scope(|scope| {
        for seed in 0..8 {
            let (file, content) = (&file, &content);
            scope.spawn(move || {
                let mut random = Random::new(seed, 0);
                for _ in 0..50 {
                    let at = random.below(content.len() - 5000);
                    let mut found = [0; 5000];
                    file.read_exact_at(&mut found, at as u64).expect("read");
                    assert!(found == content[at..at + 5000]);
                }
            });
        }
    });
}

#[test]
fn a_cache_outlives_its_process_is_mended_and_never_gives_a_former_file() {
    let directory = tempfile::tempdir().expect("a directory");
    let first = content(10 * PIECE + 5);
    fs::write(directory.path().join("mem"), &first).expect("written");
    let server = HttpServer::directory(directory.path());
    let place = directory.path().join("cache");
    let options = Options { cache: Some((place.clone(), Bytes::mib(16))), ..patient() };
    let read = |expected: &[u8]| {
        let file = open(&server.url("mem"), &options).expect("opened");
        let mut found = vec![0; expected.len()];
        file.read_exact_at(&mut found, 0).expect("read");
        assert!(found == expected);
        drop(file);
        server.requests().len()
    };
    assert!(read(&first) >= 3);
    assert_eq!(read(&first), 1, "to open it");
    let pieces = || {
        let entries = fs::read_dir(&place).expect("a directory").flatten();
        entries.filter(|entry| entry.file_name().to_string_lossy().ends_with(".piece"))
    };
    let damaged = pieces().next().expect("a piece").path();
    let mut bytes = fs::read(&damaged).expect("read");
    bytes[0] ^= 1;
    fs::write(&damaged, bytes).expect("written");
    assert_eq!(read(&first), 2, "the damaged one as well");
    assert_eq!(read(&first), 1);
    let mut second = first.clone();
    second[5 * PIECE] ^= 1;
    fs::write(directory.path().join("mem"), &second).expect("written");
    assert!(read(&second) >= 3);
}

#[test]
fn trouble_passes_and_a_cut_answer_is_continued() {
    let content = content(6 * PIECE);
    let (own, turn) = (content.clone(), AtomicUsize::new(0));
    let server = HttpServer::start(move |request, line| match turn.fetch_add(1, Ordering::Relaxed) {
        0 => refuse(line, "503 Slow Down", ""),
        1 => Ok(false),
        2 => answer_content(&own, TAG, request, line),
        3 => {
            let (first, last) = request.range.expect("a part");
            let len = own.len();
            write!(line, "HTTP/1.1 206 X\r\ncontent-range: bytes {first}-{last}/{len}\r\n")?;
            write!(line, "content-length: {}\r\n{TAG}\r\n", last - first + 1)?;
            line.write_all(&own[first as usize..][..PIECE + 1000])?;
            Ok(false)
        }
        _ => answer_content(&own, TAG, request, line),
    });
    let file = open(&server.url("mem"), &patient()).expect("opened");
    let mut found = vec![0; 5 * PIECE];
    file.read_exact_at(&mut found, PIECE as u64).expect("read");
    assert!(found == content[PIECE..]);
    let last = server.requests().pop().and_then(|request| request.range).expect("a part");
    assert_eq!(last, ((2 * PIECE + 1000) as u64, (6 * PIECE - 1) as u64));
}

/// An answer of a server that is not right.
type Bad = fn(&[u8], &Request, &mut dyn Line) -> io::Result<bool>;

fn part(line: &mut dyn Line, range: &str, len: &str, body: &[u8]) -> io::Result<bool> {
    write!(line, "HTTP/1.1 206 Partial Content\r\n{range}content-length: {len}\r\n{TAG}\r\n")?;
    line.write_all(body)?;
    Ok(false)
}

#[test]
fn a_server_that_lies_gives_an_error_that_says_how() {
    let bad: [(Bad, Failure); 12] = [
        (|_, _, line| refuse(line, "404 Not Found", ""), Failure::Status("404 Not Found".into())),
        (|_, _, line| refuse(line, "403 Forbidden", ""), Failure::Status("403 Forbidden".into())),
        (
            |_, _, line| refuse(line, "302 Found", "location: http://127.0.0.1:1/other?secret\r\n"),
            Failure::Moved("http://127.0.0.1:1/other".into()),
        ),
        (
            |own, request, line| answer_content(own, TAG, &Request { range: None, ..request.clone() }, line),
            Failure::NoRanges,
        ),
        (|own, _, line| part(line, "", "10", &own[..10]), Failure::Wrong("it does not say which part it is")),
        (
            |own, _, line| part(line, "content-range: bytes 5-14/1000000\r\n", "10", &own[..10]),
            Failure::Wrong("it is another part than was asked for"),
        ),
        (
            |own, _, line| part(line, "content-range: bytes 0-131071/1000000\r\n", "131073", own),
            Failure::Wrong("its length is not that of the part"),
        ),
        (
            |_, _, line| part(line, "content-range: bytes 0-0/18446744073709551615\r\n", "1", b"x"),
            Failure::Wrong("it is another part than was asked for"),
        ),
        (
            |_, _, line| refuse(line, "416 Range Not Satisfiable", ""),
            Failure::Wrong("it ends before this part"),
        ),
        // These are tried again until the patience is over.
        (
            |own, _, line| part(line, "content-range: bytes 0-131071/1000000\r\n", "131072", &own[..0]),
            Failure::Cut,
        ),
        (|_, _, line| refuse(line, "500 X", ""), Failure::Trouble("500 Internal Server Error".into())),
        (
            |_, _, _| {
                std::thread::sleep(Duration::from_secs(2));
                Ok(false)
            },
            Failure::Late(0),
        ),
    ];
    std::thread::scope(|scope| {
        for (answer, expected) in bad {
            scope.spawn(move || {
                let own = content(PIECE);
                let server = HttpServer::start(move |request, line| answer(&own, request, line));
                // Those that are tried again end with the patience, perhaps before an answer.
                let passes = matches!(
                    expected,
                    Failure::Cut | Failure::Trouble(_) | Failure::Late(_) | Failure::Connection(_)
                );
                let found = failure(&server.url("mem"), &if passes { hasty() } else { patient() });
                let is_late = passes && matches!(found, Failure::Late(_) | Failure::Connection(_));
                assert!(found == expected || is_late, "{found:?}, not {expected:?}");
            });
        }
    });
    let unreached = |address: &Path| {
        let found = failure(address, &hasty());
        assert!(matches!(found, Failure::Connection(_) | Failure::Late(_)), "{found:?}");
    };
    let free = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("a port");
    unreached(Path::new(&format!("http://{free}/mem")));
    let garbage = HttpServer::start(|_, line| line.write_all(b"SSH-2.0-OpenSSH\r\n").map(|()| false));
    unreached(&garbage.url("mem"));
    // A server without encryption where it is asked for.
    let plain = HttpServer::start(|_, line| refuse(line, "404 Not Found", ""));
    let address = format!("https://{}", plain.address("mem"));
    unreached(Path::new(&address));
}

#[test]
fn a_file_that_is_replaced_while_it_is_open_is_not_mixed_with_its_former_self() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("mem");
    fs::write(&path, content(4 * PIECE)).expect("written");
    let with_tag = HttpServer::directory(directory.path());
    let own = directory.path().to_owned();
    // It does not look at the tag that is asked for.
    let careless = HttpServer::start(move |request, line| {
        let head = request.head.replace("if-match", "x").replace("If-Match", "x");
        answer_file(&own, &Request { head, ..request.clone() }, line)
    });
    let files = [&with_tag, &careless].map(|server| open(&server.url("mem"), &patient()).expect("opened"));
    let mut other = content(4 * PIECE);
    other[0] ^= 1;
    fs::write(&path, other).expect("written");
    for file in files {
        assert_eq!(unread(&*file, 2 * PIECE, 100), Failure::Replaced);
    }
}

#[test]
fn a_server_that_stops_answering_ends_every_read_and_what_is_here_stays() {
    let content = content(40 * PIECE);
    let own = content.clone();
    // It answers for the first piece alone.
    let server = HttpServer::start(move |request, line| match request.range {
        Some((0, _)) => answer_content(&own, TAG, request, line),
        _ => loop {
            std::thread::park();
        },
    });
    let file = (0..50).find_map(|_| open(&server.url("mem"), &hasty()).ok()).expect("opened");
    file.announce((PIECE * 4) as u64..(PIECE * 8) as u64);
    for piece in 4..8 {
        assert!(matches!(unread(&*file, piece * PIECE, 10), Failure::Late(_) | Failure::Connection(_)));
    }
    let mut found = [0; 10];
    file.read_exact_at(&mut found, 5).expect("it is here");
    assert_eq!(found, content[5..15]);
}
