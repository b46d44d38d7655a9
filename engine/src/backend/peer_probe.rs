//! Whether bytes arrive between two devices: judged by sending them.
//!
//! Drivers have announced direct paths that delivered wrong bytes (an IOMMU in the way, a broken
//! bridge), so that no announcement is trusted: copies and the loads and stores of kernels are
//! tried over memory of the kind that the allocator hands out, into poisoned destinations.

use ds4_kernels::{Launch, Pattern};

use crate::device::{DeviceAddress, DeviceId, DeviceMask, PeerAccess, StreamId};

use super::{Backend, BackendError, PageId};

/// The sizes that are tried, from one page of the host to more than any cache on the way.
const SIZES_BYTES: [u64; 4] = [4 << 10, 64 << 10, 1 << 20, 16 << 20];
/// How often each is tried: the first copy of a pair can differ from later ones.
const REPEATS: u64 = 4;
/// Sizes above this are tried twice only, as each takes so long.
const OFTEN_BYTES: u64 = 1 << 20;
/// What a destination holds before bytes arrive.
const POISON: u8 = 0xA5;
/// The words of [`Launch::CheckPattern`]'s result.
const RESULT_BYTES: usize = 16;

/// Sends bytes from `from` to `to` and back in every way, and compares them.
///
/// # Errors
/// [`BackendError`] when a call fails: then nothing was judged.
pub(super) fn judge(
    backend: &dyn Backend,
    from: DeviceId,
    to: DeviceId,
) -> Result<PeerAccess, BackendError> {
    let mut largest_bytes = SIZES_BYTES.into_iter().max().unwrap_or(0);
    loop {
        match judge_up_to(backend, from, to, largest_bytes) {
            // A device that is nearly full is judged by what still fits.
            Err(BackendError::OutOfMemory { .. }) if largest_bytes > 4 << 10 => largest_bytes /= 16,
            judged => return judged,
        }
    }
}

fn judge_up_to(
    backend: &dyn Backend,
    from: DeviceId,
    to: DeviceId,
    largest_bytes: u64,
) -> Result<PeerAccess, BackendError> {
    let near = Scratch::take(
        backend,
        from,
        largest_bytes + RESULT_BYTES as u64,
        DeviceMask::EMPTY,
    )?;
    let peers = DeviceMask::only(from);
    let far = Scratch::take(backend, to, largest_bytes + RESULT_BYTES as u64, peers)?;
    let pair = Pair {
        backend,
        near: (from, near.address),
        far: (to, far.address),
        result_offset: largest_bytes,
    };
    for bytes in SIZES_BYTES
        .into_iter()
        .filter(|bytes| *bytes <= largest_bytes)
    {
        let repeats = if bytes > OFTEN_BYTES { 2 } else { REPEATS };
        for repeat in 0..repeats {
            if !pair.intact(bytes, bytes ^ repeat)? {
                return Ok(PeerAccess::Broken);
            }
        }
    }
    Ok(PeerAccess::Direct)
}

/// Memory on both devices between which bytes are sent.
struct Pair<'a> {
    backend: &'a dyn Backend,
    near: (DeviceId, DeviceAddress),
    far: (DeviceId, DeviceAddress),
    result_offset: u64,
}

impl Pair<'_> {
    /// Whether `bytes` bytes arrive by a copy, by a kernel's stores and by a kernel's loads.
    fn intact(&self, bytes: u64, seed: u64) -> Result<bool, BackendError> {
        let (near, far) = (self.near, self.far);
        let copied = Pattern::Random { seed };
        self.write(near.0, near.1, bytes, copied)?;
        self.poison(bytes)?;
        self.backend
            .copy_peer(near, far, bytes, StreamId::DEFAULT)?;
        self.settle(near.0)?;
        if !self.holds(far, far.1, bytes, copied)? {
            return Ok(false);
        }
        let stored = Pattern::Random { seed: !seed };
        self.poison(bytes)?;
        self.write(near.0, far.1, bytes, stored)?;
        // What the far device holds is read by itself, then by a kernel of the near one.
        Ok(self.holds(far, far.1, bytes, stored)? && self.holds(near, far.1, bytes, stored)?)
    }

    fn poison(&self, bytes: u64) -> Result<(), BackendError> {
        let (device, address) = self.far;
        self.backend
            .fill(device, address, bytes, POISON, StreamId::DEFAULT)?;
        self.settle(device)
    }

    fn write(
        &self,
        device: DeviceId,
        to: DeviceAddress,
        bytes: u64,
        pattern: Pattern,
    ) -> Result<(), BackendError> {
        let launch = Launch::WritePattern {
            to: to.0,
            words: bytes / 8,
            first_position: 0,
            pattern,
        };
        self.backend.launch(device, StreamId::DEFAULT, &launch)?;
        self.settle(device)
    }

    /// Whether `device` sees the pattern at `from`.
    fn holds(
        &self,
        (device, own): (DeviceId, DeviceAddress),
        from: DeviceAddress,
        bytes: u64,
        pattern: Pattern,
    ) -> Result<bool, BackendError> {
        let result = DeviceAddress(own.0 + self.result_offset);
        let mut words = [0xFF; RESULT_BYTES];
        words[8..].fill(0);
        self.backend.write(device, result, &words)?;
        let launch = Launch::CheckPattern {
            from: from.0,
            words: bytes / 8,
            first_position: 0,
            pattern,
            result: result.0,
        };
        self.backend.launch(device, StreamId::DEFAULT, &launch)?;
        self.settle(device)?;
        let expected = words;
        self.backend.read(device, result, &mut words)?;
        Ok(words == expected)
    }

    fn settle(&self, device: DeviceId) -> Result<(), BackendError> {
        self.backend.synchronize(device, StreamId::DEFAULT)
    }
}

/// Memory of one device, of the kind that the allocator uses there, given back when dropped.
struct Scratch<'a> {
    backend: &'a dyn Backend,
    device: DeviceId,
    address: DeviceAddress,
    range: Option<Range>,
}

/// A reserved range, and the pages mapped from its start on.
struct Range {
    page_bytes: u64,
    bytes: u64,
    pages: Vec<PageId>,
}

impl<'a> Scratch<'a> {
    fn take(
        backend: &'a dyn Backend,
        device: DeviceId,
        bytes: u64,
        peers: DeviceMask,
    ) -> Result<Self, BackendError> {
        let info = backend.devices().get(device.index());
        let Some(page_bytes) = info.and_then(|info| info.page_bytes) else {
            return Ok(Self {
                backend,
                device,
                address: backend.allocate(device, bytes)?,
                range: None,
            });
        };
        let count = bytes.div_ceil(page_bytes);
        let bytes = count * page_bytes;
        let address = backend.reserve(device, bytes)?;
        let mut scratch = Self {
            backend,
            device,
            address,
            range: Some(Range {
                page_bytes,
                bytes,
                pages: Vec::new(),
            }),
        };
        for number in 0..count {
            let page = backend.create_page(device)?;
            let at = DeviceAddress(address.0 + number * page_bytes);
            if let Err(error) = backend.map(device, at, page, peers) {
                // The first error is the one to report.
                let _ = backend.destroy_page(device, page);
                return Err(error);
            }
            if let Some(range) = &mut scratch.range {
                range.pages.push(page);
            }
        }
        Ok(scratch)
    }
}

impl Drop for Scratch<'_> {
    fn drop(&mut self) {
        // The verdict or the first error stands; a lost device takes its memory with it.
        let (backend, device) = (self.backend, self.device);
        let Some(range) = &self.range else {
            let _ = backend.free(device, self.address);
            return;
        };
        for (page, number) in range.pages.iter().zip(0..) {
            let at = DeviceAddress(self.address.0 + number * range.page_bytes);
            if backend.unmap(device, at).is_ok() {
                let _ = backend.destroy_page(device, *page);
            }
        }
        let _ = backend.release(device, self.address, range.bytes);
    }
}
