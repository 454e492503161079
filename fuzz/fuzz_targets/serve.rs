//! Any bytes as a VMM's message, and as the configuration of a snapshot.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    pagoda_serve::fuzzing::message(input);
    pagoda_serve::fuzzing::config(input);
});
