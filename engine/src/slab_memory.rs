//! A rank's slab in device memory: one allocation under a placement, zeroed before anyone sees it.
//!
//! This is where the allocator and the ranks meet; neither knows the other.

use std::fmt;

use crate::alloc::{AllocError, Allocation, Allocator, Lifetime, Request};
use crate::backend::BackendError;
use crate::device::{DeviceMask, StreamId};
use crate::tp::slab::{ALIGN_BYTES, SlabLayout};

/// Why there is no slab.
#[derive(Debug)]
pub enum SlabMemoryError {
    /// The allocator refused; nothing has changed.
    Refused(AllocError),
    /// The memory could not be zeroed; it was given back.
    Zeroing(BackendError),
}

impl fmt::Display for SlabMemoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(error) => write!(f, "no memory for the slab: {error}"),
            Self::Zeroing(error) => write!(f, "the slab could not be zeroed: {error}"),
        }
    }
}

impl std::error::Error for SlabMemoryError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Refused(error) => Some(error),
            Self::Zeroing(error) => Some(error),
        }
    }
}

/// Allocates the slab on one of the devices of `mask`, long-lived and aligned to 256 bytes, and
/// zeroes all of it, flags and vectors.
///
/// # Errors
/// [`SlabMemoryError`]; no memory is kept.
pub fn allocate_slab(
    allocator: &Allocator,
    layout: &SlabLayout,
    mask: DeviceMask,
) -> Result<Allocation, SlabMemoryError> {
    let request = Request {
        mask,
        align_bytes: ALIGN_BYTES,
        lifetime: Lifetime::Long,
        ..Request::new(layout.slab_bytes())
    };
    let slab = allocator
        .allocate(&request)
        .map_err(SlabMemoryError::Refused)?;
    let backend = allocator.backend();
    let zeroed = backend
        .fill(slab.device, slab.address, slab.bytes, 0, StreamId::DEFAULT)
        .and_then(|()| backend.synchronize(slab.device, StreamId::DEFAULT));
    match zeroed {
        Ok(()) => Ok(slab),
        Err(error) => {
            // The block was granted just now: giving it back can fail only with the device.
            let _ = allocator.free(slab.handle);
            Err(SlabMemoryError::Zeroing(error))
        }
    }
}
