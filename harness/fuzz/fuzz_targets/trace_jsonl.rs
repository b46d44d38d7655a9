//! Any bytes give a trace or an error, within the limits, and every id of a trace is in range.
#![no_main]

use ds4_harness::trace::TraceFormat;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    ds4_harness_fuzz::trace::check(TraceFormat::Jsonl, bytes);
});
