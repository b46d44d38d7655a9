//! The sessions that the leader and its workers keep in step, and the answers that each command
//! owes.

use std::collections::{BTreeMap, VecDeque};

use super::command::{Message, SessionNumber};
use super::time::Time;

/// The most sessions at once.
const SESSIONS_MAX: usize = 1024;

/// How strictly commands are judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Strictness {
    /// Counts, positions and tokens must fit.
    Native,
    /// What the reference lets pass, passes.
    Ds4,
}

/// What is wrong with a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum MirrorError {
    /// It is answered with a status, and nothing has changed.
    Status(String),
    /// The two sides do not agree on what there is.
    Broken(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Held {
    context: u64,
    tokens: u64,
}

/// An answer that a command owes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owed {
    pub(super) answer: Answer,
    pub(super) due: Time,
    /// The command's number: a bad ack takes the rest of its command with it.
    command: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Ack(SessionNumber),
    Logits,
}

/// The sessions, equal on all ranks.
#[derive(Clone, Debug)]
pub(super) struct Mirror {
    strictness: Strictness,
    n_vocab: u32,
    sessions: BTreeMap<SessionNumber, Held>,
    evals: u64,
    commands: u64,
    drafts: Option<(SessionNumber, u64)>,
}

impl Mirror {
    pub(super) const fn new(strictness: Strictness, n_vocab: u32) -> Self {
        Self {
            strictness,
            n_vocab,
            sessions: BTreeMap::new(),
            evals: 0,
            commands: 0,
            drafts: None,
        }
    }

    /// The number of the next EVAL.
    pub(super) const fn next_eval(&self) -> u64 {
        self.evals.saturating_add(1)
    }

    /// How many tokens a session holds.
    pub(super) fn tokens(&self, session: SessionNumber) -> Option<u64> {
        self.sessions.get(&session).map(|held| held.tokens)
    }

    /// Takes a command in, or leaves everything as it was.
    pub(super) fn apply(&mut self, message: &Message<'_>) -> Result<(), MirrorError> {
        if let Some((session, _)) = self.drafts
            && self.strictness == Strictness::Native
            && !matches!(message, Message::VerifyCommit { .. })
        {
            return Err(broken(format!(
                "session {session} has drafts that were neither kept nor dropped"
            )));
        }
        match *message {
            Message::SessionCreate { session, context } => self.create(session, context)?,
            Message::SessionDestroy { session } => {
                if self.sessions.remove(&session).is_none() {
                    return Err(MirrorError::Status(format!(
                        "there is no session {session}"
                    )));
                }
            }
            Message::Sync { session, tokens } => {
                self.check_tokens(tokens.iter())?;
                self.room(session, 0, count(tokens.len()))?;
                self.set(session, count(tokens.len()));
            }
            Message::Eval {
                session,
                seq,
                token,
            } => {
                self.check_tokens(std::iter::once(token))?;
                if self.strictness == Strictness::Native && seq != self.next_eval() {
                    return Err(broken(format!(
                        "EVAL has the number {seq} instead of {}",
                        self.next_eval()
                    )));
                }
                let held = self.held(session)?.tokens;
                self.room(session, held, 1)?;
                self.set(session, held.saturating_add(1));
                self.evals = self.evals.saturating_add(1);
            }
            Message::Rewind { session, position } => {
                let held = self.held(session)?.tokens;
                let position = u64::try_from(position).ok().filter(|it| *it <= held);
                let position = position.ok_or_else(|| {
                    broken(format!(
                        "session {session} cannot go back: it holds {held} tokens"
                    ))
                })?;
                self.set(session, position);
            }
            Message::Invalidate { session } => {
                self.held(session)?;
                self.set(session, 0);
            }
            Message::Verify { session, drafts } => {
                self.check_tokens(drafts.iter())?;
                let held = self.held(session)?.tokens;
                let drafts = count(drafts.len());
                if drafts == 0 {
                    return Err(broken("there is no draft to judge".to_owned()));
                }
                self.room(session, held, drafts)?;
                self.drafts = Some((session, drafts));
            }
            Message::VerifyCommit { full, replay } => self.commit(full, replay)?,
            Message::EvalBatch { items } => {
                self.check_tokens(items.iter().map(|item| item.token))?;
                self.add_items(items.iter().map(|item| item.session), None)?;
            }
            Message::MixedBatch {
                session,
                prompt,
                items,
            } => {
                self.check_tokens(prompt.iter())?;
                self.check_tokens(items.iter().map(|item| item.token))?;
                let prompt = (session, count(prompt.len()));
                self.add_items(items.iter().map(|item| item.session), Some(prompt))?;
            }
            Message::Stop
            | Message::StopAck
            | Message::Hash { .. }
            | Message::Logits(_)
            | Message::Ack { .. } => {}
        }
        self.commands = self.commands.saturating_add(1);
        Ok(())
    }

    /// The answers that a command owes, after it was applied.
    pub(super) fn owe(
        &self,
        message: &Message<'_>,
        split_logits: bool,
        due: Time,
        queue: &mut VecDeque<Owed>,
    ) {
        let (ack, logits) = match *message {
            Message::SessionCreate { session, .. } | Message::SessionDestroy { session } => {
                (Some(session), 0)
            }
            Message::Sync { session, .. } => (Some(session), 1),
            Message::Eval { .. } => (None, 1),
            Message::EvalBatch { items } => (Some(0), items.len()),
            Message::MixedBatch { session, items, .. } => {
                (Some(session), items.len().saturating_add(1))
            }
            Message::VerifyCommit { replay, .. } => (None, usize::from(replay > 0)),
            Message::Rewind { .. }
            | Message::Invalidate { .. }
            | Message::Verify { .. }
            | Message::Stop
            | Message::StopAck
            | Message::Hash { .. }
            | Message::Logits(_)
            | Message::Ack { .. } => (None, 0),
        };
        let command = self.commands;
        let owed = |answer| Owed {
            answer,
            due,
            command,
        };
        queue.extend(ack.map(|session| owed(Answer::Ack(session))));
        if split_logits {
            queue.extend((0..logits).map(|_| owed(Answer::Logits)));
        }
    }

    fn create(&mut self, session: SessionNumber, context: i32) -> Result<(), MirrorError> {
        let context = u64::try_from(context).unwrap_or(0);
        let problem = if session == 0 {
            "a session's number is not 0"
        } else if context == 0 {
            "a session holds at least one token"
        } else if self.sessions.contains_key(&session) {
            "the session exists"
        } else if self.sessions.len() >= SESSIONS_MAX {
            "there are as many sessions as there may be"
        } else {
            self.sessions.insert(session, Held { context, tokens: 0 });
            return Ok(());
        };
        Err(MirrorError::Status(problem.to_owned()))
    }

    fn commit(&mut self, full: bool, replay: i32) -> Result<(), MirrorError> {
        let Some((session, drafts)) = self.drafts else {
            return Err(broken("there is no draft to keep or drop".to_owned()));
        };
        let replay = u64::try_from(replay).unwrap_or(0);
        if replay > drafts && self.strictness == Strictness::Native {
            return Err(broken(format!("{replay} of {drafts} drafts cannot stay")));
        }
        let kept = if full { drafts } else { replay.min(drafts) };
        let held = self.held(session)?.tokens;
        self.set(session, held.saturating_add(kept));
        self.drafts = None;
        Ok(())
    }

    /// Adds one token to each session named, and a prompt that replaces a session's tokens first.
    fn add_items(
        &mut self,
        sessions: impl Iterator<Item = SessionNumber>,
        prompt: Option<(SessionNumber, u64)>,
    ) -> Result<(), MirrorError> {
        let mut added: BTreeMap<SessionNumber, u64> = BTreeMap::new();
        for session in sessions {
            let sum = added.entry(session).or_default();
            *sum = sum.saturating_add(1);
        }
        if let Some((session, tokens)) = prompt {
            self.room(session, 0, tokens)?;
        }
        for (session, tokens) in &added {
            let held = match prompt {
                Some((prompted, tokens)) if prompted == *session => tokens,
                _ => self.held(*session)?.tokens,
            };
            self.room(*session, held, *tokens)?;
        }
        if let Some((session, tokens)) = prompt {
            self.set(session, tokens);
        }
        for (session, tokens) in added {
            let held = self.held(session)?.tokens;
            self.set(session, held.saturating_add(tokens));
        }
        Ok(())
    }

    fn held(&self, session: SessionNumber) -> Result<Held, MirrorError> {
        self.sessions
            .get(&session)
            .copied()
            .ok_or_else(|| broken(format!("there is no session {session}")))
    }

    fn set(&mut self, session: SessionNumber, tokens: u64) {
        if let Some(held) = self.sessions.get_mut(&session) {
            held.tokens = tokens;
        }
    }

    fn room(&self, session: SessionNumber, held: u64, more: u64) -> Result<(), MirrorError> {
        let context = self.held(session)?.context;
        if held.saturating_add(more) > context {
            return Err(broken(format!(
                "session {session} has room for {context} tokens, not for {held} and {more} more"
            )));
        }
        Ok(())
    }

    fn check_tokens(&self, mut tokens: impl Iterator<Item = i32>) -> Result<(), MirrorError> {
        if self.strictness == Strictness::Ds4 {
            return Ok(());
        }
        let stranger = tokens.find(|token| {
            u32::try_from(*token)
                .ok()
                .is_none_or(|it| it >= self.n_vocab)
        });
        match stranger {
            Some(token) => Err(broken(format!(
                "token {token} is not in the vocabulary of {}",
                self.n_vocab
            ))),
            None => Ok(()),
        }
    }
}

/// Takes an answer off the queue; false when another one is owed.
pub(super) fn settle(queue: &mut VecDeque<Owed>, message: &Message<'_>) -> bool {
    let Some(front) = queue.front().copied() else {
        return false;
    };
    match (front.answer, *message) {
        (Answer::Ack(awaited), Message::Ack { session, status }) if awaited == session => {
            queue.pop_front();
            if status != 0 {
                while queue
                    .front()
                    .is_some_and(|owed| owed.command == front.command)
                {
                    queue.pop_front();
                }
            }
            true
        }
        (Answer::Logits, Message::Logits(_)) => {
            queue.pop_front();
            true
        }
        _ => false,
    }
}

fn broken(what: String) -> MirrorError {
    MirrorError::Broken(what)
}

fn count(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}
