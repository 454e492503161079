//! Any bytes as the message of a VMM, or as the configuration of its snapshot: for a fuzzer, and
//! for a test by seeds. Panics on a wrong outcome.

use crate::cloud_hypervisor::mappings_of;
use crate::firecracker::Regions;

/// The length of the image that messages are for.
const LEN_BYTES: u64 = 1 << 30;

/// Takes an input as Firecracker's message. Returns whether it is one.
///
/// # Panics
/// If a region leaves the image, overlaps another, or is not the one at its addresses.
pub fn message(input: &[u8]) -> bool {
    let Ok(regions) = Regions::parse(input, LEN_BYTES) else { return false };
    assert!(regions.iter().count() > 0 && regions.len_bytes() <= LEN_BYTES);
    let mut end = 0;
    for region in regions.iter() {
        let range = region.range;
        assert!(end <= range.start() && region.offset + range.len() as u64 <= LEN_BYTES);
        assert!([range.start(), range.len()].iter().all(|word| word.is_multiple_of(region.page_bytes)));
        end = range.end();
        assert!([range.start(), end - 1].iter().all(|at| regions.at(*at) == Some(region)));
    }
    true
}

/// Takes an input as Cloud Hypervisor's configuration. Returns whether it is one.
///
/// # Panics
/// If a slot is empty, overlaps another or ends beyond all addresses.
pub fn config(input: &[u8]) -> bool {
    let Ok(mappings) = mappings_of(input) else { return false };
    assert!(!mappings.is_empty());
    let mut end = 0;
    for slot in &mappings {
        assert!(slot.size > 0 && end <= slot.gpa && slot.file_offset.checked_add(slot.size).is_some());
        end = slot.gpa.checked_add(slot.size).expect("it ends before");
    }
    true
}

#[cfg(test)]
mod tests {
    use pagoda_linux::testing::random::Random;

    use super::*;

    const MESSAGE: &str = r#"[{"base_host_virt_addr":4194304,"size":8192,"offset":0,"page_size":4096},
        {"base_host_virt_addr":8388608,"size":4194304,"offset":8192,"page_size_kib":2097152}]"#;
    const CONFIG: &str = r#"{"memory_manager_data":{"guest_ram_mappings":[
        {"slot":0,"gpa":0,"size":8192,"file_offset":0},{"slot":1,"gpa":8192,"size":4096,"file_offset":8192}]}}"#;

    #[test]
    fn any_change_of_a_message_gives_regions_within_the_image_or_a_refusal() {
        const BYTES: &[u8] = b"0123456789{}[],:\"-.e\0";
        for (whole, parse) in [(MESSAGE, message as fn(&[u8]) -> bool), (CONFIG, config)] {
            assert!(parse(whole.as_bytes()));
            let mut taken = 0;
            for seed in 0..20_000 {
                let mut random = Random::new(seed, 0);
                let mut changed = whole.as_bytes().to_vec();
                for _ in 0..1 + random.below(4) {
                    let (at, byte) = (random.below(changed.len()), BYTES[random.below(BYTES.len())]);
                    match random.below(3) {
                        0 => changed.insert(at, byte),
                        1 => _ = changed.remove(at),
                        _ => changed[at] = byte,
                    }
                }
                taken += u32::from(parse(&changed));
            }
            assert!((100..19_000).contains(&taken), "{taken}");
        }
    }
}
