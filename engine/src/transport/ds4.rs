//! Meeting a rank that speaks ds4's own protocol: two bare connections to the leader's port, control
//! first, data once both hellos fit.
//!
//! Nothing there proves who connects. So much is done without a word more on the wire: who does not
//! begin with a hello is sent away and the next one let in, and the data connection is the next one
//! from the address of the control connection.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd as _;

use rustix::event::{PollFd, PollFlags};

use super::Setup;
use super::dialling::Dialling;
use super::door::{AT_ONCE, Door, PROOF_NS};
use super::rank::{LOOK, LinkError, Rank, Said, Sleepers};
use super::sockets::tune;
use super::wire::Wire;
use crate::tp::session::Phase;
use crate::tp::time::Time;
use crate::tp::transport::Transport;
use crate::tp::trust::Channel;
use crate::tp::v7;

/// Brings a rank up beside another one of ds4's own protocol.
pub(super) fn open(setup: Setup, notice: &mut dyn FnMut(&str)) -> Result<Rank, LinkError> {
    let ranks = setup.config.identity.layout.geometry().ranks;
    if ranks != 2 {
        return Err(LinkError::Setup(format!(
            "ds4's own protocol joins two ranks, not {ranks}"
        )));
    }
    let mut rank = Rank::new(&setup);
    let met = if setup.config.rank == 0 {
        lead(setup, &mut rank, notice)
    } else {
        follow(setup, &mut rank, notice)
    };
    if let Err(error) = met.and_then(|()| become_ready(&mut rank)) {
        rank.close();
        return Err(error);
    }
    rank.chosen = Transport::Tcp;
    "ds4's own protocol has no other here".clone_into(&mut rank.reason);
    Ok(rank)
}

fn become_ready(rank: &mut Rank) -> Result<(), LinkError> {
    match rank.hear()? {
        Said::Ready(_) => Ok(()),
        Said::Probe(_)
        | Said::Message(_)
        | Said::InStep { .. }
        | Said::CheckStep { .. }
        | Said::Finished => Err(LinkError::Setup(
            "the peer spoke before the ranks were together".to_owned(),
        )),
    }
}

fn lead(setup: Setup, rank: &mut Rank, notice: &mut dyn FnMut(&str)) -> Result<(), LinkError> {
    let mut lobby = Lobby::default();
    while rank.session.phase() == Phase::Connecting {
        let now = rank.clock.now();
        lobby.let_in(&setup, rank, now, notice);
        lobby.judge(rank, now, notice);
        step(rank, now, lobby.door.failure())?;
        if rank.session.phase() == Phase::Connecting {
            rank.sleep(lobby.sleepers(&setup), LOOK);
        }
    }
    Ok(())
}

/// Who waits at the leader's port.
#[derive(Default)]
struct Lobby {
    door: Door,
    guests: Vec<Guest>,
    /// From where the rank that has greeted came.
    peer: Option<IpAddr>,
}

/// A connection that has said nothing yet, or not enough.
struct Guest {
    stream: TcpStream,
    from: SocketAddr,
    until: Time,
}

impl Lobby {
    /// Takes the connections that wait: guests, and once the peer is known its data connection.
    fn let_in(&mut self, setup: &Setup, rank: &mut Rank, now: Time, notice: &mut dyn FnMut(&str)) {
        let (guests, peer) = (&mut self.guests, self.peer);
        let enter = |(stream, from): (TcpStream, SocketAddr)| {
            if tune(&stream, setup.buffer_bytes).is_err() {
                return;
            }
            match peer {
                None => guests.push(Guest {
                    stream,
                    from,
                    until: now.after(PROOF_NS),
                }),
                Some(ip) if ip == from.ip() && rank.session.greeted(1) => {
                    if rank.attach(now, 1, Channel::Data, Wire::new(stream, None)) {
                        notice("rank 1: data connection is there");
                    }
                }
                Some(_) => notice(&format!("refused a connection from {from}: not the peer")),
            }
        };
        let sockets = setup.listening.iter().flat_map(|it| &it.sockets);
        self.door.open(sockets, TcpListener::accept, enter);
        let beyond = self.guests.len().saturating_sub(AT_ONCE);
        self.guests.drain(..beyond);
    }

    /// Looks what the guests have said. The first one that greets is the peer; who was there before it
    /// is not its data connection.
    fn judge(&mut self, rank: &mut Rank, now: Time, notice: &mut dyn FnMut(&str)) {
        for guest in std::mem::take(&mut self.guests) {
            match guest.judge(now) {
                Judged::Waits => self.guests.push(guest),
                Judged::Gone(why) => {
                    notice(&format!("refused a connection from {}: {why}", guest.from));
                }
                Judged::Greets => {
                    self.peer = Some(guest.from.ip());
                    rank.attach(now, 1, Channel::Control, Wire::new(guest.stream, None));
                    notice("rank 1: control connection is there");
                    self.guests.clear();
                    return;
                }
            }
        }
    }

    fn sleepers<'a>(&'a self, setup: &'a Setup) -> Sleepers<'a> {
        let sockets = setup.listening.iter().flat_map(|it| &it.sockets);
        let mut fds: Sleepers<'a> = self.door.sleeps_on(sockets).collect();
        // Half a hello keeps a socket readable: it is looked at again after a while.
        let quiet = self.guests.iter().filter(|guest| guest.said() == 0);
        fds.extend(quiet.map(|it| PollFd::from_borrowed_fd(it.stream.as_fd(), PollFlags::IN)));
        fds
    }
}

/// What may be the matter with who says nothing.
const OTHER_PROTOCOL: &str = "; it may be a rank of the native protocol, without --protocol ds4-v7";

enum Judged {
    Waits,
    Greets,
    Gone(String),
}

impl Guest {
    /// How many bytes of a hello are there.
    fn said(&self) -> usize {
        self.stream.peek(&mut [0; v7::HELLO_BYTES]).unwrap_or(0)
    }

    /// Looks at what is there and leaves it there.
    fn judge(&self, now: Time) -> Judged {
        let mut bytes = [0; v7::HELLO_BYTES];
        match self.stream.peek(&mut bytes) {
            Ok(0) => Judged::Gone(format!("it went away without a hello{OTHER_PROTOCOL}")),
            Ok(count) if !v7::begins_hello(bytes.get(..count).unwrap_or_default()) => {
                Judged::Gone("what it says is no hello of ds4".to_owned())
            }
            Ok(v7::HELLO_BYTES) => Judged::Greets,
            Err(error) if error.kind() != ErrorKind::WouldBlock => Judged::Gone(error.to_string()),
            Ok(_) | Err(_) if now < self.until => Judged::Waits,
            Ok(_) | Err(_) => Judged::Gone(format!("it said no hello in time{OTHER_PROTOCOL}")),
        }
    }
}

fn follow(setup: Setup, rank: &mut Rank, notice: &mut dyn FnMut(&str)) -> Result<(), LinkError> {
    let remote = setup.remotes.into_iter().find(|it| it.rank == 0);
    let remote =
        remote.ok_or_else(|| LinkError::Setup("the address of rank 0 is not known".to_owned()))?;
    let dial = |channel, now| Dialling::new(remote.clone(), channel, setup.buffer_bytes, now);
    let mut dialling = Some(dial(Channel::Control, rank.clock.now()));
    let mut told = false;
    while rank.session.phase() == Phase::Connecting {
        let now = rank.clock.now();
        if let Some(made) = &mut dialling {
            match made.step(now, &|_, _| Ok(None)).map_err(LinkError::Setup)? {
                Some((made, stream)) => {
                    rank.attach(now, made.peer, made.channel, stream);
                    dialling = None;
                }
                None => {
                    if let Some(why) = made.failure.as_ref().filter(|_| !told) {
                        told = true;
                        notice(&format!("rank 0 is not there yet ({why}); trying again"));
                    }
                }
            }
        }
        let last = dialling.as_ref().and_then(|it| it.failure.clone());
        step(rank, now, last)?;
        let data = rank.session.awaits(0, Channel::Data) && rank.session.greeted(0);
        if data && dialling.is_none() {
            dialling = Some(dial(Channel::Data, now));
        } else if rank.session.phase() == Phase::Connecting {
            let stream = dialling.as_ref().and_then(Dialling::stream);
            let fds = stream.map(|(it, _)| PollFd::from_borrowed_fd(it.as_fd(), PollFlags::OUT));
            rank.sleep(fds.into_iter().collect(), LOOK);
        }
    }
    Ok(())
}

/// Moves what the control connection has, and looks whether the session has ended.
fn step(rank: &mut Rank, now: Time, last: Option<String>) -> Result<(), LinkError> {
    rank.serve_links(now);
    match rank.session.error() {
        Some(error) => Err(LinkError::Session(error.clone(), last)),
        None => Ok(()),
    }
}
