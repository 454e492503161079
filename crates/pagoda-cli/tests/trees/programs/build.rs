//! Compilers: a driver that starts the real ones, and `make` that starts the drivers.

use std::fs;
use std::path::{Path, PathBuf};

use super::{Program, Scratch, new, starts, text, written};

/// Many instances of the standard library's templates, each of another type.
fn source() -> String {
    let mut source = String::from(
        "#include <algorithm>\n#include <functional>\n#include <map>\n#include <set>\n#include <string>\n\
         #include <tuple>\n#include <unordered_map>\n#include <variant>\n#include <vector>\n#include <cstdio>\n\
         template <int N> struct Tag { int value = N; bool operator<(const Tag &o) const { return value < o.value; } };\n\
         template <int N> long work(long seed) {\n\
           std::map<std::pair<Tag<N>, long>, std::vector<std::tuple<long, std::string, Tag<N>>>> table;\n\
           std::unordered_map<std::string, std::variant<long, std::string, Tag<N>>> named;\n\
           for (long i = 0; i < 40 + N % 3; i++) {\n\
             table[{Tag<N>{}, i % 7}].emplace_back(i * seed, std::to_string(i), Tag<N>{});\n\
             named[\"n\" + std::to_string(i)] = i % 2 ? std::variant<long, std::string, Tag<N>>(i) : std::to_string(i);\n\
           }\n\
           long sum = N;\n\
           for (auto &[key, list] : table) {\n\
             std::sort(list.begin(), list.end(), [](auto &a, auto &b) { return std::get<1>(a) < std::get<1>(b); });\n\
             for (auto &entry : list) sum = sum * 31 + std::get<0>(entry) + std::get<1>(entry).size();\n\
           }\n\
           std::function<long(long)> f = [&](long n) { return n < 2 ? n : f(n - 1) + f(n - 2); };\n\
           return sum + f(8) + named.size();\n\
         }\n\
         int main() {\n  unsigned long sum = 1;\n",
    );
    for n in 0..2 {
        source += &format!("  sum = sum * 131 + work<{n}>({n} + 3);\n");
    }
    source + "  std::printf(\"%lu\\n\", sum);\n}\n"
}

/// The object file and the program are compared, and the program's output.
pub fn templates(scratch: &Scratch) -> Result<Program, String> {
    starts(&["g++", "--version"])?;
    let source = written(scratch, "templates.cpp", &source())?;
    let (object, built) = (scratch.path("templates.o"), scratch.path("templates"));
    let script = format!(
        "g++ -std=c++17 -c -o '{0}' '{1}' && g++ -o '{2}' '{0}' && '{2}'",
        text(&object),
        text(&source),
        text(&built)
    );
    let mut program = new("g++", ["sh", "-c", &script]);
    program.native_peak_bytes_min = 80 << 20;
    program.outputs = vec![object, built];
    Ok(program)
}

/// The sources of LZ4, which cargo has fetched to build this workspace.
fn lz4_sources() -> Result<PathBuf, String> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(Path::new(&std::env::var_os("HOME")?).join(".cargo")));
    let registry = home.ok_or("there is neither CARGO_HOME nor HOME")?.join("registry/src");
    let crates = fs::read_dir(&registry).map_err(|error| format!("{}: {error}", registry.display()))?;
    let crates = crates.flatten().filter_map(|index| fs::read_dir(index.path()).ok()).flatten().flatten();
    let mut found: Vec<PathBuf> = crates
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("lz4-sys-"))
        .map(|entry| entry.path().join("liblz4"))
        .filter(|path| path.join("programs/Makefile").is_file())
        .collect();
    found.sort();
    found.pop().ok_or_else(|| format!("no sources of lz4 in {}", registry.display()))
}

/// A real package by its own makefiles, two files at once, and a use of its result.
pub fn package(scratch: &Scratch) -> Result<Program, String> {
    starts(&["make", "--version"])?;
    starts(&["cc", "--version"])?;
    let sources = lz4_sources()?;
    let directory = scratch.path("package");
    let at = text(&directory).to_owned();
    let script = format!(
        "make -s -C '{at}/programs' -j2 lz4 CFLAGS=-O1 && \
         cat '{at}'/lib/*.c | '{at}/programs/lz4' -9 -c >'{at}.lz4' && '{at}/programs/lz4' -d -c '{at}.lz4' | cksum"
    );
    let mut program = new("make", ["sh", "-c", &script]);
    program.outputs = vec![directory.join("programs/lz4"), scratch.path("package.lz4")];
    program.prepare = Some(Box::new(move || {
        let _ = fs::remove_dir_all(&directory);
        let copy = ["cp", "-r", text(&sources), text(&directory)];
        starts(&copy).expect("the sources can be copied");
    }));
    program.native_peak_bytes_min = 48 << 20;
    Ok(program)
}
