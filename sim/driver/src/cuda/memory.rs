//! Memory: taking, freeing, filling, copying, and what addresses are.

use super::number;
use crate::call::export;
use crate::context::Current;
use crate::driver::Driver;
use crate::host;
use crate::memory::{self, Finish};
use crate::raw::{Address, Host, In, Out};
use crate::status::{Outcome, Status};
use crate::stream::Queue;
use crate::tables::Handle;

/// The one pool of a device, by its number.
fn pool(device: i32) -> Handle {
    Handle(0x100 + u64::from(device.unsigned_abs()))
}

fn take(out: Out<u64>, bytes: usize) -> Outcome {
    let current = Current::get()?;
    out.make(|| memory::allocate(&current, bytes))
}

fn give(address: Address) -> Outcome {
    let current = Current::get()?;
    memory::free(&current.driver, address)
}

fn fill_default(to: Address, unit: &[u8], count: usize) -> Outcome {
    let current = Current::get()?;
    memory::fill_units(
        &current.driver,
        to,
        unit,
        count,
        Queue::default_of(&current),
    )
}

fn fill_stream(to: Address, unit: &[u8], count: usize, stream: Handle) -> Outcome {
    let current = Current::get()?;
    let queue = Queue::of(&current, stream)?;
    memory::fill_units(&current.driver, to, unit, count, queue)
}

fn now(work: impl FnOnce(&Driver, (Queue, Finish)) -> Outcome) -> Outcome {
    memory::now(&Current::get()?, work)
}

fn later(stream: Handle, work: impl FnOnce(&Driver, (Queue, Finish)) -> Outcome) -> Outcome {
    memory::later(&Current::get()?, stream, work)
}

/// A copy between the devices of two contexts.
fn between(
    contexts: [Handle; 2],
    stream: Handle,
    to: Address,
    from: Address,
    bytes: usize,
) -> Outcome {
    let driver = Driver::get()?;
    for context in contexts {
        driver.tables().context(context)?;
    }
    let [_, source] = contexts;
    let current = Current::get().or_else(|_| Current::of(driver, source))?;
    memory::copy(
        &current.driver,
        to,
        from,
        bytes,
        Queue::of(&current, stream)?,
    )
}

export! {
    fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) {
        memory::info(&Current::get()?, free, total)
    }

    fn cuMemAlloc_v2(out: Out<u64>, bytes: usize) {
        take(out, bytes)
    }

    fn cuMemAllocPitch_v2(out: Out<u64>, pitch: Out<usize>, width: usize, height: usize, _element: u32) {
        const PITCH_BYTES: usize = 512;
        let row = width.checked_next_multiple_of(PITCH_BYTES).ok_or(Status::INVALID_VALUE)?;
        pitch.put(row)?;
        take(out, row.checked_mul(height).ok_or(Status::INVALID_VALUE)?)
    }

    fn cuMemFree_v2(address: Address) {
        give(address)
    }

    fn cuMemAllocAsync(out: Out<u64>, bytes: usize, stream: Handle) {
        Queue::of(&Current::get()?, stream)?;
        take(out, bytes)
    }

    fn cuMemAllocFromPoolAsync(out: Out<u64>, bytes: usize, _pool: Handle, stream: Handle) {
        Queue::of(&Current::get()?, stream)?;
        take(out, bytes)
    }

    fn cuMemFreeAsync(address: Address, stream: Handle) {
        Queue::of(&Current::get()?, stream)?;
        give(address)
    }

    fn cuDeviceGetDefaultMemPool(out: Out<Handle>, device: i32) {
        Driver::get()?.device(device)?;
        out.put(pool(device))
    }

    fn cuDeviceGetMemPool(out: Out<Handle>, device: i32) {
        Driver::get()?.device(device)?;
        out.put(pool(device))
    }

    // Pools keep nothing back, so that all attributes are 0 and setting one changes nothing.
    fn cuMemPoolGetAttribute(_pool: Handle, _attribute: u32, value: Out<u64>) {
        value.put(0)
    }

    fn cuMemPoolSetAttribute(_pool: Handle, _attribute: u32, value: In<u64>) {
        value.get().map(|_| ())
    }

    fn cuMemPoolTrimTo(_pool: Handle, _bytes: usize) {
        Driver::get().map(|_| ())
    }

    fn cuMemHostAlloc(out: Out<u64>, bytes: usize, _flags: u32) {
        let current = Current::get()?;
        out.make(|| host::allocate(&current.driver, bytes))
    }

    fn cuMemAllocHost_v2(out: Out<u64>, bytes: usize) {
        let current = Current::get()?;
        out.make(|| host::allocate(&current.driver, bytes))
    }

    fn cuMemFreeHost(host: Host) {
        host::free(&*Driver::get()?, host)
    }

    fn cuMemHostRegister_v2(host: Host, bytes: usize, _flags: u32) {
        host::register(&Current::get()?.driver, host, bytes)
    }

    fn cuMemHostUnregister(host: Host) {
        host::unregister(&*Driver::get()?, host)
    }

    fn cuMemHostGetDevicePointer_v2(out: Out<u64>, host: Host, _flags: u32) {
        if !host::knows(&*Driver::get()?, host.address()) {
            return Err(Status::INVALID_VALUE);
        }
        out.put(host.address())
    }

    fn cuMemcpy(to: Address, from: Address, bytes: usize) {
        now(|driver, how| memory::copy_any(driver, to, from, bytes, how))
    }

    fn cuMemcpyAsync(to: Address, from: Address, bytes: usize, stream: Handle) {
        later(stream, |driver, how| memory::copy_any(driver, to, from, bytes, how))
    }

    fn cuMemcpyHtoD_v2(to: Address, from: Host, bytes: usize) {
        now(|driver, how| memory::write(driver, to, from, bytes, how))
    }

    fn cuMemcpyHtoDAsync_v2(to: Address, from: Host, bytes: usize, stream: Handle) {
        later(stream, |driver, how| memory::write(driver, to, from, bytes, how))
    }

    fn cuMemcpyDtoH_v2(to: Host, from: Address, bytes: usize) {
        now(|driver, how| memory::read(driver, to, from, bytes, how))
    }

    fn cuMemcpyDtoHAsync_v2(to: Host, from: Address, bytes: usize, stream: Handle) {
        later(stream, |driver, how| memory::read(driver, to, from, bytes, how))
    }

    fn cuMemcpyDtoD_v2(to: Address, from: Address, bytes: usize) {
        now(|driver, (queue, _)| memory::copy(driver, to, from, bytes, queue))
    }

    fn cuMemcpyDtoDAsync_v2(to: Address, from: Address, bytes: usize, stream: Handle) {
        later(stream, |driver, (queue, _)| memory::copy(driver, to, from, bytes, queue))
    }

    fn cuMemcpyPeer(to: Address, target: Handle, from: Address, source: Handle, bytes: usize) {
        between([target, source], Handle::NULL, to, from, bytes)
    }

    fn cuMemcpyPeerAsync(
        to: Address,
        target: Handle,
        from: Address,
        source: Handle,
        bytes: usize,
        stream: Handle,
    ) {
        between([target, source], stream, to, from, bytes)
    }

    fn cuMemsetD8_v2(to: Address, value: u8, count: usize) {
        fill_default(to, &[value], count)
    }

    fn cuMemsetD16_v2(to: Address, value: u16, count: usize) {
        fill_default(to, &value.to_ne_bytes(), count)
    }

    fn cuMemsetD32_v2(to: Address, value: u32, count: usize) {
        fill_default(to, &value.to_ne_bytes(), count)
    }

    fn cuMemsetD8Async(to: Address, value: u8, count: usize, stream: Handle) {
        fill_stream(to, &[value], count, stream)
    }

    fn cuMemsetD16Async(to: Address, value: u16, count: usize, stream: Handle) {
        fill_stream(to, &value.to_ne_bytes(), count, stream)
    }

    fn cuMemsetD32Async(to: Address, value: u32, count: usize, stream: Handle) {
        fill_stream(to, &value.to_ne_bytes(), count, stream)
    }

    fn cuMemGetAddressRange_v2(base: Out<u64>, bytes: Out<usize>, address: Address) {
        memory::range(&*Driver::get()?, base, bytes, address)
    }

    fn cuPointerGetAttribute(out: Out<u64>, attribute: u32, address: Address) {
        attribute_of(&*Driver::get()?, address, attribute, out)
    }

    fn cuPointerGetAttributes(
        count: u32,
        attributes: In<u32>,
        outs: In<Out<u64>>,
        address: Address,
    ) {
        let driver = Driver::get()?;
        for index in 0..usize::try_from(count).unwrap_or(0) {
            // What an address lacks stays as it is: an address that is nothing is no error here.
            let _ = attribute_of(&driver, address, attributes.at(index)?, outs.at(index)?);
        }
        Ok(())
    }
}

/// Writes an attribute of an address, in the type that its number says.
fn attribute_of(driver: &Driver, address: Address, attribute: u32, out: Out<u64>) -> Outcome {
    const CONTEXT: u32 = 1;
    const MEMORY_TYPE: u32 = 2;
    const DEVICE_POINTER: u32 = 3;
    const HOST_POINTER: u32 = 4;
    const SYNC_COPIES: u32 = 6;
    const BUFFER_ID: u32 = 7;
    const IS_MANAGED: u32 = 8;
    const DEVICE: u32 = 9;
    const RANGE_START: u32 = 11;
    const RANGE_BYTES: u32 = 12;
    const IS_MAPPED: u32 = 13;
    const TYPE_HOST: u32 = 1;
    const TYPE_DEVICE: u32 = 2;
    let tables = driver.tables();
    let Some((start, bytes)) = tables.memory_at(address.0) else {
        drop(tables);
        if !host::knows(driver, address.0) {
            return Err(Status::INVALID_VALUE);
        }
        return match attribute {
            MEMORY_TYPE => out.cast().put(TYPE_HOST),
            DEVICE_POINTER | HOST_POINTER => out.put(address.0),
            IS_MANAGED => out.cast().put(0_u8),
            _ => Err(Status::NOT_SUPPORTED),
        };
    };
    let device = memory::device_of(driver, address)?;
    match attribute {
        CONTEXT => {
            let owner = tables.allocations.get(&start).map(|one| one.context);
            out.put(owner.unwrap_or(Handle::NULL).0)
        }
        MEMORY_TYPE => out.cast().put(TYPE_DEVICE),
        DEVICE_POINTER => out.put(address.0),
        HOST_POINTER => Err(Status::INVALID_VALUE),
        SYNC_COPIES | IS_MANAGED => out.cast().put(0_u8),
        // Addresses are not given twice, so a start is an identity.
        BUFFER_ID | RANGE_START => out.put(start),
        DEVICE => out.cast().put(number(device)),
        RANGE_BYTES => out.put(bytes),
        IS_MAPPED => out.cast().put(1_u8),
        _ => Err(Status::NOT_SUPPORTED),
    }
}
