//! Memory as slabs from the driver, for devices that cannot map pages.

use crate::backend::{Backend, BackendError};
use crate::bytes::align_up;
use crate::device::{DeviceAddress, DeviceId};

use super::super::pool::UNIT_BYTES;
use super::super::request::MAX_ALIGN_BYTES;

#[derive(Debug)]
struct Slab {
    /// What the driver returned.
    address: DeviceAddress,
    /// The first byte that blocks use: `address` rounded up to the largest alignment.
    start: DeviceAddress,
    offset: u32,
    units: u32,
    bytes: u64,
}

/// The slabs of one device, in the order of their offsets.
#[derive(Debug)]
pub(super) struct Slabs {
    device: DeviceId,
    budget_bytes: u64,
    slabs: Vec<Slab>,
}

/// A new slab's usable part.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grown {
    pub(super) units: u32,
}

impl Slabs {
    pub(super) fn new(device: DeviceId, budget_bytes: u64) -> Self {
        Self {
            device,
            budget_bytes,
            slabs: Vec::new(),
        }
    }

    pub(super) fn reserved_bytes(&self) -> u64 {
        self.slabs.iter().map(|slab| slab.bytes).sum()
    }

    /// The largest request that more slabs could hold, in bytes; all of the budget if an empty
    /// slab could be given back.
    pub(super) fn room_bytes(&self) -> u64 {
        if self.slabs.len() > 1 {
            return self.budget_bytes;
        }
        self.budget_bytes.saturating_sub(self.reserved_bytes())
    }

    /// Takes a slab of at least `need_units` that will begin at `offset`: what is left of the
    /// budget, or half of that and so on while the driver has less.
    ///
    /// Returns `Ok(None)` when the budget has no room for `need_units`.
    pub(super) fn grow(
        &mut self,
        backend: &dyn Backend,
        offset: u32,
        need_units: u32,
    ) -> Result<Option<Grown>, BackendError> {
        let need_bytes = u64::from(need_units) * UNIT_BYTES;
        let mut bytes = self.budget_bytes.saturating_sub(self.reserved_bytes()) & !(UNIT_BYTES - 1);
        if bytes < need_bytes {
            return Ok(None);
        }
        loop {
            match backend.allocate(self.device, bytes) {
                Ok(address) => return self.adopt(backend, address, bytes, offset, need_units),
                Err(BackendError::OutOfMemory { .. }) if bytes > need_bytes => {
                    bytes = (bytes / 2).max(need_bytes) & !(UNIT_BYTES - 1);
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn adopt(
        &mut self,
        backend: &dyn Backend,
        address: DeviceAddress,
        bytes: u64,
        offset: u32,
        need_units: u32,
    ) -> Result<Option<Grown>, BackendError> {
        // Offsets are aligned, so the start must be too: decisions must not depend on addresses.
        let start = align_up(address.0, MAX_ALIGN_BYTES).unwrap_or(address.0);
        let usable = bytes.saturating_sub(start - address.0) / UNIT_BYTES;
        let units = u32::try_from(usable).unwrap_or(u32::MAX);
        if units < need_units {
            backend.free(self.device, address)?;
            return Ok(None);
        }
        self.slabs.push(Slab {
            address,
            start: DeviceAddress(start),
            offset,
            units,
            bytes,
        });
        Ok(Some(Grown { units }))
    }

    /// The last slab's usable units and all its bytes.
    pub(super) fn last(&self) -> Option<(u32, u64)> {
        self.slabs.last().map(|slab| (slab.units, slab.bytes))
    }

    /// Gives the last slab back to the driver; it leaves the list even if the driver fails,
    /// because the books no longer cover it.
    pub(super) fn drop_last(&mut self, backend: &dyn Backend) -> Result<(), BackendError> {
        match self.slabs.pop() {
            Some(slab) => backend.free(self.device, slab.address),
            None => Ok(()),
        }
    }

    pub(super) fn address(&self, offset: u32) -> Option<DeviceAddress> {
        let slab = self.slabs.iter().rev().find(|slab| slab.offset <= offset)?;
        Some(DeviceAddress(
            slab.start.0 + u64::from(offset - slab.offset) * UNIT_BYTES,
        ))
    }

    /// The offset of an address in units and the bytes past that unit's start.
    pub(super) fn locate(&self, address: DeviceAddress) -> Option<(u32, u64)> {
        self.slabs.iter().find_map(|slab| {
            let distance = address.0.checked_sub(slab.start.0)?;
            let unit = u32::try_from(distance / UNIT_BYTES)
                .ok()
                .filter(|unit| *unit < slab.units)?;
            Some((slab.offset + unit, distance % UNIT_BYTES))
        })
    }
}
