//! Virtual time: it passes only because calls cost something or wait for something.

use std::sync::atomic::{AtomicU64, Ordering};

/// A clock that stands still until somebody moves it, forwards only.
#[derive(Debug, Default)]
pub(crate) struct VirtualClock(AtomicU64);

impl VirtualClock {
    /// Nanoseconds since the clock started.
    pub(crate) fn now_ns(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Moves the clock by `ns` and returns the new time; it stops at the end of the number range.
    pub(crate) fn advance(&self, ns: u64) -> u64 {
        // A wrap needs 584 simulated years or a fault plan with absurd delays; the latter exists.
        let before = self.0.fetch_add(ns, Ordering::Relaxed);
        before.checked_add(ns).unwrap_or_else(|| {
            self.0.store(u64::MAX, Ordering::Relaxed);
            u64::MAX
        })
    }

    /// Moves the clock to `ns` unless it is already later, and returns the time.
    pub(crate) fn advance_to(&self, ns: u64) -> u64 {
        self.0.fetch_max(ns, Ordering::Relaxed).max(ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn virtual_time_never_goes_back() {
        let clock = VirtualClock::default();
        assert_eq!(clock.advance(10), 10);
        assert_eq!(clock.advance_to(5), 10);
        assert_eq!(clock.advance_to(50), 50);
        assert_eq!(clock.advance(u64::MAX), u64::MAX);
        assert_eq!(clock.advance(1), u64::MAX);
        assert_eq!(clock.now_ns(), u64::MAX);
    }
}
