//! Virtual memory management: ranges of addresses, physical memory in pages, and mapping.

use ds4_engine::backend::{Backend, PageId};
use ds4_engine::device::{DeviceAddress, DeviceId, DeviceMask};

use crate::driver::Driver;
use crate::raw::{Address, In};
use crate::status::{Outcome, Status};
use crate::tables::{Handle, Mapping, Physical, Range};

/// What physical memory is asked for, as both interfaces lay it out.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Properties {
    kind: u32,
    handle_types: u32,
    location: Location,
    windows: u64,
    flags: [u8; 8],
}

/// Where memory is, or who reaches it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Location {
    kind: u32,
    id: i32,
}

/// Who may do what with mapped memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Access {
    location: Location,
    flags: u32,
}

/// Memory that stays where it is, the only kind there is.
const PINNED: u32 = 1;
/// A location on a device.
const ON_DEVICE: u32 = 1;
const READ: u32 = 1;
const READ_AND_WRITE: u32 = 3;

impl Location {
    fn device(self, driver: &Driver) -> Result<DeviceId, Status> {
        if self.kind != ON_DEVICE {
            return Err(Status::INVALID_VALUE);
        }
        driver.device(self.id)
    }
}

fn page_bytes(driver: &Driver, device: DeviceId) -> Result<u64, Status> {
    driver.info(device)?.page_bytes.ok_or(Status::NOT_SUPPORTED)
}

/// Whole pages, at least one.
fn pages(bytes: usize, page_bytes: u64) -> Result<u64, Status> {
    let whole = bytes > 0 && (bytes as u64).is_multiple_of(page_bytes);
    whole
        .then_some(bytes as u64 / page_bytes)
        .ok_or(Status::INVALID_VALUE)
}

/// The size of which everything here is a multiple, in bytes.
pub(crate) fn granularity(driver: &Driver, properties: In<Properties>) -> Result<usize, Status> {
    let bytes = page_bytes(driver, properties.get()?.location.device(driver)?)?;
    usize::try_from(bytes).map_err(|_| Status::UNKNOWN)
}

/// Reserves addresses of a device.
pub(crate) fn reserve(
    driver: &Driver,
    device: DeviceId,
    bytes: usize,
    align: usize,
) -> Result<u64, Status> {
    let page_bytes = page_bytes(driver, device)?;
    pages(bytes, page_bytes)?;
    if align != 0 && (!align.is_power_of_two() || align as u64 > page_bytes) {
        return Err(Status::INVALID_VALUE);
    }
    let bytes = bytes as u64;
    let start = driver.sim.reserve(device, bytes)?.0;
    driver
        .tables()
        .ranges
        .insert(start, Range { device, bytes });
    Ok(start)
}

/// Gives a whole range back, of which nothing is mapped.
pub(crate) fn unreserve(driver: &Driver, address: Address, bytes: usize) -> Outcome {
    let mut tables = driver.tables();
    let range = tables.ranges.get(&address.0);
    let range = range.filter(|range| range.bytes == bytes as u64);
    let device = range.ok_or(Status::INVALID_VALUE)?.device;
    driver
        .sim
        .release(device, DeviceAddress(address.0), bytes as u64)?;
    tables.ranges.remove(&address.0);
    Ok(())
}

/// Takes physical memory.
pub(crate) fn create(
    driver: &Driver,
    bytes: usize,
    properties: In<Properties>,
) -> Result<Handle, Status> {
    let properties = properties.get()?;
    let device = properties.location.device(driver)?;
    let count = pages(bytes, page_bytes(driver, device)?)?;
    if properties.kind != PINNED {
        return Err(Status::INVALID_VALUE);
    }
    if properties.handle_types != 0 {
        return Err(Status::NOT_SUPPORTED);
    }
    let mut pages: Vec<PageId> = Vec::new();
    for _ in 0..count {
        match driver.sim.create_page(device) {
            Ok(page) => pages.push(page),
            Err(error) => {
                for page in pages {
                    let _ = driver.sim.destroy_page(device, page);
                }
                return Err(error.into());
            }
        }
    }
    let mut tables = driver.tables();
    let handle = tables.handle();
    let physical = Physical {
        device,
        pages,
        references: 1,
        mapped: false,
    };
    tables.physical.insert(handle, physical);
    Ok(handle)
}

/// Gives up one hold of physical memory; it goes once nobody holds it and it is mapped nowhere.
pub(crate) fn release(driver: &Driver, handle: Handle) -> Outcome {
    let mut tables = driver.tables();
    let physical = tables.physical.get_mut(&handle);
    let physical = physical.filter(|physical| physical.references > 0);
    let physical = physical.ok_or(Status::INVALID_VALUE)?;
    if physical.references == 1 && !physical.mapped {
        destroy_pages(driver, physical)?;
        tables.physical.remove(&handle);
    } else {
        physical.references -= 1;
    }
    Ok(())
}

/// Gives pages back one by one; those before a refusal are gone.
fn destroy_pages(driver: &Driver, physical: &mut Physical) -> Outcome {
    while let Some(page) = physical.pages.last().copied() {
        driver.sim.destroy_page(physical.device, page)?;
        physical.pages.pop();
    }
    Ok(())
}

/// The physical memory that is mapped at an address, with one more hold of it.
pub(crate) fn retain(driver: &Driver, address: Address) -> Result<Handle, Status> {
    let mut tables = driver.tables();
    let mapping = tables.mappings.range(..=address.0).next_back();
    let mapping = mapping.filter(|(start, mapping)| address.0 - *start < mapping.bytes);
    let handle = mapping.ok_or(Status::INVALID_VALUE)?.1.physical;
    let physical = tables.physical.get_mut(&handle);
    physical.ok_or(Status::INVALID_VALUE)?.references += 1;
    Ok(handle)
}

/// Maps all of a handle's physical memory into a reserved range of its device; nobody may touch it
/// yet.
pub(crate) fn map(
    driver: &Driver,
    address: Address,
    bytes: usize,
    offset: usize,
    handle: Handle,
) -> Outcome {
    let mut tables = driver.tables();
    let physical = tables
        .physical
        .get_mut(&handle)
        .ok_or(Status::INVALID_VALUE)?;
    let device = physical.device;
    let page_bytes = page_bytes(driver, device)?;
    if offset != 0 || pages(bytes, page_bytes)? != physical.pages.len() as u64 {
        return Err(Status::INVALID_VALUE);
    }
    if physical.mapped {
        return Err(Status::NOT_SUPPORTED);
    }
    if driver.sim.device_of(DeviceAddress(address.0)) != Some(device) {
        let known = tables.ranges.range(..=address.0).next_back();
        let reserved = known.is_some_and(|(start, range)| address.0 - start < range.bytes);
        return Err(if reserved {
            Status::NOT_SUPPORTED
        } else {
            Status::INVALID_VALUE
        });
    }
    for (place, page) in (address.0..).step_by(step(page_bytes)).zip(&physical.pages) {
        if let Err(error) = driver.sim.map_closed(device, DeviceAddress(place), *page) {
            for undone in (address.0..place).step_by(step(page_bytes)) {
                let _ = driver.sim.unmap(device, DeviceAddress(undone));
            }
            return Err(error.into());
        }
    }
    physical.mapped = true;
    let mapping = Mapping {
        bytes: bytes as u64,
        physical: handle,
        readers: DeviceMask::EMPTY,
    };
    tables.mappings.insert(address.0, mapping);
    Ok(())
}

fn step(page_bytes: u64) -> usize {
    usize::try_from(page_bytes).unwrap_or(usize::MAX)
}

/// The starts of the mappings that fill a range exactly.
fn mappings_of(
    tables: &crate::tables::Tables,
    address: Address,
    bytes: usize,
) -> Result<Vec<u64>, Status> {
    let end = address
        .0
        .checked_add(bytes as u64)
        .ok_or(Status::INVALID_VALUE)?;
    let (mut starts, mut at) = (Vec::new(), address.0);
    while at < end {
        let mapping = tables.mappings.get(&at).ok_or(Status::INVALID_VALUE)?;
        starts.push(at);
        at += mapping.bytes;
    }
    if at != end || starts.is_empty() {
        return Err(Status::INVALID_VALUE);
    }
    Ok(starts)
}

/// Unmaps whole mappings; memory that nobody holds any more goes.
pub(crate) fn unmap(driver: &Driver, address: Address, bytes: usize) -> Outcome {
    let mut guard = driver.tables();
    let tables = &mut *guard;
    for start in mappings_of(tables, address, bytes)? {
        let Some(mapping) = tables.mappings.get(&start) else {
            continue;
        };
        let (length, handle) = (mapping.bytes, mapping.physical);
        let physical = tables.physical.get_mut(&handle).ok_or(Status::UNKNOWN)?;
        let page_bytes = page_bytes(driver, physical.device)?;
        for place in (start..start + length).step_by(step(page_bytes)) {
            driver.sim.unmap(physical.device, DeviceAddress(place))?;
        }
        physical.mapped = false;
        tables.mappings.remove(&start);
        if physical.references == 0 {
            // Pages that are not taken back are the caller's again, who may release them later.
            destroy_pages(driver, physical).inspect_err(|_| physical.references = 1)?;
            tables.physical.remove(&handle);
        }
    }
    Ok(())
}

/// Says which devices may touch whole mappings.
pub(crate) fn set_access(
    driver: &Driver,
    address: Address,
    bytes: usize,
    accesses: In<Access>,
    count: usize,
) -> Outcome {
    let mut tables = driver.tables();
    let starts = mappings_of(&tables, address, bytes)?;
    let (mut allowed, mut denied) = (DeviceMask::EMPTY, DeviceMask::EMPTY);
    for index in 0..count {
        let access = accesses.at(index)?;
        let device = DeviceMask::only(access.location.device(driver)?);
        match access.flags {
            0 => denied = denied.or(device),
            READ | READ_AND_WRITE => allowed = allowed.or(device),
            _ => return Err(Status::INVALID_VALUE),
        }
    }
    for start in starts {
        let Some(mapping) = tables.mappings.get(&start) else {
            continue;
        };
        let readers = mapping.readers.or(allowed).without(denied);
        let physical = tables
            .physical
            .get(&mapping.physical)
            .ok_or(Status::UNKNOWN)?;
        let device = physical.device;
        let page_bytes = page_bytes(driver, device)?;
        for place in (start..start + mapping.bytes).step_by(step(page_bytes)) {
            driver
                .sim
                .set_readers(device, DeviceAddress(place), readers)?;
        }
        if let Some(mapping) = tables.mappings.get_mut(&start) {
            mapping.readers = readers;
        }
    }
    Ok(())
}

/// What a device may do with mapped memory, as flags.
#[cfg(feature = "cuda")]
pub(crate) fn access(
    driver: &Driver,
    location: In<Location>,
    address: Address,
) -> Result<u64, Status> {
    let device = location.get()?.device(driver)?;
    let tables = driver.tables();
    let mapping = tables.mappings.range(..=address.0).next_back();
    let mapping = mapping.filter(|(start, mapping)| address.0 - *start < mapping.bytes);
    let readers = mapping.ok_or(Status::INVALID_VALUE)?.1.readers;
    Ok(if readers.contains(device) {
        u64::from(READ_AND_WRITE)
    } else {
        0
    })
}
