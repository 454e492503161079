//! Any bytes as what a server answers that has an image.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let _ = pagoda_remote::fuzzing::remote(input);
});
