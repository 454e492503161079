//! Page tables of Sv39 as a block of bytes, laid out by the index split of base pages of 64 KiB.
//!
//! A software table below the root is 16 adjacent hardware tables, and its index comes from
//! [`Geometry`]. The machine walks the same bytes by its own split. This file must never compute an
//! index or a leaf entry by itself.

use std::collections::HashMap;

use pagoda_core::geometry::entry::{Format, Mapping, Reach};
use pagoda_core::geometry::riscv::Svnapot;
use pagoda_core::geometry::{Geometry, Scheme};
use pagoda_core::page::BasePage;

/// Where the machine has the root in its memory.
pub const ROOT: u64 = 0x8040_0000;

const PAGE: u64 = 4096;
/// An entry that is valid and neither readable nor executable points to a table.
const POINTER: u64 = 1;

/// The tables of one address space.
pub struct Tables {
    geometry: Geometry,
    words: Vec<u64>,
    /// Level and the address bits above its index: the physical address of the software table.
    found: HashMap<(usize, u64), u64>,
}

impl Tables {
    /// An empty root.
    pub fn new() -> Self {
        let geometry = Geometry::new(Scheme::Sv39, BasePage::K64).unwrap();
        let root = geometry.table_size(0).get() / 8;
        Self { geometry, words: vec![0; root as usize], found: HashMap::new() }
    }

    /// What the machine loads at [`ROOT`].
    pub fn bytes(&self) -> Vec<u8> {
        self.words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// The value of satp: mode Sv39, address space 0.
    pub fn satp(&self) -> u64 {
        8 << 60 | (ROOT / PAGE)
    }

    /// Writes all entries of the group at `address`, and returns where they are.
    pub fn map(&mut self, address: u64, mapping: Mapping, reach: Reach) -> u64 {
        let entries: Vec<_> = Svnapot.encode_group(mapping, reach).collect();
        self.map_words(address, &entries)
    }

    /// The same with these words.
    pub fn map_words(&mut self, address: u64, entries: &[u64]) -> u64 {
        assert_eq!(self.geometry.offset(address), 0, "not the beginning of a base page");
        let table = (1..self.geometry.levels()).fold(ROOT, |table, level| self.below(table, address, level));
        let place = self.place(table, address, self.geometry.levels() - 1);
        for (i, &entry) in entries.iter().enumerate() {
            *self.word(place + i as u64 * 8) = entry;
        }
        place
    }

    /// The table of `level` for an address, made if it is not there: 16 hardware tables, to each of
    /// which one of the 16 entries above points.
    fn below(&mut self, above: u64, address: u64, level: usize) -> u64 {
        let bits = self.geometry.scheme().address_bits();
        let key = (level, (address & ((1 << bits) - 1)) >> (self.geometry.shift(level - 1)));
        if let Some(&table) = self.found.get(&key) {
            return table;
        }
        let table = ROOT + self.words.len() as u64 * 8;
        let words = self.geometry.table_size(level).get() / 8;
        self.words.resize(self.words.len() + words as usize, 0);
        let place = self.place(above, address, level - 1);
        for i in 0..u64::from(self.geometry.entries_per_page()) {
            *self.word(place + i * 8) = (table / PAGE + i) << 10 | POINTER;
        }
        self.found.insert(key, table);
        table
    }

    /// The first hardware entry of a software entry.
    fn place(&self, table: u64, address: u64, level: usize) -> u64 {
        let group = u64::from(self.geometry.entries_per_page());
        table + self.geometry.index(address, level) * group * 8
    }

    fn word(&mut self, address: u64) -> &mut u64 {
        &mut self.words[((address - ROOT) / 8) as usize]
    }
}
