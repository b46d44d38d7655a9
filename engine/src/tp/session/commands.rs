//! Commands of the leader, answers of a worker, and the check that they are in step.

use crate::tp::command::{Message, SessionNumber};
use crate::tp::error::{Cause, TpError};
use crate::tp::frame::Kind;
use crate::tp::mirror::{MirrorError, settle};
use crate::tp::time::Time;

use super::{Dialect, Note, Phase, Session};

/// The most answers that may be awaited at once.
const OWED_MAX: usize = 4096;

impl Session {
    /// The leader's next command, to all workers. A STOP is [`Session::stop`].
    ///
    /// # Errors
    /// The session has ended; or the command does not fit what there is, and nothing was sent.
    pub fn command(&mut self, now: Time, message: &Message<'_>) -> Result<(), TpError> {
        self.check_ready()?;
        let command = !matches!(
            message,
            Message::Stop
                | Message::StopAck
                | Message::Hash { .. }
                | Message::Logits(_)
                | Message::Ack { .. }
        );
        if self.config.rank != 0 || !command {
            return Err(self.local(format!(
                "rank {} does not send {}",
                self.config.rank,
                message.kind().name()
            )));
        }
        let room = self.control.iter().all(|link| link.owed.len() < OWED_MAX);
        let bytes = self.encode(message);
        if !room || bytes > usize::try_from(message.kind().payload_bytes_max()).unwrap_or(0) {
            return Err(self.local(format!(
                "the {} of {bytes} bytes is too long, or too many answers are awaited",
                message.kind().name()
            )));
        }
        if let Err(MirrorError::Status(what) | MirrorError::Broken(what)) =
            self.mirror.apply(message)
        {
            return Err(self.local(what));
        }
        self.send_scratch(now, message.kind())?;
        let due = now.after(self.config.deadlines.reply_ns);
        let split = self.config.identity.split_logits;
        for link in &mut self.control {
            self.mirror.owe(message, split, due, &mut link.owed);
        }
        Ok(())
    }

    /// A worker's answer: an ack, or its share of the logits.
    ///
    /// # Errors
    /// The session has ended; or another answer is owed, and nothing was sent.
    pub fn answer(&mut self, now: Time, message: &Message<'_>) -> Result<(), TpError> {
        self.check_ready()?;
        let (start, end) = self.logits_share(self.config.rank);
        let share = u64::from(end.saturating_sub(start)).saturating_mul(4);
        let whole = if let Message::Logits(logits) = message {
            u64::try_from(logits.len()) == Ok(share)
        } else {
            true
        };
        let owes = self.config.rank != 0
            && whole
            && self
                .control
                .first_mut()
                .is_some_and(|link| settle(&mut link.owed, message));
        if !owes {
            return Err(self.local(format!("no such {} is owed", message.kind().name())));
        }
        self.encode(message);
        self.send_scratch(now, message.kind())
    }

    /// Sends a hash of the own state and compares it with each peer's, which must send one too.
    ///
    /// # Errors
    /// The session has ended, or an earlier check is not over.
    pub fn check_step(&mut self, now: Time, seq: u64, hash: u64) -> Result<(), TpError> {
        self.check_ready()?;
        if self.control.iter().any(|link| link.own_hash.is_some()) {
            return Err(self.local("an earlier check of the state is not over".to_owned()));
        }
        self.encode(&Message::Hash { seq, hash });
        self.send_scratch(now, Kind::Hash)?;
        let due = now.after(self.config.deadlines.reply_ns);
        let mut peers = 0;
        while let Some(link) = self.control.get_mut(peers) {
            link.own_hash = Some((seq, hash));
            link.hash_due = due;
            let peer = link.peer;
            if let Err(cause) = self.compare_hashes(peer) {
                self.fail(now, peer, cause);
                self.check_ready()?;
            }
            peers = peers.saturating_add(1);
        }
        Ok(())
    }

    /// The leader ends the run: all gates have passed, all answers are there.
    ///
    /// # Errors
    /// The session has ended, or something is under way.
    pub fn stop(&mut self, now: Time) -> Result<(), TpError> {
        self.check_ready()?;
        let pending = self.control.iter().any(|link| !link.owed.is_empty());
        if self.config.rank != 0 || self.current.is_some() || pending {
            return Err(self.local("a stop needs the leader and nothing under way".to_owned()));
        }
        self.encode(&Message::Stop);
        self.send_scratch(now, Kind::Stop)?;
        if self.config.dialect == Dialect::Native {
            self.enter(now, Phase::Closing);
        } else {
            self.enter(now, Phase::Closed);
            self.notes.push_back(Note::Finished);
        }
        Ok(())
    }

    /// The number that the next EVAL must carry.
    #[must_use]
    pub const fn next_eval(&self) -> u64 {
        self.mirror.next_eval()
    }

    /// How many tokens a session holds, equal on all ranks.
    #[must_use]
    pub fn tokens(&self, session: SessionNumber) -> Option<u64> {
        self.mirror.tokens(session)
    }

    /// The logits that a rank computes, from the first to behind the last. Two ranks have one half
    /// each.
    #[must_use]
    pub fn logits_share(&self, rank: u32) -> (u32, u32) {
        let vocab = u64::from(self.config.identity.n_vocab);
        let ranks = u64::from(self.ranks()).max(1);
        let bound = |rank: u64| {
            let at = vocab.saturating_mul(rank.min(ranks)) / ranks;
            u32::try_from(at).unwrap_or(u32::MAX)
        };
        (
            bound(u64::from(rank)),
            bound(u64::from(rank).saturating_add(1)),
        )
    }

    /// Tells the leader that a session could not be made or ended.
    pub(super) fn answer_refused(&mut self, now: Time, session: SessionNumber) {
        self.encode(&Message::Ack { session, status: 1 });
        // A queue that is full ends the session there.
        let _ = self.send_scratch(now, Kind::Ack);
    }

    fn encode(&mut self, message: &Message<'_>) -> usize {
        self.scratch.clear();
        message.encode(&mut self.scratch);
        self.scratch.len()
    }

    fn send_scratch(&mut self, now: Time, kind: Kind) -> Result<(), TpError> {
        let scratch = std::mem::take(&mut self.scratch);
        let sent = self.push_all(now, kind, &scratch);
        self.scratch = scratch;
        if sent {
            return Ok(());
        }
        let why = format!(
            "a {} frame cannot be sent: the peer takes nothing",
            kind.name()
        );
        self.fail(now, self.config.rank, Cause::Local(why));
        self.check_ready()
    }

    fn check_ready(&self) -> Result<(), TpError> {
        match (&self.error, self.phase) {
            (Some(error), _) => Err(error.clone()),
            (None, Phase::Ready) => Ok(()),
            (None, phase) => Err(self.local(format!("no command passes in the phase {phase:?}"))),
        }
    }

    fn local(&self, why: String) -> TpError {
        TpError {
            rank: self.config.rank,
            at: self.position(),
            cause: Cause::Local(why),
        }
    }
}
