//! Ranks of ds4's own protocol beside a small peer that knows nothing of our codecs: every byte of it
//! is put together here, from the description of the protocol, or was captured from the reference.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde_json::Value;

use super::*;
use crate::tp::command::{Item, Items, Message, Tokens};
use crate::tp::frame::Kind;
use crate::tp::hello::Identity;
use crate::tp::schedule::{Gate, GateKind, GateName, Schedule};
use crate::tp::session::Dialect;
use crate::tp::slab::{SlabGeometry, SlabLayout};
use crate::tp::time::Deadlines;
use crate::tp::transport::{Transport, TransportSet};

const SECOND: u64 = 1_000_000_000;
const ROW_MAGIC: u32 = 0x4453_3454;
const BULK_MAGIC: u32 = 0x4453_3442;

/// The reference's model of the captured runs.
fn config(rank: u32) -> Config {
    Config {
        rank,
        identity: Identity {
            model: [0; 32],
            n_vocab: 16,
            quant_bits: 2,
            switches: 0,
            layout: SlabLayout::ds4(SlabGeometry::new(2, 3)).unwrap(),
            schedule: Schedule::every_gate(2).unwrap(),
            split_logits: true,
            payload_crc: false,
        },
        context: if rank == 0 { 8192 } else { 0 },
        transports: TransportSet::of(&[Transport::Tcp]),
        deadlines: Deadlines {
            connect_ns: 10 * SECOND,
            hello_ns: SECOND,
            gate_ns: SECOND,
            first_gate_ns: SECOND,
            ..Deadlines::default()
        },
        dialect: Dialect::Ds4V7 {
            gguf_bytes: 1_234_567_890,
            model_id: 1,
        },
    }
}

fn setup(rank: u32, port: u16, listening: Option<Listening>) -> Setup {
    let leader = Remote {
        rank: 0,
        host: "127.0.0.1".to_owned(),
        port,
    };
    Setup {
        config: config(rank),
        key: Key::public(),
        encrypt: false,
        listening,
        remotes: if rank == 0 { Vec::new() } else { vec![leader] },
        wait: Wait { spin_ns: 20_000 },
        buffer_bytes: None,
        rdma: Rdma::default(),
        collective: None,
        stop: Arc::new(AtomicBool::new(false)),
    }
}

/// A hello field by field: role and context of the two sides differ, all else is equal.
fn hello(role: u32, context: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    for word in [ROW_MAGIC, 7, role, 0] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend(1_234_567_890_u64.to_le_bytes());
    for word in [1, 2, 3, 16, 2, context, 0, 1, 4, 0_u32] {
        bytes.extend(word.to_le_bytes());
    }
    bytes
}

fn frame(code: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for word in [ROW_MAGIC, code, u32::try_from(payload.len()).unwrap()] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend(payload);
    bytes
}

fn ack(session: u64) -> Vec<u8> {
    frame(17, &[session.to_le_bytes(), [0; 8]].concat())
}

fn gate_head(magic: u32, layer: u16, field: u16, seq: u64) -> Vec<u8> {
    let mut bytes = magic.to_le_bytes().to_vec();
    bytes.extend(layer.to_le_bytes());
    bytes.extend(field.to_le_bytes());
    bytes.extend(seq.to_le_bytes());
    bytes
}

/// The other rank.
struct Peer {
    control: TcpStream,
    data: TcpStream,
    /// All that came on the control connection.
    heard: Vec<u8>,
}

impl Peer {
    /// As the leader does it: both hellos on the first connection, then the second one.
    fn lead(listener: &TcpListener, greeting: &[u8]) -> Self {
        let mut control = patient(listener.accept().unwrap().0);
        control.write_all(greeting).unwrap();
        let heard = take(&mut control, 64);
        let data = patient(listener.accept().unwrap().0);
        Self {
            control,
            data,
            heard,
        }
    }

    /// As the worker does it.
    fn follow(port: u16, greeting: &[u8]) -> Self {
        let mut control = dial(port);
        control.write_all(greeting).unwrap();
        let heard = take(&mut control, 64);
        Self {
            control,
            data: dial(port),
            heard,
        }
    }

    fn say(&mut self, bytes: &[u8]) {
        self.control.write_all(bytes).unwrap();
    }

    /// The next frame: its number and what follows.
    fn hear(&mut self) -> (u32, Vec<u8>) {
        let head = take(&mut self.control, 12);
        let word = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().unwrap());
        assert_eq!(word(0), ROW_MAGIC);
        let payload = take(&mut self.control, word(8) as usize);
        self.heard.extend(&head);
        self.heard.extend(&payload);
        (word(4), payload)
    }

    /// Writes all of its own side before it reads a byte, as the reference does.
    fn gate(&mut self, head: &[u8], out: &[u8]) -> Vec<u8> {
        self.data.write_all(head).unwrap();
        self.data.write_all(out).unwrap();
        assert_eq!(take(&mut self.data, 16), head);
        take(&mut self.data, out.len())
    }
}

fn patient(stream: TcpStream) -> TcpStream {
    stream
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    stream
}

fn dial(port: u16) -> TcpStream {
    patient(TcpStream::connect(("127.0.0.1", port)).unwrap())
}

fn take(stream: &mut TcpStream, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    stream.read_exact(&mut bytes).unwrap();
    bytes
}

/// Our rank in its role, and the port of whoever leads.
fn ours(rank: u32, work: fn(Rank)) -> (JoinHandle<()>, u16, Option<TcpListener>) {
    let (opened, port, listener) = begin(rank);
    let thread = thread::spawn(move || work(opened().unwrap()));
    (thread, port, listener)
}

type Opens = Box<dyn FnOnce() -> Result<Rank, LinkError> + Send>;

fn begin(rank: u32) -> (Opens, u16, Option<TcpListener>) {
    let (port, listening, listener) = if rank == 0 {
        let listening = Listening::open("127.0.0.1", 0).unwrap();
        (listening.addresses()[0].port(), Some(listening), None)
    } else {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        (listener.local_addr().unwrap().port(), None, Some(listener))
    };
    let setup = setup(rank, port, listening);
    let opens = Box::new(move || Rank::open(setup, &mut |_| {}));
    (opens, port, listener)
}

fn captured(run: &str, channel: &str, direction: &str) -> Vec<u8> {
    let file: Value =
        serde_json::from_str(include_str!("../../../golden/tp/wire_protocol7.json")).unwrap();
    let text = file[run][channel][direction].as_str().unwrap().to_owned();
    (0..text.len() / 2)
        .map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap())
        .collect()
}

/// A captured control stream in frames, hello first.
fn frames(run: &str, direction: &str) -> Vec<Vec<u8>> {
    let bytes = captured(run, "control", direction);
    let mut frames = vec![bytes[..64].to_vec()];
    let mut at = 64;
    while at < bytes.len() {
        let length = u32::from_le_bytes(bytes[at + 8..at + 12].try_into().unwrap());
        let end = at + 12 + length as usize;
        frames.push(bytes[at..end].to_vec());
        at = end;
    }
    frames
}

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

/// What our rank ends with when the peer does as `acts` says.
fn fault(rank: u32, acts: fn(&mut dyn FnMut() -> TcpStream)) -> String {
    let (opens, port, listener) = begin(rank);
    let thread = thread::spawn(move || {
        let mut rank = opens()?;
        if rank.session().rank() == 0 {
            rank.command(&Message::SessionCreate {
                session: 1,
                context: 8,
            })?;
            rank.hear()?;
        }
        let mut place = [0; 12];
        rank.exchange(row(1), &[7; 12], &mut [&mut place])?;
        rank.hear()
    });
    acts(&mut || match &listener {
        None => dial(port),
        Some(listener) => patient(listener.accept().unwrap().0),
    });
    thread.join().unwrap().unwrap_err().to_string()
}

/// A hello of the peer with one word changed; the peer of rank 0 is the worker.
fn changed(rank: u32, at: usize, word: u32) -> Vec<u8> {
    let mut bytes = if rank == 0 {
        hello(2, 0)
    } else {
        hello(1, 8192)
    };
    bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
    bytes
}

/// Says a greeting, and keeps the connection for a while.
fn greets<const AT: usize, const WORD: u32, const RANK: u32>(
    connect: &mut dyn FnMut() -> TcpStream,
) {
    let mut control = connect();
    control.write_all(&changed(RANK, AT, WORD)).unwrap();
    let _ = control.read_to_end(&mut Vec::new());
}

#[test]
fn hellos_that_do_not_fit_are_named_in_both_roles() {
    for (acts, said) in [
        (
            [greets::<4, 9, 0>, greets::<4, 9, 1>],
            "protocol version is 7 here and 9 there",
        ),
        ([greets::<8, 1, 0>, greets::<8, 2, 1>], "role of the peer"),
        ([greets::<16, 1, 0>, greets::<16, 1, 1>], "model file size"),
        (
            [greets::<24, 0, 0>, greets::<24, 0, 1>],
            "model number is 1 here and 0 there",
        ),
        (
            [greets::<28, 9, 0>, greets::<28, 9, 1>],
            "layers is 2 here and 9 there",
        ),
        (
            [greets::<32, 4, 0>, greets::<32, 4, 1>],
            "width is 3 here and 4 there",
        ),
        ([greets::<36, 17, 0>, greets::<36, 17, 1>], "vocabulary"),
        ([greets::<40, 4, 0>, greets::<40, 4, 1>], "bits of a weight"),
        ([greets::<48, 1, 0>, greets::<48, 1, 1>], "first gate"),
        (
            [greets::<52, 2, 0>, greets::<52, 2, 1>],
            "step between gates",
        ),
        ([greets::<56, 3, 0>, greets::<56, 3, 1>], "gates of a token"),
    ] as [([fn(&mut dyn FnMut() -> TcpStream); 2], &str); 11]
    {
        for (rank, acts) in [(0, acts[0]), (1, acts[1])] {
            let text = fault(rank, acts);
            assert!(text.contains(said), "rank {rank}: {text}");
        }
    }
    // The worker says what it found at the leader's port; the leader goes on waiting for a ds4 rank.
    let text = fault(1, greets::<0, 0x1234_5678, 1>);
    assert!(text.contains("begins with 12345678"), "{text}");
}

#[test]
fn silence_and_cuts_before_the_first_gate_end_in_errors() {
    let text = fault(1, |connect| {
        let mut control = connect();
        let _ = control.read_to_end(&mut Vec::new());
    });
    assert!(text.contains("ms for its hello in vain"), "{text}");
    let text = fault(1, |connect| {
        let mut control = connect();
        control.write_all(&hello(1, 8192)[..20]).unwrap();
    });
    assert!(text.contains("in the middle of a frame"), "{text}");
    let text = fault(1, |connect| drop(connect()));
    assert!(
        text.contains("rank 0") && text.contains("control connection was closed"),
        "{text}"
    );
}

/// Both connections, with the right hellos.
fn joined(rank: u32, connect: &mut dyn FnMut() -> TcpStream) -> Peer {
    let mut control = connect();
    control.write_all(&changed(rank, 0, ROW_MAGIC)).unwrap();
    let heard = take(&mut control, 64);
    let data = connect();
    Peer {
        control,
        data,
        heard,
    }
}

#[test]
fn frames_and_gates_that_are_wrong_or_cut_end_in_clear_errors() {
    type Acts = fn(&mut dyn FnMut() -> TcpStream);
    fn say(connect: &mut dyn FnMut() -> TcpStream, bytes: &[u8], keep: bool) {
        let mut peer = joined(0, connect);
        assert_eq!(peer.hear().0, 13);
        peer.say(bytes);
        if keep {
            let _ = peer.control.read_to_end(&mut Vec::new());
        }
    }
    fn gate(connect: &mut dyn FnMut() -> TcpStream, bytes: &[u8], keep: bool) {
        let mut peer = joined(1, connect);
        // The other side is in its gate.
        take(&mut peer.data, 16 + 12);
        peer.data.write_all(bytes).unwrap();
        if keep {
            let _ = peer.control.read_to_end(&mut Vec::new());
        }
    }
    let wrong: [(u32, Acts, &str); 12] = [
        (0, |it| say(it, &[0x55; 12], true), "begins with 55555555"),
        (
            0,
            |it| say(it, &frame(9, &[]), true),
            "number 9, which is not spoken",
        ),
        (0, |it| say(it, &frame(99, &[]), true), "number 99"),
        (
            0,
            |it| say(it, &[&frame(17, &[])[..8], &[0xff; 4]].concat(), true),
            "a ACK frame of 4294967295 bytes; at most 16",
        ),
        (
            0,
            |it| say(it, &frame(17, &[0; 8]), true),
            "ACK frame is not valid",
        ),
        (
            0,
            |it| say(it, &frame(10, &[0; 32]), true),
            "nothing asked for",
        ),
        (0, |it| say(it, &ack(2), true), "nothing asked for"),
        (
            0,
            |it| say(it, &ack(1)[..20], false),
            "in the middle of a frame",
        ),
        (
            1,
            |it| gate(it, &gate_head(ROW_MAGIC, 0, 0, 2), true),
            "gate desync: layer 0 gate attn sequence 1 here, magic 44533454 layer 0 gate 0 sequence 2",
        ),
        (
            1,
            |it| gate(it, &gate_head(BULK_MAGIC, 0, 0, 1), true),
            "gate desync",
        ),
        (
            1,
            |it| {
                let cut = [gate_head(ROW_MAGIC, 0, 0, 1), vec![1; 5]].concat();
                gate(it, &cut, false);
            },
            "rank 0, layer 0 gate attn sequence 1",
        ),
        (
            1,
            |it| gate(it, &[], true),
            "ms for its part of the gate in vain",
        ),
    ];
    for (rank, acts, said) in wrong {
        let text = fault(rank, acts);
        assert!(text.contains(said), "{said}: {text}");
    }
}

#[test]
fn strangers_at_the_leaders_port_are_sent_away_and_the_peer_still_gets_in() {
    let (thread, port, _) = ours(0, |mut rank| rank.finish().unwrap());
    let silent = dial(port);
    let mut wrong = dial(port);
    wrong.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    assert_eq!(wrong.read(&mut [0; 1]).unwrap_or(0), 0, "sent away");
    drop(dial(port));
    let mut peer = Peer::follow(port, &hello(2, 0));
    assert_eq!(peer.hear(), (5, Vec::new()));
    thread.join().unwrap();
    drop(silent);
}

#[test]
fn more_than_two_ranks_are_refused() {
    let mut setup = setup(1, 1, None);
    let geometry = SlabGeometry {
        ranks: 3,
        ..SlabGeometry::new(2, 3)
    };
    setup.config.identity.layout = SlabLayout::ds4(geometry).unwrap();
    let text = Rank::open(setup, &mut |_| {}).unwrap_err().to_string();
    assert!(text.contains("joins two ranks, not 3"), "{text}");
}
