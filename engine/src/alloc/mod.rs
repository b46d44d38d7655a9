//! The allocator: the only place that joins placement, pools and a backend.
//!
//! Everything that needs no device is checked here, once: sizes, alignments, masks, handles,
//! bounds. The rules:
//! - a request lands on a candidate of its hint or is refused; a refusal names each candidate's
//!   reason and changes nothing;
//! - candidates are tried in ascending memory pressure, ties by the lower [`DeviceId`];
//! - a device refuses only when no free block of it can hold the request;
//! - decisions use sizes, masks and the order of calls, never addresses, clocks or hash order.
//!
//! Each device has one lock. Pressure is read from atomics without it, so that a hint of many
//! devices does not funnel through one lock.

mod address_table;
mod arena;
mod copy;
mod error;
mod gauge;
mod observe;
mod open;
pub mod placement;
pub mod pool;
mod report;
mod request;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::backend::{Backend, BackendError};
use crate::device::{DeviceAddress, DeviceId, DeviceMask, StreamId};
use arena::{Arena, Ask};
pub use copy::{CopyError, CopyPath, CopyReport};
pub use error::{
    AllocError, CandidateRefusal, CandidateRefusals, FreeError, InitError, Refusal, RefusalCause,
    RefusalReason,
};
use gauge::Gauge;
pub use observe::{AllocatorEvent, Observer, RecordedEvent, RecordedKind, Recorder};
pub use open::{AllocatorConfig, DeviceBudget};
use placement::{Candidates, Load, OrphanPolicy, candidates, least_loaded};
pub use pool::{BlockState, BlockView, Lifetime, PoolCounters};
use pool::{MAX_UNITS, UNIT_BYTES};
pub use report::{AllocatorReport, PoolRange, PoolStats};
pub use request::{Allocation, Handle, MAX_ALIGN_BYTES, Request};

/// One device's part.
#[derive(Debug)]
struct Device {
    gauge: Gauge,
    budget_bytes: u64,
    arena: Option<Mutex<Arena>>,
}

impl Device {
    /// The device's arena; `None` for an excluded device.
    #[inline]
    fn lock(&self) -> Option<MutexGuard<'_, Arena>> {
        let arena = self.arena.as_ref()?;
        Some(arena.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether requests may name a stream, without the lock for the default one.
    #[inline]
    fn knows(&self, stream: StreamId) -> bool {
        stream == StreamId::DEFAULT || self.lock().is_some_and(|arena| arena.knows(stream))
    }
}

/// The bytes in use on a candidate that refused, and its reason.
type Refused = (u64, RefusalReason);

/// A granted request and the rung of the ladder that won.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Relaxed {
    /// The granted request.
    pub allocation: Allocation,
    /// 0 for the request's own mask, `i + 1` for entry `i` of the ladder.
    pub rung: usize,
}

/// An allocator over all devices of one backend.
#[derive(Debug)]
pub struct Allocator {
    id: u32,
    backend: Arc<dyn Backend>,
    devices: Vec<Device>,
    excluded: DeviceMask,
    orphans: OrphanPolicy,
    observer: Option<Arc<dyn Observer>>,
    /// Address ranges that never change, as (start, end, device).
    ranges: Vec<(u64, u64, DeviceId)>,
    warned: Mutex<BTreeSet<DeviceMask>>,
    orphaned: AtomicU64,
    relaxed: AtomicU64,
    /// Requests refused before any device was tried, or after a whole ladder.
    unplaced: AtomicU64,
}

impl Allocator {
    /// The backend below.
    #[must_use]
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    /// How many devices there are, excluded ones included.
    #[must_use]
    pub fn device_count(&self) -> usize {
        self.devices.len()
    }

    /// Grants a request on the least loaded of its candidates that can hold it.
    ///
    /// # Errors
    /// [`AllocError::ZeroSize`], [`AllocError::TooLarge`] and [`AllocError::BadAlignment`] for
    /// requests that no device could ever take; [`AllocError::Refused`] with each candidate's
    /// reason otherwise. Nothing has changed.
    #[inline]
    pub fn allocate(&self, request: &Request) -> Result<Allocation, AllocError> {
        let ask = check_request(request)?;
        let found = match candidates(
            request.mask,
            self.devices.len(),
            self.excluded,
            self.orphans,
        ) {
            Ok(found) => found,
            Err(cause) => return Err(self.refuse(request, cause)),
        };
        if found.orphaned {
            self.note_orphan(request.mask);
        }
        // Most requests are granted by their first candidate, without room for reasons.
        let Some((id, device)) = self.least_loaded(found.mask) else {
            return Err(self.refuse(request, RefusalCause::Tried(CandidateRefusals::new())));
        };
        match self.try_one(request, &ask, id, device, found.orphaned) {
            Ok(allocation) => Ok(allocation),
            Err(refused) => self.allocate_elsewhere(request, &ask, &found, (id, device), refused),
        }
    }

    /// Goes on after the first candidate refused.
    fn allocate_elsewhere(
        &self,
        request: &Request,
        ask: &Ask,
        found: &Candidates,
        (first, device): (DeviceId, &Device),
        refused: Refused,
    ) -> Result<Allocation, AllocError> {
        let rest = found.mask.without(DeviceMask::only(first));
        let mut reasons = CandidateRefusals::new();
        Self::note_refused(first, device, refused, rest.is_empty(), &mut reasons);
        match self.try_each(request, ask, rest, found.orphaned, true, &mut reasons) {
            Some(allocation) => Ok(allocation),
            None => Err(self.refuse(request, RefusalCause::Tried(reasons))),
        }
    }

    /// Tries the request's mask and then each mask of `ladder`, no device twice.
    ///
    /// # Errors
    /// As [`Allocator::allocate`]; a refusal names every device that was tried on any rung.
    pub fn allocate_relaxing(
        &self,
        request: &Request,
        ladder: &[DeviceMask],
    ) -> Result<Relaxed, AllocError> {
        let ask = check_request(request)?;
        let mut reasons = CandidateRefusals::new();
        let mut tried = DeviceMask::EMPTY;
        let mut cause = None;
        let rungs = std::iter::once(&request.mask).chain(ladder);
        for (rung, mask) in rungs.enumerate() {
            let found = match candidates(*mask, self.devices.len(), self.excluded, self.orphans) {
                Ok(found) => found,
                Err(none) => {
                    cause = cause.or(Some(none));
                    continue;
                }
            };
            if found.orphaned {
                self.note_orphan(*mask);
            }
            let fresh = found.mask.without(tried);
            tried = tried.or(fresh);
            if let Some(allocation) =
                self.try_each(request, &ask, fresh, found.orphaned, false, &mut reasons)
            {
                if rung > 0 {
                    self.relaxed.fetch_add(1, Ordering::Relaxed);
                }
                return Ok(Relaxed { allocation, rung });
            }
        }
        let cause = match cause {
            Some(cause) if reasons.is_empty() => cause,
            _ => {
                // Counted once, whatever the number of rungs.
                self.unplaced.fetch_add(1, Ordering::Relaxed);
                RefusalCause::Tried(reasons)
            }
        };
        Err(self.refuse(request, cause))
    }

    #[inline]
    fn try_each(
        &self,
        request: &Request,
        ask: &Ask,
        mask: DeviceMask,
        orphaned: bool,
        last: bool,
        reasons: &mut CandidateRefusals,
    ) -> Option<Allocation> {
        let mut rest = mask;
        while let Some((id, device)) = self.least_loaded(rest) {
            rest = rest.without(DeviceMask::only(id));
            match self.try_one(request, ask, id, device, orphaned) {
                Ok(allocation) => return Some(allocation),
                Err(refused) => {
                    Self::note_refused(id, device, refused, last && rest.is_empty(), reasons);
                }
            }
        }
        None
    }

    /// Counts a candidate's refusal and adds it to the reasons.
    #[inline]
    fn note_refused(
        id: DeviceId,
        device: &Device,
        (used_bytes, reason): Refused,
        ends: bool,
        reasons: &mut CandidateRefusals,
    ) {
        device.gauge.count_refusal(ends);
        reasons.push(CandidateRefusal {
            device: id,
            used_bytes,
            budget_bytes: device.budget_bytes,
            reason,
        });
    }

    /// Takes the request on one device.
    #[inline]
    fn try_one(
        &self,
        request: &Request,
        ask: &Ask,
        id: DeviceId,
        device: &Device,
        orphaned: bool,
    ) -> Result<Allocation, Refused> {
        let asked_bytes = u64::from(ask.units) * UNIT_BYTES;
        if let Some(largest_free_bytes) = device.gauge.refuses(asked_bytes)
            && device.knows(ask.stream)
        {
            let used_bytes = device.gauge.used_bytes();
            let over = used_bytes.saturating_add(asked_bytes) > device.budget_bytes;
            let reason = if over {
                RefusalReason::Budget
            } else {
                RefusalReason::Fragmentation { largest_free_bytes }
            };
            return Err((used_bytes, reason));
        }
        let Some(mut arena) = device.lock() else {
            return Err((0, RefusalReason::Budget));
        };
        let granted = match arena.allocate(&*self.backend, ask) {
            Ok(granted) => granted,
            Err(reason) => {
                if let Some(largest_free_bytes) = arena.sure_of(&reason, ask) {
                    device.gauge.full(asked_bytes, largest_free_bytes);
                }
                return Err((arena.used_bytes(), reason));
            }
        };
        device.gauge.taken(arena.used_bytes());
        let allocation = Allocation {
            handle: Handle {
                allocator: self.id,
                block: granted.id,
                device: id,
            },
            device: id,
            address: granted.address,
            offset_bytes: u64::from(granted.offset) * UNIT_BYTES,
            bytes: request.bytes,
            reserved_bytes: u64::from(ask.units) * UNIT_BYTES,
            orphaned,
        };
        // Told under the lock, so that observers see a block's end before its memory's next use.
        if let Some(observer) = &self.observer {
            observer.observe(&AllocatorEvent::Allocated {
                request,
                allocation: &allocation,
            });
        }
        Ok(allocation)
    }

    /// Gives a block back to the pool it came from, in the order of its stream.
    ///
    /// # Errors
    /// [`FreeError::OtherAllocator`], [`FreeError::DoubleFree`] and [`FreeError::StaleHandle`] for
    /// handles that name no live block, [`FreeError::Backend`] if the position of a further stream
    /// cannot be recorded. Nothing has changed.
    #[inline]
    pub fn free(&self, handle: Handle) -> Result<(), FreeError> {
        let (device, mut arena) = self.owner(handle)?;
        if self.observer.is_some() {
            self.free_observed(&mut arena, handle)?;
        } else {
            arena.free(&*self.backend, handle.block)?;
        }
        device.gauge.freed(arena.used_bytes());
        Ok(())
    }

    /// Gives the block that begins at `address` back, for callers that keep addresses only.
    ///
    /// # Errors
    /// [`FreeError::Null`], [`FreeError::Foreign`], [`FreeError::Interior`],
    /// [`FreeError::DoubleFree`] for an address of the pool where no block lives,
    /// [`FreeError::NoAddressTable`] without [`AllocatorConfig::free_by_address`], and
    /// [`FreeError::Backend`]. Nothing has changed.
    pub fn free_address(&self, address: DeviceAddress) -> Result<(), FreeError> {
        let id = self.device_at(address)?;
        let (device, mut arena) = self.lock(id).ok_or(FreeError::Foreign { address })?;
        if self.observer.is_some() {
            let handle = Handle {
                allocator: self.id,
                block: arena.id_at(address)?,
                device: id,
            };
            self.free_observed(&mut arena, handle)?;
        } else {
            arena.free_at(&*self.backend, address)?;
        }
        device.gauge.freed(arena.used_bytes());
        Ok(())
    }

    /// The handle of the live block that begins at `address`.
    ///
    /// # Errors
    /// As [`Allocator::free_address`].
    pub fn handle_at(&self, address: DeviceAddress) -> Result<Handle, FreeError> {
        let device = self.device_at(address)?;
        let (_, arena) = self.lock(device).ok_or(FreeError::Foreign { address })?;
        Ok(Handle {
            allocator: self.id,
            block: arena.id_at(address)?,
            device,
        })
    }

    /// Where a live block begins and the bytes that its owner asked for.
    ///
    /// # Errors
    /// As [`Allocator::free`].
    pub fn extent(&self, handle: Handle) -> Result<(DeviceAddress, u64), FreeError> {
        let (_, arena) = self.owner(handle)?;
        arena.extent(handle.block)
    }

    /// Says that a live block is used on `stream` too: after its free it waits for that stream.
    ///
    /// # Errors
    /// As [`Allocator::free`]; [`FreeError::UnknownStream`] for one that the device does not have.
    pub fn record_use(&self, handle: Handle, stream: StreamId) -> Result<(), FreeError> {
        let (_, mut arena) = self.owner(handle)?;
        if arena.record_use(handle.block, stream)? {
            return Ok(());
        }
        Err(FreeError::UnknownStream {
            device: handle.device,
            stream,
        })
    }

    /// Makes a stream on a device that requests may name.
    ///
    /// # Errors
    /// The backend's error; [`BackendError::Unsupported`] for an excluded or unknown device.
    pub fn create_stream(&self, device: DeviceId) -> Result<StreamId, BackendError> {
        let Some((_, mut arena)) = self.lock(device) else {
            return Err(BackendError::Unsupported {
                device,
                call: "create_stream",
            });
        };
        let stream = self.backend.create_stream(device)?;
        arena.register_stream(stream);
        Ok(stream)
    }

    /// Lets requests name a stream that the backend has already, such as one that it took over
    /// from somebody else; nothing happens for an excluded or unknown device.
    pub fn register_stream(&self, device: DeviceId, stream: StreamId) {
        if let Some((_, mut arena)) = self.lock(device) {
            arena.register_stream(stream);
        }
    }

    /// Waits for all work on a device and makes all freed memory reusable by every stream.
    ///
    /// # Errors
    /// The backend's error.
    pub fn synchronize(&self, device: DeviceId) -> Result<(), BackendError> {
        match self.lock(device) {
            Some((device, mut arena)) => {
                let done = arena.synchronize(&*self.backend);
                device.gauge.freed(arena.used_bytes());
                done
            }
            None => Ok(()),
        }
    }

    /// Gives memory that no block touches back to the driver; returns the bytes.
    ///
    /// # Errors
    /// The backend's first error; what was given back until then stays so.
    pub fn trim(&self) -> Result<u64, BackendError> {
        let mut bytes = 0;
        for id in DeviceMask::first(self.devices.len()).iter() {
            if let Some((device, mut arena)) = self.lock(id) {
                let trimmed = arena.trim(&*self.backend);
                device.gauge.freed(arena.used_bytes());
                bytes += trimmed?;
            }
        }
        Ok(bytes)
    }

    /// Gives all memory back to the driver and says how many blocks were still live.
    ///
    /// # Errors
    /// The backend's first error; the other devices are closed all the same.
    pub fn close(mut self) -> Result<u64, BackendError> {
        let live = self
            .report()
            .devices
            .iter()
            .map(|(_, stats)| stats.live_blocks)
            .sum();
        self.close_devices()?;
        Ok(live)
    }

    fn close_devices(&mut self) -> Result<(), BackendError> {
        let mut first_error = Ok(());
        for device in self.devices.drain(..) {
            let Some(arena) = device.arena else { continue };
            let mut arena = arena.into_inner().unwrap_or_else(PoisonError::into_inner);
            let closed = arena.close(&*self.backend);
            first_error = first_error.and(closed);
        }
        first_error
    }

    #[inline]
    fn least_loaded(&self, mask: DeviceMask) -> Option<(DeviceId, &Device)> {
        let id = least_loaded(mask, |id| self.load(id))?;
        Some((id, self.devices.get(id.index())?))
    }

    #[inline]
    fn load(&self, id: DeviceId) -> Load {
        match self.devices.get(id.index()) {
            Some(device) => Load {
                used_bytes: device.gauge.used_bytes(),
                budget_bytes: device.budget_bytes,
            },
            None => Load {
                used_bytes: 0,
                budget_bytes: 0,
            },
        }
    }

    #[inline]
    fn lock(&self, id: DeviceId) -> Option<(&Device, MutexGuard<'_, Arena>)> {
        let device = self.devices.get(id.index())?;
        Some((device, device.lock()?))
    }

    #[inline]
    fn owner(&self, handle: Handle) -> Result<(&Device, MutexGuard<'_, Arena>), FreeError> {
        if handle.allocator != self.id {
            return Err(FreeError::OtherAllocator);
        }
        self.lock(handle.device).ok_or(FreeError::OtherAllocator)
    }

    #[inline]
    fn device_at(&self, address: DeviceAddress) -> Result<DeviceId, FreeError> {
        if address.0 == 0 {
            return Err(FreeError::Null);
        }
        for (start, end, device) in &self.ranges {
            if (*start..*end).contains(&address.0) {
                return Ok(*device);
            }
        }
        DeviceMask::first(self.devices.len())
            .iter()
            .find(|id| {
                self.lock(*id)
                    .is_some_and(|(_, arena)| arena.locate(address).is_some())
            })
            .ok_or(FreeError::Foreign { address })
    }

    /// Frees a block and tells the observer once that has worked, still under the lock.
    fn free_observed(&self, arena: &mut Arena, handle: Handle) -> Result<(), FreeError> {
        let (address, bytes) = arena.extent(handle.block)?;
        let stream = arena.stream_of(handle.block)?;
        arena.free(&*self.backend, handle.block)?;
        if let Some(observer) = &self.observer {
            observer.observe(&AllocatorEvent::Freed {
                handle,
                address,
                bytes,
                stream,
            });
        }
        Ok(())
    }

    #[cold]
    fn note_orphan(&self, mask: DeviceMask) {
        self.orphaned.fetch_add(1, Ordering::Relaxed);
        let fresh = self
            .warned
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(mask);
        if fresh && let Some(observer) = &self.observer {
            let device_count = self.devices.len();
            observer.observe(&AllocatorEvent::OrphanedHint { mask, device_count });
        }
    }

    fn refuse(&self, request: &Request, cause: RefusalCause) -> AllocError {
        if !matches!(cause, RefusalCause::Tried(_)) {
            self.unplaced.fetch_add(1, Ordering::Relaxed);
        }
        let refusal = Refusal {
            bytes: request.bytes,
            mask: request.mask,
            cause,
        };
        if let Some(observer) = &self.observer {
            observer.observe(&AllocatorEvent::Refused {
                request,
                refusal: &refusal,
            });
        }
        AllocError::Refused(refusal)
    }
}

impl Drop for Allocator {
    fn drop(&mut self) {
        // A destructor has nobody to tell; `close` is there for callers who want to know.
        let _ = self.close_devices();
    }
}

#[inline]
fn check_request(request: &Request) -> Result<Ask, AllocError> {
    let Request {
        bytes,
        align_bytes,
        stream,
        lifetime,
        ..
    } = *request;
    if bytes == 0 {
        return Err(AllocError::ZeroSize);
    }
    if bytes > crate::bytes::MAX_BYTES {
        return Err(AllocError::TooLarge { bytes });
    }
    if !align_bytes.is_power_of_two() || align_bytes > MAX_ALIGN_BYTES {
        return Err(AllocError::BadAlignment { align_bytes });
    }
    // No pool is larger than MAX_UNITS, so a request of more units is refused like any other.
    let units = u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(MAX_UNITS + 1);
    let slack_bytes = bytes.wrapping_neg() % UNIT_BYTES;
    #[expect(
        clippy::cast_possible_truncation,
        reason = "below 256, and at most 2 MiB / 256"
    )]
    let (slack_bytes, align_units) = (slack_bytes as u32, align_bytes.div_ceil(UNIT_BYTES) as u32);
    Ok(Ask {
        units,
        slack_bytes,
        align_units,
        stream,
        lifetime,
    })
}
