//! Streams, events and races.

use std::collections::BTreeSet;

use ds4_engine::backend::{Backend, EventId};
use ds4_engine::bytes::{GIB, KIB, MIB};
use ds4_engine::device::{DeviceMask, StreamId};
use proptest::prelude::*;

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
fn a_hundred_thousand_streams_are_made_without_looking_through_those_before() {
    let sim = machine(1, GIB);
    let create = || sim.create_stream(gpu(0)).unwrap().0;
    for number in 1..=100_000 {
        assert_eq!(create(), number);
    }
    for freed in [70_000, 3, 100_000] {
        sim.destroy_stream(gpu(0), StreamId(freed)).unwrap();
    }
    assert_eq!(
        [create(), create(), create(), create()],
        [3, 70_000, 100_000, 100_001]
    );
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

#[derive(Clone, Debug)]
enum Step {
    Write {
        stream: usize,
        start: u64,
        bytes: u64,
    },
    ReadWrite {
        stream: usize,
        from: u64,
        to: u64,
    },
    Record {
        stream: usize,
    },
    StreamWaits {
        stream: usize,
        event: usize,
    },
    HostWaits {
        event: usize,
    },
    Synchronize {
        stream: usize,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let stream = 0_usize..3;
    prop_oneof![
        3 => (stream.clone(), 0_u64..12, 1_u64..5)
            .prop_map(|(stream, start, bytes)| Step::Write { stream, start, bytes }),
        2 => (stream.clone(), 0_u64..16, 0_u64..16)
            .prop_map(|(stream, from, to)| Step::ReadWrite { stream, from, to }),
        2 => stream.clone().prop_map(|stream| Step::Record { stream }),
        2 => (stream.clone(), 0_usize..6)
            .prop_map(|(stream, event)| Step::StreamWaits { stream, event }),
        1 => (0_usize..6).prop_map(|event| Step::HostWaits { event }),
        1 => stream.prop_map(|stream| Step::Synchronize { stream }),
    ]
}

/// Order as sets of all work that is known to be before: slow, and plain to see.
#[derive(Default)]
struct Model {
    work: Vec<(u64, u64, bool)>,
    before: [BTreeSet<usize>; 3],
    seen: BTreeSet<usize>,
    events: Vec<BTreeSet<usize>>,
}

impl Model {
    /// Adds work; returns whether any of its ranges races.
    fn work(&mut self, stream: usize, ranges: &[(u64, u64, bool)]) -> bool {
        let earlier = self.work.len();
        let before = &self.before[stream];
        let races = ranges.iter().any(|(start, bytes, writes)| {
            self.work
                .iter()
                .enumerate()
                .any(|(index, (other, other_bytes, other_writes))| {
                    *start < other + other_bytes
                        && *other < start + bytes
                        && (*writes || *other_writes)
                        && !before.contains(&index)
                        && !self.seen.contains(&index)
                })
        });
        self.work.extend(ranges);
        self.before[stream].extend(earlier..self.work.len());
        races
    }
}

proptest! {
    #[test]
    fn races_are_exactly_the_unordered_conflicts(steps in proptest::collection::vec(step(), 1..40)) {
        let sim = machine(1, GIB);
        let a = sim.allocate(gpu(0), KIB).unwrap();
        let streams = [DEFAULT, sim.create_stream(gpu(0)).unwrap(), sim.create_stream(gpu(0)).unwrap()];
        let mut model = Model::default();
        let mut events = Vec::new();
        for step in steps {
            let mut expected = false;
            match step {
                Step::Write { stream, start, bytes } => {
                    sim.touch(gpu(0), streams[stream], after(a, start), bytes, 1).unwrap();
                    expected = model.work(stream, &[(start, bytes, true)]);
                }
                Step::ReadWrite { stream, from, to } => {
                    sim.copy_local(gpu(0), after(a, from), after(a, to), 1, streams[stream]).unwrap();
                    expected = model.work(stream, &[(from, 1, false), (to, 1, true)]);
                }
                Step::Record { stream } => {
                    events.push(sim.record_event(gpu(0), streams[stream]).unwrap());
                    model.events.push(model.before[stream].clone());
                }
                Step::StreamWaits { stream, event } if event < events.len() => {
                    sim.stream_wait_event(gpu(0), streams[stream], gpu(0), events[event]).unwrap();
                    model.before[stream].extend(&model.events[event]);
                }
                Step::HostWaits { event } if event < events.len() => {
                    sim.wait_event(gpu(0), events[event]).unwrap();
                    model.seen.extend(&model.events[event]);
                }
                Step::Synchronize { stream } => {
                    sim.synchronize(gpu(0), streams[stream]).unwrap();
                    model.seen.extend(&model.before[stream]);
                }
                Step::StreamWaits { .. } | Step::HostWaits { .. } => {}
            }
            prop_assert_eq!(races(&sim) > 0, expected);
        }
    }
}

#[test]
fn copies_with_the_host_in_order_of_a_stream_race_with_no_work_of_it() {
    let sim = machine(1, GIB);
    let address = sim.allocate(gpu(0), 4096).unwrap();
    let stream = sim.create_stream(gpu(0)).unwrap();
    let mut data = [0; 4];
    sim.fill(gpu(0), address, 4096, 1, stream).unwrap();
    sim.write_in_order(gpu(0), address, &[2, 3], stream)
        .unwrap();
    sim.read_in_order(gpu(0), address, &mut data, stream)
        .unwrap();
    assert_eq!(data, [2, 3, 1, 1]);
    assert!(!sim.stream_done(gpu(0), stream).unwrap());
    let event = sim.record_event(gpu(0), stream).unwrap();
    assert!(sim.event_done_ns(gpu(0), event).unwrap() > sim.now_ns());

    sim.order_after((gpu(0), StreamId::DEFAULT), (gpu(0), stream));
    sim.fill(gpu(0), address, 4096, 1, StreamId::DEFAULT)
        .unwrap();
    assert_eq!(sim.ledger().findings(), []);
    while !sim.stream_done(gpu(0), stream).unwrap() {}
}
