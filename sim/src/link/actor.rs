//! The application of a rank: the leader runs a script, a worker does as it is told.

use std::collections::VecDeque;

use ds4_engine::tp::command::{Item, Items, Message, Tokens};
use ds4_engine::tp::error::TpError;
use ds4_engine::tp::exchange::Way;
use ds4_engine::tp::reduce::sum_in_order;
use ds4_engine::tp::schedule::{Gate, GateKind, Schedule, Work};
use ds4_engine::tp::session::{Event, Session};
use ds4_engine::tp::slab::SlabLayout;
use ds4_engine::tp::time::Time;
use ds4_engine::tp::transport::TransportSet;

use super::plan::Draw;

/// One session suffices: several would pass the same gates.
const SESSION: u64 = 1;
pub(super) const CONTEXT: i32 = 4096;
pub(super) const VOCAB: u32 = 64;

#[derive(Clone, Debug)]
enum Task {
    Create,
    Prompt(Vec<i32>),
    Token(i32),
    Batch(u32),
    Verify(u32),
    Commit { full: bool, replay: i32 },
    Rewind(i32),
    Destroy,
    Gate(Gate),
    Ack(u64),
    Logits,
    Await(u32),
    CheckStep(u64),
    AwaitStep,
    Stop,
}

/// The gate under way.
#[derive(Clone, Copy, Debug)]
struct Under {
    gate: Gate,
    count: u64,
    way: Way,
}

/// A rank's application.
#[derive(Debug)]
pub(super) struct Actor {
    rank: u32,
    ranks: u32,
    layout: SlabLayout,
    schedule: Schedule,
    tasks: VecDeque<Task>,
    answers: u32,
    steps: u32,
    /// The own part; where it goes round, then the sum.
    pub(super) out: Vec<u8>,
    /// The buffers of the peers' bytes, by the peer's rank.
    pub(super) incoming: Vec<Vec<u8>>,
    under: Option<Under>,
    /// Gates whose bytes were right.
    pub(super) gates_right: u64,
    /// Gates whose bytes were wrong: none, ever.
    pub(super) gates_wrong: u64,
    ready: bool,
    pub(super) ended: bool,
}

impl Actor {
    pub(super) fn new(
        rank: u32,
        layout: SlabLayout,
        schedule: Schedule,
        seed: u64,
        tokens: u32,
    ) -> Self {
        let ranks = layout.geometry().ranks;
        let mut actor = Self {
            rank,
            ranks,
            layout,
            schedule,
            tasks: VecDeque::new(),
            answers: 0,
            steps: 0,
            out: Vec::new(),
            incoming: vec![Vec::new(); ranks as usize],
            under: None,
            gates_right: 0,
            gates_wrong: 0,
            ready: false,
            ended: false,
        };
        if rank == 0 {
            actor.script(&mut Draw::new(seed ^ 0x5eed), tokens);
        }
        actor
    }

    /// What the leader does from the first command to the stop.
    fn script(&mut self, draw: &mut Draw, tokens: u32) {
        let token = |draw: &mut Draw| draw.small(VOCAB).cast_signed();
        let workers = self.ranks - 1;
        let mut checks = 0;
        let prompt: Vec<i32> = (0..1 + draw.below(6)).map(|_| token(draw)).collect();
        let bytes = prompt.len() as u64 * self.layout.vec_bytes();
        self.tasks.push_back(Task::Create);
        self.tasks.push_back(Task::Await(workers));
        self.tasks.push_back(Task::Prompt(prompt));
        self.plan_gates(Work::Prompt { bytes });
        self.tasks.push_back(Task::Await(2 * workers));
        for _ in 0..tokens {
            let next = token(draw);
            self.tasks.push_back(Task::Token(next));
            self.plan_gates(Work::Token);
            self.tasks.push_back(Task::Await(workers));
            match draw.below(5) {
                0 => {
                    let rows = 1 + draw.small(11);
                    self.tasks.push_back(Task::Batch(rows));
                    self.plan_gates(Work::Batch { rows });
                    self.tasks.push_back(Task::Await((rows + 1) * workers));
                }
                1 => {
                    let drafts = 1 + draw.small(8);
                    let kept = draw.small(drafts + 1);
                    self.tasks.push_back(Task::Verify(drafts));
                    self.plan_gates(Work::Batch { rows: drafts });
                    let replay = if kept == drafts { 0 } else { kept };
                    self.tasks.push_back(Task::Commit {
                        full: kept == drafts,
                        replay: replay.cast_signed(),
                    });
                    for _ in 0..replay {
                        self.plan_gates(Work::Token);
                    }
                    if replay > 0 {
                        self.tasks.push_back(Task::Await(workers));
                    }
                }
                2 => self.tasks.push_back(Task::Rewind(1)),
                3 => {
                    checks += 1;
                    self.tasks.push_back(Task::CheckStep(checks));
                    self.tasks.push_back(Task::AwaitStep);
                }
                _ => {}
            }
        }
        self.tasks.push_back(Task::Destroy);
        self.tasks.push_back(Task::Await(workers));
        self.tasks.push_back(Task::Stop);
    }

    /// How many gates the script passes.
    pub(super) fn planned_gates(&self) -> u64 {
        let is_gate = |task: &&Task| matches!(task, Task::Gate(_));
        self.tasks.iter().filter(is_gate).count() as u64
    }

    fn plan_gates(&mut self, work: Work) {
        self.tasks.extend(self.schedule.gates(work).map(Task::Gate));
    }

    /// Takes the session's events; true when there were any.
    pub(super) fn heed(&mut self, now: Time, session: &mut Session) -> bool {
        let mut any = false;
        let mut proved = None;
        while let Some(event) = session.poll_event(now) {
            any = true;
            match event {
                Event::Probe(set) => proved = Some(set),
                Event::Ready(_) => self.ready = true,
                Event::Message { message, .. } => self.heed_message(&message),
                Event::InStep { .. } => self.steps += 1,
                Event::CheckStep { seq, .. } => self.tasks.push_back(Task::CheckStep(seq)),
                Event::Finished | Event::Failed(_) => self.ended = true,
            }
        }
        if let Some(set) = proved {
            session.vote(now, set.and(TransportSet::from_bits(u32::MAX)));
        }
        any
    }

    fn heed_message(&mut self, message: &Message<'_>) {
        match *message {
            Message::Ack { .. } | Message::Logits(_) => self.answers += 1,
            Message::SessionCreate { session, .. } | Message::SessionDestroy { session } => {
                self.tasks.push_back(Task::Ack(session));
            }
            Message::Sync { session, tokens } => {
                let bytes = tokens.len() as u64 * self.layout.vec_bytes();
                self.plan_gates(Work::Prompt { bytes });
                self.tasks.push_back(Task::Ack(session));
                self.tasks.push_back(Task::Logits);
            }
            Message::Eval { .. } => {
                self.plan_gates(Work::Token);
                self.tasks.push_back(Task::Logits);
            }
            Message::EvalBatch { items } => {
                let rows = u32::try_from(items.len()).unwrap_or(0);
                self.plan_gates(Work::Batch { rows });
                self.tasks.push_back(Task::Ack(0));
                self.tasks.extend((0..rows).map(|_| Task::Logits));
            }
            Message::Verify { drafts, .. } => {
                let rows = u32::try_from(drafts.len()).unwrap_or(0);
                self.plan_gates(Work::Batch { rows });
            }
            Message::VerifyCommit { replay, .. } => {
                for _ in 0..replay {
                    self.plan_gates(Work::Token);
                }
                if replay > 0 {
                    self.tasks.push_back(Task::Logits);
                }
            }
            Message::Rewind { .. } => {
                // The leader checks the state only between tokens; nothing to do here.
            }
            Message::MixedBatch { .. }
            | Message::Invalidate { .. }
            | Message::Stop
            | Message::StopAck
            | Message::Hash { .. } => {}
        }
    }

    /// Does what can be done without waiting; true when something was.
    pub(super) fn act(&mut self, now: Time, session: &mut Session) -> Result<bool, TpError> {
        if let Some(under) = self.under {
            if session.in_gate() || session.error().is_some() {
                return Ok(false);
            }
            self.under = None;
            self.judge(under);
        }
        let Some(task) = self.tasks.front().filter(|_| self.ready).cloned() else {
            return Ok(false);
        };
        match &task {
            Task::Await(count) => {
                if self.answers < *count {
                    return Ok(false);
                }
                self.answers -= *count;
            }
            Task::AwaitStep => {
                if self.steps < self.ranks - 1 {
                    return Ok(false);
                }
                self.steps = 0;
            }
            Task::Gate(gate) => {
                let gate = *gate;
                self.begin(now, gate, session)?;
            }
            Task::Stop => session.stop(now)?,
            Task::CheckStep(seq) => {
                session.check_step(now, *seq, session.tokens(SESSION).unwrap_or(0))?;
            }
            Task::Ack(session_number) => {
                let message = Message::Ack {
                    session: *session_number,
                    status: 0,
                };
                session.answer(now, &message)?;
            }
            Task::Logits => {
                let (start, end) = session.logits_share(self.rank);
                let share = vec![7; (end - start) as usize * 4];
                session.answer(now, &Message::Logits(&share))?;
            }
            Task::Create
            | Task::Prompt(_)
            | Task::Token(_)
            | Task::Batch(_)
            | Task::Verify(_)
            | Task::Commit { .. }
            | Task::Rewind(_)
            | Task::Destroy => send(now, &task, session)?,
        }
        self.tasks.pop_front();
        Ok(true)
    }

    fn begin(&mut self, now: Time, gate: Gate, session: &mut Session) -> Result<(), TpError> {
        let bytes = match gate.kind {
            GateKind::Row => self.layout.vec_bytes(),
            GateKind::Batch { rows } => self
                .layout
                .batch_out(gate.layer, rows)
                .map_or(0, |span| span.bytes),
            GateKind::Big { bytes } => bytes,
        };
        let bytes = usize::try_from(bytes).unwrap_or(0);
        // The sequence number is known only afterwards; the count of gates serves the pattern.
        let count = session.gates_done();
        fill(&mut self.out, bytes, self.rank, gate, count);
        for buffer in &mut self.incoming {
            buffer.clear();
            buffer.resize(bytes, 0xee);
        }
        let way = session.way(bytes);
        match way {
            Way::OneShot => session.gate_begin(now, gate, &self.out)?,
            Way::Ring => session.ring_begin(now, gate, &self.out)?,
        };
        self.under = Some(Under { gate, count, way });
        Ok(())
    }

    /// Whether bytes go round just now.
    pub(super) fn in_ring(&self) -> bool {
        self.under.is_some_and(|under| under.way == Way::Ring)
    }

    fn judge(&mut self, under: Under) {
        let Under { gate, count, way } = under;
        let part = |peer, bytes| {
            let mut part = Vec::new();
            fill(&mut part, bytes, peer, gate, count);
            part
        };
        let right = match way {
            Way::OneShot => (0..)
                .zip(&self.incoming)
                .filter(|(peer, _)| *peer != self.rank)
                .all(|(peer, found)| part(peer, found.len()) == *found),
            Way::Ring => {
                let bytes = self.out.len();
                let parts: Vec<Vec<u8>> = (0..self.ranks).map(|peer| part(peer, bytes)).collect();
                let mut sum = vec![0; bytes];
                sum_in_order(&mut sum, parts.iter().map(Vec::as_slice));
                sum == self.out
            }
        };
        if right {
            self.gates_right += 1;
        } else {
            self.gates_wrong += 1;
        }
    }
}

fn send(now: Time, task: &Task, session: &mut Session) -> Result<(), TpError> {
    match task {
        Task::Create => session.command(
            now,
            &Message::SessionCreate {
                session: SESSION,
                context: CONTEXT,
            },
        ),
        Task::Prompt(tokens) => {
            let tokens = Tokens::new(tokens);
            session.command(
                now,
                &Message::Sync {
                    session: SESSION,
                    tokens,
                },
            )
        }
        Task::Token(token) => {
            let seq = session.next_eval();
            session.command(
                now,
                &Message::Eval {
                    session: SESSION,
                    seq,
                    token: *token,
                },
            )
        }
        Task::Batch(rows) => {
            let item = Item {
                session: SESSION,
                token: 3,
            };
            let items = vec![item; *rows as usize];
            let items = Items::new(&items);
            session.command(now, &Message::EvalBatch { items })
        }
        Task::Verify(drafts) => {
            let drafts = vec![5; *drafts as usize];
            let drafts = Tokens::new(&drafts);
            session.command(
                now,
                &Message::Verify {
                    session: SESSION,
                    drafts,
                },
            )
        }
        Task::Commit { full, replay } => session.command(
            now,
            &Message::VerifyCommit {
                full: *full,
                replay: *replay,
            },
        ),
        Task::Rewind(position) => session.command(
            now,
            &Message::Rewind {
                session: SESSION,
                position: *position,
            },
        ),
        Task::Destroy => session.command(now, &Message::SessionDestroy { session: SESSION }),
        Task::Gate(_)
        | Task::Ack(_)
        | Task::Logits
        | Task::Await(_)
        | Task::CheckStep(_)
        | Task::AwaitStep
        | Task::Stop => Ok(()),
    }
}

/// Bytes that no other rank, gate or time has: small numbers, whose sums depend on their order.
fn fill(buffer: &mut Vec<u8>, bytes: usize, rank: u32, gate: Gate, count: u64) {
    let place = u64::from(gate.layer) << 32 | u64::from(rank) << 8 | u64::from(gate.name.code());
    let mut draw = Draw::new(place ^ count.wrapping_mul(0x0100_0000_01b3));
    buffer.clear();
    while buffer.len() < bytes {
        // Exponents below that of 2: finite, and so are the sums of all ranks.
        let numbers = draw.next() & 0xbfff_ffff_bfff_ffff;
        buffer.extend_from_slice(&numbers.to_le_bytes());
    }
    buffer.truncate(bytes);
}
