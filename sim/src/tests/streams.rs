//! Streams, events and races.

use ds4_engine::backend::{Backend, EventId};
use ds4_engine::bytes::{GIB, KIB, MIB};
use ds4_engine::device::{DeviceMask, StreamId};

use super::*;

#[test]
fn stream_numbers_are_the_least_free_ones() {
    let sim = machine(1, GIB);
    let create = || sim.create_stream(gpu(0)).unwrap().0;
    assert_eq!((create(), create(), create()), (1, 2, 3));
    sim.destroy_stream(gpu(0), StreamId(2)).unwrap();
    assert_eq!((create(), create()), (2, 4));
}

#[test]
fn an_event_is_done_when_the_work_before_it_is_and_waiting_moves_the_clock() {
    let sim = machine(1, GIB);
    let stream = sim.create_stream(gpu(0)).unwrap();
    sim.busy(gpu(0), stream, 1_000_000).unwrap();
    let event = sim.record_event(gpu(0), stream).unwrap();
    sim.busy(gpu(0), stream, 5_000_000).unwrap();
    assert_eq!(sim.event_done(gpu(0), event), Ok(false));
    sim.wait_event(gpu(0), event).unwrap();
    assert_eq!(sim.event_done(gpu(0), event), Ok(true));
    assert!(
        (1_000_000..2_000_000).contains(&sim.now_ns()),
        "{}",
        sim.now_ns()
    );
    sim.synchronize(gpu(0), stream).unwrap();
    assert!(sim.now_ns() >= 6_000_000);
    sim.destroy_event(gpu(0), event).unwrap();
    assert_eq!(sim.streams_and_events(gpu(0)), (2, 0));
}

#[test]
fn polling_an_event_ends_because_each_poll_takes_time() {
    let sim = machine(1, GIB);
    sim.busy(gpu(0), DEFAULT, 100_000).unwrap();
    let event = sim.record_event(gpu(0), DEFAULT).unwrap();
    let polls = (0..1000).find(|_| sim.event_done(gpu(0), event).unwrap());
    assert!(polls.is_some_and(|polls| polls > 10), "{polls:?}");
}

#[test]
fn work_on_pending_bytes_of_another_stream_is_a_race_until_something_orders_it() {
    let sim = machine(1, GIB);
    let a = sim.allocate(gpu(0), MIB).unwrap();
    let other = sim.create_stream(gpu(0)).unwrap();
    type Order = fn(&SimBackend, EventId);
    let order: [(&str, Order); 5] = [
        ("nothing", |_, _| {}),
        ("a stream waits", |sim, event| {
            sim.stream_wait_event(gpu(0), StreamId(1), gpu(0), event)
                .unwrap();
        }),
        ("the host waits", |sim, event| {
            sim.wait_event(gpu(0), event).unwrap();
        }),
        ("the host synchronises", |sim, _| {
            sim.synchronize(gpu(0), DEFAULT).unwrap();
        }),
        ("the host polls", |sim, event| {
            while !sim.event_done(gpu(0), event).unwrap() {}
        }),
    ];
    for (name, make_order) in order {
        sim.touch(gpu(0), DEFAULT, a, KIB, 10_000).unwrap();
        let event = sim.record_event(gpu(0), DEFAULT).unwrap();
        make_order(&sim, event);
        sim.fill(gpu(0), after(a, 1000), 48, 1, other).unwrap();
        assert_eq!(races(&sim), usize::from(name == "nothing"), "{name}");
        sim.synchronize(gpu(0), other).unwrap();
        sim.synchronize(gpu(0), DEFAULT).unwrap();
    }
}

#[test]
fn an_event_before_the_work_orders_nothing_after_it() {
    let sim = machine(1, GIB);
    let a = sim.allocate(gpu(0), MIB).unwrap();
    let other = sim.create_stream(gpu(0)).unwrap();
    let early = sim.record_event(gpu(0), DEFAULT).unwrap();
    sim.touch(gpu(0), DEFAULT, a, KIB, 10_000).unwrap();
    sim.wait_event(gpu(0), early).unwrap();
    sim.stream_wait_event(gpu(0), other, gpu(0), early).unwrap();
    sim.fill(gpu(0), a, 1, 1, other).unwrap();
    assert_eq!(races(&sim), 1);
}

#[test]
fn two_readers_do_not_race_and_neither_do_disjoint_bytes() {
    let sim = machine(1, GIB);
    let a = sim.allocate(gpu(0), MIB).unwrap();
    let other = sim.create_stream(gpu(0)).unwrap();
    sim.copy_local(gpu(0), a, after(a, 4096), 512, DEFAULT)
        .unwrap();
    sim.copy_local(gpu(0), a, after(a, 8192), 512, other)
        .unwrap();
    sim.fill(gpu(0), after(a, 512), 512, 0, other).unwrap();
    assert_eq!(races(&sim), 0);
    sim.fill(gpu(0), a, 1, 0, other).unwrap();
    assert_eq!(races(&sim), 1, "the writer must wait for both readers");
}

#[test]
fn order_carries_over_devices_and_streams() {
    let sim = machine(2, GIB);
    let (a, b) = (
        sim.allocate(gpu(0), MIB).unwrap(),
        sim.allocate(gpu(1), MIB).unwrap(),
    );
    let middle = sim.create_stream(gpu(1)).unwrap();
    sim.copy_peer((gpu(0), a), (gpu(1), b), MIB, DEFAULT)
        .unwrap();
    let copied = sim.record_event(gpu(0), DEFAULT).unwrap();
    sim.stream_wait_event(gpu(1), middle, gpu(0), copied)
        .unwrap();
    let passed_on = sim.record_event(gpu(1), middle).unwrap();
    sim.stream_wait_event(gpu(1), DEFAULT, gpu(1), passed_on)
        .unwrap();
    sim.fill(gpu(1), b, MIB, 1, DEFAULT).unwrap();
    assert_eq!(races(&sim), 0);
    sim.copy_peer((gpu(0), a), (gpu(1), b), MIB, DEFAULT)
        .unwrap();
    assert_eq!(
        races(&sim),
        1,
        "nothing orders the second copy after the fill"
    );
}

#[test]
fn a_peer_that_still_writes_into_freed_memory_is_a_race() {
    let sim = machine(2, GIB);
    let (a, b) = (
        sim.allocate(gpu(0), MIB).unwrap(),
        sim.allocate(gpu(1), MIB).unwrap(),
    );
    sim.copy_peer((gpu(0), a), (gpu(1), b), MIB, DEFAULT)
        .unwrap();
    sim.free(gpu(1), b).unwrap();
    assert_eq!(races(&sim), 1);
    sim.free(gpu(0), a).unwrap();
    assert_eq!(races(&sim), 0, "free waits for its own device");
}

#[test]
fn unmapping_a_page_with_pending_work_is_a_race() {
    let sim = machine(1, 64 * MIB);
    let (base, _) = mapped(&sim, DeviceMask::EMPTY);
    sim.touch(gpu(0), DEFAULT, base, KIB, 1_000_000).unwrap();
    sim.unmap(gpu(0), after(base, PAGE)).unwrap();
    assert_eq!(races(&sim), 0);
    sim.unmap(gpu(0), base).unwrap();
    assert_eq!(races(&sim), 1);
}

#[test]
fn streams_that_only_ever_wait_for_events_keep_their_books_short() {
    let sim = machine(1, GIB);
    let a = sim.allocate(gpu(0), MIB).unwrap();
    let streams = [DEFAULT, sim.create_stream(gpu(0)).unwrap()];
    for round in 0..6000_u64 {
        let (stream, other) = (streams[0], streams[1]);
        let (now, next) = if round % 2 == 0 {
            (stream, other)
        } else {
            (other, stream)
        };
        sim.fill(gpu(0), after(a, round % 4096), 1, 0, now).unwrap();
        let event = sim.record_event(gpu(0), now).unwrap();
        sim.stream_wait_event(gpu(0), next, gpu(0), event).unwrap();
        sim.destroy_event(gpu(0), event).unwrap();
    }
    assert_eq!(races(&sim), 0);
}
