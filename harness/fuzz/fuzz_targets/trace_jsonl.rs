//! Any bytes give a trace or an error, within the limits, and every id of a trace is in range.
#![no_main]

use ds4_harness::trace::{ReadLimits, TraceFormat, read_bytes_as};

const LIMITS: ReadLimits = ReadLimits {
    max_bytes: 1 << 20,
    max_line_bytes: 4 << 10,
    max_events: 10_000,
    max_pickle_items: 100_000,
};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(trace) = read_bytes_as(TraceFormat::Jsonl, bytes, "fuzz", &LIMITS) {
        assert!(trace.events.iter().all(|event| event.id < trace.blocks));
    }
});
