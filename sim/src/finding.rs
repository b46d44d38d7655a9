//! What the ledger can find.

use std::fmt;

use ds4_engine::device::{DeviceAddress, DeviceId, DeviceMask, StreamId};

use crate::call::Call;

/// A block of an allocator, as the harness reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LedgerBlock {
    /// The device.
    pub device: DeviceId,
    /// The first address.
    pub address: DeviceAddress,
    /// The length, in bytes.
    pub bytes: u64,
    /// The allocator's handle, as a number.
    pub handle: u64,
}

impl fmt::Display for LedgerBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            device,
            address,
            bytes,
            handle,
        } = self;
        write!(
            f,
            "block {handle:#x} ({bytes} bytes at {address} on {device})"
        )
    }
}

/// Two pieces of stream work that touch the same bytes, at least one of them writing, while
/// nothing orders them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamRace {
    /// The device whose memory is touched.
    pub device: DeviceId,
    /// The first byte that both touch.
    pub address: DeviceAddress,
    /// How many bytes both touch.
    pub bytes: u64,
    /// The device and stream of the work that was enqueued first.
    pub earlier: (DeviceId, StreamId),
    /// The call that came later.
    pub later_call: &'static str,
    /// The device and stream of the later work; `None` when it is no stream work but takes the
    /// memory away.
    pub later: Option<(DeviceId, StreamId)>,
}

impl fmt::Display for StreamRace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            device,
            address,
            bytes,
            earlier,
            later_call,
            later,
        } = self;
        write!(f, "{later_call}")?;
        if let Some((device, stream)) = later {
            write!(f, " on {stream} of {device}")?;
        }
        write!(
            f,
            " touches {bytes} bytes at {address} on {device} while work of {} of {} on them is not \
             known to be done",
            earlier.1, earlier.0
        )
    }
}

/// Something that must not happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// Two live blocks share bytes.
    Overlap {
        /// The block that came later.
        block: LedgerBlock,
        /// The one that was there.
        other: LedgerBlock,
    },
    /// A block reaches outside memory that the backend gave.
    Unbacked(LedgerBlock),
    /// A block landed on a device that its request did not allow.
    OffCandidate {
        /// The block.
        block: LedgerBlock,
        /// The devices that the request allowed.
        candidates: DeviceMask,
    },
    /// A block was freed that had been freed before.
    DoubleFree {
        /// The device.
        device: DeviceId,
        /// The address that was freed.
        address: DeviceAddress,
        /// The handle that was freed.
        handle: u64,
    },
    /// A block was freed that never lived, or with another block's handle.
    ForeignFree {
        /// The device.
        device: DeviceId,
        /// The address that was freed.
        address: DeviceAddress,
        /// The handle that was freed.
        handle: u64,
    },
    /// A block was still live at shutdown.
    Leak(LedgerBlock),
    /// The allocator gave memory back to the backend while a block lived in it.
    PulledAway {
        /// The block.
        block: LedgerBlock,
        /// The call that took its memory.
        call: Call,
    },
    /// Memory, address space or a page was not given back to the backend at shutdown.
    BackendLeak {
        /// The device.
        device: DeviceId,
        /// The call that took it.
        call: Call,
        /// Its address, or the number of a page.
        place: u64,
        /// Its size in bytes.
        bytes: u64,
    },
    /// The backend handed out memory that it had handed out already.
    BackendOverlap {
        /// The device.
        device: DeviceId,
        /// The call that handed it out.
        call: Call,
        /// The first address.
        address: DeviceAddress,
        /// The length, in bytes.
        bytes: u64,
    },
    /// The allocator called the backend with something that it must not pass.
    Misuse {
        /// The device.
        device: DeviceId,
        /// The call.
        call: Call,
        /// What the driver said.
        detail: String,
    },
    /// Two pieces of work met without an order.
    StreamRace(StreamRace),
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Overlap { block, other } => write!(f, "{block} overlaps live {other}"),
            Self::Unbacked(block) => write!(f, "{block} reaches outside the backend's memory"),
            Self::OffCandidate { block, candidates } => {
                write!(f, "{block} landed outside its candidates {candidates}")
            }
            Self::DoubleFree {
                device,
                address,
                handle,
            } => {
                write!(
                    f,
                    "block {handle:#x} at {address} on {device} was freed twice"
                )
            }
            Self::ForeignFree {
                device,
                address,
                handle,
            } => {
                write!(
                    f,
                    "block {handle:#x} at {address} on {device} was freed but never lived"
                )
            }
            Self::Leak(block) => write!(f, "{block} was never freed"),
            Self::PulledAway { block, call } => {
                write!(f, "{call} took the memory of live {block}")
            }
            Self::BackendLeak {
                device,
                call,
                place,
                bytes,
            } => write!(
                f,
                "{bytes} bytes at {place:#x} on {device} from {call} were never given back"
            ),
            Self::BackendOverlap {
                device,
                call,
                address,
                bytes,
            } => write!(
                f,
                "{call} on {device} gave {bytes} bytes at {address} that were given before"
            ),
            Self::Misuse {
                device,
                call,
                detail,
            } => {
                write!(f, "{call} on {device} was misused: {detail}")
            }
            Self::StreamRace(race) => race.fmt(f),
        }
    }
}
