//! A program over a budget of zones that were named on the command line: its data is right under
//! each policy, all zones serve it, and an invalid set of zones is refused in one line before
//! anything runs.

use crate::run::{Ended, begin};

/// Half as much again as the memory, and nothing of it compresses.
const FILL_MIB: &str = "96";

const LOCAL: &[&str] = &["--zone", "a=16M", "--zone", "b=48M"];
const WITH_REMOTE: &[&str] = &["--zone", "a=16M", "--zone", "b=32M", "--zone", "c=16M@remote"];

fn run(zones: &[&str], policy: &str) -> Result<Ended, String> {
    let options = [zones, &["--zone-policy", policy]].concat();
    let ended = begin(&[], &options, &["fill", FILL_MIB])?.end()?;
    ended.expect_success().map_err(|error| format!("{zones:?}, {policy}: {error}"))?;
    Ok(ended)
}

/// From outside.
pub fn is_right() -> Result<String, String> {
    let mut told = String::new();
    for (zones, policy) in
        [(LOCAL, "fair"), (LOCAL, "global-list"), (LOCAL, "first-fit"), (WITH_REMOTE, "fair")]
    {
        let ended = run(zones, policy)?;
        let count = |name: &str| ended.counter(name);
        let (resets, spilled, stores) =
            (count("zones_resets")?, count("zones_spilled_bytes")?, count("stores")?);
        let has_remote = zones.len() == WITH_REMOTE.len();
        if stores == 0 || (resets > 0) != (policy == "fair") || (spilled > 0) != has_remote {
            return Err(format!("{zones:?}, {policy}: {resets} resets, {spilled} spilled, {stores} stores"));
        }
        for zone in 0..zones.len() / 2 {
            if count(&format!("zone{zone}_allocated_bytes"))? == 0 {
                return Err(format!("{zones:?}, {policy}: zone {zone} gave nothing"));
            }
        }
        told = format!("{told}{policy}: {resets} resets, {spilled} spilled; ");
    }
    Ok(told)
}

/// From outside.
pub fn are_refused() -> Result<String, String> {
    let cases: [(&[&str], &[&str]); 3] = [
        (
            &["--memory", "32M", "--zone", "a=16M", "--zone", "b=48M"],
            &["64 MiB together", "leave --memory out"],
        ),
        (&["--zone", "a=32M", "--zone", "b=32M@node1023"], &["node", "(--zone)"]),
        (&["--zone", "a=32M", "--zone", "a=32M"], &["zone", "(--zone)"]),
    ];
    for (options, says) in cases {
        begin(&[], options, &["fill", "1"])?
            .end()?
            .expect_refusal(says)
            .map_err(|error| format!("{options:?}: {error}"))?;
    }
    Ok("3 ways".to_owned())
}
