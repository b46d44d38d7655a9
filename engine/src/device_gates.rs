//! Gates between two devices of one process that reach each other directly.
//!
//! A gate is one kernel on each device: it pushes the own part into the peer's memory, waits for
//! the peer's, and adds both in the order of the ranks, so that both devices hold the same bits. No
//! host takes part. Waits are bounded: a kernel that has waited for the deadline, or is told to
//! stop, writes down which gate it was and ends, and every later gate of that link ends at once.
//!
//! Both ranks enqueue the same gates in the same order, each on one stream. The count of gates is
//! kept on the device, so that a captured graph of gates can be replayed.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ds4_kernels::Launch;
use ds4_kernels::gate::{
    ABORT_OFFSET_BYTES, GateFailure, GateLink, LINK_BYTES, PACKET_GATE_BYTES, landing_bytes,
    part_bytes,
};

use crate::alloc::{AllocError, Allocation, Allocator, FreeError, Lifetime, Request};
use crate::backend::{Backend, BackendError};
use crate::device::{DeviceAddress, DeviceId, DeviceMask, PeerAccess, StreamId};

/// Kernels load and store 16 bytes at a time.
const GROUP_BYTES: u64 = 16;

/// Why there are no gates, or why one failed.
#[derive(Debug)]
pub enum DeviceGateError {
    /// A device does not reach the other's memory directly: take a way through the host.
    NoPath {
        /// Which device does not.
        from: DeviceId,
        /// What it does not reach.
        to: DeviceId,
        /// How it reaches it, if at all.
        access: PeerAccess,
    },
    /// A size, address or rank that no gate has.
    BadGate(String),
    /// The allocator refused; nothing has changed.
    Refused(AllocError),
    /// The backend failed.
    Backend(BackendError),
    /// A block of the gates' own could not be given back.
    Free(FreeError),
    /// A kernel gave up: the link is of no use any more, open another.
    GaveUp {
        /// Whose kernel: 0 or 1.
        rank: usize,
        /// Where it stood.
        failure: GateFailure,
    },
}

impl fmt::Display for DeviceGateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPath { from, to, access } => write!(
                f,
                "{from} does not reach {to} directly (its path is {access:?}); gates between them go through \
                 the host"
            ),
            Self::BadGate(why) => f.write_str(why),
            Self::Refused(error) => write!(f, "no memory for the gates: {error}"),
            Self::Backend(error) => error.fmt(f),
            Self::Free(error) => error.fmt(f),
            Self::GaveUp { rank, failure } => {
                let GateFailure {
                    sequence,
                    aborted,
                    seen,
                } = failure;
                let why = if *aborted {
                    "was told to stop"
                } else {
                    "waited for the deadline"
                };
                write!(
                    f,
                    "rank {rank} {why} in gate {sequence}: rank {} had sent up to gate {seen}",
                    1 - rank
                )
            }
        }
    }
}

impl std::error::Error for DeviceGateError {}

impl From<BackendError> for DeviceGateError {
    fn from(error: BackendError) -> Self {
        Self::Backend(error)
    }
}

/// One rank's memory.
#[derive(Clone, Copy, Debug)]
struct End {
    device: DeviceId,
    /// The link, and the landing behind it.
    block: Allocation,
    /// For the word that ends a wait: the gates' own stream waits with them.
    aside: StreamId,
}

/// The gates of two ranks.
#[derive(Debug)]
pub struct DeviceGates {
    backend: Arc<dyn Backend>,
    ends: [End; 2],
    most_bytes: u64,
}

impl DeviceGates {
    /// Prepares gates of at most `most_bytes` bytes between `devices`, of which the first has rank
    /// 0. A kernel waits for at most `deadline`.
    ///
    /// # Errors
    /// [`DeviceGateError::NoPath`] and [`DeviceGateError::BadGate`] before anything is taken,
    /// [`DeviceGateError::Refused`] and [`DeviceGateError::Backend`] after all was given back.
    pub fn open(
        allocator: &Allocator,
        devices: [DeviceId; 2],
        most_bytes: u64,
        deadline: Duration,
    ) -> Result<Self, DeviceGateError> {
        let backend = Arc::clone(allocator.backend());
        let [first, second] = devices;
        if first == second {
            return Err(DeviceGateError::BadGate(format!(
                "a gate needs two devices, not {first} twice"
            )));
        }
        for (from, to) in [(first, second), (second, first)] {
            let access = backend.peer_access(from, to)?;
            if access != PeerAccess::Direct {
                return Err(DeviceGateError::NoPath { from, to, access });
            }
        }
        let bytes = landing_bytes(most_bytes).and_then(|bytes| bytes.checked_add(LINK_BYTES));
        let bytes = bytes.ok_or_else(|| {
            DeviceGateError::BadGate(format!("no memory holds gates of {most_bytes} bytes"))
        })?;
        let one = take(allocator, first, bytes)?;
        let two = take(allocator, second, bytes).inspect_err(|_| {
            // What has failed already is the error; a lost device takes its memory along.
            let _ = one.give_back(allocator);
        })?;
        let gates = Self {
            backend,
            ends: [one, two],
            most_bytes,
        };
        if let Err(error) = gates.connect(deadline) {
            // What has failed already is the error.
            let _ = gates.close(allocator);
            return Err(error.into());
        }
        Ok(gates)
    }

    /// Writes both links, over memory that holds zeros.
    fn connect(&self, deadline: Duration) -> Result<(), BackendError> {
        let [one, two] = &self.ends;
        let deadline_ns = u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX);
        for (rank, near, far) in [(0, one, two), (1, two, one)] {
            let link = GateLink {
                own: near.landing(),
                peer: far.landing(),
                rank,
                deadline_ns,
            };
            let place = near.block.address;
            self.backend.write(near.device, place, &link.to_bytes())?;
        }
        Ok(())
    }

    /// Enqueues the next gate of `rank` on a stream of its device: `bytes` bytes of floats from
    /// `input` on are sent, and the sum with the peer's is written from `output` on, which may be
    /// `input`. Addresses are multiples of 16, and so are the bytes.
    ///
    /// # Errors
    /// [`DeviceGateError::BadGate`], and [`DeviceGateError::Backend`]: nothing was enqueued.
    pub fn enqueue(
        &self,
        rank: usize,
        stream: StreamId,
        input: DeviceAddress,
        output: DeviceAddress,
        bytes: u64,
    ) -> Result<(), DeviceGateError> {
        self.enqueue_many(rank, stream, input, output, bytes, 1)
    }

    /// As [`DeviceGates::enqueue`], `gates` times in one kernel, which gates of packets can: those
    /// of at most [`PACKET_GATE_BYTES`].
    ///
    /// # Errors
    /// As there, and [`DeviceGateError::BadGate`] for several larger ones.
    pub fn enqueue_many(
        &self,
        rank: usize,
        stream: StreamId,
        input: DeviceAddress,
        output: DeviceAddress,
        bytes: u64,
        gates: u64,
    ) -> Result<(), DeviceGateError> {
        let end = self.end(rank)?;
        let odd = [input.0, output.0, bytes];
        if odd.iter().any(|number| number % GROUP_BYTES != 0) || bytes > self.most_bytes {
            return Err(DeviceGateError::BadGate(format!(
                "a gate of {bytes} bytes from {:#x} to {:#x}; addresses and bytes are multiples of \
                 {GROUP_BYTES}, and bytes at most {}",
                input.0, output.0, self.most_bytes
            )));
        }
        let (link, count) = (end.block.address.0, bytes / 4);
        let (input, output) = (input.0, output.0);
        if bytes <= PACKET_GATE_BYTES {
            let launch = Launch::GatePackets {
                link,
                input,
                output,
                count,
                gates,
            };
            return Ok(self.backend.launch(end.device, stream, &launch)?);
        }
        if gates != 1 {
            return Err(DeviceGateError::BadGate(format!(
                "{gates} gates of {bytes} bytes in one kernel; those of more than \
                 {PACKET_GATE_BYTES} are enqueued one by one"
            )));
        }
        let launch = Launch::GateParts {
            link,
            input,
            output,
            count,
            part_bytes: part_bytes(self.most_bytes),
        };
        Ok(self.backend.launch(end.device, stream, &launch)?)
    }

    /// Looks whether a kernel of `rank` gave up; wait for its stream first.
    ///
    /// # Errors
    /// [`DeviceGateError::GaveUp`], or [`DeviceGateError::Backend`].
    pub fn check(&self, rank: usize) -> Result<(), DeviceGateError> {
        let end = self.end(rank)?;
        let mut link = [0; 128];
        self.backend
            .read(end.device, end.block.address, &mut link)?;
        match GateFailure::from_bytes(&link) {
            Some(failure) => Err(DeviceGateError::GaveUp { rank, failure }),
            None => Ok(()),
        }
    }

    /// Ends the wait of `rank`'s kernel, and all its later gates.
    ///
    /// # Errors
    /// [`DeviceGateError::Backend`].
    pub fn abort(&self, rank: usize) -> Result<(), DeviceGateError> {
        let end = self.end(rank)?;
        let word = DeviceAddress(end.block.address.0 + ABORT_OFFSET_BYTES);
        self.backend.fill(end.device, word, 8, 1, end.aside)?;
        Ok(self.backend.synchronize(end.device, end.aside)?)
    }

    /// Gives the memory back; wait for the streams first.
    ///
    /// # Errors
    /// [`DeviceGateError::Free`] and [`DeviceGateError::Backend`], after all was tried.
    pub fn close(self, allocator: &Allocator) -> Result<(), DeviceGateError> {
        let [one, two] = self.ends.map(|end| end.give_back(allocator));
        one.and(two)
    }

    fn end(&self, rank: usize) -> Result<&End, DeviceGateError> {
        self.ends.get(rank).ok_or_else(|| {
            DeviceGateError::BadGate(format!("there is no rank {rank}, but 0 and 1"))
        })
    }
}

impl End {
    fn landing(&self) -> u64 {
        self.block.address.0 + LINK_BYTES
    }

    fn give_back(self, allocator: &Allocator) -> Result<(), DeviceGateError> {
        let freed = allocator.free(self.block.handle);
        let removed = allocator.backend().destroy_stream(self.device, self.aside);
        freed.map_err(DeviceGateError::Free)?;
        Ok(removed?)
    }
}

/// Zeroed memory on a device, and a stream beside those of its user.
fn take(allocator: &Allocator, device: DeviceId, bytes: u64) -> Result<End, DeviceGateError> {
    let request = Request {
        mask: DeviceMask::only(device),
        lifetime: Lifetime::Long,
        ..Request::new(bytes)
    };
    let block = allocator
        .allocate(&request)
        .map_err(DeviceGateError::Refused)?;
    let backend = allocator.backend();
    let prepared = backend
        .fill(device, block.address, bytes, 0, StreamId::DEFAULT)
        .and_then(|()| backend.synchronize(device, StreamId::DEFAULT))
        .and_then(|()| backend.create_stream(device));
    match prepared {
        Ok(aside) => Ok(End {
            device,
            block,
            aside,
        }),
        Err(error) => {
            // The block was granted just now: giving it back can fail only with the device.
            let _ = allocator.free(block.handle);
            Err(error.into())
        }
    }
}
