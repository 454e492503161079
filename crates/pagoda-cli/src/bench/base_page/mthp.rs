//! The kernel's 64 KiB pages: whether a mapping that does not ask gets them and nothing larger, and a way to have it so for
//! the time of a run.
//!
//! The setting is the machine's, so that it is only touched by who says so, and put back when the guard drops. This module must
//! never leave it changed, and never call a side 64 KiB pages that has others.

use std::fs;

const DIRECTORY: &str = "/sys/kernel/mm/transparent_hugepage";
const SIZE: &str = "hugepages-64kB";

/// 64 KiB pages for all who don't ask, as long as this lives.
pub struct Mthp {
    /// What the setting was, if it was changed.
    before: Option<String>,
}

/// The mode in brackets.
fn chosen(text: &str) -> Option<&str> {
    text.split(['[', ']']).nth(1)
}

fn mode(of: &str) -> Option<String> {
    let text = fs::read_to_string(format!("{DIRECTORY}/{of}")).ok()?;
    chosen(&text).map(str::to_owned)
}

/// Whether who does not ask gets this size.
fn is_unasked(mode: &str, global: &str) -> bool {
    mode == "always" || mode == "inherit" && global == "always"
}

impl Mthp {
    /// Finds out, and changes the setting if that is allowed and needed. The error says why there is no such side.
    pub fn set_up(may_change: bool) -> Result<Self, String> {
        let file = format!("{SIZE}/enabled");
        let (Some(size), Some(global)) = (mode(&file), mode("enabled")) else {
            return Err("the kernel has no pages of 64 KiB".to_owned());
        };
        let huge = mode("hugepages-2048kB/enabled").unwrap_or_else(|| "inherit".to_owned());
        if is_unasked(&huge, &global) {
            return Err("the kernel gives 2 MiB pages to who does not ask, and so no 64 KiB pages".to_owned());
        }
        if is_unasked(&size, &global) {
            return Ok(Self { before: None });
        }
        if !may_change {
            return Err(format!(
                "{DIRECTORY}/{file} is {size}; --set-mthp makes it always for the run (needs root)"
            ));
        }
        fs::write(format!("{DIRECTORY}/{file}"), "always")
            .map_err(|error| format!("{DIRECTORY}/{file} can't be changed: {error}"))?;
        Ok(Self { before: Some(size) })
    }
}

impl Drop for Mthp {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // Nobody is left to tell; a system that allowed the change allows this one.
            let _ = fs::write(format!("{DIRECTORY}/{SIZE}/enabled"), before);
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
        let modes = || [mode(&format!("{SIZE}/enabled")), mode("enabled")];
        let before = modes();
        let is_always = before.iter().flatten().any(|mode| mode == "always");
        match Mthp::set_up(false) {
            Ok(_) => assert!(is_always),
            Err(why) => assert!(!why.is_empty()),
        }
        assert_eq!(modes(), before);
    }
}
