//! Regions that are written while they move: every byte of the arrived region against a shadow, for
//! every way to send it, every failure on the way and every killed side.
//!
//! `PAGODA_RUNS` says how many runs a seeded test makes, `PAGODA_SEED` repeats one of them.

mod adopted;
mod adopted_refusals;
#[path = "../../../pagoda-migrate/tests/support/authority.rs"]
mod authority;
mod beside;
mod content;
#[path = "../../../pagoda-bench/src/suites/migrate/cut_line.rs"]
mod cut_line;
mod faults;
mod huge;
mod kills;
mod late;
mod late_kills;
mod late_trusted;
mod late_zero;
#[path = "../../../pagoda-cli/tests/migrate/line.rs"]
mod line;
mod moments;
mod pace;
mod placed;
mod program;
#[allow(dead_code, reason = "each of the tests uses its own part")]
#[path = "../../../pagoda-migrate/tests/support/proxy.rs"]
mod proxy;
mod recovery;
mod shared;
#[allow(dead_code, reason = "each of the tests uses its own part")]
#[path = "../../../pagoda-migrate/tests/support/shared_file.rs"]
mod shared_file;
mod sides;
mod slowed;
mod slowed_ends;
mod stirred;
mod support;
