//! Device memory: taking it, giving it back, filling and copying it.

use ds4_engine::backend::{Backend, BackendError};
use ds4_engine::bytes::MIB;
use ds4_engine::device::{DeviceAddress, DeviceId, PeerAccess, StreamId};

use crate::context::Current;
use crate::driver::Driver;
use crate::raw::{Address, Host, Out};
use crate::status::{Outcome, Status};
use crate::stream::{Queue, in_order};
use crate::tables::{Allocation, Handle};

/// Copies that have no direct path move through the host in parts of this many bytes.
const BOUNCE_BYTES: u64 = 4 * MIB;

/// Whether a copy with the host returns once it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finish {
    Waits,
    InOrder,
}

/// A copy in order of the default stream.
pub(crate) fn now(
    current: &Current,
    work: impl FnOnce(&Driver, (Queue, Finish)) -> Outcome,
) -> Outcome {
    work(&current.driver, (Queue::default_of(current), Finish::Waits))
}

/// A copy in order of a stream.
pub(crate) fn later(
    current: &Current,
    stream: Handle,
    work: impl FnOnce(&Driver, (Queue, Finish)) -> Outcome,
) -> Outcome {
    let queue = Queue::of(current, stream)?;
    work(&current.driver, (queue, Finish::InOrder))
}

/// Writes how much of the current device is free, and how much it has.
pub(crate) fn info(current: &Current, free: Out<usize>, total: Out<usize>) -> Outcome {
    let info = current.driver.sim.memory_info(current.device)?;
    free.put(usize::try_from(info.free_bytes).unwrap_or(usize::MAX))?;
    total.put(usize::try_from(info.total_bytes).unwrap_or(usize::MAX))
}

/// Writes start and length of the memory that holds an address, to whoever wants them.
pub(crate) fn range(
    driver: &Driver,
    base: Out<u64>,
    bytes: Out<usize>,
    address: Address,
) -> Outcome {
    let range = driver.tables().memory_at(address.0);
    let (start, length) = range.ok_or(Status::INVALID_VALUE)?;
    base.offer(start);
    bytes.offer(usize::try_from(length).unwrap_or(usize::MAX));
    Ok(())
}

/// Takes memory of the current device.
pub(crate) fn allocate(current: &Current, bytes: usize) -> Result<u64, Status> {
    if bytes == 0 {
        return Err(Status::INVALID_VALUE);
    }
    let bytes = bytes as u64;
    let address = current.driver.sim.allocate(current.device, bytes)?.0;
    let allocation = Allocation {
        context: current.context,
        bytes,
    };
    current
        .driver
        .tables()
        .allocations
        .insert(address, allocation);
    Ok(address)
}

/// Gives memory back; null is nothing.
pub(crate) fn free(driver: &Driver, address: Address) -> Outcome {
    if address.0 == 0 {
        return Ok(());
    }
    let device = device_of(driver, address)?;
    let allocation = driver.tables().allocations.remove(&address.0);
    // An address that is no allocation is refused by the machine, whose ledger then knows.
    let freed = driver.sim.free(device, DeviceAddress(address.0));
    if let (Err(_), Some(allocation)) = (&freed, allocation) {
        driver.tables().allocations.insert(address.0, allocation);
    }
    Ok(freed?)
}

/// The device of an address; one of the host's is an invalid value.
pub(crate) fn device_of(driver: &Driver, address: Address) -> Result<DeviceId, Status> {
    let device = driver.sim.device_of(DeviceAddress(address.0));
    device.ok_or(Status::INVALID_VALUE)
}

/// Sets bytes, in order of a stream.
pub(crate) fn fill(driver: &Driver, to: Address, value: u8, bytes: usize, queue: Queue) -> Outcome {
    if bytes == 0 {
        return Ok(());
    }
    let device = device_of(driver, to)?;
    in_order(driver, queue, device, |stream| {
        driver
            .sim
            .fill(device, DeviceAddress(to.0), bytes as u64, value, stream)
    })
}

/// Sets `count` units of several bytes each, in order of a stream.
pub(crate) fn fill_units(
    driver: &Driver,
    to: Address,
    unit: &[u8],
    count: usize,
    queue: Queue,
) -> Outcome {
    let bytes = count.checked_mul(unit.len()).ok_or(Status::INVALID_VALUE)?;
    if let Some(first) = unit
        .first()
        .filter(|first| unit.iter().all(|byte| byte == *first))
    {
        return fill(driver, to, *first, bytes, queue);
    }
    if !to.0.is_multiple_of(unit.len() as u64) {
        return Err(Status::INVALID_VALUE);
    }
    let device = device_of(driver, to)?;
    let part = unit.repeat(count.min(1 << 20));
    in_order(driver, queue, device, |stream| {
        let mut at = 0;
        while at < bytes {
            let now = part.get(..part.len().min(bytes - at)).unwrap_or_default();
            let address = DeviceAddress(to.0 + at as u64);
            driver.sim.write_in_order(device, address, now, stream)?;
            at += now.len();
        }
        Ok(())
    })
}

/// Copies from the host to a device.
pub(crate) fn write(
    driver: &Driver,
    to: Address,
    from: Host,
    bytes: usize,
    (queue, finish): (Queue, Finish),
) -> Outcome {
    if bytes == 0 {
        return Ok(());
    }
    let device = device_of(driver, to)?;
    let data = from.bytes(bytes)?;
    in_order(driver, queue, device, |stream| {
        let to = DeviceAddress(to.0);
        match finish {
            Finish::Waits => driver.sim.write(device, to, data),
            Finish::InOrder => driver.sim.write_in_order(device, to, data, stream),
        }
    })
}

/// Copies from a device to the host.
pub(crate) fn read(
    driver: &Driver,
    to: Host,
    from: Address,
    bytes: usize,
    (queue, finish): (Queue, Finish),
) -> Outcome {
    if bytes == 0 {
        return Ok(());
    }
    let device = device_of(driver, from)?;
    let data = to.bytes_mut(bytes)?;
    in_order(driver, queue, device, |stream| {
        let from = DeviceAddress(from.0);
        match finish {
            Finish::Waits => driver.sim.read(device, from, data),
            Finish::InOrder => driver.sim.read_in_order(device, from, data, stream),
        }
    })
}

/// Copies between devices or within one, in order of a stream.
pub(crate) fn copy(
    driver: &Driver,
    to: Address,
    from: Address,
    bytes: usize,
    queue: Queue,
) -> Outcome {
    if bytes == 0 {
        return Ok(());
    }
    let (source, target) = (device_of(driver, from)?, device_of(driver, to)?);
    let (from, to, bytes) = (DeviceAddress(from.0), DeviceAddress(to.0), bytes as u64);
    let link = driver.sim.config().link(source, target);
    in_order(driver, queue, source, |stream| {
        if source == target {
            driver.sim.copy_local(source, from, to, bytes, stream)
        } else if link.is_some_and(|link| link.access != PeerAccess::Absent) {
            driver
                .sim
                .copy_peer((source, from), (target, to), bytes, stream)
        } else {
            bounce(driver, (source, from, stream), (target, to), bytes)
        }
    })
}

/// Copies between devices that do not reach each other, as drivers do it: through the host.
fn bounce(
    driver: &Driver,
    (source, from, stream): (DeviceId, DeviceAddress, StreamId),
    (target, to): (DeviceId, DeviceAddress),
    bytes: u64,
) -> Result<(), BackendError> {
    let mut part = vec![0; usize::try_from(bytes.min(BOUNCE_BYTES)).unwrap_or(0)];
    let ends = [(source, stream), (target, StreamId::DEFAULT)];
    driver.sim.order_after(ends[1], ends[0]);
    for at in (0..bytes).step_by(part.len().max(1)) {
        part.truncate(usize::try_from(bytes - at).unwrap_or(usize::MAX));
        let (from, to) = (DeviceAddress(from.0 + at), DeviceAddress(to.0 + at));
        driver.sim.read_in_order(source, from, &mut part, stream)?;
        driver
            .sim
            .write_in_order(target, to, &part, StreamId::DEFAULT)?;
    }
    driver.sim.order_after(ends[0], ends[1]);
    Ok(())
}

/// Copies between any two places, told apart by their addresses.
pub(crate) fn copy_any(
    driver: &Driver,
    to: Address,
    from: Address,
    bytes: usize,
    how: (Queue, Finish),
) -> Outcome {
    let is_device = |address: Address| driver.sim.device_of(DeviceAddress(address.0)).is_some();
    match (is_device(to), is_device(from)) {
        (true, true) => copy(driver, to, from, bytes, how.0),
        (true, false) => write(driver, to, Host::at(from), bytes, how),
        (false, true) => read(driver, Host::at(to), from, bytes, how),
        (false, false) => Host::at(from).copy_to(Host::at(to), bytes),
    }
}
