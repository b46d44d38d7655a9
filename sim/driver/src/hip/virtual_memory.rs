//! Virtual memory management.

use super::current;
use crate::call::export;
use crate::raw::{Address, In, Out};
use crate::status::Status;
use crate::tables::Handle;
use crate::vmm::{self, Access, Properties};

export! {
    fn hipMemGetAllocationGranularity(bytes: Out<usize>, properties: In<Properties>, _option: u32) {
        bytes.put(vmm::granularity(&current()?.driver, properties)?)
    }

    fn hipMemAddressReserve(
        out: Out<u64>,
        bytes: usize,
        align: usize,
        _hint: Address,
        _flags: u64,
    ) {
        let current = current()?;
        out.make(|| vmm::reserve(&current.driver, current.device, bytes, align))
    }

    fn hipMemAddressFree(address: Address, bytes: usize) {
        vmm::unreserve(&current()?.driver, address, bytes)
    }

    fn hipMemCreate(out: Out<Handle>, bytes: usize, properties: In<Properties>, flags: u64) {
        if out.is_null() || flags != 0 {
            return Err(Status::INVALID_VALUE);
        }
        out.put(vmm::create(&current()?.driver, bytes, properties)?)
    }

    fn hipMemRelease(handle: Handle) {
        vmm::release(&current()?.driver, handle)
    }

    fn hipMemRetainAllocationHandle(out: Out<Handle>, address: Address) {
        out.make(|| vmm::retain(&current()?.driver, address))
    }

    fn hipMemMap(address: Address, bytes: usize, offset: usize, handle: Handle, flags: u64) {
        if flags != 0 {
            return Err(Status::INVALID_VALUE);
        }
        vmm::map(&current()?.driver, address, bytes, offset, handle)
    }

    fn hipMemUnmap(address: Address, bytes: usize) {
        vmm::unmap(&current()?.driver, address, bytes)
    }

    fn hipMemSetAccess(address: Address, bytes: usize, accesses: In<Access>, count: usize) {
        vmm::set_access(&current()?.driver, address, bytes, accesses, count)
    }
}
