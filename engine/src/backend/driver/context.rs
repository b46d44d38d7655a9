//! The calling thread's device: set for the length of a call, then as it was.

use super::Vendor;
use super::load::Driver;
use super::table::{RawHandle, Status};

/// A device that is open: CUDA's primary context, which all of the process shares, or HIP's number.
#[derive(Debug)]
pub(super) struct Context {
    driver: Driver,
    pub(super) device: i32,
    pub(super) raw: RawHandle,
}

/// Until it is dropped, the calling thread's device is the one entered.
pub(super) struct Entered<'a> {
    context: &'a Context,
    before: Before,
}

enum Before {
    Same,
    Context(RawHandle),
    Device(i32),
}

impl Context {
    /// Opens a device of the driver; on CUDA this makes the primary context if nobody has yet.
    pub(super) fn open(driver: &Driver, device: i32) -> Result<Self, Status> {
        let functions = &driver.functions;
        let mut raw = 0;
        if driver.vendor == Vendor::Cuda {
            // SAFETY: the place is valid and the device exists.
            unsafe { functions.context_retain(&raw mut raw, device) }?;
        }
        Ok(Self {
            driver: driver.clone(),
            device,
            raw,
        })
    }

    /// Makes the device the calling thread's.
    pub(super) fn enter(&self) -> Result<Entered<'_>, Status> {
        let functions = &self.driver.functions;
        let before = match self.driver.vendor {
            Vendor::Cuda => {
                let mut current = 0;
                // SAFETY: the place is valid.
                unsafe { functions.context_get(&raw mut current) }?;
                if current == self.raw {
                    Before::Same
                } else {
                    // SAFETY: the context is retained while `self` lives.
                    unsafe { functions.context_set(self.raw) }?;
                    Before::Context(current)
                }
            }
            Vendor::Hip => {
                let mut current = 0;
                // SAFETY: the place is valid.
                unsafe { functions.device_current(&raw mut current) }?;
                if current == self.device {
                    Before::Same
                } else {
                    // SAFETY: the device exists.
                    unsafe { functions.device_set(self.device) }?;
                    Before::Device(current)
                }
            }
        };
        Ok(Entered {
            context: self,
            before,
        })
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let functions = &self.context.driver.functions;
        // What was the thread's before is set again; if its owner destroyed it meanwhile, the
        // driver refuses and there is nothing to restore.
        let _ = match self.before {
            Before::Same => Ok(()),
            // SAFETY: the driver checks the context.
            Before::Context(context) => unsafe { functions.context_set(context) },
            // SAFETY: the driver checks the device.
            Before::Device(device) => unsafe { functions.device_set(device) },
        };
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if self.driver.vendor == Vendor::Cuda {
            // SAFETY: the reference was taken when the device was opened. A driver that is
            // shutting down refuses, and then nothing is left to give back.
            let _ = unsafe { self.driver.functions.context_release(self.device) };
        }
    }
}
