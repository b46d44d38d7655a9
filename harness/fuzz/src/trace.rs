//! Traces of every format.

use ds4_harness::trace::{ReadLimits, TraceFormat, read_bytes_as};

const LIMITS: ReadLimits = ReadLimits {
    max_bytes: 1 << 20,
    max_line_bytes: 4 << 10,
    max_events: 10_000,
    max_pickle_items: 100_000,
};

/// Reads them; what is read is in range.
pub fn check(format: TraceFormat, bytes: &[u8]) {
    if let Ok(trace) = read_bytes_as(format, bytes, "fuzz", &LIMITS) {
        assert!(trace.events.iter().all(|event| event.id < trace.blocks));
    }
}
