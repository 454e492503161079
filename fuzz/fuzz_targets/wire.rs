//! Any bytes as the messages and headers of either side.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    pagoda_migrate::fuzzing::wire(input);
});
