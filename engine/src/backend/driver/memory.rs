//! Memory from the driver: whole allocations, and pages mapped into reserved ranges.

use std::sync::Arc;

use crate::backend::{BackendError, PageId};
use crate::device::{DeviceAddress, MemoryInfo};

use super::device::Device;
use super::table::PageAccess;

/// The driver's handle of one page of physical memory.
#[derive(Debug)]
pub(super) struct Page {
    raw: u64,
}

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
        self.handles().allocations.insert(address);
        Ok(DeviceAddress(address))
    }

    pub(super) fn free(&self, address: DeviceAddress) -> Result<(), BackendError> {
        if !self.handles().allocations.remove(&address.0) {
            return Err(self.unknown(format!("nothing was allocated at {address}")));
        }
        // SAFETY: it was allocated, and nobody else frees it: it is off the books.
        let freed = self.with(0, || unsafe {
            self.driver.functions.memory_free(address.0)
        });
        if freed.is_err() {
            self.handles().allocations.insert(address.0);
        }
        freed
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
        // No books are kept of this: they would be counted as the driver's time.
        // SAFETY: the address is of `pool_allocate`, as its owner promises.
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
        self.handles().ranges.insert(address, bytes);
        Ok(DeviceAddress(address))
    }

    pub(super) fn release(&self, base: DeviceAddress, bytes: u64) -> Result<(), BackendError> {
        let length = self.length(bytes)?;
        let mut handles = self.handles();
        if handles.ranges.get(&base.0) != Some(&bytes) {
            drop(handles);
            return Err(self.unknown(format!("no {bytes} bytes were reserved at {base}")));
        }
        handles.ranges.remove(&base.0);
        drop(handles);
        // SAFETY: it was reserved, with this length, and nobody else releases it: it is off the
        // books. The driver refuses a range in which something is mapped.
        let released = self.with(bytes, || unsafe {
            self.driver.functions.range_release(base.0, length)
        });
        if released.is_err() {
            self.handles().ranges.insert(base.0, bytes);
        }
        released
    }

    pub(super) fn create_page(&self, page_bytes: u64) -> Result<PageId, BackendError> {
        let (mut raw, properties) = (0, self.page_properties());
        let length = self.length(page_bytes)?;
        // SAFETY: the places are valid.
        self.with(page_bytes, || unsafe {
            self.driver
                .functions
                .page_create(&raw mut raw, length, &raw const properties, 0)
        })?;
        Ok(PageId(self.handles().add_page(Page { raw })))
    }

    pub(super) fn destroy_page(&self, page: PageId) -> Result<(), BackendError> {
        let taken = self.take_page(page)?;
        // SAFETY: the page is live, and nobody else has it: it is off the books and not mapped.
        let released = self.with(0, || unsafe {
            self.driver.functions.page_release(taken.raw)
        });
        if released.is_err() {
            self.handles().pages.insert(page.0, Arc::new(taken));
        }
        released
    }

    /// Takes a page off the books, unless it is mapped or just being mapped.
    fn take_page(&self, page: PageId) -> Result<Page, BackendError> {
        let mut handles = self.handles();
        let shared = match handles.pages.remove(&page.0).map(Arc::try_unwrap) {
            Some(Ok(taken)) => return Ok(taken),
            Some(Err(shared)) => shared,
            None => {
                drop(handles);
                return Err(self.unknown(format!("there is no page {}", page.0)));
            }
        };
        handles.pages.insert(page.0, shared);
        drop(handles);
        Err(self.unknown(format!("page {} is mapped", page.0)))
    }

    /// Maps a page for `users`, the driver's numbers of the devices that may use it.
    pub(super) fn map(
        &self,
        address: DeviceAddress,
        page: PageId,
        page_bytes: u64,
        users: &[PageAccess],
    ) -> Result<(), BackendError> {
        let page = self.page(page)?;
        let length = self.length(page_bytes)?;
        let functions = &self.driver.functions;
        self.with(page_bytes, || {
            // SAFETY: the page is live while it is held here; the address is of a range of this
            // backend (see `Backend`).
            unsafe { functions.page_map(address.0, length, 0, page.raw, 0) }?;
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
        })?;
        self.handles().mappings.insert(address.0, page);
        Ok(())
    }

    pub(super) fn unmap(
        &self,
        address: DeviceAddress,
        page_bytes: u64,
    ) -> Result<(), BackendError> {
        let length = self.length(page_bytes)?;
        let Some(page) = self.handles().mappings.remove(&address.0) else {
            return Err(self.unknown(format!("nothing is mapped at {address}")));
        };
        // SAFETY: a page is mapped there, and nobody else unmaps it: it is off the books.
        let unmapped = self.with(0, || unsafe {
            self.driver.functions.page_unmap(address.0, length)
        });
        if unmapped.is_err() {
            self.handles().mappings.insert(address.0, page);
        }
        unmapped
    }

    fn page(&self, page: PageId) -> Result<Arc<Page>, BackendError> {
        let found = self.handles().pages.get(&page.0).cloned();
        found.ok_or_else(|| self.unknown(format!("there is no page {}", page.0)))
    }

    pub(super) fn length(&self, bytes: u64) -> Result<usize, BackendError> {
        usize::try_from(bytes)
            .map_err(|_| self.unknown(format!("{bytes} bytes are more than can be addressed")))
    }
}
