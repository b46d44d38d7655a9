//! An open allocator with what C callers need beside it: numbers of devices and of streams.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use ds4_engine::alloc::{Allocator, FreeError, Handle};
use ds4_engine::backend::driver::DriverBackend;
use ds4_engine::device::{DeviceAddress, DeviceId, StreamId};

use crate::failure::Failure;
use crate::torch::Plan;

/// An open allocator.
#[derive(Debug)]
pub(crate) struct Instance {
    pub(crate) allocator: Allocator,
    /// The devices, if they are real: they take over streams that others made.
    driver: Option<Arc<DriverBackend>>,
    /// The numbers of streams that others made, by device and their own handle.
    adopted: Mutex<BTreeMap<(DeviceId, usize), StreamId>>,
    /// Where PyTorch's memory may lie, once PyTorch asked and was told.
    pub(crate) torch: OnceLock<Plan>,
}

impl Instance {
    pub(crate) fn new(allocator: Allocator, driver: Option<Arc<DriverBackend>>) -> Self {
        Self {
            allocator,
            driver,
            adopted: Mutex::default(),
            torch: OnceLock::new(),
        }
    }

    /// How many calls of the driver were made, if the devices are real.
    pub(crate) fn driver_calls(&self) -> Option<u64> {
        self.driver.as_ref().map(|driver| driver.driver_calls())
    }

    pub(crate) fn close(self) -> Result<(), Failure> {
        self.allocator.close()?;
        Ok(())
    }

    /// The device of a number that C passed.
    pub(crate) fn device(&self, number: c_int) -> Result<DeviceId, Failure> {
        let count = self.allocator.device_count();
        usize::try_from(number)
            .ok()
            .filter(|index| *index < count)
            .and_then(DeviceId::new)
            .ok_or_else(|| {
                Failure::Argument(format!("there is no device {number}; there are {count}"))
            })
    }

    /// The number of a stream that somebody else made, the same each time; 0 is the default one.
    ///
    /// A simulated device has no streams but its own: each handle stands for a new one.
    pub(crate) fn stream(&self, device: DeviceId, raw: usize) -> Result<StreamId, Failure> {
        if raw == 0 {
            return Ok(StreamId::DEFAULT);
        }
        let mut adopted = self.adopted.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = adopted.get(&(device, raw)) {
            return Ok(*known);
        }
        let stream = match &self.driver {
            Some(driver) => {
                let stream = driver.adopt_stream(device, raw)?;
                self.allocator.register_stream(device, stream);
                stream
            }
            None => self.allocator.create_stream(device)?,
        };
        adopted.insert((device, raw), stream);
        Ok(stream)
    }

    /// The live block around an address, and the distance from its start in bytes.
    pub(crate) fn block_around(&self, address: DeviceAddress) -> Result<(Handle, u64), FreeError> {
        match self.allocator.handle_at(address) {
            Err(FreeError::Interior { start, .. }) => {
                let handle = self.allocator.handle_at(start)?;
                Ok((handle, address.0 - start.0))
            }
            found => found.map(|handle| (handle, 0)),
        }
    }
}

/// The device address of a pointer.
#[inline]
pub(crate) fn address(pointer: *const c_void) -> DeviceAddress {
    DeviceAddress(pointer.addr() as u64)
}

/// The pointer of a device address.
#[inline]
pub(crate) fn pointer(address: DeviceAddress) -> *mut c_void {
    // An address of a device has no provenance on the host: nothing here follows it.
    std::ptr::without_provenance_mut(usize::try_from(address.0).unwrap_or(0))
}
