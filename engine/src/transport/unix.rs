//! The sockets by which ranks of one host hand each other shared memory.
//!
//! Their names are abstract, so nothing is left in any directory. A name holds the session, and
//! who connects proves the key as on every other connection. Everybody on the host sees the names and
//! may connect, so all are heard at once: nobody who stays silent keeps a rank from its peers.

use std::fmt::Write as _;
use std::io::{self, ErrorKind};
use std::os::fd::AsFd as _;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};

use super::Setup;
use super::clock::Clock;
use super::dialling::prove;
use super::door::{AT_ONCE, Candidate, Door};
use super::path::is_later;
use super::rank::{LOOK, Sleepers};
use super::shm::{ShmPath, take_file};
use super::wait::timespec;
use crate::tp::time::Time;
use crate::tp::trust::{Channel, Dialer, SessionId, Step};

/// From one attempt at a socket that takes nobody to the next.
const PAUSE: Duration = Duration::from_millis(10);

/// The name of a rank's socket.
fn name(session: &SessionId, rank: u32) -> String {
    let mut name = String::from("ds4-tp-");
    for byte in session {
        // Writing to a string cannot fail.
        let _ = write!(name, "{byte:02x}");
    }
    let _ = write!(name, "-{rank}");
    name
}

pub(super) fn listen(session: &SessionId, rank: u32) -> io::Result<UnixListener> {
    let address = SocketAddr::from_abstract_name(name(session, rank))?;
    let listener = UnixListener::bind_addr(&address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Begins a connection; [`ErrorKind::WouldBlock`] when too many others wait there.
fn connect(session: &SessionId, rank: u32) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let address = SocketAddrUnix::new_abstract_name(name(session, rank).as_bytes())?;
    rustix::net::connect(&socket, &address)?;
    let stream = UnixStream::from(socket);
    demand_same_user(&stream)?;
    Ok(stream)
}

/// The ranks of this host that share memory with this one, all at once.
pub(super) struct Handover<'a> {
    setup: &'a Setup,
    session: SessionId,
    listener: Option<&'a UnixListener>,
    door: Door,
    candidates: Vec<Candidate<UnixStream>>,
    /// Higher ranks that have not come yet.
    awaited: Vec<u32>,
    calls: Vec<Call>,
    met: Vec<(u32, ShmPath)>,
}

/// A connection to a lower rank, which has the memory.
struct Call {
    rank: u32,
    state: Calling,
}

enum Calling {
    /// Not there yet, and why not.
    Pausing(Option<io::Error>),
    Proving(UnixStream, Box<Dialer>),
    /// The memory comes next.
    Proven(UnixStream),
}

impl<'a> Handover<'a> {
    pub(super) fn new(
        setup: &'a Setup,
        session: SessionId,
        listener: Option<&'a UnixListener>,
    ) -> Self {
        let own = setup.config.rank;
        let ranks = setup.config.identity.layout.geometry().ranks;
        let state = || Calling::Pausing(None);
        let call = |rank| Call {
            rank,
            state: state(),
        };
        Self {
            setup,
            session,
            listener,
            door: Door::default(),
            candidates: Vec::new(),
            awaited: (own.saturating_add(1)..ranks).collect(),
            calls: (0..own).map(call).collect(),
            met: Vec::new(),
        }
    }

    /// Runs until memory is shared with every other rank.
    ///
    /// # Errors
    /// The time is over, the user wants to stop, or a rank cannot share memory; in words.
    pub(super) fn run(mut self, clock: &Clock, due: Time) -> Result<Vec<(u32, ShmPath)>, String> {
        if self.listener.is_none() && !self.awaited.is_empty() {
            return Err("no socket to hand it over".to_owned());
        }
        loop {
            if self.setup.stop.load(Ordering::Relaxed) {
                return Err("interrupted".to_owned());
            }
            self.let_in().map_err(|error| error.to_string())?;
            self.go_out()?;
            if self.awaited.is_empty() && self.calls.is_empty() {
                return Ok(self.met);
            }
            if clock.now() >= due {
                return Err(self.missing());
            }
            self.sleep(clock, due);
        }
    }

    /// Takes connections, moves their proofs, and gives memory to who is awaited; others are sent away.
    fn let_in(&mut self) -> io::Result<()> {
        let (setup, session, candidates) = (self.setup, self.session, &mut self.candidates);
        let mut failure = None;
        let enter = |stream: UnixStream| {
            let known = stream.set_nonblocking(true);
            if known.and_then(|()| demand_same_user(&stream)).is_err() {
                return;
            }
            if candidates.len() >= AT_ONCE {
                candidates.remove(0);
            }
            match setup.listener(session) {
                Ok(trust) => candidates.push(Candidate::new(stream, trust)),
                Err(error) => failure = Some(error),
            }
        };
        let accept = |it: &UnixListener| it.accept().map(|(stream, _)| stream);
        self.door.open(self.listener, accept, enter);
        if let Some(error) = failure {
            return Err(error);
        }
        for mut candidate in std::mem::take(&mut self.candidates) {
            let awaited = &self.awaited;
            let awaits = |rank, channel| channel == Channel::Data && awaited.contains(&rank);
            match candidate.step(&awaits) {
                Ok(Step::More) => self.candidates.push(candidate),
                Ok(Step::Done(proven)) => {
                    self.awaited.retain(|rank| *rank != proven.peer);
                    let path = ShmPath::create(candidate.stream)?;
                    self.met.push((proven.peer, path));
                }
                Ok(Step::Refused(_)) | Err(_) => {}
            }
        }
        Ok(())
    }

    /// Moves the connections to lower ranks.
    fn go_out(&mut self) -> Result<(), String> {
        for mut call in std::mem::take(&mut self.calls) {
            let stepped = call.step(self.setup, self.session);
            match stepped.map_err(|error| format!("rank {}: {error}", call.rank))? {
                Some(path) => self.met.push((call.rank, path)),
                None => self.calls.push(call),
            }
        }
        Ok(())
    }

    /// Who did not come, and what is known of it.
    fn missing(&self) -> String {
        let called = self.calls.iter().map(|call| &call.rank);
        let ranks = called.chain(&self.awaited).map(u32::to_string);
        let ranks = ranks.collect::<Vec<_>>().join(", ");
        let why = self.calls.iter().find_map(|call| match &call.state {
            Calling::Pausing(why) => why.as_ref().map(ToString::to_string),
            Calling::Proving(..) | Calling::Proven(_) => None,
        });
        let mut said = format!("rank {ranks} did not come to the shared memory in time");
        for why in why.into_iter().chain(self.door.failure()) {
            let _ = write!(said, ": {why}");
        }
        said
    }

    fn sleep(&self, clock: &Clock, due: Time) {
        let mut fds = Sleepers::new();
        if !self.awaited.is_empty() {
            fds.extend(self.door.sleeps_on(self.listener));
        }
        let mut most = LOOK;
        let candidates = self.candidates.iter().map(|it| (&it.stream, it.writes()));
        let calls = self.calls.iter().filter_map(|call| match &call.state {
            Calling::Pausing(_) => {
                most = PAUSE;
                None
            }
            Calling::Proving(stream, dialer) => Some((stream, !dialer.to_write().is_empty())),
            Calling::Proven(stream) => Some((stream, false)),
        });
        for (stream, writes) in candidates.chain(calls) {
            let events = if writes {
                PollFlags::OUT
            } else {
                PollFlags::IN
            };
            fds.push(PollFd::from_borrowed_fd(stream.as_fd(), events));
        }
        // An interrupted wait is a short one.
        let _ = poll(&mut fds, Some(&timespec(clock.until(due, most))));
    }
}

impl Call {
    /// Moves on; the memory comes back once.
    fn step(&mut self, setup: &Setup, session: SessionId) -> io::Result<Option<ShmPath>> {
        loop {
            match std::mem::replace(&mut self.state, Calling::Pausing(None)) {
                Calling::Pausing(_) => match connect(&session, self.rank) {
                    Ok(stream) => {
                        let dialer = setup.dialer(self.rank, Channel::Data, session)?;
                        self.state = Calling::Proving(stream, Box::new(dialer));
                    }
                    Err(error) if passes(&error) => {
                        self.state = Calling::Pausing(Some(error));
                        return Ok(None);
                    }
                    Err(error) => return Err(error),
                },
                Calling::Proving(mut stream, mut dialer) => {
                    match prove(&mut stream, &mut dialer) {
                        Ok(Step::More) => {
                            self.state = Calling::Proving(stream, dialer);
                            return Ok(None);
                        }
                        Ok(Step::Done(_)) => self.state = Calling::Proven(stream),
                        Ok(Step::Refused(refused)) => return Err(io::Error::other(refused)),
                        // Too many others came: there may be room again.
                        Err(error) => {
                            self.state = Calling::Pausing(Some(error));
                            return Ok(None);
                        }
                    }
                }
                Calling::Proven(stream) => match take_file(&stream) {
                    Ok(file) => return ShmPath::open(&file, stream).map(Some),
                    Err(error) if is_later(&error) => {
                        self.state = Calling::Proven(stream);
                        return Ok(None);
                    }
                    Err(error) => return Err(error),
                },
            }
        }
    }
}

/// Whether a connection may be had later: there is no room, or no descriptor, now.
fn passes(error: &io::Error) -> bool {
    let raw = error.raw_os_error().map(Errno::from_raw_os_error);
    is_later(error) || matches!(raw, Some(Errno::MFILE | Errno::NFILE))
}

/// Everybody on the host sees the name; only who could harm the ranks anyway gets a word.
fn demand_same_user(stream: &UnixStream) -> io::Result<()> {
    let peer = rustix::net::sockopt::socket_peercred(stream)?.uid;
    let own = rustix::process::geteuid();
    if peer == own || peer.is_root() {
        return Ok(());
    }
    Err(io::Error::new(
        ErrorKind::PermissionDenied,
        "the other end belongs to another user",
    ))
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use super::super::setup::random;
    use super::super::tests::pair;
    use super::*;
    use crate::tp::transport::Transport;

    const SECOND: u64 = 1_000_000_000;

    /// A worker on its way to a leader whose socket takes no more connections.
    fn before_a_full_socket(stop: bool, due: Time) -> String {
        let session: SessionId = random().unwrap();
        let socket: OwnedFd = socket_with(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        let address = SocketAddrUnix::new_abstract_name(name(&session, 0).as_bytes()).unwrap();
        rustix::net::bind(&socket, &address).unwrap();
        rustix::net::listen(&socket, 0).unwrap();
        let waiting: Vec<_> = std::iter::from_fn(|| connect(&session, 0).ok()).collect();
        assert!(!waiting.is_empty());
        let [_, worker] = pair(Transport::Shm);
        worker.stop.store(stop, Ordering::Relaxed);
        let handover = Handover::new(&worker, session, None);
        handover.run(&Clock::start(), due).err().unwrap()
    }

    #[test]
    fn a_socket_that_is_full_keeps_a_rank_no_longer_than_its_deadline() {
        let why = before_a_full_socket(false, Time(SECOND / 20));
        assert!(why.contains("rank 0 did not come"), "{why}");
        assert!(why.contains("temporarily unavailable"), "{why}");
    }

    #[test]
    fn the_wish_to_stop_ends_the_wait_for_shared_memory() {
        assert_eq!(before_a_full_socket(true, Time::NEVER), "interrupted");
    }
}
