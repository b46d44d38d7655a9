//! Setting an allocator up: budgets, exclusion, and opening every device.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::backend::Backend;
use crate::device::{DeviceId, DeviceInfo, DeviceMask, MAX_DEVICES, PeerAccess};
use crate::selection::{Budget, Selection};

use super::arena::Arena;
use super::error::InitError;
use super::gauge::Gauge;
use super::observe::Observer;
use super::placement::OrphanPolicy;
use super::pool::{UNIT_BYTES, is_granule};
use super::{Allocator, Device};

/// How much of one device the allocator may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceBudget {
    /// At most this many bytes; `None` for all that is free at the start.
    pub configured_bytes: Option<u64>,
    /// Bytes left alone for others.
    pub reserve_bytes: u64,
}

/// How an allocator is set up.
#[derive(Clone, Debug, Default)]
pub struct AllocatorConfig {
    /// Per device, in the order of [`DeviceId`]; devices past the end get the default.
    pub budgets: Vec<DeviceBudget>,
    /// Devices that are never used, not even opened.
    pub excluded: DeviceMask,
    /// What to do with a hint of which no device exists.
    pub orphans: OrphanPolicy,
    /// Keeps a table from addresses to blocks, so that [`Allocator::free_address`] works.
    pub free_by_address: bool,
    /// Told of every allocation, free, refusal and warning.
    pub observer: Option<Arc<dyn Observer>>,
}

impl AllocatorConfig {
    /// The budgets and the exclusion of a selection.
    #[must_use]
    pub fn of(selection: &Selection) -> Self {
        let budgets = selection.devices.iter().map(|device| DeviceBudget {
            configured_bytes: match device.budget {
                Budget::Auto => None,
                Budget::Bytes(bytes) => Some(bytes),
            },
            reserve_bytes: device.reserve_bytes,
        });
        Self {
            budgets: budgets.collect(),
            excluded: selection.excluded(),
            ..Self::default()
        }
    }
}

/// Numbers allocators, so that a handle of another one is recognised; no decision reads it.
static NEXT_ID: AtomicU32 = AtomicU32::new(1);

impl Allocator {
    /// Opens every device of `backend` that is not excluded.
    ///
    /// The budget of a device is the smaller of the configured bytes and those free now, less the
    /// reserve, rounded down to a page.
    ///
    /// # Errors
    /// [`InitError`]: no device or too many, a configured device that does not exist, pages in
    /// which nothing can be counted, nothing left of a device's budget, or a backend that fails.
    pub fn new(backend: Arc<dyn Backend>, config: AllocatorConfig) -> Result<Self, InitError> {
        let count = backend.devices().len();
        check_config(count, &config)?;
        // On an early return its drop closes the devices that are open already.
        let mut allocator = Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            backend,
            devices: Vec::with_capacity(count),
            excluded: config.excluded,
            orphans: config.orphans,
            observer: config.observer.clone(),
            ranges: Vec::new(),
            warned: Mutex::default(),
            orphaned: AtomicU64::new(0),
            relaxed: AtomicU64::new(0),
            unplaced: AtomicU64::new(0),
        };
        for index in 0..count {
            let Some(device) = DeviceId::new(index) else {
                continue;
            };
            if config.excluded.contains(device) {
                allocator.devices.push(Device {
                    gauge: Gauge::new(),
                    budget_bytes: 0,
                    arena: None,
                });
                continue;
            }
            let budget = config.budgets.get(index).copied().unwrap_or_default();
            let arena = open_arena(&*allocator.backend, device, budget, &config)?;
            if let Some((base, bytes)) = arena.fixed_range() {
                allocator.ranges.push((base.0, base.0 + bytes, device));
            }
            allocator.devices.push(Device {
                gauge: Gauge::new(),
                budget_bytes: arena.budget_bytes(),
                arena: Some(Mutex::new(arena)),
            });
        }
        Ok(allocator)
    }
}

fn check_config(count: usize, config: &AllocatorConfig) -> Result<(), InitError> {
    if count == 0 {
        return Err(InitError::NoDevice);
    }
    if count > MAX_DEVICES {
        return Err(InitError::TooManyDevices { count });
    }
    let unknown = config
        .excluded
        .without(DeviceMask::first(count))
        .iter()
        .next();
    let index = unknown
        .map(DeviceId::index)
        .or_else(|| (config.budgets.len() > count).then_some(count));
    match index {
        Some(index) => Err(InitError::UnknownDevice {
            index,
            device_count: count,
        }),
        None => Ok(()),
    }
}

fn open_arena(
    backend: &dyn Backend,
    device: DeviceId,
    budget: DeviceBudget,
    config: &AllocatorConfig,
) -> Result<Arena, InitError> {
    let info = backend.devices().get(device.index());
    let granule_bytes = info.map_or(Ok(UNIT_BYTES), |info| granule(device, info))?;
    let free_bytes = backend.memory_info(device)?.free_bytes;
    let bytes = budget.configured_bytes.unwrap_or(u64::MAX).min(free_bytes);
    let bytes = bytes.saturating_sub(budget.reserve_bytes);
    let Some(info) = info.filter(|_| bytes >= granule_bytes) else {
        return Err(InitError::NoBudget {
            device,
            configured_bytes: budget.configured_bytes,
            free_bytes,
            reserve_bytes: budget.reserve_bytes,
        });
    };
    let mut peers = DeviceMask::EMPTY;
    for peer in DeviceMask::first(backend.devices().len())
        .without(config.excluded)
        .iter()
    {
        if peer != device && backend.peer_access(peer, device)? == PeerAccess::Direct {
            peers = peers.or(DeviceMask::only(peer));
        }
    }
    let mut arena = Arena::open(backend, device, info, bytes, config.free_by_address)?;
    arena.set_peers(peers);
    Ok(arena)
}

/// The pieces in which a budget is counted: pages where the device has them.
fn granule(device: DeviceId, info: &DeviceInfo) -> Result<u64, InitError> {
    let bytes = info.page_bytes.unwrap_or(info.granularity_bytes);
    if !is_granule(bytes) {
        return Err(InitError::BadGranule { device, bytes });
    }
    Ok(info.page_bytes.unwrap_or(UNIT_BYTES))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Ordinal;

    fn device(page_bytes: Option<u64>, granularity_bytes: u64) -> DeviceInfo {
        DeviceInfo {
            ordinal: Ordinal(0),
            name: String::new(),
            pci_bus_id: String::new(),
            uuid: String::new(),
            total_bytes: 1 << 40,
            page_bytes,
            granularity_bytes,
        }
    }

    #[test]
    fn pages_above_4_gib_or_not_a_power_of_two_of_256_bytes_are_refused() {
        let id = DeviceId::new(0).unwrap();
        for bytes in [256, 2 << 20, 4 << 30] {
            assert_eq!(granule(id, &device(Some(bytes), 0)), Ok(bytes));
            assert_eq!(granule(id, &device(None, bytes)), Ok(UNIT_BYTES));
        }
        for bytes in [0, 128, 3 << 20, 8 << 30, 1 << 63] {
            let refused = Err(InitError::BadGranule { device: id, bytes });
            assert_eq!(granule(id, &device(Some(bytes), 2 << 20)), refused);
            assert_eq!(granule(id, &device(None, bytes)), refused);
        }
        let text = InitError::BadGranule {
            device: id,
            bytes: 8 << 30,
        }
        .to_string();
        assert!(text.contains("8 GiB") && text.contains("4 GiB"), "{text}");
    }
}
