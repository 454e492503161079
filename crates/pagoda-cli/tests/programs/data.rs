//! Input that is made, not shipped: seeded, so that both runs of a program read the same.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

/// xorshift64.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

fn writer(path: &Path) -> BufWriter<File> {
    BufWriter::with_capacity(1 << 20, File::create(path).expect("made"))
}

/// The logs of `hosts` machines, one after another, each in the order of time: a usual input of
/// `sort`.
pub fn logs(path: &Path, hosts: u64, lines: u64) {
    let mut out = writer(path);
    let mut random = Random(0x10c5);
    for host in 0..hosts {
        let mut time = 1_700_000_000_000_u64;
        for _ in 0..lines {
            time += random.below(1000);
            let (id, status, bytes) = (random.next(), 200 + random.below(300), random.below(1 << 20));
            writeln!(
                out,
                "{time} host-{host:02} GET /items/{id:016x}/details?page={} HTTP/1.1 {status} {bytes} \"Mozilla/5.0\" {:016x}",
                id % 97,
                random.next()
            )
            .expect("written");
        }
    }
    out.flush().expect("written");
}

/// Versions of one document, as an archive of backups holds them: each is the one before with a few
/// bytes changed.
pub fn versions(path: &Path, versions: u64, version_bytes: usize) {
    let mut out = writer(path);
    let mut random = Random(0xd0c);
    let mut document: Vec<u8> = (0..version_bytes).map(|_| random.next() as u8).collect();
    for _ in 0..versions {
        for _ in 0..16 {
            let at = random.below(version_bytes as u64) as usize;
            document[at] = random.next() as u8;
        }
        out.write_all(&document).expect("written");
    }
    out.flush().expect("written");
}
