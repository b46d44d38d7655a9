//! Sums by a collective library: the ranks join a group of it, prove it and pass gates through it.
//!
//! The library makes sums on devices and is asked on a thread of its own; here its answers are
//! awaited beside the control connections, so that a peer's word, the wish to stop and the deadline
//! end a wait whatever the library does.

use std::os::fd::AsFd as _;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};

use super::path::Path;
use super::rank::{LOOK, LinkError, Rank, Sleepers, is_gone};
use crate::backend::driver::Vendor;
use crate::backend::{Backend as _, BackendError};
use crate::device::DeviceAddress;
use crate::nccl::{Answer, Group, Order, Seat};
use crate::tp::collective::{CollectiveMessage, NCCL, Offer, RCCL};
use crate::tp::reduce::sum_in_order;
use crate::tp::schedule::Gate;
use crate::tp::time::Time;
use crate::tp::transport::{Transport, TransportSet};
use crate::tp::trust::{Channel, SessionId};

/// Bytes of the sum with which a group is proved.
const PROBE_BYTES: usize = 256 << 10;
const POISON: u8 = 0xa5;

/// A part of a gate, or its sum, on the device of the rank's seat.
#[derive(Clone, Copy, Debug)]
pub struct OnDevice {
    /// The own part.
    pub from: DeviceAddress,
    /// Where the sum comes to lie.
    pub to: DeviceAddress,
    /// Bytes of each: a multiple of four.
    pub bytes: usize,
}

/// What a rank has of a library.
#[derive(Debug, Default)]
pub(super) struct Collective {
    group: Option<Group>,
    /// Of a group that could not be ended.
    left: Option<String>,
}

/// A group in the making.
pub(super) struct Joining<'a> {
    pub(super) rank: &'a mut Rank,
    pub(super) session: SessionId,
    pub(super) due: Time,
    /// The memory of the probe.
    pub(super) place: Option<DeviceAddress>,
}

impl Joining<'_> {
    /// Joins the group of all ranks and proves it by a sum. What goes wrong is told to the others.
    pub(super) fn join(
        mut self,
        seat: Option<&Seat>,
        offered: TransportSet,
    ) -> Result<Group, String> {
        let seat = seat.ok_or("it is not among the transports that this rank may use")?;
        let leads = self.rank.session().rank() == 0;
        let joined = if offered.has(Transport::Nccl) {
            self.join_group(seat)
        } else {
            Err("a peer does not offer it".to_owned())
        };
        // The leader knows its own words.
        let news = self.rank.session.collective_refusal().is_none();
        if let Err(why) = &joined
            && (leads || (news && offered.has(Transport::Nccl)))
        {
            let now = self.rank.clock.now();
            let message = CollectiveMessage::Nothing(why.clone());
            self.rank.session.tell_collective(now, &message);
            self.rank.serve_links(now);
        }
        joined
    }

    fn join_group(&mut self, seat: &Seat) -> Result<Group, String> {
        let (rank, ranks) = (self.rank.session().rank(), self.rank.session().ranks());
        let own = Offer {
            library: match seat.library.vendor() {
                Vendor::Cuda => NCCL,
                Vendor::Hip => RCCL,
            },
            version: seat.library.version(),
            name: [0; 128],
        };
        let mut group = Group::start(seat).map_err(|error| error.to_string())?;
        let name = if rank == 0 {
            let Answer::Name(name) = self.ask(&mut group, Order::Name)? else {
                return Err("the library named no group".to_owned());
            };
            let now = self.rank.clock.now();
            let offer = Box::new(Offer { name: *name, ..own });
            let message = CollectiveMessage::Offer(offer);
            self.rank.session.tell_collective(now, &message);
            name
        } else {
            Box::new(self.hear_offer(&own)?.name)
        };
        let join = Order::Join {
            id: name,
            rank,
            ranks,
        };
        let joined = self.ask(&mut group, join);
        let proved = joined.and_then(|_| self.prove(&mut group, seat));
        if let Err(why) = proved {
            let ended = group.give_up(Duration::from_nanos(GIVE_UP_NS));
            return Err(match (ended, self.place.take()) {
                (Ok(()), Some(place)) => {
                    // What led here says more than that it cannot be given back.
                    let _ = seat.backend.free(seat.device, place);
                    why
                }
                (Ok(()), None) => why,
                (Err(more), _) => {
                    let said = format!("{why}; {more}");
                    self.rank.collective.left = Some(more);
                    said
                }
            });
        }
        Ok(group)
    }

    /// A worker waits for the name of the group.
    fn hear_offer(&mut self, own: &Offer) -> Result<Offer, String> {
        loop {
            if let Some(offer) = self.rank.session.collective_offer().copied() {
                return if (offer.library, offer.version) == (own.library, own.version) {
                    Ok(offer)
                } else {
                    Err(format!(
                        "rank 0 has {}, this rank {}: install the same everywhere",
                        described(&offer),
                        described(own)
                    ))
                };
            }
            self.look()?;
            self.rank.sleep_beside(None, self.due);
        }
    }

    /// Gives an order and waits for the answer.
    fn ask(&mut self, group: &mut Group, order: Order) -> Result<Answer, String> {
        group.order(order);
        loop {
            group.hush();
            match group.answer() {
                Some(Answer::Failed(why)) => return Err(format!("{why} ({})", group.origin())),
                Some(answer) => return Ok(answer),
                None => {}
            }
            self.look()?;
            self.rank.sleep_beside(Some(group), self.due);
        }
    }

    /// Serves the control connections; an error if going on makes no sense.
    fn look(&mut self) -> Result<(), String> {
        let now = self.rank.clock.now();
        self.rank.serve_links(now);
        self.rank.notice_gone(now);
        let session = &self.rank.session;
        if let Some(error) = session.error() {
            return Err(error.to_string());
        }
        if let Some((peer, why)) = session.collective_refusal() {
            return Err(format!("rank {peer}: {why}"));
        }
        if let Some(peer) = session.voted_without(Transport::Nccl) {
            return Err(format!("rank {peer} did not join"));
        }
        if now >= self.due {
            return Err("the group did not come about in time".to_owned());
        }
        Ok(())
    }

    /// A sum of all ranks, compared with ours: of whole numbers bit by bit, of fractions, whose sum
    /// depends on the order, within (ranks - 1) units in the last place of the sum of their sizes.
    fn prove(&mut self, group: &mut Group, seat: &Seat) -> Result<(), String> {
        let (own, ranks) = (self.rank.session().rank(), self.rank.session().ranks());
        let part = |rank| probe_part(&self.session, rank);
        let (backend, device) = (&seat.backend, seat.device);
        let words = |error: BackendError| error.to_string();
        let bytes = PROBE_BYTES as u64;
        let place = backend.allocate(device, 2 * bytes).map_err(words)?;
        self.place = Some(place);
        let to = DeviceAddress(place.0 + bytes);
        let mine = part(own);
        let parts: Vec<Vec<u8>> = (0..ranks).map(part).collect();
        let mut sum = vec![POISON; PROBE_BYTES];
        backend.write(device, place, &mine).map_err(words)?;
        backend.write(device, to, &sum).map_err(words)?;
        let order = Order::Sum {
            from: place,
            to,
            bytes,
        };
        // While the library may still write there, the memory is nobody else's.
        self.ask(group, order)?;
        backend.read(device, to, &mut sum).map_err(words)?;
        self.place = None;
        backend.free(device, place).map_err(words)?;
        let mut ours = vec![0; PROBE_BYTES];
        sum_in_order(&mut ours, parts.iter().map(Vec::as_slice));
        let sizes = sizes_of(&parts);
        let compared = compare(&ours, &sum, &sizes, ranks);
        compared.map_err(|why| format!("{why} ({})", seat.library.origin()))
    }
}

/// How long a group that is given up may take to end.
const GIVE_UP_NS: u64 = 2_000_000_000;

impl Rank {
    /// Passes a gate whose sum the library makes, on the device of the rank's seat.
    ///
    /// # Errors
    /// The session has ended, for the reason given; what lies in the sum's place is worthless, and
    /// if the library [is stuck](crate::nccl::Library::is_stuck), it may still write there.
    pub fn all_reduce(&mut self, gate: Gate, vector: OnDevice) -> Result<(), LinkError> {
        let now = self.clock.now();
        if self.collective.group.is_none() {
            return Err(LinkError::Setup("no group was joined".to_owned()));
        }
        self.session.collective_begin(now, gate, vector.bytes)?;
        if let Some(group) = &mut self.collective.group {
            group.order(Order::Sum {
                from: vector.from,
                to: vector.to,
                bytes: vector.bytes as u64,
            });
        }
        let mut idle_since = now;
        while let Some(group) = &mut self.collective.group {
            match group.answer() {
                Some(Answer::Failed(why)) => return self.sum_failed(&why),
                Some(_) => {
                    self.session.collective_done();
                    return self.end_if_failed();
                }
                None => std::hint::spin_loop(),
            }
            let now = self.clock.now();
            if self.wait.spin_ns > 0
                && now.since(idle_since) < SPIN_SERVES_NS.min(self.wait.spin_ns)
            {
                continue;
            }
            self.serve_links(now);
            self.notice_gone(now);
            self.end_if_failed()?;
            if self.wait.spin_ns == u64::MAX {
                idle_since = now;
                continue;
            }
            self.sleep_beside_own(Time::NEVER);
        }
        self.end_if_failed()
    }

    /// What did not end with the group, in words.
    pub(super) fn left_behind(&self) -> Option<&str> {
        self.collective.left.as_deref()
    }

    pub(super) fn take_group(&mut self, group: Option<Group>) {
        self.collective.group = group;
    }

    /// Ends the membership whatever is under way.
    pub(super) fn give_up_group(&mut self) {
        if let Some(mut group) = self.collective.group.take()
            && let Err(why) = group.give_up(Duration::from_nanos(GIVE_UP_NS))
        {
            self.collective.left = Some(why);
        }
    }

    /// The library failed. A peer that has died, or has said why it ends, is the better reason: it
    /// gets the moment that a broken connection gives.
    fn sum_failed(&mut self, why: &str) -> Result<(), LinkError> {
        let grace_ns = self.session.deadlines().close_ns / 4;
        let due = self.clock.now().after(grace_ns);
        loop {
            let now = self.clock.now();
            self.serve_links(now);
            self.notice_gone(now);
            self.end_if_failed()?;
            if now >= due {
                break;
            }
            self.sleep_beside(None, due);
        }
        let (now, own) = (self.clock.now(), self.session.rank());
        self.session.path_failed(now, own, why);
        self.end_if_failed()
    }

    /// Tells the session of data connections that ended: nobody reads them while a library sums.
    fn notice_gone(&mut self, now: Time) {
        for link in self.links.iter_mut().filter(|link| link.open) {
            if let Path::Tcp(wire) = &link.path
                && is_gone(wire.stream())
            {
                link.open = false;
                self.session.closed(now, link.peer, Channel::Data);
            }
        }
    }

    fn sleep_beside_own(&self, due: Time) {
        if let Some(group) = &self.collective.group {
            self.sleep_beside(Some(group), due);
            group.hush();
        }
    }

    /// Sleeps until the library answers, a peer says something, or something is due.
    fn sleep_beside(&self, group: Option<&Group>, due: Time) {
        let mut fds = Sleepers::new();
        if let Some(group) = group {
            fds.push(PollFd::from_borrowed_fd(group.bell(), PollFlags::IN));
        }
        for link in self.links.iter().filter(|link| link.open) {
            if let Path::Tcp(wire) = &link.path {
                let stream = wire.stream().as_fd();
                fds.push(PollFd::from_borrowed_fd(stream, PollFlags::RDHUP));
            }
        }
        self.sleep(fds, self.clock.until(due, LOOK));
    }
}

/// For so long at a time a rank looks for the answer alone.
const SPIN_SERVES_NS: u64 = 100_000;

fn described(offer: &Offer) -> String {
    let name = if offer.library == NCCL {
        "NCCL"
    } else {
        "RCCL"
    };
    format!("{name} of version code {}", offer.version)
}

/// A rank's part of the probe: whole numbers below 2^18 in the first half, fractions of either sign
/// in the second.
fn probe_part(session: &SessionId, rank: u32) -> Vec<u8> {
    let mut words = super::probe::pattern(session, rank, rank);
    words.truncate(PROBE_BYTES);
    let half = words.len() / 2;
    let (numbers, _) = words.as_chunks_mut::<4>();
    for (index, number) in numbers.iter_mut().enumerate() {
        let bits = u32::from_le_bytes(*number) >> 14;
        #[expect(clippy::cast_precision_loss, reason = "18 bits are exact")]
        let whole = bits as f32;
        let value = if index * 4 < half {
            whole
        } else {
            (whole - 131_072.0) / 3.0
        };
        *number = value.to_le_bytes();
    }
    words
}

/// The sum of the sizes of all parts, at each place.
fn sizes_of(parts: &[Vec<u8>]) -> Vec<f64> {
    let mut sizes = vec![0.0; PROBE_BYTES / 4];
    for part in parts {
        let (numbers, _) = part.as_chunks::<4>();
        for (size, number) in sizes.iter_mut().zip(numbers) {
            *size += f64::from(f32::from_le_bytes(*number)).abs();
        }
    }
    sizes
}

/// Compares the library's sum with ours.
fn compare(ours: &[u8], theirs: &[u8], sizes: &[f64], ranks: u32) -> Result<(), String> {
    let (ours, _) = ours.as_chunks::<4>();
    let (theirs, _) = theirs.as_chunks::<4>();
    let numbers = ours.iter().zip(theirs).zip(sizes);
    for (index, ((own, their), size)) in numbers.enumerate() {
        let (own, their) = (f32::from_le_bytes(*own), f32::from_le_bytes(*their));
        let bound = f64::from(ranks - 1) * f64::from(f32::EPSILON) * size;
        let apart = (f64::from(own) - f64::from(their)).abs();
        let exact = index < ours.len() / 2;
        let equal = if exact {
            own.to_bits() == their.to_bits()
        } else {
            apart <= bound
        };
        if !equal {
            return Err(format!(
                "its sum differs from ours: {their:e} instead of {own:e} at place {index}"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_order_is_accepted_and_a_flipped_bit_or_a_lost_part_is_not() {
        let session = SessionId::default();
        for ranks in [2, 3, 8] {
            let mut parts: Vec<Vec<u8>> = (0..ranks).map(|it| probe_part(&session, it)).collect();
            let sum = |parts: &[Vec<u8>]| {
                let mut sum = vec![0; PROBE_BYTES];
                sum_in_order(&mut sum, parts.iter().map(Vec::as_slice));
                sum
            };
            let ours = sum(&parts);
            let sizes = sizes_of(&parts);
            parts.reverse();
            let mut theirs = sum(&parts);
            assert_eq!(compare(&ours, &theirs, &sizes, ranks), Ok(()));
            assert_eq!(ours == theirs, ranks == 2, "fractions depend on the order");
            assert!(compare(&ours, &sum(&parts[1..]), &sizes, ranks).is_err());
            theirs[9] ^= 1;
            let why = compare(&ours, &theirs, &sizes, ranks).unwrap_err();
            assert!(why.ends_with("at place 2"), "{why}");
        }
    }
}
