//! Copies with the host, within a device and between devices.

use crate::backend::BackendError;
use crate::device::{DeviceAddress, StreamId};

use super::Vendor;
use super::device::{Device, raw};

impl Device {
    /// Copies from host memory and waits.
    pub(super) fn write(&self, address: DeviceAddress, data: &[u8]) -> Result<(), BackendError> {
        if data.is_empty() {
            return Ok(());
        }
        let functions = &self.driver.functions;
        self.with(data.len() as u64, || {
            // SAFETY: `data` has the length that is given; the address is of this backend (see
            // `Backend`).
            unsafe { functions.copy_to_device(address.0, data.as_ptr(), data.len()) }?;
            // From pageable memory the call may return when the bytes are staged, not yet there
            // (CUDA driver API, "API synchronization behavior").
            // SAFETY: 0 is the default stream.
            unsafe { functions.stream_synchronize(0) }
        })
    }

    /// Copies to host memory and waits.
    pub(super) fn read(&self, address: DeviceAddress, data: &mut [u8]) -> Result<(), BackendError> {
        if data.is_empty() {
            return Ok(());
        }
        // SAFETY: `data` has the length that is given; the address is of this backend (see
        // `Backend`).
        self.with(data.len() as u64, || unsafe {
            self.driver
                .functions
                .copy_to_host(data.as_mut_ptr(), address.0, data.len())
        })
    }

    pub(super) fn fill(
        &self,
        address: DeviceAddress,
        bytes: u64,
        value: u8,
        stream: StreamId,
    ) -> Result<(), BackendError> {
        let (stream, length) = (self.stream(stream)?, self.length(bytes)?);
        // SAFETY: the stream is live, the address is of this backend (see `Backend`).
        self.with(bytes, || unsafe {
            self.driver
                .functions
                .fill(address.0, value, length, raw(&stream))
        })
    }

    pub(super) fn copy_local(
        &self,
        from: DeviceAddress,
        to: DeviceAddress,
        bytes: u64,
        stream: StreamId,
    ) -> Result<(), BackendError> {
        let (stream, length) = (self.stream(stream)?, self.length(bytes)?);
        // SAFETY: the stream is live, the addresses are of this backend (see `Backend`).
        self.with(bytes, || unsafe {
            self.driver
                .functions
                .copy_on_device(to.0, from.0, length, raw(&stream))
        })
    }

    pub(super) fn copy_peer(
        &self,
        from: DeviceAddress,
        (target, to): (&Self, DeviceAddress),
        bytes: u64,
        stream: StreamId,
    ) -> Result<(), BackendError> {
        let (stream, length) = (self.stream(stream)?, self.length(bytes)?);
        let functions = &self.driver.functions;
        self.with(bytes, || match self.driver.vendor {
            Vendor::Cuda => {
                let (near, far) = (self.context()?.raw, target.context()?.raw);
                // SAFETY: stream and contexts are live, the addresses are of this backend (see
                // `Backend`).
                unsafe {
                    functions.copy_between_contexts(to.0, far, from.0, near, length, raw(&stream))
                }
            }
            // SAFETY: the stream is live, the addresses are of this backend (see `Backend`).
            Vendor::Hip => unsafe {
                functions.copy_between_devices(
                    to.0,
                    target.number,
                    from.0,
                    self.number,
                    length,
                    raw(&stream),
                )
            },
        })
    }

    /// Lets kernels and copies of this device reach the memory of `peer`; `false` if the driver
    /// offers no such path.
    pub(super) fn enable_peer(&self, peer: &Self) -> Result<bool, BackendError> {
        let functions = &self.driver.functions;
        let mut can = 0;
        self.with(0, || {
            // SAFETY: the place is valid and both devices exist.
            unsafe { functions.can_access_peer(&raw mut can, self.number, peer.number) }
        })?;
        if can == 0 {
            return Ok(false);
        }
        self.with(0, || {
            let enabled = match self.driver.vendor {
                Vendor::Cuda => {
                    let far = peer.context()?.raw;
                    // SAFETY: the context is live.
                    unsafe { functions.context_enable_peer(far, 0) }
                }
                // SAFETY: the device exists.
                Vendor::Hip => unsafe { functions.device_enable_peer(peer.number, 0) },
            };
            match enabled {
                Err(status) if status.code != super::status::PEER_ACCESS_ALREADY_ENABLED => {
                    Err(status)
                }
                _ => Ok(()),
            }
        })?;
        Ok(true)
    }
}
