//! Any bytes give a frame, a message, a key or an error.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ds4_harness_fuzz::tp_frames::check(bytes));
