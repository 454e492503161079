use super::*;
use proptest::prelude::*;

pub fn header() -> Header {
    Header {
        block_bytes: 16384,
        len_bytes: (1 << 30) + 5,
        index_at: 4096,
        index_bytes: 257 * 32 + 16 + 6144,
        runs: 1,
        key_check: [1; 16],
        base: Some(Base { root: Root([2; 32]), file_name: b"base.img".to_vec() }),
        has_parts: false,
        root: Root([3; 32]),
    }
}

#[test]
fn headers_read_back_and_others_say_why_they_are_none() {
    for (base, has_parts) in [(None, true), (header().base, false)] {
        let header = Header { base, has_parts, ..header() };
        assert_eq!(Header::decode(&header.encode()), Ok(header));
    }
    let mut bytes = header().encode();
    for version in [0, 3, 9] {
        bytes[8] = version;
        assert_eq!(Header::decode(&bytes), Err(HeaderError::Version(version.into())));
    }
    bytes[0] = 0;
    assert_eq!(Header::decode(&bytes), Err(HeaderError::NotAnImage));
    for wrong in [
        Header { block_bytes: 2048, ..header() },
        Header { block_bytes: 24576, ..header() },
        Header { len_bytes: 0, ..header() },
        Header { len_bytes: u64::MAX, ..header() },
        Header { index_at: 4095, ..header() },
        Header { index_at: u64::MAX, ..header() },
        Header { index_bytes: 257 * 32 + 17, ..header() },
        Header { runs: u64::MAX, ..header() },
    ] {
        assert_eq!(Header::decode(&wrong.encode()), Err(HeaderError::Damaged), "{wrong:?}");
    }
}

#[test]
fn the_root_covers_all_of_the_header_but_itself() {
    let key = Key::new([9; 32]);
    let root = header().root_of(&key, b"table");
    assert_eq!(root, Header { root: Root([0; 32]), ..header() }.root_of(&key, b"table"));
    assert_ne!(root, Header { len_bytes: 1 << 30, ..header() }.root_of(&key, b"table"));
    assert_ne!(root, Header { base: None, ..header() }.root_of(&key, b"table"));
    assert_ne!(root, header().root_of(&key, b"Table"));
}

proptest! {
    #[test]
    fn one_bit_that_differs_is_noticed(at in 0..HEADER_BYTES, bit in 0u8..8) {
        let mut bytes = header().encode();
        bytes[at] ^= 1 << bit;
        prop_assert!(Header::decode(&bytes).is_err());
    }
}
