//! One run: nodes, connections, the order of events, and the judgement.

use std::fmt;

use ds4_engine::tp::error::TpError;
use ds4_engine::tp::hello::Identity;
use ds4_engine::tp::schedule::Schedule;
use ds4_engine::tp::session::{Config, Phase, Session};
use ds4_engine::tp::slab::{SlabGeometry, SlabLayout};
use ds4_engine::tp::time::{Deadlines, Time};
use ds4_engine::tp::transport::{Transport, TransportSet};
use ds4_engine::tp::trust::{Channel, Dial, Dialer, Key, Listener, SessionId};

use super::actor::{Actor, CONTEXT, VOCAB};
use super::pipe::Pipe;
use super::plan::{Draw, LinkPlan, RankFaultKind};

const MS: u64 = 1_000_000;
/// No honest run comes near it.
const ROUNDS_MAX: u64 = 2_000_000;

/// What the ranks of a simulated group wait for, in nanoseconds.
const DEADLINES: Deadlines = Deadlines {
    connect_ns: 1000 * MS,
    hello_ns: 500 * MS,
    gate_ns: 200 * MS,
    first_gate_ns: 400 * MS,
    gate_ns_per_mib: 60 * MS,
    reply_ns: 600 * MS,
    idle_ns: 500 * MS,
    close_ns: 100 * MS,
};

/// The longest time from the last thing that went wrong to the end of every rank: it may wait to
/// connect, for the hello, for the vote, and then for a gate, an answer or a sign of life; the
/// rest is what clocks and latency add.
const END_NS: u64 =
    DEADLINES.connect_ns + 2 * DEADLINES.hello_ns + 2 * DEADLINES.reply_ns + 500 * MS;

/// How a rank ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankReport {
    /// It was killed.
    pub killed: bool,
    /// Where its session stood.
    pub phase: Phase,
    /// Why it failed.
    pub error: Option<TpError>,
    /// Gates whose bytes were right.
    pub gates_right: u64,
    /// Gates whose bytes were wrong.
    pub gates_wrong: u64,
    /// When it ended, in virtual nanoseconds.
    pub ended_ns: u64,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkReport {
    /// The ranks, in order.
    pub ranks: Vec<RankReport>,
    /// Gates that the script passes.
    pub planned_gates: u64,
    /// When a fault last did something, in virtual nanoseconds.
    pub struck_ns: Option<u64>,
    /// The faults that did something, by their names.
    pub struck: Vec<&'static str>,
}

/// What must never be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Breach {
    /// A rank took wrong bytes for right.
    WrongBytes {
        /// Which.
        rank: u32,
    },
    /// A rank is in an error that names no rank of the group.
    Nameless {
        /// Which.
        rank: u32,
    },
    /// One rank has an error, another has neither an error nor everything.
    OneSided {
        /// The one without.
        rank: u32,
    },
    /// A rank ended too long after the last fault, or never.
    Late {
        /// Which.
        rank: u32,
    },
    /// No fault did anything, and yet the run failed.
    FailedUnprovoked {
        /// Which rank failed.
        rank: u32,
    },
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WrongBytes { rank } => write!(f, "rank {rank} took wrong bytes for right"),
            Self::Nameless { rank } => write!(f, "rank {rank}'s error names no rank"),
            Self::OneSided { rank } => write!(
                f,
                "rank {rank} has neither an error nor everything, while another rank failed"
            ),
            Self::Late { rank } => write!(f, "rank {rank} ended too late or not at all"),
            Self::FailedUnprovoked { rank } => {
                write!(f, "rank {rank} failed although nothing went wrong")
            }
        }
    }
}

impl LinkReport {
    /// Whether every rank that lives has all bytes of all gates.
    #[must_use]
    pub fn complete(&self) -> bool {
        let all = |rank: &&RankReport| rank.gates_right == self.planned_gates;
        let living = self.ranks.iter().filter(|rank| !rank.killed);
        living.clone().count() > 0 && living.filter(|rank| !all(rank)).count() == 0
    }

    /// What broke the rule: either all ranks have the right bytes, or all have an error that names
    /// rank, layer, gate and sequence, within the deadline.
    #[must_use]
    pub fn breach(&self) -> Option<Breach> {
        let complete = self.complete();
        let count = u32::try_from(self.ranks.len()).unwrap_or(u32::MAX);
        let mut ranks = (0..).zip(&self.ranks);
        if let Some((rank, _)) = ranks.find(|(_, report)| report.gates_wrong > 0) {
            return Some(Breach::WrongBytes { rank });
        }
        for (rank, report) in (0..).zip(&self.ranks) {
            if report.killed {
                continue;
            }
            if let Some(error) = &report.error {
                if error.rank >= count {
                    return Some(Breach::Nameless { rank });
                }
                if self.struck_ns.is_none() {
                    return Some(Breach::FailedUnprovoked { rank });
                }
            } else if !complete {
                return Some(Breach::OneSided { rank });
            }
            let limit = self
                .struck_ns
                .unwrap_or(report.ended_ns)
                .saturating_add(END_NS);
            if report.ended_ns > limit {
                return Some(Breach::Late { rank });
            }
        }
        None
    }
}

/// A rank's clock: it begins anywhere and runs a little fast or slow.
#[derive(Clone, Copy, Debug)]
pub(super) struct Skew {
    start: u64,
    per_mille: u64,
}

impl Skew {
    pub(super) fn local(self, now: u64) -> Time {
        Time(self.start + now / 1000 * self.per_mille + now % 1000)
    }

    /// A global time at which the local clock shows at least `local`.
    fn global(self, local: Time) -> u64 {
        if local == Time::NEVER {
            return u64::MAX;
        }
        let passed = local.0.saturating_sub(self.start);
        (passed / self.per_mille + 2).saturating_mul(1000)
    }
}

#[derive(Debug)]
pub(super) struct Node {
    pub(super) session: Session,
    pub(super) actor: Actor,
    pub(super) skew: Skew,
    steps: u64,
    wakes_at: u64,
    killed: bool,
    ended_at: Option<u64>,
    pub(super) group: Option<SessionId>,
}

#[derive(Debug)]
pub(super) enum Bring {
    Shaking(Box<(Listener, Dialer)>),
    Over,
}

/// A connection: the higher rank dials.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) listener: u32,
    pub(super) dialer: u32,
    pub(super) channel: Channel,
    pub(super) up: Pipe,
    pub(super) down: Pipe,
    pub(super) shaking: [bool; 2],
    pub(super) closed: [bool; 2],
    pub(super) bring: Bring,
}

/// Runs a plan to its end.
#[must_use]
pub fn run_links(plan: &LinkPlan) -> LinkReport {
    World::new(plan).run()
}

pub(super) struct World<'a> {
    plan: &'a LinkPlan,
    draw: Draw,
    pub(super) now: u64,
    pub(super) nodes: Vec<Node>,
    pub(super) connections: Vec<Connection>,
    struck_at: Option<u64>,
    struck: Vec<&'static str>,
    planned_gates: u64,
}

impl<'a> World<'a> {
    fn new(plan: &'a LinkPlan) -> Self {
        let mut draw = Draw::new(plan.seed);
        let geometry = SlabGeometry {
            n_layer: plan.n_layer,
            n_embd: plan.n_embd,
            ranks: plan.ranks,
        };
        #[expect(clippy::expect_used, reason = "a plan's geometry is a few vectors")]
        let (layout, schedule) = (
            SlabLayout::aligned(geometry).expect("a small slab"),
            Schedule::every_gate(plan.n_layer).expect("a small schedule"),
        );
        let identity = Identity {
            n_vocab: VOCAB,
            split_logits: true,
            payload_crc: plan.payload_crc,
            ..Identity::new(layout, schedule)
        };
        let nodes: Vec<Node> = (0..plan.ranks)
            .map(|rank| {
                let skew = if plan.skewed_clocks {
                    Skew {
                        start: draw.below(1 << 40),
                        per_mille: 980 + draw.below(41),
                    }
                } else {
                    Skew {
                        start: 0,
                        per_mille: 1000,
                    }
                };
                let config = Config {
                    context: CONTEXT.cast_unsigned(),
                    transports: TransportSet::of(&[Transport::Shm, Transport::Tcp]),
                    deadlines: DEADLINES,
                    ..Config::new(rank, identity)
                };
                Node {
                    session: Session::with_ways(skew.local(0), config, plan.ways),
                    actor: Actor::new(rank, layout, schedule, plan.seed, plan.tokens),
                    skew,
                    steps: 0,
                    wakes_at: 0,
                    killed: false,
                    ended_at: None,
                    group: (rank == 0).then(|| draw.bytes()),
                }
            })
            .collect();
        let planned_gates = nodes.first().map_or(0, |node| node.actor.planned_gates());
        let mut world = Self {
            plan,
            draw,
            now: 0,
            nodes,
            connections: Vec::new(),
            struck_at: None,
            struck: Vec::new(),
            planned_gates,
        };
        for dialer in 1..plan.ranks {
            world.dial(0, dialer, Channel::Control, [0; 16]);
        }
        world
    }

    fn dial(&mut self, listener: u32, dialer: u32, channel: Channel, session: SessionId) {
        let Some(group) = self.node(listener).group else {
            return;
        };
        let key = Key::new([42; 32]);
        let dial = Dial {
            channel,
            own: dialer,
            peer: listener,
            ranks: self.plan.ranks,
            session,
        };
        let (here, there) = (self.draw.bytes(), self.draw.bytes());
        let shaking = (
            Listener::new(key.clone(), listener, self.plan.ranks, group, here),
            Dialer::new(key, dial, there),
        );
        let (up, down) = (
            self.pipe(dialer, listener, channel),
            self.pipe(listener, dialer, channel),
        );
        self.connections.push(Connection {
            listener,
            dialer,
            channel,
            up,
            down,
            shaking: [true, true],
            closed: [false, false],
            bring: Bring::Shaking(Box::new(shaking)),
        });
    }

    fn pipe(&mut self, from: u32, to: u32, channel: Channel) -> Pipe {
        let faults = self.plan.link_faults.iter();
        let faults = faults
            .filter(|fault| (fault.from, fault.to, fault.channel) == (from, to, channel))
            .map(|fault| (fault.segment, fault.kind))
            .collect();
        Pipe::new(
            Draw::new(self.draw.next()),
            self.plan.latency_ns,
            self.plan.jitter_ns,
            self.plan.segment_bytes,
            faults,
        )
    }

    fn node(&mut self, rank: u32) -> &mut Node {
        &mut self.nodes[rank as usize]
    }

    fn run(mut self) -> LinkReport {
        for _ in 0..ROUNDS_MAX {
            let mut moved = false;
            for rank in 0..self.plan.ranks {
                moved |= self.step(rank);
            }
            if moved {
                continue;
            }
            if self.nodes.iter().all(|node| node.ended_at.is_some()) {
                break;
            }
            match self.next_time() {
                Some(next) => self.now = next,
                None => break,
            }
        }
        let pipes = self.connections.iter().flat_map(|it| [&it.up, &it.down]);
        let struck_ns = pipes.clone().filter_map(|pipe| pipe.struck_at).max();
        let struck_ns = struck_ns.max(self.struck_at);
        let faults = pipes.flat_map(|pipe| &pipe.struck);
        self.struck.extend(faults.map(|kind| kind.name()));
        let ranks = self.nodes.iter().map(|node| RankReport {
            killed: node.killed,
            phase: node.session.phase(),
            error: node.session.error().cloned(),
            gates_right: node.actor.gates_right,
            gates_wrong: node.actor.gates_wrong,
            ended_ns: node.ended_at.unwrap_or(u64::MAX),
        });
        LinkReport {
            ranks: ranks.collect(),
            planned_gates: self.planned_gates,
            struck_ns,
            struck: self.struck,
        }
    }

    fn next_time(&self) -> Option<u64> {
        let pipes = self.connections.iter().flat_map(|it| [&it.up, &it.down]);
        let arrivals = pipes.filter_map(|pipe| pipe.next_arrival(self.now));
        let living = self.nodes.iter().filter(|node| node.ended_at.is_none());
        let wakes = living.flat_map(|node| {
            let due = node.skew.global(node.session.next_deadline());
            let over = if node.session.error().is_some() {
                // Its last words are given some time.
                self.now.saturating_add(DEADLINES.close_ns)
            } else {
                u64::MAX
            };
            [
                due.max(node.wakes_at),
                over.max(node.wakes_at),
                node.wakes_at,
            ]
        });
        arrivals
            .chain(wakes)
            .filter(|at| *at > self.now && *at != u64::MAX)
            .min()
    }

    /// One look of a rank at everything it has; true when something happened.
    fn step(&mut self, rank: u32) -> bool {
        let now = self.now;
        if self.node(rank).ended_at.is_some() || now < self.node(rank).wakes_at {
            return false;
        }
        let step = self.node(rank).steps;
        self.node(rank).steps += 1;
        let faults = self.plan.rank_faults.iter();
        let fault = faults
            .filter(|fault| fault.rank == rank && fault.step == step)
            .map(|fault| fault.kind)
            .next();
        self.struck.extend(fault.map(RankFaultKind::name));
        match fault {
            Some(RankFaultKind::Kill) => {
                self.struck_at = Some(now);
                self.node(rank).killed = true;
                self.end(rank);
                return true;
            }
            Some(RankFaultKind::Stop { ns }) => {
                let wakes_at = now + ns;
                // What it does to the others may begin only when it wakes.
                self.struck_at = Some(wakes_at);
                self.node(rank).wakes_at = wakes_at;
                return true;
            }
            None => {}
        }
        let mut moved = false;
        for index in 0..self.connections.len() {
            moved |= self.serve(rank, index);
        }
        let node = self.node(rank);
        let local = node.skew.local(now);
        node.session.handle_time(local);
        moved |= node.actor.heed(local, &mut node.session);
        loop {
            match node.actor.act(local, &mut node.session) {
                Ok(true) => moved = true,
                Ok(false) => break,
                Err(error) => {
                    node.session.abort(local, &error.cause.to_string());
                    break;
                }
            }
        }
        moved |= self.dial_data(rank);
        let node = self.node(rank);
        if node.actor.ended && node.session.is_over(node.skew.local(now)) {
            self.end(rank);
            moved = true;
        }
        moved
    }

    /// A worker that knows the session dials the data connections.
    fn dial_data(&mut self, rank: u32) -> bool {
        let mut dialled = false;
        for listener in 0..rank {
            let (Some(session), Some(_)) = (self.node(rank).group, self.node(listener).group)
            else {
                continue;
            };
            let there = self
                .connections
                .iter()
                .any(|it| (it.listener, it.dialer, it.channel) == (listener, rank, Channel::Data));
            if !there && self.node(listener).ended_at.is_none() {
                self.dial(listener, rank, Channel::Data, session);
                dialled = true;
            }
        }
        dialled
    }

    fn end(&mut self, rank: u32) {
        self.node(rank).ended_at = Some(self.now);
        for connection in &mut self.connections {
            if connection.listener == rank {
                connection.down.close(self.now);
            }
            if connection.dialer == rank {
                connection.up.close(self.now);
            }
        }
    }
}
