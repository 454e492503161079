//! Any bytes as what somebody else has packed.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    pagoda_migrate::fuzzing::unpack(input);
});
