//! Any backend with instruments around it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ds4_engine::backend::{Backend, BackendError, EventId, OomOrigin, PageId};
use ds4_engine::device::{DeviceAddress, DeviceId, DeviceInfo, MAX_DEVICES, StreamId};

use super::Instruments;
use super::watched::{Device, Held, Watched};
use crate::call::{Call, CallCounts};
use crate::fault::{FaultCount, FaultPlan};
use crate::injector::{Effects, Injector, Victim, check_alive, flipped};
use crate::input::InputError;
use crate::ledger::Ledger;

/// The longest that a fault delays a call where time is real.
const MOST_DELAY_NS: u64 = 1_000_000_000;
/// What a stand-in for a kernel sets bytes to.
const TOUCHED: u8 = 0xA5;

/// What is shown of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceView {
    /// Its pages, if it maps any; otherwise its memory comes in slabs.
    pub pages: bool,
    /// So much of its memory, in bytes; `None` is all of it.
    pub capacity_bytes: Option<u64>,
    /// Its direct paths from other devices, if it has any.
    pub peers: bool,
}

impl DeviceView {
    /// The device as it is.
    pub const WHOLE: Self = Self {
        pages: true,
        capacity_bytes: None,
        peers: true,
    };
}

/// A backend that counts the calls of another one, lets them meet faults, feeds a [`Ledger`] and
/// plays other processes that take memory.
///
/// It checks against books of its own what a driver would not, so that a wrong address or handle
/// is a finding and never reaches the device. Races between streams it does not see. Streams that
/// were adopted by the other backend are unknown to it. When it is dropped, it gives back all that
/// is still held through it: no fault that it played leaves anything behind.
#[derive(Debug)]
pub struct Instrumented {
    pub(super) inner: Arc<dyn Backend>,
    pub(super) infos: Vec<DeviceInfo>,
    pub(super) views: Vec<DeviceView>,
    devices: Vec<Mutex<Watched>>,
    injector: Injector,
    pub(super) ledger: Ledger,
}

impl Instrumented {
    /// Instruments around a backend, which shows all its devices as they are.
    #[must_use]
    pub fn new(inner: Arc<dyn Backend>) -> Self {
        let views = vec![DeviceView::WHOLE; inner.devices().len()];
        Self::with_views(inner, views)
    }

    /// Instruments around a backend, which shows the first devices, one for each view.
    #[must_use]
    pub fn with_views(inner: Arc<dyn Backend>, mut views: Vec<DeviceView>) -> Self {
        views.truncate(inner.devices().len().min(MAX_DEVICES));
        let shown = |(info, view): (&DeviceInfo, &DeviceView)| DeviceInfo {
            page_bytes: info.page_bytes.filter(|_| view.pages),
            total_bytes: view
                .capacity_bytes
                .map_or(info.total_bytes, |most| most.min(info.total_bytes)),
            ..info.clone()
        };
        let infos: Vec<DeviceInfo> = inner.devices().iter().zip(&views).map(shown).collect();
        let devices = (0..views.len())
            .filter_map(DeviceId::new)
            .zip(infos.iter().zip(&views))
            .map(|(id, (info, view))| Mutex::new(Watched::new(id, info, view.capacity_bytes)))
            .collect();
        Self {
            ledger: Ledger::new(views.len()),
            injector: Injector::default(),
            inner,
            infos,
            views,
            devices,
        }
    }

    /// Gives back to the wrapped backend all that is held through this one, once the work that may
    /// use it is done; returns how many of these calls failed.
    pub fn drain(&self) -> usize {
        let held: Vec<(DeviceId, Option<u64>, Held)> = self
            .devices
            .iter()
            .map(|watched| {
                let mut watched = lock(watched);
                (watched.id, watched.page_bytes, watched.take_held())
            })
            .filter(|(_, _, held)| !held.is_empty())
            .collect();
        let inner = &self.inner;
        let mut failed = 0;
        let mut count = |done: Result<(), BackendError>| failed += usize::from(done.is_err());
        for (id, _, held) in &held {
            let streams = held.streams.iter().copied().map(StreamId);
            for stream in streams.chain([StreamId::DEFAULT]) {
                count(inner.synchronize(*id, stream));
            }
        }
        for (id, _, held) in held {
            for address in held.mappings.into_keys() {
                count(inner.unmap(id, DeviceAddress(address)));
            }
            for page in held.pages.into_keys() {
                count(inner.destroy_page(id, PageId(page)));
            }
            for (base, bytes) in held.ranges {
                count(inner.release(id, DeviceAddress(base), bytes));
            }
            for address in held.allocations.into_keys() {
                count(inner.free(id, DeviceAddress(address)));
            }
            for event in held.events {
                count(inner.destroy_event(id, EventId(event)));
            }
            for stream in held.streams {
                count(inner.destroy_stream(id, StreamId(stream)));
            }
        }
        failed
    }

    /// What every call does first: it counts, and meets faults.
    pub(super) fn enter(
        &self,
        device: DeviceId,
        call: Call,
        bytes: u64,
    ) -> Result<(MutexGuard<'_, Watched>, Effects), BackendError> {
        let mut watched = self.watched(device, call)?;
        watched.calls.count(call);
        check_alive(device, watched.lost.as_deref(), call)?;
        if !self.injector.is_active() {
            return Ok((watched, Effects::default()));
        }
        let bytes = bytes.max(watched.implied_bytes(call));
        let mut victim = Device {
            watched: &mut watched,
            inner: &*self.inner,
        };
        let met = self.injector.meet(&mut victim, call, bytes);
        if watched.lost.is_some() {
            self.ledger.on_lost(device);
        }
        let effects = met?;
        if effects.delay_ns > 0 {
            drop(watched);
            pause(effects.delay_ns);
            watched = self.watched(device, call)?;
        }
        Ok((watched, effects))
    }

    /// The books on a device; `call` is what errors name.
    pub(super) fn watched(
        &self,
        device: DeviceId,
        call: Call,
    ) -> Result<MutexGuard<'_, Watched>, BackendError> {
        let found = self.devices.get(device.index()).map(lock);
        found.ok_or_else(|| BackendError::Driver {
            device,
            call: call.driver_name(),
            detail: format!("invalid device: the machine has {}", self.devices.len()),
        })
    }

    /// Passes on what the wrapped backend said; a device that it lost is lost here too.
    pub(super) fn heed<T>(
        &self,
        watched: &mut Watched,
        said: Result<T, BackendError>,
    ) -> Result<T, BackendError> {
        if let Err(BackendError::DeviceLost { device, detail, .. }) = &said
            && *device == watched.id
        {
            watched.lost = Some(detail.clone());
            self.ledger.on_lost(*device);
        }
        said
    }

    /// As [`Self::heed`], for calls that wait or run without the books locked.
    pub(super) fn heed_unlocked<T>(
        &self,
        call: Call,
        said: Result<T, BackendError>,
    ) -> Result<T, BackendError> {
        match &said {
            Err(BackendError::DeviceLost { device, .. }) => match self.watched(*device, call) {
                Ok(mut watched) => self.heed(&mut watched, said),
                Err(_) => said,
            },
            _ => said,
        }
    }

    /// The error of a call that passes what it must not pass, which is a finding.
    pub(super) fn misuse(&self, device: DeviceId, call: Call, detail: String) -> BackendError {
        self.ledger.on_misuse(device, call, &detail);
        BackendError::Driver {
            device,
            call: call.driver_name(),
            detail,
        }
    }

    /// The device that has an address, by the books.
    pub(super) fn owner(&self, address: u64) -> Option<DeviceId> {
        let owner = self
            .devices
            .iter()
            .find(|watched| lock(watched).owns(address));
        owner.map(|watched| lock(watched).id)
    }

    /// Whether the views let `from` reach the memory of `to` directly.
    pub(super) fn sees(&self, from: DeviceId, to: DeviceId) -> bool {
        let view = self.views.get(to.index());
        from.index() < self.views.len() && view.is_some_and(|view| view.peers || from == to)
    }

    /// Makes one bit wrong of what `stream` of `device` writes in memory of `owner`.
    pub(super) fn flip(
        &self,
        (device, stream): (DeviceId, StreamId),
        owner: DeviceId,
        (address, bytes): (u64, u64),
        draw: u64,
    ) -> Result<(), BackendError> {
        let Some((offset, bit)) = flipped(draw, bytes) else {
            return Ok(());
        };
        let place = DeviceAddress(address + offset);
        let mut byte = [0];
        self.inner.synchronize(device, stream)?;
        self.inner.read(owner, place, &mut byte)?;
        self.inner.write(owner, place, &[byte[0] ^ bit])
    }
}

impl Drop for Instrumented {
    fn drop(&mut self) {
        // What the device does not take back even now is lost with it; nobody is left to tell.
        self.drain();
    }
}

impl Instruments for Instrumented {
    fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    fn calls(&self) -> CallCounts {
        let mut sum = CallCounts::default();
        self.devices
            .iter()
            .for_each(|watched| sum.add(&lock(watched).calls));
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
        self.on_memory(device, |device| device.take(bytes))
    }

    fn give_memory(&self, device: DeviceId, bytes: u64) -> u64 {
        self.on_memory(device, |device| device.give_back(bytes))
    }

    fn restore_memory(&self) {
        self.devices
            .iter()
            .for_each(|watched| lock(watched).restore());
    }

    fn streams_and_events(&self, device: DeviceId) -> (usize, usize) {
        self.devices.get(device.index()).map_or((0, 0), |watched| {
            let held = &lock(watched).held;
            (held.streams.len() + 1, held.events.len())
        })
    }

    fn streams(&self, device: DeviceId) -> Vec<StreamId> {
        let watched = self.devices.get(device.index());
        watched.map_or_else(Vec::new, |watched| {
            let streams = &lock(watched).held.streams;
            streams.iter().copied().map(StreamId).collect()
        })
    }

    fn touch(
        &self,
        device: DeviceId,
        stream: StreamId,
        address: DeviceAddress,
        bytes: u64,
        _duration_ns: u64,
    ) -> Result<(), BackendError> {
        let call = Call::Launch;
        let watched = self.watched(device, call)?;
        check_alive(device, watched.lost.as_deref(), call)?;
        let wrong = |detail| BackendError::Driver {
            device,
            call: call.driver_name(),
            detail,
        };
        watched.check(device, address.0, bytes).map_err(wrong)?;
        drop(watched);
        let filled = self.inner.fill(device, address, bytes, TOUCHED, stream);
        self.heed_unlocked(call, filled)
    }
}

impl Instrumented {
    fn on_memory(&self, device: DeviceId, work: impl FnOnce(&mut Device<'_>) -> u64) -> u64 {
        self.devices.get(device.index()).map_or(0, |watched| {
            work(&mut Device {
                watched: &mut lock(watched),
                inner: &*self.inner,
            })
        })
    }
}

/// The error of memory that others took.
pub(super) fn out_of_memory(device: DeviceId, call: Call, asked_bytes: u64) -> BackendError {
    BackendError::OutOfMemory {
        device,
        call: call.driver_name(),
        asked_bytes,
        origin: OomOrigin::Driver,
    }
}

fn pause(ns: u64) {
    #[expect(
        clippy::disallowed_methods,
        reason = "nothing is waited for: a fault makes this call take longer"
    )]
    std::thread::sleep(Duration::from_nanos(ns.min(MOST_DELAY_NS)));
}

/// A panic elsewhere must not turn into panics here: the books are valid between statements.
fn lock(watched: &Mutex<Watched>) -> MutexGuard<'_, Watched> {
    watched.lock().unwrap_or_else(PoisonError::into_inner)
}
