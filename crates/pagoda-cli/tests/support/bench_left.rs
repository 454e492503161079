//! The leftovers of a bench of some process number: groups, devices, files and processes. Never
//! removes them.

use std::cell::RefCell;
use std::path::Path;

use pagoda_linux::swap::cgroup::Controller;
use pagoda_linux::swap::swapfile::{Label, owner};

/// The memory groups of a bench.
fn groups(prefix: &str) -> Vec<String> {
    let names = RefCell::new(Vec::new());
    if let Ok(controller) = Controller::find() {
        let look = |name: &str| {
            names.borrow_mut().extend(name.starts_with(prefix).then(|| name.to_owned()));
            false
        };
        assert!(controller.remove_where(look).expect("listed").is_empty());
    }
    names.into_inner()
}

/// Everything that the bench of this number has set up and not undone.
pub fn left_by(pid: u32) -> Vec<String> {
    let prefix = format!("pagoda-bench-{pid}-");
    let mut left = groups(&prefix);
    let names = |directory: &str| -> Vec<String> {
        let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    };
    left.extend(names("/var/tmp").into_iter().filter(|name| name.starts_with(&prefix)));
    left.extend(names("/sys/block").into_iter().filter(|name| {
        let node = Path::new("/dev").join(name);
        name.starts_with("zram") && owner(&node, Label::new("pagoda-bench")) == Some(pid)
    }));
    left.extend(names("/proc").into_iter().filter(|number| {
        let command = std::fs::read(format!("/proc/{number}/cmdline")).unwrap_or_default();
        number.parse::<u32>().is_ok() && String::from_utf8_lossy(&command).contains(&prefix)
    }));
    left
}
