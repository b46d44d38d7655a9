//! Virtual memory management.

use crate::call::export;
use crate::context::Current;
use crate::driver::Driver;
use crate::raw::{Address, In, Out};
use crate::status::Status;
use crate::tables::Handle;
use crate::vmm::{self, Access, Location, Properties};

export! {
    fn cuMemGetAllocationGranularity(bytes: Out<usize>, properties: In<Properties>, _option: u32) {
        bytes.put(vmm::granularity(&*Driver::get()?, properties)?)
    }

    fn cuMemAddressReserve(
        out: Out<u64>,
        bytes: usize,
        align: usize,
        _hint: Address,
        _flags: u64,
    ) {
        let driver = Driver::get()?;
        // A driver's range has no device; the model's is of the current one, else of the first.
        let device = match Current::get() {
            Ok(current) => current.device,
            Err(_) => driver.device(0)?,
        };
        out.make(|| vmm::reserve(&driver, device, bytes, align))
    }

    fn cuMemAddressFree(address: Address, bytes: usize) {
        vmm::unreserve(&*Driver::get()?, address, bytes)
    }

    fn cuMemCreate(out: Out<Handle>, bytes: usize, properties: In<Properties>, flags: u64) {
        if out.is_null() || flags != 0 {
            return Err(Status::INVALID_VALUE);
        }
        out.put(vmm::create(&*Driver::get()?, bytes, properties)?)
    }

    fn cuMemRelease(handle: Handle) {
        vmm::release(&*Driver::get()?, handle)
    }

    fn cuMemRetainAllocationHandle(out: Out<Handle>, address: Address) {
        out.make(|| vmm::retain(&*Driver::get()?, address))
    }

    fn cuMemMap(address: Address, bytes: usize, offset: usize, handle: Handle, flags: u64) {
        if flags != 0 {
            return Err(Status::INVALID_VALUE);
        }
        vmm::map(&*Driver::get()?, address, bytes, offset, handle)
    }

    fn cuMemUnmap(address: Address, bytes: usize) {
        vmm::unmap(&*Driver::get()?, address, bytes)
    }

    fn cuMemSetAccess(address: Address, bytes: usize, accesses: In<Access>, count: usize) {
        vmm::set_access(&*Driver::get()?, address, bytes, accesses, count)
    }

    fn cuMemGetAccess(flags: Out<u64>, location: In<Location>, address: Address) {
        flags.put(vmm::access(&*Driver::get()?, location, address)?)
    }
}
