//! A message decodes to itself; anything else is refused with its reason.

use super::*;
use proptest::prelude::*;

fn hellos() -> impl Strategy<Value = Hello> {
    let geometry = (0u64..1 << 52, 1u16..=64);
    let codec = prop::sample::select(&Codec::ALL[..]);
    let channel = (any::<u16>(), any::<bool>(), any::<bool>(), any::<u32>());
    (geometry, channel, codec, any::<[u8; 16]>(), any::<[u8; 32]>(), any::<[u8; 32]>()).prop_map(
        |((image, channels), (channel, switches, resumes, attempt), codec, session, nonce, proof)| {
            let geometry = Geometry::new(Bytes::new(image), channels).expect("a geometry");
            let (attempt, resumes) = if switches { (attempt, false) } else { (0, resumes) };
            let hello =
                Hello { session, geometry, channel: 0, switches, attempt, resumes, codec, nonce, proof };
            Hello { channel: channel % hello.lanes(), ..hello }
        },
    )
}

#[test]
fn a_codec_parses_its_own_name() {
    for codec in Codec::ALL {
        assert_eq!(codec.to_string().parse(), Ok(codec));
    }
    assert!("gzip".parse::<Codec>().is_err());
}

#[test]
fn a_hello_that_can_not_be_taken_says_why() {
    let geometry = Geometry::new(Bytes::mib(4), 2).expect("a geometry");
    let (session, nonce, proof) = ([1; 16], [2; 32], [3; 32]);
    let (switches, attempt, resumes, codec) = (false, 0, false, Codec::Lz4);
    let good = Hello { session, geometry, channel: 1, switches, attempt, resumes, codec, nonce, proof };
    let good = good.encode();
    // Each at the offset of its field; the checksum is made right again.
    let with = |at: usize, value: u16| {
        let mut bytes = good;
        bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
        let checksum = twox_hash::XxHash3_64::oneshot(&bytes[..HELLO_BYTES - 8]);
        bytes[HELLO_BYTES - 8..].copy_from_slice(&checksum.to_le_bytes());
        Hello::decode(&bytes).map(drop)
    };
    assert_eq!(with(8, VERSION), Ok(()));
    assert_eq!(with(0, 0), Err(Refusal::Damaged));
    assert_eq!(with(8, VERSION + 1), Err(Refusal::Version));
    assert_eq!(with(10, 2), Err(Refusal::Channel));
    assert_eq!(with(80, 2), Err(Refusal::Damaged));
    assert_eq!(with(12, 0), Err(Refusal::Geometry));
    assert_eq!(with(12, 65), Err(Refusal::Geometry));
    assert_eq!(with(14, 9), Err(Refusal::Codec));
    assert_eq!(with(16, 8192), Err(Refusal::Geometry));
    assert_eq!(with(30, u16::MAX), Err(Refusal::Geometry));
    assert_eq!(with(82, 1), Err(Refusal::Damaged));
    assert_eq!(with(86, 1), Err(Refusal::Damaged));
    let version = |start: &[u8]| version_of(start.first_chunk().expect("long enough"));
    assert_eq!((version(&good), version(&[0; 10])), (Some(VERSION), None));
}

proptest! {
    #[test]
    fn a_message_decodes_to_itself(
        version: u16, wants_token: bool, nonce: [u8; 32], hello in hellos(), refusal in prop::sample::select(&Refusal::ALL[..])
    ) {
        let greeting = Greeting { version, wants_token, nonce };
        prop_assert_eq!(Greeting::decode(&greeting.encode()), Ok(greeting));
        prop_assert_eq!(Hello::decode(&hello.encode()), Ok(hello));
        for answer in [Answer::Taken { proof: nonce }, Answer::Refused(refusal)] {
            prop_assert_eq!(Answer::decode(&answer.encode()), Ok(answer));
        }
    }

    #[test]
    fn all_but_the_proof_is_proven(hello in hellos(), other in hellos()) {
        let same = Hello { proof: other.proof, ..hello };
        prop_assert_eq!(hello.unproven(), same.unproven());
        let proven = |hello: Hello| Hello { proof: [0; 32], ..hello };
        prop_assert_eq!(hello.unproven() == other.unproven(), proven(hello) == proven(other));
    }

    #[test]
    fn a_flipped_bit_is_noticed(hello in hellos(), bit: prop::sample::Index) {
        let mut bytes = hello.encode();
        let at = bit.index(HELLO_BYTES * 8);
        bytes[at / 8] ^= 1 << (at % 8);
        prop_assert!(Hello::decode(&bytes).is_err());
        let mut bytes = Answer::Taken { proof: hello.proof }.encode();
        let at = bit.index(ANSWER_BYTES * 8);
        bytes[at / 8] ^= 1 << (at % 8);
        prop_assert_eq!(Answer::decode(&bytes), Err(Damaged));
        let mut bytes = Greeting { version: VERSION, wants_token: false, nonce: hello.nonce }.encode();
        let at = bit.index(GREETING_BYTES * 8);
        bytes[at / 8] ^= 1 << (at % 8);
        prop_assert_eq!(Greeting::decode(&bytes), Err(Damaged));
    }

    #[test]
    fn any_bytes_are_refused(greeting: [u8; 32], hello: [[u8; 32]; 4], answer: [[u8; 32]; 2]) {
        let mut bytes = [0; GREETING_BYTES];
        bytes[..32].copy_from_slice(&greeting);
        prop_assert_eq!(Greeting::decode(&bytes), Err(Damaged));
        let hello: Vec<u8> = hello.concat();
        prop_assert!(Hello::decode(&hello.try_into().expect("128 bytes")).is_err());
        let answer: Vec<u8> = answer.concat();
        prop_assert_eq!(Answer::decode(&answer.try_into().expect("64 bytes")), Err(Damaged));
    }
}
