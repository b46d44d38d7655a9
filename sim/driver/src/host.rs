//! Host memory that the driver gives, which is ordinary memory here.

use std::alloc::{Layout, alloc_zeroed, dealloc};

use crate::driver::Driver;
use crate::raw::Host;
use crate::status::{Outcome, Status};

const PAGE_BYTES: usize = 4096;

fn layout(bytes: usize) -> Result<Layout, Status> {
    let layout = Layout::from_size_align(bytes, PAGE_BYTES);
    layout
        .ok()
        .filter(|_| bytes > 0)
        .ok_or(Status::INVALID_VALUE)
}

/// Takes host memory that begins a page.
pub(crate) fn allocate(driver: &Driver, bytes: usize) -> Result<u64, Status> {
    let layout = layout(bytes)?;
    // SAFETY: the layout has a size above zero.
    let start = unsafe { alloc_zeroed(layout) };
    if start.is_null() {
        return Err(Status::OUT_OF_MEMORY);
    }
    let address = start as u64;
    driver.tables().pinned.insert(address, bytes);
    Ok(address)
}

/// Gives it back; null is nothing.
pub(crate) fn free(driver: &Driver, host: Host) -> Outcome {
    if host.address() == 0 {
        return Ok(());
    }
    let bytes = driver.tables().pinned.remove(&host.address());
    let layout = layout(bytes.ok_or(Status::INVALID_VALUE)?)?;
    let start = host.address() as *mut u8;
    // SAFETY: the table held this address, so it came from `allocate` with this layout, and its
    // entry was taken out, so nobody frees it again.
    unsafe { dealloc(start, layout) };
    Ok(())
}

/// Notes host memory of the caller's as the driver's to use.
pub(crate) fn register(driver: &Driver, host: Host, bytes: usize) -> Outcome {
    if host.address() == 0 || bytes == 0 {
        return Err(Status::INVALID_VALUE);
    }
    let mut tables = driver.tables();
    if tables.registered.contains_key(&host.address()) {
        return Err(Status::HOST_MEMORY_ALREADY_REGISTERED);
    }
    tables.registered.insert(host.address(), bytes);
    Ok(())
}

/// Undoes [`register`].
pub(crate) fn unregister(driver: &Driver, host: Host) -> Outcome {
    let removed = driver.tables().registered.remove(&host.address());
    removed
        .map(|_| ())
        .ok_or(Status::HOST_MEMORY_NOT_REGISTERED)
}

/// Whether an address is in host memory that the driver knows.
pub(crate) fn knows(driver: &Driver, address: u64) -> bool {
    let tables = driver.tables();
    let holds = |map: &std::collections::BTreeMap<u64, usize>| {
        let before = map.range(..=address).next_back();
        before.is_some_and(|(start, bytes)| address - start < *bytes as u64)
    };
    holds(&tables.pinned) || holds(&tables.registered)
}
