//! Page-table geometry for base pages larger than the hardware's: index splits, entry formats,
//! table bytes.
//!
//! A 64 KiB base page on hardware with 4 KiB pages is a *group* of 16 entries: one software entry
//! stands for 16 hardware entries. The idea and the first split come from Xu Lu's "riscv: Introduce
//! 64K base page" (RFC PATCH v2, linux-riscv, December 2024). This module generalizes it to any
//! scheme, and to any base page from the hardware page up:
//!
//! ```text
//! Sv39, 4 KiB     | root 38..30 | 29..21     | leaf 20..12 | offset 11..0 |
//! Sv39, 64 KiB    | root 38..34 | 33..25     | leaf 24..16 | offset 15..0 |
//! ```
//!
//! | file | defines |
//! |---|---|
//! | `scheme` | the architectures: page, levels, how many entries one TLB entry can cover |
//! | `split` | which address bits index which level, for a scheme and a base page |
//! | `population` | how many tables and base pages a set of ranges needs |
//! | `entry` | how a group of entries decodes; accessed and dirty are the OR over all |
//! | `riscv`, `aarch64`, `x86` | the bits of an entry |
//! | `change` | in which order the entries of a group change |
//! | `fold` | how a group becomes one translation, and single entries again |
//!
//! All of it is arithmetic on numbers. It is tested against the bit positions of the published
//! specifications and with a simulated walker. Sv39 and Svnapot are walked by a machine of QEMU
//! (`tests/riscv_tables`); Arm's and x86's formats have met no machine. User space can't write a
//! hardware page table, so the engine uses `population` alone, for the choice by density. The rest
//! shows the cost and gain of a geometry, and is a reference for code that writes such tables. This
//! module must never know a real table or a real address.
//!
//! # What 64 KiB saves
//!
//! ```
//! use pagoda_core::geometry::{Geometry, Scheme};
//! use pagoda_core::page::BasePage;
//!
//! let small = Geometry::new(Scheme::Sv39, BasePage::K4).unwrap();
//! let large = Geometry::new(Scheme::Sv39, BasePage::K64).unwrap();
//! let dense = || std::iter::once(0..1 << 30);
//!
//! // One fault and one entry per 64 KiB instead of 16.
//! assert_eq!((small.pages(dense()), large.pages(dense())), (262_144, 16_384));
//!
//! // A table with one 8-byte entry per base page: at most 1/14 of the bytes.
//! let (at_4k, at_64k) =
//!     (small.software_table_bytes(dense()), large.software_table_bytes(dense()));
//! assert_eq!((at_4k.get(), at_64k.get()), (2_105_344, 135_424));
//! assert!(at_64k.get() * 14 <= at_4k.get());
//!
//! // The hardware tables still have an entry per 4 KiB: Svnapot saves nothing there.
//! assert_eq!(large.table_bytes(dense()).get(), 2_166_784);
//!
//! // The same number of TLB entries reaches 16 times as far.
//! assert_eq!(large.tlb_reach(64).get() / small.tlb_reach(64).get(), 16);
//!
//! // The cost: one 4 KiB page touched in each 64 KiB keeps 16 times the memory resident.
//! let sparse = || (0..1024u64).map(|i| i << 16..(i << 16) + 4096);
//! assert_eq!(large.resident_bytes(sparse()).get() / small.resident_bytes(sparse()).get(), 16);
//! ```

pub mod aarch64;
pub mod change;
pub mod entry;
pub mod fold;
pub mod population;
pub mod riscv;
mod scheme;
mod split;
pub mod x86;

pub use scheme::{HardwarePage, Scheme};
pub use split::{Geometry, Unsupported};
