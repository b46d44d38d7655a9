//! Who listens where, as far as a session was told.

use crate::tp::error::Cause;
use crate::tp::frame::{FrameError, Kind};
use crate::tp::roster::{Entry, encode};
use crate::tp::time::Time;

use super::{Phase, Session};

impl Session {
    /// A worker tells the leader where it listens, the leader every worker where all do.
    pub fn tell_roster(&mut self, now: Time, entries: &[Entry]) {
        if !matches!(self.phase, Phase::Closed | Phase::Failed) {
            self.push_all(now, Kind::Roster, &encode(entries));
        }
    }

    /// What was told: of a worker to the leader its own entry, by the leader everybody's.
    #[must_use]
    pub fn roster(&self) -> &[Entry] {
        &self.roster
    }

    pub(super) fn heed_roster(
        &mut self,
        peer: u32,
        entries: Option<Vec<Entry>>,
    ) -> Result<(), Cause> {
        let entries = entries.ok_or(Cause::Frame(FrameError::Payload(Kind::Roster)))?;
        let early = !matches!(self.phase, Phase::Ready | Phase::Closing);
        let fresh = if self.config.rank == 0 {
            let own = entries.first().filter(|_| entries.len() == 1);
            own.is_some_and(|it| it.rank == peer)
                && self.roster.iter().all(|known| known.rank != peer)
        } else {
            self.roster.is_empty()
        };
        if !early || !fresh {
            return Err(Cause::Frame(FrameError::Unexpected(Kind::Roster)));
        }
        self.roster.extend(entries);
        Ok(())
    }
}
