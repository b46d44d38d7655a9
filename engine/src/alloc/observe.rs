//! Being told what an allocator does, and recording it.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use crate::device::{DeviceAddress, DeviceId, DeviceMask, StreamId};

use super::error::{Refusal, RefusalCause};
use super::request::{Allocation, Handle, Request};

/// Something that an allocator did.
#[derive(Clone, Copy, Debug)]
pub enum AllocatorEvent<'a> {
    /// A request was granted.
    Allocated {
        /// The request.
        request: &'a Request,
        /// What it got.
        allocation: &'a Allocation,
    },
    /// A block is being given back.
    Freed {
        /// Its handle.
        handle: Handle,
        /// Where it begins.
        address: DeviceAddress,
        /// The bytes that its owner asked for.
        bytes: u64,
        /// The stream on which it was allocated.
        stream: StreamId,
    },
    /// A request was refused.
    Refused {
        /// The request.
        request: &'a Request,
        /// Why.
        refusal: &'a Refusal,
    },
    /// A hint named no existing device; told once per mask.
    OrphanedHint {
        /// The hint.
        mask: DeviceMask,
        /// How many devices there are.
        device_count: usize,
    },
}

/// Told of what an allocator does, in each device's order of events.
///
/// It is called while the device is locked: it must be quick and must not call the allocator.
pub trait Observer: Send + Sync + fmt::Debug {
    /// Takes one event.
    fn observe(&self, event: &AllocatorEvent<'_>);
}

/// What a recorded event was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordedKind {
    /// A block was taken.
    Allocated,
    /// A block was given back.
    Freed,
    /// A request was refused.
    Refused,
}

/// One event as a trace keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordedEvent {
    /// When, in microseconds of the recorder's clock.
    pub time_us: u64,
    /// What happened.
    pub kind: RecordedKind,
    /// Where; a refusal has the first candidate and no address, or nothing without candidates.
    pub place: Option<(DeviceId, DeviceAddress)>,
    /// The bytes asked for.
    pub bytes: u64,
    /// The stream of the request.
    pub stream: StreamId,
}

/// Keeps every event in memory, for traces that can be replayed.
pub struct Recorder {
    clock_us: Box<dyn Fn() -> u64 + Send + Sync>,
    events: Mutex<Vec<RecordedEvent>>,
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").finish_non_exhaustive()
    }
}

impl Recorder {
    /// A recorder that stamps events with `clock_us`, in microseconds.
    pub fn new(clock_us: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        Self {
            clock_us: Box::new(clock_us),
            events: Mutex::default(),
        }
    }

    /// Takes all events recorded so far.
    #[must_use]
    pub fn take(&self) -> Vec<RecordedEvent> {
        std::mem::take(&mut *self.events.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Observer for Recorder {
    fn observe(&self, event: &AllocatorEvent<'_>) {
        let (kind, place, bytes, stream) = match event {
            AllocatorEvent::Allocated {
                request,
                allocation,
            } => (
                RecordedKind::Allocated,
                Some((allocation.device, allocation.address)),
                allocation.bytes,
                request.stream,
            ),
            AllocatorEvent::Freed {
                handle,
                address,
                bytes,
                stream,
            } => (
                RecordedKind::Freed,
                Some((handle.device(), *address)),
                *bytes,
                *stream,
            ),
            AllocatorEvent::Refused { request, refusal } => {
                let first = match &refusal.cause {
                    RefusalCause::Tried(candidates) => candidates.first(),
                    RefusalCause::Orphaned { .. } | RefusalCause::Excluded { .. } => None,
                };
                let place = first.map(|candidate| (candidate.device, DeviceAddress(0)));
                (RecordedKind::Refused, place, request.bytes, request.stream)
            }
            AllocatorEvent::OrphanedHint { .. } => return,
        };
        let event = RecordedEvent {
            time_us: (self.clock_us)(),
            kind,
            place,
            bytes,
            stream,
        };
        self.events
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(event);
    }
}
