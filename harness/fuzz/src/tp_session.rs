//! A session of either dialect as a peer, a network and an application might treat it.
//!
//! The bytes are read as a list of deeds. Some are raw bytes on a connection. Others are frames
//! with the right number and checksums, which no fuzzer guesses, or what an application calls.

use ds4_engine::tp::command::{Message, Reserved};
use ds4_engine::tp::frame::{Head, Kind, Piece, push_control};
use ds4_engine::tp::hello::{Hello, Identity};
use ds4_engine::tp::schedule::{Gate, GateKind, GateName, Schedule};
use ds4_engine::tp::session::{Config, Dialect, Phase, Session};
use ds4_engine::tp::slab::{SlabGeometry, SlabLayout};
use ds4_engine::tp::time::{Deadlines, Time};
use ds4_engine::tp::transport::{Transport, TransportSet};
use ds4_engine::tp::trust::Channel;
use ds4_engine::tp::v7;

const MODEL_BYTES: u64 = 1_234_567_890;

/// Whatever is done, nothing panics, an end stays an end, and only a gate with the right header
/// and checksum passes.
pub fn check(bytes: &[u8]) {
    let mut script = Script(bytes);
    let choice = script.byte();
    let Some(mut world) = World::new(choice & 1 != 0, choice & 2 != 0) else {
        return;
    };
    if choice & 4 != 0 {
        world.greet();
    }
    while !script.0.is_empty() {
        world.deed(&mut script);
        world.judge();
    }
    world.pass(3_600_000_000_000);
    world.judge();
}

struct Script<'a>(&'a [u8]);

impl<'a> Script<'a> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *first
    }

    fn bytes(&mut self) -> &'a [u8] {
        let count = usize::from(self.byte()).min(self.0.len());
        let (taken, rest) = self.0.split_at(count);
        self.0 = rest;
        taken
    }
}

struct World {
    session: Session,
    identity: Identity,
    own: u32,
    peer: u32,
    native: bool,
    now: Time,
    frames: u64,
    /// The gate under way, with its number.
    gate: Option<(Gate, u64)>,
    out: Vec<u8>,
    incoming: Vec<u8>,
    came: Vec<u8>,
    gates: u64,
    ended: bool,
}

impl World {
    fn new(leads: bool, v7: bool) -> Option<Self> {
        let identity = Identity {
            model: [3; 32],
            n_vocab: 16,
            quant_bits: 2,
            switches: 0,
            layout: SlabLayout::ds4(SlabGeometry::new(2, 3)).ok()?,
            schedule: Schedule::every_gate(2).ok()?,
            split_logits: true,
            payload_crc: true,
        };
        let dialect = if v7 {
            Dialect::Ds4V7 {
                gguf_bytes: MODEL_BYTES,
                model_id: 1,
            }
        } else {
            Dialect::Native
        };
        let (own, peer) = if leads { (0, 1) } else { (1, 0) };
        let config = Config {
            rank: own,
            identity,
            context: 8,
            transports: TransportSet::of(&[Transport::Tcp]),
            deadlines: Deadlines::default(),
            dialect,
        };
        let mut session = Session::new(Time::ZERO, config);
        for channel in [Channel::Control, Channel::Data] {
            session.attach(Time::ZERO, peer, channel);
        }
        Some(Self {
            session,
            identity,
            own,
            peer,
            native: !v7,
            now: Time(1),
            frames: 0,
            gate: None,
            out: Vec::new(),
            incoming: Vec::new(),
            came: Vec::new(),
            gates: 0,
            ended: false,
        })
    }

    /// The peer's hello and the vote, as an honest peer has them.
    fn greet(&mut self) {
        let tcp = TransportSet::of(&[Transport::Tcp]);
        if self.native {
            let hello = Hello::new(&self.identity, self.peer, 8, tcp);
            self.framed(Kind::Hello, &hello.encode());
            self.session.vote(self.now, tcp);
            let kind = if self.own == 0 {
                Kind::Vote
            } else {
                Kind::Chosen
            };
            self.framed(kind, &u64::from(tcp.bits()).to_le_bytes());
        } else {
            let geometry = self.identity.layout.geometry();
            let hello = v7::Hello {
                version: v7::VERSION,
                role: if self.own == 0 { 2 } else { 1 },
                rdma_ok: 0,
                gguf_bytes: MODEL_BYTES,
                model_id: 1,
                n_layer: geometry.n_layer,
                n_embd: geometry.n_embd,
                n_vocab: 16,
                quant_bits: 2,
                ctx_size: 8,
                gate_slot_start: self.identity.schedule.start(),
                gate_slot_step: self.identity.schedule.step(),
                gates_per_token: self.identity.schedule.per_token(),
            };
            self.control(&hello.encode());
            self.session.vote(self.now, tcp);
        }
    }

    fn deed(&mut self, script: &mut Script<'_>) {
        let deed = script.byte();
        match deed % 12 {
            0 => self.control(script.bytes()),
            1 | 2 => {
                let index = usize::from(script.byte()) % Kind::ALL.len();
                self.framed(Kind::ALL[index], script.bytes());
            }
            3 => self.command(script, true),
            4 => self.command(script, false),
            5 => self.pass(u64::from(script.byte()) * 100_000_000),
            6 => self.begin(script.byte()),
            7 => self.data(script.bytes()),
            8 => self.honest_gate(script.byte()),
            9 => self.application(script.byte()),
            10 => {
                let words = self.session.control_to_write(self.peer).len();
                let count = words.min(usize::from(script.byte()));
                self.session.control_wrote(self.peer, count);
            }
            _ => {
                let channel = if script.byte() & 1 == 0 {
                    Channel::Control
                } else {
                    Channel::Data
                };
                self.session.closed(self.now, self.peer, channel);
            }
        }
    }

    /// Bytes on the control connection.
    fn control(&mut self, mut bytes: &[u8]) {
        let mut looked = false;
        while !bytes.is_empty() {
            let room = self.session.control_to_read(self.peer);
            let count = room.len().min(bytes.len());
            room[..count].copy_from_slice(&bytes[..count]);
            bytes = &bytes[count..];
            if count > 0 {
                self.session.control_read(self.now, self.peer, count);
            }
            // A message that nobody takes stops the connection.
            if count == 0 && std::mem::replace(&mut looked, true) {
                return;
            }
            while self.session.poll_event(self.now).is_some() {}
        }
    }

    /// A frame with the number and the checksums that it must have.
    fn framed(&mut self, kind: Kind, payload: &[u8]) {
        let mut frame = Vec::new();
        if self.native {
            if !push_control(&mut frame, kind, self.frames + 1, payload) {
                return;
            }
            self.frames += 1;
        } else {
            let Some(head) = v7::encode_head(kind, payload.len() as u32) else {
                return;
            };
            frame.extend_from_slice(&head);
            frame.extend_from_slice(payload);
        }
        self.control(&frame);
    }

    fn command(&mut self, script: &mut Script<'_>, asks: bool) {
        let index = usize::from(script.byte()) % Kind::ALL.len();
        let payload = script.bytes();
        if let Ok(message) = Message::decode(Kind::ALL[index], payload, Reserved::Zero) {
            let sent = if asks {
                self.session.command(self.now, &message)
            } else {
                self.session.answer(self.now, &message)
            };
            assert!(sent.is_err() || self.session.phase() == Phase::Ready);
        }
    }

    fn pass(&mut self, ns: u64) {
        self.now = self.now.after(ns);
        self.session.handle_time(self.now);
        while self.session.poll_event(self.now).is_some() {}
    }

    fn application(&mut self, what: u8) {
        let now = self.now;
        match what % 5 {
            0 => {
                let _ = self.session.stop(now);
            }
            1 => {
                let (seq, hash) = (u64::from(what), u64::from(what));
                let _ = self.session.check_step(now, seq, hash);
            }
            2 => self.session.abort(now, "the application\nwants no more"),
            3 => {
                let set = TransportSet::from_bits(u32::from(what));
                self.session.vote(now, set);
            }
            _ => {
                let context = i32::from(what);
                let message = Message::SessionCreate {
                    session: 1,
                    context,
                };
                let _ = self.session.command(now, &message);
            }
        }
    }

    fn begin(&mut self, what: u8) {
        let bulk = |kind| Gate {
            layer: u32::from(what & 1),
            name: GateName::Attention,
            kind,
        };
        let gate = match what >> 6 {
            0 | 1 => self.identity.schedule.row_gate(u64::from(what)),
            2 => bulk(GateKind::Batch {
                rows: u32::from(what >> 1 & 15),
            }),
            _ => bulk(GateKind::Big {
                bytes: u64::from(what >> 1 & 31),
            }),
        };
        let layout = &self.identity.layout;
        let bytes = match gate.kind {
            GateKind::Row => layout.vec_bytes(),
            GateKind::Batch { rows } => layout.batch_out(gate.layer, rows).map_or(0, |it| it.bytes),
            GateKind::Big { bytes } => bytes,
        };
        let out = vec![what; bytes as usize];
        if let Ok(seq) = self.session.gate_begin(self.now, gate, &out) {
            self.gate = Some((gate, seq));
            self.incoming = vec![0; out.len()];
            self.came.clear();
            let (head, body) = self.session.gate_to_write(self.peer);
            let count = head.len() + body.len();
            self.out = out;
            self.session.gate_wrote(self.peer, count);
        }
    }

    /// The gate's frame as the peer would send it, its bytes made of one.
    fn honest_gate(&mut self, byte: u8) {
        let Some((gate, seq)) = self.gate else {
            return;
        };
        let body = vec![byte; self.out.len()];
        let head = if self.native {
            Head::gate(gate, seq, Piece::Part, body.len(), crc(&body))
                .map(|head| head.encode().to_vec())
        } else {
            v7::encode_gate(gate, seq).map(|head| head.to_vec())
        };
        self.data(&[head.unwrap_or_default(), body].concat());
    }

    /// Bytes on the data connection.
    fn data(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() && self.session.in_gate() {
            let (head, body) = self.session.gate_to_read(self.peer);
            let place = if head.is_empty() {
                self.incoming.get_mut(body).unwrap_or_default()
            } else {
                head
            };
            let count = place.len().min(bytes.len());
            if count == 0 {
                return;
            }
            place[..count].copy_from_slice(&bytes[..count]);
            self.came.extend_from_slice(&bytes[..count]);
            bytes = &bytes[count..];
            let incoming = &self.incoming;
            let read = self.session.gate_read(self.now, self.peer, count, incoming);
            if read.is_err() {
                return;
            }
        }
    }

    /// What must hold after every deed.
    fn judge(&mut self) {
        let failed = self.session.phase() == Phase::Failed;
        assert_eq!(failed, self.session.error().is_some());
        let ended = failed || self.session.phase() == Phase::Closed;
        assert!(ended || !self.ended, "an end that did not stay");
        self.ended = ended;
        assert!(!failed || !self.session.in_gate());
        let passed = self.session.gates_done() - self.gates;
        self.gates += passed;
        assert!(passed <= 1);
        if passed == 1 {
            self.judge_gate();
        }
        if !self.session.in_gate() {
            self.gate = None;
        }
    }

    fn judge_gate(&self) {
        let Some((gate, seq)) = self.gate else {
            panic!("a gate passed that had not begun");
        };
        let want = if self.native {
            let crc = crc(&self.incoming);
            Head::gate(gate, seq, Piece::Part, self.out.len(), crc)
                .map(|head| head.encode().to_vec())
        } else {
            v7::encode_gate(gate, seq).map(|head| head.to_vec())
        };
        let head = want.unwrap_or_default();
        assert_eq!(self.came.get(..head.len()), Some(head.as_slice()));
        assert_eq!(self.came.get(head.len()..), Some(self.incoming.as_slice()));
    }
}

/// The checksum of a payload, as a control frame's header has it.
fn crc(bytes: &[u8]) -> Option<u32> {
    Head::control(Kind::Sync, 1, bytes)?.payload_crc
}
