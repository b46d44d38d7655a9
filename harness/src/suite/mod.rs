//! The conformance suites: one body of checks over the allocator, run on every backend.

use std::fmt;

use serde::Serialize;

/// A group of checks that users can ask for by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Suite {
    /// Hints, order, orphans, exclusion, ownership.
    Placement,
    /// Refusals that are right, complete and change nothing.
    Refusal,
    /// Success after a refusal: by freeing, by relaxing, by waiting.
    Recovery,
    /// Equal operations give equal results.
    Determinism,
    /// Every backend call fails once, transiently and persistently.
    OomLoop,
    /// Random operations under random faults, then without.
    Faults,
}

impl Suite {
    /// All suites, in the order in which they run.
    pub const ALL: [Self; 6] = [
        Self::Placement,
        Self::Refusal,
        Self::Recovery,
        Self::Determinism,
        Self::OomLoop,
        Self::Faults,
    ];

    /// The name users give it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Placement => "placement",
            Self::Refusal => "refusal",
            Self::Recovery => "recovery",
            Self::Determinism => "determinism",
            Self::OomLoop => "oom-loop",
            Self::Faults => "faults",
        }
    }

    /// The suite of a name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|suite| suite.name() == name)
    }
}

impl fmt::Display for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a check found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// It holds, and work was done to show it.
    Pass,
    /// It cannot be shown on this machine, for the reason in the detail.
    Skip,
    /// It does not hold.
    Fail,
    /// The check itself could not run.
    Error,
}
