//! Rule 13: who may take freed memory, and when.

mod common;

use common::*;
use ds4_engine::alloc::{BlockState, FreeError, Request};
use ds4_engine::device::StreamId;
use ds4_sim::{Call, Fault, FaultKind, FaultPlan, Instruments};

const LONG_NS: u64 = 1_000_000_000;

fn stream_on(stream: StreamId, bytes: u64) -> Request {
    Request {
        stream,
        ..on(0, bytes)
    }
}

#[test]
fn rule_13_a_block_freed_on_a_stream_is_reusable_at_once_by_it() {
    for (sim, allocator) in both(&[64]) {
        let second = allocator.create_stream(gpu(0)).unwrap();
        for stream in [DEFAULT, second, DEFAULT, second] {
            let first = allocator.allocate(&stream_on(stream, 5 * MIB)).unwrap();
            sim.touch(gpu(0), stream, first.address, 5 * MIB, LONG_NS)
                .unwrap();
            allocator.free(first.handle).unwrap();
            let again = allocator.allocate(&stream_on(stream, 5 * MIB)).unwrap();
            sim.touch(gpu(0), stream, again.address, 5 * MIB, 1)
                .unwrap();
            assert_eq!(again.offset_bytes, first.offset_bytes);
        }
        assert!(sim.now_ns() < LONG_NS);
        assert_clean(&sim, allocator);
    }
}

#[test]
fn rule_13_other_streams_get_a_freed_block_only_after_its_event_completed() {
    for (sim, allocator) in both(&[64]) {
        let second = allocator.create_stream(gpu(0)).unwrap();
        let block = allocator.allocate(&stream_on(DEFAULT, 40 * MIB)).unwrap();
        sim.touch(gpu(0), DEFAULT, block.address, 40 * MIB, LONG_NS)
            .unwrap();
        allocator.free(block.handle).unwrap();
        let beside = allocator.allocate(&stream_on(second, MIB)).unwrap();
        assert!(sim.now_ns() < LONG_NS, "room is left beside it");
        sim.touch(gpu(0), second, beside.address, MIB, 1).unwrap();
        let same = allocator.allocate(&stream_on(second, 40 * MIB)).unwrap();
        assert!(
            sim.now_ns() >= LONG_NS,
            "its memory is needed, so its work is waited for"
        );
        sim.touch(gpu(0), second, same.address, 40 * MIB, 1)
            .unwrap();
        assert_clean(&sim, allocator);
    }
}

#[test]
fn rule_13_memory_freed_while_one_stream_was_alone_is_ordered_when_a_second_appears() {
    for (sim, allocator) in both(&[64]) {
        let blocks = fill(&allocator, 0, 4 * MIB);
        for block in &blocks {
            sim.touch(gpu(0), DEFAULT, block.address, 4 * MIB, LONG_NS / 10)
                .unwrap();
            allocator.free(block.handle).unwrap();
        }
        let second = allocator.create_stream(gpu(0)).unwrap();
        for block in fill(&allocator, 0, 8 * MIB).iter().take(1) {
            allocator.free(block.handle).unwrap();
        }
        let taken = allocator.allocate(&stream_on(second, 8 * MIB)).unwrap();
        sim.touch(gpu(0), second, taken.address, 8 * MIB, 1)
            .unwrap();
        assert_clean(&sim, allocator);
    }
}

#[test]
fn rule_13_a_block_used_on_a_second_stream_waits_for_both() {
    for (sim, allocator) in both(&[64]) {
        let second = allocator.create_stream(gpu(0)).unwrap();
        let block = allocator.allocate(&stream_on(DEFAULT, 4 * MIB)).unwrap();
        allocator.record_use(block.handle, second).unwrap();
        sim.touch(gpu(0), second, block.address, 4 * MIB, LONG_NS)
            .unwrap();
        allocator.free(block.handle).unwrap();
        assert!(
            allocator
                .blocks(gpu(0))
                .iter()
                .any(|b| b.state == BlockState::Pending)
        );
        let next = allocator.allocate(&stream_on(DEFAULT, 4 * MIB)).unwrap();
        assert_ne!(next.offset_bytes, block.offset_bytes);
        allocator.synchronize(gpu(0)).unwrap();
        assert!(
            allocator
                .blocks(gpu(0))
                .iter()
                .all(|b| b.state != BlockState::Pending)
        );
        assert_clean(&sim, allocator);
    }
}

#[test]
fn a_free_that_cannot_record_its_event_leaves_the_block_live() {
    let sim = machine(&[32], true);
    let allocator = allocator(&sim);
    let second = allocator.create_stream(gpu(0)).unwrap();
    let block = allocator.allocate(&on(0, MIB)).unwrap();
    allocator.record_use(block.handle, second).unwrap();
    let before = allocator.state_hash();
    sim.set_faults(FaultPlan::new(vec![
        Fault::every(FaultKind::Fail).at(&[Call::RecordEvent]),
    ]))
    .unwrap();
    assert!(matches!(
        allocator.free(block.handle),
        Err(FreeError::Backend(_))
    ));
    assert_eq!(allocator.state_hash(), before);
    sim.clear_faults();
    allocator.free(block.handle).unwrap();
    assert_eq!(allocator.free(block.handle), Err(FreeError::DoubleFree));
    assert_clean(&sim, allocator);
}

#[test]
fn closing_waits_for_work_and_leaves_no_event() {
    for (sim, allocator) in both(&[64]) {
        let second = allocator.create_stream(gpu(0)).unwrap();
        for stream in [DEFAULT, second] {
            let block = allocator.allocate(&stream_on(stream, 4 * MIB)).unwrap();
            sim.touch(gpu(0), stream, block.address, 4 * MIB, LONG_NS)
                .unwrap();
            let other = if stream == DEFAULT { second } else { DEFAULT };
            allocator.record_use(block.handle, other).unwrap();
            allocator.free(block.handle).unwrap();
        }
        assert_clean(&sim, allocator);
        assert_eq!(sim.streams_and_events(gpu(0)).1, 0);
    }
}
