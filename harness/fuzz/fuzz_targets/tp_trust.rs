//! No bytes prove a key that their sender does not have.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ds4_harness_fuzz::tp_trust::check(bytes));
