//! Connections that others make: who may prove itself, and for how long.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use super::path::is_later;
use super::sockets::{Listening, source, tune};
use super::wire::Wire;
use crate::tp::admission::Admission;
use crate::tp::time::Time;
use crate::tp::trust::{Channel, Listener, Proven, Step};

/// How long a connection may take to prove itself.
pub(super) const PROOF_NS: u64 = 5_000_000_000;
/// How many may be at it at once; beyond, the oldest must go.
const AT_ONCE: usize = 64;

/// What has become of a connection.
pub(super) enum Judged {
    /// It belongs to the session.
    Proven(Proven, Wire),
    /// It was closed; in words.
    Refused(String),
}

struct Guest {
    stream: TcpStream,
    from: SocketAddr,
    trust: Listener,
    until: Time,
    proven: Option<Proven>,
    refused: Option<String>,
}

/// The connections that are proving themselves.
#[derive(Default)]
pub(super) struct Incoming {
    admission: Admission,
    guests: Vec<Guest>,
}

impl Incoming {
    /// Takes the connections that wait at the sockets.
    pub(super) fn accept(
        &mut self,
        now: Time,
        listening: &Listening,
        buffer_bytes: Option<usize>,
        trust: &dyn Fn() -> Option<Listener>,
    ) {
        for socket in &listening.sockets {
            // A bound, so that a flood of connections cannot keep the rank here.
            for _ in 0..AT_ONCE {
                let Ok((stream, from)) = socket.accept() else {
                    break;
                };
                if !self.admission.allows(now, source(from)) {
                    continue;
                }
                let Some(trust) = trust() else {
                    continue;
                };
                if tune(&stream, buffer_bytes).is_err() {
                    continue;
                }
                if self.guests.len() >= AT_ONCE {
                    let oldest = self.guests.remove(0);
                    self.admission.failed(now, source(oldest.from));
                }
                self.guests.push(Guest {
                    stream,
                    from,
                    trust,
                    until: now.after(PROOF_NS),
                    proven: None,
                    refused: None,
                });
            }
        }
    }

    /// Moves bytes; what was judged comes back.
    pub(super) fn step(&mut self, now: Time, awaits: &dyn Fn(u32, Channel) -> bool) -> Vec<Judged> {
        let mut judged = Vec::new();
        for mut guest in std::mem::take(&mut self.guests) {
            match guest.step(awaits) {
                Ok(true) => match guest.proven {
                    Some(proven) => {
                        self.admission.succeeded(source(guest.from));
                        let keys = guest.trust.seal_keys(proven.channel);
                        judged.push(Judged::Proven(proven, Wire::new(guest.stream, keys)));
                    }
                    None => {
                        self.admission.failed(now, source(guest.from));
                        let why = guest.refused.unwrap_or_default();
                        judged.push(Judged::Refused(format!("{}: {why}", guest.from)));
                    }
                },
                Ok(false) if now < guest.until => self.guests.push(guest),
                Ok(false) => {
                    self.admission.failed(now, source(guest.from));
                    judged.push(Judged::Refused(format!(
                        "{}: it did not prove itself in time",
                        guest.from
                    )));
                }
                Err(why) => {
                    self.admission.failed(now, source(guest.from));
                    judged.push(Judged::Refused(format!("{}: {why}", guest.from)));
                }
            }
        }
        judged
    }

    /// The sockets to wait for.
    pub(super) fn streams(&self) -> impl Iterator<Item = (&TcpStream, bool)> {
        let guests = self.guests.iter();
        guests.map(|guest| (&guest.stream, !guest.trust.to_write().is_empty()))
    }
}

impl Guest {
    /// True when nothing is left to do.
    fn step(&mut self, awaits: &dyn Fn(u32, Channel) -> bool) -> Result<bool, String> {
        loop {
            while !self.trust.to_write().is_empty() {
                match self.stream.write(self.trust.to_write()) {
                    Ok(count) => self.trust.wrote(count),
                    Err(error) if is_later(&error) => return Ok(false),
                    Err(error) => return Err(error.to_string()),
                }
            }
            if self.proven.is_some() || self.refused.is_some() {
                return Ok(true);
            }
            let count = match self.stream.read(self.trust.to_read()) {
                Ok(0) => return Err("it went away without a proof".to_owned()),
                Ok(count) => count,
                Err(error) if is_later(&error) => return Ok(false),
                Err(error) => return Err(error.to_string()),
            };
            match self.trust.read(count, awaits) {
                Step::More => {}
                Step::Done(proven) => self.proven = Some(proven),
                Step::Refused(refused) => self.refused = Some(refused.to_string()),
            }
        }
    }
}
