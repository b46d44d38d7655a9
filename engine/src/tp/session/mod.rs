//! The session of one rank, as a state machine without sockets or clock.
//!
//! The methods are of four kinds. *Links*: [`Session::attach`], [`Session::closed`] and, for each
//! connection, `…_to_write`, `…_wrote`, `…_to_read`, `…_read`. *Commands*: what the application
//! wants. *Events*: [`Session::poll_event`]. *Time*: [`Session::next_deadline`] and
//! [`Session::handle_time`].

mod collective;
mod commands;
mod control;
mod deadlines;
mod gates;
mod link;
mod ring;
mod roster;

use std::collections::VecDeque;

pub use gates::{GateState, Wants};

use super::command::Message;
use super::error::{Cause, Position, TpError};
use super::exchange::SumLimits;
use super::frame::{FrameError, Kind};
use super::hello::{Hello, Identity};
use super::mirror::{Mirror, Strictness};
use super::roster::Entry;
use super::schedule::Gate;
use super::slab::peer_index;
use super::time::{Deadlines, Time};
use super::transport::{Transport, TransportSet};
use super::trust::Channel;
use super::v7;
use collective::Collective;
use link::{ControlLink, DataLink};
use ring::RingGate;

/// Which protocol is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// The one of `PROTOCOL.md`.
    Native,
    /// ds4's own, version 7, between two ranks over TCP, without keys.
    Ds4V7 {
        /// Bytes of the model file.
        gguf_bytes: u64,
        /// The model's number.
        model_id: u32,
    },
}

/// What a rank is and how long it waits.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The own rank; 0 leads.
    pub rank: u32,
    /// What all ranks must have in common.
    pub identity: Identity,
    /// Tokens for which this rank has room.
    pub context: u32,
    /// The transports that it may use.
    pub transports: TransportSet,
    /// How long it waits.
    pub deadlines: Deadlines,
    /// What it speaks.
    pub dialect: Dialect,
}

impl Config {
    /// A rank that speaks the native protocol over TCP and waits as long as usual. It has room for
    /// no token: enough for gates.
    #[must_use]
    pub fn new(rank: u32, identity: Identity) -> Self {
        Self {
            rank,
            identity,
            context: 0,
            transports: TransportSet::of(&[Transport::Tcp]),
            deadlines: Deadlines::default(),
            dialect: Dialect::Native,
        }
    }
}

/// What the application must know or do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// All peers are there and fit: probe these transports, then call [`Session::vote`].
    Probe(TransportSet),
    /// Gates may pass, by this transport.
    Ready(Transport),
    /// A command of the leader, or a worker's answer. What it names lies in the session until the
    /// next call.
    Message {
        /// Who sent it.
        peer: u32,
        /// What it says.
        message: Message<'a>,
    },
    /// A peer's state has the hash that the own one has.
    InStep {
        /// The peer.
        peer: u32,
        /// When the hashes were taken.
        seq: u64,
    },
    /// A peer has sent a hash of its state: call [`Session::check_step`] for the same `seq`.
    CheckStep {
        /// The peer.
        peer: u32,
        /// When its hash was taken.
        seq: u64,
    },
    /// The orderly end.
    Finished,
    /// The other end: write what is left to write, then close.
    Failed(TpError),
}

/// Where a session stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Connections are missing.
    Connecting,
    /// All are there; hellos are missing.
    Greeting,
    /// The transports are being probed.
    Voting,
    /// Gates and commands pass.
    Ready,
    /// The leader has said stop.
    Closing,
    /// The orderly end.
    Closed,
    /// The other end.
    Failed,
}

#[derive(Debug)]
enum Note {
    Probe(TransportSet),
    Ready(Transport),
    InStep { peer: u32, seq: u64 },
    CheckStep { peer: u32, seq: u64 },
    Finished,
    Failed,
}

#[derive(Clone, Copy, Debug)]
struct Current {
    gate: Gate,
    seq: u64,
    began: Time,
    due: Time,
}

/// One rank's side of a run.
#[derive(Debug)]
pub struct Session {
    config: Config,
    hello: Hello,
    phase: Phase,
    since: Time,
    control: Vec<ControlLink>,
    data: Vec<DataLink>,
    own_vote: Option<TransportSet>,
    mirror: Mirror,
    notes: VecDeque<Note>,
    row_seq: u64,
    bulk_seq: u64,
    gates_done: u64,
    current: Option<Current>,
    /// The ring under way, if the gate takes that way.
    round: Option<RingGate>,
    collective: Collective,
    roster: Vec<Entry>,
    /// Where a ring's partial sums come in.
    staging: Vec<u8>,
    error: Option<TpError>,
    scratch: Vec<u8>,
}

impl Session {
    /// A rank that waits for its connections.
    #[must_use]
    pub fn new(now: Time, config: Config) -> Self {
        let ranks = config.identity.layout.geometry().ranks;
        let own = config.rank;
        let others = (0..ranks).filter(|rank| *rank != own);
        let control = others
            .clone()
            .filter(|rank| own == 0 || *rank == 0)
            .map(ControlLink::new)
            .collect();
        let strictness = match config.dialect {
            Dialect::Native => Strictness::Native,
            Dialect::Ds4V7 { .. } => Strictness::Ds4,
        };
        Self {
            hello: Hello::new(&config.identity, own, config.context, config.transports),
            phase: Phase::Connecting,
            since: now,
            control,
            data: others
                .map(|rank| DataLink::new(rank, config.dialect))
                .collect(),
            own_vote: None,
            mirror: Mirror::new(strictness, config.identity.n_vocab),
            notes: VecDeque::with_capacity(16),
            row_seq: 1,
            bulk_seq: 1,
            gates_done: 0,
            current: None,
            round: None,
            collective: Collective::default(),
            roster: Vec::new(),
            staging: Vec::new(),
            error: None,
            scratch: Vec::new(),
            config,
        }
    }

    /// The same with other limits of the two ways of a sum than the usual ones. All ranks must have
    /// the same; the hello compares them.
    #[must_use]
    pub fn with_ways(now: Time, config: Config, ways: SumLimits) -> Self {
        let mut session = Self::new(now, config);
        session.hello.ways = ways;
        session
    }

    /// The own rank.
    #[must_use]
    pub const fn rank(&self) -> u32 {
        self.config.rank
    }

    /// How long it waits.
    #[must_use]
    pub const fn deadlines(&self) -> &Deadlines {
        &self.config.deadlines
    }

    /// How many ranks there are.
    #[must_use]
    pub const fn ranks(&self) -> u32 {
        self.config.identity.layout.geometry().ranks
    }

    /// Where the session stands.
    #[must_use]
    pub const fn phase(&self) -> Phase {
        self.phase
    }

    /// Gates that have passed.
    #[must_use]
    pub const fn gates_done(&self) -> u64 {
        self.gates_done
    }

    /// Why it ended.
    #[must_use]
    pub const fn error(&self) -> Option<&TpError> {
        self.error.as_ref()
    }

    /// The gate under way, or the next row gate.
    #[must_use]
    pub fn position(&self) -> Position {
        let (gate, seq) = match (self.phase, &self.current) {
            (_, Some(current)) => (current.gate, current.seq),
            (Phase::Connecting | Phase::Greeting | Phase::Voting, None) => {
                (self.config.identity.schedule.row_gate(1), 0)
            }
            _ => (
                self.config.identity.schedule.row_gate(self.row_seq),
                self.row_seq,
            ),
        };
        Position {
            layer: gate.layer,
            gate: gate.name,
            seq,
        }
    }

    /// Whether a peer has said who it is, and fits.
    #[must_use]
    pub fn greeted(&self, peer: u32) -> bool {
        self.control
            .iter()
            .any(|link| link.peer == peer && link.fits)
    }

    /// Whether a peer's connection is missing: what a listener asks before it lets one in.
    #[must_use]
    pub fn awaits(&self, peer: u32, channel: Channel) -> bool {
        self.phase == Phase::Connecting
            && match channel {
                Channel::Control => self
                    .control
                    .iter()
                    .any(|link| link.peer == peer && !link.attached),
                Channel::Data => self
                    .data
                    .iter()
                    .any(|link| link.peer == peer && !link.attached),
            }
    }

    /// A connection was proved: its bytes belong to the session from now on. False when it was
    /// not awaited; then close it.
    pub fn attach(&mut self, now: Time, peer: u32, channel: Channel) -> bool {
        if !self.awaits(peer, channel) {
            return false;
        }
        match channel {
            Channel::Control => {
                let dialect = self.config.dialect;
                let hello = self.hello.encode();
                let raw = self.v7_hello().map(|hello| hello.encode());
                if let Some(link) = self.control_mut(peer) {
                    link.attached = true;
                    link.last_in = now;
                    match raw {
                        Some(raw) => link.push_raw(now, &raw),
                        None => _ = link.push(now, dialect, Kind::Hello, &hello),
                    }
                }
            }
            Channel::Data => {
                if let Some(link) = self.data_mut(peer) {
                    link.attached = true;
                }
            }
        }
        self.advance(now);
        true
    }

    /// A connection ended or broke. Read what it still holds first: the peer's last words.
    pub fn closed(&mut self, now: Time, peer: u32, channel: Channel) {
        match channel {
            Channel::Control => {
                let mut cut = false;
                if let Some(link) = self.control_mut(peer) {
                    link.closed = true;
                    cut = link.cut();
                }
                if !self.may_close(peer) {
                    let cause = if cut {
                        Cause::Frame(FrameError::Cut)
                    } else {
                        Cause::Closed(Channel::Control)
                    };
                    self.fail(now, peer, cause);
                }
            }
            Channel::Data => {
                // The reason may be on its way: the control connection gets a moment to say it.
                if let Some(link) = self.data_mut(peer) {
                    link.closed_at.get_or_insert(now);
                }
            }
        }
    }

    /// The way that gates take to a peer failed, for a reason that the way itself gives.
    pub fn path_failed(&mut self, now: Time, peer: u32, why: &str) {
        self.fail(now, peer, Cause::Path(why.to_owned()));
    }

    /// Gives up for a reason of the own side: a device, a transport, a user.
    pub fn abort(&mut self, now: Time, why: &str) {
        self.fail(now, self.config.rank, Cause::Local(why.to_owned()));
    }

    /// Whether everything is over: close the connections.
    #[must_use]
    pub fn is_over(&self, now: Time) -> bool {
        let ended = matches!(self.phase, Phase::Closed | Phase::Failed);
        let flushed = self.control.iter().all(|link| link.to_write().is_empty());
        ended && (flushed || now.since(self.since) >= self.config.deadlines.close_ns)
    }

    /// The next event; call until there is none.
    pub fn poll_event(&mut self, now: Time) -> Option<Event<'_>> {
        // Judging a message may end the session: look for notes before and after.
        let index = if self.notes.is_empty() {
            self.take_message(now)
        } else {
            None
        };
        if let Some(note) = self.notes.pop_front() {
            return Some(match note {
                Note::Probe(set) => Event::Probe(set),
                Note::Ready(transport) => Event::Ready(transport),
                Note::InStep { peer, seq } => Event::InStep { peer, seq },
                Note::CheckStep { peer, seq } => Event::CheckStep { peer, seq },
                Note::Finished => Event::Finished,
                Note::Failed => Event::Failed(self.error.clone()?),
            });
        }
        let index = index?;
        let peer = self.control.get(index)?.peer;
        let message = self.control.get_mut(index)?.taken()?;
        Some(Event::Message { peer, message })
    }

    /// Whether a peer may close its control connection now.
    fn may_close(&self, peer: u32) -> bool {
        match self.phase {
            Phase::Closed | Phase::Failed => true,
            Phase::Closing => self
                .control
                .iter()
                .any(|link| link.peer == peer && link.stop_acked),
            Phase::Connecting | Phase::Greeting | Phase::Voting | Phase::Ready => false,
        }
    }

    /// Ends the session: once, for the first reason, which is told to the peers.
    fn fail(&mut self, now: Time, rank: u32, cause: Cause) {
        let at = self.position();
        self.fail_with(now, TpError { rank, at, cause });
    }

    fn fail_with(&mut self, now: Time, error: TpError) {
        if matches!(self.phase, Phase::Closed | Phase::Failed) {
            return;
        }
        let told = matches!(error.cause, Cause::Told { .. });
        let teller = told.then_some(error.rank);
        if self.config.dialect == Dialect::Native {
            let words = error.encode();
            for link in &mut self.control {
                if Some(link.peer) != teller {
                    link.push(now, Dialect::Native, Kind::Error, &words);
                }
            }
        }
        self.enter(now, Phase::Failed);
        self.current = None;
        self.round = None;
        self.collective.limit_ns = None;
        self.error = Some(error);
        self.notes.push_back(Note::Failed);
    }

    fn enter(&mut self, now: Time, phase: Phase) {
        self.phase = phase;
        self.since = now;
    }

    fn v7_hello(&self) -> Option<v7::Hello> {
        let Dialect::Ds4V7 {
            gguf_bytes,
            model_id,
        } = self.config.dialect
        else {
            return None;
        };
        let identity = &self.config.identity;
        let geometry = identity.layout.geometry();
        Some(v7::Hello {
            version: v7::VERSION,
            role: if self.config.rank == 0 { 1 } else { 2 },
            rdma_ok: 0,
            gguf_bytes,
            model_id,
            n_layer: geometry.n_layer,
            n_embd: geometry.n_embd,
            n_vocab: identity.n_vocab,
            quant_bits: identity.quant_bits,
            ctx_size: self.config.context,
            gate_slot_start: identity.schedule.start(),
            gate_slot_step: identity.schedule.step(),
            gates_per_token: identity.schedule.per_token(),
        })
    }

    fn control_mut(&mut self, peer: u32) -> Option<&mut ControlLink> {
        self.control.iter_mut().find(|link| link.peer == peer)
    }

    fn data_mut(&mut self, peer: u32) -> Option<&mut DataLink> {
        let index = peer_index(self.config.rank, peer)?;
        self.data.get_mut(usize::try_from(index).ok()?)
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
