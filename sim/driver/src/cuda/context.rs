//! Contexts.

use super::{number, stack};
use crate::call::export;
use crate::context::{self, Current};
use crate::driver::Driver;
use crate::raw::{In, Out};
use crate::status::{Outcome, Status};
use crate::stream;
use crate::tables::Handle;

/// The version of the context interface, which never changed since CUDA 3.2.
const CONTEXT_VERSION: u32 = 3020;
const LEAST_PRIORITY: i32 = 0;
const GREATEST_PRIORITY: i32 = -5;

fn create(out: Out<Handle>, flags: u32, device: i32) -> Outcome {
    let driver = Driver::get()?;
    let device = driver.device(device)?;
    out.make(|| Ok(stack::create(&driver, device, flags)))
}

export! {
    fn cuDevicePrimaryCtxRetain(out: Out<Handle>, device: i32) {
        let driver = Driver::get()?;
        let device = driver.device(device)?;
        out.make(|| stack::retain_primary(&driver, device))
    }

    fn cuDevicePrimaryCtxRelease_v2(device: i32) {
        let driver = Driver::get()?;
        stack::release_primary(&driver, driver.device(device)?)
    }

    fn cuDevicePrimaryCtxReset_v2(device: i32) {
        let driver = Driver::get()?;
        context::reset_primary(&driver, driver.device(device)?)
    }

    fn cuDevicePrimaryCtxSetFlags_v2(device: i32, flags: u32) {
        let driver = Driver::get()?;
        let mut tables = driver.tables();
        let primary = tables.primary(driver.device(device)?)?;
        let context = tables.contexts.get_mut(&primary).ok_or(Status::INVALID_CONTEXT)?;
        context.flags = flags;
        Ok(())
    }

    fn cuDevicePrimaryCtxGetState(device: i32, flags: Out<u32>, active: Out<i32>) {
        let driver = Driver::get()?;
        let tables = driver.tables();
        let primary = tables.primary(driver.device(device)?)?;
        let context = tables.contexts.get(&primary).ok_or(Status::INVALID_CONTEXT)?;
        flags.put(context.flags)?;
        active.put(i32::from(context.references > 0))
    }

    fn cuCtxCreate_v2(out: Out<Handle>, flags: u32, device: i32) {
        create(out, flags, device)
    }

    fn cuCtxCreate_v3(out: Out<Handle>, _affinity: In<u64>, _count: i32, flags: u32, device: i32) {
        create(out, flags, device)
    }

    fn cuCtxCreate_v4(out: Out<Handle>, _parameters: In<u64>, flags: u32, device: i32) {
        create(out, flags, device)
    }

    fn cuCtxDestroy_v2(handle: Handle) {
        stack::destroy(&*Driver::get()?, handle)
    }

    fn cuCtxDetach(handle: Handle) {
        stack::destroy(&*Driver::get()?, handle)
    }

    fn cuCtxSetCurrent(handle: Handle) {
        if !handle.is_null() {
            Driver::get()?.tables().context(handle)?;
        }
        stack::set_top(handle);
        Ok(())
    }

    fn cuCtxGetCurrent(out: Out<Handle>) {
        Driver::get()?;
        out.put(stack::top().unwrap_or(Handle::NULL))
    }

    fn cuCtxPushCurrent_v2(handle: Handle) {
        Driver::get()?.tables().context(handle)?;
        stack::push(handle);
        Ok(())
    }

    fn cuCtxPopCurrent_v2(out: Out<Handle>) {
        Driver::get()?;
        out.offer(stack::pop().ok_or(Status::INVALID_CONTEXT)?);
        Ok(())
    }

    fn cuCtxGetDevice_v2(device: Out<i32>, handle: Handle) {
        if handle.is_null() {
            return device.put(number(Current::get()?.device));
        }
        device.put(number(Current::of(Driver::get()?, handle)?.device))
    }

    fn cuCtxGetId(handle: Handle, id: Out<u64>) {
        let handle = if handle.is_null() { Current::get()?.context } else { handle };
        Driver::get()?.tables().context(handle)?;
        id.put(handle.0)
    }

    fn cuCtxGetApiVersion(_handle: Handle, version: Out<u32>) {
        version.put(CONTEXT_VERSION)
    }

    fn cuCtxGetFlags(flags: Out<u32>) {
        let current = Current::get()?;
        let tables = current.driver.tables();
        flags.put(tables.context(current.context)?.flags)
    }

    fn cuCtxSetFlags(flags: u32) {
        let current = Current::get()?;
        let mut tables = current.driver.tables();
        let context = tables.contexts.get_mut(&current.context);
        context.ok_or(Status::INVALID_CONTEXT)?.flags = flags;
        Ok(())
    }

    fn cuCtxSynchronize() {
        stream::synchronize_all(&Current::get()?)
    }

    fn cuCtxSynchronize_v2(handle: Handle) {
        if handle.is_null() {
            return stream::synchronize_all(&Current::get()?);
        }
        stream::synchronize_all(&Current::of(Driver::get()?, handle)?)
    }

    fn cuCtxGetStreamPriorityRange(least: Out<i32>, greatest: Out<i32>) {
        Current::get()?;
        least.offer(LEAST_PRIORITY);
        greatest.offer(GREATEST_PRIORITY);
        Ok(())
    }

    // Limits are of kernels, which none here needs.
    fn cuCtxGetLimit(value: Out<usize>, _limit: u32) {
        Current::get()?;
        value.put(1024)
    }

    fn cuCtxSetLimit(_limit: u32, _value: usize) {
        Current::get().map(|_| ())
    }

    fn cuCtxEnablePeerAccess(peer: Handle, flags: u32) {
        let current = Current::get()?;
        let peer = current.driver.tables().context(peer)?.device;
        if flags != 0 {
            return Err(Status::INVALID_VALUE);
        }
        context::enable_peer(&current, peer)
    }

    fn cuCtxDisablePeerAccess(peer: Handle) {
        let current = Current::get()?;
        let peer = current.driver.tables().context(peer)?.device;
        context::disable_peer(&current, peer)
    }
}
