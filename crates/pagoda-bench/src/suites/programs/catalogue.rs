//! The programs that run over a budget: everyday ones, each verifying or printing its result, most
//! of it the same in every run.
//!
//! Nothing is installed: a missing program is skipped with a reason. The bench's own sources lie in
//! the folder `programs`, and are built in a scratch directory. This module must never know the
//! sides of the comparison.

use std::fmt::Write as _;
use std::fs;

use anyhow::{Context, bail};

use crate::load::data::Random;
use crate::load::tools::{output, python as python_itself, words, write};
use crate::measure::scratch::Scratch;

/// A program by its name in the report, and the function that prepares its command line.
pub struct Program {
    pub name: &'static str,
    pub prepare: fn(&Scratch) -> anyhow::Result<Vec<String>>,
}

/// The program of a short run.
pub const QUICK: Program = Program { name: "sort", prepare: |scratch| sort(scratch, 1_500_000) };

/// All programs, by name.
pub const PROGRAMS: [Program; 13] = [
    Program {
        name: "duckdb",
        prepare: |scratch| python(scratch, "duckdb", include_str!("../../../programs/group.py")),
    },
    Program { name: "gcc", prepare: gcc },
    Program { name: "go", prepare: go },
    Program { name: "imagemagick", prepare: imagemagick },
    Program { name: "java", prepare: java },
    Program { name: "memcached", prepare: |scratch| cache(scratch, "memcached", "memcached") },
    Program { name: "node", prepare: node },
    Program {
        name: "numpy",
        prepare: |scratch| python(scratch, "numpy", include_str!("../../../programs/matrix.py")),
    },
    Program { name: "postgres", prepare: postgres },
    Program {
        name: "python",
        prepare: |scratch| python(scratch, "sys", include_str!("../../../programs/objects.py")),
    },
    Program { name: "redis", prepare: |scratch| cache(scratch, "redis", "redis-server") },
    Program { name: "sort", prepare: |scratch| sort(scratch, 4_000_000) },
    Program { name: "sqlite", prepare: sqlite },
];

/// The command line of a script that needs a module.
fn python(scratch: &Scratch, module: &str, source: &str) -> anyhow::Result<Vec<String>> {
    let python = python_itself()?;
    output(&[&python, "-c", &format!("import {module}")])?;
    Ok(words(&[&python, &write(scratch, "program.py", source)?]))
}

/// A server and the script that fills and reads it; both are in the budget.
fn cache(scratch: &Scratch, kind: &str, server: &str) -> anyhow::Result<Vec<String>> {
    output(&[server, "--version"])?;
    let source = include_str!("../../../programs/cache.py");
    Ok(words(&[&python_itself()?, &write(scratch, "cache.py", source)?, kind, server, "50000"]))
}

/// Compiles one large unit of many functions to assembly.
fn gcc(scratch: &Scratch) -> anyhow::Result<Vec<String>> {
    output(&["gcc", "--version"])?;
    let mut source = String::new();
    for n in 0..2500 {
        let _ = writeln!(
            source,
            "long f{n}(const long *a, long n) {{ long s = {n}; for (long i = 0; i < n; i++) {{ \
             s += a[i] * {n} ^ s >> 3; if (s & {bit}) s -= a[i] % 7; switch (s & 3) {{ \
             case 0: s ^= a[0]; break; case 1: s += i; break; default: s = s * 31 + {n}; }} }} return s; }}",
            bit = 1 << (n % 20),
        );
    }
    Ok(words(&["gcc", "-O2", "-S", "-o", "-", &write(scratch, "unit.c", &source)?]))
}

fn go(scratch: &Scratch) -> anyhow::Result<Vec<String>> {
    let source = write(scratch, "maps.go", include_str!("../../../programs/maps.go"))?;
    let built = scratch.file("maps").display().to_string();
    let cache = format!("GOCACHE={}", scratch.file("go-cache").display());
    output(&["env", &cache, "CGO_ENABLED=1", "go", "build", "-o", &built, &source])?;
    Ok(vec![built])
}

/// Version 7 has another name, and `convert` can be another program.
fn imagemagick(_: &Scratch) -> anyhow::Result<Vec<String>> {
    let names = ["magick", "convert-im6.q16", "convert"];
    let is_it = |name: &&&str| output(&[name, "-version"]).is_ok_and(|text| text.contains("ImageMagick "));
    let program = names.iter().find(is_it).context("no ImageMagick: neither magick nor convert is one")?;
    let limits = ["-limit", "memory", "2GiB", "-limit", "map", "2GiB", "-limit", "thread", "2"];
    let work = "-size 3600x2600 -seed 7 plasma:red-blue -rotate 90 -negate -flop -depth 8 rgb:-";
    let work = work.split(' ').map(str::to_owned);
    Ok(words(&[&[*program][..], &limits].concat()).into_iter().chain(work).collect())
}

fn java(scratch: &Scratch) -> anyhow::Result<Vec<String>> {
    let source = write(scratch, "Heap.java", include_str!("../../../programs/Heap.java"))?;
    let classes = scratch.path().display().to_string();
    output(&["javac", "-d", &classes, &source])?;
    Ok(words(&["java", "-Xmx512m", "-cp", &classes, "Heap"]))
}

fn node(scratch: &Scratch) -> anyhow::Result<Vec<String>> {
    output(&["node", "--version"])?;
    Ok(words(&["node", &write(scratch, "heap.js", include_str!("../../../programs/heap.js"))?]))
}

/// A server without a network, in one process: an index built in memory. It refuses to run as root.
fn postgres(scratch: &Scratch) -> anyhow::Result<Vec<String>> {
    let version = output(&["postgres", "--version"])?;
    let at = fs::canonicalize(output(&["sh", "-c", "command -v postgres"])?.trim())?;
    let bin = at.parent().context("postgres lies in no directory")?.display().to_string();
    let data = scratch.file("data").display().to_string();
    let (queries, root) = (write(scratch, "index.sql", INDEX)?, rustix::process::getuid().is_root());
    let user: &[&str] =
        if root { &["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] } else { &[] };
    if root {
        output(&["chown", "postgres", &scratch.path().display().to_string()])
            .with_context(|| format!("{} needs a user of its own", version.trim()))?;
    }
    let initdb = format!("{bin}/initdb");
    let init = [user, &[&initdb, "-D", &data, "--no-locale", "-E", "UTF8", "-N", "--auth=trust"]].concat();
    output(&init)?;
    // Each run works on a fresh copy of the data.
    let script = "cp -r \"$1\" \"$1.$$\" && \"$0\" --single -D \"$1.$$\" -c fsync=off -c shared_buffers=16MB \
                  -c work_mem=512MB -c maintenance_work_mem=512MB -c max_parallel_maintenance_workers=0 \
                  postgres < \"$2\"; status=$?; rm -rf \"$1.$$\"; exit $status";
    let server = format!("{bin}/postgres");
    Ok(words(&[user, &["sh", "-c", script, &server, &data, &queries]].concat()))
}

/// One statement a line, as the single-user mode takes them.
const INDEX: &str = "\
create unlogged table t as select i, (i * 2654435761) % 4000037 as k, md5(i::text) as name from generate_series(1, 700000::bigint) i
create index by_name on t (name)
create index by_k on t (k)
select count(*), sum(k), min(name), max(name) from t
select md5(string_agg(name, ',' order by name)) from t
";

/// Sorts random lines backwards, in a buffer that holds all: no temporary files.
fn sort(scratch: &Scratch, lines: usize) -> anyhow::Result<Vec<String>> {
    output(&["sort", "--version"])?;
    let (mut random, mut input) = (Random::new(11), String::with_capacity(lines * 20));
    for _ in 0..lines {
        let _ = writeln!(input, "{:012x} {}", random.next() >> 16, random.below(100_000));
    }
    Ok(words(&["sort", "-r", "-S", "2G", "--parallel=2", &write(scratch, "lines", &input)?]))
}

fn sqlite(scratch: &Scratch) -> anyhow::Result<Vec<String>> {
    output(&["sqlite3", "--version"])?;
    let queries = write(scratch, "table.sql", include_str!("../../../programs/table.sql"))?;
    Ok(words(&["sqlite3", "-init", &queries, ":memory:", ".exit"]))
}

/// The programs of these names; all if there are none.
pub fn chosen(names: &[String]) -> anyhow::Result<Vec<Program>> {
    if let Some(unknown) = names.iter().find(|&name| PROGRAMS.iter().all(|program| program.name != name)) {
        let known = PROGRAMS.map(|program| program.name).join(", ");
        bail!("there is no program {unknown}: choose of {known}");
    }
    Ok(PROGRAMS
        .into_iter()
        .filter(|program| names.is_empty() || names.iter().any(|name| name == program.name))
        .collect())
}
