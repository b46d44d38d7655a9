//! Refusals and errors, by what the caller can do about them.

use std::fmt;

use smallvec::SmallVec;

use crate::backend::BackendError;
use crate::bytes::format_bytes;
use crate::device::{DeviceAddress, DeviceId, DeviceMask, StreamId};

use super::pool::{MAX_GRANULE_BYTES, UNIT_BYTES};
use super::request::MAX_ALIGN_BYTES;

/// Why a request was not granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllocError {
    /// Ask for at least one byte.
    ZeroSize,
    /// Ask for less: the size exceeds `i64::MAX`.
    TooLarge {
        /// The bytes asked for.
        bytes: u64,
    },
    /// Ask for an alignment that is a power of two and at most [`MAX_ALIGN_BYTES`].
    BadAlignment {
        /// The alignment asked for, in bytes.
        align_bytes: u64,
    },
    /// Free memory or relax the hint; nothing has changed.
    Refused(Refusal),
}

impl fmt::Display for AllocError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ZeroSize => write!(f, "a request for 0 bytes; ask for at least 1"),
            Self::TooLarge { bytes } => {
                write!(
                    f,
                    "a request for {bytes} bytes exceeds the limit of {} bytes",
                    i64::MAX
                )
            }
            Self::BadAlignment { align_bytes } => write!(
                f,
                "an alignment of {align_bytes} bytes; use a power of two from 1 to {MAX_ALIGN_BYTES}"
            ),
            Self::Refused(refusal) => refusal.fmt(f),
        }
    }
}

impl std::error::Error for AllocError {}

/// A request that no candidate device could take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The bytes asked for.
    pub bytes: u64,
    /// The hint.
    pub mask: DeviceMask,
    /// Why, over all or per candidate.
    pub cause: RefusalCause,
}

/// Why a request was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RefusalCause {
    /// No device of the hint exists, and orphaned hints are refused.
    Orphaned {
        /// How many devices there are.
        device_count: usize,
    },
    /// Every device that the hint allows is excluded.
    Excluded {
        /// The excluded devices.
        excluded: DeviceMask,
    },
    /// Each candidate in the order in which it was tried.
    Tried(CandidateRefusals),
}

/// The refusals of all candidates; one candidate needs no memory of its own, because refusing
/// must stay cheap.
pub type CandidateRefusals = SmallVec<[CandidateRefusal; 1]>;

/// Why one candidate could not take the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CandidateRefusal {
    /// The candidate.
    pub device: DeviceId,
    /// Bytes of its live blocks at that moment.
    pub used_bytes: u64,
    /// The most that its live blocks may take.
    pub budget_bytes: u64,
    /// Why.
    pub reason: RefusalReason,
}

/// Why one device could not take a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RefusalReason {
    /// The live blocks and the request together exceed the budget.
    Budget,
    /// Enough is free, but not in one piece.
    Fragmentation {
        /// The largest request that would fit, in bytes.
        largest_free_bytes: u64,
    },
    /// The reserved address range has no hole of that size.
    AddressSpace {
        /// The size of the range, in bytes.
        reserved_bytes: u64,
    },
    /// The driver has no memory left: other processes hold it.
    DriverOutOfMemory {
        /// The driver function that refused.
        call: &'static str,
        /// The bytes it was asked for.
        asked_bytes: u64,
        /// Bytes the driver reports as free; `None` if it does not answer.
        free_bytes: Option<u64>,
    },
    /// The device is gone.
    DeviceLost {
        /// What the driver said.
        detail: String,
    },
    /// A fault plan refused the request.
    Injected {
        /// The entry of the plan.
        entry: usize,
    },
    /// The driver failed in another way.
    Driver {
        /// What the driver said.
        detail: String,
    },
    /// The device has no such stream, or 8,191 streams took its memory before this one: the books
    /// tell no more apart.
    UnknownStream {
        /// The stream asked for.
        stream: StreamId,
    },
}

impl RefusalReason {
    /// Whether freeing memory could help.
    #[must_use]
    pub fn is_memory(&self) -> bool {
        match self {
            Self::Budget
            | Self::Fragmentation { .. }
            | Self::AddressSpace { .. }
            | Self::DriverOutOfMemory { .. } => true,
            Self::DeviceLost { .. }
            | Self::Injected { .. }
            | Self::Driver { .. }
            | Self::UnknownStream { .. } => false,
        }
    }

    /// The reason in one word, for tables and counters.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            Self::Budget => "budget",
            Self::Fragmentation { .. } => "fragmentation",
            Self::AddressSpace { .. } => "address-space",
            Self::DriverOutOfMemory { .. } => "driver-oom",
            Self::DeviceLost { .. } => "device-lost",
            Self::Injected { .. } => "injected",
            Self::Driver { .. } => "driver",
            Self::UnknownStream { .. } => "unknown-stream",
        }
    }
}

impl fmt::Display for CandidateRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let free = self.budget_bytes.saturating_sub(self.used_bytes);
        write!(
            f,
            "{} uses {} of {}",
            self.device,
            format_bytes(self.used_bytes),
            format_bytes(self.budget_bytes)
        )?;
        match &self.reason {
            RefusalReason::Budget => write!(f, ", {} left", format_bytes(free)),
            RefusalReason::Fragmentation { largest_free_bytes } => write!(
                f,
                ", {} left in pieces of at most {}",
                format_bytes(free),
                format_bytes(*largest_free_bytes)
            ),
            RefusalReason::AddressSpace { reserved_bytes } => {
                write!(
                    f,
                    ", no hole in its {} of addresses",
                    format_bytes(*reserved_bytes)
                )
            }
            RefusalReason::DriverOutOfMemory {
                call,
                asked_bytes,
                free_bytes,
            } => {
                write!(
                    f,
                    ", but {call} has no memory for {}",
                    format_bytes(*asked_bytes)
                )?;
                match free_bytes {
                    Some(bytes) => write!(f, " ({} free on the device)", format_bytes(*bytes)),
                    None => Ok(()),
                }
            }
            RefusalReason::DeviceLost { detail } => write!(f, ", but is lost: {detail}"),
            RefusalReason::Injected { entry } => write!(f, ", fault {entry} of the plan refused"),
            RefusalReason::Driver { detail } => write!(f, ", but the driver failed: {detail}"),
            RefusalReason::UnknownStream { stream } => write!(f, ", but has no {stream}"),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let asked = format_bytes(self.bytes);
        match &self.cause {
            RefusalCause::Orphaned { device_count } => write!(
                f,
                "refused {asked}: mask {} names none of the {device_count} devices; set one of bits \
                 0 to {}, or allow orphaned hints",
                self.mask,
                device_count.saturating_sub(1)
            ),
            RefusalCause::Excluded { excluded } => write!(
                f,
                "refused {asked}: mask {} leaves no device because {excluded} is excluded; exclude \
                 fewer devices or allow another one",
                self.mask
            ),
            RefusalCause::Tried(candidates) => {
                match self.mask {
                    DeviceMask::EMPTY | DeviceMask::ALL => {
                        write!(f, "refused {asked} on any device: ")?;
                    }
                    mask => write!(f, "refused {asked} on mask {mask}: ")?,
                }
                for (position, candidate) in candidates.iter().enumerate() {
                    write!(f, "{}{candidate}", if position == 0 { "" } else { "; " })?;
                }
                f.write_str(remedy(self.bytes, self.mask, candidates))
            }
        }
    }
}

/// What the caller can do, by the reasons and by whether the hint could be wider.
fn remedy(bytes: u64, mask: DeviceMask, candidates: &[CandidateRefusal]) -> &'static str {
    let full = candidates
        .iter()
        .filter(|candidate| candidate.reason.is_memory());
    let wider = mask != DeviceMask::EMPTY && mask != DeviceMask::ALL;
    match (full.clone().next(), wider) {
        (Some(_), wider) if full.clone().all(|one| bytes > one.budget_bytes) => {
            if wider {
                "; that is more than the whole budget there: ask for less or allow a larger device"
            } else {
                "; that is more than the whole budget of any device: ask for less"
            }
        }
        (Some(_), true) => "; free memory there or allow another device",
        (Some(_), false) => "; free memory there",
        (None, true) => "; allow another device",
        (None, false) => "",
    }
}

impl std::error::Error for Refusal {}

/// Why a handle or address was not accepted; nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FreeError {
    /// The address is null.
    Null,
    /// The address lies in no memory of this allocator.
    Foreign {
        /// The address.
        address: DeviceAddress,
    },
    /// The handle comes from another allocator.
    OtherAllocator,
    /// The block was given back already.
    DoubleFree,
    /// The block was given back, and its place in the books has another owner now.
    StaleHandle,
    /// The address lies inside a live block, not at its start.
    Interior {
        /// The address.
        address: DeviceAddress,
        /// Where the block begins.
        start: DeviceAddress,
    },
    /// The allocator keeps no table of addresses; free by handle.
    NoAddressTable,
    /// The device does not have the stream; create it first.
    UnknownStream {
        /// The device.
        device: DeviceId,
        /// The stream.
        stream: StreamId,
    },
    /// The stream's position could not be recorded; the block stays live.
    Backend(BackendError),
}

impl fmt::Display for FreeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => write!(f, "the address is null"),
            Self::Foreign { address } => {
                write!(
                    f,
                    "{address} is not memory of this allocator; free it where it came from"
                )
            }
            Self::OtherAllocator => write!(f, "the handle belongs to another allocator"),
            Self::DoubleFree => write!(f, "the block was freed before"),
            Self::StaleHandle => {
                write!(
                    f,
                    "the block was freed before, and its handle is out of date"
                )
            }
            Self::Interior { address, start } => {
                write!(
                    f,
                    "{address} lies inside the block at {start}; free the start"
                )
            }
            Self::NoAddressTable => write!(
                f,
                "the allocator was made without free_by_address; free by handle instead"
            ),
            Self::UnknownStream { device, stream } => {
                write!(f, "{device} has no {stream}; create it first")
            }
            Self::Backend(error) => write!(f, "the block stays live: {error}"),
        }
    }
}

impl std::error::Error for FreeError {}

/// Why an allocator could not be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InitError {
    /// The backend has no device.
    NoDevice,
    /// The backend has more devices than a mask has bits.
    TooManyDevices {
        /// How many it has.
        count: usize,
    },
    /// The configuration names a device that does not exist.
    UnknownDevice {
        /// The position of the entry.
        index: usize,
        /// How many devices there are.
        device_count: usize,
    },
    /// A device hands memory out in pieces in which the allocator cannot count.
    BadGranule {
        /// The device.
        device: DeviceId,
        /// The size of its pages, or else its granularity, in bytes.
        bytes: u64,
    },
    /// Nothing is left for the pool of a device.
    NoBudget {
        /// The device.
        device: DeviceId,
        /// What the configuration allows, in bytes; `None` for all.
        configured_bytes: Option<u64>,
        /// What the driver reports as free, in bytes.
        free_bytes: u64,
        /// What is to be left alone, in bytes.
        reserve_bytes: u64,
    },
    /// The backend failed.
    Backend(BackendError),
}

impl fmt::Display for InitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoDevice => write!(f, "the backend has no device"),
            Self::TooManyDevices { count } => {
                write!(f, "{count} devices, but a mask has 32 bits; select fewer")
            }
            Self::UnknownDevice {
                index,
                device_count,
            } => write!(
                f,
                "a budget or exclusion names device {index}, but there are {device_count} devices"
            ),
            Self::BadGranule { device, bytes } => write!(
                f,
                "{device} hands out memory in pieces of {}; exclude it: the allocator counts in \
                 powers of two from {UNIT_BYTES} bytes to {}",
                format_bytes(*bytes),
                format_bytes(MAX_GRANULE_BYTES)
            ),
            Self::NoBudget {
                device,
                configured_bytes,
                free_bytes,
                reserve_bytes,
            } => {
                write!(f, "{device} has nothing left to allocate: ")?;
                match configured_bytes {
                    Some(bytes) => write!(f, "budget {}, ", format_bytes(*bytes))?,
                    None => write!(f, "budget unlimited, ")?,
                }
                write!(
                    f,
                    "free {}, reserve {}; raise the budget, lower the reserve or exclude the device",
                    format_bytes(*free_bytes),
                    format_bytes(*reserve_bytes)
                )
            }
            Self::Backend(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for InitError {}

impl From<BackendError> for InitError {
    fn from(error: BackendError) -> Self {
        Self::Backend(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_device_could_ever_hold_is_not_a_matter_of_freeing() {
        let refused = |bytes, mask| {
            let candidate = |index, budget_bytes| CandidateRefusal {
                device: DeviceId::new(index).unwrap(),
                used_bytes: 1 << 10,
                budget_bytes,
                reason: RefusalReason::Budget,
            };
            let cause = RefusalCause::Tried(
                [candidate(0, 1 << 20), candidate(1, 1 << 21)]
                    .into_iter()
                    .collect(),
            );
            Refusal { bytes, mask, cause }.to_string()
        };
        for mask in [DeviceMask::ALL, DeviceMask(3)] {
            assert!(refused((1 << 21) + 1, mask).contains("more than the whole budget"));
            assert!(refused(1 << 21, mask).contains("free memory there"));
        }
    }
}
