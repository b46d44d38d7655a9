//! Faults at work: what a plan does to the calls of a machine, simulated or wrapped.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ds4_engine::backend::{BackendError, OomOrigin};
use ds4_engine::device::DeviceId;

use crate::call::Call;
use crate::fault::{FaultCount, FaultKind, FaultPlan, FaultState, Firing};
use crate::input::InputError;

/// The plan of a machine, with its counts.
#[derive(Debug, Default)]
pub(crate) struct Injector {
    /// Lets calls skip the lock while there are no faults.
    active: AtomicBool,
    faults: Mutex<FaultState>,
}

/// What faults do to a call that goes on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Effects {
    /// For the call or its stream work, in nanoseconds.
    pub(crate) delay_ns: u64,
    /// The draw that places a flipped bit.
    pub(crate) flip: Option<u64>,
}

/// A device, as faults see it.
pub(crate) trait Victim {
    fn id(&self) -> DeviceId;

    /// The device is gone for good, for this reason.
    fn lose(&mut self, detail: String);

    /// Another process takes up to `bytes`; returns how much it got.
    fn take(&mut self, bytes: u64) -> u64;

    /// That process gives up to `bytes` back; returns how much.
    fn give_back(&mut self, bytes: u64) -> u64;

    /// Memory for `bytes` vanishes, as far as there is some.
    fn keep(&mut self, bytes: u64);
}

impl Injector {
    /// Starts a plan in place of the one before, on a machine of `device_count` devices.
    pub(crate) fn set(&self, plan: FaultPlan, device_count: usize) -> Result<(), InputError> {
        plan.check_devices(device_count)?;
        let active = !plan.faults.is_empty();
        *self.faults() = FaultState::new(plan);
        self.active.store(active, Ordering::Release);
        Ok(())
    }

    /// Ends the plan and returns what became of it.
    pub(crate) fn clear(&self) -> Vec<FaultCount> {
        self.active.store(false, Ordering::Release);
        std::mem::take(&mut *self.faults()).report()
    }

    pub(crate) fn report(&self) -> Vec<FaultCount> {
        self.faults().report()
    }

    pub(crate) fn is_active(&self) -> bool {
        self.active.load(Ordering::Acquire)
    }

    /// Lets a call about `bytes` bytes meet the faults that match it.
    pub(crate) fn meet(
        &self,
        victim: &mut impl Victim,
        call: Call,
        bytes: u64,
    ) -> Result<Effects, BackendError> {
        let firings = self.faults().consult(victim.id(), call, bytes);
        let mut effects = Effects::default();
        for firing in firings {
            strike(victim, call, bytes, firing, &mut effects)?;
        }
        Ok(effects)
    }

    fn faults(&self) -> MutexGuard<'_, FaultState> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn strike(
    victim: &mut impl Victim,
    call: Call,
    bytes: u64,
    Firing { entry, kind, draw }: Firing,
    effects: &mut Effects,
) -> Result<(), BackendError> {
    let (device, driver_call) = (victim.id(), call.driver_name());
    let oom = || BackendError::OutOfMemory {
        device,
        call: driver_call,
        asked_bytes: bytes,
        origin: OomOrigin::Injected { entry },
    };
    let lost = match kind {
        FaultKind::Oom => return Err(oom()),
        FaultKind::OomKeep => {
            victim.keep(bytes);
            return Err(oom());
        }
        FaultKind::Fail => {
            return Err(BackendError::Driver {
                device,
                call: driver_call,
                detail: format!("unknown error 999 (injected by fault {entry})"),
            });
        }
        FaultKind::Sticky => Some(format!(
            "the context is poisoned by an illegal address, error 700 (injected by fault {entry})"
        )),
        FaultKind::Lost => Some(format!(
            "the GPU has fallen off the bus, error 46 (injected by fault {entry})"
        )),
        FaultKind::BitFlip => {
            effects.flip = Some(draw);
            None
        }
        FaultKind::Delay { ns } => {
            effects.delay_ns = effects.delay_ns.saturating_add(ns);
            None
        }
        FaultKind::Take { bytes } => {
            victim.take(bytes);
            None
        }
        FaultKind::Release { bytes } => {
            victim.give_back(bytes.unwrap_or(u64::MAX));
            None
        }
    };
    if let Some(detail) = &lost {
        victim.lose(detail.clone());
    }
    check_alive(device, lost.as_deref(), call)
}

/// The error of a call on a device that is lost, for the reason given.
pub(crate) fn check_alive(
    device: DeviceId,
    lost: Option<&str>,
    call: Call,
) -> Result<(), BackendError> {
    lost.map_or(Ok(()), |detail| {
        Err(BackendError::DeviceLost {
            device,
            call: call.driver_name(),
            detail: detail.to_owned(),
        })
    })
}

/// Where among `bytes` bytes a draw flips a bit, and the bit; nowhere without bytes.
pub(crate) fn flipped(draw: u64, bytes: u64) -> Option<(u64, u8)> {
    let offset = (draw >> 3).checked_rem(bytes)?;
    Some((offset, 1 << (draw & 7)))
}

/// Flips a bit of bytes that the host holds.
pub(crate) fn flip_in(data: &mut [u8], draw: u64) {
    let place = flipped(draw, data.len() as u64);
    let found = place.and_then(|(offset, bit)| {
        let byte = data.get_mut(usize::try_from(offset).ok()?)?;
        Some((byte, bit))
    });
    if let Some((byte, bit)) = found {
        *byte ^= bit;
    }
}
