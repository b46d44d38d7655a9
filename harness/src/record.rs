//! From what the allocator's recorder kept to the run that the trace writers take.

use ds4_engine::alloc::pool::UNIT_BYTES;
use ds4_engine::alloc::{Allocator, BlockState, RecordedEvent as Seen, RecordedKind as SeenKind};

use crate::replay::Replay;
use crate::trace::{
    RecordedBlock, RecordedDevice, RecordedEvent, RecordedKind, RecordedRun, RecordedSegment,
};

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
    let devices = replay.devices.iter().zip(&replay.reaches);
    let devices = devices.map(|((device, stats), reach)| {
        let most = (*reach).max(stats.peak_reserved_bytes);
        let blocks = allocator.blocks(*device);
        let segments = allocator.ranges(*device).into_iter().map(|range| {
            let end = range.offset_bytes + range.bytes;
            let inside = blocks.iter().filter(|block| {
                block.state == BlockState::Live
                    && (range.offset_bytes..end).contains(&block.offset_bytes)
            });
            RecordedSegment {
                address: range.address.0,
                // Of a reserved range only what was ever used is shown.
                bytes: range.bytes.min(most),
                blocks_at_end: inside
                    .map(|block| RecordedBlock {
                        offset_bytes: block.offset_bytes - range.offset_bytes,
                        bytes: block.bytes,
                        requested_bytes: block.requested_bytes,
                    })
                    .collect(),
            }
        });
        RecordedDevice {
            segments: segments.filter(|segment| segment.bytes > 0).collect(),
        }
    });
    RecordedRun {
        devices: devices.collect(),
        events,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use ds4_engine::alloc::{AllocatorConfig, Recorder};
    use ds4_engine::bytes::MIB;
    use ds4_engine::device::DeviceId;
    use ds4_sim::{Instruments, SimConfig, SimDevice};
    use proptest::prelude::*;

    use super::*;
    use crate::replay::{ReplayOptions, replay};
    use crate::target::Target;
    use crate::trace::{
        ReadLimits, read_bytes, write_jsonl, write_pytorch_snapshot, write_rmm_csv,
    };

    #[test]
    fn each_slab_of_a_device_is_a_segment_of_a_snapshot_at_its_own_address() {
        let device = SimDevice {
            page_bytes: None,
            granularity_bytes: 256,
            ..SimDevice::new(64 * MIB)
        };
        let target = Target::simulated(SimConfig::new("bare", vec![device])).unwrap();
        // What others take makes slabs come in halves.
        let (sim, gpu0) = (target.sim().unwrap(), DeviceId::new(0).unwrap());
        let recorder = Arc::new(Recorder::new(|| 7));
        let config = AllocatorConfig {
            observer: Some(recorder.clone()),
            ..AllocatorConfig::default()
        };
        let allocator = Allocator::new(target.backend().clone(), config).unwrap();
        sim.take_memory(gpu0, 12 * MIB);
        let lines: String = (0..14)
            .map(|id| {
                format!(
                    "{{\"t\":{id},\"op\":\"alloc\",\"id\":{id},\"bytes\":{},\"device\":0}}\n",
                    3 * MIB
                )
            })
            .collect();
        let trace = read_bytes(lines.as_bytes(), "t", &ReadLimits::default()).unwrap();
        let done = replay(&allocator, &trace, &ReplayOptions::default(), || ()).unwrap();
        let run = recorded_run(&recorder.take(), &done, &allocator);
        let segments = &run.devices[0].segments;
        assert!(segments.len() > 1, "{segments:?}");
        for event in run
            .events
            .iter()
            .filter(|one| one.kind == RecordedKind::Alloc)
        {
            let inside = |one: &&RecordedSegment| {
                let offset = event.address.checked_sub(one.address);
                offset.is_some_and(|offset| offset + event.bytes <= one.bytes)
            };
            let segment = segments.iter().find(inside).unwrap();
            let offset = event.address - segment.address;
            assert!(
                segment
                    .blocks_at_end
                    .iter()
                    .any(|block| block.offset_bytes == offset)
            );
        }
        let mut bytes = Vec::new();
        write_pytorch_snapshot(&run, &mut bytes).unwrap();
        let again = read_bytes(&bytes, "t", &ReadLimits::default()).unwrap();
        assert_eq!(
            again.events.len(),
            run.events.len() - usize::try_from(done.refusals).unwrap()
        );
    }

    /// Events of a trace that a person could have written, times of every size among them.
    fn lines() -> impl Strategy<Value = String> {
        let time = prop_oneof![0..1000_u64, any::<u64>(), Just(i64::MAX.unsigned_abs())];
        let block = (time, 1..40 * MIB, 0..2_u32, 0..3_u32, any::<bool>());
        prop::collection::vec(block, 1..20).prop_map(|blocks| {
            let mut text = String::new();
            for (id, (t, bytes, device, stream, freed)) in blocks.into_iter().enumerate() {
                text.push_str(&format!(
                    "{{\"t\":{t},\"op\":\"alloc\",\"id\":{id},\"bytes\":{bytes},\
                     \"device\":{device},\"stream\":{stream}}}\n"
                ));
                if freed {
                    text.push_str(&format!(
                        "{{\"t\":{t},\"op\":\"free\",\"id\":{id},\"device\":{device}}}\n"
                    ));
                }
            }
            text
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn what_was_read_and_recorded_is_read_back(text in lines(), pages in any::<bool>()) {
            let Ok(trace) = read_bytes(text.as_bytes(), "t", &ReadLimits::default()) else {
                // Only a time that no recording can hold is refused.
                let late = |line: &str| {
                    let time = line.split([':', ',']).nth(1);
                    time.is_some_and(|time| time.parse::<i64>().is_err())
                };
                prop_assert!(text.lines().any(late), "{text}");
                return Ok(());
            };
            let device = SimDevice {
                page_bytes: pages.then_some(2 * MIB),
                ..SimDevice::new(64 * MIB)
            };
            let target = Target::simulated(SimConfig::new("two", vec![device; 2])).unwrap();
            let now = Arc::new(AtomicU64::new(0));
            let clock = Arc::clone(&now);
            let recorder = Arc::new(Recorder::new(move || clock.load(Ordering::Relaxed)));
            let config = AllocatorConfig {
                observer: Some(recorder.clone()),
                ..AllocatorConfig::default()
            };
            let allocator = Allocator::new(target.backend().clone(), config).unwrap();
            let options = ReplayOptions {
                trace_time_us: Some(&*now),
                ..ReplayOptions::default()
            };
            let done = replay(&allocator, &trace, &options, || ()).unwrap();
            let run = recorded_run(&recorder.take(), &done, &allocator);
            let kept = |device: Option<u32>| {
                let kept = run.events.iter().filter(|event| {
                    event.kind != RecordedKind::Refused && device.is_none_or(|own| own == event.device)
                });
                kept.count()
            };
            prop_assume!(kept(Some(0)) > 0 && kept(Some(1)) > 0);
            let read = |bytes: &[u8]| read_bytes(bytes, "t", &ReadLimits::default()).unwrap().events.len();
            let (mut lines, mut snapshot) = (Vec::new(), Vec::new());
            write_jsonl(&run, &mut lines).unwrap();
            write_pytorch_snapshot(&run, &mut snapshot).unwrap();
            prop_assert_eq!(read(&lines), kept(None));
            prop_assert_eq!(read(&snapshot), kept(None));
            for device in 0..2 {
                let mut log = Vec::new();
                write_rmm_csv(&run, device, &mut log).unwrap();
                prop_assert_eq!(read(&log), kept(Some(device)));
            }
        }
    }
}
