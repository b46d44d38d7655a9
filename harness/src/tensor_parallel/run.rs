//! A rank at work: the leader asks, all pass the gates, every sum is verified.

mod collective;

use std::sync::Arc;

use ds4_engine::alloc::Allocation;
use ds4_engine::backend::{Backend, BackendError};
use ds4_engine::device::DeviceAddress;
use ds4_engine::slab_memory::allocate_slab;
use ds4_engine::tp::command::{Message, Tokens};
use ds4_engine::tp::error::Cause;
use ds4_engine::tp::exchange::Way;
use ds4_engine::tp::frame::GATE_BYTES_MAX;
use ds4_engine::tp::reduce::sum_in_order;
use ds4_engine::tp::schedule::{Gate, GateKind, Schedule, Work};
use ds4_engine::tp::session::Dialect;
use ds4_engine::tp::slab::{GATES_PER_LAYER, SlabLayout, Span};
use ds4_engine::tp::transport::Transport;
use ds4_engine::tp::trust::Key;
use ds4_engine::transport::{LinkError, Listening, Mail, Rank, Said, Setup};

pub(super) use collective::load as load_library;
use collective::{Spare, seat};

use super::pattern::Place;
use super::plan::{Plan, refuse_open_door};
use super::report::{Figures, Finished, report};
use crate::exit::Exit;
use crate::output::{Console, Failure, Outcome};
use crate::stopwatch::Stopwatch;

/// The one session of a run.
const SESSION: u64 = 1;
/// Tokens of the prompt, whose vectors pass each gate at once.
const PROMPT: usize = 8;
/// The most tokens of a prompt whose vectors a rank holds at once, as many as the reference's region for
/// them: a command of a few bytes a token must not take the memory of all their vectors at its word.
const PROMPT_MAX: usize = 8192;
/// Drafts that are judged in one batch at the end.
const DRAFTS: u32 = 3;

/// Brings the rank up, runs it to its end and reports.
///
/// # Errors
/// [`Failure`]: it did not come up, or no memory for its slab.
pub fn run_rank(plan: Plan, console: &Console) -> Result<Outcome, Failure> {
    for note in &plan.notes {
        console.remark(note);
    }
    let layout = plan.config.identity.layout;
    let target = plan.machine.fresh()?;
    let allocator = plan.machine.allocator(&target, None)?;
    let slab =
        allocate_slab(&allocator, &layout, plan.machine.placement()).map_err(Failure::failed)?;
    let listening = listen(&plan, console)?;
    let key = plan.key.clone().unwrap_or_else(Key::public);
    if plan.key.is_none() {
        console.remark("no key: whoever reaches the ranks' ports can take part");
    }
    let setup = Setup {
        config: plan.config,
        key,
        encrypt: plan.encrypt,
        listening,
        remotes: plan.remotes.clone(),
        wait: plan.wait,
        buffer_bytes: None,
        rdma: plan.rdma.clone(),
        collective: seat(&plan, &target, &slab),
        stop: Arc::clone(console.stop()),
    };
    let rank = Rank::open(setup, &mut |notice| console.remark(notice));
    let stuck = || plan.library.as_ref().is_some_and(|it| it.is_stuck());
    let rank = match rank {
        Ok(rank) => rank,
        Err(error) => {
            if stuck() {
                // Freeing would wait for work that never ends.
                std::mem::forget(allocator);
            }
            return Err(Failure {
                exit: exit(&error),
                message: error.to_string(),
            });
        }
    };
    let (transport, reason) = rank.chosen();
    console.remark(&format!("gates travel by {transport}: {reason}"));
    if plan.encrypt {
        console.remark(if transport == Transport::Tcp {
            "all connections are encrypted"
        } else {
            "commands and answers are encrypted; gates do not leave this host"
        });
    }
    let chosen = (transport, reason.to_owned());
    let mut worker = Worker {
        memory: Memory {
            backend: Arc::clone(target.backend()),
            slab,
            layout,
            spare: Spare::none(&allocator),
        },
        schedule: plan.config.identity.schedule,
        figures: Figures::default(),
        out: Vec::new(),
        incoming: vec![Vec::new(); (layout.geometry().ranks as usize).saturating_sub(1)],
        sum: Vec::new(),
        logits: Vec::new(),
        splits: plan.config.identity.split_logits,
        verifies: plan.config.dialect == Dialect::Native,
        rank,
        console,
    };
    let watch = Stopwatch::start();
    let ended = if plan.config.rank == 0 {
        worker.lead(plan.tokens, plan.hash_every)
    } else {
        worker.follow()
    };
    worker.figures.seconds = watch.elapsed_ns();
    let ended = ended.map_err(|end| match end {
        End::Link(error) => (exit(&error), error.to_string()),
        End::Wrong(what) => {
            worker.rank.abort(&what);
            (Exit::CheckFailed, what)
        }
        End::Device(error) => {
            let what = format!("the slab's device failed: {error}");
            worker.rank.abort(&what);
            (Exit::CheckFailed, what)
        }
    });
    let figures = std::mem::take(&mut worker.figures);
    drop(worker);
    if stuck() {
        std::mem::forget(allocator);
    }
    let finished = Finished {
        plan: &plan,
        transport: chosen.0,
        reason: chosen.1,
        figures,
        ended,
    };
    Ok(report(&finished, console))
}

fn listen(plan: &Plan, console: &Console) -> Result<Option<Listening>, Failure> {
    let Some(place) = &plan.listen else {
        return Ok(None);
    };
    let listening = Listening::open(&place.host, place.port).map_err(Failure::failed)?;
    let addresses = listening.addresses();
    let ips: Vec<_> = addresses.iter().map(std::net::SocketAddr::ip).collect();
    refuse_open_door(&ips, plan)?;
    let shown: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    console.remark(&format!("waiting for ranks on {}", shown.join(" and ")));
    Ok(Some(listening))
}

fn exit(error: &LinkError) -> Exit {
    let LinkError::Session(error, _) = error else {
        return Exit::CheckFailed;
    };
    if matches!(&error.cause, Cause::Deadline { .. }) {
        return Exit::Deadline;
    }
    if matches!(&error.cause, Cause::Local(why) if why == "interrupted") {
        return Exit::Interrupted;
    }
    Exit::CheckFailed
}

/// Why a run ended before its time.
enum End {
    Link(LinkError),
    Wrong(String),
    Device(BackendError),
}

impl From<LinkError> for End {
    fn from(error: LinkError) -> Self {
        Self::Link(error)
    }
}

impl From<BackendError> for End {
    fn from(error: BackendError) -> Self {
        Self::Device(error)
    }
}

/// The slab on its device.
struct Memory<'a> {
    backend: Arc<dyn Backend>,
    slab: Allocation,
    layout: SlabLayout,
    spare: Spare<'a>,
}

impl Memory<'_> {
    fn write(&self, span: Span, bytes: &[u8]) -> Result<(), BackendError> {
        self.backend
            .write(self.slab.device, self.address(span), bytes)
    }

    fn read(&self, span: Span, bytes: &mut [u8]) -> Result<(), BackendError> {
        self.backend
            .read(self.slab.device, self.address(span), bytes)
    }

    const fn address(&self, span: Span) -> DeviceAddress {
        DeviceAddress(self.slab.address.0 + span.offset)
    }

    /// Where a gate's own part lies; nowhere for a big gate.
    fn out(&self, gate: Gate) -> Option<Span> {
        match gate.kind {
            GateKind::Row => self.layout.out_vector(slot(gate)),
            GateKind::Batch { rows } => self.layout.batch_out(gate.layer, rows),
            GateKind::Big { .. } => None,
        }
    }

    /// Where a peer's part lies.
    fn incoming(&self, gate: Gate, peer: u32) -> Option<Span> {
        match gate.kind {
            GateKind::Row => self.layout.in_vector(slot(gate), peer),
            GateKind::Batch { rows } => self.layout.batch_in(gate.layer, rows, peer),
            GateKind::Big { .. } => None,
        }
    }
}

/// The bytes of a gate that a prompt passes: as many vectors of the own width as it has tokens.
fn prompt_bytes(layout: &SlabLayout, tokens: usize) -> Result<u64, String> {
    if tokens > PROMPT_MAX {
        return Err(format!(
            "a prompt of {tokens} tokens; this rank has room for the vectors of {PROMPT_MAX} at once"
        ));
    }
    Ok(layout.vec_bytes().saturating_mul(tokens as u64))
}

fn slot(gate: Gate) -> u64 {
    u64::from(gate.layer) * u64::from(GATES_PER_LAYER) + u64::from(gate.name.code())
}

/// A rank, its memory and what it has seen.
struct Worker<'a> {
    rank: Rank,
    memory: Memory<'a>,
    schedule: Schedule,
    figures: Figures,
    out: Vec<u8>,
    incoming: Vec<Vec<u8>>,
    sum: Vec<u8>,
    logits: Vec<u8>,
    /// Whether the peers send what anybody can compute.
    verifies: bool,
    /// Whether each rank sends its share of the logits.
    splits: bool,
    console: &'a Console,
}

impl Worker<'_> {
    fn lead(&mut self, tokens: u64, hash_every: u64) -> Result<(), End> {
        let context = i32::try_from(tokens).unwrap_or(i32::MAX).saturating_add(64);
        self.rank.command(&Message::SessionCreate {
            session: SESSION,
            context,
        })?;
        self.await_answers(true, false)?;
        let prompt: Vec<i32> = (0..PROMPT as u64).map(|index| self.token(index)).collect();
        self.rank.command(&Message::Sync {
            session: SESSION,
            tokens: Tokens::new(&prompt),
        })?;
        self.prompt(prompt.len())?;
        self.await_answers(true, true)?;
        let bar = self.console.progress(tokens, "tokens");
        for index in 0..tokens {
            let (seq, token) = (self.rank.session().next_eval(), self.token(index));
            self.rank.command(&Message::Eval {
                session: SESSION,
                seq,
                token,
            })?;
            let watch = Stopwatch::start();
            self.work(Work::Token)?;
            self.await_answers(false, true)?;
            self.figures.tokens += 1;
            self.figures.token_ns += watch.elapsed_ns();
            if self.verifies && (index + 1) % hash_every == 0 {
                self.check_step(self.figures.gates)?;
            }
            bar.inc(1);
        }
        bar.finish_and_clear();
        let drafts: Vec<i32> = (0..u64::from(DRAFTS))
            .map(|index| self.token(index))
            .collect();
        self.rank.command(&Message::Verify {
            session: SESSION,
            drafts: Tokens::new(&drafts),
        })?;
        self.work(Work::Batch { rows: DRAFTS })?;
        self.rank.command(&Message::VerifyCommit {
            full: false,
            replay: 1,
        })?;
        self.work(Work::Token)?;
        self.await_answers(false, true)?;
        self.rank.command(&Message::Rewind {
            session: SESSION,
            position: 1,
        })?;
        if self.verifies {
            self.check_step(self.figures.gates)?;
        }
        self.rank
            .command(&Message::SessionDestroy { session: SESSION })?;
        self.await_answers(true, false)?;
        self.rank.finish()?;
        Ok(())
    }

    fn follow(&mut self) -> Result<(), End> {
        loop {
            match self.rank.hear()? {
                Said::Message(mail) => {
                    let done = self.obey(&mail);
                    self.rank.done_with(mail);
                    done?;
                }
                Said::CheckStep { seq, .. } => self.check_step(seq)?,
                Said::InStep { .. } | Said::Probe(_) | Said::Ready(_) => {}
                Said::Finished => {
                    self.rank.close();
                    return Ok(());
                }
            }
        }
    }

    fn obey(&mut self, mail: &Mail) -> Result<(), End> {
        let message = mail.message().ok_or_else(|| unexpected("a command"))?;
        match message {
            Message::SessionCreate { session, .. } | Message::SessionDestroy { session } => {
                self.acknowledge(session)
            }
            Message::Sync { session, tokens } => {
                self.prompt(tokens.len())?;
                self.acknowledge(session)?;
                self.send_logits()
            }
            Message::Eval { .. } => {
                let watch = Stopwatch::start();
                self.work(Work::Token)?;
                self.send_logits()?;
                self.figures.tokens += 1;
                self.figures.token_ns += watch.elapsed_ns();
                Ok(())
            }
            Message::Verify { drafts, .. } => self.batch(drafts.len()),
            Message::VerifyCommit { replay, .. } => {
                for _ in 0..replay {
                    self.work(Work::Token)?;
                }
                if replay > 0 {
                    self.send_logits()?;
                }
                Ok(())
            }
            Message::Rewind { .. } | Message::Invalidate { .. } => Ok(()),
            Message::EvalBatch { items } => {
                self.batch(items.len())?;
                self.acknowledge(0)?;
                (0..items.len()).try_for_each(|_| self.send_logits())
            }
            Message::MixedBatch {
                session,
                prompt,
                items,
            } => {
                self.prompt(prompt.len())?;
                self.batch(items.len())?;
                self.acknowledge(session)?;
                (0..=items.len()).try_for_each(|_| self.send_logits())
            }
            Message::Stop
            | Message::StopAck
            | Message::Hash { .. }
            | Message::Logits(_)
            | Message::Ack { .. } => Err(unexpected("a command that no leader here gives")),
        }
    }

    fn acknowledge(&mut self, session: u64) -> Result<(), End> {
        Ok(self.rank.answer(&Message::Ack { session, status: 0 })?)
    }

    /// The own share of the logits: numbers that the leader can compute too.
    fn send_logits(&mut self) -> Result<(), End> {
        if !self.splits {
            return Ok(());
        }
        let own = self.rank.session().rank();
        let mut logits = std::mem::take(&mut self.logits);
        logits.resize(share_bytes(&self.rank, own), 0);
        self.place().fill(own, &mut logits);
        let sent = self.rank.answer(&Message::Logits(&logits));
        self.logits = logits;
        Ok(sent?)
    }

    /// Waits for what every worker owes for the last command.
    fn await_answers(&mut self, ack: bool, logits: bool) -> Result<(), End> {
        let logits = logits && self.splits;
        let workers = u64::from(self.rank.session().ranks()) - 1;
        let mut missing = workers * (u64::from(ack) + u64::from(logits));
        while missing > 0 {
            let Said::Message(mail) = self.rank.hear()? else {
                continue;
            };
            match mail.message() {
                Some(Message::Ack { status: 0, .. }) => {}
                Some(Message::Ack { status, .. }) => {
                    return Err(End::Wrong(format!(
                        "rank {} could not do it: status {status}",
                        mail.peer
                    )));
                }
                Some(Message::Logits(share)) => {
                    let mut want = std::mem::take(&mut self.logits);
                    want.resize(share.len(), 0);
                    self.place().fill(mail.peer, &mut want);
                    let equal = want == share || !self.verifies;
                    self.logits = want;
                    if !equal {
                        return Err(End::Wrong(format!(
                            "rank {}: its share of the logits is wrong",
                            mail.peer
                        )));
                    }
                    self.figures.verified_bytes +=
                        if self.verifies { share.len() as u64 } else { 0 };
                }
                _ => return Err(unexpected("an answer")),
            }
            self.rank.done_with(mail);
            missing -= 1;
        }
        Ok(())
    }

    /// Compares what all sums so far come to with the peers.
    fn check_step(&mut self, seq: u64) -> Result<(), End> {
        self.rank.check_step(seq, self.figures.hash.finish())?;
        let mut missing = if self.rank.session().rank() == 0 {
            self.rank.session().ranks() - 1
        } else {
            1
        };
        while missing > 0 {
            match self.rank.hear()? {
                Said::InStep { .. } => missing -= 1,
                Said::Finished => return Err(unexpected("the end")),
                Said::Message(_) => return Err(unexpected("a command before the hash")),
                Said::CheckStep { .. } | Said::Probe(_) | Said::Ready(_) => {}
            }
        }
        self.figures.hashes += 1;
        Ok(())
    }

    fn prompt(&mut self, tokens: usize) -> Result<(), End> {
        let bytes = prompt_bytes(&self.memory.layout, tokens).map_err(End::Wrong)?;
        self.work(Work::Prompt { bytes })
    }

    fn batch(&mut self, rows: usize) -> Result<(), End> {
        let rows = u32::try_from(rows).unwrap_or(0);
        self.work(Work::Batch { rows })
    }

    fn work(&mut self, work: Work) -> Result<(), End> {
        for gate in self.schedule.gates(work) {
            self.pass(gate)?;
        }
        Ok(())
    }

    fn place(&self) -> Place {
        Place {
            gate: self.figures.gates,
        }
    }

    /// One gate: the own part as a device would have left it, the exchange, the verified sum.
    fn pass(&mut self, gate: Gate) -> Result<(), End> {
        let (own, ranks) = (self.rank.session().rank(), self.rank.session().ranks());
        let place = self.place();
        let span = self.memory.out(gate);
        let bytes = match (span, gate.kind) {
            (Some(span), _) => span.bytes,
            (None, GateKind::Big { bytes }) => bytes,
            (None, GateKind::Row | GateKind::Batch { .. }) => 0,
        };
        if bytes > u64::from(GATE_BYTES_MAX) {
            // Before memory is taken for it: the peer chose the number of its vectors.
            return Err(End::Wrong(format!(
                "{gate} has {bytes} bytes, and a gate at most {GATE_BYTES_MAX}"
            )));
        }
        let length = usize::try_from(bytes).unwrap_or(0);
        self.out.resize(length, 0);
        place.fill(own, &mut self.out);
        if let Some(span) = span {
            self.memory.write(span, &self.out)?;
            self.memory.read(span, &mut self.out)?;
        }
        let way = self.rank.session().way(length);
        let watch = match (self.rank.chosen().0, way) {
            (Transport::Nccl, _) => self.sum_by_library(gate)?,
            (_, Way::OneShot) => self.sum_parts(gate)?,
            (_, Way::Ring) => self.sum_in_ring(gate)?,
        };
        if gate.kind == GateKind::Row {
            self.figures.gate_ns.add(watch);
        }
        if self.verifies
            && let Err(wrong) = place.check(ranks, &self.sum)
        {
            return Err(End::Wrong(format!(
                "{gate}, number {}: the sum is {} instead of {} at place {}",
                self.figures.gates, wrong.got, wrong.want, wrong.index
            )));
        }
        if self.verifies {
            self.figures.verified_bytes += bytes * u64::from(ranks - 1);
        }
        let tail = self.sum.last_chunk::<8>();
        let tail = tail.map_or(0, |tail| u64::from_le_bytes(*tail));
        self.figures.hash.word(tail).word(place.gate);
        self.figures.gates += 1;
        Ok(())
    }

    /// Every peer's part comes into its place of the slab, and the sum is made from there. The time of
    /// the exchange comes back, in nanoseconds.
    fn sum_parts(&mut self, gate: Gate) -> Result<u64, End> {
        let (own, ranks) = (self.rank.session().rank(), self.rank.session().ranks());
        for incoming in &mut self.incoming {
            incoming.resize(self.out.len(), 0);
            incoming.fill(0xff);
        }
        let watch = Stopwatch::start();
        self.rank.exchange(gate, &self.out, &mut self.incoming)?;
        let watch = watch.elapsed_ns();
        for (peer, incoming) in (0..).zip(&mut self.incoming) {
            if let Some(span) = self.memory.incoming(gate, peer) {
                self.memory.write(span, incoming)?;
                self.memory.read(span, incoming)?;
            }
        }
        self.sum.resize(self.out.len(), 0);
        let parts = (0..ranks).filter_map(|rank| match rank.cmp(&own) {
            std::cmp::Ordering::Less => self.incoming.get(rank as usize),
            std::cmp::Ordering::Equal => Some(&self.out),
            std::cmp::Ordering::Greater => self.incoming.get(rank as usize - 1),
        });
        sum_in_order(&mut self.sum, parts.map(Vec::as_slice));
        Ok(watch)
    }

    /// The sum comes round and into the slab, to the place of the first peer's part.
    fn sum_in_ring(&mut self, gate: Gate) -> Result<u64, End> {
        self.sum.clone_from(&self.out);
        let watch = Stopwatch::start();
        self.rank.exchange_in_ring(gate, &mut self.sum)?;
        let watch = watch.elapsed_ns();
        if let Some(span) = self.memory.incoming(gate, 0) {
            self.memory.write(span, &self.sum)?;
            self.memory.read(span, &mut self.sum)?;
        }
        self.figures.ring_gates += 1;
        Ok(watch)
    }

    /// A token that both sides can name.
    fn token(&self, index: u64) -> i32 {
        let vocabulary = u64::from(self.rank.session().logits_share(u32::MAX).1).max(1);
        i32::try_from(index.wrapping_mul(7919) % vocabulary).unwrap_or(0)
    }
}

fn share_bytes(rank: &Rank, of: u32) -> usize {
    let (start, end) = rank.session().logits_share(of);
    (end.saturating_sub(start) as usize) * 4
}

fn unexpected(what: &str) -> End {
    End::Wrong(format!("{what} came that was not expected"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ds4_engine::tp::slab::SlabGeometry;

    #[test]
    fn the_longest_prompt_of_a_command_takes_no_memory() {
        let layout = SlabLayout::aligned(SlabGeometry::new(43, 4096)).unwrap();
        assert_eq!(prompt_bytes(&layout, PROMPT_MAX), Ok(128 << 20));
        // What a SYNC of 4 MiB can hold, and what stays below a gate's limit.
        for tokens in [1 << 20, 1 << 16, PROMPT_MAX + 1] {
            let why = prompt_bytes(&layout, tokens).unwrap_err();
            assert!(why.contains(&tokens.to_string()), "{why}");
        }
    }
}
