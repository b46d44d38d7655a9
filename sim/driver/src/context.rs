//! Contexts: what goes away with one, and which devices' memory it reaches.

use std::collections::BTreeMap;
use std::sync::Arc;

use ds4_engine::backend::Backend;
use ds4_engine::device::{DeviceAddress, DeviceId, DeviceMask, PeerAccess};

use crate::driver::Driver;
use crate::status::{Outcome, Status};
use crate::tables::Handle;

/// The context in which a call takes place.
pub(crate) struct Current {
    pub(crate) driver: Arc<Driver>,
    pub(crate) context: Handle,
    pub(crate) device: DeviceId,
}

/// Frees the resources of a device's primary context, whoever holds it.
pub(crate) fn reset_primary(driver: &Driver, device: DeviceId) -> Outcome {
    let handle = driver.tables().primary(device)?;
    clear(driver, handle);
    Ok(())
}

/// Gives back everything that a context holds. A lost device gives nothing back, and no caller
/// could do anything about it.
pub(crate) fn clear(driver: &Driver, handle: Handle) {
    let mut tables = driver.tables();
    let streams = take_where(&mut tables.streams, |stream| stream.context == handle);
    let events = take_where(&mut tables.events, |event| event.context == handle);
    let allocations = take_where(&mut tables.allocations, |one| one.context == handle);
    tables.modules.retain(|_, module| module.context != handle);
    tables
        .functions
        .retain(|_, function| function.context != handle);
    if let Some(context) = tables.contexts.get_mut(&handle) {
        context.peers = DeviceMask::EMPTY;
    }
    drop(tables);
    for (_, event) in events {
        if let Some(id) = event.recorded {
            let _ = driver.sim.destroy_event(event.device, id);
        }
    }
    for (_, stream) in streams {
        let _ = driver.sim.destroy_stream(stream.device, stream.id);
    }
    for (address, _) in allocations {
        let address = DeviceAddress(address);
        if let Some(device) = driver.sim.device_of(address) {
            let _ = driver.sim.free(device, address);
        }
    }
}

fn take_where<K: Ord + Copy, V>(
    map: &mut BTreeMap<K, V>,
    wanted: impl Fn(&V) -> bool,
) -> Vec<(K, V)> {
    let keys: Vec<K> = map
        .iter()
        .filter(|(_, value)| wanted(value))
        .map(|(key, _)| *key)
        .collect();
    keys.into_iter()
        .filter_map(|key| map.remove_entry(&key))
        .collect()
}

/// Whether the driver offers a path from one device to another.
pub(crate) fn offers_path(driver: &Driver, from: DeviceId, to: DeviceId) -> Result<bool, Status> {
    let access = driver.sim.peer_access(from, to)?;
    Ok(from != to && access != PeerAccess::Absent)
}

/// Lets kernels of the current context touch memory of another device.
pub(crate) fn enable_peer(current: &Current, peer: DeviceId) -> Outcome {
    if current.device == peer {
        return Err(Status::INVALID_DEVICE);
    }
    if !offers_path(&current.driver, current.device, peer)? {
        return Err(Status::PEER_ACCESS_UNSUPPORTED);
    }
    change_peers(current, |peers| {
        let enabled = peers.or(DeviceMask::only(peer));
        let already = enabled == peers;
        if already {
            Err(Status::PEER_ACCESS_ALREADY_ENABLED)
        } else {
            Ok(enabled)
        }
    })
}

/// Undoes [`enable_peer`].
pub(crate) fn disable_peer(current: &Current, peer: DeviceId) -> Outcome {
    change_peers(current, |peers| {
        let rest = peers.without(DeviceMask::only(peer));
        let enabled = rest != peers;
        if enabled {
            Ok(rest)
        } else {
            Err(Status::PEER_ACCESS_NOT_ENABLED)
        }
    })
}

fn change_peers(
    current: &Current,
    change: impl FnOnce(DeviceMask) -> Result<DeviceMask, Status>,
) -> Outcome {
    let mut tables = current.driver.tables();
    let context = tables.contexts.get_mut(&current.context);
    let context = context.ok_or(Status::INVALID_CONTEXT)?;
    context.peers = change(context.peers)?;
    Ok(())
}
