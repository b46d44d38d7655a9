//! Memory: taking, freeing, filling and copying.

use ds4_engine::device::DeviceAddress;

use super::current;
use crate::call::export;
use crate::driver::Driver;
use crate::host;
use crate::memory::{self, Finish};
use crate::raw::{Address, Host, Out};
use crate::status::{Outcome, Status};
use crate::stream::Queue;
use crate::tables::Handle;

fn take(out: Out<u64>, bytes: usize) -> Outcome {
    let current = current()?;
    if out.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    // No bytes are no error in HIP: the address is null.
    out.put(if bytes == 0 {
        0
    } else {
        memory::allocate(&current, bytes)?
    })
}

fn take_host(out: Out<u64>, bytes: usize) -> Outcome {
    let current = current()?;
    out.make(|| {
        Ok(if bytes == 0 {
            0
        } else {
            host::allocate(&current.driver, bytes)?
        })
    })
}

fn now(work: impl FnOnce(&Driver, (Queue, Finish)) -> Outcome) -> Outcome {
    memory::now(&current()?, work)
}

fn later(stream: Handle, work: impl FnOnce(&Driver, (Queue, Finish)) -> Outcome) -> Outcome {
    memory::later(&current()?, stream, work)
}

/// A copy of one of the kinds of `hipMemcpyKind`, which must agree with the addresses.
fn by_kind(
    driver: &Driver,
    to: Address,
    from: Address,
    bytes: usize,
    (kind, how): (u32, (Queue, Finish)),
) -> Outcome {
    const DEFAULT: u32 = 4;
    let is_device = |address: Address| {
        let device = driver.sim.device_of(DeviceAddress(address.0));
        u32::from(device.is_some())
    };
    // Host to host 0, to device 1, device to host 2, device to device 3.
    let meant = is_device(to) + 2 * is_device(from);
    if kind != DEFAULT && kind != meant && bytes > 0 {
        return Err(Status::INVALID_VALUE);
    }
    memory::copy_any(driver, to, from, bytes, how)
}

fn between(devices: [i32; 2], stream: Handle, to: Address, from: Address, bytes: usize) -> Outcome {
    let current = current()?;
    for device in devices {
        current.driver.device(device)?;
    }
    memory::copy(
        &current.driver,
        to,
        from,
        bytes,
        Queue::of(&current, stream)?,
    )
}

fn fill(to: Address, unit: &[u8], count: usize, stream: Handle) -> Outcome {
    let current = current()?;
    let queue = Queue::of(&current, stream)?;
    memory::fill_units(&current.driver, to, unit, count, queue)
}

/// The byte that C passes as a number.
fn byte(value: i32) -> [u8; 1] {
    let [low, ..] = value.to_le_bytes();
    [low]
}

export! {
    fn hipMemGetInfo(free: Out<usize>, total: Out<usize>) {
        memory::info(&current()?, free, total)
    }

    fn hipMalloc(out: Out<u64>, bytes: usize) {
        take(out, bytes)
    }

    fn hipMallocAsync(out: Out<u64>, bytes: usize, stream: Handle) {
        Queue::of(&current()?, stream)?;
        take(out, bytes)
    }

    fn hipFree(address: Address) {
        memory::free(&current()?.driver, address)
    }

    fn hipFreeAsync(address: Address, stream: Handle) {
        let current = current()?;
        Queue::of(&current, stream)?;
        memory::free(&current.driver, address)
    }

    fn hipHostMalloc(out: Out<u64>, bytes: usize, _flags: u32) {
        take_host(out, bytes)
    }

    fn hipHostFree(host: Host) {
        host::free(&current()?.driver, host)
    }

    fn hipHostRegister(host: Host, bytes: usize, _flags: u32) {
        host::register(&current()?.driver, host, bytes)
    }

    fn hipHostUnregister(host: Host) {
        host::unregister(&current()?.driver, host)
    }

    fn hipHostGetDevicePointer(out: Out<u64>, host: Host, _flags: u32) {
        if !host::knows(&current()?.driver, host.address()) {
            return Err(Status::INVALID_VALUE);
        }
        out.put(host.address())
    }

    fn hipMemcpy(to: Address, from: Address, bytes: usize, kind: u32) {
        now(|driver, how| by_kind(driver, to, from, bytes, (kind, how)))
    }

    fn hipMemcpyAsync(to: Address, from: Address, bytes: usize, kind: u32, stream: Handle) {
        later(stream, |driver, how| by_kind(driver, to, from, bytes, (kind, how)))
    }

    fn hipMemcpyHtoD(to: Address, from: Host, bytes: usize) {
        now(|driver, how| memory::write(driver, to, from, bytes, how))
    }

    fn hipMemcpyHtoDAsync(to: Address, from: Host, bytes: usize, stream: Handle) {
        later(stream, |driver, how| memory::write(driver, to, from, bytes, how))
    }

    fn hipMemcpyDtoH(to: Host, from: Address, bytes: usize) {
        now(|driver, how| memory::read(driver, to, from, bytes, how))
    }

    fn hipMemcpyDtoHAsync(to: Host, from: Address, bytes: usize, stream: Handle) {
        later(stream, |driver, how| memory::read(driver, to, from, bytes, how))
    }

    fn hipMemcpyDtoD(to: Address, from: Address, bytes: usize) {
        now(|driver, (queue, _)| memory::copy(driver, to, from, bytes, queue))
    }

    fn hipMemcpyDtoDAsync(to: Address, from: Address, bytes: usize, stream: Handle) {
        later(stream, |driver, (queue, _)| memory::copy(driver, to, from, bytes, queue))
    }

    fn hipMemcpyPeer(to: Address, target: i32, from: Address, source: i32, bytes: usize) {
        between([target, source], Handle::NULL, to, from, bytes)
    }

    fn hipMemcpyPeerAsync(
        to: Address,
        target: i32,
        from: Address,
        source: i32,
        bytes: usize,
        stream: Handle,
    ) {
        between([target, source], stream, to, from, bytes)
    }

    fn hipMemset(to: Address, value: i32, bytes: usize) {
        fill(to, &byte(value), bytes, Handle::NULL)
    }

    fn hipMemsetAsync(to: Address, value: i32, bytes: usize, stream: Handle) {
        fill(to, &byte(value), bytes, stream)
    }

    fn hipMemsetD8(to: Address, value: u8, count: usize) {
        fill(to, &[value], count, Handle::NULL)
    }

    fn hipMemsetD8Async(to: Address, value: u8, count: usize, stream: Handle) {
        fill(to, &[value], count, stream)
    }

    fn hipMemsetD32(to: Address, value: u32, count: usize) {
        fill(to, &value.to_ne_bytes(), count, Handle::NULL)
    }

    fn hipMemsetD32Async(to: Address, value: u32, count: usize, stream: Handle) {
        fill(to, &value.to_ne_bytes(), count, stream)
    }

    fn hipMemGetAddressRange(base: Out<u64>, bytes: Out<usize>, address: Address) {
        memory::range(&current()?.driver, base, bytes, address)
    }
}
