//! The figures of one device's pool and of the whole allocator.

use std::sync::atomic::Ordering;

use crate::device::{DeviceAddress, DeviceId, DeviceMask};
use crate::hash::StateHash;

use super::pool::{BlockView, PoolCounters};
use super::{Allocator, DeviceBudget};

/// The figures of one device's pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// The most that live blocks may take, in bytes.
    pub budget_bytes: u64,
    /// Bytes of live blocks, rounded up to 256 each.
    pub used_bytes: u64,
    /// Bytes that the owners of live blocks asked for.
    pub requested_bytes: u64,
    /// The most that `used_bytes` ever was.
    pub peak_used_bytes: u64,
    /// The most that `requested_bytes` ever was.
    pub peak_requested_bytes: u64,
    /// Bytes taken from the driver.
    pub reserved_bytes: u64,
    /// The most that `reserved_bytes` ever was.
    pub peak_reserved_bytes: u64,
    /// The largest request that would be granted without freeing anything, in bytes.
    pub largest_free_bytes: u64,
    /// Live blocks.
    pub live_blocks: u64,
    /// Requests granted so far.
    pub allocations: u64,
    /// Blocks given back so far.
    pub frees: u64,
    /// Requests that this device could not take so far.
    pub refusals: u64,
    /// Exact counts of the bookkeeping work.
    pub counters: PoolCounters,
}

impl PoolStats {
    #[inline]
    pub(super) fn allocated(&mut self, bytes: u64, requested_bytes: u64) {
        self.allocations += 1;
        self.live_blocks += 1;
        self.used_bytes += bytes;
        self.requested_bytes += requested_bytes;
        self.peak_used_bytes = self.peak_used_bytes.max(self.used_bytes);
        self.peak_requested_bytes = self.peak_requested_bytes.max(self.requested_bytes);
    }

    #[inline]
    pub(super) fn freed(&mut self, bytes: u64, requested_bytes: u64) {
        self.frees += 1;
        self.live_blocks -= 1;
        self.used_bytes -= bytes;
        self.requested_bytes -= requested_bytes;
    }

    pub(super) fn reserved(&mut self, bytes: u64) {
        self.reserved_bytes = bytes;
        self.peak_reserved_bytes = self.peak_reserved_bytes.max(bytes);
    }
}

/// A part of a device's pool that lies in one piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolRange {
    /// Where it begins in the pool, in bytes.
    pub offset_bytes: u64,
    /// Where it begins on the device.
    pub address: DeviceAddress,
    /// Its length, in bytes; not all of it need be backed by memory.
    pub bytes: u64,
}

/// The figures of the whole allocator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllocatorReport {
    /// Each device's pool, in the order of [`DeviceId`].
    pub devices: Vec<(DeviceId, PoolStats)>,
    /// Requests of whose hint no device exists, tried on any device: granted or not.
    pub orphaned_hints: u64,
    /// Requests granted on a later rung of a ladder than the first.
    pub relaxed: u64,
    /// Requests refused.
    pub refusals: u64,
    /// A hash of all live blocks and their places.
    pub state_hash: u64,
}

impl Allocator {
    /// The figures of one device; `None` for a device that does not exist or is excluded.
    #[must_use]
    pub fn stats(&self, device: DeviceId) -> Option<PoolStats> {
        self.lock(device).map(|(device, arena)| PoolStats {
            refusals: device.gauge.refusals().0,
            ..arena.snapshot()
        })
    }

    /// Budgets that give another allocator the same room as this one, whatever is free then.
    #[must_use]
    pub fn budgets(&self) -> Vec<DeviceBudget> {
        let budgets = self.devices.iter().map(|device| DeviceBudget {
            configured_bytes: Some(device.budget_bytes),
            reserve_bytes: 0,
        });
        budgets.collect()
    }

    /// Requests refused so far.
    #[must_use]
    pub fn refusals(&self) -> u64 {
        let ended: u64 = self
            .devices
            .iter()
            .map(|device| device.gauge.refusals().1)
            .sum();
        ended + self.unplaced.load(Ordering::Relaxed)
    }

    /// The figures of all devices.
    #[must_use]
    pub fn report(&self) -> AllocatorReport {
        let ids = DeviceMask::first(self.devices.len());
        AllocatorReport {
            devices: ids
                .iter()
                .map(|id| (id, self.stats(id).unwrap_or_default()))
                .collect(),
            orphaned_hints: self.orphaned.load(Ordering::Relaxed),
            relaxed: self.relaxed.load(Ordering::Relaxed),
            refusals: self.refusals(),
            state_hash: self.state_hash(),
        }
    }

    /// The blocks of one device in address order; empty for an excluded device.
    #[must_use]
    pub fn blocks(&self, device: DeviceId) -> Vec<BlockView> {
        self.lock(device)
            .map(|(_, arena)| arena.pool().blocks().collect())
            .unwrap_or_default()
    }

    /// Where one device's pool lies, in the order of offsets: one range where the driver maps
    /// pages, else one per slab; empty for an excluded device.
    #[must_use]
    pub fn ranges(&self, device: DeviceId) -> Vec<PoolRange> {
        self.lock(device)
            .map_or_else(Vec::new, |(_, arena)| arena.ranges())
    }

    /// A hash of all live blocks and their places, equal for equal histories on every backend.
    #[must_use]
    pub fn state_hash(&self) -> u64 {
        let mut hash = StateHash::default();
        for id in DeviceMask::first(self.devices.len()).iter() {
            hash.word(id.index() as u64);
            if let Some((_, arena)) = self.lock(id) {
                arena.hash_into(&mut hash);
            }
        }
        hash.finish()
    }

    /// Checks the books of every device.
    ///
    /// # Errors
    /// A sentence that names the device and the invariant that is broken.
    pub fn check(&self) -> Result<(), String> {
        for id in DeviceMask::first(self.devices.len()).iter() {
            if let Some((_, arena)) = self.lock(id) {
                arena
                    .pool()
                    .check()
                    .map_err(|broken| format!("{id}: {broken}"))?;
            }
        }
        Ok(())
    }
}
