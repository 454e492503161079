//! The length of tests: the normal form is short, `PAGODA_LONG_TESTS` asks for the long one.
//!
//! This module must never choose what a test asserts. The long form only does more of the same.

/// Whether the tests take their long form.
#[must_use]
pub fn is_long() -> bool {
    std::env::var_os("PAGODA_LONG_TESTS").is_some()
}

/// A number of rounds, a time or a size: `short` in the normal form, `long` in the long one.
#[must_use]
pub fn length<T>(short: T, long: T) -> T {
    if is_long() { long } else { short }
}
