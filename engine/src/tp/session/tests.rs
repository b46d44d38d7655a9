//! Two sessions wired directly, without time passing unless a test says so.

use super::*;
use crate::tp::captured::captured;
use crate::tp::command::{Item, Items, Tokens};
use crate::tp::frame::Piece;
use crate::tp::schedule::{GateKind, GateName, Schedule, Work};
use crate::tp::slab::{SlabGeometry, SlabLayout};

const MS: u64 = 1_000_000;
/// The rank of each end.
const RANKS: [u32; 2] = [0, 1];

fn identity() -> Identity {
    Identity {
        model: [3; 32],
        n_vocab: 16,
        quant_bits: 2,
        switches: 0,
        layout: SlabLayout::ds4(SlabGeometry::new(2, 3)).unwrap(),
        schedule: Schedule::every_gate(2).unwrap(),
        split_logits: true,
        payload_crc: true,
    }
}

fn config(rank: u32) -> Config {
    Config {
        context: 4096,
        ..Config::new(rank, identity())
    }
}

struct Pair {
    now: Time,
    ends: [Session; 2],
    /// The bytes that each end wrote to its control and its data connection.
    control: [Vec<u8>; 2],
    data: [Vec<u8>; 2],
}

impl Pair {
    fn new(configs: [Config; 2]) -> Self {
        let ends = configs.map(|config| Session::new(Time::ZERO, config));
        Self {
            now: Time(5),
            ends,
            control: Default::default(),
            data: Default::default(),
        }
    }

    fn attach(&mut self) {
        for (end, peer) in [(0, 1), (1, 0)] {
            for channel in [Channel::Control, Channel::Data] {
                assert!(self.ends[end].attach(self.now, peer, channel));
                assert!(!self.ends[end].attach(self.now, peer, channel));
            }
        }
    }

    fn ready(configs: [Config; 2]) -> Self {
        let mut pair = Self::new(configs);
        pair.attach();
        pair.control();
        for (end, config) in configs.iter().enumerate() {
            if config.dialect == Dialect::Native {
                let tcp = TransportSet::of(&[Transport::Tcp]);
                assert_eq!(pair.event(end), Some(Event::Probe(tcp)));
                pair.ends[end].vote(pair.now, tcp);
            }
        }
        pair.control();
        for end in 0..2 {
            assert_eq!(pair.event(end), Some(Event::Ready(Transport::Tcp)));
        }
        pair
    }

    fn event(&mut self, end: usize) -> Option<Event<'_>> {
        self.ends[end].poll_event(self.now)
    }

    /// Carries control bytes both ways until neither moves.
    fn control(&mut self) {
        loop {
            let mut moved = false;
            for end in 0..2 {
                let (peer, own) = (RANKS[1 - end], RANKS[end]);
                let bytes = self.ends[end].control_to_write(peer).to_vec();
                let want = self.ends[1 - end].control_to_read(own);
                let count = want.len().min(bytes.len());
                want[..count].copy_from_slice(&bytes[..count]);
                if count > 0 {
                    self.ends[end].control_wrote(peer, count);
                    self.control[end].extend_from_slice(&bytes[..count]);
                    self.ends[1 - end].control_read(self.now, own, count);
                    moved = true;
                }
            }
            if !moved {
                return;
            }
        }
    }

    /// One gate with these bytes of both ends; what each got comes back.
    fn gate(&mut self, gate: Gate, out: [&[u8]; 2]) -> Result<[Vec<u8>; 2], TpError> {
        let mut incoming = out.map(|bytes| vec![0; bytes.len()]);
        for (end, out) in self.ends.iter_mut().zip(out) {
            end.gate_begin(self.now, gate, out)?;
        }
        while self.ends.iter().any(Session::in_gate) {
            for end in 0..2 {
                let (peer, own) = (RANKS[1 - end], RANKS[end]);
                let (head, body) = self.ends[end].gate_to_write(peer);
                let bytes = [head, &out[end][body]].concat();
                // Odd pieces, so that heads and bodies are cut everywhere.
                let bytes = &bytes[..bytes.len().min(5)];
                let (head, body) = self.ends[1 - end].gate_to_read(own);
                let split = head.len().min(bytes.len());
                head[..split].copy_from_slice(&bytes[..split]);
                incoming[1 - end][body][..bytes.len() - split].copy_from_slice(&bytes[split..]);
                self.data[end].extend_from_slice(bytes);
                self.ends[end].gate_wrote(peer, bytes.len());
                self.ends[1 - end].gate_read(self.now, own, bytes.len(), &incoming[1 - end])?;
            }
        }
        Ok(incoming)
    }
}

fn both() -> [Config; 2] {
    [config(0), config(1)]
}

fn row(seq: u64) -> Gate {
    identity().schedule.row_gate(seq)
}

#[test]
fn a_token_passes_all_its_gates_and_the_run_ends_in_order() {
    let mut pair = Pair::ready(both());
    let create = Message::SessionCreate {
        session: 9,
        context: 8,
    };
    pair.ends[0].command(pair.now, &create).unwrap();
    pair.control();
    assert_eq!(
        pair.event(1),
        Some(Event::Message {
            peer: 0,
            message: create
        })
    );
    let ack = Message::Ack {
        session: 9,
        status: 0,
    };
    let now = pair.now;
    pair.ends[1].answer(now, &ack).unwrap();
    assert!(pair.ends[1].answer(now, &ack).is_err(), "one is owed");
    pair.control();
    assert!(matches!(
        pair.event(0),
        Some(Event::Message { peer: 1, .. })
    ));

    let eval = Message::Eval {
        session: 9,
        seq: 1,
        token: 4,
    };
    pair.ends[0].command(now, &eval).unwrap();
    pair.control();
    assert!(pair.event(1).is_some());
    for (seq, gate) in (1..).zip(identity().schedule.gates(Work::Token)) {
        let got = pair.gate(gate, [&[seq; 12], &[100 + seq; 12]]).unwrap();
        assert_eq!(got, [vec![100 + seq; 12], vec![seq; 12]]);
    }
    assert_eq!(pair.ends.each_ref().map(Session::gates_done), [4, 4]);
    let share = [1; 32];
    assert!(
        pair.ends[1]
            .answer(now, &Message::Logits(&share[..28]))
            .is_err()
    );
    pair.ends[1].answer(now, &Message::Logits(&share)).unwrap();
    assert!(pair.ends[0].stop(now).is_err(), "an answer is missing");
    pair.control();
    let logits = Event::Message {
        peer: 1,
        message: Message::Logits(&share),
    };
    assert_eq!(pair.event(0), Some(logits));

    for end in 0..2 {
        pair.ends[end].check_step(now, 1, 77).unwrap();
    }
    pair.control();
    assert_eq!(pair.event(0), Some(Event::InStep { peer: 1, seq: 1 }));
    // The worker may hear of the leader's hash before it has sent its own, or behind.
    while let Some(event) = pair.event(1) {
        assert!(matches!(
            event,
            Event::InStep { .. } | Event::CheckStep { .. }
        ));
    }
    pair.ends[0].stop(now).unwrap();
    pair.control();
    assert_eq!(pair.event(1), Some(Event::Finished));
    pair.control();
    assert_eq!(pair.event(0), Some(Event::Finished));
    assert!(pair.ends.iter().all(|end| end.is_over(now)));
}

#[test]
fn a_mismatch_is_named_on_both_sides() {
    let mut other = config(1);
    other.identity.model = [4; 32];
    let mut pair = Pair::new([config(0), other]);
    pair.attach();
    pair.control();
    for end in 0..2 {
        let Some(Event::Failed(error)) = pair.event(end) else {
            panic!("end {end} goes on")
        };
        assert!(error.to_string().contains("model content"), "{error}");
        assert_eq!((error.rank, error.at.seq), (RANKS[1 - end], 0));
    }
    let mut other = config(1);
    other.identity.layout = SlabLayout::aligned(SlabGeometry::new(2, 3)).unwrap();
    let mut pair = Pair::new([config(0), other]);
    pair.attach();
    pair.control();
    let error = pair.ends[0].error().unwrap().to_string();
    assert!(error.contains("slab layout"), "{error}");
}

#[test]
fn gates_out_of_order_or_of_the_wrong_size_are_refused_and_change_nothing() {
    let mut pair = Pair::ready(both());
    let now = pair.now;
    let end = &mut pair.ends[0];
    for (gate, bytes, why) in [
        (row(2), 12, "gate order broke"),
        (row(1), 11, "12 bytes"),
        (
            Gate {
                kind: GateKind::Batch { rows: 9 },
                ..row(1)
            },
            12,
            "not in the slab",
        ),
        (
            Gate {
                kind: GateKind::Big { bytes: 0 },
                ..row(1)
            },
            0,
            "cannot be sent",
        ),
    ] {
        let refused = end.gate_begin(now, gate, &vec![0; bytes]).unwrap_err();
        let text = refused.to_string();
        assert!(text.contains(why) || why == "cannot be sent", "{text}");
        assert!(!end.in_gate());
    }
    pair.gate(row(1), [&[1; 12], &[2; 12]]).unwrap();
}

#[test]
fn damaged_and_foreign_gates_end_both_sides_with_the_place() {
    let mut pair = Pair::ready(both());
    let now = pair.now;
    pair.ends[0].gate_begin(now, row(1), &[1; 12]).unwrap();
    pair.ends[1].gate_begin(now, row(1), &[2; 12]).unwrap();
    // The payload is changed on its way.
    let head = pair.ends[0].gate_to_write(1).0.to_vec();
    pair.ends[1].gate_to_read(0).0.copy_from_slice(&head);
    let read = pair.ends[1].gate_read(now, 0, head.len(), &[]);
    assert_eq!(read, Ok(GateState::Under));
    let error = pair.ends[1].gate_read(now, 0, 12, &[9; 12]).unwrap_err();
    assert!(
        error.to_string().contains("ROW_GATE frame is damaged"),
        "{error}"
    );
    assert_eq!(
        (error.rank, error.at.layer, error.at.gate, error.at.seq),
        (0, 0, GateName::Attention, 1)
    );
    pair.control();
    let Some(Event::Failed(told)) = pair.event(0) else {
        panic!("the other side goes on")
    };
    assert_eq!((told.rank, told.at), (1, error.at));
    assert!(pair.ends[0].gate_begin(now, row(1), &[1; 12]).is_err());

    // A header of another sequence number is judged before any byte behind it.
    let mut pair = Pair::ready(both());
    pair.ends[0].gate_begin(now, row(1), &[1; 12]).unwrap();
    let crc = Some(0);
    let head = crate::tp::frame::Head::gate(row(1), 2, Piece::Part, 12, crc).unwrap();
    pair.ends[0]
        .gate_to_read(1)
        .0
        .copy_from_slice(&head.encode());
    let error = pair.ends[0].gate_read(now, 1, 32, &[0; 12]).unwrap_err();
    assert!(error.to_string().contains("gate desync"), "{error}");
}

#[test]
fn a_stop_that_overtakes_the_last_bytes_of_a_gate_waits_for_them() {
    let mut pair = Pair::ready(both());
    let now = pair.now;
    for end in 0..2 {
        pair.ends[end].gate_begin(now, row(1), &[7; 12]).unwrap();
        let bytes = 32 + 12;
        pair.ends[end].gate_wrote(RANKS[1 - end], bytes);
    }
    let head = pair.ends[1].gate_to_write(0).0.to_vec();
    assert!(head.is_empty(), "everything was written");
    let crc = Some(crc32c::crc32c(&[7; 12]));
    let head = crate::tp::frame::Head::gate(row(1), 1, Piece::Part, 12, crc).unwrap();
    let arrive = |end: usize, ends: &mut [Session; 2]| {
        let peer = RANKS[1 - end];
        let room = ends[end].gate_to_read(peer).0;
        room.copy_from_slice(&head.encode());
        ends[end].gate_read(now, peer, 44, &[7; 12]).unwrap();
    };
    arrive(0, &mut pair.ends);
    pair.ends[0].stop(now).unwrap();
    pair.control();
    assert_eq!(pair.event(1), None);
    assert!(pair.ends[1].in_gate());
    arrive(1, &mut pair.ends);
    assert_eq!(pair.event(1), Some(Event::Finished));
    pair.control();
    assert_eq!(pair.event(0), Some(Event::Finished));
}

#[test]
fn silence_ends_every_wait() {
    let limits = Deadlines::default();
    // Nobody comes.
    let mut alone = Session::new(Time::ZERO, config(0));
    assert_eq!(alone.next_deadline(), Time(limits.connect_ns));
    alone.handle_time(Time(limits.connect_ns - 1));
    assert!(alone.error().is_none());
    alone.handle_time(Time(limits.connect_ns));
    assert_eq!(alone.error().unwrap().rank, 1);

    // No hello.
    let mut pair = Pair::new(both());
    pair.attach();
    let late = pair.now.after(limits.hello_ns);
    pair.ends[0].handle_time(late);
    let text = pair.ends[0].error().unwrap().to_string();
    assert!(text.contains("waited 10000 ms for its hello"), "{text}");

    // Half a gate.
    let mut pair = Pair::ready(both());
    pair.gate(row(1), [&[1; 12], &[2; 12]]).unwrap();
    let now = pair.now;
    pair.ends[0].gate_begin(now, row(2), &[1; 12]).unwrap();
    let due = now.after(limits.gate_ns);
    assert!(pair.ends[0].next_deadline() <= due);
    pair.ends[0].handle_time(due);
    let error = pair.ends[0].error().unwrap();
    assert_eq!((error.rank, error.at.seq), (1, 2));
    assert!(error.to_string().contains("5000 ms"), "{error}");

    // Pings keep quiet peers; real silence does not last.
    let mut pair = Pair::ready(both());
    for third in 1..20 {
        pair.now = Time(5).after(third * limits.idle_ns / 3 + 1);
        for end in 0..2 {
            pair.ends[end].handle_time(pair.now);
        }
        pair.control();
        assert!(pair.ends.iter().all(|end| end.error().is_none()));
    }
    pair.now = pair.now.after(limits.idle_ns);
    pair.ends[1].handle_time(pair.now);
    assert!(
        pair.ends[1]
            .error()
            .unwrap()
            .to_string()
            .contains("sign of life")
    );
}

#[test]
fn states_that_differ_end_both_sides() {
    let mut pair = Pair::ready(both());
    let now = pair.now;
    pair.ends[0].check_step(now, 3, 1).unwrap();
    pair.ends[1].check_step(now, 3, 2).unwrap();
    pair.control();
    for end in pair.ends {
        assert!(end.error().is_some());
    }
}

#[test]
fn no_transport_for_all_is_an_error_that_names_every_rank() {
    let mut pair = Pair::new(both());
    pair.attach();
    pair.control();
    let now = pair.now;
    pair.ends[1].vote(now, TransportSet::default());
    pair.ends[0].poll_event(now);
    pair.ends[0].vote(now, TransportSet::of(&[Transport::Tcp]));
    pair.control();
    for end in &pair.ends {
        let text = end.error().unwrap().to_string();
        assert!(
            text.contains("rank 0 proved tcp, rank 1 proved none"),
            "{text}"
        );
    }
}

#[test]
fn commands_that_break_the_mirror_are_not_sent() {
    let mut pair = Pair::ready(both());
    let now = pair.now;
    let leader = &mut pair.ends[0];
    let refuse = |leader: &mut Session, message: &Message<'_>, why: &str| {
        let error = leader.command(now, message).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    };
    refuse(leader, &Message::Invalidate { session: 1 }, "no session 1");
    let zero = Message::SessionCreate {
        session: 0,
        context: 8,
    };
    refuse(leader, &zero, "not 0");
    leader
        .command(
            now,
            &Message::SessionCreate {
                session: 1,
                context: 2,
            },
        )
        .unwrap();
    let sync = |tokens| Message::Sync { session: 1, tokens };
    refuse(leader, &sync(Tokens::new(&[1, 2, 3])), "room for 2");
    refuse(leader, &sync(Tokens::new(&[16])), "vocabulary");
    let many = [Item {
        session: 1,
        token: 1,
    }; 3];
    let batch = Message::EvalBatch {
        items: Items::new(&many),
    };
    refuse(leader, &batch, "room for 2");
    refuse(leader, &Message::Stop, "does not send");
    assert_eq!(leader.tokens(1), Some(0));
    assert!(pair.ends[1].command(now, &zero).is_err());
}

#[test]
fn a_lost_data_connection_waits_a_moment_for_the_reason() {
    let mut pair = Pair::ready(both());
    let now = pair.now;
    pair.ends[1].abort(now, "the device was lost");
    pair.ends[0].closed(now, 1, Channel::Data);
    assert!(pair.ends[0].error().is_none());
    pair.control();
    let text = pair.ends[0].error().unwrap().to_string();
    assert!(text.contains("the device was lost"), "{text}");

    let mut pair = Pair::ready(both());
    pair.ends[0].closed(now, 1, Channel::Data);
    pair.ends[0].gate_begin(now, row(1), &[1; 12]).unwrap();
    let grace = pair.ends[0].next_deadline();
    assert!(grace.since(now) <= 500 * MS);
    pair.ends[0].handle_time(grace);
    assert!(pair.ends[0].error().is_some());
}

fn v7_pair(worker_context: u32) -> Pair {
    let both = both().map(|config| Config {
        dialect: Dialect::Ds4V7 {
            gguf_bytes: 1_234_567_890,
            model_id: 1,
        },
        context: if config.rank == 0 {
            8192
        } else {
            worker_context
        },
        ..config
    });
    Pair::ready(both)
}

#[test]
fn sessions_speak_the_references_commands_byte_for_byte() {
    let mut pair = v7_pair(0);
    let now = pair.now;
    let tokens = Tokens::new(&[11, 12, 13, 14, 15]);
    let items = [7, 8].map(|token| Item { session: 1, token });
    let items = Items::new(&items);
    let session = 1;
    let logits: Vec<u8> = (8_u8..16)
        .flat_map(|it| f32::from(it).to_le_bytes())
        .collect();
    let drafts = Tokens::new(&[11, 12, 13]);
    for (command, ack, shares) in [
        (
            Message::SessionCreate {
                session,
                context: 4096,
            },
            Some(1),
            0,
        ),
        (Message::Sync { session, tokens }, Some(1), 1),
        (
            Message::Eval {
                session,
                seq: 1,
                token: 42,
            },
            None,
            1,
        ),
        (
            Message::Rewind {
                session,
                position: 3,
            },
            None,
            0,
        ),
        (Message::Invalidate { session }, None, 0),
        (Message::Verify { session, drafts }, None, 0),
        (Message::EvalBatch { items }, Some(0), 2),
        (
            Message::MixedBatch {
                session,
                prompt: tokens,
                items,
            },
            Some(1),
            3,
        ),
        (Message::SessionDestroy { session }, Some(1), 0),
    ] {
        pair.ends[0].command(now, &command).unwrap();
        pair.control();
        assert!(
            matches!(pair.event(1), Some(Event::Message { message, .. }) if message == command)
        );
        if let Some(session) = ack {
            pair.ends[1]
                .answer(now, &Message::Ack { session, status: 0 })
                .unwrap();
        }
        for _ in 0..shares {
            pair.ends[1].answer(now, &Message::Logits(&logits)).unwrap();
        }
        for _ in 0..shares + usize::from(ack.is_some()) {
            pair.control();
            assert!(matches!(pair.event(0), Some(Event::Message { .. })));
        }
    }
    pair.ends[0].stop(now).unwrap();
    pair.control();
    assert_eq!(pair.event(0), Some(Event::Finished));
    assert_eq!(pair.event(1), Some(Event::Finished));
    let leader = captured("commands_run", "control", "leader_to_worker");
    assert_eq!(pair.control[0], leader);
    // The engine that the capture's worker drove was a stub that computes nothing for EVAL, so that
    // the logits are missing there which a real worker sends: the frame behind SYNC's, once more.
    let captured = captured("commands_run", "control", "worker_to_leader");
    let (before, after) = captured.split_at(64 + 28 + 28 + 44);
    let worker = [before, &before[64 + 28 + 28..], after].concat();
    assert_eq!(pair.control[1], worker);
}

#[test]
fn sessions_pass_the_references_gates_byte_for_byte() {
    let mut pair = v7_pair(8192);
    let files = ["leader_to_worker", "worker_to_leader"]
        .map(|direction| captured("gates_run", "data", direction));
    let mut at = 0;
    let batch = Gate {
        layer: 1,
        name: GateName::Attention,
        kind: GateKind::Batch { rows: 2 },
    };
    let big = Gate {
        layer: 0,
        name: GateName::Attention,
        kind: GateKind::Big { bytes: 10 },
    };
    for (gate, bytes) in (1..=5)
        .map(|seq| (row(seq), 12))
        .chain([(batch, 24), (big, 10)])
    {
        let body = at + 16..at + 16 + bytes;
        let [leader, worker] = files.each_ref().map(|file| &file[body.clone()]);
        let got = pair.gate(gate, [leader, worker]).unwrap();
        assert_eq!(got, [worker.to_vec(), leader.to_vec()]);
        at = body.end;
    }
    assert_eq!(pair.data, files);
    let now = pair.now;
    for end in 0..2 {
        pair.ends[end]
            .check_step(now, 5, 0x1122_3344_5566_7788)
            .unwrap();
    }
    pair.control();
    pair.ends[0].stop(now).unwrap();
    pair.control();
    assert_eq!(
        pair.control[0],
        captured("gates_run", "control", "leader_to_worker")
    );
    assert_eq!(
        pair.control[1],
        captured("gates_run", "control", "worker_to_leader")
    );
}

proptest::proptest! {
    #[test]
    fn arbitrary_bytes_never_panic_and_never_become_a_gate(
        control: Vec<u8>, data: Vec<u8>, v7: bool, ready: bool,
    ) {
        let mut pair = match (v7, ready) {
            (true, true) => v7_pair(0),
            (_, true) => Pair::ready(both()),
            _ => {
                let mut pair = Pair::new(both());
                pair.attach();
                pair
            }
        };
        let now = pair.now;
        let end = &mut pair.ends[0];
        let begun = end.gate_begin(now, row(1), &[1; 12]).is_ok();
        assert_eq!(begun, ready);
        let mut rest = control.as_slice();
        loop {
            let want = end.control_to_read(1);
            let count = want.len().min(rest.len());
            want[..count].copy_from_slice(&rest[..count]);
            rest = &rest[count..];
            if count == 0 {
                break;
            }
            end.control_read(now, 1, count);
            while end.poll_event(now).is_some() {}
        }
        let mut incoming = [0; 12];
        let mut rest = data.as_slice();
        loop {
            let (head, body) = end.gate_to_read(1);
            let place = if head.is_empty() { &mut incoming[body] } else { head };
            let count = place.len().min(rest.len());
            place[..count].copy_from_slice(&rest[..count]);
            rest = &rest[count..];
            if count == 0 || end.gate_read(now, 1, count, &incoming).is_err() {
                break;
            }
        }
        assert_eq!(end.gates_done(), 0);
    }
}
