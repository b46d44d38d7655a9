//! Gates between devices that reach each other: what is stored there, and the flags that say so.

use std::sync::Arc;
use std::time::Duration;

use ds4_engine::alloc::{Allocation, Allocator, AllocatorConfig, DeviceBudget, Request};
use ds4_engine::backend::{Backend, BackendError};
use ds4_engine::bytes::{KIB, MIB, format_bytes};
use ds4_engine::device::{DeviceAddress, DeviceId, DeviceMask, PeerAccess, StreamId};
use ds4_engine::device_gates::{DeviceGateError, DeviceGates};
use serde_json::json;

use super::run::{Finding, Group, Probe, Timer};
use super::{CheckId, Level};

const GATES: CheckId = CheckId {
    name: "gates",
    code: "DV-1013",
    level: Level::Test,
};
const UNDER_LOAD: CheckId = CheckId {
    name: "gates-under-load",
    code: "DV-1014",
    level: Level::Test,
};

pub(super) const GROUPS: &[Group] = &[
    Group {
        checks: &[GATES],
        body: |probe| on_pairs(probe, &GATES, every_size),
    },
    Group {
        checks: &[UNDER_LOAD],
        body: |probe| on_pairs(probe, &UNDER_LOAD, under_load),
    },
];

/// Sizes of gates, in bytes: packets and parts, on both sides of where one becomes the other, and
/// odd ones.
const SIZES: [u64; 9] = [
    16,
    48,
    4 * KIB,
    16 * KIB,
    64 * KIB - 16,
    64 * KIB,
    64 * KIB + 16,
    MIB - 16,
    MIB,
];
const MOST_BYTES: u64 = MIB;
/// What a rank holds: its part, the sum, and where the peer's copies arrive.
const VECTOR_BYTES: u64 = 3 * MIB;
/// What a device must spare: vectors and landings, in pages of 2 MiB.
const NEED_BYTES: u64 = 8 * MIB;
/// Gates of a size, one after the other, and of a captured graph.
const SIZE_GATES: usize = 8;
/// Gates among copies, and copies each way. Sums of more would not fit into a float.
const LOADED_GATES: u64 = 64;
const DEADLINE: Duration = Duration::from_secs(5);
/// What sums are written over.
const POISON: u8 = 0xA5;

/// Why a pair has no good finding.
enum Fault {
    Wrong(String),
    Gate(DeviceGateError),
    Backend(BackendError),
    Error(String),
}

impl From<BackendError> for Fault {
    fn from(error: BackendError) -> Self {
        Self::Backend(error)
    }
}

impl From<DeviceGateError> for Fault {
    fn from(error: DeviceGateError) -> Self {
        if let DeviceGateError::Backend(error) = error {
            return Self::Backend(error);
        }
        Self::Gate(error)
    }
}

impl Fault {
    fn finding(self, timer: &Timer, gates: u64) -> Finding {
        let did = timer.did(0, gates);
        match self {
            Self::Wrong(why) => Finding::fail(did, why)
                .hint("do not use the devices together; look at nvlink above, then at the cabling"),
            // A rank that waited in vain is a link that lost what was stored or its flag.
            Self::Gate(error @ DeviceGateError::GaveUp { .. }) => {
                Finding::fail(did, error.to_string())
            }
            Self::Gate(error) => Finding::error(&error.to_string()),
            Self::Backend(error) => Finding::of_error(&error),
            Self::Error(why) => Finding::error(&why),
        }
    }
}

/// What a pair did.
#[derive(Default)]
struct Done {
    gates: u64,
    bytes: u64,
    note: &'static str,
}

impl Done {
    fn count(&mut self, gates: u64, bytes: u64) {
        self.gates += gates;
        self.bytes += gates * bytes;
    }
}

fn on_pairs(
    probe: &Probe<'_>,
    check: &CheckId,
    body: fn(&Probe<'_>, &Bed<'_>, &mut Done) -> Result<(), Fault>,
) {
    let mut any = false;
    for (one, two) in probe.pairs().filter(|(one, two)| one < two) {
        if probe.stopped() {
            return;
        }
        any = true;
        let access = |from, to| probe.backend().peer_access(from, to);
        let timer = probe.timer();
        let mut done = Done::default();
        let small = |id| Ok(probe.quota(id)? < NEED_BYTES);
        if matches!(
            (small(one), small(two)),
            (Ok(true), _) | (_, Ok::<_, BackendError>(true))
        ) {
            let why = "too little memory may be taken for gates";
            probe.tell(check, Some(format!("{one}<->{two}")), Finding::skip(why));
            continue;
        }
        let finding = match (access(one, two), access(two, one)) {
            (Ok(PeerAccess::Direct), Ok(PeerAccess::Direct)) => {
                let ran = Bed::open(probe, [one, two]).and_then(|bed| {
                    let ran = body(probe, &bed, &mut done);
                    if ran.is_err() {
                        bed.abort();
                    }
                    ran.and(bed.close())
                });
                match ran {
                    Ok(()) if done.gates == 0 && probe.stopped() => return,
                    Ok(()) => {
                        let detail = format!(
                            "{} gates each way, all sums the same on both devices{}",
                            done.gates, done.note
                        );
                        Finding::pass(timer.did(done.bytes, done.gates), detail)
                            .measured(json!({ "gates": done.gates, "bytes": done.bytes }))
                    }
                    Err(fault) => fault.finding(&timer, done.gates),
                }
            }
            (Ok(_), Ok(_)) => Finding::skip("no direct path both ways; gates go through the host"),
            (Err(error), _) | (_, Err(error)) => Finding::of_error(&error),
        };
        probe.tell(check, Some(format!("{one}<->{two}")), finding);
    }
    if !any {
        probe.tell(check, None, Finding::skip("there is one device only"));
    }
}

/// Two ranks on two devices.
struct Bed<'a> {
    probe: &'a Probe<'a>,
    allocator: Allocator,
    gates: DeviceGates,
    ends: [End; 2],
}

#[derive(Debug)]
struct End {
    device: DeviceId,
    /// For gates, and for copies beside them.
    streams: [StreamId; 2],
    vector: Allocation,
}

impl End {
    fn input(&self) -> DeviceAddress {
        self.vector.address
    }

    fn output(&self) -> DeviceAddress {
        DeviceAddress(self.vector.address.0 + MOST_BYTES)
    }

    fn arrivals(&self) -> DeviceAddress {
        DeviceAddress(self.vector.address.0 + 2 * MOST_BYTES)
    }
}

impl<'a> Bed<'a> {
    fn open(probe: &'a Probe<'a>, devices: [DeviceId; 2]) -> Result<Self, Fault> {
        let mut budgets = vec![DeviceBudget::default(); probe.devices().count()];
        for (budget, id) in budgets.iter_mut().zip(probe.devices()) {
            budget.configured_bytes = Some(probe.quota(id)?);
        }
        let config = AllocatorConfig {
            budgets,
            ..AllocatorConfig::default()
        };
        let backend = Arc::clone(probe.subject.target.backend());
        let allocator = Allocator::new(backend, config);
        let allocator = allocator.map_err(|error| Fault::Error(error.to_string()))?;
        let gates = DeviceGates::open(&allocator, devices, MOST_BYTES, DEADLINE)?;
        let ends = devices.map(|device| open_end(&allocator, device));
        let [one, two] = ends;
        Ok(Self {
            probe,
            gates,
            ends: [one?, two?],
            allocator,
        })
    }

    fn backend(&self) -> &dyn Backend {
        self.probe.backend()
    }

    /// Gives both ranks their parts of `bytes` bytes, and poison where the sums will be.
    fn prepare(&self, bytes: u64) -> Result<(), Fault> {
        for (rank, end) in self.ends.iter().enumerate() {
            let part: Vec<u8> = (0..bytes / 4)
                .flat_map(|index| float(rank, bytes, index).to_le_bytes())
                .collect();
            let [stream, _] = end.streams;
            let backend = self.backend();
            backend.write(end.device, end.input(), &part)?;
            backend.fill(end.device, end.output(), MOST_BYTES, POISON, stream)?;
            backend.synchronize(end.device, stream)?;
        }
        Ok(())
    }

    /// Enqueues gates of the ranks in this order. A rank's first one adds the parts, every other
    /// one the sums: each doubles what the one before left, so that no wrong float is lost.
    fn enqueue(
        &self,
        order: impl IntoIterator<Item = usize>,
        bytes: u64,
    ) -> Result<(), DeviceGateError> {
        let mut first = [true; 2];
        for rank in order {
            let (Some(end), Some(first)) = (self.ends.get(rank), first.get_mut(rank)) else {
                continue;
            };
            let input = if std::mem::take(first) {
                end.input()
            } else {
                end.output()
            };
            let [stream, _] = end.streams;
            self.gates
                .enqueue(rank, stream, input, end.output(), bytes)?;
        }
        Ok(())
    }

    fn wait(&self) -> Result<(), Fault> {
        for (rank, end) in self.ends.iter().enumerate() {
            for stream in end.streams {
                self.backend().synchronize(end.device, stream)?;
            }
            self.gates.check(rank)?;
        }
        Ok(())
    }

    /// Whether both sums are right after so many gates, and nothing behind them has changed.
    fn verify(&self, bytes: u64, gates: u64) -> Result<(), Fault> {
        let factor = (1..gates).fold(1.0, |factor: f32, _| factor * 2.0);
        let mut seen = vec![0; usize::try_from(bytes + 16).unwrap_or(0)];
        for end in &self.ends {
            self.backend().read(end.device, end.output(), &mut seen)?;
            let sums = (0..bytes / 4)
                .map(|index| (float(0, bytes, index) + float(1, bytes, index)) * factor);
            let poison = f32::from_le_bytes([POISON; 4]);
            let behind = if bytes < MOST_BYTES { 4 } else { 0 };
            let wanted = sums.chain(std::iter::repeat_n(poison, behind));
            for (index, (wanted, seen)) in wanted.zip(seen.as_chunks().0).enumerate() {
                if wanted.to_le_bytes() != *seen {
                    return Err(Fault::Wrong(format!(
                        "a gate of {}: float {index} on {} is {:?} ({:#010x}) where {wanted:?} ({:#010x}) was expected",
                        format_bytes(bytes),
                        end.device,
                        f32::from_le_bytes(*seen),
                        u32::from_le_bytes(*seen),
                        wanted.to_bits(),
                    )));
                }
            }
        }
        Ok(())
    }

    /// Ends what still waits for a peer that failed.
    fn abort(&self) {
        for rank in 0..self.ends.len() {
            // What has failed already is the finding.
            let _ = self.gates.abort(rank);
        }
    }

    fn close(self) -> Result<(), Fault> {
        let mut result = self.gates.close(&self.allocator).map_err(Fault::from);
        for end in &self.ends {
            let freed = self.allocator.free(end.vector.handle);
            result = result.and(freed.map_err(|error| Fault::Error(error.to_string())));
            for stream in end.streams {
                let removed = self.probe.backend().destroy_stream(end.device, stream);
                result = result.and(removed.map_err(Fault::from));
            }
        }
        let closed = self.allocator.close();
        result.and(
            closed
                .map(drop)
                .map_err(|error| Fault::Error(error.to_string())),
        )
    }
}

fn open_end(allocator: &Allocator, device: DeviceId) -> Result<End, Fault> {
    let request = Request {
        mask: DeviceMask::only(device),
        ..Request::new(VECTOR_BYTES)
    };
    let vector = allocator.allocate(&request);
    let vector = vector.map_err(|error| Fault::Error(error.to_string()))?;
    let backend = allocator.backend();
    Ok(End {
        device,
        streams: [
            backend.create_stream(device)?,
            backend.create_stream(device)?,
        ],
        vector,
    })
}

/// A part's float: whole numbers, so that every sum is exact and differs from its neighbours.
fn float(rank: usize, bytes: u64, index: u64) -> f32 {
    let number = (index * 7 + bytes + rank as u64 * 1_000) % 60_000;
    f32::from(u16::try_from(number).unwrap_or(0))
}

/// Every size, with either rank early by one gate or by all, then as a graph.
fn every_size(probe: &Probe<'_>, bed: &Bed<'_>, done: &mut Done) -> Result<(), Fault> {
    for bytes in SIZES {
        let by_turns = (0..SIZE_GATES).flat_map(|gate| [gate % 2, 1 - gate % 2]);
        let all_first = |rank| std::iter::repeat_n(rank, SIZE_GATES);
        let orders: [Vec<usize>; 3] = [
            by_turns.collect(),
            all_first(0).chain(all_first(1)).collect(),
            all_first(1).chain(all_first(0)).collect(),
        ];
        for order in orders {
            if probe.stopped() {
                return Ok(());
            }
            bed.prepare(bytes)?;
            bed.enqueue(order, bytes)?;
            bed.wait()?;
            bed.verify(bytes, SIZE_GATES as u64)?;
            done.count(SIZE_GATES as u64, bytes);
        }
    }
    replayed(probe, bed, done)
}

/// Gates of a captured graph, which count their sequence on the device.
fn replayed(probe: &Probe<'_>, bed: &Bed<'_>, done: &mut Done) -> Result<(), Fault> {
    const BYTES: u64 = 16 * KIB;
    let Some(devices) = probe.subject.target.real_devices() else {
        done.note = "; no graphs on simulated devices";
        return Ok(());
    };
    let mut graphs = Vec::new();
    for (rank, end) in bed.ends.iter().enumerate() {
        let [stream, _] = end.streams;
        let graph = devices.capture(end.device, stream, || {
            (0..SIZE_GATES).try_for_each(|_| {
                bed.gates
                    .enqueue(rank, stream, end.output(), end.output(), BYTES)
            })
        });
        match graph {
            Ok(graph) => graphs.push((graph, stream)),
            Err(DeviceGateError::Backend(BackendError::Unsupported { .. })) => {
                done.note = "; this driver captures no graphs";
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        }
    }
    bed.prepare(BYTES)?;
    bed.enqueue([0, 1], BYTES)?;
    for _ in 0..SIZE_GATES {
        for (graph, stream) in &graphs {
            devices.replay(graph, *stream)?;
        }
    }
    bed.wait()?;
    let gates = (1 + SIZE_GATES * SIZE_GATES) as u64;
    bed.verify(BYTES, gates)?;
    done.count(gates, BYTES);
    done.note = "; also as a replayed graph";
    Ok(())
}

/// Gates while copies fill the link both ways: flags must not arrive before what they are about.
fn under_load(probe: &Probe<'_>, bed: &Bed<'_>, done: &mut Done) -> Result<(), Fault> {
    let [one, two] = &bed.ends;
    for bytes in [16 * KIB, MIB - 16] {
        bed.prepare(bytes)?;
        if probe.stopped() {
            return Ok(());
        }
        for _ in 0..LOADED_GATES {
            for (near, far) in [(one, two), (two, one)] {
                let (from, to) = ((near.device, near.input()), (far.device, far.arrivals()));
                let [_, aside] = near.streams;
                probe.backend().copy_peer(from, to, MOST_BYTES, aside)?;
            }
        }
        let gates = 0..usize::try_from(LOADED_GATES).unwrap_or(0);
        bed.enqueue(gates.flat_map(|gate| [gate % 2, 1 - gate % 2]), bytes)?;
        bed.wait()?;
        bed.verify(bytes, LOADED_GATES)?;
        done.count(LOADED_GATES, bytes);
    }
    Ok(())
}
