//! Groups of sessions that carry a sum round, without sockets.

use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;

use super::*;
use crate::tp::error::Wait;
use crate::tp::exchange::SumLimits;
use crate::tp::hello::Identity;
use crate::tp::reduce::sum_in_order;
use crate::tp::schedule::{GateKind, GateName, Schedule};
use crate::tp::session::{Config, Event, Phase};
use crate::tp::slab::{SlabGeometry, SlabLayout};
use crate::tp::time::Deadlines;
use crate::tp::transport::{Transport, TransportSet};
use crate::tp::trust::Channel;

const NOW: Time = Time(5);

struct Group {
    now: Time,
    ends: Vec<Session>,
    vectors: Vec<Vec<u8>>,
    /// Bytes on their way, by sender and receiver.
    wires: BTreeMap<(u32, u32), VecDeque<u8>>,
    turn: u64,
    /// Whether the session always said truly that it had something to send.
    wants_hold: bool,
}

impl Group {
    fn ready(ranks: u32, piece_bytes: u32, payload_crc: bool) -> Self {
        let geometry = SlabGeometry {
            ranks,
            ..SlabGeometry::new(2, 3)
        };
        let tcp = TransportSet::of(&[Transport::Tcp]);
        let layout = SlabLayout::ds4(geometry).unwrap();
        let identity = Identity {
            payload_crc,
            ..Identity::new(layout, Schedule::every_gate(2).unwrap())
        };
        let ways = SumLimits {
            one_shot_bytes_max: 64,
            piece_bytes,
        };
        let mut group = Self {
            now: NOW,
            ends: (0..ranks)
                .map(|rank| Session::with_ways(NOW, Config::new(rank, identity), ways))
                .collect(),
            vectors: Vec::new(),
            wires: BTreeMap::new(),
            turn: 1,
            wants_hold: true,
        };
        for (rank, end) in (0..ranks).zip(&mut group.ends) {
            for peer in (0..ranks).filter(|peer| *peer != rank) {
                assert!(end.attach(NOW, peer, Channel::Data));
                assert_eq!(end.attach(NOW, peer, Channel::Control), rank * peer == 0);
            }
        }
        group.control();
        for end in &mut group.ends {
            assert_eq!(end.poll_event(NOW), Some(Event::Probe(tcp)));
            end.vote(NOW, tcp);
        }
        group.control();
        assert!(group.ends.iter().all(|end| end.phase() == Phase::Ready));
        group
    }

    /// Carries control bytes until none move.
    fn control(&mut self) {
        let ranks = u32::try_from(self.ends.len()).unwrap();
        let mut moved = true;
        while moved {
            moved = false;
            for worker in 1..ranks {
                for (from, to) in [(0, worker), (worker, 0)] {
                    let bytes = self.ends[from as usize].control_to_write(to).to_vec();
                    let room = self.ends[to as usize].control_to_read(from);
                    let count = room.len().min(bytes.len());
                    room[..count].copy_from_slice(&bytes[..count]);
                    if count > 0 {
                        self.ends[from as usize].control_wrote(to, count);
                        self.ends[to as usize].control_read(self.now, from, count);
                        moved = true;
                    }
                }
            }
        }
    }

    fn begin(&mut self, gate: Gate, vectors: Vec<Vec<u8>>) {
        for (end, vector) in self.ends.iter_mut().zip(&vectors) {
            end.ring_begin(NOW, gate, vector).unwrap();
        }
        self.vectors = vectors;
    }

    fn draw(&mut self, limit: usize) -> usize {
        self.turn = self
            .turn
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        usize::try_from(self.turn >> 33).unwrap() % limit
    }

    /// One rank writes and reads some bytes, of any number; false when nothing moved.
    fn step(&mut self, rank: u32) -> Result<bool, TpError> {
        let (most_out, most_in) = (1 + self.draw(70), 1 + self.draw(70));
        let end = &mut self.ends[rank as usize];
        let vector = &mut self.vectors[rank as usize];
        let mut moved = false;
        if let Some((peer, head, body)) = end.ring_to_write(vector) {
            let bytes = [head, body].concat();
            let count = bytes.len().min(most_out);
            let wire = self.wires.entry((rank, peer)).or_default();
            wire.extend(&bytes[..count]);
            self.wants_hold &= end.gate_wants(peer).writes == (count > 0);
            end.ring_wrote(count, vector);
            moved = count > 0;
        }
        if let Some((peer, head, body)) = end.ring_to_read(vector) {
            let room = if head.is_empty() { body } else { head };
            let wire = self.wires.entry((peer, rank)).or_default();
            let count = room.len().min(wire.len()).min(most_in);
            for byte in &mut room[..count] {
                *byte = wire.pop_front().unwrap_or_default();
            }
            if count > 0 {
                moved = true;
                end.ring_read(NOW, count, vector)?;
            }
        }
        Ok(moved)
    }

    /// Ranks take turns in any order until nothing moves.
    fn run(&mut self) -> Result<(), TpError> {
        let ranks = self.ends.len();
        let mut idle = 0;
        while idle < 2 {
            let first = self.draw(ranks);
            idle += 1;
            for at in 0..ranks {
                let rank = u32::try_from((first + at) % ranks).unwrap();
                if self.step(rank)? {
                    idle = 0;
                }
            }
        }
        Ok(())
    }
}

fn big(bytes: usize) -> Gate {
    Gate {
        layer: 1,
        name: GateName::FeedForward,
        kind: GateKind::Big {
            bytes: bytes as u64,
        },
    }
}

/// Numbers of very different sizes, so that the order of additions shows.
fn vectors(ranks: u32, bytes: usize, seed: u64) -> Vec<Vec<u8>> {
    let mut state = seed | 1;
    let mut number = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(99);
        let exponent = i32::try_from(state >> 60).unwrap() - 8;
        (f32::from(u16::try_from(state >> 48).unwrap()) - 3e4) * 2_f32.powi(exponent)
    };
    let mut vector = || {
        let numbers = (0..bytes.div_ceil(4)).flat_map(|_| number().to_le_bytes());
        numbers.take(bytes).collect()
    };
    (0..ranks).map(|_| vector()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn a_ring_gives_every_rank_the_bits_of_the_sum_in_order(
        ranks in 2_u32..=8, bytes in 1_usize..2000, quarter in 1_u32..120, checked: bool, seed: u64,
    ) {
        let mut group = Group::ready(ranks, quarter * 4, checked);
        group.turn = seed;
        for gate in 1..=2 {
            let parts = vectors(ranks, bytes, seed ^ gate);
            let mut want = vec![0; bytes];
            sum_in_order(&mut want, parts.iter().map(Vec::as_slice));
            group.begin(big(bytes), parts);
            prop_assert!(group.run().is_ok());
            for (end, vector) in group.ends.iter().zip(&group.vectors) {
                prop_assert!(!end.in_gate() && end.gates_done() == gate);
                prop_assert!(*vector == want);
            }
            prop_assert!(group.wants_hold);
            prop_assert!(group.wires.values().all(VecDeque::is_empty), "bytes are left over");
        }
    }
}

#[test]
fn a_bit_that_flips_on_the_way_ends_the_rank_that_gets_it() {
    for (at, said) in [
        (3, "begins with"),
        (20, "header is damaged"),
        (40, "payload of a BIG_GATE"),
    ] {
        let mut group = Group::ready(4, 64, true);
        group.begin(big(400), vectors(4, 400, 7));
        while group.wires.get(&(1, 2)).is_none_or(|wire| wire.len() <= at) {
            group.step(0).unwrap();
            group.step(1).unwrap();
        }
        group.wires.get_mut(&(1, 2)).unwrap()[at] ^= 4;
        let error = group.run().unwrap_err();
        assert!(error.to_string().contains(said), "{error}");
        assert_eq!((error.rank, error.at.layer, error.at.seq), (1, 1, 1));
        assert!(!group.ends[2].in_gate());
        group.control();
        let told = group.ends[3].error().unwrap().to_string();
        assert!(told.contains("rank 1"), "{told}");
    }
}

#[test]
fn pieces_that_are_not_due_are_refused_before_a_byte_of_them() {
    let crc = Some(0);
    let head = |gate, seq, piece, bytes| Head::gate(gate, seq, piece, bytes, crc).unwrap();
    let gate = big(400);
    for (rank, wrong) in [
        (1, head(gate, 1, Piece::Part, 64)),
        (1, head(gate, 1, Piece::Partial(1), 64)),
        (1, head(gate, 1, Piece::Partial(0), 60)),
        (1, head(gate, 2, Piece::Partial(0), 64)),
        (1, head(big(401), 1, Piece::Partial(7), 17)),
        // A sum in whose place the partial lies that was not sent on.
        (1, head(gate, 1, Piece::Sum(0), 64)),
        // To the first rank no partial goes, to the last no sum.
        (0, head(gate, 1, Piece::Partial(0), 64)),
        (3, head(gate, 1, Piece::Sum(0), 64)),
        (
            1,
            Head {
                payload_crc: None,
                ..head(gate, 1, Piece::Partial(0), 64)
            },
        ),
    ] {
        let mut group = Group::ready(4, 64, true);
        group.begin(gate, vectors(4, 400, 7));
        let end = &mut group.ends[rank];
        let vector = &mut group.vectors[rank];
        let (before, room, _) = end.ring_to_read(vector).unwrap();
        room.copy_from_slice(&wrong.encode());
        let error = end.ring_read(NOW, HEAD_BYTES, vector).unwrap_err();
        assert_eq!(error.rank, before);
        assert!(error.to_string().contains("gate desync"), "{error}");
    }
}

#[test]
fn a_silent_rank_ends_a_ring_at_the_deadline_with_the_place() {
    let mut group = Group::ready(5, 64, true);
    group.begin(big(400), vectors(5, 400, 6));
    group.run().unwrap();
    group.begin(big(400), vectors(5, 400, 7));
    // Rank 2 stands still.
    for _ in 0..1000 {
        for rank in [0, 1, 3, 4] {
            group.step(rank).unwrap();
        }
    }
    let limit_ns = Deadlines::default().gate_ns;
    let due = NOW.after(limit_ns);
    // All others give signs of life while they wait.
    let mut signs = 0;
    while group.now < due {
        group.now = group.now.after(limit_ns / 20).min(due);
        for rank in [3, 1, 4, 0] {
            let end = &mut group.ends[rank];
            assert!(end.next_deadline() <= due && end.error().is_none());
            end.handle_time(group.now);
            signs += end.control_to_write(0).len() / HEAD_BYTES;
        }
        group.control();
    }
    assert!((9..=15).contains(&signs), "{signs}");
    // The leader is the first to give up, over the right rank, and tells the others.
    let error = group.ends[0].error().unwrap();
    assert_eq!((error.rank, error.at.layer, error.at.seq), (2, 1, 2));
    let wait = Wait::Gate;
    let late = matches!(error.cause, Cause::Deadline { wait: it, .. } if it == wait);
    assert!(late, "{error}");
    for rank in [1, 3, 4] {
        let told = group.ends[rank].error().unwrap().to_string();
        assert!(told.contains("gave up over rank 2"), "{told}");
    }
}

#[test]
fn a_leader_that_stops_in_a_ring_is_named_by_every_worker() {
    let mut group = Group::ready(4, 64, true);
    group.begin(big(400), vectors(4, 400, 7));
    let due = NOW.after(Deadlines::default().first_gate_ns / 4 * 5);
    for end in &mut group.ends[1..] {
        end.handle_time(due);
        assert_eq!(end.error().unwrap().rank, 0);
    }
}

#[test]
fn a_rank_that_takes_nothing_is_named_by_the_one_before_it() {
    let mut group = Group::ready(3, 64, true);
    group.begin(big(400), vectors(3, 400, 7));
    let due = NOW.after(Deadlines::default().first_gate_ns);
    group.ends[0].handle_time(due);
    assert_eq!(group.ends[0].error().unwrap().rank, 1);
}

#[test]
fn ranks_with_other_limits_are_refused_at_the_hello() {
    let mut group = Group::ready(2, 64, true);
    let config = group.ends[1].config;
    let ways = SumLimits {
        piece_bytes: 128,
        ..SumLimits::default()
    };
    group.ends = vec![
        Session::new(NOW, Config { rank: 0, ..config }),
        Session::with_ways(NOW, config, ways),
    ];
    for (end, peer) in [(0, 1), (1, 0)] {
        group.ends[end].attach(NOW, peer, Channel::Control);
        group.ends[end].attach(NOW, peer, Channel::Data);
    }
    group.control();
    let text = group.ends[0].error().unwrap().to_string();
    assert!(
        text.contains("piece of a ring is 65536 here and 128"),
        "{text}"
    );
}
