//! A session under any bytes and any calls keeps its promises.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ds4_harness_fuzz::tp_session::check(bytes));
