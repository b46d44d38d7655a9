//! Ranks of ds4's own protocol beside a small peer.

mod faults;
mod peer;

use std::io::Write as _;

use super::*;
use crate::tp::captured::captured;
use crate::tp::command::{Item, Items, Message, Tokens};
use crate::tp::frame::Kind;
use crate::tp::schedule::{Gate, GateKind, GateName, Schedule};
use crate::tp::transport::Transport;
use peer::*;

fn row(seq: u64) -> Gate {
    Schedule::every_gate(2).unwrap().row_gate(seq)
}

fn bulk(layer: u32, kind: GateKind) -> Gate {
    Gate {
        layer,
        name: GateName::Attention,
        kind,
    }
}

/// The gates of the captured run, with the number of their bytes.
fn captured_gates() -> Vec<(Gate, usize)> {
    let rows = (1..=5).map(|seq| (row(seq), 12));
    let batch = bulk(1, GateKind::Batch { rows: 2 });
    let big = bulk(0, GateKind::Big { bytes: 10 });
    rows.chain([(batch, 24), (big, 10)]).collect()
}

fn pass(rank: &mut Rank, gate: Gate, out: &[u8]) -> Vec<u8> {
    let mut place = vec![0xee; out.len()];
    rank.exchange(gate, out, &mut [place.as_mut_slice()])
        .unwrap();
    place
}

/// Passes the captured gates with the captured bytes of the own side.
fn pass_captured(rank: &mut Rank, own: &str, theirs: &str) {
    let (own, theirs) = (
        captured("gates_run", "data", own),
        captured("gates_run", "data", theirs),
    );
    let mut at = 0;
    for (gate, bytes) in captured_gates() {
        let body = at + 16..at + 16 + bytes;
        assert_eq!(pass(rank, gate, &own[body.clone()]), theirs[body.clone()]);
        at = body.end;
    }
    rank.check_step(5, 0x1122_3344_5566_7788).unwrap();
    while !matches!(rank.hear().unwrap(), Said::InStep { .. }) {}
}

#[test]
fn gates_and_hashes_are_the_references_bytes_in_both_roles() {
    let (leader, worker) = ("leader_to_worker", "worker_to_leader");
    let both = |channel, direction| captured("gates_run", channel, direction);
    // The peer says all that the reference's rank said before it reads anything.
    let (thread, port, _) = ours(0, |mut rank| {
        assert_eq!(rank.chosen().0, Transport::Tcp);
        pass_captured(&mut rank, "leader_to_worker", "worker_to_leader");
        rank.finish().unwrap();
    });
    let mut peer = Peer::follow(port, &both("control", worker)[..64]);
    peer.data.write_all(&both("data", worker)).unwrap();
    assert_eq!(
        take(&mut peer.data, both("data", leader).len()),
        both("data", leader)
    );
    peer.say(&both("control", worker)[64..]);
    assert_eq!(peer.hear().0, 6);
    assert_eq!(peer.hear(), (5, Vec::new()));
    assert_eq!(peer.heard, both("control", leader));
    thread.join().unwrap();

    let (thread, _, listener) = ours(1, |mut rank| {
        pass_captured(&mut rank, "worker_to_leader", "leader_to_worker");
        assert!(matches!(rank.hear().unwrap(), Said::Finished));
    });
    // Our worker has no context to say, as the reference's real one; this captured one had.
    let mut peer = Peer::lead(&listener.unwrap(), &both("control", leader)[..64]);
    peer.data.write_all(&both("data", leader)).unwrap();
    assert_eq!(
        take(&mut peer.data, both("data", worker).len()),
        both("data", worker)
    );
    peer.say(&both("control", leader)[64..]);
    assert_eq!(peer.hear().0, 6);
    assert_eq!(peer.heard[..44], both("control", worker)[..44]);
    assert_eq!(peer.heard[48..], both("control", worker)[48..]);
    thread.join().unwrap();
}

/// Whether a command is answered by an ack, and by how many shares of the logits, by its number.
fn owed(code: u32, payload: &[u8]) -> (bool, usize) {
    match code {
        1 => (true, 1),
        2 => (false, 1),
        13 | 14 => (true, 0),
        15 => (true, payload[0] as usize),
        16 => (true, 1 + payload[12] as usize),
        _ => (false, 0),
    }
}

fn command_all(mut rank: Rank) {
    let tokens = Tokens::new(&[11, 12, 13, 14, 15]);
    let items = [7, 8].map(|token| Item { session: 1, token });
    let items = Items::new(&items);
    let session = 1;
    for command in [
        Message::SessionCreate {
            session,
            context: 4096,
        },
        Message::Sync { session, tokens },
        Message::Eval {
            session,
            seq: 1,
            token: 42,
        },
        Message::Rewind {
            session,
            position: 3,
        },
        Message::Invalidate { session },
        Message::Verify {
            session,
            drafts: Tokens::new(&[11, 12, 13]),
        },
        Message::EvalBatch { items },
        Message::MixedBatch {
            session,
            prompt: tokens,
            items,
        },
        Message::SessionDestroy { session },
    ] {
        rank.command(&command).unwrap();
        let mut payload = Vec::new();
        command.encode(&mut payload);
        let kind = command.kind();
        let code = [
            (Kind::Sync, 1),
            (Kind::Eval, 2),
            (Kind::SessionCreate, 13),
            (Kind::SessionDestroy, 14),
            (Kind::EvalBatch, 15),
            (Kind::MixedBatch, 16),
        ]
        .iter()
        .find(|(it, _)| *it == kind)
        .map_or(0, |(_, code)| *code);

        let (acked, shares) = owed(code, &payload);
        for _ in 0..usize::from(acked) + shares {
            assert!(matches!(rank.hear().unwrap(), Said::Message(_)));
        }
    }
    rank.finish().unwrap();
}

fn obey_all(mut rank: Rank) {
    let logits: Vec<u8> = (8_u8..16)
        .flat_map(|it| f32::from(it).to_le_bytes())
        .collect();
    while let Said::Message(mail) = rank.hear().unwrap() {
        let message = mail.message().unwrap();
        let (session, shares) = match message {
            Message::SessionCreate { session, .. } | Message::SessionDestroy { session } => {
                (Some(session), 0)
            }
            Message::Sync { session, .. } => (Some(session), 1),
            Message::Eval { .. } => (None, 1),
            Message::EvalBatch { items } => (Some(0), items.len()),
            Message::MixedBatch { session, items, .. } => (Some(session), 1 + items.len()),
            Message::Rewind { .. }
            | Message::Invalidate { .. }
            | Message::Verify { .. }
            | Message::VerifyCommit { .. }
            | Message::Stop
            | Message::StopAck
            | Message::Hash { .. }
            | Message::Logits(_)
            | Message::Ack { .. } => (None, 0),
        };
        if let Some(session) = session {
            rank.answer(&Message::Ack { session, status: 0 }).unwrap();
        }
        for _ in 0..shares {
            rank.answer(&Message::Logits(&logits)).unwrap();
        }
    }
}

#[test]
fn commands_and_answers_are_the_references_bytes_in_both_roles() {
    let said_by_leader = frames("commands_run", "leader_to_worker");
    // The captured worker's engine was a stub that sent no logits for EVAL, which a real one does:
    // its frame is the one behind SYNC's ack.
    let mut said_by_worker = frames("commands_run", "worker_to_leader");
    said_by_worker.insert(4, said_by_worker[3].clone());

    let (thread, port, _) = ours(0, command_all);
    let mut peer = Peer::follow(port, &said_by_worker[0]);
    let mut answers = said_by_worker[1..].iter();
    loop {
        let (code, payload) = peer.hear();
        if code == 5 {
            break;
        }
        let (acked, shares) = owed(code, &payload);
        for answer in answers.by_ref().take(usize::from(acked) + shares) {
            peer.say(answer);
        }
    }
    assert_eq!(answers.len(), 0);
    assert_eq!(peer.heard, said_by_leader.concat());
    thread.join().unwrap();

    let (thread, _, listener) = ours(1, obey_all);
    let mut peer = Peer::lead(&listener.unwrap(), &said_by_leader[0]);
    for command in &said_by_leader[1..] {
        peer.say(command);
        let (acked, shares) = owed(u32::from(command[4]), &command[12..]);
        for _ in 0..usize::from(acked) + shares {
            peer.hear();
        }
    }
    assert_eq!(peer.heard, said_by_worker.concat());
    thread.join().unwrap();
}

/// Bytes of a side, of any number.
fn fill(bytes: usize, side: u8) -> Vec<u8> {
    (0..bytes)
        .map(|at| (at as u64).wrapping_mul(0x9e37_79b9).to_le_bytes()[2] ^ side)
        .collect()
}

const BIG: [usize; 5] = [1, (2 << 20) - 1, 2 << 20, (2 << 20) + 1, 9 << 20];

fn pass_big(mut rank: Rank) {
    let own = rank.session().rank();
    let side = |rank: u32| rank.to_le_bytes()[0];
    for (seq, bytes) in (1..).zip(BIG) {
        let gate = bulk(
            u32::from(seq % 2 == 1),
            GateKind::Big {
                bytes: bytes as u64,
            },
        );
        let came = pass(&mut rank, gate, &fill(bytes, side(own)));
        assert!(came == fill(bytes, side(1 - own)), "{bytes} bytes");
    }
    if own == 0 {
        rank.finish().unwrap();
    } else {
        assert!(matches!(rank.hear().unwrap(), Said::Finished));
        rank.close();
    }
}

#[test]
fn big_gates_pass_beside_a_peer_that_writes_everything_before_it_reads() {
    for rank in [0, 1] {
        let (thread, port, listener) = ours(rank, pass_big);
        let mut peer = match listener {
            None => Peer::follow(port, &hello(2, 0)),
            Some(listener) => Peer::lead(&listener, &hello(1, 8192)),
        };
        for (seq, bytes) in (1_u64..).zip(BIG) {
            let head = gate_head(BULK_MAGIC, u16::from(seq % 2 == 1), 0x0b16, seq);
            let side = u8::from(rank == 0);
            let came = peer.gate(&head, &fill(bytes, side));
            assert!(came == fill(bytes, 1 - side), "{bytes} bytes");
        }
        if rank == 0 {
            assert_eq!(peer.hear(), (5, Vec::new()));
        } else {
            peer.say(&frame(5, &[]));
        }
        thread.join().unwrap();
    }
}

#[test]
fn two_of_ours_speak_it_with_each_other() {
    for (lead, follow) in [
        (command_all as fn(Rank), obey_all as fn(Rank)),
        (pass_big, pass_big),
    ] {
        let (leader, port, _) = ours(0, lead);
        follow(Rank::open(setup(1, port, None), &mut |_| {}).unwrap());
        leader.join().unwrap();
    }
}
