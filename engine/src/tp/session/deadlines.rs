//! Deadlines: until when a peer may be late, and who is.

use crate::tp::error::{Cause, Wait};
use crate::tp::frame::Kind;
use crate::tp::time::Time;
use crate::tp::trust::Channel;

use super::link::{ControlLink, DataLink};
use super::ring::RingGate;
use super::{Dialect, Phase, Session};

impl Session {
    /// When [`Session::handle_time`] must be called at the latest.
    #[must_use]
    pub fn next_deadline(&self) -> Time {
        let limits = &self.config.deadlines;
        let mut next = match self.phase {
            Phase::Connecting => self.since.after(limits.connect_ns),
            Phase::Greeting | Phase::Voting => self.since.after(limits.hello_ns),
            Phase::Closing | Phase::Failed => self.since.after(limits.close_ns),
            Phase::Ready | Phase::Closed => Time::NEVER,
        };
        if matches!(self.phase, Phase::Closed | Phase::Failed) {
            return next;
        }
        if let Some(current) = &self.current {
            next = next.min(current.due);
        }
        next = next.min(self.hello_due().map_or(Time::NEVER, |(_, due)| due));
        for link in self.control.iter().filter(|link| link.usable()) {
            next = next.min(link.hash_due);
            if let Some(owed) = link.owed.front().filter(|_| self.config.rank == 0) {
                next = next.min(owed.due);
            }
            if self.config.dialect == Dialect::Native {
                next = next.min(link.last_out.after(self.quiet_ns()));
                // What waits here to be taken keeps later signs of life from being read.
                if !link.complete() {
                    next = next.min(link.last_in.after(limits.idle_ns));
                }
            }
        }
        next.min(self.broken().map_or(Time::NEVER, |(_, due)| due))
    }

    /// Time has passed: late peers end the session, quiet ones are sent a sign of life.
    pub fn handle_time(&mut self, now: Time) {
        if matches!(self.phase, Phase::Closed | Phase::Failed) || now < self.next_deadline() {
            return;
        }
        if let Some((peer, cause)) = self.late(now) {
            self.fail(now, peer, cause);
            return;
        }
        let (dialect, quiet) = (self.config.dialect, self.quiet_ns());
        if dialect == Dialect::Native {
            for link in &mut self.control {
                if link.usable() && now >= link.last_out.after(quiet) {
                    link.push(now, dialect, Kind::Ping, &[]);
                }
            }
        }
    }

    /// Which peer is late, and with what.
    fn late(&self, now: Time) -> Option<(u32, Cause)> {
        let limits = &self.config.deadlines;
        let cause = |wait, since: Time| Cause::Deadline {
            wait,
            waited_ns: now.since(since),
        };
        if let Some(current) = self.current.filter(|current| now >= current.due) {
            if let Some(late) = self.late_in_collective(now, &current) {
                return Some(late);
            }
            if let Some(peer) = self.silent_in_gate(now) {
                return Some((peer, cause(Wait::Gate, current.began)));
            }
            let suspect = self.round.as_ref().map(RingGate::suspect);
            let needed = self.data.iter().filter(|link| self.gate_needs(link));
            let slowest = |link: &&DataLink| (Some(link.peer) != suspect, link.arrived());
            let peer = needed.min_by_key(slowest)?.peer;
            return Some((peer, cause(Wait::Gate, current.began)));
        }
        if let Some((peer, _)) = self.hello_due().filter(|(_, due)| now >= *due) {
            let since = Time(now.0.saturating_sub(limits.hello_ns));
            return Some((peer, cause(Wait::Hello, since)));
        }
        let phase = match self.phase {
            Phase::Connecting => Some((Wait::Connect, limits.connect_ns)),
            Phase::Greeting => Some((Wait::Hello, limits.hello_ns)),
            Phase::Voting => Some((Wait::Vote, limits.hello_ns)),
            Phase::Closing => Some((Wait::Close, limits.close_ns)),
            Phase::Ready | Phase::Closed | Phase::Failed => None,
        };
        if let Some((wait, _)) = phase.filter(|(_, limit)| now >= self.since.after(*limit)) {
            let peer = self.missing(wait).unwrap_or(self.config.rank);
            return Some((peer, cause(wait, self.since)));
        }
        for link in self.control.iter().filter(|link| link.usable()) {
            let silent = !link.complete() && now >= link.last_in.after(limits.idle_ns);
            if silent && self.config.dialect == Dialect::Native {
                return Some((link.peer, cause(Wait::Idle, link.last_in)));
            }
            let owed = link.owed.front().filter(|_| self.config.rank == 0);
            if now >= link.hash_due || owed.is_some_and(|owed| now >= owed.due) {
                let began = Time(now.0.saturating_sub(limits.reply_ns));
                return Some((link.peer, cause(Wait::Reply, began)));
            }
        }
        self.broken()
            .filter(|(_, due)| now >= *due)
            .map(|(peer, _)| (peer, Cause::Closed(Channel::Data)))
    }

    /// How long a control connection may be quiet before a sign of life is sent. In a gate that is
    /// held up by who sends nothing here they come often enough to tell who has stopped from who
    /// waits for him.
    fn quiet_ns(&self) -> u64 {
        let quiet = self.config.deadlines.idle_ns / 3;
        match self.limit_of_others_ns() {
            Some(limit_ns) => quiet.min(limit_ns / 4),
            None => quiet,
        }
    }

    /// How long the gate under way may take, if most ranks send nothing here meanwhile.
    fn limit_of_others_ns(&self) -> Option<u64> {
        let round = self.round.as_ref().map(|round| round.limit_ns);
        round.or(self.collective.limit_ns)
    }

    /// Who has given no sign of life for half of the time that such a gate may take.
    pub(super) fn silent_in_gate(&self, now: Time) -> Option<u32> {
        let silence_ns = self.limit_of_others_ns()? / 2;
        let mut links = self.control.iter().filter(|link| link.usable());
        let silent = links.find(|link| !link.complete() && now.since(link.last_in) >= silence_ns);
        silent.map(|link| link.peer)
    }

    /// In ds4's own protocol the data connection is dialled only after the hellos: whose hello is
    /// missing, and until when it may be.
    fn hello_due(&self) -> Option<(u32, Time)> {
        let first = self.phase == Phase::Connecting && self.config.dialect != Dialect::Native;
        let mut missing = self
            .control
            .iter()
            .filter(|link| link.attached && !link.fits);
        let link = missing.next().filter(|_| first)?;
        Some((
            link.peer,
            link.last_out.after(self.config.deadlines.hello_ns),
        ))
    }

    /// A data connection that ended and is needed still, and until when its peer may say why.
    ///
    /// Between gates nobody needs it: peers that are done close theirs while others wait to hear
    /// that the run is over.
    fn broken(&self) -> Option<(u32, Time)> {
        let began = match &self.current {
            Some(current) => current.began,
            None if matches!(self.phase, Phase::Greeting | Phase::Voting) => self.since,
            None => return None,
        };
        let grace = self.config.deadlines.close_ns / 4;
        self.data.iter().find_map(|link| {
            let closed_at = link.closed_at?;
            let needed = self.current.is_none() || self.gate_needs(link);
            needed.then(|| (link.peer, closed_at.max(began).after(grace)))
        })
    }

    /// The first peer without which a phase does not end.
    fn missing(&self, wait: Wait) -> Option<u32> {
        let control = |lacks: &dyn Fn(&ControlLink) -> bool| {
            self.control.iter().find(|it| lacks(it)).map(|it| it.peer)
        };
        match wait {
            Wait::Connect => control(&|link| !link.attached).or_else(|| {
                let data = self.data.iter().find(|link| !link.attached);
                data.map(|link| link.peer)
            }),
            Wait::Hello => control(&|link| !link.fits),
            Wait::Vote if self.own_vote.is_none() => Some(self.config.rank),
            Wait::Vote => control(&|link| self.config.rank != 0 || link.vote.is_none()),
            Wait::Close => control(&|link| !link.stop_acked),
            Wait::Gate | Wait::Sum | Wait::Reply | Wait::Idle => None,
        }
    }
}
