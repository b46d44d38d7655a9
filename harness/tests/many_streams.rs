//! Streams by the thousand, and streams that a device does not have.

mod common;

use common::*;
use ds4_engine::alloc::{RefusalReason, Request};
use ds4_engine::device::StreamId;
use ds4_sim::Instruments;

fn stream_on(stream: StreamId, bytes: u64) -> Request {
    Request {
        stream,
        ..on(0, bytes)
    }
}

#[test]
fn an_unknown_stream_is_named_whether_the_device_is_full_or_not() {
    for (sim, allocator) in both(&[32]) {
        let known = allocator.create_stream(gpu(0)).unwrap();
        let unknown = StreamId(known.0 + 1);
        let named = [(gpu(0), RefusalReason::UnknownStream { stream: unknown })];
        assert_eq!(reasons(allocator.allocate(&stream_on(unknown, MIB))), named);
        fill(&allocator, 0, MIB);
        let full = reasons(allocator.allocate(&on(0, MIB)));
        for _ in 0..2 {
            assert_eq!(reasons(allocator.allocate(&stream_on(unknown, MIB))), named);
            assert_eq!(reasons(allocator.allocate(&on(0, MIB))), full);
            assert_eq!(reasons(allocator.allocate(&stream_on(known, MIB))), full);
        }
        assert_clean(&sim, allocator);
    }
}

#[test]
fn a_stream_past_those_that_the_books_tell_apart_is_refused_and_the_others_go_on() {
    let sim = machine(&[64], true);
    let allocator = allocator(&sim);
    let mut last = DEFAULT;
    for _ in 0..8191 {
        allocator.allocate(&stream_on(last, 256)).unwrap();
        last = allocator.create_stream(gpu(0)).unwrap();
    }
    let before = allocator.state_hash();
    let named = [(gpu(0), RefusalReason::UnknownStream { stream: last })];
    assert_eq!(reasons(allocator.allocate(&stream_on(last, 256))), named);
    assert_eq!(allocator.state_hash(), before);
    for stream in [DEFAULT, StreamId(1), StreamId(last.0 - 1)] {
        allocator.allocate(&stream_on(stream, 256)).unwrap();
    }
    assert_clean(&sim, allocator);
}

#[test]
fn tens_of_thousands_of_streams_are_made_and_thousands_take_memory() {
    let sim = machine(&[64], true);
    let allocator = allocator(&sim);
    let streams: Vec<StreamId> = (0..50_000)
        .map(|_| allocator.create_stream(gpu(0)).unwrap())
        .collect();
    for round in 0..3 {
        for stream in streams.iter().step_by(25) {
            let block = allocator.allocate(&stream_on(*stream, 4 * KIB)).unwrap();
            sim.touch(gpu(0), *stream, block.address, 4 * KIB, 1)
                .unwrap();
            allocator.free(block.handle).unwrap();
        }
        assert_eq!(sim.ledger().findings(), [], "round {round}");
    }
    assert_clean(&sim, allocator);
}
