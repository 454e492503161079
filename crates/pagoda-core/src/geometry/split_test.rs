use proptest::prelude::*;

use super::*;

fn geometries() -> Vec<Geometry> {
    let with = |scheme| BasePage::ALL.into_iter().filter_map(move |base| Geometry::new(scheme, base).ok());
    Scheme::ALL.into_iter().flat_map(with).collect()
}

/// The highest and lowest bit of each index, the root's first.
fn fields(scheme: Scheme, base: BasePage) -> Vec<(u32, u32)> {
    let geometry = Geometry::new(scheme, base).unwrap();
    let field = |level| {
        let low = geometry.shift(level);
        (low + geometry.index_bits(level) - 1, low)
    };
    (0..geometry.levels()).map(field).collect()
}

#[test]
fn splits_match_the_manuals() {
    let l4 = [(47, 39), (38, 30), (29, 21), (20, 12)];
    assert_eq!(fields(Scheme::X86Level4, BasePage::K4), l4);
    assert_eq!(fields(Scheme::Sv48, BasePage::K4), l4);
    assert_eq!(fields(Scheme::AArch64(HardwarePage::K4), BasePage::K4), l4);
    let l5 = [(56, 48), (47, 39), (38, 30), (29, 21), (20, 12)];
    assert_eq!(fields(Scheme::X86Level5, BasePage::K4), l5);
    assert_eq!(fields(Scheme::Sv57, BasePage::K4), l5);
    assert_eq!(fields(Scheme::Sv39, BasePage::K4), [(38, 30), (29, 21), (20, 12)]);
    let k16 = [(47, 47), (46, 36), (35, 25), (24, 14)];
    assert_eq!(fields(Scheme::AArch64(HardwarePage::K16), BasePage::K16), k16);
    assert_eq!(fields(Scheme::AArch64(HardwarePage::K64), BasePage::K64), [(47, 42), (41, 29), (28, 16)]);
}

/// The split of the RFC: pgd 38..34, pmd 33..25, pte 24..16.
#[test]
fn sv39_in_64_kib_is_split_as_proposed() {
    assert_eq!(fields(Scheme::Sv39, BasePage::K64), [(38, 34), (33, 25), (24, 16)]);
    let sv39 = Geometry::new(Scheme::Sv39, BasePage::K64).unwrap();
    assert_eq!(
        [0, 1, 2].map(|level| sv39.table_span(level)),
        [Bytes::gib(512), Bytes::gib(16), Bytes::mib(32)]
    );
    assert_eq!(
        [0, 1, 2].map(|level| sv39.table_size(level)),
        [Bytes::kib(4), Bytes::kib(64), Bytes::kib(64)]
    );
}

#[test]
fn wider_schemes_in_64_kib_have_the_same_root() {
    let sv48 = [(47, 43), (42, 34), (33, 25), (24, 16)];
    assert_eq!(fields(Scheme::Sv48, BasePage::K64), sv48);
    assert_eq!(fields(Scheme::AArch64(HardwarePage::K4), BasePage::K64), sv48);
    assert_eq!(fields(Scheme::Sv57, BasePage::K64), [(56, 52), (51, 43), (42, 34), (33, 25), (24, 16)]);
}

#[test]
fn unsupported_base_pages_are_refused_with_the_reason() {
    let new = Geometry::new;
    assert_eq!(new(Scheme::Sv39, BasePage::M2), Err(Unsupported::WholeLeafTable));
    assert_eq!(new(Scheme::AArch64(HardwarePage::K16), BasePage::K64), Err(Unsupported::RootTooSmall));
    let below = new(Scheme::AArch64(HardwarePage::K64), BasePage::K4).unwrap_err();
    assert_eq!(below.to_string(), "the base page is below the hardware's page of 64 KiB");
}

#[test]
fn a_tlb_entry_reaches_a_group_where_the_base_page_holds_one() {
    let reach = |scheme, base| Geometry::new(scheme, base).unwrap().tlb_reach(10);
    assert_eq!(reach(Scheme::Sv39, BasePage::K64), Bytes::kib(640));
    assert_eq!(reach(Scheme::Sv39, BasePage::K16), Bytes::kib(40));
    assert_eq!(reach(Scheme::AArch64(HardwarePage::K4), BasePage::K64), Bytes::kib(640));
    assert_eq!(reach(Scheme::AArch64(HardwarePage::K64), BasePage::M2), Bytes::mib(20));
    assert_eq!(reach(Scheme::X86Level4, BasePage::K64), Bytes::kib(40));
}

proptest! {
    #[test]
    fn indices_and_offset_make_up_the_address_whatever_the_base_page(address: u64) {
        for geometry in geometries() {
            let address = address & ((1 << geometry.scheme().address_bits()) - 1);
            let made_up = (0..geometry.levels())
                .fold(geometry.offset(address), |sum, level| {
                    sum | geometry.index(address, level) << geometry.shift(level)
                });
            prop_assert_eq!(made_up, address);
        }
    }

    /// The software split and the hardware split find the same entry of the same bytes, at
    /// every level.
    #[test]
    fn the_hardware_finds_its_entry_inside_the_software_entry(address: u64) {
        for geometry in geometries() {
            let scheme = geometry.scheme();
            let bits = scheme.index_bits();
            let cluster = geometry.entries_per_page();
            for level in 0..geometry.levels() {
                let shift = scheme.page().shift() + bits[level + 1..].iter().sum::<u32>();
                let hardware_entry = address >> shift & ((1 << bits[level]) - 1);
                // A software table below the root is several hardware tables; the bits above
                // select one.
                let tables = if level == 0 { 1 } else { u64::from(cluster) };
                let table = address >> (shift + bits[level]) & (tables - 1);
                let entry = (table << bits[level]) + hardware_entry;
                prop_assert_eq!(entry / u64::from(cluster), geometry.index(address, level));
            }
        }
    }
}
