//! The one place where the harness reads a clock: to report how long work took, never to decide.

use std::time::Instant;

/// Nanoseconds since it was started.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch(Instant);

impl Stopwatch {
    /// Starts one.
    #[must_use]
    #[expect(
        clippy::disallowed_methods,
        reason = "time is reported, no decision depends on it"
    )]
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// Nanoseconds since the start.
    #[must_use]
    pub fn elapsed_ns(self) -> u64 {
        u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}
