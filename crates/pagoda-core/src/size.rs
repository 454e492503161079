//! Byte counts as a type, and the one parser for sizes that users write.
//!
//! `K`, `M`, `G` and `T` are binary, as in systemd and docker: `64M` is 67,108,864 bytes. A number
//! without a suffix is bytes. With a suffix there may be a fraction: `1.5G`; a part of a byte is
//! cut off. This module must never guess: a text that is no such number is an error that names the
//! expected form.

use std::fmt;
use std::str::FromStr;

/// A number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(u64);

impl Bytes {
    /// No bytes.
    pub const ZERO: Self = Self(0);

    /// `n` bytes.
    #[must_use]
    pub const fn new(n: u64) -> Self {
        Self(n)
    }
    /// `n` KiB. Panics in debug builds if that overflows 64 bits.
    #[must_use]
    pub const fn kib(n: u64) -> Self {
        Self(n << 10)
    }
    /// `n` MiB. Panics in debug builds if that overflows 64 bits.
    #[must_use]
    pub const fn mib(n: u64) -> Self {
        Self(n << 20)
    }
    /// `n` GiB. Panics in debug builds if that overflows 64 bits.
    #[must_use]
    pub const fn gib(n: u64) -> Self {
        Self(n << 30)
    }
    /// The plain number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
    /// The number as a length in this address space. Pagoda runs on 64-bit machines only.
    #[must_use]
    pub const fn as_usize(self) -> usize {
        self.0 as usize
    }
    /// `self - other`, or zero.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
    /// `self + other`, or the largest count there is.
    #[must_use]
    pub const fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

/// Why a size could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SizeError {
    input: String,
    reason: &'static str,
}

impl SizeError {
    pub(crate) fn new(input: &str, reason: &'static str) -> Self {
        Self { input: input.to_owned(), reason }
    }
}

impl fmt::Display for SizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} is not a size: {}; write a number with K, M, G or T (binary), like 512M or 1.5G",
            self.input, self.reason
        )
    }
}

impl std::error::Error for SizeError {}

/// More digits than these are below a byte of a TiB.
const FRACTION_DIGITS_MAX: usize = 12;

/// So many whole bytes are `0.fraction` of a unit. The fraction has at most
/// [`FRACTION_DIGITS_MAX`] digits, so that nothing here overflows 128 bits.
fn part_of(fraction: &str, shift: u32) -> u64 {
    let digits = fraction.bytes().fold(0u128, |sum, digit| sum * 10 + u128::from(digit - b'0'));
    let part = (digits << shift) / 10u128.pow(fraction.len() as u32);
    u64::try_from(part).unwrap_or(u64::MAX)
}

impl FromStr for Bytes {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        let fail = |reason| SizeError::new(text, reason);
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, rest) = text.split_at(digits);
        if number.is_empty() {
            return Err(fail("it does not start with a digit"));
        }
        let number: u64 = number.parse().map_err(|_| fail("it is too large"))?;
        let (fraction, suffix) = match rest.strip_prefix('.') {
            Some(rest) => rest.split_at(rest.bytes().take_while(u8::is_ascii_digit).count()),
            None => ("", rest),
        };
        if fraction.is_empty() != (suffix == rest) {
            return Err(fail("no digit follows its point"));
        }
        if fraction.len() > FRACTION_DIGITS_MAX {
            return Err(fail("it has more digits behind the point than a size needs"));
        }
        let suffix = suffix.to_ascii_uppercase();
        let suffix = suffix.strip_suffix("IB").or_else(|| suffix.strip_suffix('B')).unwrap_or(&suffix);
        let shift = match suffix {
            "" if fraction.is_empty() => 0,
            "" => return Err(fail("it is a part of a byte")),
            "K" => 10,
            "M" => 20,
            "G" => 30,
            "T" => 40,
            _ => return Err(fail("its suffix is unknown")),
        };
        let whole = number.checked_mul(1 << shift).ok_or_else(|| fail("it is too large"))?;
        Ok(Self(whole).saturating_add(Self(part_of(fraction, shift))))
    }
}

impl fmt::Display for Bytes {
    /// Writes the largest binary unit with at least one digit before the point: `1.5 GiB`,
    /// `64 KiB`, `17 B`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
        let text = match units.into_iter().find(|(shift, _)| self.0 >> shift > 0) {
            None => format!("{} B", self.0),
            Some((shift, unit)) if self.0.trailing_zeros() >= shift => format!("{} {unit}", self.0 >> shift),
            Some((shift, unit)) => format!("{:.1} {unit}", self.0 as f64 / (1u64 << shift) as f64),
        };
        f.pad(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suffixes_are_binary() {
        for (text, bytes) in
            [("0", 0), ("17", 17), ("4k", 4096), ("64M", 64 << 20), ("2GiB", 2 << 30), ("1TB", 1 << 40)]
        {
            assert_eq!(text.parse::<Bytes>().map(Bytes::get), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn a_fraction_of_a_unit_is_its_whole_bytes() {
        for (text, bytes) in
            [("1.5G", 3 << 29), ("0.25m", 1 << 18), ("1.0K", 1024), ("0.1K", 102), ("2.75GiB", 11 << 28)]
        {
            assert_eq!(text.parse::<Bytes>().map(Bytes::get), Ok(bytes), "{text}");
        }
        assert_eq!("16777215.999999999999T".parse::<Bytes>().map(|size| size.get() >> 40), Ok(16_777_215));
    }

    #[test]
    fn what_is_not_a_size_says_why() {
        for text in [
            "",
            "M",
            "-1",
            "1.5",
            "1.G",
            ".5G",
            "1.5.5G",
            "1,5G",
            "1.1234567890123G",
            "12X",
            "99999999999999999999",
            "99999999T",
            "1 M",
            "1.",
            "1.5X",
        ] {
            let error = text.parse::<Bytes>().expect_err(text).to_string();
            assert!(error.contains("like 512M"), "{error}");
        }
    }

    #[test]
    fn shown_in_the_largest_unit_that_fits() {
        for (bytes, text) in [(17, "17 B"), (65536, "64 KiB"), (3 << 29, "1.5 GiB"), (2 << 40, "2 TiB")] {
            assert_eq!(Bytes::new(bytes).to_string(), text);
        }
    }
}
