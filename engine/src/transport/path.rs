//! The way that gates take to one peer.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::PollFlags;

use super::shm::ShmPath;
use super::verbs::VerbsPath;
use super::wire::Wire;
use crate::tp::time::Time;

/// A way, in order and without loss, that never blocks.
///
/// Links of GPUs, which place payloads themselves, become further variants.
#[derive(Debug)]
pub(super) enum Path {
    /// The data connection.
    Tcp(Wire),
    /// Shared memory; the data connection stays open beside it.
    Shm(Box<ShmPath>),
    /// Queue pairs; the data connection stays open beside them.
    Verbs(Box<VerbsPath>),
}

impl Path {
    /// Writes a header and what follows in one go, as much as there is room for.
    ///
    /// # Errors
    /// [`ErrorKind::WouldBlock`] when there is no room; anything else ends the path.
    pub(super) fn write(&mut self, head: &[u8], body: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(wire) => wire.write(head, body),
            Self::Shm(shm) => shm.write(head, body),
            Self::Verbs(verbs) => verbs.write(head, body),
        }
    }

    /// Reads a header and what follows in one go, as much as is there.
    ///
    /// # Errors
    /// As for [`Path::write`]; the peer's orderly end is [`ErrorKind::UnexpectedEof`].
    pub(super) fn read(&mut self, head: &mut [u8], body: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(wire) => wire.read(head, body),
            Self::Shm(shm) => shm.read(head, body),
            Self::Verbs(verbs) => verbs.read(head, body),
        }
    }

    /// Prepares to sleep; false when there is something to do already.
    pub(super) fn doze(&mut self, writes: bool) -> io::Result<bool> {
        match self {
            Self::Tcp(wire) => Ok(!wire.holds()),
            Self::Shm(shm) => shm.doze(writes),
            Self::Verbs(verbs) => verbs.doze(writes),
        }
    }

    /// What to sleep on, if anything.
    pub(super) fn sleeps_on(
        &self,
        reads: bool,
        writes: bool,
    ) -> Option<(BorrowedFd<'_>, PollFlags)> {
        Some(match self {
            Self::Tcp(wire) => {
                let mut events = PollFlags::empty();
                events.set(PollFlags::IN, reads);
                events.set(PollFlags::OUT, writes);
                (wire.stream().as_fd(), events)
            }
            Self::Shm(shm) => (shm.bell().as_fd(), PollFlags::IN),
            Self::Verbs(verbs) => (verbs.bell()?, PollFlags::IN),
        })
    }

    /// Until when a sleep may last at most.
    pub(super) fn due(&self) -> Time {
        match self {
            Self::Tcp(_) | Self::Shm(_) => Time::NEVER,
            Self::Verbs(verbs) => verbs.due(),
        }
    }

    /// The end of a path that says itself why it ended; others are judged by the peer's words.
    pub(super) const fn explains(&self) -> bool {
        matches!(self, Self::Verbs(_))
    }

    /// Looks at what a path has beside its bytes: whether the peer lives, what must be sent again.
    pub(super) fn listen(&mut self, now: Time) -> io::Result<()> {
        match self {
            Self::Tcp(_) => Ok(()),
            Self::Shm(shm) => shm.listen(),
            Self::Verbs(verbs) => verbs.tend(now),
        }
    }

    /// How often to look in vain before the clock and the control connection are looked at: a
    /// look at a socket is a call of the system, one at memory is not.
    pub(super) const fn looks(&self) -> u32 {
        match self {
            Self::Tcp(_) => 64,
            Self::Shm(_) => 2048,
            Self::Verbs(_) => 512,
        }
    }
}

/// Whether nothing went wrong but that nothing could be done now.
pub(super) fn is_later(error: &io::Error) -> bool {
    error.kind() == ErrorKind::WouldBlock
}
