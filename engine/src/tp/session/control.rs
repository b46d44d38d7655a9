//! The control connections: hello, vote, signs of life, errors and the end.

use crate::tp::collective::CollectiveMessage;
use crate::tp::command::{Message, Reserved};
use crate::tp::error::{Cause, TpError};
use crate::tp::frame::{FrameError, Kind};
use crate::tp::hello::Hello;
use crate::tp::mirror::{MirrorError, settle};
use crate::tp::roster;
use crate::tp::time::Time;
use crate::tp::transport::{Transport, TransportSet};
use crate::tp::v7;

use super::link::ControlLink;
use super::{Dialect, Note, Phase, Session};

impl ControlLink {
    /// The message that was judged, and its frame taken off.
    pub(super) fn taken(&mut self) -> Option<Message<'_>> {
        let kind = self.frame()?.0;
        self.take_later();
        Message::decode(kind, self.frame()?.1, Reserved::Ignored).ok()
    }
}

impl Session {
    /// What to write to a peer's control connection.
    #[must_use]
    pub fn control_to_write(&self, peer: u32) -> &[u8] {
        let link = self.control.iter().find(|link| link.peer == peer);
        link.map_or(&[], ControlLink::to_write)
    }

    /// So many bytes of it were written.
    pub fn control_wrote(&mut self, peer: u32, count: usize) {
        if let Some(link) = self.control_mut(peer) {
            link.wrote(count);
        }
    }

    /// Where a peer's next bytes go. Empty while a message waits for [`Session::poll_event`].
    pub fn control_to_read(&mut self, peer: u32) -> &mut [u8] {
        let dialect = self.config.dialect;
        let ended = matches!(self.phase, Phase::Closed | Phase::Failed);
        match self.control_mut(peer) {
            Some(link) if !ended => link.read_room(dialect),
            _ => &mut [],
        }
    }

    /// So many bytes were read into [`Session::control_to_read`].
    pub fn control_read(&mut self, now: Time, peer: u32, count: usize) {
        let dialect = self.config.dialect;
        if matches!(self.phase, Phase::Closed | Phase::Failed) {
            return;
        }
        let Some(link) = self.control_mut(peer) else {
            return;
        };
        match link.read(now, dialect, count) {
            Ok(false) => {}
            Ok(true) => self.handle_frame(now, peer),
            Err(error) => self.fail(now, peer, Cause::Frame(error)),
        }
    }

    /// The transports that this rank has proved on the very paths that gates would take.
    pub fn vote(&mut self, now: Time, proved: TransportSet) {
        if self.phase != Phase::Voting || self.own_vote.is_some() {
            return;
        }
        let proved = proved.and(self.config.transports);
        self.own_vote = Some(proved);
        if self.config.rank == 0 {
            self.count_votes(now);
        } else {
            let payload = word_pair(proved.bits());
            self.push_all(now, Kind::Vote, &payload);
        }
    }

    /// Moves on when nothing is missing any more.
    pub(super) fn advance(&mut self, now: Time) {
        let attached = self.control.iter().all(|link| link.attached)
            && self.data.iter().all(|link| link.attached);
        if self.phase == Phase::Connecting && attached {
            self.enter(now, Phase::Greeting);
        }
        if self.phase != Phase::Greeting || !self.control.iter().all(|link| link.fits) {
            return;
        }
        if self.config.dialect != Dialect::Native {
            self.become_ready(now, Transport::Tcp);
            return;
        }
        self.enter(now, Phase::Voting);
        let offered = self.control.iter().filter_map(|link| link.hello);
        let common = offered.fold(self.config.transports, |set, hello| {
            set.and(hello.transports)
        });
        self.notes.push_back(Note::Probe(common));
    }

    fn become_ready(&mut self, now: Time, transport: Transport) {
        self.enter(now, Phase::Ready);
        self.notes.push_back(Note::Ready(transport));
    }

    fn handle_frame(&mut self, now: Time, peer: u32) {
        let index = self.control.iter().position(|link| link.peer == peer);
        let Some(link) = index.and_then(|index| self.control.get_mut(index)) else {
            return;
        };
        let Some((kind, payload)) = link.frame() else {
            return;
        };
        let greeted = link.fits;
        let outcome = match kind {
            Kind::Hello if greeted => Err(Cause::Frame(FrameError::Unexpected(kind))),
            Kind::Hello => {
                let mut copy = [0; v7::HELLO_BYTES * 2];
                let length = payload.len().min(copy.len());
                if let (Some(to), Some(from)) = (copy.get_mut(..length), payload.get(..length)) {
                    to.copy_from_slice(from);
                }
                let whole = payload.len() == length;
                link.take();
                self.greet(
                    peer,
                    copy.get(..length).filter(|_| whole).unwrap_or_default(),
                )
            }
            Kind::Error => {
                let error = TpError::decode(peer, payload);
                link.take();
                match error {
                    Some(error) => {
                        self.fail_with(now, error);
                        return;
                    }
                    None => Err(Cause::Frame(FrameError::Payload(kind))),
                }
            }
            _ if !greeted => Err(Cause::Frame(FrameError::Unexpected(kind))),
            Kind::Ping => {
                link.take();
                Ok(())
            }
            Kind::Vote | Kind::Chosen => {
                let set = read_word_pair(payload).map(TransportSet::from_bits);
                link.take();
                match set {
                    Some(set) => self.heed_vote(now, peer, kind, set),
                    None => Err(Cause::Frame(FrameError::Payload(kind))),
                }
            }
            Kind::Roster => {
                let entries = roster::decode(payload).ok();
                link.take();
                self.heed_roster(peer, entries)
            }
            Kind::Collective => {
                let message = CollectiveMessage::decode(payload).ok();
                link.take();
                self.heed_collective(peer, message)
            }
            Kind::Hash => {
                let message = Message::decode(kind, payload, Reserved::Zero);
                let theirs = if let Ok(Message::Hash { seq, hash }) = message {
                    Some((seq, hash))
                } else {
                    None
                };
                link.take();
                match theirs {
                    Some(theirs) if link.their_hash.is_none() => {
                        link.their_hash = Some(theirs);
                        self.compare_hashes(peer)
                    }
                    _ => Err(Cause::Frame(FrameError::Payload(kind))),
                }
            }
            Kind::StopAck => {
                link.take();
                link.stop_acked = true;
                self.heed_stop_ack(now)
            }
            // These wait until the application takes them.
            Kind::Sync
            | Kind::Eval
            | Kind::Rewind
            | Kind::Invalidate
            | Kind::Stop
            | Kind::Logits
            | Kind::Verify
            | Kind::VerifyCommit
            | Kind::SessionCreate
            | Kind::SessionDestroy
            | Kind::EvalBatch
            | Kind::MixedBatch
            | Kind::Ack => Ok(()),
            // These travel on data connections.
            Kind::Verbs | Kind::RowGate | Kind::BatchGate | Kind::BigGate => {
                Err(Cause::Frame(FrameError::Unexpected(kind)))
            }
        };
        match outcome {
            Ok(()) => self.advance(now),
            Err(cause) => self.fail(now, peer, cause),
        }
    }

    fn greet(&mut self, peer: u32, payload: &[u8]) -> Result<(), Cause> {
        let bad = || Cause::Frame(FrameError::Payload(Kind::Hello));
        if let Some(own) = self.v7_hello() {
            let raw = payload.first_chunk().ok_or_else(bad)?;
            let found = raw.first_chunk().copied().map_or(0, u32::from_le_bytes);
            let magic = Cause::Frame(FrameError::Ds4Magic(found));
            let theirs = v7::Hello::decode(raw).ok_or(magic)?;
            own.check(&theirs).map_err(Cause::Hello)?;
        } else {
            let theirs = Hello::decode(payload).map_err(|_| bad())?;
            self.hello.check(&theirs, peer).map_err(Cause::Hello)?;
            if let Some(link) = self.control_mut(peer) {
                link.hello = Some(theirs);
            }
        }
        if let Some(link) = self.control_mut(peer) {
            link.fits = true;
        }
        Ok(())
    }

    fn heed_vote(
        &mut self,
        now: Time,
        peer: u32,
        kind: Kind,
        set: TransportSet,
    ) -> Result<(), Cause> {
        let leads = self.config.rank == 0;
        // A worker may be done with probing before the leader has heard of the last rank.
        if kind == Kind::Vote && leads && self.phase != Phase::Ready {
            if let Some(link) = self.control_mut(peer) {
                link.vote = Some(set);
            }
            self.count_votes(now);
            return Ok(());
        }
        if kind != Kind::Chosen || leads || self.phase != Phase::Voting {
            return Err(Cause::Frame(FrameError::Unexpected(kind)));
        }
        let own = self.own_vote.unwrap_or_default();
        match set.best().filter(|it| own.has(*it)) {
            Some(transport) => {
                self.become_ready(now, transport);
                Ok(())
            }
            None => Err(Cause::NoTransport(format!(
                "this rank proved {own}, the leader chose {set}"
            ))),
        }
    }

    fn count_votes(&mut self, now: Time) {
        let Some(own) = self.own_vote else {
            return;
        };
        let mut common = own;
        for link in &self.control {
            match link.vote {
                Some(vote) => common = common.and(vote),
                None => return,
            }
        }
        match common.best() {
            Some(transport) => {
                self.push_all(now, Kind::Chosen, &word_pair(transport.bit()));
                self.become_ready(now, transport);
            }
            None => {
                let mut said = format!("rank {} proved {own}", self.config.rank);
                for link in &self.control {
                    let vote = link.vote.unwrap_or_default();
                    said.push_str(&format!(", rank {} proved {vote}", link.peer));
                }
                if let Some((_, why)) = self.collective_refusal() {
                    said.push_str(&format!(" ({why})"));
                }
                self.fail(now, self.config.rank, Cause::NoTransport(said));
            }
        }
    }

    pub(super) fn compare_hashes(&mut self, peer: u32) -> Result<(), Cause> {
        let Some(link) = self.control_mut(peer) else {
            return Ok(());
        };
        let Some((their_seq, theirs)) = link.their_hash else {
            return Ok(());
        };
        let Some((seq, own)) = link.own_hash else {
            self.notes.push_back(Note::CheckStep {
                peer,
                seq: their_seq,
            });
            return Ok(());
        };
        link.own_hash = None;
        link.their_hash = None;
        link.hash_due = Time::NEVER;
        if seq != their_seq || own != theirs {
            return Err(Cause::Divergence { seq, own, theirs });
        }
        self.notes.push_back(Note::InStep { peer, seq });
        Ok(())
    }

    fn heed_stop_ack(&mut self, now: Time) -> Result<(), Cause> {
        if self.phase != Phase::Closing {
            return Err(Cause::Frame(FrameError::Unexpected(Kind::StopAck)));
        }
        if self.control.iter().all(|link| link.stop_acked) {
            self.enter(now, Phase::Closed);
            self.notes.push_back(Note::Finished);
        }
        Ok(())
    }

    /// Judges the messages that wait, and says which link holds one for the application.
    pub(super) fn take_message(&mut self, now: Time) -> Option<usize> {
        for index in 0..self.control.len() {
            let outcome = self.judge_message(now, index);
            let peer = self.control.get(index)?.peer;
            match outcome {
                Ok(true) => return Some(index),
                Ok(false) => {}
                Err(cause) => {
                    self.fail(now, peer, cause);
                    return None;
                }
            }
        }
        None
    }

    /// Whether the application must see the message of a link.
    fn judge_message(&mut self, now: Time, index: usize) -> Result<bool, Cause> {
        let (dialect, leads) = (self.config.dialect, self.config.rank == 0);
        let split = self.config.identity.split_logits;
        let share = self.share_bytes(index);
        let due = now.after(self.config.deadlines.reply_ns);
        if self.phase == Phase::Failed {
            return Ok(false);
        }
        let Some(link) = self.control.get_mut(index) else {
            return Ok(false);
        };
        link.release();
        let reserved = match dialect {
            Dialect::Native => Reserved::Zero,
            Dialect::Ds4V7 { .. } => Reserved::Ignored,
        };
        let mut owed = std::mem::take(&mut link.owed);
        let Some((kind, payload)) = link.frame() else {
            link.owed = owed;
            return Ok(false);
        };
        let message = Message::decode(kind, payload, reserved).map_err(Cause::Message)?;
        let unexpected = Cause::Frame(FrameError::Unexpected(kind));
        let answer = matches!(message, Message::Ack { .. } | Message::Logits(_));
        if leads != answer || (self.phase != Phase::Ready && !answer) {
            return Err(unexpected);
        }
        let mut refused = None;
        if leads {
            let whole = if let Message::Logits(logits) = message {
                logits.len() == share
            } else {
                true
            };
            if !whole || !settle(&mut owed, &message) {
                return Err(Cause::Mirror(format!(
                    "a {} frame that nothing asked for",
                    kind.name()
                )));
            }
        } else if kind == Kind::Stop {
            // The leader is done with the gate; what others still send each other comes first.
            if self.current.is_some() {
                link.owed = owed;
                return Ok(false);
            }
        } else {
            match self.mirror.apply(&message) {
                Ok(()) => self.mirror.owe(&message, split, due, &mut owed),
                Err(MirrorError::Broken(what)) => return Err(Cause::Mirror(what)),
                Err(MirrorError::Status(_)) => {
                    if let Message::SessionCreate { session, .. }
                    | Message::SessionDestroy { session } = message
                    {
                        refused = Some(session);
                    }
                }
            }
        }
        link.owed = owed;
        if kind == Kind::Stop {
            link.take();
            if dialect == Dialect::Native {
                link.push(now, dialect, Kind::StopAck, &[]);
            }
            self.enter(now, Phase::Closed);
            self.notes.push_back(Note::Finished);
            return Ok(false);
        }
        if let Some(session) = refused {
            link.take();
            self.answer_refused(now, session);
            return Ok(false);
        }
        Ok(true)
    }

    /// Bytes of the share of the logits that the peer of a link sends.
    fn share_bytes(&self, index: usize) -> usize {
        let peer = self.control.get(index).map_or(0, |link| link.peer);
        let (start, end) = self.logits_share(peer);
        usize::try_from(end.saturating_sub(start))
            .unwrap_or(0)
            .saturating_mul(4)
    }

    pub(super) fn push_all(&mut self, now: Time, kind: Kind, payload: &[u8]) -> bool {
        let dialect = self.config.dialect;
        let mut all = true;
        for link in &mut self.control {
            all &= link.push(now, dialect, kind, payload);
        }
        all
    }
}

fn word_pair(word: u32) -> [u8; 8] {
    u64::from(word).to_le_bytes()
}

fn read_word_pair(payload: &[u8]) -> Option<u32> {
    let word = u64::from_le_bytes(payload.try_into().ok()?);
    u32::try_from(word).ok()
}
