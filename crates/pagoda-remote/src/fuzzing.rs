//! A server on loopback that answers as an input says: for fuzzers, and for tests that replay their
//! findings.
//!
//! The file on it is an image that is known here. A read gives its content or an error, whatever
//! the server does. For `fuzz/` and the tests alone, behind a feature.

use std::io;
use std::ops::ControlFlow;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use pagoda_image::{Image, Key, PackOptions, Touch, WorkingSet, pack};
use pagoda_linux::testing::http_server::{HttpServer, Line, Request, answer_content, refuse};
use pagoda_linux::testing::random::Random;

use crate::{Options, open};

const TAG: &str = "etag: \"1\"\r\n";
const BLOCK: usize = 16 << 10;

/// The memory, and the files of its image on the server.
struct Truth {
    memory: Vec<u8>,
    image: Vec<u8>,
    set: Vec<u8>,
}

fn key() -> Key {
    Key::new([7; 32])
}

/// More than one request reads all of it.
static TRUTH: LazyLock<Truth> = LazyLock::new(|| {
    let mut random = Random::new(1, 0);
    let mut memory = vec![0; 24 * BLOCK];
    memory.as_chunks_mut::<8>().0.iter_mut().for_each(|word| *word = random.next().to_le_bytes());
    memory[5 * BLOCK..9 * BLOCK].fill(0);
    let path = std::env::temp_dir().join(format!("pagoda-fuzz-remote-{}", std::process::id()));
    let options = PackOptions::new(key());
    pack(&memory, &path, options, &mut |_| ControlFlow::Continue(())).expect("packed");
    let touches = [20, 3, 4].map(|block| Touch { block, at_us: 0 });
    WorkingSet::record(&Image::open(&path, Some(key())).expect("an image"), &touches).expect("recorded");
    let [image, set] = ["", ".ws"].map(|suffix| {
        let path = format!("{}{suffix}", path.display());
        let bytes = std::fs::read(&path).expect("read");
        std::fs::remove_file(&path).expect("removed");
        bytes
    });
    Truth { memory, image, set }
});

/// The bytes of an input that no answer has taken.
struct Script(Vec<u8>);

impl Script {
    fn take(&mut self, count: usize) -> Vec<u8> {
        self.0.drain(..count.min(self.0.len())).collect()
    }

    fn number(&mut self) -> u64 {
        let mut bytes = [0; 8];
        let taken = self.take(8);
        bytes[..taken.len()].copy_from_slice(&taken);
        u64::from_le_bytes(bytes)
    }

    /// Answers a request for `content`: rightly once the input is at its end.
    fn answer(&mut self, content: &[u8], request: &Request, line: &mut dyn Line) -> io::Result<bool> {
        let (first, last) = request.range.unwrap_or((0, 0));
        let last = last.min(content.len() as u64 - 1);
        let own = content.get(first as usize..=last as usize).unwrap_or_default();
        let right = |len: u64| format!("content-range: bytes {first}-{last}/{len}\r\n");
        let len = content.len() as u64;
        let mut part = |range: String, len: u64, body: &[u8]| {
            write!(line, "HTTP/1.1 206 Partial Content\r\n{range}content-length: {len}\r\n{TAG}\r\n")?;
            line.write_all(body).map(|()| false)
        };
        match self.take(1).first() {
            None | Some(0..100) => answer_content(content, TAG, request, line),
            Some(100..140) => {
                let mut damaged = own.to_vec();
                let (at, by) = (self.number(), self.take(1).first().map_or(1, |by| by | 1));
                if let Some(byte) = damaged.get_mut((at % own.len().max(1) as u64) as usize) {
                    *byte ^= by;
                }
                part(right(len), own.len() as u64, &damaged)
            }
            Some(140..160) => part(right(self.number()), own.len() as u64, own),
            Some(160..180) => {
                let [from, to, of] = [(); 3].map(|()| self.number());
                part(format!("content-range: bytes {from}-{to}/{of}\r\n"), own.len() as u64, own)
            }
            Some(180..200) => part(right(len), self.number(), own),
            Some(200..220) => {
                let end = self.number() % (own.len() as u64 + 1);
                part(right(len), own.len() as u64, &own[..end as usize])
            }
            Some(220..235) => {
                let status = 100 + self.number() % 500;
                refuse(line, &format!("{status} X"), "location: http://127.0.0.1:1/\r\n")
            }
            Some(235..245) => answer_content(content, "etag: \"2\"\r\n", request, line),
            Some(245..) => {
                let len = self.number() % 4096;
                line.write_all(&self.take(len as usize)).map(|()| false)
            }
        }
    }
}

/// Opens and reads the image on a server that answers by this input. Returns how many blocks were
/// read before the first error.
///
/// # Panics
/// If a byte is given that the image does not have.
#[must_use]
pub fn remote(input: &[u8]) -> usize {
    read(input, Duration::from_millis(300))
}

fn read(input: &[u8], patience: Duration) -> usize {
    let script = Arc::new(Mutex::new(Script(input.to_vec())));
    let server = HttpServer::start(move |request, line| {
        let content = if request.path.ends_with(".ws") { &TRUTH.set } else { &TRUTH.image };
        script.lock().expect("whole").answer(content, request, line)
    });
    let options = Options { patience, cache: None };
    let Ok(file) = open(&server.url("mem"), &options) else { return 0 };
    let Ok(image) = Image::open_remote(file, key(), None) else { return 0 };
    let expected = |block: usize| &TRUTH.memory[block * BLOCK..][..BLOCK];
    if let Some(set) = image.working_set() {
        let each = &mut |touch: Touch, found: &[u8]| {
            assert!(found == expected(touch.block as usize), "of the set: {touch:?}");
        };
        let _ = set.read(&image, 0..set.touches().len(), each);
    }
    let mut found = vec![0; BLOCK];
    for block in 0..TRUTH.memory.len() / BLOCK {
        if image.read_at((block * BLOCK) as u64, &mut found).is_err() {
            assert!(found.iter().all(|byte| *byte == 0), "block {block} after an error");
            return block;
        }
        assert!(found == expected(block), "block {block}");
    }
    TRUTH.memory.len() / BLOCK
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Inputs of a seed each; `PAGODA_RUNS` has more of them, and `PAGODA_SEED` one.
    #[test]
    fn whatever_a_server_answers_a_read_has_the_content_or_an_error() {
        let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
        let (first, runs) = (number("PAGODA_SEED").unwrap_or(1), number("PAGODA_RUNS").unwrap_or(24));
        assert_eq!(read(&[], Duration::from_secs(60)), TRUTH.memory.len() / BLOCK, "a right server");
        for seed in first..first + runs {
            let mut random = Random::new(seed, 0);
            let input: Vec<u8> = (0..random.below(60)).map(|_| random.next() as u8).collect();
            println!("seed {seed}: {} blocks", remote(&input));
        }
    }
}
