use super::*;

fn sealer() -> Sealer {
    Sealer::random().expect("random bytes")
}

/// The example of the GCM specification, test case 13: this cipher is AES-256-GCM.
#[test]
fn the_cipher_is_aes_256_gcm() {
    let sealer = Sealer { cipher: Aes256Gcm::new(&[0; 32].into()), next: AtomicU64::new(0) };
    let tag = sealer.seal(0, Version(0), &mut []);
    assert_eq!(u128::from_be_bytes(tag), 0x530f_8afb_c745_36b9_a963_b4f1_c4cb_738b);
}

#[test]
fn equal_content_looks_different_at_each_object_version_and_engine() {
    let (one, other, page) = (sealer(), sealer(), [7; 4096]);
    let versions = [(); 3].map(|()| one.next_version());
    let mut seen = Vec::new();
    for (sealer, object, version) in [
        (&one, 1, versions[0]),
        (&one, 1, versions[1]),
        (&one, 2, versions[2]),
        (&one, 1, versions[2]),
        (&other, 1, versions[0]),
    ] {
        let mut bytes = page;
        let tag = sealer.seal(object, version, &mut bytes);
        assert!(!seen.contains(&(bytes, tag)) && bytes != page);
        seen.push((bytes, tag));
        assert!(sealer.open(object, version, &mut bytes, tag) && bytes == page);
    }
}

#[test]
fn nothing_opens_but_what_was_sealed_there_last() {
    let (one, other, page) = (sealer(), sealer(), [7; 4096]);
    let [first, second] = [(); 2].map(|()| one.next_version());
    let mut sealed = page;
    let tag = one.seal(1, first, &mut sealed);
    let opens = |sealer: &Sealer, object, version, bytes: &[u8], tag| {
        let mut bytes = bytes.to_vec();
        let opens = sealer.open(object, version, &mut bytes, tag);
        assert_eq!(bytes, vec![if opens { 7 } else { 0 }; bytes.len()], "nothing is seen that did not open");
        opens
    };
    assert!(opens(&one, 1, first, &sealed, tag));
    assert!(!opens(&one, 1, second, &sealed, tag), "an older version");
    assert!(!opens(&one, 2, first, &sealed, tag), "another object's");
    assert!(!opens(&other, 1, first, &sealed, tag), "another engine's");
    assert!(!opens(&one, 1, first, &sealed[..4095], tag), "a shorter one");
    assert!(!opens(&one, 1, first, &page, tag), "the content itself");
    for at in (0..4096).step_by(97) {
        let mut changed = sealed;
        changed[at] ^= 1;
        assert!(!opens(&one, 1, first, &changed, tag), "changed at {at}");
    }
    for bit in 0..128 {
        let changed = u128::from_le_bytes(tag) ^ 1 << bit;
        assert!(!opens(&one, 1, first, &sealed, changed.to_le_bytes()), "another tag");
    }
}

#[test]
fn no_version_is_given_out_twice() {
    let sealer = sealer();
    let drawn = || (0..1000).map(|_| sealer.next_version().to_bits()).collect::<Vec<_>>();
    let mut all: Vec<u64> = std::thread::scope(|scope| {
        let threads = [(); 4].map(|()| scope.spawn(drawn));
        threads.into_iter().flat_map(|thread| thread.join().expect("a thread")).collect()
    });
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 4000);
}
