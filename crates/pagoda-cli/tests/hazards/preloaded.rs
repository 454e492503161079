//! Libraries of others that are preloaded beside ours, before and behind it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use pagoda_linux::testing::length::length;
use pagoda_linux::testing::skip::skip;

use crate::program::{Program, output, said};

/// Allocators, and libraries that stand in for calls of the C library, where distributions put
/// them.
const LIBRARIES: [&str; 5] = [
    "libjemalloc.so.2",
    "libtcmalloc.so.4",
    "libeatmydata.so",
    "faketime/libfaketimeMT.so.1",
    "coreutils/libstdbuf.so",
];

/// Those of the long form alone: each is built of the same code as one of the others.
const MORE: [&str; 2] = ["libtcmalloc_minimal.so.4", "faketime/libfaketime.so.1"];

const DIRECTORIES: [&str; 4] = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/libexec"];

fn find(library: &str) -> Option<PathBuf> {
    DIRECTORIES.iter().map(|directory| Path::new(directory).join(library)).find(|path| path.exists())
}

#[test]
fn libraries_of_others_work_before_and_behind_ours() {
    let Some(program) = Program::build("limits", &[]) else { return };
    let arguments = ["CORE", "0", length("10", "40")];
    for library in LIBRARIES.iter().chain(length(&MORE[..0], &MORE)) {
        let Some(path) = find(library) else {
            skip("a library that others preload", format!("{library} is not installed"));
            continue;
        };
        let native = output(program.native(&arguments).env("LD_PRELOAD", &path));
        assert!(native.status.success(), "{library}: {}", said(&native));
        // As the user's environment has it.
        let outside =
            output(program.managed(&["--quiet", "--memory", "32M"], &arguments).env("LD_PRELOAD", &path));
        // As a script of the program sets it, in either order.
        let orders = ["$0:$LD_PRELOAD", "$LD_PRELOAD:$0"].map(|order| {
            let script = format!("export LD_PRELOAD=\"{order}\"; exec \"$@\"");
            let by = ["sh", "-c", &script].map(OsString::from).into_iter().chain([path.clone().into()]);
            let by = by.chain([program.path().into()]).chain(arguments.map(OsString::from));
            output(&mut Program::managed_command(&["--quiet", "--memory", "32M"], by))
        });
        for managed in [outside].iter().chain(&orders) {
            assert_eq!(managed.status.code(), native.status.code(), "{library}: {}", said(managed));
            assert_eq!(said(managed), said(&native), "{library}");
        }
    }
}
