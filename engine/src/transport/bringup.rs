//! From nothing to a rank that passes gates.

use std::os::fd::AsFd as _;
use std::os::unix::net::UnixListener;

use rustix::event::{PollFd, PollFlags};

use super::collective::Joining;
use super::dialling::Dialling;
use super::incoming::{Incoming, Judged};
use super::path::Path;
use super::probe::{self, Probe};
use super::rank::{LOOK, LinkError, Rank, Said, Sleepers};
use super::setup::random;
use super::sockets::same_host;
use super::unix::{self, Handover};
use super::verbs::Side;
use super::{Remote, Setup, ds4, roster};
use crate::nccl::Group;
use crate::tp::session::{Dialect, Phase};
use crate::tp::time::Time;
use crate::tp::transport::{Transport, TransportSet};
use crate::tp::trust::{Channel, Key, SessionId};

/// How long ranks of one host wait for each other at the shared memory.
const MEMORY_NS: u64 = 2_000_000_000;

impl Rank {
    /// Brings a rank up: returns when gates may pass. `notice` is told in words what a person at
    /// the terminal wants to know.
    ///
    /// # Errors
    /// [`LinkError`]: a peer refuses or did not come in time, the ranks do not fit together, or no
    /// transport works.
    pub fn open(mut setup: Setup, notice: &mut dyn FnMut(&str)) -> Result<Self, LinkError> {
        if setup.encrypt {
            demand_secrecy(&mut setup)?;
        }
        if setup.config.dialect != Dialect::Native {
            return ds4::open(setup, notice);
        }
        let mut rank = Self::new(&setup);
        let meeting = Meeting::new(setup, &rank)?;
        let connected = meeting.run(&mut rank, notice);
        let paths = match connected {
            Ok(paths) => paths,
            Err(error) => {
                rank.close();
                return Err(error);
            }
        };
        let opened = rank.choose(paths, notice);
        if opened.is_err() {
            rank.close();
        }
        opened.map(|()| rank)
    }

    /// Probes, votes and waits for the choice.
    fn choose(
        &mut self,
        mut meeting: Meeting,
        notice: &mut dyn FnMut(&str),
    ) -> Result<(), LinkError> {
        loop {
            let heard = self.hear().map_err(|error| match error {
                // No transport works: say why none does.
                LinkError::Session(error, more) => {
                    meeting.hear_why_not(self);
                    LinkError::Session(error, meeting.reasons().or(more))
                }
                error @ LinkError::Setup(_) => error,
            })?;
            match heard {
                Said::Probe(offered) => {
                    let proved = meeting.prove(self, offered, notice);
                    // The wish to stop comes before a vote.
                    self.handle_time();
                    let now = self.clock.now();
                    self.session.vote(now, proved);
                }
                Said::Ready(transport) => {
                    self.take_path(transport, &mut meeting);
                    return Ok(());
                }
                Said::Message(_)
                | Said::InStep { .. }
                | Said::CheckStep { .. }
                | Said::Finished => {
                    return Err(LinkError::Setup(
                        "a peer spoke before a transport was chosen".to_owned(),
                    ));
                }
            }
        }
    }

    fn take_path(&mut self, transport: Transport, meeting: &mut Meeting) {
        self.chosen = transport;
        let mut reason = match transport {
            Transport::Shm => {
                "all ranks run on this host, and its memory passed the probe".to_owned()
            }
            Transport::Rdma => format!("it passed the probe; {}", meeting.ways.join("; ")),
            Transport::Nccl => {
                let origin = meeting
                    .group
                    .as_ref()
                    .map_or_else(String::new, Group::origin);
                format!("its sum of all ranks was ours; {origin}")
            }
            Transport::Tcp | Transport::Nvlink => "it passed the probe".to_owned(),
        };
        if let Some(why) = meeting.reasons() {
            reason.push_str("; ");
            reason.push_str(&why);
        }
        self.reason = reason;
        let paths = match transport {
            Transport::Shm => &mut meeting.memories,
            Transport::Rdma => &mut meeting.pairs,
            Transport::Nccl => return self.take_group(meeting.group.take()),
            Transport::Tcp | Transport::Nvlink => return,
        };
        for (peer, path) in paths.drain(..) {
            self.replace_path(peer, path);
        }
    }
}

/// The ranks meet: connections in the making.
struct Meeting {
    setup: Setup,
    session: Option<SessionId>,
    incoming: Incoming,
    dials: Vec<Dialling>,
    /// Lower ranks of which it is not known yet where they listen.
    undialled: Vec<u32>,
    unix: Option<UnixListener>,
    memories: Vec<(u32, Path)>,
    why_not_shm: Option<String>,
    pairs: Vec<(u32, Path)>,
    /// Which way each of `pairs` takes.
    ways: Vec<String>,
    why_not_rdma: Option<String>,
    group: Option<Group>,
    why_not_nccl: Option<String>,
    told: bool,
}

impl Meeting {
    fn new(setup: Setup, rank: &Rank) -> Result<Self, LinkError> {
        let mut meeting = Self {
            session: None,
            incoming: Incoming::default(),
            dials: Vec::new(),
            undialled: Vec::new(),
            unix: None,
            memories: Vec::new(),
            why_not_shm: None,
            pairs: Vec::new(),
            ways: Vec::new(),
            why_not_rdma: None,
            group: None,
            why_not_nccl: None,
            told: false,
            setup,
        };
        if meeting.setup.config.rank == 0 {
            let session = random().map_err(|error| LinkError::Setup(error.to_string()))?;
            meeting.know_session(session);
        } else {
            let now = rank.clock.now();
            if !meeting.dial(rank, 0, Channel::Control, now) {
                let why = "the address of rank 0 is not known".to_owned();
                return Err(LinkError::Setup(why));
            }
        }
        Ok(meeting)
    }

    fn know_session(&mut self, session: SessionId) {
        self.session = Some(session);
        let config = &self.setup.config;
        let highest = config.rank.saturating_add(1) >= config.identity.layout.geometry().ranks;
        if config.transports.has(Transport::Shm) && !highest {
            match unix::listen(&session, config.rank) {
                Ok(listener) => self.unix = Some(listener),
                Err(error) => self.why_not_shm = Some(error.to_string()),
            }
        }
    }

    /// Dials a lower rank, if it is known where it listens.
    fn dial(&mut self, rank: &Rank, lower: u32, channel: Channel, now: Time) -> bool {
        let remote = roster::remote(&self.setup, rank, lower);
        let bytes = self.setup.buffer_bytes;
        let dialling = remote.map(|remote| Dialling::new(remote, channel, bytes, now));
        let known = dialling.is_some();
        self.dials.extend(dialling);
        known
    }

    /// Runs until every connection is there.
    fn run(mut self, rank: &mut Rank, notice: &mut dyn FnMut(&str)) -> Result<Self, LinkError> {
        let mut told = false;
        while rank.session.phase() == Phase::Connecting || !told {
            let now = rank.clock.now();
            self.let_in(rank, now, notice);
            self.go_out(rank, now, notice)?;
            rank.serve_links(now);
            told = told || roster::tell_all(rank, now);
            self.dial_known(rank, now);
            rank.handle_time();
            if let Some(error) = rank.session.error() {
                return Err(LinkError::Session(error.clone(), self.last_failure()));
            }
            if rank.session.phase() == Phase::Connecting || !told {
                self.sleep(rank);
            }
        }
        self.setup.listening = None;
        Ok(self)
    }

    /// Why the last attempts to connect failed, either way.
    fn last_failure(&self) -> Option<String> {
        let made = self.dials.iter().find_map(|it| it.failure.as_ref());
        let made = made.map(|why| format!("last attempt: {why}"));
        let both = made.into_iter().chain(self.incoming.door.failure());
        let both = both.collect::<Vec<_>>().join("; ");
        Some(both).filter(|why| !why.is_empty())
    }

    fn let_in(&mut self, rank: &mut Rank, now: Time, notice: &mut dyn FnMut(&str)) {
        let Some(session) = self.session else {
            return;
        };
        let own = self.setup.config.rank;
        let trust = || self.setup.listener(session).ok();
        if let Some(listening) = &self.setup.listening {
            self.incoming
                .accept(now, listening, self.setup.buffer_bytes, &trust);
        }
        // Lower ranks are dialled and never let in.
        let judged = self.incoming.step(now, &|peer, channel| {
            peer > own && rank.session.awaits(peer, channel)
        });
        for judged in judged {
            match judged {
                Judged::Proven(proven, wire) => {
                    if rank.attach(now, proven.peer, proven.channel, wire) {
                        let (peer, channel) = (proven.peer, proven.channel);
                        notice(&format!("rank {peer}: {channel} connection is there"));
                    }
                }
                Judged::Refused(why) => notice(&format!("refused a connection from {why}")),
            }
        }
    }

    fn go_out(
        &mut self,
        rank: &mut Rank,
        now: Time,
        notice: &mut dyn FnMut(&str),
    ) -> Result<(), LinkError> {
        let session = self.session.unwrap_or_default();
        let config = self.setup.config;
        let setup = &self.setup;
        let trust =
            |remote: &Remote, channel| setup.dialer(remote.rank, channel, session).map(Some);
        let mut proven = Vec::new();
        for dialling in &mut self.dials {
            if let Some(made) = dialling.step(now, &trust).map_err(LinkError::Setup)? {
                dialling.failure = None;
                proven.push(made);
            } else if let Some(why) = dialling.failure.as_ref().filter(|_| !self.told) {
                self.told = true;
                let peer = dialling.remote.rank;
                notice(&format!(
                    "rank {peer} is not there yet ({why}); trying again"
                ));
            }
        }
        for (made, wire) in proven {
            rank.attach(now, made.peer, made.channel, wire);
            if made.channel == Channel::Control {
                self.know_session(made.session);
                roster::tell_own(rank, now, self.setup.listening.as_ref());
                self.undialled = (0..config.rank).collect();
            }
        }
        Ok(())
    }

    /// Dials the data connections of ranks that are known by now.
    fn dial_known(&mut self, rank: &Rank, now: Time) {
        let mut undialled = std::mem::take(&mut self.undialled);
        undialled.retain(|lower| !self.dial(rank, *lower, Channel::Data, now));
        self.undialled = undialled;
    }

    fn sleep(&self, rank: &Rank) {
        let mut fds = Sleepers::new();
        let events = |writes: bool| {
            if writes {
                PollFlags::OUT
            } else {
                PollFlags::IN
            }
        };
        let listening = self.setup.listening.iter().flat_map(|it| &it.sockets);
        if self.session.is_some() {
            fds.extend(self.incoming.door.sleeps_on(listening));
        }
        let made = self.dials.iter().filter_map(Dialling::stream);
        for (stream, writes) in self.incoming.streams().chain(made) {
            fds.push(PollFd::from_borrowed_fd(stream.as_fd(), events(writes)));
        }
        rank.sleep(fds, LOOK);
    }

    /// Which of the offered transports work, by a probe of each on its own path.
    fn prove(
        &mut self,
        rank: &mut Rank,
        offered: TransportSet,
        notice: &mut dyn FnMut(&str),
    ) -> TransportSet {
        let mut proved = Vec::new();
        // The parts of the deadline of the vote: half for queue pairs, the rest for the others.
        let hello_ns = self.setup.config.deadlines.hello_ns;
        match self.prove_direct(rank, offered, rank.clock.now().after(hello_ns / 2)) {
            Ok(()) => proved.push(Transport::Rdma),
            Err(why) => {
                let wanted = self.setup.config.transports.has(Transport::Rdma);
                self.why_not_rdma = Some(why).filter(|_| wanted);
            }
        }
        match self.prove_collective(rank, offered, rank.clock.now().after(hello_ns / 5 * 4)) {
            Ok(()) => proved.push(Transport::Nccl),
            Err(why) => {
                let wanted = self.setup.config.transports.has(Transport::Nccl);
                self.why_not_nccl = Some(why).filter(|_| wanted);
            }
        }
        let due = rank.clock.now().after(hello_ns * 2 / 5);
        if offered.has(Transport::Shm) {
            match self.prove_memory(rank) {
                Ok(()) => proved.push(Transport::Shm),
                Err(why) => self.why_not_shm = Some(why),
            }
        } else if self.setup.config.transports.has(Transport::Shm) {
            self.why_not_shm = Some("a peer does not offer it".to_owned());
        }
        if offered.has(Transport::Tcp) {
            let session = self.session.unwrap_or_default();
            let own = self.setup.config.rank;
            let clock = rank.clock;
            let mut probes: Vec<(Probe, &mut Path)> = rank
                .paths()
                .map(|(peer, path)| (Probe::new(&session, own, peer), path))
                .collect();
            match probe::run(&clock, due, &self.setup.stop, &mut probes) {
                Ok(()) => proved.push(Transport::Tcp),
                Err(why) => notice(&format!("the data connection failed its probe: {why}")),
            }
        }
        TransportSet::of(&proved)
    }

    /// Why transports that this rank may use were not proved.
    fn reasons(&self) -> Option<String> {
        let shm = self.why_not_shm.as_ref();
        let shm = shm.map(|why| format!("no shared memory: {why}"));
        let rdma = self.why_not_rdma.as_ref();
        let rdma = rdma.map(|why| format!("no RDMA: {why}"));
        let nccl = self.why_not_nccl.as_ref();
        let nccl = nccl.map(|why| format!("no NCCL: {why}"));
        let all = rdma.into_iter().chain(nccl).chain(shm).collect::<Vec<_>>();
        Some(all.join("; ")).filter(|why| !why.is_empty())
    }

    /// Direct memory access to every peer, probed. This is where it is decided what that means:
    /// queue pairs; between GPUs of one host it may be a link of theirs.
    ///
    /// The first words on every data connection are said here, wanted or not: so the two sides of
    /// each stay in step whatever a third rank offers.
    fn prove_direct(
        &mut self,
        rank: &mut Rank,
        offered: TransportSet,
        due: Time,
    ) -> Result<(), String> {
        let (mut here, mut talks_by) = (true, Vec::new());
        for (_, stream) in rank.data_streams() {
            here &= same_host(stream);
            talks_by.extend(stream.local_addr().map(|it| it.ip()));
        }
        let wanted = self.setup.config.transports.has(Transport::Rdma);
        let refusal = if !wanted {
            Some("it is not among the transports that this rank may use".to_owned())
        } else if !offered.has(Transport::Rdma) {
            Some("a peer does not offer it".to_owned())
        } else if here && offered.has(Transport::Shm) {
            Some("the ranks run on one host, where shared memory is nearer".to_owned())
        } else {
            None
        };
        let own = self.setup.config.rank;
        let side = Side::new(own, &self.setup.rdma, &talks_by, refusal);
        let (clock, session) = (rank.clock, self.session.unwrap_or_default());
        let stop = &self.setup.stop;
        let mut pairings = Vec::new();
        for (peer, wire) in rank.data_wires_mut() {
            pairings.push(side.offer(clock, due, peer, wire)?);
        }
        for (pairing, (_, wire)) in pairings.iter_mut().zip(rank.data_wires_mut()) {
            side.hear_offer(pairing, wire)?;
        }
        let mut outcome = Ok(());
        for (pairing, (peer, wire)) in pairings.iter_mut().zip(rank.data_wires_mut()) {
            let mut psns = || random().map_or(0, u32::from_le_bytes);
            let mut probe = |path: &mut Path| {
                // Half of what is left: so the next attempt has time too, and the verdict after it.
                let now = clock.now();
                let limit = now.after(due.since(now) / 2);
                probe::run(
                    &clock,
                    limit,
                    stop,
                    &mut [(Probe::new(&session, own, peer), path)],
                )
            };
            match side.meet(pairing, wire, &mut psns, &mut probe) {
                Ok((path, way)) => {
                    self.pairs.push((peer, path));
                    self.ways.push(way);
                }
                Err(why) => outcome = outcome.and(Err(why)),
            }
        }
        outcome
    }

    /// A group of a collective library with all peers, probed.
    fn prove_collective(
        &mut self,
        rank: &mut Rank,
        offered: TransportSet,
        due: Time,
    ) -> Result<(), String> {
        let session = self.session.unwrap_or_default();
        let joining = Joining {
            rank,
            session,
            due,
            place: None,
        };
        self.group = Some(joining.join(self.setup.collective.as_ref(), offered)?);
        Ok(())
    }

    /// Why another rank left the group that this one had proved.
    fn hear_why_not(&mut self, rank: &Rank) {
        let refusal = rank.session.collective_refusal();
        let heard = refusal.map(|(peer, why)| format!("rank {peer}: {why}"));
        self.why_not_nccl = self.why_not_nccl.take().or(heard);
    }

    /// Shared memory with every peer, probed.
    fn prove_memory(&mut self, rank: &mut Rank) -> Result<(), String> {
        if let Some(why) = self.why_not_shm.take() {
            return Err(why);
        }
        let streams: Vec<(u32, bool)> = rank
            .data_streams()
            .map(|(peer, stream)| (peer, same_host(stream)))
            .collect();
        if let Some((peer, _)) = streams.iter().find(|(_, same)| !same) {
            return Err(format!("rank {peer} is on another host"));
        }
        let session = self.session.unwrap_or_default();
        let (clock, own) = (rank.clock, self.setup.config.rank);
        // A part of the deadline of the vote, so that time is left for the others.
        let share_ns = self.setup.config.deadlines.hello_ns / 5;
        let due = clock.now().after(share_ns.min(MEMORY_NS));
        let handover = Handover::new(&self.setup, session, self.unix.as_ref());
        let met = handover.run(&clock, due)?;
        let paths = met
            .into_iter()
            .map(|(peer, path)| (peer, Path::Shm(Box::new(path))));
        let mut memories: Vec<(u32, Path)> = paths.collect();
        let mut probes: Vec<(Probe, &mut Path)> = memories
            .iter_mut()
            .map(|(peer, path)| (Probe::new(&session, own, *peer), path))
            .collect();
        probe::run(&clock, due, &self.setup.stop, &mut probes)?;
        drop(probes);
        self.memories = memories;
        Ok(())
    }
}

/// Leaves the transports that are encrypted or do not leave the host.
fn demand_secrecy(setup: &mut Setup) -> Result<(), LinkError> {
    if setup.config.dialect != Dialect::Native {
        let why = "the protocol ds4-v7 does not encrypt";
        return Err(LinkError::Setup(why.to_owned()));
    }
    let secret = TransportSet::of(&[Transport::Nvlink, Transport::Shm, Transport::Tcp]);
    let asked_for = setup.config.transports;
    setup.config.transports = asked_for.and(secret);
    if setup.config.transports.best().is_none() {
        return Err(LinkError::Setup(format!(
            "gates by {asked_for} cannot be encrypted; use tcp"
        )));
    }
    if setup.key == Key::public() {
        let why = "encryption needs a key: without one, everybody has it";
        return Err(LinkError::Setup(why.to_owned()));
    }
    Ok(())
}
