//! Clients as they come: quick ones are answered whatever others do.

use std::net::SocketAddr;

use super::*;

const BODY: &str = "the page\n";

/// A server for the rest of the process's life, whose connections have so much time.
fn start(time: Duration, body: String) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        serve(&listener, time, &mut |path, accept| {
            let content_type = if accept == "special" { "text/special" } else { "text/plain" };
            (path == "/page").then(|| Answer { status: "200 OK", content_type, body: body.clone() })
        })
    });
    address
}

/// Longer than any test takes.
const LONG: Duration = Duration::from_secs(300);

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("connected");
    stream.set_read_timeout(Some(LONG)).expect("set");
    stream
}

/// The whole answer to these bytes.
fn ask(address: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = connect(address);
    stream.write_all(bytes).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("answered");
    answer
}

fn get(address: SocketAddr) -> String {
    ask(address, b"GET /page HTTP/1.1\r\nHost: x\r\n\r\n")
}

#[test]
fn a_page_its_head_and_what_is_refused() {
    let address = start(LONG, BODY.to_owned());
    let page = get(address);
    assert!(page.starts_with("HTTP/1.1 200 OK\r\n") && page.ends_with(&format!("\r\n\r\n{BODY}")), "{page}");
    assert!(page.contains("Content-Length: 9\r\n"), "{page}");
    let head = ask(address, b"HEAD /page?x=1 HTTP/1.1\r\naccept: special\r\n\r\n");
    assert!(head.contains("text/special") && head.ends_with("\r\n\r\n"), "{head}");
    let long = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(HEAD_BYTES_MAX));
    let many = format!("GET /page HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(HEADERS_MAX + 1));
    for (request, status) in [
        ("GET / HTTP/1.1\r\n\r\n", "404"),
        ("POST /page HTTP/1.1\r\nContent-Length: 1\r\n\r\n", "405"),
        ("\x16\x03\x01 TLS\r\n\r\n", "400"),
        (&long[..HEAD_BYTES_MAX], "431"),
        (&many, "431"),
    ] {
        let answer = ask(address, request.as_bytes());
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{status}: {answer}");
    }
}

#[test]
fn a_head_that_comes_byte_by_byte_is_answered() {
    let address = start(LONG, BODY.to_owned());
    let mut stream = connect(address);
    for byte in b"GET /page HTTP/1.1\r\n\r\n" {
        stream.write_all(&[*byte]).expect("sent");
    }
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("answered");
    assert!(answer.ends_with(BODY), "{answer}");
}

#[test]
fn more_silent_clients_than_there_is_room_for_keep_nobody_out() {
    let address = start(LONG, BODY.to_owned());
    let mut silent: Vec<TcpStream> = (0..CONNECTIONS_MAX + 8).map(|_| connect(address)).collect();
    silent.iter_mut().skip(8).for_each(|stream| stream.write_all(b"GET /").expect("sent"));
    assert!(get(address).ends_with(BODY));
    // The oldest has made room.
    assert_eq!(silent[0].read(&mut [0; 16]).expect("closed"), 0);
}

#[test]
fn a_client_that_says_nothing_or_reads_slowly_is_left_when_its_time_is_over() {
    // More than the kernel keeps of an answer for a client that does not read.
    let address = start(Duration::from_millis(200), "x".repeat(64 << 20));
    let mut silent = connect(address);
    assert_eq!(silent.read(&mut [0; 16]).expect("closed"), 0);
    let mut lazy = connect(address);
    lazy.write_all(b"GET /page HTTP/1.1\r\n\r\n").expect("sent");
    // All of it would take eight seconds. It is closed with a part of it unsent, or reset.
    let (mut piece, mut read) = ([0; 16 << 10], 0);
    while let Ok(count @ 1..) = lazy.read(&mut piece) {
        read += count;
        std::thread::sleep(Duration::from_millis(2));
    }
    assert!(read < 64 << 20, "{read}");
}
