//! From what the allocator's recorder kept to the run that the trace writers take.

use ds4_engine::alloc::pool::UNIT_BYTES;
use ds4_engine::alloc::{Allocator, BlockState, RecordedEvent as Seen, RecordedKind as SeenKind};

use crate::replay::Replay;
use crate::trace::{RecordedBlock, RecordedDevice, RecordedEvent, RecordedKind, RecordedRun};

/// The recorded run of a replay that has just ended on `allocator`.
pub(crate) fn recorded_run(seen: &[Seen], replay: &Replay, allocator: &Allocator) -> RecordedRun {
    let events = seen.iter().map(|event| {
        let (device, address) = event.place.map_or((0, 0), |(device, address)| {
            (u32::try_from(device.index()).unwrap_or(0), address.0)
        });
        let bytes = event.bytes.next_multiple_of(UNIT_BYTES);
        let kind = match event.kind {
            SeenKind::Allocated => RecordedKind::Alloc,
            SeenKind::Freed => RecordedKind::Free,
            SeenKind::Refused => RecordedKind::Refused,
        };
        RecordedEvent {
            time_us: event.time_us,
            device,
            kind,
            address,
            bytes,
            requested_bytes: event.bytes,
            stream: event.stream.0,
        }
    });
    let events = events.collect();
    let devices = replay
        .devices
        .iter()
        .zip(&replay.extents)
        .map(|((device, stats), extent)| {
            let blocks = allocator.blocks(*device).into_iter();
            RecordedDevice {
                capacity_bytes: extent.1.max(stats.peak_reserved_bytes),
                base_address: extent.0,
                blocks_at_end: blocks
                    .filter(|block| block.state == BlockState::Live)
                    .map(|block| RecordedBlock {
                        offset_bytes: block.offset_bytes,
                        bytes: block.bytes,
                        requested_bytes: block.requested_bytes,
                    })
                    .collect(),
            }
        });
    RecordedRun {
        devices: devices.collect(),
        events,
    }
}
