//! What holds for every format: golden traces, round trips, and input meant to do harm.

use std::io::Write as _;
use std::path::PathBuf;

use flate2::Compression;
use flate2::write::GzEncoder;
use proptest::prelude::*;

use super::*;

const FORMATS: [TraceFormat; 4] = [
    TraceFormat::Jsonl,
    TraceFormat::PytorchSnapshot,
    TraceFormat::RmmCsv,
    TraceFormat::MinimallocCsv,
];

fn small_limits() -> ReadLimits {
    ReadLimits {
        max_bytes: 1 << 20,
        max_line_bytes: 4 << 10,
        max_events: 10_000,
        max_pickle_items: 10_000,
    }
}

fn golden(name: &str) -> PathBuf {
    let harness = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    harness.join("../golden/traces").join(name)
}

fn read_golden(name: &str) -> Trace {
    read_path(&golden(name), &ReadLimits::default()).unwrap()
}

fn gzipped(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Two devices, two streams, a reused address, a refusal, and a block live at the end.
fn sample_run() -> RecordedRun {
    let event = |time_us, device, kind, address, requested_bytes, stream| RecordedEvent {
        time_us,
        device,
        kind,
        address,
        bytes: 256,
        requested_bytes,
        stream,
    };
    let pool = |address, blocks_at_end| RecordedDevice {
        segments: vec![RecordedSegment {
            address,
            bytes: 1 << 20,
            blocks_at_end,
        }],
    };
    let block = RecordedBlock {
        offset_bytes: 256,
        bytes: 256,
        requested_bytes: 200,
    };
    RecordedRun {
        devices: vec![pool(0x7f00_0000_0000, vec![block]), pool(0, Vec::new())],
        events: vec![
            event(10, 0, RecordedKind::Alloc, 0x7f00_0000_0000, 100, 0),
            event(11, 0, RecordedKind::Alloc, 0x7f00_0000_0100, 200, 1),
            event(12, 1, RecordedKind::Alloc, 0, 70_000, 1),
            event(13, 1, RecordedKind::Refused, 0, 5_000_000_000, 0),
            event(14, 0, RecordedKind::Free, 0x7f00_0000_0000, 100, 1),
            event(15, 1, RecordedKind::Free, 0, 70_000, 1),
            event(16, 1, RecordedKind::Alloc, 0, 7, 0),
            event(17, 1, RecordedKind::Free, 0, 7, 0),
        ],
    }
}

/// A small valid file of each format.
fn sample(format: TraceFormat) -> Vec<u8> {
    let mut out = Vec::new();
    match format {
        TraceFormat::Jsonl => write_jsonl(&sample_run(), &mut out).unwrap(),
        TraceFormat::PytorchSnapshot => write_pytorch_snapshot(&sample_run(), &mut out).unwrap(),
        TraceFormat::RmmCsv => write_rmm_csv(&sample_run(), 0, &mut out).unwrap(),
        TraceFormat::MinimallocCsv => {
            out.extend(b"id,lower,upper,size\n0,5,90,64\n1,3,5,100\n2,7,11,12\n");
        }
    }
    out
}

/// Events of one device without labels, which differ by format.
fn events_of(trace: &Trace, only: u32) -> Vec<(u64, TraceAction)> {
    let device = |event: &TraceEvent| match event.action {
        TraceAction::Alloc { device, .. } | TraceAction::Free { device, .. } => device,
    };
    let events = trace.events.iter().filter(|event| device(event) == only);
    events.map(|event| (event.time_us, event.action)).collect()
}

#[test]
fn golden_traces_are_read_whole() {
    for (name, format, events, devices) in [
        ("resnet_var.jsonl.gz", TraceFormat::Jsonl, 14_332, 1),
        ("two_gpu_pipeline.jsonl.gz", TraceFormat::Jsonl, 17_877, 2),
        ("A.1048576.csv", TraceFormat::MinimallocCsv, 308, 1),
        ("F.1048576.csv", TraceFormat::MinimallocCsv, 592, 1),
        ("K.1048576.csv", TraceFormat::MinimallocCsv, 908, 1),
    ] {
        let trace = read_golden(name);
        let seen = (trace.format, trace.events.len(), trace.devices);
        assert_eq!(seen, (format, events, devices), "{name}");
        assert!(trace.notes.is_empty(), "{name}: {:?}", trace.notes);
    }
}

/// The counts are those that CPython's own unpickler gives for the file.
#[test]
fn golden_snapshot_is_read_whole() {
    let trace = read_golden("resnet_var.pickle.gz");
    let allocs = trace
        .events
        .iter()
        .filter(|e| matches!(e.action, TraceAction::Alloc { .. }));
    assert_eq!(
        (allocs.count(), trace.events.len(), trace.devices),
        (7_169, 14_335, 1)
    );
    assert_eq!(
        trace.notes,
        [TraceNote {
            kind: NoteKind::SegmentEvents,
            count: 141
        }]
    );
}

#[test]
fn what_is_written_in_each_format_is_read_back() {
    let lines = read_bytes(&sample(TraceFormat::Jsonl), "t", &small_limits()).unwrap();
    let snapshot = read_bytes(&sample(TraceFormat::PytorchSnapshot), "t", &small_limits()).unwrap();
    assert_eq!(
        (lines.format, snapshot.format),
        (TraceFormat::Jsonl, TraceFormat::PytorchSnapshot)
    );
    assert_eq!((lines.events.len(), lines.blocks, lines.devices), (7, 4, 2));
    let failed = TraceNote {
        kind: NoteKind::FailedAllocations,
        count: 1,
    };
    for device in 0..2 {
        let written = events_of(&lines, device);
        assert_eq!(events_of(&snapshot, device), written);
        let mut log = Vec::new();
        write_rmm_csv(&sample_run(), device, &mut log).unwrap();
        let log = read_bytes(&log, "t", &small_limits()).unwrap();
        assert_eq!(log.notes.contains(&failed), device == 1);
        // A log has no device: its one device reads as 0.
        let moved = events_of(&log, 0)
            .into_iter()
            .map(|(time_us, action)| match action {
                TraceAction::Alloc { bytes, stream, .. } => (
                    time_us,
                    TraceAction::Alloc {
                        bytes,
                        device,
                        stream,
                    },
                ),
                TraceAction::Free { stream, .. } => (time_us, TraceAction::Free { device, stream }),
            });
        assert_eq!(moved.collect::<Vec<_>>(), written);
    }
    assert!(snapshot.notes.contains(&failed));
}

#[test]
fn written_snapshot_is_read_alike_by_another_pickle_reader() {
    let bytes = sample(TraceFormat::PytorchSnapshot);
    let value: serde_json::Value =
        serde_pickle::from_slice(&bytes, serde_pickle::DeOptions::new()).unwrap();
    let segment = &value["segments"][0];
    assert_eq!(segment["total_size"], 1 << 20);
    let blocks = segment["blocks"].as_array().unwrap();
    let sizes: Vec<u64> = blocks
        .iter()
        .filter_map(|block| block["size"].as_u64())
        .collect();
    assert_eq!(sizes, [256, 256, (1 << 20) - 512]);
    assert_eq!(blocks[1]["state"], "active_allocated");
    assert_eq!(blocks[1]["requested_size"], 200);
    assert_eq!(value["device_traces"][0][1]["addr"], 0x7f00_0000_0000_u64);
    assert_eq!(value["device_traces"][1][2]["action"], "oom");
    assert_eq!(value["device_traces"][1][2]["device_free"], (1 << 20) - 256);
}

#[test]
fn runs_that_contradict_themselves_are_not_written() {
    let mut run = sample_run();
    run.events.remove(0);
    assert!(write_jsonl(&run, &mut Vec::new()).is_err());
    run.devices.pop();
    assert!(write_pytorch_snapshot(&run, &mut Vec::new()).is_err());
    let mut run = sample_run();
    let block = RecordedBlock {
        offset_bytes: 300,
        bytes: 1 << 20,
        requested_bytes: 1,
    };
    run.devices[0].segments[0].blocks_at_end.push(block);
    assert!(write_pytorch_snapshot(&run, &mut Vec::new()).is_err());
}

#[test]
fn every_prefix_of_a_file_is_refused_or_a_shorter_trace() {
    for format in FORMATS {
        let whole = sample(format);
        let events = read_bytes(&whole, "t", &small_limits())
            .unwrap()
            .events
            .len();
        for end in 0..whole.len() {
            for bytes in [whole[..end].to_vec(), gzipped(&whole[..end])] {
                match read_bytes(&bytes, "t", &small_limits()) {
                    Ok(trace) => assert!(trace.events.len() <= events, "{format} {end}"),
                    Err(error) => assert!(!error.to_string().contains('\n'), "{error}"),
                }
            }
        }
    }
}

#[test]
fn gzip_that_is_cut_or_flipped_is_refused() {
    for format in FORMATS {
        let whole = gzipped(&sample(format));
        assert!(read_bytes(&whole, "t", &small_limits()).is_ok(), "{format}");
        for end in 0..whole.len() {
            let error = read_bytes(&whole[..end], "t", &small_limits()).unwrap_err();
            assert!(
                matches!(error, TraceError::Format(_)),
                "{format} {end}: {error}"
            );
        }
        for at in 10..whole.len() {
            let mut flipped = whole.clone();
            flipped[at] ^= 1;
            assert!(
                read_bytes(&flipped, "t", &small_limits()).is_err(),
                "{format} {at}"
            );
        }
    }
}

#[test]
fn gzip_bomb_stops_at_the_limit() {
    let line = b"{\"t\":0,\"op\":\"alloc\",\"id\":1,\"bytes\":8,\"device\":0}\n";
    let mut bomb = line.to_vec();
    bomb.resize(4 << 20, b'\n');
    let error = read_bytes(&gzipped(&bomb), "t", &small_limits()).unwrap_err();
    assert!(matches!(error, TraceError::Limit(_)), "{error}");
    assert!(
        error.to_string().contains("longer than 1048576 bytes"),
        "{error}"
    );
    bomb[line.len()..].fill(b' ');
    let error = read_bytes(&gzipped(&bomb), "t", &small_limits()).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("t line 2: the line is longer than"),
        "{error}"
    );
    let twice = gzipped(&gzipped(line));
    assert!(
        read_bytes(&twice, "t", &small_limits())
            .unwrap_err()
            .to_string()
            .contains("within")
    );
}

#[test]
fn bytes_that_are_no_text_are_refused() {
    for (format, head) in [
        (TraceFormat::Jsonl, &b""[..]),
        (
            TraceFormat::RmmCsv,
            b"Thread,Time,Action,Pointer,Size,Stream\n",
        ),
        (TraceFormat::MinimallocCsv, b"id,lower,upper,size\n"),
    ] {
        let bytes = [head, b"\xff\xfe,\xff,\xff,\xff,\xff,\xff\n"].concat();
        let error = read_bytes_as(format, &bytes, "t", &small_limits()).unwrap_err();
        assert!(matches!(error, TraceError::Format(_)), "{error}");
    }
}

#[test]
fn file_of_another_format_is_refused() {
    for given in FORMATS {
        for taken_for in FORMATS {
            let read = read_bytes_as(taken_for, &sample(given), "t", &small_limits());
            assert_eq!(read.is_ok(), given == taken_for, "{given} as {taken_for}");
        }
    }
}

#[test]
fn missing_file_and_directory_are_named() {
    for name in ["no-such-trace", ""] {
        let error = read_path(&golden(name), &small_limits()).unwrap_err();
        assert!(matches!(error, TraceError::Io { .. }), "{error}");
        assert!(error.to_string().contains("golden/traces"), "{error}");
    }
}

mod snapshots {
    use super::*;

    fn refusal(body: &[u8]) -> String {
        let bytes = [b"\x80\x04", body, b"."].concat();
        read_bytes(&bytes, "t", &small_limits())
            .unwrap_err()
            .to_string()
    }

    fn text(word: &str) -> Vec<u8> {
        let mut bytes = vec![b'X'];
        bytes.extend(u32::try_from(word.len()).unwrap().to_le_bytes());
        bytes.extend(word.as_bytes());
        bytes
    }

    /// A snapshot with one device and the given entries, each a list of keys and raw values.
    fn snapshot(entries: &[&[(&str, &[u8])]], segments: &[u8]) -> Vec<u8> {
        let mut body = b"}(".to_vec();
        body.extend(text("device_traces"));
        body.extend(b"](](");
        for entry in entries {
            body.extend(b"}(");
            for (key, value) in *entry {
                body.extend(text(key));
                body.extend(*value);
            }
            body.extend(b"u");
        }
        body.extend(b"ee");
        body.extend(text("segments"));
        body.extend(segments);
        body.extend(b"u");
        body
    }

    fn read(body: &[u8]) -> Trace {
        read_bytes(&[b"\x80\x04", body, b"."].concat(), "t", &small_limits()).unwrap()
    }

    #[test]
    fn pickles_of_other_things_are_refused() {
        for body in [&b"K\x01"[..], b"]", b"}", b"N"] {
            assert!(
                refusal(body).contains("not a memory snapshot"),
                "{}",
                refusal(body)
            );
        }
        let message = refusal(&snapshot(&[], b"]"));
        assert!(
            message.contains("no events; call torch.cuda.memory._record"),
            "{message}"
        );
    }

    #[test]
    fn entries_are_refused_with_their_path() {
        let alloc = text("alloc");
        let entry: &[(&str, &[u8])] = &[
            ("action", &alloc),
            ("addr", b"K\x08"),
            ("size", b"J\xff\xff\xff\xff"),
        ];
        let message = refusal(&snapshot(&[entry], b"]"));
        assert!(
            message.starts_with("t device_traces[0][0]: size is not"),
            "{message}"
        );
        let message = refusal(&snapshot(&[&[("addr", b"K\x08")]], b"]"));
        assert!(message.starts_with("t device_traces[0][0]: the entry has no `action`"));
        let message = refusal(&snapshot(&[entry.get(..2).unwrap()], b"]"));
        assert!(message.contains("no `size`"), "{message}");
        let live: &[(&str, &[u8])] = &[("action", &alloc), ("addr", b"K\x08"), ("size", b"K\x10")];
        let message = refusal(&snapshot(&[live, live], b"]"));
        assert!(
            message.starts_with("t device_traces[0][1]: alloc of address 0x8"),
            "{message}"
        );
        assert!(
            message.contains("allocated at device_traces[0][0]"),
            "{message}"
        );
    }

    #[test]
    fn blocks_from_before_the_recording_are_restored() {
        let (free, size) = (text("free_completed"), b"K\x40");
        let entry: &[(&str, &[u8])] = &[("action", &free), ("addr", b"K\x08"), ("size", size)];
        // One segment at 256 whose blocks give no address: 16 bytes free, 32 bytes live.
        let mut segments = b"](}(".to_vec();
        segments.extend([text("address"), b"M\0\x01".to_vec(), text("blocks")].concat());
        segments.extend(b"](");
        for (size, state) in [(16, "inactive"), (32, "active_allocated")] {
            segments.extend(b"}(");
            segments.extend([text("size"), vec![b'K', size], text("state"), text(state)].concat());
            segments.extend(b"u");
        }
        segments.extend(b"eue");
        let trace = read(&snapshot(&[entry], &segments));
        let seen: Vec<(u64, bool)> = (trace.events.iter())
            .map(|event| {
                (
                    event.label,
                    matches!(event.action, TraceAction::Alloc { .. }),
                )
            })
            .collect();
        assert_eq!(seen, [(8, true), (256 + 16, true), (8, false)]);
        let note = TraceNote {
            kind: NoteKind::LiveBeforeRecording,
            count: 2,
        };
        assert_eq!(trace.notes, [note]);
    }

    #[test]
    fn lists_shared_many_times_do_not_multiply_the_work() {
        // 30 devices share one trace of 90 failed allocations, each the same dict of 60 keys.
        let mut entry = b"}\x94(".to_vec();
        entry.extend([text("action"), text("oom")].concat());
        for _ in 0..59 {
            entry.extend([text("size"), b"K\x01".to_vec()].concat());
        }
        entry.push(b'u');
        let mut body = b"}(".to_vec();
        body.extend(text("device_traces"));
        body.extend(b"](]\x94(");
        body.extend(entry);
        body.extend(b"h\x01".repeat(89));
        body.push(b'e');
        body.extend(b"h\x00".repeat(29));
        body.extend(b"eu");
        let message = refusal(&body);
        assert!(
            message.contains("expands to more than 10000 values"),
            "{message}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
        for format in FORMATS {
            let _outcome = read_bytes_as(format, &bytes, "t", &small_limits());
        }
        let _outcome = read_bytes(&bytes, "t", &small_limits());
    }

    #[test]
    fn damaged_files_never_panic(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        for format in FORMATS {
            let mut bytes = sample(format);
            for (at, byte) in &edits {
                let at = at.index(bytes.len());
                bytes[at] = *byte;
            }
            if let Ok(trace) = read_bytes_as(format, &bytes, "t", &small_limits()) {
                prop_assert!(trace.events.iter().all(|event| event.id < trace.blocks));
            }
        }
    }
}
