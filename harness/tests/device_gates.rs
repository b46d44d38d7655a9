//! Gates between two devices: kernels that wait for each other, and work behind them.

#![expect(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::sync::Arc;
use std::time::Duration;

use ds4_engine::alloc::{Allocation, Allocator, AllocatorConfig, Request};
use ds4_engine::backend::{Backend, BackendError};
use ds4_engine::bytes::{GIB, MIB};
use ds4_engine::device::{DeviceAddress, DeviceId, DeviceMask, StreamId};
use ds4_engine::device_gates::{DeviceGateError, DeviceGates};
use ds4_kernels::gate::GateFailure;
use ds4_sim::{FaultKind, FaultPlan, Instruments, SimBackend, SimConfig};

const LONG: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(20);

fn gpu(index: usize) -> DeviceId {
    DeviceId::new(index).unwrap()
}

/// Two ranks on two devices.
struct Bed {
    sim: Arc<SimBackend>,
    allocator: Allocator,
    gates: DeviceGates,
    streams: [StreamId; 2],
    vectors: [Allocation; 2],
}

impl Bed {
    fn open(deadline: Duration) -> Self {
        let sim = Arc::new(SimBackend::new(SimConfig::uniform(2, GIB)).unwrap());
        let any: Arc<dyn Backend> = Arc::clone(&sim) as Arc<dyn Backend>;
        let allocator = Allocator::new(any, AllocatorConfig::default()).unwrap();
        let gates = DeviceGates::open(&allocator, [gpu(0), gpu(1)], MIB, deadline).unwrap();
        let vectors = [0, 1].map(|index| {
            let mask = DeviceMask::only(gpu(index));
            let request = Request {
                mask,
                ..Request::new(4 * MIB)
            };
            allocator.allocate(&request).unwrap()
        });
        let streams = [0, 1].map(|index| sim.create_stream(gpu(index)).unwrap());
        Self {
            sim,
            allocator,
            gates,
            streams,
            vectors,
        }
    }

    fn at(&self, rank: usize, offset: u64) -> DeviceAddress {
        DeviceAddress(self.vectors[rank].address.0 + offset)
    }

    /// Gives a rank's vector numbers of its own.
    fn write(&self, rank: usize, bytes: u64) {
        let part: Vec<u8> = (0..bytes / 4)
            .flat_map(|index| float(rank, index).to_le_bytes())
            .chain([0xC3; 16])
            .collect();
        self.sim.write(gpu(rank), self.at(rank, 0), &part).unwrap();
    }

    fn enqueue(&self, rank: usize, bytes: u64, gates: u64) {
        let vector = self.at(rank, 0);
        self.gates
            .enqueue_many(rank, self.streams[rank], vector, vector, bytes, gates)
            .unwrap();
    }

    fn wait(&self, rank: usize) {
        self.sim.synchronize(gpu(rank), self.streams[rank]).unwrap();
    }

    fn read(&self, rank: usize, offset: u64, bytes: u64) -> Vec<u8> {
        let mut seen = vec![0; usize::try_from(bytes).unwrap()];
        let from = self.at(rank, offset);
        self.sim.read(gpu(rank), from, &mut seen).unwrap();
        seen
    }

    fn close(self) {
        for (rank, stream) in self.streams.into_iter().enumerate() {
            self.sim.destroy_stream(gpu(rank), stream).unwrap();
            self.allocator.free(self.vectors[rank].handle).unwrap();
        }
        self.gates.close(&self.allocator).unwrap();
        assert_eq!(self.allocator.close().unwrap(), 0);
        assert_eq!(self.sim.ledger().findings(), []);
    }
}

fn float(rank: usize, index: u64) -> f32 {
    let number = index * 7 + rank as u64 * 1_000;
    f32::from(u16::try_from(number % 60_000).unwrap())
}

fn sums(bytes: u64, factor: f32) -> Vec<u8> {
    let sum = |index| factor * (float(0, index) + float(1, index));
    (0..bytes / 4)
        .flat_map(|index| sum(index).to_le_bytes())
        .chain([0xC3; 16])
        .collect()
}

#[test]
fn one_thread_launches_both_ranks_in_any_order_and_every_size_is_added() {
    let bed = Bed::open(LONG);
    for bytes in [16, 32, 4080, 16 << 10, 64 << 10, (64 << 10) + 16, MIB - 32] {
        bed.write(0, bytes);
        bed.write(1, bytes);
        for rank in [0, 1, 1, 0] {
            bed.enqueue(rank, bytes, 1);
        }
        for rank in 0..2 {
            bed.wait(rank);
            bed.gates.check(rank).unwrap();
            assert_eq!(bed.read(rank, 0, bytes + 16), sums(bytes, 2.0), "{bytes}");
        }
    }
    bed.close();
}

#[test]
fn several_gates_of_one_kernel_meet_as_many_kernels_of_the_peer() {
    let bed = Bed::open(LONG);
    bed.write(0, 4096);
    bed.write(1, 4096);
    bed.enqueue(0, 4096, 5);
    for _ in 0..5 {
        bed.enqueue(1, 4096, 1);
    }
    bed.wait(0);
    bed.wait(1);
    assert_eq!(bed.read(0, 0, 4112), sums(4096, 16.0));
    assert_eq!(bed.read(1, 0, 4112), sums(4096, 16.0));
    bed.close();
}

#[test]
fn work_behind_a_gate_that_waits_is_done_once_the_peer_has_come() {
    let bed = Bed::open(LONG);
    bed.write(0, 64);
    bed.write(1, 64);
    let (near, stream) = (gpu(0), bed.streams[0]);
    let other = bed.sim.create_stream(near).unwrap();
    bed.enqueue(0, 64, 1);
    let (from, to, last) = (bed.at(0, 0), bed.at(0, MIB), bed.at(0, 2 * MIB));
    bed.sim.copy_local(near, from, to, 80, stream).unwrap();
    let event = bed.sim.record_event(near, stream).unwrap();
    bed.sim.stream_wait_event(near, other, near, event).unwrap();
    bed.sim.copy_local(near, to, last, 80, other).unwrap();
    let after = bed.sim.record_event(near, other).unwrap();
    // Another stream is not held up.
    bed.sim
        .fill(near, bed.at(0, 3 * MIB), 16, 7, StreamId::DEFAULT)
        .unwrap();
    assert_eq!(bed.read(0, 3 * MIB, 1), [7]);
    for _ in 0..100 {
        assert_eq!(bed.sim.event_done(near, event), Ok(false));
        assert_eq!(bed.sim.stream_done(near, other), Ok(false));
    }
    bed.enqueue(1, 64, 1);
    bed.sim.wait_event(near, after).unwrap();
    assert_eq!(bed.read(0, 2 * MIB, 80), sums(64, 1.0));
    assert_eq!(bed.sim.event_done(near, event), Ok(true));
    bed.wait(1);
    for event in [event, after] {
        bed.sim.destroy_event(near, event).unwrap();
    }
    bed.sim.destroy_stream(near, other).unwrap();
    bed.close();
}

#[test]
fn a_rank_whose_peer_never_comes_ends_at_the_deadline_and_says_where() {
    let bed = Bed::open(SHORT);
    for rank in [0, 1, 0] {
        bed.enqueue(rank, 4096, 1);
    }
    bed.enqueue(0, 4096, 1);
    bed.wait(0);
    let failure = GateFailure {
        sequence: 2,
        aborted: false,
        seen: 0,
    };
    match bed.gates.check(0) {
        Err(DeviceGateError::GaveUp {
            rank: 0,
            failure: seen,
        }) => assert_eq!(seen, failure),
        other => panic!("{other:?}"),
    }
    bed.gates.check(1).unwrap();
    bed.close();
}

#[test]
fn a_rank_that_is_told_to_stop_ends_before_its_deadline() {
    let bed = Bed::open(LONG);
    bed.enqueue(0, 128 << 10, 1);
    bed.gates.abort(0).unwrap();
    bed.wait(0);
    let why = bed.gates.check(0).unwrap_err().to_string();
    assert!(why.contains("rank 0 was told to stop in gate 1"), "{why}");
    bed.close();
}

#[test]
fn ranks_on_threads_of_their_own_pass_many_gates() {
    let bed = Bed::open(LONG);
    let side = |rank: usize| {
        for gate in 0..200_u64 {
            bed.write(rank, 4096);
            bed.enqueue(rank, if gate % 2 == 0 { 4096 } else { 64 }, 1);
            bed.wait(rank);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| side(0));
        side(1);
    });
    bed.gates.check(0).unwrap();
    assert_eq!(bed.read(0, 0, 64), bed.read(1, 0, 64));
    assert_eq!(bed.read(0, 0, 64), sums(64, 1.0)[..64]);
    bed.close();
}

#[test]
fn a_bit_that_flips_on_one_device_makes_the_sums_differ() {
    let bed = Bed::open(LONG);
    bed.write(0, 4096);
    bed.write(1, 4096);
    bed.sim
        .set_faults(FaultPlan::nth(FaultKind::BitFlip, 1, false))
        .unwrap();
    bed.enqueue(0, 4096, 1);
    bed.enqueue(1, 4096, 1);
    bed.wait(0);
    bed.wait(1);
    assert_eq!(bed.sim.clear_faults()[0].fired, 1);
    assert_ne!(bed.read(0, 0, 4112), sums(4096, 1.0));
    assert_eq!(bed.read(1, 0, 4112), sums(4096, 1.0));
    bed.close();
}

#[test]
fn a_device_that_is_lost_while_its_gate_waits_fails_the_wait_and_leaves_the_peer_to_its_deadline() {
    let bed = Bed::open(SHORT);
    bed.enqueue(0, 4096, 1);
    bed.sim
        .set_faults(FaultPlan::nth(FaultKind::Lost, 1, false))
        .unwrap();
    assert!(bed.sim.memory_info(gpu(0)).is_err());
    let lost = bed.sim.synchronize(gpu(0), bed.streams[0]).unwrap_err();
    assert!(matches!(lost, BackendError::DeviceLost { .. }), "{lost}");
    bed.enqueue(1, 4096, 1);
    bed.enqueue(1, 4096, 1);
    bed.wait(1);
    assert!(matches!(
        bed.gates.check(1),
        Err(DeviceGateError::GaveUp { rank: 1, .. })
    ));
}
