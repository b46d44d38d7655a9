//! Two ranks connect queue pairs, over the data connection that they have proved already.
//!
//! Each side first says what it has, or why it has nothing. Then the lower rank leads: it tries
//! pairs of addresses, the best first, until one carries the probe, and says so when none is left.
//! What goes wrong on one side is told to the other, so that both know the same reason.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};

use super::calls::{Library, PairKind};
use super::endpoint::{EndError, Endpoint};
use super::gid::{Gid, GidKind, GidTable, LinkLayer, rank_gids};
use super::path::VerbsPath;
use super::survey::{Taken, Wish, survey, take};
use crate::tp::frame::{HEAD_BYTES, Head, Kind, push_control};
use crate::tp::time::Time;
use crate::tp::verbs::{self, Offer, OfferedGid, VerbsMessage, Verdict};
use crate::transport::clock::Clock;
use crate::transport::path::{Path, is_later};
use crate::transport::wait::timespec;
use crate::transport::wire::Wire;

/// Pairs of addresses that are tried with one peer.
const ATTEMPTS_MAX: usize = 3;

/// What a rank brings for memory access over the network.
#[derive(Clone, Debug, Default)]
pub struct Rdma {
    /// The library, or none with the reason.
    pub library: Option<Arc<dyn Library>>,
    /// Why there is none.
    pub why_none: String,
    /// What the user asks for.
    pub wish: Wish,
    /// Only connections that may lose what they carry, which else are made where no others can be.
    pub unreliable: bool,
}

impl Rdma {
    /// The port that this rank would use, or why none.
    fn taken(&self, talks_by: &[IpAddr]) -> Result<(Arc<dyn Library>, Taken), String> {
        let library = self.library.clone().ok_or_else(|| self.why_none.clone())?;
        let reports = survey(&*library).map_err(|error| no_devices(&error))?;
        let taken = take(&reports, &self.wish, talks_by).map_err(|error| error.to_string())?;
        Ok((library, taken))
    }
}

/// What a list of devices that cannot be had means.
#[must_use]
pub fn no_devices(error: &super::calls::CallError) -> String {
    format!("this host has no RDMA device (the kernel's support is not loaded: {error})")
}

/// What this side has.
pub(in crate::transport) struct Side {
    pub(in crate::transport) own: u32,
    rdma: Rdma,
    have: Result<(Arc<dyn Library>, Taken), String>,
}

/// A side that knows the peer's table.
pub(in crate::transport) struct Pairing {
    peer: u32,
    offered: Result<Offer, String>,
    talk: Talk,
}

/// Frames on a data connection.
struct Talk {
    clock: Clock,
    due: Time,
    sent: u64,
    heard: u64,
}

impl Side {
    /// Looks at what there is; `refusal` says why nothing is wanted.
    pub(in crate::transport) fn new(
        own: u32,
        rdma: &Rdma,
        talks_by: &[IpAddr],
        refusal: Option<String>,
    ) -> Self {
        let have = match refusal {
            Some(why) => Err(why),
            None => rdma.taken(talks_by),
        };
        Self {
            own,
            rdma: rdma.clone(),
            have,
        }
    }

    /// Tells a peer what this side has.
    pub(in crate::transport) fn offer(
        &self,
        clock: Clock,
        due: Time,
        peer: u32,
        wire: &mut Wire,
    ) -> Result<Pairing, String> {
        let message = match &self.have {
            Err(why) => VerbsMessage::Nothing(why.clone()),
            Ok((_, taken)) => VerbsMessage::Offer(Offer {
                link: taken.report.table.link.code(),
                kinds: if self.rdma.unreliable {
                    verbs::UNRELIABLE
                } else {
                    verbs::RELIABLE | verbs::UNRELIABLE
                },
                gids: offered(taken),
            }),
        };
        let mut talk = Talk {
            clock,
            due,
            sent: 0,
            heard: 0,
        };
        talk.say(wire, &message)?;
        Ok(Pairing {
            peer,
            offered: Err(String::new()),
            talk,
        })
    }

    /// Hears what the peer has.
    pub(in crate::transport) fn hear_offer(
        &self,
        pairing: &mut Pairing,
        wire: &mut Wire,
    ) -> Result<(), String> {
        pairing.offered = match pairing.talk.hear(wire)? {
            VerbsMessage::Offer(offer) => Ok(offer),
            VerbsMessage::Nothing(why) => Err(why),
            VerbsMessage::Endpoint(_) | VerbsMessage::Verdict(..) => return Err(out_of_turn()),
        };
        Ok(())
    }

    /// Connects with a peer, the two sides in step; `probe` judges the path. The way in words comes
    /// back with it.
    pub(in crate::transport) fn meet(
        &self,
        pairing: &mut Pairing,
        wire: &mut Wire,
        psns: &mut dyn FnMut() -> u32,
        probe: &mut dyn FnMut(&mut Path) -> Result<(), String>,
    ) -> Result<(Path, String), String> {
        let peer = pairing.peer;
        let (library, taken) = match (&self.have, &pairing.offered) {
            (Err(why), _) => return Err(why.clone()),
            (_, Err(why)) => return Err(format!("rank {peer}: {why}")),
            (Ok(have), Ok(_)) => have,
        };
        let offer = pairing.offered.clone().unwrap_or_else(|_| empty_offer());
        let mut attempt = Attempt {
            library: &**library,
            taken,
            talk: &mut pairing.talk,
            wire,
            psns,
            probe,
        };
        if self.own < peer {
            attempt.lead(&offer, self.rdma.unreliable)
        } else {
            attempt.follow()
        }
        .map_err(|why| format!("rank {peer}: {why}"))
    }
}

fn shown(gid: [u8; 16]) -> Ipv6Addr {
    Ipv6Addr::from(gid)
}

fn empty_offer() -> Offer {
    Offer {
        link: 0,
        kinds: 0,
        gids: Vec::new(),
    }
}

/// How one try ended, if not well.
enum Missed {
    /// Another kind of connection may do.
    Kind(String),
    /// Other addresses may do.
    Addresses(String),
    /// Nothing will.
    Over(String),
}

struct Attempt<'a> {
    library: &'a dyn Library,
    taken: &'a Taken,
    talk: &'a mut Talk,
    wire: &'a mut Wire,
    psns: &'a mut dyn FnMut() -> u32,
    probe: &'a mut dyn FnMut(&mut Path) -> Result<(), String>,
}

impl Attempt<'_> {
    /// The lower rank: chooses kind and addresses until some work.
    fn lead(&mut self, offer: &Offer, unreliable: bool) -> Result<(Path, String), String> {
        let own = &self.taken.report.table;
        let theirs = table_of(offer);
        let choices = rank_gids(own, Some(&theirs));
        let address = |table: &GidTable, index: Option<u32>| {
            let found = table.gids.iter().find(|gid| Some(gid.index) == index);
            found.map(|gid| gid.raw)
        };
        let pairs: Vec<([u8; 16], [u8; 16])> = choices
            .iter()
            .filter_map(|it| Some((address(own, Some(it.index))?, address(&theirs, it.peer)?)))
            .take(ATTEMPTS_MAX)
            .collect();
        let mut tried: Vec<String> = Vec::new();
        let reliable = !unreliable && offer.kinds & verbs::RELIABLE != 0;
        let mut kinds = vec![PairKind::Reliable, PairKind::Unreliable];
        if !reliable {
            kinds.remove(0);
        }
        'kinds: for kind in kinds {
            for (gid, peer_gid) in &pairs {
                match self.try_first(kind, *gid, *peer_gid) {
                    Ok(made) => return Ok(made),
                    Err(Missed::Over(last)) => return Err(last),
                    Err(Missed::Addresses(why)) => {
                        tried.push(format!("{} to {}: {why}", shown(*gid), shown(*peer_gid)));
                    }
                    Err(Missed::Kind(why)) => {
                        tried.push(why);
                        continue 'kinds;
                    }
                }
            }
            // A kind that could be made and did not carry is no reason for a worse one.
            break;
        }
        if tried.is_empty() {
            tried.push(if own.link == theirs.link {
                "no address of one port reaches one of the other".to_owned()
            } else {
                format!("{} here and {} there", own.link, theirs.link)
            });
        }
        let why = tried.join("; then ");
        self.talk.say(
            self.wire,
            &VerbsMessage::Verdict(Verdict::Over, why.clone()),
        )?;
        Err(why)
    }

    fn try_first(
        &mut self,
        kind: PairKind,
        gid: [u8; 16],
        peer_gid: [u8; 16],
    ) -> Result<(Path, String), Missed> {
        let prepared = Endpoint::prepare(self.library, self.taken, gid, kind, (self.psns)());
        let end = prepared.map_err(missed)?;
        let said = VerbsMessage::Endpoint(end.said(peer_gid));
        self.talk.say(self.wire, &said).map_err(Missed::Over)?;
        let peer = match self.talk.hear(self.wire).map_err(Missed::Over)? {
            VerbsMessage::Endpoint(peer) => peer,
            VerbsMessage::Verdict(Verdict::NoKind, why) => return Err(Missed::Kind(why)),
            VerbsMessage::Verdict(_, why) => return Err(Missed::Addresses(why)),
            VerbsMessage::Offer(_) | VerbsMessage::Nothing(_) => {
                return Err(Missed::Over(out_of_turn()));
            }
        };
        self.finish(end, &peer)
    }

    /// The higher rank: does what the lower one says.
    fn follow(&mut self) -> Result<(Path, String), String> {
        loop {
            let peer = match self.talk.hear(self.wire)? {
                VerbsMessage::Endpoint(peer) => peer,
                VerbsMessage::Verdict(Verdict::Over, why) => return Err(why),
                VerbsMessage::Offer(_) | VerbsMessage::Nothing(_) | VerbsMessage::Verdict(..) => {
                    return Err(out_of_turn());
                }
            };
            let kind = if peer.kind == PairKind::Reliable.code() {
                PairKind::Reliable
            } else {
                PairKind::Unreliable
            };
            let gid = peer.peer_gid;
            let allowed = self.taken.report.table.gids.iter().any(|it| it.raw == gid);
            let prepared = if allowed {
                Endpoint::prepare(self.library, self.taken, gid, kind, (self.psns)())
            } else {
                Err(EndError::Peer(
                    "the peer chose an address that was not offered",
                ))
            };
            let end = match prepared.map_err(missed) {
                Ok(end) => end,
                Err(Missed::Kind(why)) => {
                    let verdict = VerbsMessage::Verdict(Verdict::NoKind, why);
                    self.talk.say(self.wire, &verdict)?;
                    continue;
                }
                Err(Missed::Addresses(why) | Missed::Over(why)) => {
                    let verdict = VerbsMessage::Verdict(Verdict::Failed, why);
                    self.talk.say(self.wire, &verdict)?;
                    continue;
                }
            };
            let said = VerbsMessage::Endpoint(end.said(peer.gid));
            self.talk.say(self.wire, &said)?;
            match self.finish(end, &peer) {
                Ok(made) => return Ok(made),
                Err(Missed::Over(why)) => return Err(why),
                // The lower rank has the same verdict and goes on.
                Err(Missed::Addresses(_) | Missed::Kind(_)) => {}
            }
        }
    }

    /// Both ends are there: connect, agree, probe, agree.
    fn finish(&mut self, end: Endpoint, peer: &verbs::Endpoint) -> Result<(Path, String), Missed> {
        let words = end.words(&self.taken.device);
        let connected = end.connect(peer).map_err(|error| error.to_string());
        let path = self.agree(connected, None)?;
        let mut path = Path::Verbs(Box::new(path));
        let probed = (self.probe)(&mut path);
        self.agree(probed, Some(&mut path))?;
        Ok((path, words))
    }

    /// Both sides tell how it went; it went well if it did on both. A path is looked after
    /// meanwhile: what the peer still waits for may have to be sent again.
    fn agree<T>(&mut self, went: Result<T, String>, path: Option<&mut Path>) -> Result<T, Missed> {
        let verdict = match &went {
            Ok(_) => VerbsMessage::Verdict(Verdict::Good, String::new()),
            Err(why) => VerbsMessage::Verdict(Verdict::Failed, why.clone()),
        };
        self.talk.say(self.wire, &verdict).map_err(Missed::Over)?;
        let heard = self.talk.hear_beside(self.wire, path);
        match (went, heard.map_err(Missed::Over)?) {
            (Ok(value), VerbsMessage::Verdict(Verdict::Good, _)) => Ok(value),
            (Err(why), VerbsMessage::Verdict(..)) => Err(Missed::Addresses(why)),
            (Ok(_), VerbsMessage::Verdict(_, why)) => Err(Missed::Addresses(why)),
            _ => Err(Missed::Over(out_of_turn())),
        }
    }
}

fn missed(error: EndError) -> Missed {
    match error {
        EndError::NoPair(..) => Missed::Kind(error.to_string()),
        EndError::Call(_)
        | EndError::NoRegion(_)
        | EndError::Memory(_)
        | EndError::Gone(_)
        | EndError::Peer(_) => Missed::Addresses(error.to_string()),
    }
}

impl Talk {
    fn say(&mut self, wire: &mut Wire, message: &VerbsMessage) -> Result<(), String> {
        self.sent += 1;
        let mut frame = Vec::new();
        if !push_control(&mut frame, Kind::Verbs, self.sent, &message.encode()) {
            return Err("a message about RDMA is too long".to_owned());
        }
        let mut rest = frame.as_slice();
        while !rest.is_empty() {
            match wire.write(&[], rest) {
                Ok(count) => rest = rest.get(count..).unwrap_or_default(),
                Err(error) => self.wait(&error, wire, PollFlags::OUT, None)?,
            }
        }
        Ok(())
    }

    fn hear(&mut self, wire: &mut Wire) -> Result<VerbsMessage, String> {
        self.hear_beside(wire, None)
    }

    fn hear_beside(
        &mut self,
        wire: &mut Wire,
        mut path: Option<&mut Path>,
    ) -> Result<VerbsMessage, String> {
        let mut head = [0; HEAD_BYTES];
        self.fill(wire, &mut head, path.as_deref_mut())?;
        let head = Head::decode(&head).map_err(|error| error.to_string())?;
        self.heard += 1;
        if head.kind != Kind::Verbs || head.seq != self.heard {
            return Err(out_of_turn());
        }
        // The kind's cap bounds it.
        let mut payload = vec![0; usize::try_from(head.bytes).unwrap_or(0)];
        self.fill(wire, &mut payload, path)?;
        if head.payload_crc != Some(crc32c::crc32c(&payload)) {
            return Err("a message about RDMA is damaged".to_owned());
        }
        VerbsMessage::decode(&payload)
            .map_err(|_| "a message about RDMA has another version or is not valid".to_owned())
    }

    fn fill(
        &self,
        wire: &mut Wire,
        mut rest: &mut [u8],
        mut path: Option<&mut Path>,
    ) -> Result<(), String> {
        while !rest.is_empty() {
            match wire.read(&mut [], rest) {
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                    return Err("the peer closed the data connection".to_owned());
                }
                Ok(count) => rest = rest.get_mut(count..).unwrap_or_default(),
                Err(error) => {
                    self.wait(&error, wire, PollFlags::IN, path.as_deref_mut())?;
                }
            }
        }
        Ok(())
    }

    /// Waits until a socket that was not ready is.
    fn wait(
        &self,
        error: &std::io::Error,
        wire: &Wire,
        events: PollFlags,
        path: Option<&mut Path>,
    ) -> Result<(), String> {
        if error.kind() == ErrorKind::Interrupted {
            return Ok(());
        }
        if !is_later(error) {
            return Err(error.to_string());
        }
        if self.clock.now() >= self.due {
            return Err("the peer did not answer in time about RDMA".to_owned());
        }
        let (mut due, mut most) = (self.due, 50);
        if let Some(path) = path {
            // A failure shows in the peer's verdict, or at the first gate.
            let _ = path.listen(self.clock.now());
            (due, most) = (due.min(path.due()), 2);
        }
        let limit = timespec(self.clock.until(due, Duration::from_millis(most)));
        // An interrupted wait is a short one.
        let _ = poll(&mut [PollFd::new(wire.stream(), events)], Some(&limit));
        Ok(())
    }
}

fn out_of_turn() -> String {
    "the peer sent something out of turn about RDMA".to_owned()
}

/// A port's entries, best first, as many as an offer has.
fn offered(taken: &Taken) -> Vec<OfferedGid> {
    let table = &taken.report.table;
    let choices = rank_gids(table, None);
    let gids = choices
        .iter()
        .filter_map(|it| table.gids.iter().find(|gid| gid.index == it.index));
    let offered = gids.take(verbs::GIDS_MAX).map(|gid| OfferedGid {
        kind: match gid.kind {
            GidKind::Unknown => 0,
            GidKind::InfiniBand => 1,
            GidKind::RoceV1 => 2,
            GidKind::RoceV2 => 3,
        },
        interface: gid.interface.is_some(),
        raw: gid.raw,
    });
    offered.collect()
}

/// A peer's table; indices are places in the offer.
fn table_of(offer: &Offer) -> GidTable {
    let gids = (0..).zip(&offer.gids).map(|(index, gid)| Gid {
        index,
        kind: match gid.kind {
            1 => GidKind::InfiniBand,
            2 => GidKind::RoceV1,
            3 => GidKind::RoceV2,
            _ => GidKind::Unknown,
        },
        raw: gid.raw,
        interface: gid.interface.then(String::new),
    });
    GidTable {
        link: LinkLayer::from_code(offer.link),
        gids: gids.collect(),
    }
}

/// A path between two ends of one process, for measuring and testing the path itself.
///
/// # Errors
/// [`EndError`].
pub fn connect_pair(one: Endpoint, two: Endpoint) -> Result<(VerbsPath, VerbsPath), EndError> {
    let (first, second) = (one.said([0; 16]), two.said([0; 16]));
    Ok((one.connect(&second)?, two.connect(&first)?))
}
