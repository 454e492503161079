//! Any bytes as the answers of a server that has an image.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let _ = pagoda_remote::fuzzing::remote(input);
});
