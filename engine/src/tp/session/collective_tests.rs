//! Sessions of three ranks whose sums a library makes, without a library.

use super::*;
use crate::tp::collective::{NAME_BYTES, NCCL};
use crate::tp::hello::Identity;
use crate::tp::roster::{Entry, Host};
use crate::tp::schedule::{GateKind, GateName, Schedule};
use crate::tp::session::{Config, Event};
use crate::tp::slab::{SlabGeometry, SlabLayout};
use crate::tp::time::Deadlines;
use crate::tp::transport::TransportSet;
use crate::tp::trust::Channel;

const NOW: Time = Time(5);
const RANKS: u32 = 3;
const GATE: Gate = Gate {
    layer: 0,
    name: GateName::Attention,
    kind: GateKind::Row,
};

fn nccl() -> TransportSet {
    TransportSet::of(&[Transport::Nccl])
}

fn session(rank: u32) -> Session {
    let geometry = SlabGeometry {
        ranks: RANKS,
        ..SlabGeometry::new(2, 3)
    };
    let identity = Identity {
        model: [3; 32],
        n_vocab: 16,
        quant_bits: 2,
        switches: 0,
        layout: SlabLayout::ds4(geometry).unwrap(),
        schedule: Schedule::every_gate(2).unwrap(),
        split_logits: true,
        payload_crc: true,
    };
    let config = Config {
        rank,
        identity,
        context: 4096,
        transports: nccl(),
        deadlines: Deadlines {
            first_gate_ns: 5_000_000_000,
            ..Deadlines::default()
        },
        dialect: Dialect::Native,
    };
    let mut session = Session::new(NOW, config);
    for peer in (0..RANKS).filter(|peer| *peer != rank) {
        assert!(session.attach(NOW, peer, Channel::Data));
        session.attach(NOW, peer, Channel::Control);
    }
    session
}

/// Carries what is written on control connections, except to and from the rank that is `stopped`.
fn carry(ends: &mut [Session], now: Time, stopped: Option<usize>) {
    let mut moved = true;
    while moved {
        moved = false;
        for worker in [1_u32, 2] {
            for (from, to) in [(0, worker), (worker, 0)] {
                let pair = [from as usize, to as usize];
                if stopped.is_some_and(|it| pair.contains(&it)) {
                    continue;
                }
                let bytes = ends[pair[0]].control_to_write(to).to_vec();
                let room = ends[pair[1]].control_to_read(from);
                let count = room.len().min(bytes.len());
                room[..count].copy_from_slice(&bytes[..count]);
                if count > 0 {
                    ends[pair[0]].control_wrote(to, count);
                    ends[pair[1]].control_read(now, from, count);
                    moved = true;
                }
            }
        }
    }
}

fn voting() -> Vec<Session> {
    let mut ends: Vec<Session> = (0..RANKS).map(session).collect();
    carry(&mut ends, NOW, None);
    for end in &mut ends {
        assert_eq!(end.poll_event(NOW), Some(Event::Probe(nccl())));
    }
    ends
}

fn ready() -> Vec<Session> {
    let mut ends = voting();
    ends.iter_mut().for_each(|end| end.vote(NOW, nccl()));
    carry(&mut ends, NOW, None);
    assert!(ends.iter().all(|end| end.phase() == Phase::Ready));
    ends
}

fn offer() -> CollectiveMessage {
    CollectiveMessage::Offer(Box::new(Offer {
        library: NCCL,
        version: 22_703,
        name: [7; NAME_BYTES],
    }))
}

#[test]
fn an_offer_reaches_all_and_a_refusal_of_one_the_leader() {
    let mut ends = voting();
    ends[0].tell_collective(NOW, &offer());
    ends[2].tell_collective(NOW, &CollectiveMessage::Nothing("no library".to_owned()));
    carry(&mut ends, NOW, None);
    for worker in [1, 2] {
        assert_eq!(
            ends[worker].collective_offer().unwrap().name,
            [7; NAME_BYTES]
        );
    }
    assert_eq!(ends[0].collective_refusal(), Some((2, "no library")));
    ends[2].vote(NOW, TransportSet::default());
    carry(&mut ends, NOW, None);
    assert_eq!(ends[0].voted_without(Transport::Nccl), Some(2));
    ends[0].vote(NOW, TransportSet::default());
    ends[1].vote(NOW, nccl());
    carry(&mut ends, NOW, None);
    let why = ends[1].error().unwrap().to_string();
    assert!(why.contains("rank 2 proved none (no library)"), "{why}");
}

#[test]
fn offers_of_workers_second_offers_and_late_ones_are_refused() {
    for (from, to, times) in [(1, 0, 1), (0, 1, 2)] {
        let mut ends = voting();
        (0..times).for_each(|_| ends[from].tell_collective(NOW, &offer()));
        carry(&mut ends, NOW, None);
        let error = ends[to].error().unwrap().to_string();
        assert!(error.contains("COLLECTIVE"), "{error}");
    }
    let mut ends = voting();
    ends[0].tell_collective(NOW, &offer());
    ends[1].vote(NOW, nccl());
    ends[1].phase = Phase::Ready;
    carry(&mut ends, NOW, None);
    assert!(ends[1].error().is_some());
}

#[test]
fn sums_are_numbered_as_other_gates_are_and_break_the_order_as_little() {
    let mut ends = ready();
    let bytes = 3 * 4;
    assert_eq!(ends[0].collective_begin(NOW, GATE, bytes), Ok(1));
    assert!(ends[0].in_gate());
    ends[0].collective_done();
    assert!(!ends[0].in_gate());
    assert_eq!(ends[0].gates_done(), 1);
    assert!(
        ends[0].collective_begin(NOW, GATE, bytes).is_err(),
        "the next one is another"
    );
    let next = Gate {
        name: GateName::FeedForward,
        ..GATE
    };
    assert!(ends[0].collective_begin(NOW, next, 16).is_err());
    assert_eq!(ends[0].collective_begin(NOW, next, bytes), Ok(2));
}

/// Lets time pass in steps in which signs of life travel, until everybody has ended or a minute is
/// over.
fn pass_time(ends: &mut [Session], stopped: Option<usize>) {
    for step in 1..600 {
        let now = NOW.after(step * 100_000_000);
        for (rank, end) in ends.iter_mut().enumerate() {
            if stopped != Some(rank) {
                end.handle_time(now);
            }
        }
        carry(ends, now, stopped);
    }
}

#[test]
fn at_the_deadline_a_silent_rank_is_named_and_else_the_librarys_sum() {
    for (stopped, blamed, cause) in [(Some(2), 2, "its part of the gate"), (None, 0, "library")] {
        let mut ends = ready();
        for end in &mut ends {
            end.collective_begin(NOW, GATE, 12).unwrap();
        }
        pass_time(&mut ends, stopped);
        let error = ends[0].error().unwrap();
        assert_eq!((error.rank, error.at.seq), (blamed, 1));
        assert!(error.to_string().contains("waited 5000 ms"), "{error}");
        assert!(error.to_string().contains(cause), "{error}");
        let told = ends[1].error().unwrap().to_string();
        let words = format!("gave up over rank {blamed}");
        assert!(told.contains(&words), "{told}");
    }
}

#[test]
fn a_data_connection_that_ends_in_a_sum_ends_the_run() {
    let mut ends = ready();
    ends[1].collective_begin(NOW, GATE, 12).unwrap();
    ends[1].closed(NOW, 2, Channel::Data);
    ends[1].handle_time(NOW.after(400_000_000));
    assert!(ends[1].error().is_none(), "the reason may be on its way");
    ends[1].handle_time(NOW.after(500_000_000));
    let error = ends[1].error().unwrap();
    assert_eq!(
        (error.rank, &error.cause),
        (2, &Cause::Closed(Channel::Data))
    );
}

#[test]
fn a_worker_says_where_it_listens_itself_and_once() {
    let entry = |rank| Entry {
        rank,
        port: 7,
        host: Host::Leaders,
    };
    let mut ends: Vec<Session> = (0..RANKS).map(session).collect();
    ends[2].tell_roster(NOW, &[entry(2)]);
    carry(&mut ends, NOW, None);
    assert_eq!(ends[0].roster(), [entry(2)]);
    ends[0].tell_roster(NOW, &[entry(1), entry(2)]);
    carry(&mut ends, NOW, None);
    assert_eq!(ends[1].roster(), [entry(1), entry(2)]);
    for entries in [
        vec![entry(1)],
        vec![entry(2)],
        vec![],
        vec![entry(2), entry(2)],
    ] {
        let mut ends: Vec<Session> = (0..RANKS).map(session).collect();
        ends[2].tell_roster(NOW, &[entry(2)]);
        ends[2].tell_roster(NOW, &entries);
        carry(&mut ends, NOW, None);
        let error = ends[0].error().unwrap().to_string();
        assert!(error.contains("ROSTER"), "{error}");
    }
}
