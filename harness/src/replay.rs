//! Running a recorded trace through an allocator.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ds4_engine::alloc::{
    AllocError, Allocation, Allocator, FreeError, PoolStats, Refusal, RefusalCause, Request,
};
use ds4_engine::backend::BackendError;
use ds4_engine::device::{DeviceId, DeviceMask, StreamId};
use ds4_engine::hash::StateHash;
use std::fmt;

use crate::trace::{Trace, TraceAction};

/// How a trace is replayed.
#[derive(Debug, Default)]
pub struct ReplayOptions<'a> {
    /// The hint for every request; without it, each goes to the device that the trace names.
    pub placement: Option<DeviceMask>,
    /// Set to end the replay early.
    pub stop: Option<&'a AtomicBool>,
    /// Told the time of the event at hand, in microseconds of the trace.
    pub trace_time_us: Option<&'a AtomicU64>,
}

impl ReplayOptions<'_> {
    fn stopped(&self) -> bool {
        self.stop.is_some_and(|stop| stop.load(Ordering::Relaxed))
    }
}

/// What a replay did.
#[derive(Clone, Debug)]
pub struct Replay {
    /// Allocations and frees that were carried out or refused.
    pub ops: u64,
    /// Events of the trace that were done.
    pub events: u64,
    /// Requests that were refused.
    pub refusals: u64,
    /// Refused requests by reason; a request counts under each reason of its candidates once.
    pub refusals_by_reason: BTreeMap<&'static str, u64>,
    /// The first refusal, with the event's position in the trace.
    pub first_refusal: Option<(usize, Refusal)>,
    /// The figures of every device at the end.
    pub devices: Vec<(DeviceId, PoolStats)>,
    /// How far blocks reached into each device's pool, in bytes.
    pub reaches: Vec<u64>,
    /// A hash of where every block went, what was refused, and the live blocks at the end.
    pub state_hash: u64,
    /// The replay was ended early.
    pub incomplete: bool,
}

/// Why a replay could not go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplayError {
    /// The trace names a device that was not selected.
    NoSuchDevice {
        /// The device of the trace.
        device: u32,
        /// How many were selected.
        selected: usize,
    },
    /// The allocator refused a request for another reason than memory.
    Request(AllocError),
    /// A block could not be given back.
    Free(FreeError),
    /// A stream could not be made.
    Stream(BackendError),
}

impl fmt::Display for ReplayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchDevice { device, selected } => write!(
                f,
                "the trace uses device {device}, but the selection ends before it (devices: \
                 {selected}); select {} with --gpu-vram or --topology, or send everything to some with --gpu-placement",
                device + 1
            ),
            Self::Request(error) => write!(f, "a request of the trace is not possible: {error}"),
            Self::Free(error) => write!(f, "a block of the trace could not be freed: {error}"),
            Self::Stream(error) => write!(f, "a stream of the trace could not be made: {error}"),
        }
    }
}

impl std::error::Error for ReplayError {}

/// Replays `trace`; `after` is called after each operation.
///
/// # Errors
/// [`ReplayError`]; refused requests are not errors but counted.
pub fn replay(
    allocator: &Allocator,
    trace: &Trace,
    options: &ReplayOptions<'_>,
    mut after: impl FnMut(),
) -> Result<Replay, ReplayError> {
    let mut run = Run::new(allocator, trace);
    prepare(allocator, trace, options)?;
    for (position, event) in trace.events.iter().enumerate() {
        if options.stopped() {
            run.replay.incomplete = true;
            break;
        }
        if let Some(time_us) = options.trace_time_us {
            time_us.store(event.time_us, Ordering::Relaxed);
        }
        match event.action {
            TraceAction::Alloc {
                bytes,
                device,
                stream,
            } => {
                let mask = options.placement.unwrap_or_else(|| mask_of(device));
                let request = Request {
                    mask,
                    stream: StreamId(stream),
                    ..Request::new(bytes)
                };
                run.allocate(position, event.id, &request)?;
            }
            TraceAction::Free { stream, .. } => run.free(event.id, StreamId(stream))?,
        }
        run.replay.events += 1;
        after();
    }
    let report = allocator.report();
    let mut replay = run.replay;
    replay.devices = report.devices;
    replay.state_hash = run.history.word(report.state_hash).finish();
    Ok(replay)
}

fn mask_of(device: u32) -> DeviceMask {
    DeviceMask(1_u32.checked_shl(device).unwrap_or(0))
}

/// Checks the devices and makes the streams that the trace uses, or some of them if stopped.
fn prepare(
    allocator: &Allocator,
    trace: &Trace,
    options: &ReplayOptions<'_>,
) -> Result<(), ReplayError> {
    let placement = options.placement;
    let selected = allocator.device_count();
    if placement.is_none() && trace.devices as usize > selected {
        return Err(ReplayError::NoSuchDevice {
            device: trace.devices - 1,
            selected,
        });
    }
    let mut streams = BTreeMap::new();
    for event in &trace.events {
        let (TraceAction::Alloc { device, stream, .. } | TraceAction::Free { device, stream }) =
            event.action;
        let devices = placement.unwrap_or_else(|| mask_of(device));
        let most = streams.entry(devices).or_insert(0);
        *most = stream.max(*most);
    }
    for id in DeviceMask::first(selected).iter() {
        let uses = |mask: &DeviceMask| mask.is_empty() || mask.contains(id);
        let most = streams
            .iter()
            .filter(|(mask, _)| uses(mask))
            .map(|(_, most)| *most)
            .max();
        for _ in 0..most.unwrap_or(0) {
            if options.stopped() {
                return Ok(());
            }
            match allocator.create_stream(id) {
                // Excluded devices have no streams and get no requests.
                Ok(_) | Err(BackendError::Unsupported { .. }) => {}
                Err(error) => return Err(ReplayError::Stream(error)),
            }
        }
    }
    Ok(())
}

/// A replay in progress.
struct Run<'a> {
    allocator: &'a Allocator,
    /// By the trace's block number; `None` for blocks that were refused.
    live: Vec<Option<(Allocation, StreamId)>>,
    replay: Replay,
    history: StateHash,
}

impl<'a> Run<'a> {
    fn new(allocator: &'a Allocator, trace: &Trace) -> Self {
        let replay = Replay {
            ops: 0,
            events: 0,
            refusals: 0,
            refusals_by_reason: BTreeMap::new(),
            first_refusal: None,
            devices: Vec::new(),
            reaches: vec![0; allocator.device_count()],
            state_hash: 0,
            incomplete: false,
        };
        let blocks = usize::try_from(trace.blocks).unwrap_or(0);
        Self {
            allocator,
            live: vec![None; blocks],
            replay,
            history: StateHash::default(),
        }
    }

    fn allocate(&mut self, position: usize, id: u64, request: &Request) -> Result<(), ReplayError> {
        self.replay.ops += 1;
        match self.allocator.allocate(request) {
            Ok(allocation) => {
                let device = allocation.device.index() as u64;
                self.history.word(device).word(allocation.offset_bytes);
                if let Some(reach) = self.replay.reaches.get_mut(allocation.device.index()) {
                    *reach = (*reach).max(allocation.offset_bytes + allocation.reserved_bytes);
                }
                if let Some(slot) = usize::try_from(id)
                    .ok()
                    .and_then(|id| self.live.get_mut(id))
                {
                    *slot = Some((allocation, request.stream));
                }
                Ok(())
            }
            Err(AllocError::Refused(refusal)) => {
                self.note_refusal(position, refusal);
                Ok(())
            }
            Err(error) => Err(ReplayError::Request(error)),
        }
    }

    fn note_refusal(&mut self, position: usize, refusal: Refusal) {
        self.replay.refusals += 1;
        self.history.word(u64::MAX);
        let mut labels: Vec<&'static str> = match &refusal.cause {
            RefusalCause::Orphaned { .. } => vec!["orphaned"],
            RefusalCause::Excluded { .. } => vec!["excluded"],
            RefusalCause::Tried(each) => each.iter().map(|one| one.reason.label()).collect(),
        };
        labels.sort_unstable();
        labels.dedup();
        for label in labels {
            *self.replay.refusals_by_reason.entry(label).or_insert(0) += 1;
        }
        self.replay.first_refusal.get_or_insert((position, refusal));
    }

    fn free(&mut self, id: u64, stream: StreamId) -> Result<(), ReplayError> {
        let slot = usize::try_from(id)
            .ok()
            .and_then(|id| self.live.get_mut(id));
        let Some((allocation, own)) = slot.and_then(Option::take) else {
            return Ok(());
        };
        self.replay.ops += 1;
        if stream != own {
            self.allocator
                .record_use(allocation.handle, stream)
                .map_err(ReplayError::Free)?;
        }
        self.allocator
            .free(allocation.handle)
            .map_err(ReplayError::Free)
    }
}
