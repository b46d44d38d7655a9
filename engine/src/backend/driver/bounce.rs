//! Copies from device to device through page-locked host memory.

use std::sync::{Arc, Mutex, PoisonError};

use crate::backend::BackendError;
use crate::device::{DeviceAddress, StreamId};

use super::context::Context;
use super::device::Device;
use super::load::Driver;
use super::table::{RawHandle, Status};

/// How much passes through host memory at a time; two such parts are on their way at once.
const PART_BYTES: usize = 4 << 20;

/// The page-locked memory, made at the first copy that needs it and kept.
#[derive(Debug, Default)]
pub(super) struct Bounce {
    buffer: Mutex<Option<Pinned>>,
}

/// Two parts of page-locked memory.
#[derive(Debug)]
struct Pinned {
    address: RawHandle,
    driver: Driver,
    context: Arc<Context>,
}

impl Pinned {
    /// The device is the thread's already.
    fn new(device: &Device) -> Result<Self, Status> {
        /// `CU_MEMHOSTALLOC_PORTABLE` and `hipHostMallocPortable`: pinned for every device.
        const PORTABLE: u32 = 1;
        let context = Arc::clone(device.context()?);
        let mut address = 0;
        // SAFETY: the place is valid.
        unsafe {
            device
                .driver
                .functions
                .host_allocate(&raw mut address, 2 * PART_BYTES, PORTABLE)
        }?;
        Ok(Self {
            address,
            driver: device.driver.clone(),
            context,
        })
    }

    fn part(&self, number: usize) -> RawHandle {
        self.address + number % 2 * PART_BYTES
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Ok(_entered) = self.context.enter() {
            // SAFETY: it was allocated in `new`, and copies wait for their end. A lost context
            // refuses.
            let _ = unsafe { self.driver.functions.host_free(self.address) };
        }
    }
}

impl Bounce {
    /// Copies and waits. While one part goes to the target, the next comes from the source.
    pub(super) fn copy(
        &self,
        (source, from): (&Device, DeviceAddress),
        (target, to): (&Device, DeviceAddress),
        bytes: u64,
    ) -> Result<(), BackendError> {
        let mut buffer = self.buffer.lock().unwrap_or_else(PoisonError::into_inner);
        let pinned = match &mut *buffer {
            Some(pinned) => pinned,
            none => none.insert(source.with(2 * PART_BYTES as u64, || Pinned::new(source))?),
        };
        let total = source.length(bytes)?;
        let part_at = |number: usize| {
            let done = number * PART_BYTES;
            (done < total).then(|| (done as u64, PART_BYTES.min(total - done)))
        };
        let moved = pump(pinned, (source, from), (target, to), &part_at);
        // Nothing may be on its way when the parts are used again.
        let near = source.synchronize(StreamId::DEFAULT);
        let far = target.synchronize(StreamId::DEFAULT);
        moved.and(near).and(far)
    }
}

fn pump(
    pinned: &Pinned,
    (source, from): (&Device, DeviceAddress),
    (target, to): (&Device, DeviceAddress),
    part_at: &dyn Fn(usize) -> Option<(u64, usize)>,
) -> Result<(), BackendError> {
    let functions = &source.driver.functions;
    let fetch = |number: usize| match part_at(number) {
        // SAFETY: the part is page-locked and idle: what left it has arrived. The address is
        // of this backend (see `Backend`), here and below.
        Some((done, length)) => source.with(length as u64, || unsafe {
            functions.copy_to_host_async(pinned.part(number), from.0 + done, length, 0)
        }),
        None => Ok(()),
    };
    fetch(0)?;
    let mut number = 0;
    while let Some((done, length)) = part_at(number) {
        source.synchronize(StreamId::DEFAULT)?;
        // The other part is filled again only after it has arrived at the target.
        target.synchronize(StreamId::DEFAULT)?;
        // SAFETY: the part is page-locked and filled.
        target.with(length as u64, || unsafe {
            functions.copy_to_device_async(to.0 + done, pinned.part(number), length, 0)
        })?;
        number += 1;
        fetch(number)?;
    }
    Ok(())
}
