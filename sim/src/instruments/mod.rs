//! What tests do with a backend beside its calls: they count them, make them fail, take memory away
//! and watch what is held. The simulator has this built in; [`Instrumented`] adds it to any backend.

mod calls;
mod watched;
mod wrapped;

use std::fmt;

use ds4_engine::backend::BackendError;
use ds4_engine::device::{DeviceAddress, DeviceId, StreamId};

use crate::call::CallCounts;
use crate::device::Refused;
use crate::fault::{FaultCount, FaultPlan};
use crate::input::InputError;
use crate::ledger::Ledger;
use crate::machine::{SimBackend, lock};

pub use wrapped::{DeviceView, Instrumented};

/// The instruments of a backend, simulated or real.
pub trait Instruments: Send + Sync + fmt::Debug {
    /// The checker, to which the harness adds what an allocator does.
    fn ledger(&self) -> &Ledger;

    /// Calls made so far, failed ones included, over all devices; a copy between two devices
    /// counts on its source.
    fn calls(&self) -> CallCounts;

    /// Starts a fault plan in place of the one before; its counts start at zero.
    ///
    /// # Errors
    /// An [`InputError`] when the plan names devices that the machine lacks.
    fn set_faults(&self, plan: FaultPlan) -> Result<(), InputError>;

    /// Ends the fault plan and returns what became of it. Lost devices stay lost, and memory that
    /// was taken stays taken.
    fn clear_faults(&self) -> Vec<FaultCount>;

    /// What has become of each fault of the plan so far.
    fn fault_report(&self) -> Vec<FaultCount>;

    /// Another process takes up to `bytes` of a device; returns how much it got.
    fn take_memory(&self, device: DeviceId, bytes: u64) -> u64;

    /// That process gives up to `bytes` back; returns how much.
    fn give_memory(&self, device: DeviceId, bytes: u64) -> u64;

    /// Gives back on every device what `take` and `oom_keep` took.
    fn restore_memory(&self);

    /// How many streams, the default one included, and events a device has.
    fn streams_and_events(&self, device: DeviceId) -> (usize, usize);

    /// The streams that were made on a device and not removed, by their numbers.
    fn streams(&self, device: DeviceId) -> Vec<StreamId>;

    /// Work of a stream that writes `bytes` bytes at `address`: it stands for a kernel, is no call
    /// and meets no faults. It takes `duration_ns` where time is virtual; elsewhere it takes what
    /// it takes, and sets the bytes to some value.
    ///
    /// # Errors
    /// [`BackendError::Driver`] when there is no such device or stream, or the range is not in
    /// live, mapped memory, and [`BackendError::DeviceLost`].
    fn touch(
        &self,
        device: DeviceId,
        stream: StreamId,
        address: DeviceAddress,
        bytes: u64,
        duration_ns: u64,
    ) -> Result<(), BackendError>;
}

impl Instruments for SimBackend {
    fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    fn calls(&self) -> CallCounts {
        let mut sum = CallCounts::default();
        for device in &self.devices {
            sum.add(&lock(device).calls);
        }
        sum
    }

    fn set_faults(&self, plan: FaultPlan) -> Result<(), InputError> {
        self.injector.set(plan, self.devices.len())
    }

    fn clear_faults(&self) -> Vec<FaultCount> {
        self.injector.clear()
    }

    fn fault_report(&self) -> Vec<FaultCount> {
        self.injector.report()
    }

    fn take_memory(&self, device: DeviceId, bytes: u64) -> u64 {
        let state = self.devices.get(device.index());
        state.map_or(0, |state| lock(state).take(bytes))
    }

    fn give_memory(&self, device: DeviceId, bytes: u64) -> u64 {
        let state = self.devices.get(device.index());
        state.map_or(0, |state| lock(state).give_back(bytes))
    }

    fn restore_memory(&self) {
        for device in &self.devices {
            lock(device).restore();
        }
    }

    fn streams_and_events(&self, device: DeviceId) -> (usize, usize) {
        self.devices.get(device.index()).map_or((0, 0), |state| {
            let state = lock(state);
            let (streams, events) = state.streams.numbers();
            (streams.count(), events.count())
        })
    }

    fn streams(&self, device: DeviceId) -> Vec<StreamId> {
        let state = self.devices.get(device.index());
        state.map_or_else(Vec::new, |state| {
            let state = lock(state);
            let (streams, _) = state.streams.numbers();
            let made = streams.map(StreamId);
            made.filter(|stream| *stream != StreamId::DEFAULT).collect()
        })
    }

    fn touch(
        &self,
        device: DeviceId,
        stream: StreamId,
        address: DeviceAddress,
        bytes: u64,
        duration_ns: u64,
    ) -> Result<(), BackendError> {
        let call = "cuLaunchKernel";
        let mut state = self.state(device, call)?;
        if let Some(detail) = &state.lost {
            return Err(BackendError::DeviceLost {
                device,
                call,
                detail: detail.clone(),
            });
        }
        let result = self.enqueue(
            &mut state,
            stream,
            duration_ns,
            "touch",
            &[(address.0, bytes, true)],
        );
        result.map(|_| ()).map_err(|refused| match refused {
            Refused::Misuse(detail) | Refused::Driver(detail) => BackendError::Driver {
                device,
                call,
                detail,
            },
            Refused::OutOfMemory | Refused::Unsupported => {
                BackendError::Unsupported { device, call }
            }
        })
    }
}
