//! Connections that this rank makes: every address of the name, again and again until one answers.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};

use super::Remote;
use super::door::PROOF_NS;
use super::path::is_later;
use super::sockets::{dial, dialled, resolve, tune};
use super::wire::Wire;
use crate::tp::time::Time;
use crate::tp::trust::{Channel, Dialer, Proven, SessionId, Step};

/// How long one address may take to answer.
const ANSWER_NS: u64 = 3_000_000_000;
/// From one round over the addresses to the next.
const PAUSE_NS: u64 = 200_000_000;

/// A connection in the making.
pub(super) struct Dialling {
    pub(super) remote: Remote,
    pub(super) channel: Channel,
    state: State,
    addresses: VecDeque<SocketAddr>,
    buffer_bytes: Option<usize>,
    /// Why the last attempt failed.
    pub(super) failure: Option<String>,
}

enum State {
    Waiting(Time),
    Begun(TcpStream, SocketAddr, Time),
    Proving(TcpStream, Box<Dialer>, Time),
    Over,
}

impl Dialling {
    pub(super) fn new(
        remote: Remote,
        channel: Channel,
        buffer_bytes: Option<usize>,
        now: Time,
    ) -> Self {
        Self {
            remote,
            channel,
            state: State::Waiting(now),
            addresses: VecDeque::new(),
            buffer_bytes,
            failure: None,
        }
    }

    /// Moves on. A proven connection comes back once, or a bare one where `trust` asks for no proof;
    /// an error is final.
    pub(super) fn step(
        &mut self,
        now: Time,
        trust: &dyn Fn(&Remote, Channel) -> io::Result<Option<Dialer>>,
    ) -> Result<Option<(Proven, Wire)>, String> {
        loop {
            match std::mem::replace(&mut self.state, State::Over) {
                State::Over => return Ok(None),
                State::Waiting(until) => {
                    if now < until {
                        self.state = State::Waiting(until);
                        return Ok(None);
                    }
                    match resolve(&self.remote.host, self.remote.port) {
                        Ok(found) => self.addresses = found.into(),
                        Err(error) => self.failure = Some(error.to_string()),
                    }
                    self.next_address(now);
                }
                State::Begun(stream, address, until) => {
                    let failed = dialled(&stream).err();
                    if failed.is_none() && stream.peer_addr().is_err() && now < until {
                        self.state = State::Begun(stream, address, until);
                        return Ok(None);
                    }
                    let connected = match failed {
                        Some(error) => Err(error),
                        None => stream.peer_addr().map(|_| ()),
                    };
                    let ready = connected
                        .and_then(|()| tune(&stream, self.buffer_bytes))
                        .and_then(|()| trust(&self.remote, self.channel));
                    match ready {
                        Ok(None) => {
                            let (channel, peer) = (self.channel, self.remote.rank);
                            let proven = Proven {
                                channel,
                                peer,
                                session: SessionId::default(),
                            };
                            return Ok(Some((proven, Wire::new(stream, None))));
                        }
                        Ok(Some(dialer)) => {
                            let until = now.after(PROOF_NS);
                            self.state = State::Proving(stream, Box::new(dialer), until);
                        }
                        Err(error) => {
                            self.failure = Some(format!("{address}: {error}"));
                            self.next_address(now);
                        }
                    }
                }
                State::Proving(mut stream, mut dialer, until) => {
                    match prove(&mut stream, &mut dialer) {
                        Ok(Step::Done(proven)) => {
                            let keys = dialer.seal_keys();
                            return Ok(Some((proven, Wire::new(stream, keys))));
                        }
                        Ok(Step::Refused(refused)) => {
                            let Remote { host, port, .. } = &self.remote;
                            return Err(format!("{host} port {port}: {refused}"));
                        }
                        Ok(Step::More) if now < until => {
                            self.state = State::Proving(stream, dialer, until);
                            return Ok(None);
                        }
                        Ok(Step::More) => {
                            self.failure =
                                Some(format!("it did not answer the handshake{OTHER_PROTOCOL}"));
                            self.next_address(now);
                        }
                        Err(error) => {
                            self.failure = Some(error.to_string());
                            self.next_address(now);
                        }
                    }
                }
            }
            if matches!(self.state, State::Waiting(until) if until > now) {
                return Ok(None);
            }
        }
    }

    /// The socket to wait for, and whether it is to be written.
    pub(super) fn stream(&self) -> Option<(&TcpStream, bool)> {
        match &self.state {
            State::Waiting(_) | State::Over => None,
            State::Begun(stream, _, _) => Some((stream, true)),
            State::Proving(stream, dialer, _) => Some((stream, !dialer.to_write().is_empty())),
        }
    }

    fn next_address(&mut self, now: Time) {
        while let Some(address) = self.addresses.pop_front() {
            match dial(address) {
                Ok(stream) => {
                    self.state = State::Begun(stream, address, now.after(ANSWER_NS));
                    return;
                }
                Err(error) => self.failure = Some(format!("{address}: {error}")),
            }
        }
        self.state = State::Waiting(now.after(PAUSE_NS));
    }
}

/// What may be the matter with who is silent in a handshake.
const OTHER_PROTOCOL: &str =
    "; it may be busy, or a rank of ds4's own protocol (--protocol ds4-v7)";

/// Moves the bytes of a handshake; [`Step::More`] while the other side has not answered.
pub(super) fn prove(stream: &mut (impl Read + Write), dialer: &mut Dialer) -> io::Result<Step> {
    loop {
        while !dialer.to_write().is_empty() {
            match stream.write(dialer.to_write()) {
                Ok(count) => dialer.wrote(count),
                Err(error) if is_later(&error) => return Ok(Step::More),
                Err(error) => return Err(error),
            }
        }
        match stream.read(dialer.to_read()) {
            Ok(0) => {
                let why = format!("it closed the connection during the handshake{OTHER_PROTOCOL}");
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, why));
            }
            Ok(count) => match dialer.read(count) {
                Step::More => {}
                step @ (Step::Done(_) | Step::Refused(_)) => return Ok(step),
            },
            Err(error) if is_later(&error) => return Ok(Step::More),
            Err(error) => return Err(error),
        }
    }
}
