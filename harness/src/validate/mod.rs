//! The health of devices: what was done, what was measured, and what it was held against.
//!
//! Level 0 reads and asks, and sends up to 16 MiB between devices; level 1 fills the memory and
//! times the paths; level 2 keeps every device busy for minutes. A check that did no work is an
//! error, never a pass, and a figure without an expectation is reported and not judged. Nothing of a
//! device's settings is changed.

mod bandwidth;
mod expect;
mod field;
mod gates;
mod health;
mod load;
mod monitor;
mod nvml;
mod paths;
mod render;
mod run;
mod soak;
mod suites;
#[cfg(test)]
mod tests;
pub mod watch;

use std::sync::{Arc, Mutex, PoisonError};

use ds4_engine::bytes::MIB;
use indicatif::ProgressBar;
use serde::{Serialize, Serializer};
use serde_json::Value;

use crate::exit::Exit;
use crate::target::Target;

pub use expect::{Expectations, ProfileError};
pub use monitor::{
    Ecc, EccErrors, Health, LinkErrors, LinkHealth, Monitor, Pcie, Process, Reading, RemappedRows,
    Throttle, Versions,
};
pub use nvml::open as open_nvml;
pub use render::{junit, text};
pub use run::{asked_for, check_names, level_of, run};

/// How much is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Seconds, no load but up to 16 MiB that are sent between devices.
    Look,
    /// A minute: memory and paths.
    Test,
    /// As long as asked for, all devices at once.
    Soak,
}

impl Level {
    /// The number users give it.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::Look => 0,
            Self::Test => 1,
            Self::Soak => 2,
        }
    }

    /// The level of a number.
    #[must_use]
    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            0 => Some(Self::Look),
            1 => Some(Self::Test),
            2 => Some(Self::Soak),
            _ => None,
        }
    }
}

impl Serialize for Level {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u8(self.number())
    }
}

/// What a check found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As expected.
    Pass,
    /// It works, and somebody should look at it.
    Warn,
    /// Nothing to hold it against, or this machine cannot say.
    Skip,
    /// Not as it must be.
    Fail,
    /// It could not be measured; says nothing about the device.
    Error,
}

impl Verdict {
    /// Its name.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Warn => "warn",
            Self::Skip => "skip",
            Self::Fail => "FAIL",
            Self::Error => "ERROR",
        }
    }
}

/// The work behind a verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Did {
    /// Bytes written, read or moved.
    pub bytes: u64,
    /// Readings, calls or kernels.
    pub ops: u64,
    /// Milliseconds, on a simulated machine of its own clock.
    pub ms: f64,
}

/// A check's names: one for people, one that never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckId {
    /// What users call it.
    pub name: &'static str,
    /// Stable in all releases.
    pub code: &'static str,
    /// From which level on it runs.
    pub level: Level,
}

/// One result, of a device, a pair of devices or the machine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CheckResult {
    /// The check.
    pub check: &'static str,
    /// Its stable code.
    pub code: &'static str,
    /// `gpu0`, `gpu0->gpu1`, or nothing for the machine.
    pub device: Option<String>,
    /// The level that it belongs to.
    pub level: Level,
    /// What was found.
    pub verdict: Verdict,
    /// The device is simulated: figures are no measurement.
    pub simulated: bool,
    /// What was done.
    pub did: Did,
    /// The figures, by name; units are in the names.
    pub measured: Value,
    /// What they were held against.
    pub expected: Option<String>,
    /// Who says so.
    pub source_of_expectation: Option<String>,
    /// One sentence.
    pub detail: String,
    /// What to do.
    pub hint: Option<String>,
}

/// Why a run ended before its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Ended {
    /// The deadline passed.
    Deadline,
    /// The user wanted it.
    Interrupted,
    /// Somebody else uses a device.
    Busy,
}

/// All results of a run, so far.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Run {
    /// What answered.
    pub origin: String,
    /// The level that was asked for.
    pub level: Level,
    /// The results in the order in which they came.
    pub results: Vec<CheckResult>,
    /// Whether results are missing.
    pub incomplete: bool,
    /// Why, if so.
    pub ended: Option<Ended>,
}

impl Run {
    /// How many results have a verdict.
    #[must_use]
    pub fn count(&self, verdict: Verdict) -> usize {
        let results = self.results.iter();
        results.filter(|result| result.verdict == verdict).count()
    }

    /// Why no word of any memory was tested although the level and the choice of checks ask for it;
    /// `None` if some was, or none was to be.
    #[must_use]
    pub fn untested_memory(&self) -> Option<&str> {
        let tests = |result: &&CheckResult| load::tests_memory(result.code);
        let mut memory = self.results.iter().filter(tests);
        let first = memory.next()?;
        let skipped = |result: &CheckResult| result.verdict == Verdict::Skip;
        (skipped(first) && memory.all(skipped)).then_some(first.detail.as_str())
    }

    /// The exit code.
    #[must_use]
    pub fn exit(&self) -> Exit {
        match self.ended {
            Some(Ended::Deadline) => Exit::Deadline,
            Some(Ended::Interrupted) => Exit::Interrupted,
            Some(Ended::Busy) => Exit::Busy,
            None if self.count(Verdict::Fail) + self.count(Verdict::Error) > 0 => Exit::CheckFailed,
            None if self.untested_memory().is_some() => Exit::NothingDone,
            None if self.count(Verdict::Pass) + self.count(Verdict::Warn) > 0 => Exit::Ok,
            None => Exit::NothingDone,
        }
    }
}

/// Results as they come, readable from another thread at any time.
#[derive(Clone, Debug, Default)]
pub struct Record(Arc<Mutex<Recorded>>);

#[derive(Debug, Default)]
struct Recorded {
    origin: String,
    simulated: bool,
    results: Vec<CheckResult>,
    bar: Option<ProgressBar>,
}

impl Record {
    /// Moves `bar` whenever another check has a result.
    pub fn show(&self, bar: ProgressBar) {
        self.lock().bar = Some(bar);
    }

    /// Says what answers.
    pub fn set_origin(&self, origin: String) {
        self.lock().origin = origin;
    }

    /// Says that all figures come from simulated devices, whatever answers for them.
    pub fn mark_simulated(&self) {
        self.lock().simulated = true;
    }

    /// Adds a result.
    pub fn push(&self, result: CheckResult) {
        let mut recorded = self.lock();
        let simulated = result.simulated || recorded.simulated;
        let last = recorded.results.last().map(|last| last.code);
        if let Some(bar) = &recorded.bar
            && last != Some(result.code)
        {
            bar.inc(1);
        }
        recorded.results.push(CheckResult {
            simulated,
            ..result
        });
    }

    /// What there is until now.
    #[must_use]
    pub fn so_far(&self, level: Level, ended: Option<Ended>) -> Run {
        let recorded = self.lock();
        Run {
            origin: recorded.origin.clone(),
            level,
            results: recorded.results.clone(),
            incomplete: ended.is_some(),
            ended,
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Recorded> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The highest level that runs.
    pub level: Level,
    /// Only these checks, by name; all of the level if there are none.
    pub only: Vec<String>,
    /// How long level 2 keeps the devices busy, in nanoseconds; one round at least.
    pub soak_ns: u64,
    /// The most memory that is taken of each device, in bytes.
    pub max_bytes: Option<u64>,
    /// Go on although others use a device.
    pub allow_busy: bool,
}

impl Options {
    /// The most memory that is taken of a simulated device, whose bytes are the host's.
    pub const SIM_MAX_BYTES: u64 = 256 * MIB;
}

/// The machine under test with all that is known about it.
#[derive(Debug)]
pub struct Subject {
    /// Its devices.
    pub target: Target,
    /// The most memory to take of each device, by its index, where the user said so.
    pub budgets: Vec<Option<u64>>,
    /// What watches the devices beside their driver, or why nothing does.
    pub monitor: Result<Box<dyn Monitor>, String>,
    /// What figures are held against.
    pub expectations: Expectations,
}
