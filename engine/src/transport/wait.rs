//! How a rank waits: a while by looking again and again, then asleep.

use std::time::Duration;

use rustix::event::Timespec;

/// The wait policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// For so many nanoseconds without progress a rank looks again and again, which is the
    /// quickest and takes a whole core; then it sleeps until something happens.
    pub spin_ns: u64,
}

impl Wait {
    /// Sleep at once: slower by a wake-up at each gate, no processor time while idle.
    pub const BLOCK: Self = Self { spin_ns: 0 };
    /// Look for a tenth of a millisecond: longer than a gate between ranks that keep pace.
    pub const ADAPTIVE: Self = Self { spin_ns: 100_000 };
    /// Look until the deadline.
    pub const SPIN: Self = Self { spin_ns: u64::MAX };
}

impl Wait {
    /// What suits a group of so many ranks: [`Wait::ADAPTIVE`] where each of them would have a core of
    /// its own if all ran on this host, else [`Wait::BLOCK`], as who looks then keeps another from
    /// working.
    #[must_use]
    pub fn among(ranks: u32) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        if usize::try_from(ranks).is_ok_and(|ranks| ranks <= cores) {
            Self::ADAPTIVE
        } else {
            Self::BLOCK
        }
    }
}

/// A duration as the system takes it.
pub(super) fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}
