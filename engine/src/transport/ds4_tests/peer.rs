//! A small peer that knows nothing of our codecs: every byte of it is put together here, from the
//! description of the protocol, or was captured from the reference.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::super::*;
use crate::tp::captured::captured;
use crate::tp::hello::Identity;
use crate::tp::schedule::Schedule;
use crate::tp::session::Dialect;
use crate::tp::slab::{SlabGeometry, SlabLayout};
use crate::tp::time::Deadlines;
use crate::tp::transport::{Transport, TransportSet};

const SECOND: u64 = 1_000_000_000;
pub(super) const ROW_MAGIC: u32 = 0x4453_3454;
pub(super) const BULK_MAGIC: u32 = 0x4453_3442;

/// The reference's model of the captured runs.
pub(super) fn config(rank: u32) -> Config {
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

pub(super) fn setup(rank: u32, port: u16, listening: Option<Listening>) -> Setup {
    let leader = Remote {
        rank: 0,
        host: "127.0.0.1".to_owned(),
        port,
    };
    Setup {
        listening,
        remotes: if rank == 0 { Vec::new() } else { vec![leader] },
        wait: Wait { spin_ns: 20_000 },
        ..Setup::new(config(rank), Key::public())
    }
}

/// A hello field by field: role and context of the two sides differ, all else is equal.
pub(super) fn hello(role: u32, context: u32) -> Vec<u8> {
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

pub(super) fn frame(code: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for word in [ROW_MAGIC, code, u32::try_from(payload.len()).unwrap()] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend(payload);
    bytes
}

pub(super) fn ack(session: u64) -> Vec<u8> {
    frame(17, &[session.to_le_bytes(), [0; 8]].concat())
}

pub(super) fn gate_head(magic: u32, layer: u16, field: u16, seq: u64) -> Vec<u8> {
    let mut bytes = magic.to_le_bytes().to_vec();
    bytes.extend(layer.to_le_bytes());
    bytes.extend(field.to_le_bytes());
    bytes.extend(seq.to_le_bytes());
    bytes
}

/// The other rank.
pub(super) struct Peer {
    pub(super) control: TcpStream,
    pub(super) data: TcpStream,
    /// All that came on the control connection.
    pub(super) heard: Vec<u8>,
}

impl Peer {
    /// As the leader does it: both hellos on the first connection, then the second one.
    pub(super) fn lead(listener: &TcpListener, greeting: &[u8]) -> Self {
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
    pub(super) fn follow(port: u16, greeting: &[u8]) -> Self {
        let mut control = dial(port);
        control.write_all(greeting).unwrap();
        let heard = take(&mut control, 64);
        Self {
            control,
            data: dial(port),
            heard,
        }
    }

    pub(super) fn say(&mut self, bytes: &[u8]) {
        self.control.write_all(bytes).unwrap();
    }

    /// The next frame: its number and what follows.
    pub(super) fn hear(&mut self) -> (u32, Vec<u8>) {
        let head = take(&mut self.control, 12);
        let word = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().unwrap());
        assert_eq!(word(0), ROW_MAGIC);
        let payload = take(&mut self.control, word(8) as usize);
        self.heard.extend(&head);
        self.heard.extend(&payload);
        (word(4), payload)
    }

    /// Writes all of its own side before it reads a byte, as the reference does.
    pub(super) fn gate(&mut self, head: &[u8], out: &[u8]) -> Vec<u8> {
        self.data.write_all(head).unwrap();
        self.data.write_all(out).unwrap();
        assert_eq!(take(&mut self.data, 16), head);
        take(&mut self.data, out.len())
    }
}

pub(super) fn patient(stream: TcpStream) -> TcpStream {
    stream
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    stream
}

pub(super) fn dial(port: u16) -> TcpStream {
    patient(TcpStream::connect(("127.0.0.1", port)).unwrap())
}

pub(super) fn take(stream: &mut TcpStream, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    stream.read_exact(&mut bytes).unwrap();
    bytes
}

/// Our rank in its role, and the port of whoever leads.
pub(super) fn ours(rank: u32, work: fn(Rank)) -> (JoinHandle<()>, u16, Option<TcpListener>) {
    let (opened, port, listener) = begin(rank);
    let thread = thread::spawn(move || work(opened().unwrap()));
    (thread, port, listener)
}

type Opens = Box<dyn FnOnce() -> Result<Rank, LinkError> + Send>;

pub(super) fn begin(rank: u32) -> (Opens, u16, Option<TcpListener>) {
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

/// A captured control stream in frames, hello first.
pub(super) fn frames(run: &str, direction: &str) -> Vec<Vec<u8>> {
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
