//! Copies between live blocks, with the path that was taken.

use std::fmt;

use crate::backend::BackendError;
use crate::device::{DeviceAddress, DeviceId, PeerAccess, StreamId};

use super::Allocator;
use super::error::FreeError;
use super::request::Handle;

/// The way that bytes took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyPath {
    /// Both blocks are on one device.
    SameDevice,
    /// Straight from device to device.
    Peer,
    /// Through host memory, because the devices do not reach each other.
    HostBounce,
}

impl fmt::Display for CopyPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SameDevice => "same device",
            Self::Peer => "peer",
            Self::HostBounce => "host bounce",
        })
    }
}

/// What a copy did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyReport {
    /// The way that the bytes took.
    pub path: CopyPath,
    /// The bytes that were copied.
    pub bytes: u64,
}

/// Why bytes were not copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CopyError {
    /// The source or destination is not a live block.
    NotLive(FreeError),
    /// The copy would leave a block.
    OutOfBounds {
        /// Where in the block the copy begins, in bytes.
        offset_bytes: u64,
        /// How much was to be copied.
        bytes: u64,
        /// The size of the block, in bytes.
        block_bytes: u64,
    },
    /// Source and destination overlap.
    Overlap,
    /// The backend failed; the destination may hold part of the bytes.
    Backend(BackendError),
}

impl fmt::Display for CopyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotLive(error) => write!(f, "copy refused: {error}"),
            Self::OutOfBounds {
                offset_bytes,
                bytes,
                block_bytes,
            } => write!(
                f,
                "copy refused: {bytes} bytes at {offset_bytes} leave a block of {block_bytes} bytes"
            ),
            Self::Overlap => write!(f, "copy refused: source and destination overlap"),
            Self::Backend(error) => write!(f, "copy failed: {error}"),
        }
    }
}

impl std::error::Error for CopyError {}

impl From<BackendError> for CopyError {
    fn from(error: BackendError) -> Self {
        Self::Backend(error)
    }
}

/// One end of a copy.
#[derive(Clone, Copy, PartialEq, Eq)]
struct End {
    device: DeviceId,
    stream: StreamId,
    address: DeviceAddress,
}

impl Allocator {
    /// Copies `bytes` from `from_offset` of one block to `to_offset` of another.
    ///
    /// The copy takes its turn in the streams of both blocks: it comes after what they hold now
    /// and before what they are given later. A bounced copy is complete on return.
    ///
    /// # Errors
    /// [`CopyError::NotLive`], [`CopyError::OutOfBounds`] and [`CopyError::Overlap`] before
    /// anything is copied, [`CopyError::Backend`] after that: wait for the streams of both blocks
    /// before using them again.
    pub fn copy(
        &self,
        (from, from_offset): (Handle, u64),
        (to, to_offset): (Handle, u64),
        bytes: u64,
    ) -> Result<CopyReport, CopyError> {
        let source = self.end(from, from_offset, bytes)?;
        let target = self.end(to, to_offset, bytes)?;
        let distance = source.address.0.abs_diff(target.address.0);
        if bytes > 0 && source.device == target.device && distance < bytes {
            return Err(CopyError::Overlap);
        }
        let path = if source.device == target.device {
            CopyPath::SameDevice
        } else {
            match self.backend.peer_access(source.device, target.device)? {
                PeerAccess::Direct => CopyPath::Peer,
                PeerAccess::Absent | PeerAccess::Bounce | PeerAccess::Broken => {
                    CopyPath::HostBounce
                }
            }
        };
        if bytes > 0 {
            self.copy_by(path, source, target, bytes)?;
        }
        Ok(CopyReport { path, bytes })
    }

    /// Copies host memory into a block from `offset_bytes` on, after all work on its device, and
    /// waits.
    ///
    /// # Errors
    /// [`CopyError::NotLive`] and [`CopyError::OutOfBounds`] before anything is copied,
    /// [`CopyError::Backend`] after that.
    pub fn write(&self, block: Handle, offset_bytes: u64, data: &[u8]) -> Result<(), CopyError> {
        let target = self.end(block, offset_bytes, data.len() as u64)?;
        if data.is_empty() {
            return Ok(());
        }
        self.synchronize(target.device)?;
        Ok(self.backend.write(target.device, target.address, data)?)
    }

    /// Copies a block from `offset_bytes` on into host memory, after all work on its device, and
    /// waits.
    ///
    /// # Errors
    /// As [`Allocator::write`].
    pub fn read(&self, block: Handle, offset_bytes: u64, data: &mut [u8]) -> Result<(), CopyError> {
        let source = self.end(block, offset_bytes, data.len() as u64)?;
        if data.is_empty() {
            return Ok(());
        }
        self.synchronize(source.device)?;
        Ok(self.backend.read(source.device, source.address, data)?)
    }

    /// Whether a block holds `bytes` bytes from `offset_bytes` on.
    ///
    /// # Errors
    /// [`CopyError::NotLive`] and [`CopyError::OutOfBounds`].
    pub fn holds(&self, block: Handle, offset_bytes: u64, bytes: u64) -> Result<(), CopyError> {
        self.end(block, offset_bytes, bytes).map(|_| ())
    }

    fn copy_by(
        &self,
        path: CopyPath,
        source: End,
        target: End,
        bytes: u64,
    ) -> Result<(), BackendError> {
        let backend = &*self.backend;
        if path == CopyPath::HostBounce {
            backend.synchronize(source.device, source.stream)?;
            backend.synchronize(target.device, target.stream)?;
            let (from, to) = (
                (source.device, source.address),
                (target.device, target.address),
            );
            return backend.copy_via_host(from, to, bytes);
        }
        // What the target's stream still reads or writes there must end before it is overwritten.
        self.order(target, source)?;
        if path == CopyPath::SameDevice {
            let (from, to) = (source.address, target.address);
            backend.copy_local(source.device, from, to, bytes, source.stream)?;
        } else {
            let (from, to) = (
                (source.device, source.address),
                (target.device, target.address),
            );
            backend.copy_peer(from, to, bytes, source.stream)?;
        }
        self.order(source, target)
    }

    /// Makes later work of `after`'s stream wait for the present work of `before`'s stream.
    fn order(&self, before: End, after: End) -> Result<(), BackendError> {
        if (before.device, before.stream) == (after.device, after.stream) {
            return Ok(());
        }
        // Without an event the host can wait instead; nothing may be left without an order.
        self.order_by_event(before, after)
            .or_else(|_| self.backend.synchronize(before.device, before.stream))
    }

    fn order_by_event(&self, before: End, after: End) -> Result<(), BackendError> {
        let event = self.backend.record_event(before.device, before.stream)?;
        let waits =
            self.backend
                .stream_wait_event(after.device, after.stream, before.device, event);
        if self.backend.destroy_event(before.device, event).is_err()
            && let Some((_, mut arena)) = self.lock(before.device)
        {
            arena.adopt_stray(event);
        }
        waits
    }

    fn end(&self, handle: Handle, offset_bytes: u64, bytes: u64) -> Result<End, CopyError> {
        let (_, arena) = self.owner(handle).map_err(CopyError::NotLive)?;
        let (start, block_bytes) = arena.extent(handle.block).map_err(CopyError::NotLive)?;
        let stream = arena.stream_of(handle.block).map_err(CopyError::NotLive)?;
        match offset_bytes.checked_add(bytes) {
            Some(end) if end <= block_bytes => {
                let address = DeviceAddress(start.0 + offset_bytes);
                Ok(End {
                    device: handle.device(),
                    stream,
                    address,
                })
            }
            _ => Err(CopyError::OutOfBounds {
                offset_bytes,
                bytes,
                block_bytes,
            }),
        }
    }
}
