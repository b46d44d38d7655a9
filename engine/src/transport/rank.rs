//! One rank with its connections: the loop that moves bytes between sockets and session.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, ErrorKind};
use std::net::TcpStream;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use smallvec::SmallVec;

use super::Setup;
use super::clock::Clock;
use super::collective::Collective;
use super::path::{Path, is_later};
use super::wait::{Wait, timespec};
use super::wire::Wire;
use crate::tp::command::{Message, Reserved};
use crate::tp::error::TpError;
use crate::tp::frame::Kind;
use crate::tp::session::{Event, Phase, Session};
use crate::tp::time::Time;
use crate::tp::transport::{Transport, TransportSet};
use crate::tp::trust::Channel;

/// The most that a wait lasts before the wish to stop is looked at.
pub(super) const LOOK: Duration = Duration::from_millis(100);
/// Messages that may wait for [`Rank::hear`]; then the peer waits.
const MAIL_MAX: usize = 1024;

/// One for each of the connections of the largest group, so that waiting takes no memory.
type PerLink<T> = SmallVec<[T; 64]>;
/// What is waited for.
pub(super) type Sleepers<'a> = PerLink<PollFd<'a>>;

/// Why a rank did not come up, or ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkError {
    /// It did not come up.
    Setup(String),
    /// The session ended; and what else is known: why the last attempt to connect failed where one
    /// was missing, why a transport was not proved where none works.
    Session(TpError, Option<String>),
}

impl fmt::Display for LinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Setup(why) => f.write_str(why),
            Self::Session(error, None) => error.fmt(f),
            Self::Session(error, Some(more)) => write!(f, "{error}; {more}"),
        }
    }
}

impl std::error::Error for LinkError {}

impl From<TpError> for LinkError {
    fn from(error: TpError) -> Self {
        Self::Session(error, None)
    }
}

/// A command or an answer that came.
#[derive(Clone, Debug)]
pub struct Mail {
    /// Who sent it.
    pub peer: u32,
    kind: Kind,
    payload: Vec<u8>,
}

impl Mail {
    /// What it says.
    #[must_use]
    pub fn message(&self) -> Option<Message<'_>> {
        Message::decode(self.kind, &self.payload, Reserved::Zero).ok()
    }
}

/// What happened.
#[derive(Debug)]
pub enum Said {
    /// The transports that all ranks may use: only before [`Rank::open`] returns.
    Probe(TransportSet),
    /// The choice of them: only before [`Rank::open`] returns.
    Ready(Transport),
    /// A command or an answer. Give it back with [`Rank::done_with`].
    Message(Mail),
    /// A peer's state has the hash that the own one has.
    InStep {
        /// The peer.
        peer: u32,
        /// When the hashes were taken.
        seq: u64,
    },
    /// A peer asks for the hash of the state.
    CheckStep {
        /// The peer.
        peer: u32,
        /// When its hash was taken.
        seq: u64,
    },
    /// The orderly end.
    Finished,
}

#[derive(Debug)]
pub(super) struct Link {
    pub(super) peer: u32,
    pub(super) path: Path,
    /// The data connection, where gates take another way.
    pub(super) beside: Option<Wire>,
    pub(super) open: bool,
}

#[derive(Debug)]
pub(super) struct Control {
    peer: u32,
    wire: Wire,
    open: bool,
}

/// One rank.
#[derive(Debug)]
pub struct Rank {
    pub(super) clock: Clock,
    pub(super) session: Session,
    pub(super) chosen: Transport,
    pub(super) reason: String,
    pub(super) wait: Wait,
    stop: Arc<AtomicBool>,
    pub(super) control: Vec<Control>,
    pub(super) links: Vec<Link>,
    pub(super) collective: Collective,
    said: VecDeque<Said>,
    spare: Vec<Vec<u8>>,
}

impl Rank {
    pub(super) fn new(setup: &Setup) -> Self {
        let clock = Clock::start();
        Self {
            session: Session::new(clock.now(), setup.config),
            clock,
            chosen: Transport::Tcp,
            reason: String::new(),
            wait: setup.wait,
            stop: Arc::clone(&setup.stop),
            control: Vec::new(),
            links: Vec::new(),
            collective: Collective::default(),
            said: VecDeque::new(),
            spare: Vec::new(),
        }
    }

    /// The session, for what it knows.
    #[must_use]
    pub const fn session(&self) -> &Session {
        &self.session
    }

    /// The transport that the ranks chose, and why.
    #[must_use]
    pub fn chosen(&self) -> (Transport, &str) {
        (self.chosen, &self.reason)
    }

    /// What happened next; waits for it.
    ///
    /// # Errors
    /// The session has ended, for the reason given.
    pub fn hear(&mut self) -> Result<Said, LinkError> {
        let mut idle_since = None;
        loop {
            let now = self.clock.now();
            self.serve_links(now);
            if let Some(said) = self.said.pop_front() {
                if matches!(said, Said::Finished) {
                    // The leader waits for the answer to its stop.
                    self.close();
                }
                return Ok(said);
            }
            self.end_if_failed()?;
            if self.session.phase() == Phase::Closed {
                return Ok(Said::Finished);
            }
            let since = *idle_since.get_or_insert(now);
            if now.since(since) >= self.wait.spin_ns {
                let mut fds = Sleepers::new();
                let due = self.push_tended(&mut fds);
                self.sleep(fds, self.clock.until(due, LOOK));
            }
        }
    }

    /// What happened already; never waits.
    ///
    /// # Errors
    /// The session has ended, for the reason given.
    pub fn serve(&mut self) -> Result<Option<Said>, LinkError> {
        let now = self.clock.now();
        self.serve_links(now);
        self.end_if_failed()?;
        Ok(self.said.pop_front())
    }

    /// Gives a message's memory back, so that the next one needs none.
    pub fn done_with(&mut self, mail: Mail) {
        if self.spare.len() < 8 {
            self.spare.push(mail.payload);
        }
    }

    /// The leader's next command.
    ///
    /// # Errors
    /// As [`Session::command`].
    pub fn command(&mut self, message: &Message<'_>) -> Result<(), LinkError> {
        let now = self.clock.now();
        self.session.command(now, message)?;
        self.serve_links(now);
        Ok(())
    }

    /// A worker's answer.
    ///
    /// # Errors
    /// As [`Session::answer`].
    pub fn answer(&mut self, message: &Message<'_>) -> Result<(), LinkError> {
        let now = self.clock.now();
        self.session.answer(now, message)?;
        self.serve_links(now);
        Ok(())
    }

    /// Compares a hash of the state with the peers'.
    ///
    /// # Errors
    /// As [`Session::check_step`].
    pub fn check_step(&mut self, seq: u64, hash: u64) -> Result<(), LinkError> {
        let now = self.clock.now();
        self.session.check_step(now, seq, hash)?;
        self.serve_links(now);
        Ok(())
    }

    /// The leader ends the run in order and waits until every worker knows.
    ///
    /// # Errors
    /// The session ended otherwise.
    pub fn finish(&mut self) -> Result<(), LinkError> {
        let now = self.clock.now();
        self.session.stop(now)?;
        while !matches!(self.hear()?, Said::Finished) {}
        self.close();
        Ok(())
    }

    /// Gives up and tells the peers why.
    pub fn abort(&mut self, why: &str) {
        let now = self.clock.now();
        self.session.abort(now, why);
        self.close();
        self.give_up_group();
    }

    /// Writes what is left to say, for as long as the deadline of closing allows.
    pub fn close(&mut self) {
        loop {
            let now = self.clock.now();
            self.serve_links(now);
            let over = self.session.is_over(now);
            let ended = matches!(self.session.phase(), Phase::Closed | Phase::Failed);
            if over || !ended {
                return;
            }
            self.sleep(Sleepers::new(), Duration::from_millis(20));
        }
    }

    pub(super) fn attach(&mut self, now: Time, peer: u32, channel: Channel, wire: Wire) -> bool {
        if !self.session.attach(now, peer, channel) {
            return false;
        }
        match channel {
            Channel::Control => self.control.push(Control {
                peer,
                wire,
                open: true,
            }),
            Channel::Data => {
                let at = self.links.partition_point(|link| link.peer < peer);
                let link = Link {
                    peer,
                    path: Path::Tcp(wire),
                    beside: None,
                    open: true,
                };
                self.links.insert(at, link);
            }
        }
        true
    }

    pub(super) fn replace_path(&mut self, peer: u32, path: Path) {
        let link = self.links.iter_mut().find(|link| link.peer == peer);
        if let Some(link) = link
            && let Path::Tcp(wire) = std::mem::replace(&mut link.path, path)
        {
            link.beside = Some(wire);
        }
    }

    pub(super) fn paths(&mut self) -> impl Iterator<Item = (u32, &mut Path)> {
        self.links
            .iter_mut()
            .map(|link| (link.peer, &mut link.path))
    }

    /// Where a peer's control connection comes from.
    pub(super) fn control_address(&self, peer: u32) -> Option<std::net::IpAddr> {
        let link = self.control.iter().find(|link| link.peer == peer)?;
        Some(link.wire.stream().peer_addr().ok()?.ip())
    }

    pub(super) fn data_streams(&self) -> impl Iterator<Item = (u32, &TcpStream)> {
        self.links.iter().filter_map(|link| match &link.path {
            Path::Tcp(wire) => Some((link.peer, wire.stream())),
            Path::Shm(_) | Path::Verbs(_) => None,
        })
    }

    pub(super) fn data_wires_mut(&mut self) -> impl Iterator<Item = (u32, &mut Wire)> {
        self.links
            .iter_mut()
            .filter_map(|link| match &mut link.path {
                Path::Tcp(wire) => Some((link.peer, wire)),
                Path::Shm(_) | Path::Verbs(_) => None,
            })
    }

    /// Sleeps until one of `fds` or a control connection is ready, a deadline of the session has come,
    /// or `most` is over.
    pub(super) fn sleep<'a>(&'a self, mut fds: Sleepers<'a>, most: Duration) {
        let ended = matches!(self.session.phase(), Phase::Closed | Phase::Failed);
        let mut most = self.clock.until(self.session.next_deadline(), most);
        for link in self.control.iter().filter(|link| link.open) {
            if link.wire.holds() && !ended {
                // The socket knows nothing of these bytes.
                most = Duration::ZERO;
            }
            let mut events = PollFlags::empty();
            // Nothing is read any more once the session has ended.
            events.set(PollFlags::IN, !ended);
            events.set(
                PollFlags::OUT,
                !self.session.control_to_write(link.peer).is_empty(),
            );
            let stream = link.wire.stream().as_fd();
            fds.push(PollFd::from_borrowed_fd(stream, events));
        }
        // An interrupted wait is a short one.
        let _ = poll(&mut fds, Some(&timespec(most)));
    }

    /// Reads the control connections, takes events, lets time pass, and writes what comes of all
    /// that: what ends the session here is on its way to the peers when this returns.
    pub(super) fn serve_links(&mut self, now: Time) {
        self.tend_links(now);
        self.read_control(now);
        self.take_events(now);
        self.handle_time();
        self.write_control();
    }

    /// Lets paths that must be looked after do their work between gates too: what the peer still
    /// waits for may have to be sent again.
    fn tend_links(&mut self, now: Time) {
        for at in 0..self.links.len() {
            let Some(link) = self.links.get_mut(at) else {
                return;
            };
            if !link.open || !link.path.explains() {
                continue;
            }
            let tended = link.path.listen(now);
            let gone = link.beside.as_ref().is_some_and(|it| is_gone(it.stream()));
            match tended {
                Err(error) if self.session.in_gate() => {
                    let peer = link.peer;
                    self.path_failed(now, peer, &error);
                }
                _ if gone => {
                    link.open = false;
                    self.session.closed(now, link.peer, Channel::Data);
                }
                _ => {}
            }
        }
    }

    /// A path ended and says why. What the peer has said itself comes first.
    pub(super) fn path_failed(&mut self, now: Time, peer: u32, why: &io::Error) {
        if let Some(link) = self.links.iter_mut().find(|link| link.peer == peer) {
            link.open = false;
        }
        self.read_control(now);
        self.take_events(now);
        self.session.path_failed(now, peer, &why.to_string());
    }

    /// Adds the bells of paths that must be looked after, and until when at the latest.
    fn push_tended<'a>(&'a self, fds: &mut Sleepers<'a>) -> Time {
        let mut due = Time::NEVER;
        for link in self.links.iter().filter(|link| link.open) {
            due = due.min(link.path.due());
            if due != Time::NEVER {
                let bell = link.path.sleeps_on(true, false);
                fds.extend(bell.map(|(fd, events)| PollFd::from_borrowed_fd(fd, events)));
            }
        }
        due
    }

    fn read_control(&mut self, now: Time) {
        let session = &mut self.session;
        for link in self.control.iter_mut().filter(|link| link.open) {
            loop {
                let room = session.control_to_read(link.peer);
                if room.is_empty() {
                    break;
                }
                match link.wire.read(&mut [], room) {
                    Ok(count) => session.control_read(now, link.peer, count),
                    Err(error) if is_later(&error) => break,
                    Err(error) => {
                        link.open = false;
                        lost(session, now, link.peer, Channel::Control, &error);
                        break;
                    }
                }
            }
        }
    }

    fn write_control(&mut self) {
        let session = &mut self.session;
        for link in self.control.iter_mut().filter(|link| link.open) {
            loop {
                let words = session.control_to_write(link.peer);
                if words.is_empty() {
                    break;
                }
                match link.wire.write(&[], words) {
                    Ok(count) => session.control_wrote(link.peer, count),
                    // What was still to be read says more than a broken connection.
                    Err(_) => break,
                }
            }
        }
    }

    /// Tells the session that time has passed, and that the user wants to stop.
    pub(super) fn handle_time(&mut self) {
        let now = self.clock.now();
        self.session.handle_time(now);
        if self.stop.load(Ordering::Relaxed) {
            self.session.abort(now, "interrupted");
        }
    }

    fn take_events(&mut self, now: Time) {
        while self.said.len() < MAIL_MAX {
            let Some(event) = self.session.poll_event(now) else {
                return;
            };
            let said = match event {
                Event::Probe(set) => Said::Probe(set),
                Event::Ready(transport) => Said::Ready(transport),
                Event::InStep { peer, seq } => Said::InStep { peer, seq },
                Event::CheckStep { peer, seq } => Said::CheckStep { peer, seq },
                Event::Finished => Said::Finished,
                // The session keeps the reason.
                Event::Failed(_) => continue,
                Event::Message { peer, message } => {
                    let mut payload = self.spare.pop().unwrap_or_default();
                    payload.clear();
                    message.encode(&mut payload);
                    let kind = message.kind();
                    Said::Message(Mail {
                        peer,
                        kind,
                        payload,
                    })
                }
            };
            self.said.push_back(said);
        }
    }

    pub(super) fn end_if_failed(&mut self) -> Result<(), LinkError> {
        let error = match self.session.error() {
            Some(error) => error.clone(),
            None => return Ok(()),
        };
        self.close();
        self.give_up_group();
        let left = self.left_behind().map(str::to_owned);
        Err(LinkError::Session(error, left))
    }
}

/// Whether the peer has closed a connection on which nothing comes any more.
pub(super) fn is_gone(stream: &TcpStream) -> bool {
    let mut byte = [0];
    match stream.peek(&mut byte) {
        Ok(count) => count == 0,
        Err(error) => !is_later(&error) && error.kind() != ErrorKind::Interrupted,
    }
}

/// A connection is gone: it ended, or what came by it cannot be what the peer sent.
pub(super) fn lost(
    session: &mut Session,
    now: Time,
    peer: u32,
    channel: Channel,
    error: &io::Error,
) {
    if error.kind() == ErrorKind::InvalidData {
        session.abort(
            now,
            &format!("{channel} connection of rank {peer}: {error}"),
        );
    }
    session.closed(now, peer, channel);
}
