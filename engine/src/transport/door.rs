//! The way in: connections that others make, until it is known whose they are.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags};

use super::path::is_later;
use crate::tp::trust::{Channel, Listener, Step};

/// How long a connection may take to say who it is.
pub(super) const PROOF_NS: u64 = 5_000_000_000;
/// How many may be at it at once; beyond, the oldest must go.
pub(super) const AT_ONCE: usize = 64;

/// Listening sockets, and why the system gives none of their connections if it does not.
#[derive(Debug, Default)]
pub(super) struct Door {
    failure: Option<io::Error>,
}

impl Door {
    /// Hands `enter` the connections that wait at the sockets.
    pub(super) fn open<'a, Socket: 'a, Guest>(
        &mut self,
        sockets: impl IntoIterator<Item = &'a Socket>,
        accept: impl Fn(&Socket) -> io::Result<Guest>,
        mut enter: impl FnMut(Guest),
    ) {
        self.failure = None;
        for socket in sockets {
            // A bound, so that a flood of connections cannot keep the rank here.
            for _ in 0..AT_ONCE {
                match accept(socket) {
                    Ok(guest) => enter(guest),
                    Err(error) if is_later(&error) => break,
                    // That one is gone; the next may not be.
                    Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                    Err(error) => {
                        self.failure = Some(error);
                        break;
                    }
                }
            }
        }
    }

    /// What to sleep on. Nothing while the system refuses: a connection that cannot be had makes its
    /// socket ready all the time, so the next attempt waits until the sleep is over.
    pub(super) fn sleeps_on<'a, Socket: AsFd + 'a>(
        &self,
        sockets: impl IntoIterator<Item = &'a Socket>,
    ) -> impl Iterator<Item = PollFd<'a>> {
        let opens = self.failure.is_none();
        let sockets = sockets.into_iter().filter(move |_| opens);
        sockets.map(|it| PollFd::from_borrowed_fd(it.as_fd(), PollFlags::IN))
    }

    /// Why no connection can be had, in words.
    pub(super) fn failure(&self) -> Option<String> {
        let failure = self.failure.as_ref()?;
        Some(format!("no connection can be accepted: {failure}"))
    }
}

/// A connection that proves itself.
#[derive(Debug)]
pub(super) struct Candidate<Stream> {
    pub(super) stream: Stream,
    pub(super) trust: Listener,
    outcome: Step,
}

impl<Stream: Read + Write> Candidate<Stream> {
    /// A connection that never blocks.
    pub(super) const fn new(stream: Stream, trust: Listener) -> Self {
        Self {
            stream,
            trust,
            outcome: Step::More,
        }
    }

    /// Moves bytes. [`Step::More`] until the proof is judged and the verdict is on its way.
    pub(super) fn step(&mut self, awaits: &dyn Fn(u32, Channel) -> bool) -> io::Result<Step> {
        loop {
            while !self.trust.to_write().is_empty() {
                match self.stream.write(self.trust.to_write()) {
                    Ok(count) => self.trust.wrote(count),
                    Err(error) if is_later(&error) => return Ok(Step::More),
                    Err(error) => return Err(error),
                }
            }
            if self.outcome != Step::More {
                return Ok(self.outcome);
            }
            match self.stream.read(self.trust.to_read()) {
                Ok(0) => {
                    let why = "it went away without a proof";
                    return Err(io::Error::new(ErrorKind::UnexpectedEof, why));
                }
                Ok(count) => self.outcome = self.trust.read(count, awaits),
                Err(error) if is_later(&error) => return Ok(Step::More),
                Err(error) => return Err(error),
            }
        }
    }

    /// Whether it is to be written; else it is to be read.
    pub(super) fn writes(&self) -> bool {
        !self.trust.to_write().is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use rustix::io::Errno;

    use super::*;

    #[test]
    fn without_descriptors_a_door_sleeps_on_nothing_and_goes_on_when_they_come_back() {
        let socket = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let mut door = Door::default();
        let mut open = |accepts: Vec<io::Result<u32>>| {
            let accepts = RefCell::new(accepts.into_iter());
            let mut came = Vec::new();
            let accept = |_: &_| accepts.borrow_mut().next().unwrap();
            door.open([&socket], accept, |guest| came.push(guest));
            (came, door.failure(), door.sleeps_on([&socket]).count())
        };
        let none = || Err(Errno::MFILE.into());
        let (came, why, sleeps) = open(vec![Ok(1), Err(Errno::CONNABORTED.into()), Ok(2), none()]);
        assert_eq!((came, sleeps), (vec![1, 2], 0));
        assert!(why.is_some_and(|it| it.contains("Too many open files")));
        let later = Err(Errno::AGAIN.into());
        assert_eq!(open(vec![Ok(3), later]), (vec![3], None, 1));
    }
}
