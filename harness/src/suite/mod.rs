//! The conformance suites: one body of checks over the allocator, the kernels and the
//! ranks, run on every backend.
//!
//! A check works on worlds: an allocator over fresh devices with small, uneven budgets, watched by
//! a model of its own that trusts none of the allocator's figures. Budgets are the same on every
//! backend, and so are the state hashes. Faults and memory that other processes take come from
//! instruments around the devices; what needs virtual time is skipped on real ones, with the
//! reason.

mod campaign;
mod churn;
mod determinism;
mod draw;
mod faults;
pub mod junit;
mod kernels;
mod link;
mod model;
mod oom_loop;
mod ownership;
mod placement;
mod recovery;
mod refusal;
mod rng;
mod run;
pub mod script;
mod shrink;
mod slab;
mod streams;
mod trial;
mod world;

use std::fmt;

use serde::{Serialize, Serializer};

pub use campaign::{Replayed, replay};
pub use run::{check_names, count, run};

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
    /// Kernels against their references.
    Kernels,
    /// The memory through which ranks exchange partial results.
    Slab,
    /// Groups of ranks on simulated connections.
    Link,
}

impl Suite {
    /// All suites, in the order in which they run.
    pub const ALL: [Self; 9] = [
        Self::Placement,
        Self::Refusal,
        Self::Recovery,
        Self::Determinism,
        Self::OomLoop,
        Self::Faults,
        Self::Kernels,
        Self::Slab,
        Self::Link,
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
            Self::Kernels => "kernels",
            Self::Slab => "slab",
            Self::Link => "link",
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

impl Serialize for Suite {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.name())
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

/// Which checks to run, and how much of each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckOptions {
    /// The suites, in any order; each runs once.
    pub suites: Vec<Suite>,
    /// Drives all random choices.
    pub seed: u64,
    /// How many random histories each randomised check runs.
    pub cases: u32,
    /// The one check to run, by name.
    pub only: Option<String>,
    /// What the user named as the machine, for the commands that replay a check.
    pub topology: Option<String>,
}

impl CheckOptions {
    /// Histories per randomised check where nothing else is asked for.
    pub const DEFAULT_CASES: u32 = 256;
}

impl Default for CheckOptions {
    fn default() -> Self {
        Self {
            suites: Suite::ALL.to_vec(),
            seed: 1,
            cases: Self::DEFAULT_CASES,
            only: None,
            topology: None,
        }
    }
}

/// What became of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CheckResult {
    /// Its suite.
    pub suite: Suite,
    /// Its name: a sentence that holds when it passes.
    pub name: &'static str,
    /// What was found.
    pub verdict: Verdict,
    /// What was done, with counts.
    pub did: String,
    /// Why it did not pass; empty for a pass.
    pub detail: String,
    /// The command that runs exactly this again.
    pub repro: String,
    /// The operations that break it, shrunk, in the form that `ds4 check --replay` reads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub script: Option<script::Script>,
}

/// How many checks ended how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "each field counts the verdict of that name")]
pub struct Totals {
    pub pass: u32,
    pub fail: u32,
    pub skip: u32,
    pub error: u32,
}

impl Totals {
    pub(crate) fn count(&mut self, verdict: Verdict) {
        match verdict {
            Verdict::Pass => self.pass += 1,
            Verdict::Fail => self.fail += 1,
            Verdict::Skip => self.skip += 1,
            Verdict::Error => self.error += 1,
        }
    }

    /// All checks.
    #[must_use]
    pub fn sum(self) -> u32 {
        self.pass + self.fail + self.skip + self.error
    }
}

/// A situation that a thorough run must meet, and how often it did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Sometimes {
    /// What happened.
    pub situation: &'static str,
    /// How often.
    pub hits: u64,
}

/// A whole run of checks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CheckRun {
    /// The checks in the order in which they ran.
    pub checks: Vec<CheckResult>,
    /// The seed of all random choices.
    pub seed: u64,
    /// A hash of every world's final state: equal for equal options on every backend that runs
    /// the same checks.
    pub state_hash: String,
    /// How many ended how.
    pub totals: Totals,
    /// The situations that the run met.
    pub coverage: Vec<Sometimes>,
    /// The run was stopped before its end.
    pub incomplete: bool,
    /// How many checks that were asked for did not run to their end, if it was.
    pub not_run: usize,
}

impl CheckRun {
    /// A run of one check that draws nothing.
    #[must_use]
    pub fn of(check: CheckResult) -> Self {
        let mut totals = Totals::default();
        totals.count(check.verdict);
        Self {
            checks: vec![check],
            seed: 0,
            state_hash: String::new(),
            totals,
            coverage: Vec::new(),
            incomplete: false,
            not_run: 0,
        }
    }

    /// The worst verdict: an error outweighs a failure, since it hides one; `None` without checks.
    #[must_use]
    pub fn worst(&self) -> Option<Verdict> {
        self.checks.iter().map(|check| check.verdict).max()
    }
}
