use proptest::prelude::*;

use super::*;
use crate::geometry::HardwarePage;
use crate::geometry::aarch64::Contiguous;
use crate::geometry::riscv::Svnapot;
use crate::geometry::x86::Plain;

/// Runs `$check` with each format.
macro_rules! with_each_format {
    ($format:ident, $check:block) => {
        with_each_format!(@ $format, $check, Svnapot, Plain(16), Contiguous(HardwarePage::K4),
            Contiguous(HardwarePage::K16), Contiguous(HardwarePage::K64))
    };
    (@ $format:ident, $check:block, $($each:expr),*) => { $({ let $format = $each; $check })* };
}

fn marks() -> impl Strategy<Value = Marks> {
    any::<(bool, bool)>().prop_map(|(accessed, dirty)| Marks { accessed, dirty })
}

/// Mappings that any format can hold: 2^32 pages are 48 bits of address at 64 KiB, and 128 is the
/// longest group.
fn mapping() -> impl Strategy<Value = Mapping> {
    (0u64..1 << 25, any::<[bool; 3]>(), marks()).prop_map(|(group, [write, execute, user], marks)| Mapping {
        first_page: group * 128,
        write,
        execute,
        user,
        marks,
    })
}

fn reach() -> impl Strategy<Value = Reach> {
    prop::sample::select([Reach::Page, Reach::Group].as_slice())
}

fn unmarked(mapping: Mapping) -> Mapping {
    Mapping { marks: Marks::default(), ..mapping }
}

proptest! {
    #[test]
    fn a_group_reads_back_what_was_written(mapping in mapping(), reach in reach()) {
        with_each_format!(format, {
            let entries: Vec<_> = format.encode_group(mapping, reach).collect();
            let (read, _) = format.decode_group(&entries).unwrap().unwrap();
            prop_assert_eq!(read, mapping);
        });
    }

    #[test]
    fn marks_of_a_group_are_those_of_any_of_its_entries(
        mapping in mapping(), reach in reach(), marked in prop::collection::vec((any::<usize>(), marks()), 0..6),
    ) {
        with_each_format!(format, {
            let mapping = unmarked(mapping);
            let mut entries: Vec<_> = format.encode_group(mapping, reach).collect();
            let mut all = Marks::default();
            for &(at, marks) in &marked {
                let at = at % entries.len();
                let marks = marks.or(format.marks(entries[at]));
                entries[at] = format.encode(at, Mapping { marks, ..mapping }, reach);
                all = all.or(marks);
            }
            let (read, _) = format.decode_group(&entries).unwrap().unwrap();
            prop_assert_eq!(read, Mapping { marks: all, ..mapping });
        });
    }

    #[test]
    fn an_entry_that_says_something_else_is_found(
        one in mapping(), other in mapping(), reach in reach(), at: usize,
    ) {
        prop_assume!(unmarked(one) != unmarked(other));
        with_each_format!(format, {
            let mut entries: Vec<_> = format.encode_group(one, reach).collect();
            let at = 1 + at % (entries.len() - 1);
            entries[at] = format.encode(at, other, reach);
            prop_assert_eq!(format.decode_group(&entries), Err(Malformed::Mixed(at)));
            entries[at] = 0;
            prop_assert_eq!(format.decode_group(&entries), Err(Malformed::Mixed(at)));
        });
    }

    #[test]
    fn no_word_is_read_as_something_it_is_not(word: u64, at: usize) {
        with_each_format!(format, {
            let at = at % format.entries();
            if let Ok(Some((mapping, reach))) = format.decode(at, word) {
                let again = format.encode(at, mapping, reach);
                prop_assert_eq!(format.decode(at, again), Ok(Some((mapping, reach))));
                prop_assert_eq!(format.marks(word), mapping.marks);
            }
        });
    }

    #[test]
    fn a_page_in_the_wrong_place_is_found(mapping in mapping(), at: usize, shift in 1usize..16) {
        with_each_format!(format, {
            let at = at % format.entries();
            let elsewhere = (at + shift) % format.entries();
            let entry = format.encode(at, mapping, Reach::Page);
            prop_assert_eq!(format.decode(elsewhere, entry), Err(Malformed::Misplaced(elsewhere)));
        });
    }
}

#[test]
fn an_empty_group_decodes_to_none() {
    with_each_format!(format, {
        let entries = vec![0; format.entries()];
        assert_eq!((format.decode_group(&entries), format.marks(0)), (Ok(None), Marks::default()));
    });
}

#[test]
#[should_panic(expected = "does not start a group of 16")]
fn a_misaligned_frame_is_not_encoded() {
    let mapping = Mapping { first_page: 8, write: true, execute: false, user: true, marks: Marks::default() };
    Svnapot.encode(0, mapping, Reach::Group);
}
