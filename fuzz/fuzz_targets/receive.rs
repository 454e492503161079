//! Any bytes as what a sender says on a channel.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    pagoda_migrate::fuzzing::receive(input);
});
