//! Puts the preload library into the command where the feature `embed` asks for it, so that
//! `cargo install` installs one file that works by itself.
//!
//! Cargo gives a package no other package's shared library. So this script has Cargo build it once
//! more, which doubles the build: ordinary builds leave the library beside the command instead. It
//! must never share a target directory with the outer Cargo, which holds that one's lock.

use std::collections::hash_map::DefaultHasher;
use std::ffi::OsString;
use std::hash::Hasher;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// A library that was built before, to take in its place.
const BUILT_ENV: &str = "PAGODA_EMBED";
const WRAPPER_ENV: &str = "RUSTC_WORKSPACE_WRAPPER";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed={BUILT_ENV}");
    println!("cargo::rerun-if-env-changed={WRAPPER_ENV}");
    let out = PathBuf::from(variable("OUT_DIR"));
    // A lint makes no command, so it needs no library.
    let is_lint = env::var(WRAPPER_ENV).is_ok_and(|wrapper| wrapper.ends_with("clippy-driver"));
    let is_asked = env::var_os("CARGO_FEATURE_EMBED").is_some() && !is_lint;
    let library = is_asked.then(|| env::var_os(BUILT_ENV).map_or_else(|| build(&out), built));
    let text = library.map_or("None".to_owned(), |library| {
        let content = fs::read(&library).unwrap_or_else(|error| panic!("{}: {error}", library.display()));
        // Only names the file: a run compares all of its content.
        let mut hasher = DefaultHasher::new();
        hasher.write(&content);
        let name = format!("libpagoda_preload-{}-{:016x}.so", variable("CARGO_PKG_VERSION"), hasher.finish());
        format!("Some(Embedded {{ name: {name:?}, content: include_bytes!({library:?}) }})")
    });
    fs::write(out.join("embedded.rs"), text).expect("OUT_DIR can be written");
}

fn built(path: OsString) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|error| panic!("{BUILT_ENV}: {error}"));
    println!("cargo::rerun-if-changed={}", path.display());
    path
}

/// Builds it as the only dependency of a package of its own, so that it is found in a checkout and
/// in a registry alike, and says where it is.
fn build(out: &Path) -> PathBuf {
    let (own, version) = (PathBuf::from(variable("CARGO_MANIFEST_DIR")), variable("CARGO_PKG_VERSION"));
    let sources = own.with_file_name("pagoda-preload");
    let source = match sources.is_dir() {
        true => format!("path = {sources:?}"),
        false => format!("version = \"={version}\""),
    };
    let (package, target_directory, target) = (out.join("package"), out.join("target"), variable("TARGET"));
    fs::create_dir_all(&package).expect("OUT_DIR can be written");
    let manifest = format!(
        "[package]\nname = \"embed\"\nedition = \"2024\"\n[lib]\npath = \"lib.rs\"\n[workspace]\n\
         [dependencies]\npagoda-vm-preload = {{ {source} }}\n"
    );
    fs::write(package.join("Cargo.toml"), manifest).expect("OUT_DIR can be written");
    fs::write(package.join("lib.rs"), "").expect("OUT_DIR can be written");
    // The versions that this command is built with. Cargo itself drops those that are not needed.
    if let Some(lock) = own.ancestors().map(|above| above.join("Cargo.lock")).find(|lock| lock.is_file()) {
        println!("cargo::rerun-if-changed={}", lock.display());
        fs::copy(lock, package.join("Cargo.lock")).expect("OUT_DIR can be written");
    }
    let mut cargo = Command::new(variable("CARGO"));
    cargo.args(["build", "--release", "--package", "pagoda-vm-preload", "--target", &target, "--target-dir"]);
    cargo.arg(&target_directory).arg("--manifest-path").arg(package.join("Cargo.toml"));
    cargo.env("CARGO_BUILD_BUILD_DIR", &target_directory).env_remove(WRAPPER_ENV);
    let ended = cargo.status().expect("cargo can be started");
    assert!(ended.success(), "the preload library could not be built, see above; or name one in {BUILT_ENV}");
    let library = target_directory.join(target).join("release/libpagoda_preload.so");
    // Cargo's list of the sources: `library: source source`.
    let list = fs::read_to_string(library.with_extension("d")).unwrap_or_default();
    for source in list.split(": ").nth(1).unwrap_or_default().split_whitespace() {
        println!("cargo::rerun-if-changed={source}");
    }
    library
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("Cargo sets {name}"))
}
