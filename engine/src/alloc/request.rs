//! What a caller asks for and what it gets.

use crate::device::{DeviceAddress, DeviceId, DeviceMask, StreamId};

use super::pool::{BlockId, Lifetime, UNIT_BYTES};

/// The largest alignment that a request may ask for, in bytes (2 MiB, the usual page).
pub const MAX_ALIGN_BYTES: u64 = 2 << 20;

/// One request for memory.
///
/// ```
/// use ds4_engine::alloc::Request;
/// use ds4_engine::device::DeviceMask;
///
/// let request = Request { mask: DeviceMask(0b11), ..Request::new(32 << 20) };
/// assert_eq!(request.align_bytes, 256);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// How many bytes, from 1 to `i64::MAX`.
    pub bytes: u64,
    /// The devices that may hold them; no bit at all means every device.
    pub mask: DeviceMask,
    /// A power of two up to [`MAX_ALIGN_BYTES`], in bytes.
    pub align_bytes: u64,
    /// The stream of the chosen device on which the memory is used first and freed.
    pub stream: StreamId,
    /// How long the block is expected to live.
    pub lifetime: Lifetime,
}

impl Request {
    /// `bytes` on any device, for transient use on the default stream.
    #[must_use]
    pub fn new(bytes: u64) -> Self {
        Self {
            bytes,
            mask: DeviceMask::EMPTY,
            align_bytes: UNIT_BYTES,
            stream: StreamId::DEFAULT,
            lifetime: Lifetime::Transient,
        }
    }
}

/// Names one live block of one allocator; every block gets a fresh one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Handle {
    pub(super) allocator: u32,
    pub(super) block: BlockId,
    pub(super) device: DeviceId,
}

impl Handle {
    /// The device that holds the block.
    #[must_use]
    pub fn device(self) -> DeviceId {
        self.device
    }
}

/// A granted request.
///
/// It is a plain description: the block lives until [`super::Allocator::free`] takes its handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// What [`super::Allocator::free`] takes.
    pub handle: Handle,
    /// The device that holds the block.
    pub device: DeviceId,
    /// Where the block begins on the device.
    pub address: DeviceAddress,
    /// The distance from the start of the device's pool, in bytes; equal on every backend.
    pub offset_bytes: u64,
    /// The bytes asked for.
    pub bytes: u64,
    /// The bytes taken: `bytes` rounded up to 256.
    pub reserved_bytes: u64,
    /// No device of the hint exists, and the least loaded device was taken instead.
    pub orphaned: bool,
}
