//! The one trait behind which devices live, simulated or real, and the real ones ([`driver`]).
//!
//! A backend reports only what a caller cannot foresee: out of memory, a lost device, an error of
//! the driver. Everything that can be checked without a device (sizes, masks, handles, bounds of
//! live blocks) is checked once, by [`crate::alloc`].

#[expect(unsafe_code, reason = "drivers are C libraries")]
pub mod driver;
mod peer_probe;

use std::fmt;

use ds4_kernels::Launch;

use crate::device::{
    DeviceAddress, DeviceId, DeviceInfo, DeviceMask, MemoryInfo, PeerAccess, StreamId,
};

/// A recorded point in a stream, by its per-device number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventId(pub u64);

/// A page of physical device memory that can be mapped into a reserved range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageId(pub u64);

/// Who said that memory is exhausted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OomOrigin {
    /// The driver.
    Driver,
    /// Entry `entry` of a fault plan.
    Injected {
        /// Index of the entry in the plan.
        entry: usize,
    },
}

/// What went wrong below the allocator, by what the caller can do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackendError {
    /// Free memory on the device, or try another one.
    OutOfMemory {
        /// The device that was asked.
        device: DeviceId,
        /// The driver function that refused.
        call: &'static str,
        /// The bytes that were asked for.
        asked_bytes: u64,
        /// Who refused.
        origin: OomOrigin,
    },
    /// The device is gone or its context is poisoned: nothing on it will succeed any more.
    DeviceLost {
        /// The device that is gone.
        device: DeviceId,
        /// The driver function that noticed.
        call: &'static str,
        /// What the driver said.
        detail: String,
    },
    /// The device or driver cannot do this at all: take another path.
    Unsupported {
        /// The device that was asked.
        device: DeviceId,
        /// The function that is missing.
        call: &'static str,
    },
    /// The driver refused for another reason, named in its own words.
    Driver {
        /// The device that was asked.
        device: DeviceId,
        /// The driver function that failed.
        call: &'static str,
        /// What the driver said, with its code.
        detail: String,
    },
}

impl fmt::Display for BackendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfMemory {
                device,
                call,
                asked_bytes,
                origin,
            } => {
                write!(
                    f,
                    "{call} on {device}: out of memory for {asked_bytes} bytes"
                )?;
                match origin {
                    OomOrigin::Driver => Ok(()),
                    OomOrigin::Injected { entry } => write!(f, " (injected by fault {entry})"),
                }
            }
            Self::DeviceLost {
                device,
                call,
                detail,
            } => {
                write!(f, "{call} on {device}: device lost ({detail})")
            }
            Self::Unsupported { device, call } => {
                write!(
                    f,
                    "{call} on {device}: not supported by this device or driver"
                )
            }
            Self::Driver {
                device,
                call,
                detail,
            } => write!(f, "{call} on {device}: {detail}"),
        }
    }
}

impl std::error::Error for BackendError {}

/// A set of devices with their memory, streams and links.
///
/// Methods take `&self` and may be called from several threads at once. Every `device` must be
/// one of [`Backend::devices`]; another one is answered with [`BackendError::Driver`]. No method
/// panics on what a caller passes.
///
/// Addresses are those of this backend: a call reads, writes and maps only where it was handed
/// memory or a range that it still has. A driver need not check that, and need not survive other
/// addresses; [`crate::alloc`] passes only those of its own pools. What is given back is compared
/// with what was handed out, and anything else is answered with [`BackendError::Driver`].
///
/// # Errors
/// Every method may fail with [`BackendError::DeviceLost`] or [`BackendError::Driver`]; the
/// methods that take memory also with [`BackendError::OutOfMemory`], and those for which
/// [`DeviceInfo::page_bytes`] or [`Backend::peer_access`] announces no support with
/// [`BackendError::Unsupported`]. A failed call has changed nothing.
#[expect(clippy::missing_errors_doc, reason = "stated once for the whole trait")]
pub trait Backend: Send + Sync + fmt::Debug {
    /// The name by which users ask for this backend: `sim`, `cuda`, `hip`.
    fn name(&self) -> &'static str;

    /// What really answers: the driver file that was loaded, or the simulated machine.
    fn origin(&self) -> String;

    /// The devices; the index is the [`DeviceId`].
    fn devices(&self) -> &[DeviceInfo];

    /// Free and total bytes of the device, other processes' use included.
    fn memory_info(&self, device: DeviceId) -> Result<MemoryInfo, BackendError>;

    /// Takes `bytes` of memory, aligned to 256 bytes or more; the device loses as many as
    /// [`DeviceInfo::granularity_bytes`] rounds them up to.
    fn allocate(&self, device: DeviceId, bytes: u64) -> Result<DeviceAddress, BackendError>;

    /// Gives back what [`Backend::allocate`] returned.
    fn free(&self, device: DeviceId, address: DeviceAddress) -> Result<(), BackendError>;

    /// Reserves `bytes` of address space, aligned to 2 MiB or more, with nothing behind it.
    fn reserve(&self, device: DeviceId, bytes: u64) -> Result<DeviceAddress, BackendError>;

    /// Gives back a whole range from [`Backend::reserve`], of which nothing is mapped any more.
    fn release(
        &self,
        device: DeviceId,
        base: DeviceAddress,
        bytes: u64,
    ) -> Result<(), BackendError>;

    /// Takes one page of physical memory of [`DeviceInfo::page_bytes`].
    fn create_page(&self, device: DeviceId) -> Result<PageId, BackendError>;

    /// Gives back a page that is not mapped.
    fn destroy_page(&self, device: DeviceId, page: PageId) -> Result<(), BackendError>;

    /// Maps `page` at `address`, a multiple of the page size inside a reserved range, readable
    /// and writable by this device and by the devices in `peers`.
    fn map(
        &self,
        device: DeviceId,
        address: DeviceAddress,
        page: PageId,
        peers: DeviceMask,
    ) -> Result<(), BackendError>;

    /// Unmaps the page at `address`; the page keeps its memory.
    fn unmap(&self, device: DeviceId, address: DeviceAddress) -> Result<(), BackendError>;

    /// Makes a stream; its number is the least one not in use on the device, from 1 on.
    fn create_stream(&self, device: DeviceId) -> Result<StreamId, BackendError>;

    /// Waits for a stream's work and removes it.
    fn destroy_stream(&self, device: DeviceId, stream: StreamId) -> Result<(), BackendError>;

    /// Waits until all work of a stream is done.
    fn synchronize(&self, device: DeviceId, stream: StreamId) -> Result<(), BackendError>;

    /// Records the work that the stream holds now.
    fn record_event(&self, device: DeviceId, stream: StreamId) -> Result<EventId, BackendError>;

    /// Whether everything before the event is done.
    fn event_done(&self, device: DeviceId, event: EventId) -> Result<bool, BackendError>;

    /// Waits until everything before the event is done.
    fn wait_event(&self, device: DeviceId, event: EventId) -> Result<(), BackendError>;

    /// Makes later work of `stream` wait for an event, which may belong to another device.
    fn stream_wait_event(
        &self,
        device: DeviceId,
        stream: StreamId,
        event_device: DeviceId,
        event: EventId,
    ) -> Result<(), BackendError>;

    /// Removes an event.
    fn destroy_event(&self, device: DeviceId, event: EventId) -> Result<(), BackendError>;

    /// Copies from host memory to the device and waits.
    fn write(
        &self,
        device: DeviceId,
        address: DeviceAddress,
        data: &[u8],
    ) -> Result<(), BackendError>;

    /// Copies from the device to host memory and waits.
    fn read(
        &self,
        device: DeviceId,
        address: DeviceAddress,
        data: &mut [u8],
    ) -> Result<(), BackendError>;

    /// Sets `bytes` bytes to `value`, in stream order.
    fn fill(
        &self,
        device: DeviceId,
        address: DeviceAddress,
        bytes: u64,
        value: u8,
        stream: StreamId,
    ) -> Result<(), BackendError>;

    /// Copies between two places of one device, in stream order.
    fn copy_local(
        &self,
        device: DeviceId,
        from: DeviceAddress,
        to: DeviceAddress,
        bytes: u64,
        stream: StreamId,
    ) -> Result<(), BackendError>;

    /// Copies from one device to another over their direct path, in order of the source's stream.
    fn copy_peer(
        &self,
        from: (DeviceId, DeviceAddress),
        to: (DeviceId, DeviceAddress),
        bytes: u64,
        stream: StreamId,
    ) -> Result<(), BackendError>;

    /// Copies from one device to another through host memory and waits; the caller has waited for
    /// earlier work on both places.
    fn copy_via_host(
        &self,
        from: (DeviceId, DeviceAddress),
        to: (DeviceId, DeviceAddress),
        bytes: u64,
    ) -> Result<(), BackendError> {
        const PART_BYTES: u64 = 16 << 20;
        let mut host = vec![0; usize::try_from(bytes.min(PART_BYTES)).unwrap_or(0)];
        let mut done = 0;
        while done < bytes {
            let part = usize::try_from((bytes - done).min(PART_BYTES)).unwrap_or(0);
            let Some(part) = host.get_mut(..part).filter(|part| !part.is_empty()) else {
                break;
            };
            self.read(from.0, DeviceAddress(from.1.0 + done), part)?;
            self.write(to.0, DeviceAddress(to.1.0 + done), part)?;
            done += part.len() as u64;
        }
        Ok(())
    }

    /// Runs a kernel on the device, in stream order. Its addresses may be those of peers to which
    /// the device has a direct path.
    fn launch(
        &self,
        device: DeviceId,
        stream: StreamId,
        launch: &Launch,
    ) -> Result<(), BackendError>;

    /// Whether `from` reaches the memory of `to`, judged by bytes that were sent and compared.
    fn peer_access(&self, from: DeviceId, to: DeviceId) -> Result<PeerAccess, BackendError>;
}
