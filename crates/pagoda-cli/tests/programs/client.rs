//! A client of redis: fills the server, reads everything back twice, compares each value, and ends
//! the server.

use std::path::Path;

use pagoda_linux::testing::length::length;

use crate::data::Random;
use crate::support::comparison::digest::Digest;
use crate::support::redis::{Connection, name};

/// Few and large: the index is touched at random for each key, and has to fit.
fn keys() -> u64 {
    length(40_000, 60_000)
}

/// Half of it repeats, so that it compresses about two to one; the length differs from key to key.
fn value(key: u64) -> Vec<u8> {
    let mut random = Random(key.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let words = 500 + random.below(140);
    (0..words).flat_map(|i| if i % 2 == 0 { random.next() } else { key }.to_le_bytes()).collect()
}

/// The values that were read back, as a digest.
pub fn exercise(directory: &Path) -> String {
    let mut connection = Connection::open(directory);
    let all: Vec<u64> = (0..keys()).collect();
    connection.each(
        &all,
        |connection, key| connection.send(&[b"SET", &name(key), &value(key)]),
        |connection, _| assert_eq!(connection.line(), "+OK"),
    );
    let mut random = Random(7);
    let some: Vec<u64> = (0..keys() / 16).map(|_| random.below(keys())).collect();
    let mut digest = Digest::default();
    for keys in [&all, &some] {
        connection.each(
            keys,
            |connection, key| connection.send(&[b"GET", &name(key)]),
            |connection, key| {
                let content = connection.bulk();
                assert!(content == value(key), "the value of key {key} is not the stored one");
                digest.update(&content);
            },
        );
    }
    connection.shut_down();
    format!("; read back {digest}")
}
