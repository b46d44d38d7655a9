//! The clock that sessions are told.

use std::time::{Duration, Instant};

use crate::tp::time::Time;

/// Nanoseconds since it was made.
#[derive(Clone, Copy, Debug)]
pub struct Clock(Instant);

impl Clock {
    /// A clock that begins now.
    #[must_use]
    #[expect(
        clippy::disallowed_methods,
        reason = "the one clock of the connections; sessions are told the time"
    )]
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// The time.
    #[must_use]
    pub fn now(&self) -> Time {
        Time(u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// How long until a time, but no longer than `most`.
    pub(super) fn until(&self, due: Time, most: Duration) -> Duration {
        Duration::from_nanos(due.since(self.now())).min(most)
    }
}
