//! Running the checks of a level: one after another, no panic let through, no pass without work.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ds4_engine::backend::{Backend, BackendError};
use ds4_engine::bytes::format_bytes;
use ds4_engine::device::{DeviceId, DeviceInfo, DeviceMask, MemoryInfo};
use ds4_sim::SimBackend;
use serde_json::Value;

use super::{
    CheckId, CheckResult, Did, Ended, Health, Level, Options, Reading, Record, Run, Subject,
    Verdict,
};
use super::{bandwidth, gates, health, load, paths, soak, suites};
use crate::stopwatch::Stopwatch;

/// Checks that are made together.
pub(super) struct Group {
    pub(super) checks: &'static [CheckId],
    pub(super) body: fn(&Probe<'_>),
}

fn groups() -> impl Iterator<Item = &'static Group> {
    [
        health::GROUPS,
        paths::GROUPS,
        load::GROUPS,
        bandwidth::GROUPS,
        gates::GROUPS,
        suites::GROUPS,
        soak::GROUPS,
    ]
    .into_iter()
    .flatten()
}

/// All checks that can be asked for.
pub(super) fn checks() -> impl Iterator<Item = CheckId> {
    groups().flat_map(|group| group.checks.iter().copied())
}

/// The names of all checks.
pub fn check_names() -> impl Iterator<Item = &'static str> {
    checks().map(|check| check.name)
}

/// Made before the first load, whatever was asked for.
pub(super) const NOT_IN_USE: CheckId = CheckId {
    name: "not-in-use",
    code: "DV-1000",
    level: Level::Test,
};

/// The checks that an order of `options` makes.
pub fn asked_for(options: &Options) -> impl Iterator<Item = &'static CheckId> {
    groups()
        .flat_map(|group| group.checks)
        .filter(|check| check.level <= options.level)
        .filter(|check| {
            options.only.is_empty() || options.only.iter().any(|only| only == check.name)
        })
}

/// The level of a check.
#[must_use]
pub fn level_of(name: &str) -> Option<Level> {
    let mut checks = groups().flat_map(|group| group.checks);
    checks
        .find(|check| check.name == name)
        .map(|check| check.level)
}

/// Others may hold this part of a device's memory, 1/10, before it counts as busy: what level 1
/// takes is then taken from somebody who works.
const BUSY_PART: u64 = 10;

/// Runs the checks into `record`; a set `stop` ends the run before the next one.
pub fn run(subject: &Subject, options: &Options, record: &Record, stop: &AtomicBool) -> Run {
    record.set_origin(subject.target.origin());
    let seen = RefCell::default();
    let probe = Probe {
        subject,
        options,
        record,
        stop,
        seen: &seen,
    };
    let ended = probe.all();
    record.so_far(options.level, ended)
}

/// What a check works with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Probe<'a> {
    pub(super) subject: &'a Subject,
    pub(super) options: &'a Options,
    pub(super) stop: &'a AtomicBool,
    record: &'a Record,
    seen: &'a RefCell<BTreeMap<DeviceId, Reading<Health>>>,
}

impl Probe<'_> {
    fn all(&self) -> Option<Ended> {
        for level in [Level::Look, Level::Test, Level::Soak] {
            if level > self.options.level {
                break;
            }
            if level == Level::Test && self.busy() {
                return Some(Ended::Busy);
            }
            for group in groups() {
                let wanted = |check: &CheckId| check.level == level && self.wants(check);
                let Some(first) = group.checks.iter().find(|check| wanted(check)) else {
                    continue;
                };
                if self.stopped() {
                    return Some(Ended::Interrupted);
                }
                let ran = catch_unwind(AssertUnwindSafe(|| (group.body)(self)));
                if ran.is_err() {
                    self.tell(
                        first,
                        None,
                        Finding::error("it panicked; please report this"),
                    );
                }
            }
        }
        self.stopped().then_some(Ended::Interrupted)
    }

    fn wants(&self, check: &CheckId) -> bool {
        let only = &self.options.only;
        only.is_empty() || only.iter().any(|name| name == check.name)
    }

    pub(super) fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Whether somebody else works on a device, which the record then says, as it does of a device
    /// that does not answer.
    fn busy(&self) -> bool {
        let mut busy = false;
        for id in self.devices() {
            let memory = match self.backend().memory_info(id) {
                Ok(memory) => memory,
                Err(error) => {
                    let finding = Finding::of_error(&error);
                    self.record(&NOT_IN_USE, Some(id.to_string()), finding);
                    continue;
                }
            };
            let (held, by) = self.held_by_others(id, memory);
            if held > memory.total_bytes / BUSY_PART {
                let detail = format!(
                    "{} of {} are in use by {by}",
                    format_bytes(held),
                    format_bytes(memory.total_bytes)
                );
                let did = Did {
                    ops: 1,
                    ..Did::default()
                };
                let finding = if self.options.allow_busy {
                    Finding::warn(did, detail)
                } else {
                    busy = true;
                    let hint = "wait, choose other devices with --gpu-devices, or add --allow-busy";
                    Finding::error(&detail).hint(hint)
                };
                self.record(&NOT_IN_USE, Some(id.to_string()), finding);
            }
        }
        busy
    }

    /// How much of a device others hold, and who they are.
    pub(super) fn held_by_others(&self, id: DeviceId, memory: MemoryInfo) -> (u64, String) {
        let used = memory.total_bytes.saturating_sub(memory.free_bytes);
        match self.first_health(id).and_then(|health| health.processes) {
            Ok(processes) if !processes.is_empty() => {
                let known: Option<u64> = processes.iter().map(|process| process.bytes).sum();
                let who: Vec<String> = processes
                    .iter()
                    .map(|process| match process.bytes {
                        Some(bytes) => format!("{} ({})", process.pid, format_bytes(bytes)),
                        None => process.pid.to_string(),
                    })
                    .collect();
                let plural = if who.len() == 1 { "" } else { "es" };
                let by = format!("process{plural} {}", who.join(", "));
                (known.unwrap_or(used), by)
            }
            _ => (used, "others, or by the driver".to_owned()),
        }
    }

    pub(super) fn backend(&self) -> &dyn Backend {
        &**self.subject.target.backend()
    }

    pub(super) fn sim(&self) -> Option<&Arc<SimBackend>> {
        self.subject.target.sim()
    }

    pub(super) fn devices(&self) -> impl Iterator<Item = DeviceId> + use<> {
        DeviceMask::first(self.backend().devices().len()).iter()
    }

    /// The ordered pairs of different devices.
    pub(super) fn pairs(&self) -> impl Iterator<Item = (DeviceId, DeviceId)> + use<> {
        let all = DeviceMask::first(self.backend().devices().len());
        all.iter().flat_map(move |from| {
            all.without(DeviceMask::only(from))
                .iter()
                .map(move |to| (from, to))
        })
    }

    pub(super) fn info(&self, id: DeviceId) -> Option<&DeviceInfo> {
        self.backend().devices().get(id.index())
    }

    pub(super) fn name(&self, id: DeviceId) -> &str {
        self.info(id).map_or("", |info| info.name.as_str())
    }

    /// What the monitor said about a device when it was first asked: reading all takes a while.
    pub(super) fn first_health(&self, id: DeviceId) -> Reading<Health> {
        let mut seen = self.seen.borrow_mut();
        seen.entry(id).or_insert_with(|| self.health(id)).clone()
    }

    /// What the monitor says about a device now.
    pub(super) fn health(&self, id: DeviceId) -> Reading<Health> {
        let monitor = self.subject.monitor.as_ref().map_err(Clone::clone)?;
        let uuid = self.info(id).map_or("", |info| info.uuid.as_str());
        monitor.read(uuid)
    }

    /// How much of a device's memory a check may take: nine tenths of what is free, or less where
    /// the user says so.
    pub(super) fn quota(&self, id: DeviceId) -> Result<u64, BackendError> {
        let free = self.backend().memory_info(id)?.free_bytes;
        let sim_bytes = self.sim().map(|_| Options::SIM_MAX_BYTES);
        let own = self.options.max_bytes.or(sim_bytes);
        let budget = self.subject.budgets.get(id.index()).copied().flatten();
        let least = [own, budget]
            .into_iter()
            .flatten()
            .fold(free / 10 * 9, u64::min);
        let granule = self
            .info(id)
            .map_or(1, |info| info.granularity_bytes)
            .max(1);
        Ok(least / granule * granule)
    }

    pub(super) fn timer(&self) -> Timer {
        match self.sim() {
            Some(sim) => Timer::Virtual(Arc::clone(sim), sim.now_ns()),
            None => Timer::Wall(Stopwatch::start()),
        }
    }

    /// Records a result, unless the check was not asked for.
    pub(super) fn tell(&self, check: &CheckId, device: Option<String>, finding: Finding) {
        if self.wants(check) {
            self.record(check, device, finding);
        }
    }

    /// Records a result; a good one without work is none.
    fn record(&self, check: &CheckId, device: Option<String>, mut finding: Finding) {
        let judged = matches!(finding.verdict, Verdict::Pass | Verdict::Warn);
        if judged && finding.did.ops == 0 {
            finding.verdict = Verdict::Error;
            finding.detail = "the check did no work, so it shows nothing".to_owned();
        }
        self.record.push(CheckResult {
            check: check.name,
            code: check.code,
            device,
            level: check.level,
            verdict: finding.verdict,
            simulated: self.sim().is_some(),
            did: finding.did,
            measured: finding.measured,
            expected: finding.expected,
            source_of_expectation: finding.source,
            detail: finding.detail,
            hint: finding.hint,
        });
    }

    /// Makes a check on every device.
    pub(super) fn each(&self, check: &CheckId, body: impl Fn(DeviceId) -> Result<Finding, Stop>) {
        for id in self.devices() {
            if self.stopped() {
                return;
            }
            match body(id) {
                Ok(finding) => self.tell(check, Some(id.to_string()), finding),
                Err(Stop::Interrupted) => return,
                Err(Stop::Backend(error)) => {
                    self.tell(check, Some(id.to_string()), Finding::of_error(&error));
                }
            }
        }
    }
}

/// Why a check has no finding.
#[derive(Clone, Debug)]
pub(super) enum Stop {
    /// The user wants the run to end.
    Interrupted,
    /// A call failed.
    Backend(BackendError),
}

impl From<BackendError> for Stop {
    fn from(error: BackendError) -> Self {
        Self::Backend(error)
    }
}

/// Time since it was started: of the host, or of the simulated machine.
#[derive(Clone, Debug)]
pub(super) enum Timer {
    Wall(Stopwatch),
    Virtual(Arc<SimBackend>, u64),
}

impl Timer {
    pub(super) fn ns(&self) -> u64 {
        match self {
            Self::Wall(stopwatch) => stopwatch.elapsed_ns(),
            Self::Virtual(sim, start) => sim.now_ns().saturating_sub(*start),
        }
    }

    pub(super) fn did(&self, bytes: u64, ops: u64) -> Did {
        Did {
            bytes,
            ops,
            ms: milliseconds(self.ns()),
        }
    }
}

/// Nanoseconds as milliseconds with three digits.
#[expect(
    clippy::cast_precision_loss,
    reason = "exact to the microsecond for 285 years"
)]
pub(super) fn milliseconds(ns: u64) -> f64 {
    (ns / 1000) as f64 / 1000.0
}

/// What a check has to say.
#[derive(Clone, Debug)]
pub(super) struct Finding {
    pub(super) verdict: Verdict,
    pub(super) did: Did,
    measured: Value,
    expected: Option<String>,
    source: Option<String>,
    pub(super) detail: String,
    hint: Option<String>,
}

impl Finding {
    pub(super) fn new(verdict: Verdict, did: Did, detail: impl Into<String>) -> Self {
        Self {
            verdict,
            did,
            measured: Value::Null,
            expected: None,
            source: None,
            detail: detail.into(),
            hint: None,
        }
    }

    pub(super) fn pass(did: Did, detail: impl Into<String>) -> Self {
        Self::new(Verdict::Pass, did, detail)
    }

    pub(super) fn warn(did: Did, detail: impl Into<String>) -> Self {
        Self::new(Verdict::Warn, did, detail)
    }

    pub(super) fn fail(did: Did, detail: impl Into<String>) -> Self {
        Self::new(Verdict::Fail, did, detail)
    }

    pub(super) fn skip(why: &str) -> Self {
        Self::new(Verdict::Skip, Did::default(), why)
    }

    pub(super) fn error(why: &str) -> Self {
        Self::new(Verdict::Error, Did::default(), why)
    }

    /// The device is gone: a failure. It cannot do this: a skip. Anything else: not measured.
    pub(super) fn of_error(error: &BackendError) -> Self {
        let verdict = match error {
            BackendError::DeviceLost { .. } => Verdict::Fail,
            BackendError::Unsupported { .. } => Verdict::Skip,
            BackendError::OutOfMemory { .. } | BackendError::Driver { .. } => Verdict::Error,
        };
        Self::new(verdict, Did::default(), error.to_string())
    }

    pub(super) fn measured(self, measured: Value) -> Self {
        Self { measured, ..self }
    }

    pub(super) fn expected(self, expected: impl Into<String>, source: impl Into<String>) -> Self {
        Self {
            expected: Some(expected.into()),
            source: Some(source.into()),
            ..self
        }
    }

    pub(super) fn hint(self, hint: &str) -> Self {
        Self {
            hint: Some(hint.to_owned()),
            ..self
        }
    }
}
