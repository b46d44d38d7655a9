//! Connections that others make: who may prove itself, and for how long.

use std::net::{SocketAddr, TcpStream};

use super::door::{AT_ONCE, Candidate, Door, PROOF_NS};
use super::sockets::{Listening, source, tune};
use super::wire::Wire;
use crate::tp::admission::Admission;
use crate::tp::time::Time;
use crate::tp::trust::{Channel, Listener, Proven, Step};

/// What has become of a connection.
pub(super) enum Judged {
    /// It belongs to the session.
    Proven(Proven, Wire),
    /// It was closed; in words.
    Refused(String),
}

struct Guest {
    candidate: Candidate<TcpStream>,
    from: SocketAddr,
    until: Time,
}

/// The connections that are proving themselves.
#[derive(Default)]
pub(super) struct Incoming {
    pub(super) door: Door,
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
        let (admission, guests) = (&mut self.admission, &mut self.guests);
        let enter = |(stream, from): (TcpStream, SocketAddr)| {
            if !admission.allows(now, source(from)) {
                return;
            }
            let Some(trust) = trust() else {
                return;
            };
            if tune(&stream, buffer_bytes).is_err() {
                return;
            }
            if guests.len() >= AT_ONCE {
                let oldest = guests.remove(0);
                admission.failed(now, source(oldest.from));
            }
            guests.push(Guest {
                candidate: Candidate::new(stream, trust),
                from,
                until: now.after(PROOF_NS),
            });
        };
        self.door
            .open(&listening.sockets, std::net::TcpListener::accept, enter);
    }

    /// Moves bytes; what was judged comes back.
    pub(super) fn step(&mut self, now: Time, awaits: &dyn Fn(u32, Channel) -> bool) -> Vec<Judged> {
        let mut judged = Vec::new();
        for mut guest in std::mem::take(&mut self.guests) {
            let from = guest.from;
            let why = match guest.candidate.step(awaits) {
                Ok(Step::More) if now < guest.until => {
                    self.guests.push(guest);
                    continue;
                }
                Ok(Step::Done(proven)) => {
                    self.admission.succeeded(source(from));
                    let Candidate { stream, trust, .. } = guest.candidate;
                    let wire = Wire::new(stream, trust.seal_keys(proven.channel));
                    judged.push(Judged::Proven(proven, wire));
                    continue;
                }
                Ok(Step::More) => "it did not prove itself in time".to_owned(),
                Ok(Step::Refused(refused)) => refused.to_string(),
                Err(error) => error.to_string(),
            };
            self.admission.failed(now, source(from));
            judged.push(Judged::Refused(format!("{from}: {why}")));
        }
        judged
    }

    /// The sockets to wait for, and whether they are to be written.
    pub(super) fn streams(&self) -> impl Iterator<Item = (&TcpStream, bool)> {
        let candidates = self.guests.iter().map(|guest| &guest.candidate);
        candidates.map(|it| (&it.stream, it.writes()))
    }
}
