//! Memory as slabs from the driver, for devices that cannot map pages.

use crate::backend::{Backend, BackendError};
use crate::bytes::align_up;
use crate::device::{DeviceAddress, DeviceId};

use super::super::pool::UNIT_BYTES;
use super::super::report::PoolRange;
use super::super::request::MAX_ALIGN_BYTES;

/// What a slab loses so that its start can be aligned, in bytes.
///
/// It is lost wherever the driver puts the slab: no decision may depend on an address.
const ALIGNMENT_LOSS_BYTES: u64 = MAX_ALIGN_BYTES - UNIT_BYTES;

/// What a slab of `bytes` holds, in bytes.
///
/// Slabs hold multiples of the largest alignment, so that offsets in later ones are aligned too.
pub(super) fn usable_bytes(bytes: u64) -> u64 {
    bytes.saturating_sub(ALIGNMENT_LOSS_BYTES) & !(MAX_ALIGN_BYTES - 1)
}

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
    /// Slabs take whole granules, because the device loses whole ones.
    granularity_bytes: u64,
    slabs: Vec<Slab>,
}

impl Slabs {
    pub(super) fn new(device: DeviceId, budget_bytes: u64, granularity_bytes: u64) -> Self {
        Self {
            device,
            budget_bytes,
            granularity_bytes,
            slabs: Vec::new(),
        }
    }

    pub(super) fn reserved_bytes(&self) -> u64 {
        self.slabs.iter().map(|slab| slab.bytes).sum()
    }

    /// The bytes of the driver for a slab that holds `need_bytes`.
    pub(super) fn slab_bytes(&self, need_bytes: u64) -> u64 {
        let bytes = need_bytes.next_multiple_of(MAX_ALIGN_BYTES) + ALIGNMENT_LOSS_BYTES;
        bytes.next_multiple_of(self.granularity_bytes)
    }

    /// What the budget leaves for more slabs, in bytes.
    pub(super) fn left_bytes(&self) -> u64 {
        let left_bytes = self.budget_bytes.saturating_sub(self.reserved_bytes());
        left_bytes & !(self.granularity_bytes - 1)
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
    /// Returns the units that it holds, `Ok(None)` when the budget has no room for `need_units`.
    pub(super) fn grow(
        &mut self,
        backend: &dyn Backend,
        offset: u32,
        need_units: u32,
    ) -> Result<Option<u32>, BackendError> {
        let need_bytes = self.slab_bytes(u64::from(need_units) * UNIT_BYTES);
        let left_bytes = self.left_bytes();
        let mut bytes = self.slab_bytes(usable_bytes(left_bytes));
        if bytes < need_bytes || left_bytes < need_bytes {
            return Ok(None);
        }
        loop {
            match backend.allocate(self.device, bytes) {
                Ok(address) => return Ok(Some(self.adopt(address, bytes, offset))),
                Err(BackendError::OutOfMemory { .. }) if bytes > need_bytes => {
                    let half_bytes = self.slab_bytes(usable_bytes(bytes) / 2);
                    // Rounded up to a large granularity, half may be no less than the whole.
                    let less_bytes = bytes - self.granularity_bytes;
                    bytes = half_bytes.min(less_bytes).max(need_bytes);
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn adopt(&mut self, address: DeviceAddress, bytes: u64, offset: u32) -> u32 {
        // Drivers align to 256 bytes or more, so that the loss covers the distance.
        let start = align_up(address.0, MAX_ALIGN_BYTES).unwrap_or(address.0);
        let usable = usable_bytes(bytes) / UNIT_BYTES;
        let units = u32::try_from(usable).unwrap_or(u32::MAX);
        self.slabs.push(Slab {
            address,
            start: DeviceAddress(start),
            offset,
            units,
            bytes,
        });
        units
    }

    /// How many slabs at the end must go so that the others take at most `most_bytes`.
    pub(super) fn excess(&self, most_bytes: u64) -> usize {
        let mut kept_bytes = self.reserved_bytes();
        let last_first = self.slabs.iter().rev();
        last_first
            .take_while(|slab| {
                let excess = kept_bytes > most_bytes;
                kept_bytes -= slab.bytes;
                excess
            })
            .count()
    }

    /// The units that the last slab holds.
    pub(super) fn last_units(&self) -> Option<u32> {
        self.slabs.last().map(|slab| slab.units)
    }

    /// Gives the last slab back to the driver; it stays if the driver fails.
    pub(super) fn drop_last(&mut self, backend: &dyn Backend) -> Result<(), BackendError> {
        if let Some(slab) = self.slabs.last() {
            backend.free(self.device, slab.address)?;
            self.slabs.pop();
        }
        Ok(())
    }

    /// Gives everything back that can be; the first error says that something could not.
    pub(super) fn release(&mut self, backend: &dyn Backend) -> Result<(), BackendError> {
        let mut failed = Ok(());
        for slab in self.slabs.drain(..) {
            failed = failed.and(backend.free(self.device, slab.address));
        }
        failed
    }

    pub(super) fn ranges(&self) -> Vec<PoolRange> {
        let ranges = self.slabs.iter().map(|slab| PoolRange {
            offset_bytes: u64::from(slab.offset) * UNIT_BYTES,
            address: slab.start,
            bytes: u64::from(slab.units) * UNIT_BYTES,
        });
        ranges.collect()
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
