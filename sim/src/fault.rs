#![doc = include_str!("../FAULTS.md")]

use ds4_engine::device::{DeviceId, DeviceMask, MAX_DEVICES};

use crate::call::{Call, CallSet};
use crate::input::InputError;

/// What a fault does to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// Reports out of memory; nothing has changed.
    Oom,
    /// Reports out of memory, and the memory is gone nevertheless.
    OomKeep,
    /// The device is gone for good.
    Lost,
    /// The context is poisoned for good.
    Sticky,
    /// An error of the driver, once for each firing.
    Fail,
    /// One bit of the bytes that a copy moved or a kernel wrote is wrong.
    BitFlip,
    /// The call or its stream work takes longer.
    Delay {
        /// How much longer, in nanoseconds.
        ns: u64,
    },
    /// Another process takes memory.
    Take {
        /// How much, in bytes; less when less is free.
        bytes: u64,
    },
    /// That process gives memory back.
    Release {
        /// How much, in bytes; `None` is everything it took.
        bytes: Option<u64>,
    },
}

impl FaultKind {
    /// The name that plans use.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Oom => "oom",
            Self::OomKeep => "oom_keep",
            Self::Lost => "lost",
            Self::Sticky => "sticky",
            Self::Fail => "fail",
            Self::BitFlip => "bit_flip",
            Self::Delay { .. } => "delay",
            Self::Take { .. } => "take",
            Self::Release { .. } => "release",
        }
    }

    pub(crate) fn applies_to(self) -> CallSet {
        match self {
            Self::Oom => CallSet::of(&[
                Call::Allocate,
                Call::CreatePage,
                Call::Reserve,
                Call::Map,
                Call::CreateStream,
                Call::RecordEvent,
            ]),
            Self::OomKeep => CallSet::of(&[Call::Allocate, Call::CreatePage]),
            Self::BitFlip => CallSet::of(&[
                Call::Write,
                Call::Read,
                Call::CopyLocal,
                Call::CopyPeer,
                Call::Launch,
            ]),
            Self::Lost
            | Self::Sticky
            | Self::Fail
            | Self::Delay { .. }
            | Self::Take { .. }
            | Self::Release { .. } => CallSet::ALL,
        }
    }

    /// Whether the call itself is refused.
    fn ends_call(self) -> bool {
        matches!(
            self,
            Self::Oom | Self::OomKeep | Self::Lost | Self::Sticky | Self::Fail
        )
    }
}

/// One fault of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub(crate) calls: CallSet,
    pub(crate) device: Option<DeviceId>,
    pub(crate) devices: DeviceMask,
    pub(crate) min_bytes: u64,
    /// Fires when a draw from all 64-bit numbers is below; `None` is always.
    pub(crate) chance: Option<u64>,
    pub(crate) skip: u64,
    /// `None` is persistent.
    pub(crate) count: Option<u64>,
    /// What it does.
    pub kind: FaultKind,
}

impl Fault {
    /// A fault of every call to which `kind` applies, on every device, from the first call on,
    /// persistent.
    #[must_use]
    pub fn every(kind: FaultKind) -> Self {
        Self {
            calls: kind.applies_to(),
            device: None,
            devices: DeviceMask::ALL,
            min_bytes: 0,
            chance: None,
            skip: 0,
            count: None,
            kind,
        }
    }

    /// Only at these calls; calls to which the kind does not apply never fire.
    #[must_use]
    pub fn at(self, calls: &[Call]) -> Self {
        Self {
            calls: CallSet::of(calls).and(self.kind.applies_to()),
            ..self
        }
    }

    /// Only on this device.
    #[must_use]
    pub fn on(self, device: DeviceId) -> Self {
        Self {
            device: Some(device),
            ..self
        }
    }

    /// Only calls about at least `bytes` bytes.
    #[must_use]
    pub fn min_bytes(self, bytes: u64) -> Self {
        Self {
            min_bytes: bytes,
            ..self
        }
    }

    /// Lets `skip` matches pass, then fires `count` times; `None` for ever.
    #[must_use]
    pub fn times(self, skip: u64, count: Option<u64>) -> Self {
        Self {
            skip,
            count,
            ..self
        }
    }

    fn matches(&self, device: DeviceId, call: Call, bytes: u64) -> bool {
        self.calls.contains(call)
            && self.device.is_none_or(|only| only == device)
            && self.devices.contains(device)
            && bytes >= self.min_bytes
    }
}

/// A list of faults with the seed that drives their chances.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultPlan {
    /// Drives probabilities, the swarm and the places of flipped bits.
    pub seed: u64,
    /// Whether the seed switches each fault on or off for the whole run.
    pub swarm: bool,
    /// The faults, in the order in which they are tried.
    pub faults: Vec<Fault>,
    /// What errors call the plan.
    pub(crate) file: String,
}

impl FaultPlan {
    /// A plan of these faults with seed 0.
    #[must_use]
    pub fn new(faults: Vec<Fault>) -> Self {
        Self {
            faults,
            file: "fault plan".to_owned(),
            ..Self::default()
        }
    }

    /// Fails the `n`-th call (from 1 on) to which `kind` applies, once or, when `persistent`,
    /// from then on: the step of an nth-failure loop. `n` = 0 counts as 1.
    #[must_use]
    pub fn nth(kind: FaultKind, n: u64, persistent: bool) -> Self {
        let count = if persistent { None } else { Some(1) };
        Self::new(vec![Fault::every(kind).times(n.saturating_sub(1), count)])
    }

    /// Reads a plan from a JSON file.
    ///
    /// # Errors
    /// An [`InputError`] when the file cannot be read, and as [`FaultPlan::from_json`].
    pub fn load(path: &str) -> Result<Self, InputError> {
        let json = std::fs::read(path).map_err(|error| {
            let problem = format!("the fault plan cannot be read ({error})");
            InputError::new(path, "", problem, "check the path")
        })?;
        Self::from_json(&json, path)
    }

    /// Reads a plan from JSON; `file` is what errors call it.
    ///
    /// # Errors
    /// An [`InputError`] with the line and column, or the JSON path, of what is wrong.
    pub fn from_json(json: &[u8], file: &str) -> Result<Self, InputError> {
        crate::fault_json::parse(json, file)
    }

    /// Checks that a machine of `device_count` devices has what the plan names.
    ///
    /// # Errors
    /// An [`InputError`] that names the fault.
    pub fn check_devices(&self, device_count: usize) -> Result<(), InputError> {
        let existing = DeviceMask::first(device_count.min(MAX_DEVICES));
        let range = format!(
            "the machine has devices 0 to {}",
            device_count.saturating_sub(1)
        );
        for (index, fault) in self.faults.iter().enumerate() {
            if let Some(device) = fault.device.filter(|device| !existing.contains(*device)) {
                return Err(InputError::new(
                    &self.file,
                    format!("faults[{index}].device"),
                    format!("there is no device {}", device.index()),
                    range,
                ));
            }
            if fault.devices.and(existing).is_empty() {
                return Err(InputError::new(
                    &self.file,
                    format!("faults[{index}].if.mask"),
                    format!("no device of the mask {} exists", fault.devices),
                    range,
                ));
            }
        }
        Ok(())
    }
}

/// What became of one fault of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultCount {
    /// Its index in the plan.
    pub entry: usize,
    /// What it does.
    pub kind: FaultKind,
    /// Whether the swarm left it switched on.
    pub enabled: bool,
    /// How many calls matched.
    pub matched: u64,
    /// How often it fired.
    pub fired: u64,
}

/// A fault that fired, with the draw that decides its details.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Firing {
    pub(crate) entry: usize,
    pub(crate) kind: FaultKind,
    pub(crate) draw: u64,
}

/// A plan at work.
#[derive(Debug, Default)]
pub(crate) struct FaultState {
    plan: FaultPlan,
    counts: Vec<FaultCount>,
}

impl FaultState {
    pub(crate) fn new(plan: FaultPlan) -> Self {
        let counts = plan
            .faults
            .iter()
            .enumerate()
            .map(|(entry, fault)| FaultCount {
                entry,
                kind: fault.kind,
                enabled: !plan.swarm || draw(plan.seed, entry, u64::MAX) & 1 == 1,
                matched: 0,
                fired: 0,
            })
            .collect();
        Self { plan, counts }
    }

    pub(crate) fn report(&self) -> Vec<FaultCount> {
        self.counts.clone()
    }

    /// The faults that a call meets, in order; the last one may end it.
    pub(crate) fn consult(&mut self, device: DeviceId, call: Call, bytes: u64) -> Vec<Firing> {
        let mut firings = Vec::new();
        for (fault, count) in self.plan.faults.iter().zip(&mut self.counts) {
            if !count.enabled || !fault.matches(device, call, bytes) {
                continue;
            }
            let number = count.matched;
            count.matched += 1;
            if number < fault.skip || fault.count.is_some_and(|most| count.fired >= most) {
                continue;
            }
            let chance_draw = draw(self.plan.seed, count.entry, number.wrapping_mul(2));
            if fault.chance.is_some_and(|chance| chance_draw >= chance) {
                continue;
            }
            count.fired += 1;
            let draw = draw(
                self.plan.seed,
                count.entry,
                number.wrapping_mul(2).wrapping_add(1),
            );
            firings.push(Firing {
                entry: count.entry,
                kind: fault.kind,
                draw,
            });
            if fault.kind.ends_call() {
                break;
            }
        }
        firings
    }
}

/// The `number`-th draw of a fault: a hash of its arguments (the finaliser of splitmix64), so that
/// a draw depends neither on other faults nor on draws before it.
fn draw(seed: u64, entry: usize, number: u64) -> u64 {
    mix(mix(mix(seed) ^ entry as u64) ^ number)
}

fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
#[path = "fault_tests.rs"]
mod tests;
