//! What must hold on real devices: only under `--profile hardware`, where absence is an error.
//!
//! `DS4_BACKEND` names the backend, `cuda` or `hip`. Tests of one device take the one of their
//! test-group slot. Paths are looked up when a test runs, so that the tests also run from an
//! archive on a machine without Rust.

#![expect(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use ds4_engine::alloc::{AllocError, Allocation, Allocator, AllocatorConfig, Request};
use ds4_engine::backend::Backend;
use ds4_engine::backend::driver::{Driver, DriverBackend, Vendor};
use ds4_engine::bytes::{GIB, MIB};
use ds4_engine::device::{DeviceId, DeviceMask, Ordinal, StreamId};
use ds4_engine::device_gates::DeviceGates;
use ds4_harness::stopwatch::Stopwatch;
use serde_json::Value;

/// Traces of which a gigabyte or more is live at the peak.
const TRACES: [&str; 2] = ["resnet_var.jsonl.gz", "two_gpu_pipeline.jsonl.gz"];

fn vendor() -> Vendor {
    match std::env::var("DS4_BACKEND").unwrap_or_default().as_str() {
        "cuda" => Vendor::Cuda,
        "hip" => Vendor::Hip,
        other => panic!("set DS4_BACKEND to cuda or hip; it is '{other}'"),
    }
}

fn driver() -> Driver {
    Driver::load(vendor()).unwrap_or_else(|error| panic!("{error}"))
}

/// The device of this test's slot.
fn own_ordinal() -> u32 {
    let slot = std::env::var("NEXTEST_TEST_GROUP_SLOT").unwrap_or_default();
    slot.parse::<u32>().unwrap_or(0) % driver().count()
}

fn open(ordinals: &[u32], force_bounce: bool) -> Arc<DriverBackend> {
    let ordinals: Vec<Ordinal> = ordinals.iter().copied().map(Ordinal).collect();
    let opened = DriverBackend::open(&driver(), &ordinals, DeviceMask::EMPTY, force_bounce);
    Arc::new(opened.unwrap_or_else(|error| panic!("{error}")))
}

fn gpu(index: usize) -> DeviceId {
    DeviceId::new(index).unwrap()
}

fn ds4(arguments: &[&str]) -> Output {
    let path = std::env::var("NEXTEST_BIN_EXE_ds4");
    let path = path.unwrap_or_else(|_| env!("CARGO_BIN_EXE_ds4").to_owned());
    Command::new(path).args(arguments).output().unwrap()
}

/// The result of a command that must succeed, with its origin checked.
fn result(arguments: &[&str]) -> Value {
    let output = ds4(&[arguments, &["--format", "json"]].concat());
    assert!(
        output.status.success(),
        "{arguments:?}\n{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

fn trace(name: &str) -> String {
    let manifest = std::env::var("CARGO_MANIFEST_DIR");
    let manifest = manifest.unwrap_or_else(|_| env!("CARGO_MANIFEST_DIR").to_owned());
    let path: PathBuf = Path::new(&manifest).join("../golden/traces").join(name);
    path.display().to_string()
}

fn number(value: &Value, pointer: &str) -> u64 {
    let found = value.pointer(pointer).and_then(Value::as_u64);
    found.unwrap_or_else(|| panic!("no number {pointer} in {value}"))
}

#[test]
fn the_suites_hold_on_all_devices_together() {
    vendor();
    let run = result(&["check"]);
    assert!(number(&run, "/totals/pass") >= 20, "{run}");
}

#[test]
fn the_suites_hold_on_one_device_alone() {
    let ordinal = own_ordinal().to_string();
    let run = result(&["check", "--gpu-devices", &ordinal]);
    assert!(number(&run, "/totals/pass") >= 15, "{run}");
}

#[test]
fn the_suites_hold_when_copies_must_go_through_the_host() {
    vendor();
    let path = std::env::var("NEXTEST_BIN_EXE_ds4");
    let path = path.unwrap_or_else(|_| env!("CARGO_BIN_EXE_ds4").to_owned());
    let output = Command::new(path)
        .args(["check", "--suite", "placement,recovery"])
        .env("DS4_FORCE_BOUNCE", "1")
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stdout)
    );
}

#[test]
fn blocks_lie_where_the_simulator_puts_them() {
    let count = driver().count().min(2);
    for name in TRACES {
        if count == 1 && name.starts_with("two_gpu") {
            continue;
        }
        let (devices, vram) = if count == 2 {
            ("0,1", "40,40")
        } else {
            ("0", "40")
        };
        let file = trace(name);
        let common = [
            "replay",
            &file,
            "--gpu-devices",
            devices,
            "--gpu-vram",
            vram,
        ];
        let real = result(&common);
        let simulated = result(&[&common[..], &["--backend", "sim"]].concat());
        assert_eq!(
            real.get("state_hash"),
            simulated.get("state_hash"),
            "{name}"
        );
        assert_ne!(real.get("origin"), simulated.get("origin"));
    }
}

#[test]
fn real_traces_run_in_the_memory_that_fit_found_two_percent_above_what_is_live() {
    let count = driver().count();
    for name in TRACES {
        if count == 1 && name.starts_with("two_gpu") {
            continue;
        }
        let fit = result(&["fit", &trace(name), "--backend", "sim"]);
        let fitted = fit.get("devices").and_then(Value::as_array).unwrap();
        let sizes: Vec<String> = fitted
            .iter()
            .map(|device| format!("{}B", number(device, "/min_capacity_bytes").max(4 * MIB)))
            .collect();
        let devices: Vec<String> = (0..sizes.len()).map(|device| device.to_string()).collect();
        let (devices, sizes) = (devices.join(","), sizes.join(","));
        let file = trace(name);
        let run = result(&[
            "replay",
            &file,
            "--gpu-devices",
            &devices,
            "--gpu-vram",
            &sizes,
        ]);
        assert_eq!(number(&run, "/totals/refusals"), 0, "{name}");
        let mut judged = 0;
        for device in run.get("devices").and_then(Value::as_array).unwrap() {
            let live = number(device, "/peak_live_bytes");
            let reserved = number(device, "/peak_reserved_bytes");
            if live >= 512 * MIB {
                judged += 1;
                assert!(reserved * 100 <= live * 102, "{name}: {device}");
            }
        }
        assert!(judged > 0, "{name}: nothing was large enough to be judged");
    }
}

#[test]
fn the_allocator_calls_no_driver_once_its_memory_is_there() {
    let ordinal = own_ordinal().to_string();
    // The bench counts the driver's calls and fails if there is one.
    let run = result(&[
        "bench",
        "alloc",
        "--quick",
        "--runs",
        "3",
        "--gpu-devices",
        &ordinal,
    ]);
    let rows = run.get("rows").and_then(Value::as_array).unwrap();
    assert!(rows.len() >= 8, "{run}");
}

#[test]
fn memory_of_a_neighbour_is_a_refusal_and_serves_once_it_is_back() {
    // The neighbour is this very test, started again with the device that it is to fill.
    if let Ok(ordinal) = std::env::var("DS4_TEST_NEIGHBOUR_OF") {
        return hold_all_of(ordinal.parse().unwrap());
    }
    let ordinal = own_ordinal();
    let backend = open(&[ordinal], false);
    let allocator = Allocator::new(backend.clone(), AllocatorConfig::default())
        .unwrap_or_else(|e| panic!("{e}"));
    let kept = allocator.allocate(&Request::new(64 * MIB)).unwrap();
    let mut neighbour = Neighbour::start(ordinal);
    let large = Request::new(16 * GIB);
    let Err(AllocError::Refused(refusal)) = allocator.allocate(&large) else {
        panic!("16 GiB were granted on a full device");
    };
    assert!(refusal.to_string().contains("no memory"), "{refusal}");
    // Nothing is lost: what is reserved already still serves, and later everything does.
    allocator.free(kept.handle).unwrap();
    let again = allocator.allocate(&Request::new(64 * MIB)).unwrap();
    neighbour.stop();
    let granted = allocator
        .allocate(&large)
        .unwrap_or_else(|error| panic!("{error}"));
    allocator.free(granted.handle).unwrap();
    allocator.free(again.handle).unwrap();
    assert_eq!(allocator.close().unwrap(), 0);
}

/// Another process that holds all but a little of a device.
struct Neighbour {
    child: std::process::Child,
    /// Kept open: what the child still prints must not fail there.
    _said: BufReader<std::process::ChildStdout>,
}

impl Neighbour {
    fn start(ordinal: u32) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "memory_of_a_neighbour_is_a_refusal_and_serves_once_it_is_back",
                "--exact",
                "--nocapture",
            ])
            .env("DS4_TEST_NEIGHBOUR_OF", ordinal.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap());
        let ready = said.by_ref().lines().map_while(Result::ok);
        assert!(
            { ready }.any(|line| line.contains("holding")),
            "the neighbour did not get the memory"
        );
        Self { child, _said: said }
    }

    fn stop(&mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }
}

/// Fills a device until standard input ends.
fn hold_all_of(ordinal: u32) {
    let backend = open(&[ordinal], false);
    let mut held = Vec::new();
    for bytes in [8 * GIB, GIB, 64 * MIB] {
        while let Ok(address) = backend.allocate(gpu(0), bytes) {
            held.push(address);
        }
    }
    let mut out = std::io::stdout();
    writeln!(out, "holding {} blocks", held.len()).unwrap();
    out.flush().unwrap();
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    held.into_iter()
        .for_each(|address| backend.free(gpu(0), address).unwrap());
}

#[test]
fn memory_that_is_not_the_allocators_is_refused_and_kept() {
    let backend = open(&[own_ordinal()], false);
    let foreign = backend.allocate(gpu(0), 2 * MIB).unwrap();
    let config = AllocatorConfig {
        free_by_address: true,
        ..AllocatorConfig::default()
    };
    let allocator = Allocator::new(backend.clone(), config).unwrap_or_else(|e| panic!("{e}"));
    let before = allocator.state_hash();
    assert!(allocator.free_address(foreign).is_err());
    assert_eq!(allocator.state_hash(), before);
    backend.free(gpu(0), foreign).unwrap();
}

#[test]
fn opening_all_devices_costs_little_more_than_the_drivers_own_contexts() {
    let watch = Stopwatch::start();
    let ordinals: Vec<u32> = (0..driver().count()).collect();
    let backend = open(&ordinals, false);
    for device in 0..ordinals.len() {
        // Whoever opens contexts lazily has opened them now.
        backend.memory_info(gpu(device)).unwrap();
    }
    let contexts_ns = watch.elapsed_ns();
    let allocator = Allocator::new(backend, AllocatorConfig::default()).unwrap();
    let all_ns = watch.elapsed_ns();
    eprintln!("contexts {contexts_ns} ns, with the allocator {all_ns} ns");
    assert!(all_ns * 10 <= contexts_ns * 12, "{all_ns} of {contexts_ns}");
    allocator.close().unwrap();
}

#[test]
fn a_device_that_does_not_exist_is_named_with_how_many_there_are() {
    let count = driver().count();
    let output = ds4(&["devices", "--gpu-devices", "31"]);
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("31") && said.contains(&format!("0 to {}", count - 1)),
        "{said}"
    );
}

/// Two ranks on the first two devices.
struct GateBed {
    allocator: Allocator,
    backend: Arc<DriverBackend>,
    gates: DeviceGates,
    streams: [StreamId; 2],
    vectors: [Allocation; 2],
}

impl GateBed {
    fn open(deadline: Duration) -> Self {
        let backend = open(&[0, 1], false);
        let any: Arc<dyn Backend> = Arc::clone(&backend) as Arc<dyn Backend>;
        let allocator = Allocator::new(any, AllocatorConfig::default()).unwrap();
        let gates = DeviceGates::open(&allocator, [gpu(0), gpu(1)], 4 * MIB, deadline).unwrap();
        let vectors = [0, 1].map(|index| {
            let mask = DeviceMask::only(gpu(index));
            let request = Request {
                mask,
                ..Request::new(4 * MIB)
            };
            allocator.allocate(&request).unwrap()
        });
        let streams = [0, 1].map(|index| allocator.create_stream(gpu(index)).unwrap());
        Self {
            allocator,
            backend,
            gates,
            streams,
            vectors,
        }
    }

    fn enqueue(&self, rank: usize, bytes: u64) {
        let vector = self.vectors[rank].address;
        self.gates
            .enqueue(rank, self.streams[rank], vector, vector, bytes)
            .unwrap();
    }

    fn wait(&self, rank: usize) {
        self.backend
            .synchronize(gpu(rank), self.streams[rank])
            .unwrap();
    }
}

#[test]
fn gates_of_all_devices_add_every_size_and_leave_what_lies_behind() {
    let bed = GateBed::open(Duration::from_secs(5));
    for bytes in [16, 32, 4080, 4096, 16 << 10, (64 << 10) - 16, 64 << 10]
        .into_iter()
        .chain([(64 << 10) + 16, 100_000, 1 << 20, 4 * MIB - 32])
    {
        let length = usize::try_from(bytes).unwrap();
        let float = |rank: u64, index: u64| (index * 7 + rank * 1_000 + bytes) as f32;
        for rank in 0..2 {
            let part = (0..bytes / 4).flat_map(|index| float(rank as u64, index).to_le_bytes());
            let mut part: Vec<u8> = part.collect();
            part.extend([0xC3; 16]);
            let vector = bed.vectors[rank].address;
            bed.backend.write(gpu(rank), vector, &part).unwrap();
        }
        // One rank is early, and several gates follow each other.
        for rank in [0, 1, 1, 0] {
            bed.enqueue(rank, bytes);
        }
        for rank in 0..2 {
            bed.wait(rank);
            bed.gates.check(rank).unwrap();
            let mut seen = vec![0; length + 16];
            let vector = bed.vectors[rank].address;
            bed.backend.read(gpu(rank), vector, &mut seen).unwrap();
            let sum = |index| 2.0 * (float(0, index) + float(1, index));
            let want = (0..bytes / 4).flat_map(|index| sum(index).to_le_bytes());
            assert!(seen[..length] == want.collect::<Vec<u8>>(), "{bytes} bytes");
            assert_eq!(seen[length..], [0xC3; 16], "{bytes} bytes");
        }
    }
    bed.gates.close(&bed.allocator).unwrap();
}

#[test]
fn a_gate_of_all_devices_that_waits_in_vain_ends_at_its_deadline_or_when_told() {
    for (bytes, told) in [
        (4096, false),
        (1 << 20, false),
        (4096, true),
        (1 << 20, true),
    ] {
        let deadline = Duration::from_millis(if told { 20_000 } else { 200 });
        let bed = GateBed::open(deadline);
        bed.enqueue(0, bytes);
        bed.enqueue(1, bytes);
        bed.enqueue(0, bytes);
        let watch = Stopwatch::start();
        if told {
            bed.gates.abort(0).unwrap();
        }
        bed.wait(0);
        bed.wait(1);
        let waited_ns = watch.elapsed_ns();
        assert!(waited_ns < 2_000_000_000, "{waited_ns} ns");
        let said = bed.gates.check(0).unwrap_err().to_string();
        let why = if told { "told to stop" } else { "deadline" };
        assert!(said.contains("gate 2") && said.contains(why), "{said}");
        bed.gates.check(1).unwrap();
        // The link has failed: later gates end at once.
        bed.enqueue(0, bytes);
        bed.wait(0);
        bed.gates.close(&bed.allocator).unwrap();
    }
}
