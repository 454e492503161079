//! The kernel's 64 KiB pages: whether an unadvised mapping gets them and nothing larger, and a
//! guard that allows them for the time of a run.
//!
//! The setting is the machine's, so it changes only on request. The guard restores it when it is
//! dropped: at the end, at an error, and after a signal that
//! [`Cancel`](crate::measure::process::Cancel) remembers, which has to exist before. This module
//! must never leave the setting changed, and never call a side 64 KiB pages that has others.

use std::fs;
use std::path::{Path, PathBuf};

const DIRECTORY: &str = "/sys/kernel/mm/transparent_hugepage";
/// The setting for 64 KiB.
const SIZE: &str = "hugepages-64kB/enabled";

/// 64 KiB pages for all unadvised mappings, as long as this lives.
#[derive(Debug)]
pub struct Mthp {
    /// The setting and its former value, if it was changed.
    before: Option<(PathBuf, String)>,
}

/// The mode in brackets.
fn chosen(text: &str) -> Option<&str> {
    text.split(['[', ']']).nth(1)
}

fn mode(file: &Path) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    chosen(&text).map(str::to_owned)
}

/// Whether an unadvised mapping gets this size.
fn is_unasked(mode: &str, global: &str) -> bool {
    mode == "always" || mode == "inherit" && global == "always"
}

impl Mthp {
    /// Reads the setting, and changes it if that is allowed and needed. The error says why there is
    /// no such side.
    pub fn set_up(may_change: bool) -> Result<Self, String> {
        Self::set_up_in(Path::new(DIRECTORY), may_change)
    }

    fn set_up_in(directory: &Path, may_change: bool) -> Result<Self, String> {
        let file = directory.join(SIZE);
        let (Some(size), Some(global)) = (mode(&file), mode(&directory.join("enabled"))) else {
            return Err("the kernel has no pages of 64 KiB".to_owned());
        };
        let huge = mode(&directory.join("hugepages-2048kB/enabled")).unwrap_or_else(|| "inherit".to_owned());
        if is_unasked(&huge, &global) {
            return Err("the kernel gives 2 MiB pages to who does not ask, and so no 64 KiB pages".to_owned());
        }
        if is_unasked(&size, &global) {
            return Ok(Self { before: None });
        }
        if !may_change {
            return Err(format!(
                "{} is {size}; --set-mthp makes it always for the run (needs root)",
                file.display()
            ));
        }
        fs::write(&file, "always")
            .map_err(|error| format!("{} can't be changed: {error}", file.display()))?;
        Ok(Self { before: Some((file, size)) })
    }
}

impl Drop for Mthp {
    fn drop(&mut self) {
        if let Some((file, before)) = &self.before {
            // A failure here can be reported to no one; a system that allowed the change allows
            // this one.
            let _ = fs::write(file, before);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_gets_a_size_without_asking() {
        assert_eq!(chosen("always inherit [madvise] never"), Some("madvise"));
        assert_eq!(chosen("nothing"), None);
        assert!(is_unasked("always", "never") && is_unasked("inherit", "always"));
        assert!(!is_unasked("inherit", "madvise") && !is_unasked("madvise", "always"));
    }

    #[test]
    fn nothing_is_changed_for_who_did_not_say_so() {
        let modes = || [SIZE, "enabled"].map(|file| mode(&Path::new(DIRECTORY).join(file)));
        let before = modes();
        let is_always = before.iter().flatten().any(|mode| mode == "always");
        match Mthp::set_up(false) {
            Ok(_) => assert!(is_always),
            Err(why) => assert!(!why.is_empty()),
        }
        assert_eq!(modes(), before);
    }

    #[test]
    fn what_is_changed_is_put_back() {
        let directory = tempfile::tempdir().expect("a directory");
        let write = |file: &str, text: &str| {
            let file = directory.path().join(file);
            fs::create_dir_all(file.parent().expect("it has one")).expect("made");
            fs::write(file, text).expect("written");
        };
        write("enabled", "always [madvise] never");
        write(SIZE, "always inherit madvise [never]");
        let refused = Mthp::set_up_in(directory.path(), false).expect_err("it is not allowed");
        assert!(refused.contains("--set-mthp"), "{refused}");
        let changed = Mthp::set_up_in(directory.path(), true).expect("it is allowed");
        let now = || fs::read_to_string(directory.path().join(SIZE)).expect("read");
        assert_eq!(now(), "always");
        drop(changed);
        assert_eq!(now(), "never");
    }
}
