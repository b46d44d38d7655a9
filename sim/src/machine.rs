//! The simulated machine: what tests and workloads do with it beside the backend trait.

use std::sync::{Mutex, MutexGuard, PoisonError};

use ds4_engine::backend::{BackendError, OomOrigin};
use ds4_engine::bytes::MIB;
use ds4_engine::device::{DeviceAddress, DeviceId, DeviceInfo, Ordinal, StreamId};
use ds4_engine::hash::StateHash;

use crate::call::Call;
use crate::clock::VirtualClock;
use crate::config::SimConfig;
use crate::cost;
use crate::device::{DeviceState, Refused};
use crate::held::Held;
pub(crate) use crate::injector::Effects;
use crate::injector::{Injector, Victim, check_alive};
use crate::input::InputError;
use crate::instruments::Instruments;
use crate::ledger::Ledger;

/// Copies move through host memory in parts of this many bytes.
pub(crate) const COPY_PART_BYTES: u64 = 4 * MIB;

/// A simulated machine behind the engine's backend trait.
#[derive(Debug)]
pub struct SimBackend {
    pub(crate) config: SimConfig,
    pub(crate) infos: Vec<DeviceInfo>,
    pub(crate) devices: Vec<Mutex<DeviceState>>,
    pub(crate) clock: VirtualClock,
    pub(crate) ledger: Ledger,
    pub(crate) injector: Injector,
    pub(crate) held: Held,
}

impl SimBackend {
    /// A machine as described, with nothing allocated and its clock at zero.
    ///
    /// # Errors
    /// An [`InputError`] when the description is not valid.
    pub fn new(config: SimConfig) -> Result<Self, InputError> {
        config.validate()?;
        let ids = || (0..config.devices.len()).filter_map(DeviceId::new);
        let devices = ids()
            .zip(&config.devices)
            .map(|(id, device)| Mutex::new(DeviceState::new(id, device, config.reuse_addresses)))
            .collect();
        let infos = ids().map(|id| info(&config, id)).collect();
        Ok(Self {
            infos,
            devices,
            clock: VirtualClock::default(),
            ledger: Ledger::new(config.devices.len()),
            injector: Injector::default(),
            held: Held::default(),
            config,
        })
    }

    /// What the machine consists of.
    #[must_use]
    pub fn config(&self) -> &SimConfig {
        &self.config
    }

    /// The virtual time, in simulated nanoseconds.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    /// Occupies a stream for `duration_ns` with work that touches no memory.
    ///
    /// # Errors
    /// [`BackendError::Driver`] when there is no such device or stream, and
    /// [`BackendError::DeviceLost`].
    pub fn busy(
        &self,
        device: DeviceId,
        stream: StreamId,
        duration_ns: u64,
    ) -> Result<(), BackendError> {
        self.touch(device, stream, DeviceAddress(0), 0, duration_ns)
    }

    /// A hash of every device's accounting, the same for the same calls on every machine.
    ///
    /// A refused call leaves it as it was. Left out are contents, call counts and the clock.
    #[must_use]
    pub fn state_hash(&self) -> u64 {
        let mut hash = StateHash::default();
        for device in &self.devices {
            lock(device).hash(&mut hash);
        }
        hash.finish()
    }

    /// Bytes of host memory that hold the contents of all devices.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        self.devices
            .iter()
            .map(|device| lock(device).resident_bytes())
            .sum()
    }

    /// Checks `ranges` of the stream's own device, enqueues work that touches them and notes races;
    /// returns when the work is done.
    pub(crate) fn enqueue(
        &self,
        state: &mut DeviceState,
        stream: StreamId,
        duration_ns: u64,
        call: &'static str,
        ranges: &[(u64, u64, bool)],
    ) -> Result<u64, Refused> {
        let id = state.id;
        for (address, bytes, _) in ranges {
            state.check(id, *address, *bytes)?;
        }
        let now_ns = self.now_ns();
        let DeviceState {
            streams, accesses, ..
        } = state;
        let queue = streams.get_mut(stream).ok_or_else(|| no_stream(stream))?;
        let done_ns = queue.enqueue(now_ns, duration_ns);
        for (address, bytes, writes) in ranges {
            let race = accesses.note(id, (*address, address + bytes), *writes, queue, call);
            race.into_iter().for_each(|race| self.ledger.on_race(race));
        }
        accesses.prune(now_ns);
        Ok(done_ns)
    }

    /// Locks a device; `call` is the driver function that errors name.
    pub(crate) fn state(
        &self,
        device: DeviceId,
        call: &'static str,
    ) -> Result<MutexGuard<'_, DeviceState>, BackendError> {
        self.devices
            .get(device.index())
            .map(lock)
            .ok_or_else(|| BackendError::Driver {
                device,
                call,
                detail: format!("invalid device: the machine has {}", self.devices.len()),
            })
    }

    /// Locks two different devices, in the order of their indices so that no two calls wait for
    /// each other.
    pub(crate) fn two_states(
        &self,
        one: DeviceId,
        other: DeviceId,
        call: &'static str,
    ) -> Result<(MutexGuard<'_, DeviceState>, MutexGuard<'_, DeviceState>), BackendError> {
        if one < other {
            let first = self.state(one, call)?;
            Ok((first, self.state(other, call)?))
        } else {
            let second = self.state(other, call)?;
            Ok((self.state(one, call)?, second))
        }
    }

    /// What every call does first: it counts, takes time, and meets faults.
    pub(crate) fn enter(
        &self,
        state: &mut DeviceState,
        call: Call,
        bytes: u64,
    ) -> Result<Effects, BackendError> {
        state.calls.count(call);
        self.clock.advance(cost::host_ns(call, bytes));
        self.check_alive(state, call)?;
        if !self.injector.is_active() {
            return Ok(Effects::default());
        }
        let bytes = bytes.max(state.implied_bytes(call));
        let met = self.injector.meet(state, call, bytes);
        if state.lost.is_some() {
            // What is lost does nothing more, so none of its work can race with later work.
            state.streams.see_all_done();
            self.ledger.on_lost(state.id);
        }
        let effects = met?;
        if !matches!(
            call,
            Call::Write | Call::Read | Call::Fill | Call::CopyLocal | Call::CopyPeer | Call::Launch
        ) {
            self.clock.advance(effects.delay_ns);
        }
        Ok(effects)
    }

    pub(crate) fn check_alive(&self, state: &DeviceState, call: Call) -> Result<(), BackendError> {
        check_alive(state.id, state.lost.as_deref(), call)
    }

    /// Turns a device's refusal into the error of a call, and tells the ledger of misuse.
    pub(crate) fn refuse(
        &self,
        device: DeviceId,
        call: Call,
        asked_bytes: u64,
        refused: Refused,
    ) -> BackendError {
        let driver_call = call.driver_name();
        match refused {
            Refused::OutOfMemory => BackendError::OutOfMemory {
                device,
                call: driver_call,
                asked_bytes,
                origin: OomOrigin::Driver,
            },
            Refused::Unsupported => BackendError::Unsupported {
                device,
                call: driver_call,
            },
            Refused::Driver(detail) => BackendError::Driver {
                device,
                call: driver_call,
                detail,
            },
            Refused::Misuse(detail) => {
                self.ledger.on_misuse(device, call, &detail);
                BackendError::Driver {
                    device,
                    call: driver_call,
                    detail,
                }
            }
        }
    }
}

impl Victim for DeviceState {
    fn id(&self) -> DeviceId {
        self.id
    }

    fn lose(&mut self, detail: String) {
        self.lost = Some(detail);
    }

    fn take(&mut self, bytes: u64) -> u64 {
        Self::take(self, bytes)
    }

    fn give_back(&mut self, bytes: u64) -> u64 {
        Self::give_back(self, bytes)
    }

    fn keep(&mut self, bytes: u64) {
        Self::keep(self, bytes);
    }
}

pub(crate) fn no_stream(stream: StreamId) -> Refused {
    Refused::Misuse(format!("invalid handle: there is no {stream}"))
}

/// A panic elsewhere must not turn into panics here: the state is valid between statements.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Identifiers that look like a driver's and yet are visibly simulated.
fn info(config: &SimConfig, id: DeviceId) -> DeviceInfo {
    let device = config.devices.get(id.index());
    let ordinal = config
        .ordinals
        .get(id.index())
        .copied()
        .unwrap_or(Ordinal(u32::MAX));
    let mut hash = StateHash::default();
    config.machine.bytes().for_each(|byte| {
        hash.word(u64::from(byte));
    });
    hash.word(u64::from(ordinal.0));
    let number = hash.finish();
    DeviceInfo {
        ordinal,
        name: device.map_or_else(String::new, |device| device.name.clone()),
        pci_bus_id: format!("0000:{:02x}:00.0", ordinal.0.wrapping_add(1)),
        uuid: format!(
            "SIM-{:08x}-{:04x}-{:04x}",
            number >> 32,
            number & 0xFFFF,
            ordinal.0
        ),
        total_bytes: device.map_or(0, |device| device.capacity_bytes),
        page_bytes: device.and_then(|device| device.page_bytes),
        granularity_bytes: device.map_or(0, |device| device.granularity_bytes),
    }
}
