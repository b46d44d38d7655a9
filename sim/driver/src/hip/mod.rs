//! The HIP runtime, one file for each area. Names, parameters and codes are those of
//! `hip_runtime_api.h`.
//!
//! A thread has a current device, the first one unless it says otherwise; what CUDA hangs on a
//! context belongs to the device's primary context here.

mod device;
mod memory;
mod module;
mod stream;
mod virtual_memory;

use std::cell::Cell;

use crate::context::Current;
use crate::driver::Driver;
use crate::status::Status;

thread_local! {
    static DEVICE: Cell<i32> = const { Cell::new(0) };
}

/// The thread's current device, and the driver, which needs no initialisation.
fn current() -> Result<Current, Status> {
    let driver = Driver::initialise()?;
    let device = driver.device(DEVICE.get())?;
    let mut tables = driver.tables();
    let context = tables.primary(device)?;
    // It is held from the first use on.
    if let Some(primary) = tables.contexts.get_mut(&context) {
        primary.references = primary.references.max(1);
    }
    drop(tables);
    Ok(Current {
        driver,
        context,
        device,
    })
}
