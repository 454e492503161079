//! Any bytes as an image file, and as a migration file of QEMU's.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let path = std::env::temp_dir().join(format!("pagoda-fuzz-{}", std::process::id()));
    pagoda_image::fuzzing::image(input, &path);
    pagoda_image::fuzzing::mapped_ram(input, &path);
});
