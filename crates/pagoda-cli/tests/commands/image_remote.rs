//! `pagoda image` with images on servers of loopback: HTTP, HTTPS, and the requests of S3.

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;

use pagoda_image::{Image, PackOptions, pack};
use pagoda_linux::testing::http_server::{HttpServer, answer_file, header, refuse};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};

/// A directory with `mem`, its key, and `later`, a difference to it. Returns the memory of both.
fn images(directory: &Path) -> [Vec<u8>; 2] {
    let mut memory = vec![0u8; 4 << 20];
    let noise = |(i, byte): (usize, &mut u8)| *byte = ((i as u32).wrapping_mul(2_654_435_761) >> 24) as u8;
    memory[1 << 20..3 << 20].iter_mut().enumerate().for_each(noise);
    let [base, later] = ["mem", "later"].map(|name| directory.join(name));
    let key = pagoda_image::make_key(&base).expect("a key");
    let go_on = &mut |_: pagoda_image::Progress| ControlFlow::Continue(());
    pack(&memory, &base, PackOptions::new(key.clone()), go_on).expect("packed");
    let image = Arc::new(Image::open(&base, None).expect("an image"));
    let mut changed = memory.clone();
    changed[2 << 20..][..5].copy_from_slice(b"other");
    pack(&changed, &later, PackOptions { base: Some(image), ..PackOptions::new(key) }, go_on)
        .expect("packed");
    [memory, changed]
}

fn pagoda(directory: &Path, arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pagoda"));
    command.arg("image").args(arguments).current_dir(directory);
    command.envs(environment.iter().copied()).output().expect("run")
}

fn works(directory: &Path, arguments: &[&str], environment: &[(&str, &str)]) -> String {
    let output = pagoda(directory, arguments, environment);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {text}");
    String::from_utf8(output.stdout).expect("text")
}

fn fails(directory: &Path, arguments: &[&str]) -> String {
    let output = pagoda(directory, arguments, &[]);
    let text = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(125), "{arguments:?}: {text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    text
}

#[test]
fn an_image_on_a_server_is_looked_at_verified_and_unpacked() {
    let scratch = tempfile::tempdir().expect("a directory");
    let directory = scratch.path();
    let [memory, changed] = images(directory);
    let server = HttpServer::directory(directory);
    let [mem, later] =
        ["mem?secret", "later"].map(|name| server.url(name).into_os_string().into_string().expect("text"));
    let cached = ["--disk-cache", "cache", "--disk-cache-limit", "64M", "--key", "mem.key"];
    let with = |words: &[&'static str], image: &str| -> Vec<String> {
        words.iter().copied().chain(cached).chain([image]).map(str::to_owned).collect()
    };
    let run =
        |words: Vec<String>| works(directory, &words.iter().map(String::as_str).collect::<Vec<_>>(), &[]);
    let found: serde_json::Value = serde_json::from_str(&run(with(&["info", "--json"], &mem))).expect("JSON");
    assert_eq!(found["bytes"], fs::metadata(directory.join("mem")).expect("there").len());
    assert!(!found.to_string().contains("secret"), "{found}");
    // Of the base the other one may not need all.
    run(with(&["verify"], &later));
    run(with(&["verify"], &mem));
    let _ = server.requests();
    for (image, name, expected) in [(&mem, "first", &memory), (&later, "second", &changed)] {
        let mut words = with(&["unpack"], image);
        words.push(name.to_owned());
        run(words);
        assert!(fs::read(directory.join(name)).expect("there") == *expected);
    }
    // To open both, and the base. All else is in the cache.
    let asked = server.requests();
    assert!(asked.iter().all(|request| request.range.is_some_and(|(first, _)| first == 0)), "{asked:?}");

    let text = fails(directory, &["info", &mem]);
    assert!(text.contains("give its file with --key") && !text.contains("secret"), "{text}");
    let gone = server.url("none").into_os_string().into_string().expect("text");
    let text = fails(directory, &["verify", "--key", "mem.key", &gone]);
    assert!(text.contains("404") && text.contains("/none"), "{text}");
    let text = fails(directory, &["info", "--key", "mem.key", "http://u:p@127.0.0.1/x"]);
    assert!(text.contains("is not used"), "{text}");
}

#[test]
fn a_damaged_image_on_a_server_is_told_with_its_place() {
    let scratch = tempfile::tempdir().expect("a directory");
    let directory = scratch.path();
    images(directory);
    let mut bytes = fs::read(directory.join("mem")).expect("read");
    bytes[300_000] ^= 1;
    fs::write(directory.join("mem"), bytes).expect("written");
    let server = HttpServer::directory(directory);
    let mem = server.url("mem").into_os_string().into_string().expect("text");
    let text = fails(directory, &["verify", "--key", "mem.key", "--disk-cache", "cache", &mem]);
    assert!(text.contains("is damaged at offset") && text.contains(&mem), "{text}");
    // Whole again, it is not read from the cache.
    let mut bytes = fs::read(directory.join("mem")).expect("read");
    bytes[300_000] ^= 1;
    fs::write(directory.join("mem"), bytes).expect("written");
    works(directory, &["verify", "--key", "mem.key", "--disk-cache", "cache", &mem], &[]);
}

#[test]
fn https_needs_a_certificate_that_is_known() {
    let scratch = tempfile::tempdir().expect("a directory");
    let directory = scratch.path().to_owned();
    images(&directory);
    let own = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).expect("a certificate");
    fs::write(directory.join("roots.pem"), own.cert.pem()).expect("written");
    let key = PrivatePkcs8KeyDer::from(own.signing_key.serialize_der());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![own.cert.der().clone()], key.into())
        .expect("a certificate");
    let (config, files) = (Arc::new(config), directory.clone());
    let server = HttpServer::start_over(
        move |stream| {
            let connection = ServerConnection::new(Arc::clone(&config)).expect("a connection");
            Box::new(StreamOwned::new(connection, stream))
        },
        move |request, line| answer_file(&files, request, line),
    );
    let address = format!("https://{}", server.address("mem"));
    let words = ["verify", "--key", "mem.key", "--server-timeout", "60", &address];
    let roots = directory.join("roots.pem");
    works(&directory, &words, &[("SSL_CERT_FILE", roots.to_str().expect("text"))]);
    let text = fails(&directory, &["verify", "--key", "mem.key", "--server-timeout", "1", &address]);
    assert!(text.contains("certificate") || text.contains("within"), "{text}");
}

#[test]
fn an_object_of_s3_is_asked_for_with_a_signature() {
    let scratch = tempfile::tempdir().expect("a directory");
    let directory = scratch.path().to_owned();
    images(&directory);
    let files = directory.clone();
    let server = HttpServer::start(move |request, line| {
        let signed = header(&request.head, "authorization");
        if !signed.is_some_and(|signed| signed.starts_with("AWS4-HMAC-SHA256 Credential=name/")) {
            return refuse(line, "403 Forbidden", "");
        }
        let path = request.path.strip_prefix("/bucket/dir/").unwrap_or("none").to_owned();
        let request = pagoda_linux::testing::http_server::Request { path, ..request.clone() };
        answer_file(&files, &request, line)
    });
    let endpoint = format!("http://{}", server.address(""));
    let environment = [
        ("AWS_ENDPOINT", endpoint.trim_end_matches('/')),
        ("AWS_ALLOW_HTTP", "true"),
        ("AWS_ACCESS_KEY_ID", "name"),
        ("AWS_SECRET_ACCESS_KEY", "word"),
    ];
    works(&directory, &["verify", "--key", "mem.key", "s3://bucket/dir/later"], &environment);
}
