//! The store fills up, its disk does, its disk fails, or nothing may be evicted, while the program
//! runs: a bounded wait, then a clean stop.
//!
//! All of these runs wait for memory in vain, so they do it together; the disks' with the patience
//! of a user's run, since they may be slow.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};

use pagoda_linux::testing::disk::shut_down_ext4;
use pagoda_linux::testing::skip::skip;

use crate::run::{Begun, begin, begin_by};
use crate::support::impatient::IMPATIENT;

/// The least budget; three quarters of it may hold stored pages.
const BUDGET: &str = "32M";

/// Far more than memory and file can hold.
const FILL_MIB: &str = "200";

/// The file system of the disk that gets full or fails.
const DISK: &str = "48M";

/// After so much the disk fails: the store has spilled by then.
const BREAK_AT_MIB: usize = 60;

/// Mounts an image for the run, and for that alone: the mount goes with its last process, after any
/// end.
const MOUNT: &str = "truncate -s \"$0\" image && mkfs.ext4 -q -F image && mkdir disk && mount -o loop image disk && exec \"$@\"";

struct Case {
    name: &'static str,
    begun: Begun,
    says: &'static [&'static str],
}

pub fn ends_with_a_reason() -> Result<String, String> {
    let fill = ["fill", FILL_MIB];
    let case = |name, begun: Result<Begun, String>, says| {
        Ok::<_, String>(Case { name, begun: begun.map_err(|error| format!("{name}: {error}"))?, says })
    };
    let begin_impatient =
        |before: &[&str], options: &[&str], program: &[&str]| begin_by(before, options, &IMPATIENT, program);
    let full: &[&str] = &["the store was full", "raise the budget", "(--memory, --file-limit)"];
    let mut cases = vec![
        case("a full file", begin_impatient(&[], &["-m", BUDGET, "--file-limit", "16M"], &fill), full)?,
        case("no file", begin_impatient(&[], &["-m", BUDGET, "--file-limit", "0"], &fill), full)?,
        // 16 MiB in units of 512 bytes, as dash counts them, or of 1 KiB, as bash does.
        case(
            "a limit on file sizes",
            begin_impatient(&["sh", "-c", "ulimit -f 32768 && exec \"$@\"", "sh"], &["-m", BUDGET], &fill),
            full,
        )?,
        case(
            "locked memory",
            begin_impatient(&[], &["-m", BUDGET], &["fill-beside-locked"]),
            &["is locked", "raise the budget", "(--memory)"],
        )?,
        case(
            "locked memory that was managed",
            begin_impatient(&[], &["-m", BUDGET], &["fill-beside-pieces"]),
            &["is locked", "raise the budget"],
        )?,
    ];
    let may_mount = may_mount();
    if let Err(why) = &may_mount {
        skip("a full disk and a disk that fails", why);
    } else {
        let mounted = ["unshare", "-m", "sh", "-c", MOUNT, DISK];
        let on_disk = ["-m", BUDGET, "--store-dir", "disk", "--file-limit", "1G"];
        cases.push(case(
            "a full disk",
            begin(&mounted, &on_disk, &fill),
            &["so the process was ended", "disk", "(--"],
        )?);
        let broken = ["fill-and-break", "disk", FILL_MIB];
        cases.push(case(
            "a disk that fails",
            begin(&mounted, &on_disk, &broken),
            &["EIO", "disk", "(--store-dir)"],
        )?);
    }
    let count = cases.len();
    for Case { name, begun, says } in cases {
        begun
            .end()
            .and_then(|ended| ended.expect_refusal(says))
            .map_err(|error| format!("{name}: {error}"))?;
    }
    Ok(format!("{count} ways"))
}

fn may_mount() -> Result<(), String> {
    let scratch = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).map_err(|error| error.to_string())?;
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", MOUNT, DISK, "true"]).current_dir(scratch.path()).stdin(Stdio::null());
    let output = command.output().map_err(|error| format!("unshare does not start: {error}"))?;
    let why =
        || format!("an image can't be mounted here: {}", String::from_utf8_lossy(&output.stderr).trim());
    output.status.success().then_some(()).ok_or_else(why)
}

/// In the program: from the moment that so much is filled, all reads and writes of the disk fail.
pub fn break_disk(directory: &str, filled_mib: usize) -> Result<(), String> {
    if filled_mib != BREAK_AT_MIB {
        return Ok(());
    }
    let file = File::open(Path::new(directory)).map_err(|error| format!("{directory}: {error}"))?;
    shut_down_ext4(&file).map_err(|error| format!("shutdown: {error}"))
}
