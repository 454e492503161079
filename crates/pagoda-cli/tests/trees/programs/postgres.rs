//! A database in one process: its shared memory is left alone, its memory for sorts and joins is
//! its own.
//!
//! It refuses to be run by root. So it runs as another user, with the one privilege that managing
//! it takes; `pagoda` is copied to where that user can reach it.

use std::fs;
use std::path::{Path, PathBuf};

use super::{Program, Scratch, new, open_to_all, starts, text, written};

/// The number of `nobody`, in case there is no such name.
const USER: &str = "65534";

const SQL: &str = "\
CREATE TABLE item AS SELECT i AS id, i / 12 AS owner, (i::bigint * 7919) % 100003 AS price, \
md5(i::text) || repeat(md5((i + 1)::text), 3) AS note FROM generate_series(0, 349999) AS i;
SELECT count(*), sum(price), min(note), max(note) FROM (SELECT id, price, note FROM item ORDER BY id / 1000, note OFFSET 0) AS sorted;
SELECT md5(string_agg(note, '' ORDER BY id / 500 DESC, note)) FROM item;
SELECT count(*), sum(n), max(top) FROM (SELECT owner, count(*) AS n, max(note) AS top FROM item GROUP BY owner) AS groups;
";

/// The directory of the newest server that is installed.
fn binaries() -> Result<PathBuf, String> {
    let versions = fs::read_dir("/usr/lib/postgresql").map_err(|_| "postgres is not installed".to_owned())?;
    let mut found: Vec<PathBuf> = versions.flatten().map(|version| version.path().join("bin")).collect();
    found.retain(|path| path.join("postgres").exists() && path.join("initdb").exists());
    found.sort();
    found.pop().ok_or_else(|| "no postgres below /usr/lib/postgresql".to_owned())
}

/// The command that runs another as the other user; with the privilege that `pagoda run` needs.
fn as_user(privilege: bool) -> Vec<String> {
    let mut words = vec!["setpriv", "--reuid", USER, "--regid", USER, "--clear-groups"];
    if privilege {
        words.extend(["--inh-caps=-all,+sys_ptrace", "--ambient-caps=+sys_ptrace"]);
    }
    words.into_iter().map(str::to_owned).collect()
}

fn starts_as_user(words: &[&str]) -> Result<String, String> {
    let prefix = as_user(false);
    let all: Vec<&str> = prefix.iter().map(String::as_str).chain(words.iter().copied()).collect();
    starts(&all)
}

/// A copy of the command and its library.
fn own_pagoda(directory: &Path) -> Result<String, String> {
    let own = Path::new(env!("CARGO_BIN_EXE_pagoda"));
    for (from, name) in
        [(own.to_owned(), "pagoda"), (own.with_file_name("libpagoda_preload.so"), "libpagoda_preload.so")]
    {
        let to = directory.join(name);
        fs::copy(&from, &to)
            .and_then(|_| open_to_all(&to, 0o755))
            .map_err(|error| format!("{}: {error}", to.display()))?;
    }
    Ok(text(&directory.join("pagoda")).to_owned())
}

pub fn single(scratch: &Scratch) -> Result<Program, String> {
    let binaries = binaries()?;
    if !rustix::process::geteuid().is_root() {
        return Err("only root can run it as another user".to_owned());
    }
    let (directory, fresh, data) =
        (scratch.path("postgres"), scratch.path("postgres/fresh"), scratch.path("postgres/data"));
    // Every directory on the way was made for this test; its content may be seen.
    for path in [&directory, &scratch.path("runtime"), &scratch.path("store")] {
        let _ = fs::create_dir(path);
        open_to_all(path, 0o777).map_err(|error| error.to_string())?;
    }
    open_to_all(&scratch.path("."), 0o755).map_err(|error| error.to_string())?;
    let initdb = binaries.join("initdb");
    starts_as_user(&[text(&initdb), "-D", text(&fresh), "-E", "UTF8", "--locale=C", "-N", "-A", "trust"])?;
    let mut program = new("postgres", [text(&binaries.join("postgres"))]);
    let settings = ["work_mem=512MB", "hash_mem_multiplier=1", "shared_buffers=32MB", "fsync=off", "jit=off"];
    program.command.push("--single".to_owned());
    program.command.extend(settings.iter().flat_map(|&setting| ["-c".to_owned(), setting.to_owned()]));
    program.command.extend(
        ["-c", "max_parallel_workers_per_gather=0", "-D", text(&data), "postgres"].map(str::to_owned),
    );
    program.prefix = as_user(true);
    program.pagoda = Some(own_pagoda(&directory)?);
    program.input = Some(written(scratch, "work.sql", SQL)?);
    program.prepare = Some(Box::new(move || {
        let _ = fs::remove_dir_all(&data);
        starts_as_user(&["cp", "-r", text(&fresh), text(&data)]).expect("the fresh database can be copied");
        // It refuses a directory that others can see.
        open_to_all(&data, 0o700).expect("its own");
    }));
    Ok(program)
}
