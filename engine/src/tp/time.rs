//! Time as the driver tells it.

/// Nanoseconds of a clock that never goes back; where it began does not matter, and no two ranks
/// compare theirs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

impl Time {
    /// When the clock began.
    pub const ZERO: Self = Self(0);
    /// Never.
    pub const NEVER: Self = Self(u64::MAX);

    /// The time `ns` nanoseconds later; [`Time::NEVER`] at the end of the number range.
    #[must_use]
    pub const fn after(self, ns: u64) -> Self {
        Self(self.0.saturating_add(ns))
    }

    /// Nanoseconds since an earlier time; 0 if it is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// How long a rank waits for its peers, in nanoseconds. Each begins when its waiting does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadlines {
    /// Until all peers have connected and proved themselves.
    pub connect_ns: u64,
    /// Until every peer has said who it is, and until all have agreed on a transport.
    pub hello_ns: u64,
    /// From a gate's begin to its end.
    pub gate_ns: u64,
    /// The same for the first gate, as peers may have to load what the first token needs.
    pub first_gate_ns: u64,
    /// Added to a gate's deadline for each MiB that it carries.
    pub gate_ns_per_mib: u64,
    /// From a command to its answer: prompts are long.
    pub reply_ns: u64,
    /// The longest silence of a peer's control connection; a third of it passes between pings.
    pub idle_ns: u64,
    /// From a STOP to its answer, and for the last words of a rank that gives up.
    pub close_ns: u64,
}

impl Default for Deadlines {
    fn default() -> Self {
        const SECOND: u64 = 1_000_000_000;
        Self {
            connect_ns: 60 * SECOND,
            hello_ns: 10 * SECOND,
            gate_ns: 5 * SECOND,
            first_gate_ns: 60 * SECOND,
            gate_ns_per_mib: SECOND / 16,
            reply_ns: 600 * SECOND,
            idle_ns: 15 * SECOND,
            close_ns: 2 * SECOND,
        }
    }
}
