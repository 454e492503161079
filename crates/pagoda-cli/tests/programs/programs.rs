//! The programs and their work: each holds more than 130 MiB natively, or 200 MiB in the long form,
//! and gives an output that tells right from wrong.
//!
//! Work goes through its memory several times, mostly along it, so that a program with a budget of
//! a quarter ends within the time of a test. Names are resolved here, since a name may stand for a
//! script that starts the real program.

use std::path::PathBuf;

use pagoda_linux::testing::length::length;

use crate::support::comparison::measure::Scratch;
use crate::support::comparison::program::{Program, directory, python, starts, text, written};
use crate::support::redis::server;
use crate::{client, data};

/// In the order in which they run.
pub const NAMES: [&str; 8] =
    ["sort", "python3", "numpy", "redis-server", "sqlite3", "xz", "xz-decompress", "perl"];

/// The program of this name, ready to run; or why it can't.
pub fn program(name: &'static str, scratch: &Scratch) -> Result<Program, String> {
    match name {
        "sort" => sort(scratch),
        "python3" => python_threads(),
        "numpy" => numpy(),
        "redis-server" => redis(scratch),
        "sqlite3" => sqlite(scratch),
        "xz" => xz(scratch),
        "xz-decompress" => xz_decompress(scratch),
        "perl" => perl(),
        other => Err(format!("no program is called {other}")),
    }
}

/// The least native peak of a program, unless its row gives another: a quarter of it is no less
/// than the least budget.
fn native_peak_bytes_min() -> u64 {
    length(130 << 20, 200 << 20)
}

fn new(name: &'static str, command: &[&str]) -> Program {
    Program::new(name, command.iter().copied(), native_peak_bytes_min())
}

fn sort(scratch: &Scratch) -> Result<Program, String> {
    starts(&["sort", "--version"])?;
    let input = scratch.path("logs");
    data::logs(&input, 8, length(100_000, 160_000));
    // A buffer that takes it all, so that it sorts in memory.
    Ok(new("sort", &["sort", "-S", "1G", "--parallel=2", text(&input)]))
}

/// Four threads, each with records of its own that it makes, changes, sorts and sums up.
const PYTHON: &str = r"
import hashlib, sys, threading
def work(seed, results):
    records, x = [], seed
    for i in range(int(sys.argv[1])):
        x = (x * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        records.append([x >> 40, str(x) * 4, {'i': i, 'x': x}])
    for record in records:
        record[2]['i'] += record[0]
    order = sorted(range(len(records)), key=lambda i: (i // 1000, records[i][0]))
    digest = hashlib.sha256()
    for i in order:
        record = records[i]
        digest.update(('%d %s %d' % (record[0], record[1], record[2]['i'])).encode())
    results[seed] = digest.hexdigest()
results = {}
threads = [threading.Thread(target=work, args=(seed, results)) for seed in range(1, 5)]
for thread in threads: thread.start()
for thread in threads: thread.join()
for seed in sorted(results): print(seed, results[seed])
";

fn python_threads() -> Result<Program, String> {
    Ok(new("python3", &[&python("threading")?, "-c", PYTHON, length("54000", "95000")]))
}

const NUMPY: &str = r"
import hashlib, numpy as np
random = np.random.RandomState(7)
parts = [random.randint(0, 1 << 30, 1 << 20) for _ in range(28)]
digest = hashlib.sha256()
for part in parts:
    part *= 3
    part ^= part >> 7
for a, b in zip(parts, parts[1:]):
    b += a // 2
whole = np.concatenate(parts[:8])
for part in parts: part.sort()
for part in parts: digest.update(np.cumsum(part).tobytes())
digest.update((whole[::2] - whole[1::2]).tobytes())
digest.update(np.sqrt(whole.astype(np.float64)).tobytes())
print(digest.hexdigest(), int(sum(int(part.sum()) for part in parts)))
";

fn numpy() -> Result<Program, String> {
    let mut program = new("numpy", &[&python("numpy")?, "-c", NUMPY]);
    // Otherwise it starts as many threads as there are processors, and sums in another order.
    program.environment.extend([("OPENBLAS_NUM_THREADS", "1"), ("OMP_NUM_THREADS", "1")]);
    Ok(program)
}

fn redis(scratch: &Scratch) -> Result<Program, String> {
    starts(&["redis-server", "--version"])?;
    let directory = directory(scratch, "redis")?;
    let mut program = Program::new("redis-server", server(&directory), native_peak_bytes_min());
    program.client = Some((client::exercise, directory));
    Ok(program)
}

const SQL: &str = "
PRAGMA temp_store = MEMORY;
CREATE TABLE item(id INTEGER PRIMARY KEY, owner INTEGER, price INTEGER, name TEXT, note TEXT);
WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < ITEMS - 1)
INSERT INTO item SELECT i, i / 12, (i * 7919) % 100003, printf('item-%08d-%s', i, hex(i * 2654435761)),
  printf('%0200d', i * 31) FROM n;
CREATE TABLE owner(id INTEGER PRIMARY KEY, name TEXT, region INTEGER);
WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < ITEMS / 8 - 1)
INSERT INTO owner SELECT i, printf('owner-%06d-%0100d', i, i), i % 17 FROM n;
UPDATE item SET price = price + id % 13;
SELECT region, count(*), sum(price), min(item.name), max(note) FROM item JOIN owner ON owner.id = item.owner
  GROUP BY region ORDER BY region;
SELECT id, price, name FROM (SELECT id, price, name, note FROM item ORDER BY price % 1000, note DESC)
  WHERE id % 97 = 0;
SELECT count(*), sum(length(note)), sum(price) FROM item;
";

fn sqlite(scratch: &Scratch) -> Result<Program, String> {
    starts(&["sqlite3", "--version"])?;
    let script = written(scratch, "work.sql", &SQL.replace("ITEMS", length("236000", "400000")))?;
    let mut program = new("sqlite3", &["sqlite3", "-batch", ":memory:"]);
    program.input = Some(script);
    Ok(program)
}

/// Makes the versions that both xz programs work on.
fn archive(scratch: &Scratch) -> PathBuf {
    let input = scratch.path("versions");
    data::versions(&input, 96, 1 << 19);
    input
}

fn xz(scratch: &Scratch) -> Result<Program, String> {
    starts(&["xz", "--version"])?;
    let mut program = new("xz", &["xz", "-9", "--threads=1", "--stdout"]);
    program.input = Some(archive(scratch));
    Ok(program)
}

/// Its output is the archive again. Its dictionary is 64 MiB, which is all it can hold.
fn xz_decompress(scratch: &Scratch) -> Result<Program, String> {
    let input = archive(scratch);
    let packed = scratch.path("versions.xz");
    starts(&["sh", "-c", &format!("xz -9 --threads=1 --stdout <'{}' >'{}'", text(&input), text(&packed))])?;
    starts(&["sh", "-c", &format!("xz -dc '{}' | cmp - '{}'", text(&packed), text(&input))])?;
    let mut program = new("xz-decompress", &["xz", "--decompress", "--stdout"]);
    program.input = Some(packed);
    program.native_peak_bytes_min = 40 << 20;
    Ok(program)
}

/// A hash of hashes of strings, filled, changed, and read in the order of its keys.
const PERL: &str = r#"
my %groups;
my $x = 1;
for my $g (0 .. 499) {
    my %group;
    for my $i (0 .. 999) {
        $x = ($x * 1103515245 + 12345) % 2147483648;
        $group{"key-$g-$i"} = "value $x " . ($x x 30);
    }
    $groups{$g} = \%group;
}
for my $g (0 .. 499) { $groups{$g}{$_} .= length($groups{$g}{$_}) for keys %{$groups{$g}}; }
my ($sum, $n) = (0, 0);
for my $g (0 .. 499) {
    for my $key (sort keys %{$groups{$g}}) {
        $sum = ($sum * 31 + unpack("%32C*", $groups{$g}{$key})) % 1000000007;
        $n++;
        print "$key $sum\n" if $n % 1000 == 0;
    }
}
print "$n $sum\n";
"#;

fn perl() -> Result<Program, String> {
    starts(&["perl", "--version"])?;
    let mut program = new("perl", &["perl", "-e", PERL]);
    // The order in which a hash gives its keys decides where memory is touched.
    program.environment.extend([("PERL_HASH_SEED", "0"), ("PERL_PERTURB_KEYS", "0")]);
    Ok(program)
}
