//! Page sizes as types: the OS page of the hardware, and the base page, Pagoda's unit of
//! management.
//!
//! A bare `usize` never crosses a module boundary as a page size. This module must never know an
//! address.

use std::fmt;
use std::str::FromStr;

use crate::size::{Bytes, SizeError};

/// The hardware page: 4 KiB on every machine that Pagoda runs on today.
pub const OS_PAGE: usize = 4096;

/// The size of a huge frame: the range of one second-level page-table entry.
pub const HUGE_FRAME: usize = 2 << 20;

/// Pagoda's unit of management.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BasePage {
    /// 4 KiB: one OS page.
    K4,
    /// 16 KiB.
    K16,
    /// 64 KiB, the default.
    #[default]
    K64,
    /// 2 MiB: whole huge frames where alignment allows.
    M2,
}

impl BasePage {
    /// Every base page that can be chosen, smallest first.
    pub const ALL: [Self; 4] = [Self::K4, Self::K16, Self::K64, Self::M2];

    /// Its size in bytes.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::K4 => 4 << 10,
            Self::K16 => 16 << 10,
            Self::K64 => 64 << 10,
            Self::M2 => HUGE_FRAME,
        }
    }
    /// Its size in OS pages.
    #[must_use]
    pub const fn os_pages(self) -> usize {
        self.bytes() / OS_PAGE
    }
}

impl fmt::Display for BasePage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::K4 => "4K",
            Self::K16 => "16K",
            Self::K64 => "64K",
            Self::M2 => "2M",
        })
    }
}

impl FromStr for BasePage {
    type Err = SizeError;

    /// Reads `4K`, `16K`, `64K` or `2M`, in any way a size can be written.
    fn from_str(text: &str) -> Result<Self, SizeError> {
        let bytes: Bytes = text.parse()?;
        Self::ALL
            .into_iter()
            .find(|page| page.bytes() as u64 == bytes.get())
            .ok_or_else(|| SizeError::new(text, "a base page is 4K, 16K, 64K or 2M"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_base_page_reads_back_what_it_shows() {
        for page in BasePage::ALL {
            assert_eq!(page.to_string().parse(), Ok(page));
            assert_eq!(page.os_pages() * OS_PAGE, page.bytes());
        }
        assert!("32K".parse::<BasePage>().is_err());
    }
}
