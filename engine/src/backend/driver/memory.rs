//! Memory from the driver: whole allocations, and pages mapped into reserved ranges.

use crate::backend::{BackendError, PageId};
use crate::device::{DeviceAddress, MemoryInfo};

use super::device::Device;
use super::table::PageAccess;

impl Device {
    pub(super) fn memory_info(&self) -> Result<MemoryInfo, BackendError> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: the places are valid.
        self.with(0, || unsafe {
            self.driver
                .functions
                .memory_info(&raw mut free, &raw mut total)
        })?;
        Ok(MemoryInfo {
            free_bytes: free as u64,
            total_bytes: total as u64,
        })
    }

    pub(super) fn allocate(&self, bytes: u64) -> Result<DeviceAddress, BackendError> {
        let mut address = 0;
        let length = self.length(bytes)?;
        // SAFETY: the place is valid.
        self.with(bytes, || unsafe {
            self.driver
                .functions
                .memory_allocate(&raw mut address, length)
        })?;
        Ok(DeviceAddress(address))
    }

    pub(super) fn free(&self, address: DeviceAddress) -> Result<(), BackendError> {
        // SAFETY: the driver checks the address.
        self.with(0, || unsafe {
            self.driver.functions.memory_free(address.0)
        })
    }

    /// Memory of the driver's own pool, on the default stream.
    pub(super) fn pool_allocate(&self, bytes: u64) -> Result<DeviceAddress, BackendError> {
        let mut address = 0;
        let length = self.length(bytes)?;
        // SAFETY: the place is valid.
        self.with(bytes, || unsafe {
            self.driver
                .functions
                .pool_allocate(&raw mut address, length, 0)
        })?;
        Ok(DeviceAddress(address))
    }

    pub(super) fn pool_free(&self, address: DeviceAddress) -> Result<(), BackendError> {
        // SAFETY: the driver checks the address.
        self.with(0, || unsafe {
            self.driver.functions.pool_free(address.0, 0)
        })
    }

    pub(super) fn reserve(&self, bytes: u64) -> Result<DeviceAddress, BackendError> {
        let mut address = 0;
        let length = self.length(bytes)?;
        // SAFETY: the place is valid; the driver picks address and alignment.
        self.with(bytes, || unsafe {
            self.driver
                .functions
                .range_reserve(&raw mut address, length, 0, 0, 0)
        })?;
        Ok(DeviceAddress(address))
    }

    pub(super) fn release(&self, base: DeviceAddress, bytes: u64) -> Result<(), BackendError> {
        let length = self.length(bytes)?;
        // SAFETY: the driver checks that the range was reserved and is empty.
        self.with(bytes, || unsafe {
            self.driver.functions.range_release(base.0, length)
        })
    }

    pub(super) fn create_page(&self, page_bytes: u64) -> Result<PageId, BackendError> {
        let (mut page, properties) = (0, self.page_properties());
        let length = self.length(page_bytes)?;
        // SAFETY: the places are valid.
        self.with(page_bytes, || unsafe {
            self.driver
                .functions
                .page_create(&raw mut page, length, &raw const properties, 0)
        })?;
        Ok(PageId(self.handles().add_page(page)))
    }

    pub(super) fn destroy_page(&self, page: PageId) -> Result<(), BackendError> {
        let raw = self.page(page)?;
        // SAFETY: the page is live: its number is taken off the books only below.
        self.with(0, || unsafe { self.driver.functions.page_release(raw) })?;
        self.handles().pages.remove(&page.0);
        Ok(())
    }

    /// Maps a page for `users`, the driver's numbers of the devices that may use it.
    pub(super) fn map(
        &self,
        address: DeviceAddress,
        page: PageId,
        page_bytes: u64,
        users: &[PageAccess],
    ) -> Result<(), BackendError> {
        let raw = self.page(page)?;
        let length = self.length(page_bytes)?;
        let functions = &self.driver.functions;
        self.with(page_bytes, || {
            // SAFETY: the page is live, and the driver checks the range.
            unsafe { functions.page_map(address.0, length, 0, raw, 0) }?;
            // SAFETY: `users` has the length that is given.
            let allowed =
                unsafe { functions.page_access(address.0, length, users.as_ptr(), users.len()) };
            if allowed.is_err() {
                // What failed has changed nothing. If the driver cannot undo the mapping either,
                // its first error is the one to report.
                // SAFETY: it was mapped above and nobody could use it.
                let _ = unsafe { functions.page_unmap(address.0, length) };
            }
            allowed
        })
    }

    pub(super) fn unmap(
        &self,
        address: DeviceAddress,
        page_bytes: u64,
    ) -> Result<(), BackendError> {
        let length = self.length(page_bytes)?;
        // SAFETY: the driver checks that the page is mapped there.
        self.with(0, || unsafe {
            self.driver.functions.page_unmap(address.0, length)
        })
    }

    fn page(&self, page: PageId) -> Result<u64, BackendError> {
        let found = self.handles().pages.get(&page.0).copied();
        found.ok_or_else(|| self.unknown(format!("there is no page {}", page.0)))
    }

    pub(super) fn length(&self, bytes: u64) -> Result<usize, BackendError> {
        usize::try_from(bytes)
            .map_err(|_| self.unknown(format!("{bytes} bytes are more than can be addressed")))
    }
}
