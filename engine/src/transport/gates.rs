//! Gates: the loop that moves their bytes, both ways at once, whichever way they go.

use super::path::is_later;
use super::rank::{LOOK, Link, LinkError, Rank, Sleepers, lost};
use crate::tp::schedule::Gate;
use crate::tp::session::Wants;
use crate::tp::time::Time;
use crate::tp::trust::Channel;
use rustix::event::{PollFd, PollFlags};
use std::os::fd::AsFd as _;

impl Rank {
    /// Passes a gate: `out` goes to every peer, and each peer's part comes into its place of
    /// `incoming`, which has one for each peer, in the order of their ranks.
    ///
    /// # Errors
    /// The session has ended, for the reason given: what lies in `incoming` is worthless.
    pub fn exchange<Place: AsMut<[u8]>>(
        &mut self,
        gate: Gate,
        out: &[u8],
        incoming: &mut [Place],
    ) -> Result<(), LinkError> {
        let fits = incoming.len() == self.links.len()
            && incoming
                .iter_mut()
                .all(|place| place.as_mut().len() == out.len());
        if !fits {
            return Err(LinkError::Setup(
                "a gate needs a place of its own size for each peer".to_owned(),
            ));
        }
        self.session.gate_begin(self.clock.now(), gate, out)?;
        self.pass(&mut |rank, now| rank.move_gate(now, out, incoming))
    }

    /// Passes a gate whose sum goes round the ring of all ranks: `vector` holds the own part before
    /// and the sum of all behind, added in the order of the ranks.
    ///
    /// Which gates go this way is [`Session::way`](crate::tp::session::Session::way), the same on
    /// every rank.
    ///
    /// # Errors
    /// The session has ended, for the reason given: what lies in `vector` is worthless.
    pub fn exchange_in_ring(&mut self, gate: Gate, vector: &mut [u8]) -> Result<(), LinkError> {
        self.session.ring_begin(self.clock.now(), gate, vector)?;
        self.pass(&mut |rank, now| rank.move_ring(now, vector))
    }

    /// Moves bytes by `step` until the gate under way is done: looks again and again for a while,
    /// then sleeps.
    fn pass(
        &mut self,
        step: &mut dyn FnMut(&mut Self, Time) -> Result<bool, LinkError>,
    ) -> Result<(), LinkError> {
        let mut now = self.clock.now();
        let looks = self.links.first().map_or(1, |link| link.path.looks());
        let (mut vain, mut steps, mut idle_since) = (0, 0_u32, now);
        while self.session.in_gate() {
            let moved = step(self, now)?;
            steps = steps.wrapping_add(1);
            if moved {
                vain = 0;
                if steps.is_multiple_of(64) {
                    now = self.clock.now();
                    idle_since = now;
                    self.serve_links(now);
                    self.end_if_failed()?;
                }
                continue;
            }
            if vain == 0 && self.wait.spin_ns > 0 {
                now = self.clock.now();
                idle_since = now;
            }
            vain += 1;
            std::hint::spin_loop();
            if vain % looks == 0 || self.wait.spin_ns == 0 {
                now = self.clock.now();
                self.serve_links(now);
                self.hear_links(now);
                self.end_if_failed()?;
                if now.since(idle_since) >= self.wait.spin_ns {
                    self.sleep_in_gate(now);
                }
            }
        }
        // A session that has failed is in no gate either.
        self.end_if_failed()
    }

    /// Moves what can be moved of a gate that goes to everybody.
    fn move_gate<Place: AsMut<[u8]>>(
        &mut self,
        now: Time,
        out: &[u8],
        incoming: &mut [Place],
    ) -> Result<bool, LinkError> {
        let (mut moved, mut ended) = (false, None);
        let session = &mut self.session;
        for (link, place) in self.links.iter_mut().zip(incoming).filter(|it| it.0.open) {
            let (head, body) = session.gate_to_write(link.peer);
            if !head.is_empty() || !body.is_empty() {
                match link.path.write(head, out.get(body).unwrap_or_default()) {
                    Ok(count) => {
                        session.gate_wrote(link.peer, count);
                        moved |= count > 0;
                    }
                    Err(error) if is_later(&error) => {}
                    // Read what the peer sent before it went; the end shows there.
                    Err(_) => {}
                }
            }
            let (head, body) = session.gate_to_read(link.peer);
            if head.is_empty() && body.is_empty() {
                continue;
            }
            let place = place.as_mut();
            match link
                .path
                .read(head, place.get_mut(body).unwrap_or_default())
            {
                Ok(count) => {
                    moved = true;
                    if let Err(error) = session.gate_read(now, link.peer, count, place) {
                        self.close();
                        return Err(error.into());
                    }
                }
                Err(error) if is_later(&error) => {}
                Err(error) if link.path.explains() => ended = Some((link.peer, error)),
                Err(error) => {
                    link.open = false;
                    lost(session, now, link.peer, Channel::Data, &error);
                }
            }
        }
        self.end_if_path_failed(now, ended)?;
        Ok(moved)
    }

    /// Ends the run for a path that says why it ended.
    fn end_if_path_failed(
        &mut self,
        now: Time,
        ended: Option<(u32, std::io::Error)>,
    ) -> Result<(), LinkError> {
        match ended {
            None => Ok(()),
            Some((peer, why)) => {
                self.path_failed(now, peer, &why);
                self.end_if_failed()
            }
        }
    }

    /// Moves what can be moved of a gate that goes round.
    fn move_ring(&mut self, now: Time, vector: &mut [u8]) -> Result<bool, LinkError> {
        let (mut moved, mut ended) = (false, None);
        let session = &mut self.session;
        if let Some((peer, head, body)) = session.ring_to_write(vector)
            && !(head.is_empty() && body.is_empty())
            && let Some(link) = self.links.iter_mut().find(|it| it.peer == peer && it.open)
        {
            match link.path.write(head, body) {
                Ok(count) => {
                    session.ring_wrote(count, vector);
                    moved |= count > 0;
                }
                Err(error) if is_later(&error) => {}
                // Nothing comes from there in this gate: the end shows here and nowhere else.
                Err(error) if link.path.explains() => ended = Some((peer, error)),
                Err(_) => {
                    link.open = false;
                    session.closed(now, peer, Channel::Data);
                }
            }
        }
        if let Some((peer, head, body)) = session.ring_to_read(vector)
            && !(head.is_empty() && body.is_empty())
            && let Some(link) = self.links.iter_mut().find(|it| it.peer == peer && it.open)
        {
            match link.path.read(head, body) {
                Ok(count) => {
                    moved = true;
                    if let Err(error) = session.ring_read(now, count, vector) {
                        self.close();
                        return Err(error.into());
                    }
                }
                Err(error) if is_later(&error) => {}
                Err(error) if link.path.explains() => ended = Some((peer, error)),
                Err(error) => {
                    link.open = false;
                    lost(session, now, peer, Channel::Data, &error);
                }
            }
        }
        self.end_if_path_failed(now, ended)?;
        Ok(moved)
    }

    /// Notices the death of peers whose path has a bell.
    fn hear_links(&mut self, now: Time) {
        let belled = |link: &&mut Link| link.open && !link.path.explains();
        for link in self.links.iter_mut().filter(belled) {
            if link.path.listen(now).is_err() {
                // The last bytes may lie there still: they are read until there are none.
                let unread = self.session.gate_wants(link.peer).reads;
                if unread && link.path.doze(false).is_ok_and(|empty| !empty) {
                    continue;
                }
                link.open = false;
                self.session.closed(now, link.peer, Channel::Data);
            }
        }
    }

    fn sleep_in_gate(&mut self, now: Time) {
        // Of a peer that has nothing to do with this gate any more, bytes of the next may be there.
        for link in self.links.iter_mut().filter(|link| link.open) {
            let Wants { reads, writes } = self.session.gate_wants(link.peer);
            if !reads && !writes {
                continue;
            }
            match link.path.doze(writes) {
                Ok(true) => {}
                Ok(false) => return,
                // The next look finds it and says why.
                Err(_) if link.path.explains() => return,
                Err(_) => {
                    link.open = false;
                    self.session.closed(now, link.peer, Channel::Data);
                }
            }
        }
        let mut fds = Sleepers::new();
        let mut due = Time::NEVER;
        for link in self.links.iter().filter(|link| link.open) {
            let Wants { reads, writes } = self.session.gate_wants(link.peer);
            if reads || writes {
                let sleeps = link.path.sleeps_on(reads, writes);
                fds.extend(sleeps.map(|(fd, events)| PollFd::from_borrowed_fd(fd, events)));
            }
            if let Some(beside) = link.beside.as_ref().filter(|_| link.path.explains()) {
                let beside = beside.stream().as_fd();
                fds.push(PollFd::from_borrowed_fd(beside, PollFlags::IN));
            }
            due = due.min(link.path.due());
        }
        self.sleep(fds, self.clock.until(due, LOOK));
    }
}
