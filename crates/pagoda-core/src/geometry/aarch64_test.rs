use super::*;

const K4: Contiguous = Contiguous(HardwarePage::K4);

const MAPPING: Mapping = Mapping {
    first_page: 0x40000,
    write: true,
    execute: false,
    user: true,
    marks: Marks { accessed: true, dirty: true },
};

/// UXN 54, PXN 53, Contiguous 52, DBM 51; nG 11, AF 10, SH 11b at 8, AP[1] 6, type 11b.
#[test]
fn the_descriptor_of_the_manual() {
    let bits = 1 << 54 | 1 << 53 | 1 << 52 | 1 << 51 | 0xf43;
    assert_eq!(bits, 0x0078_0000_0000_0f43);
    for (i, entry) in K4.encode_group(MAPPING, Reach::Group).enumerate() {
        assert_eq!(entry, bits | 0x4000_0000 | (i as u64) << 12);
    }
}

#[test]
fn clean_is_read_only_with_dbm_and_hardware_makes_it_dirty_by_clearing_one_bit() {
    let clean = Mapping { marks: Marks { accessed: true, dirty: false }, ..MAPPING };
    let entry = K4.encode(1, clean, Reach::Page);
    assert_eq!(entry, 0x0068_0000_4000_1fc3);
    assert_eq!(K4.decode(1, entry & !(1 << 7)), Ok(Some((MAPPING, Reach::Page))));
}

#[test]
fn write_protection_does_not_forget_that_a_page_is_dirty() {
    let protected = Mapping { write: false, ..MAPPING };
    let entry = K4.encode(0, protected, Reach::Group);
    assert_eq!((entry & DBM, entry & AP_READ_ONLY), (0, AP_READ_ONLY));
    assert_eq!(K4.decode(0, entry), Ok(Some((protected, Reach::Group))));
}

#[test]
fn the_address_starts_at_the_granule() {
    for (page, last) in [(HardwarePage::K4, 16), (HardwarePage::K16, 128), (HardwarePage::K64, 32)] {
        let format = Contiguous(page);
        let mapping = Mapping { first_page: 128, ..MAPPING };
        let entries: Vec<_> = format.encode_group(mapping, Reach::Group).collect();
        assert_eq!(entries.len(), last);
        let address = |entry: u64| entry & 0x0000_ffff_ffff_f000;
        let of = |page_number: usize| (page_number as u64) << page.shift();
        assert_eq!((address(entries[0]), address(entries[last - 1])), (of(128), of(127 + last)));
    }
}

#[test]
fn untracked_dirty_state_blocks_and_low_address_bits_are_refused() {
    let good = K4.encode(0, MAPPING, Reach::Group);
    let low_address = Contiguous(HardwarePage::K64).encode(0, MAPPING, Reach::Group) | 1 << 12;
    assert_eq!(Contiguous(HardwarePage::K64).decode(0, low_address), Err(Malformed::Unknown(0)));
    for bad in [good & !DBM, good & !0b10, good & !PXN, good | 1 << 2, good | 1 << 5, good | 1 << 48] {
        assert_eq!(K4.decode(0, bad), Err(Malformed::Unknown(0)), "{bad:#x}");
    }
}
