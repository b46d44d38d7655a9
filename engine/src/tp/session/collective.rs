//! Gates whose sum a collective library makes: their order, their deadline and who is to blame are
//! the session's, the bytes are not.

use crate::tp::collective::{CollectiveMessage, Offer};
use crate::tp::error::{Cause, TpError, Wait};
use crate::tp::frame::{FrameError, Kind};
use crate::tp::schedule::Gate;
use crate::tp::time::Time;
use crate::tp::transport::Transport;

use super::{Current, Dialect, Phase, Session};

/// Messages of one peer: an offer, and that it came to nothing.
const HEARD_MAX: usize = 2;

/// What a session knows of groups of a library.
#[derive(Debug, Default)]
pub(super) struct Collective {
    heard: Vec<(u32, CollectiveMessage)>,
    /// How long the gate under way may take, if the library makes its sum.
    pub(super) limit_ns: Option<u64>,
}

impl Session {
    /// Tells the leader, or the leader every worker.
    pub fn tell_collective(&mut self, now: Time, message: &CollectiveMessage) {
        if self.config.dialect == Dialect::Native && self.phase == Phase::Voting {
            self.push_all(now, Kind::Collective, &message.encode());
        }
    }

    /// The group that the leader offers.
    #[must_use]
    pub fn collective_offer(&self) -> Option<&Offer> {
        self.collective
            .heard
            .iter()
            .find_map(|(_, heard)| match heard {
                CollectiveMessage::Offer(offer) => Some(&**offer),
                CollectiveMessage::Nothing(_) => None,
            })
    }

    /// Who said that no group comes about, and why.
    #[must_use]
    pub fn collective_refusal(&self) -> Option<(u32, &str)> {
        self.collective
            .heard
            .iter()
            .find_map(|(peer, heard)| match heard {
                CollectiveMessage::Offer(_) => None,
                CollectiveMessage::Nothing(why) => Some((*peer, why.as_str())),
            })
    }

    /// A peer that has voted and did not prove a transport.
    #[must_use]
    pub fn voted_without(&self, transport: Transport) -> Option<u32> {
        let lacks = |vote: crate::tp::transport::TransportSet| !vote.has(transport);
        let mut links = self.control.iter();
        links
            .find(|link| link.vote.is_some_and(lacks))
            .map(|link| link.peer)
    }

    pub(super) fn heed_collective(
        &mut self,
        peer: u32,
        message: Option<CollectiveMessage>,
    ) -> Result<(), Cause> {
        let message = message.ok_or(Cause::Frame(FrameError::Payload(Kind::Collective)))?;
        let heard = &mut self.collective.heard;
        let before = heard.iter().filter(|(from, _)| *from == peer).count();
        let offers = matches!(message, CollectiveMessage::Offer(_));
        let in_time = matches!(
            self.phase,
            Phase::Connecting | Phase::Greeting | Phase::Voting
        );
        if !in_time || before >= HEARD_MAX || (offers && (peer != 0 || before > 0)) {
            return Err(Cause::Frame(FrameError::Unexpected(Kind::Collective)));
        }
        heard.push((peer, message));
        Ok(())
    }

    /// Begins a gate of so many bytes whose sum a library makes. The sequence number comes back.
    ///
    /// # Errors
    /// As [`Session::gate_begin`].
    pub fn collective_begin(
        &mut self,
        now: Time,
        gate: Gate,
        bytes: usize,
    ) -> Result<u64, TpError> {
        let seq = self.check_begin(gate, bytes)?;
        let limit_ns = self.gate_limit_ns(bytes);
        // The leader knows of every rank whether it lives: its word comes before the others' guess.
        let grace_ns = if self.config.rank == 0 {
            0
        } else {
            limit_ns / 4
        };
        self.collective.limit_ns = Some(limit_ns);
        self.enter_gate(now, gate, seq, now.after(limit_ns).after(grace_ns));
        Ok(seq)
    }

    /// The sum is there.
    pub fn collective_done(&mut self) {
        if self.collective.limit_ns.take().is_some() {
            self.settle_gate();
        }
    }

    /// Who is to blame at the deadline of a library's sum: who has been silent, else this rank, whose
    /// library does not say for whom it waits.
    pub(super) fn late_in_collective(&self, now: Time, current: &Current) -> Option<(u32, Cause)> {
        self.collective.limit_ns?;
        let silent = self.silent_in_gate(now);
        let wait = if silent.is_some() {
            Wait::Gate
        } else {
            Wait::Sum
        };
        let waited_ns = now.since(current.began);
        let cause = Cause::Deadline { wait, waited_ns };
        Some((silent.unwrap_or(self.config.rank), cause))
    }
}

#[cfg(test)]
#[path = "collective_tests.rs"]
mod tests;
