//! The sockets by which ranks of one host hand each other shared memory.
//!
//! Their names are abstract, so nothing is left in any directory. A name holds the session, and
//! who connects proves the key as on every other connection.

use std::fmt::Write as _;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};

use super::clock::Clock;
use super::wait::timespec;
use crate::tp::time::Time;
use crate::tp::trust::{Channel, Dialer, Listener, SessionId, Step};

/// How long a handshake may take.
const HANDSHAKE_NS: u64 = 1_000_000_000;

/// The name of a rank's socket.
fn name(session: &SessionId, rank: u32) -> io::Result<SocketAddr> {
    let mut name = String::from("ds4-tp-");
    for byte in session {
        // Writing to a string cannot fail.
        let _ = write!(name, "{byte:02x}");
    }
    let _ = write!(name, "-{rank}");
    SocketAddr::from_abstract_name(name)
}

pub(super) fn listen(session: &SessionId, rank: u32) -> io::Result<UnixListener> {
    let listener = UnixListener::bind_addr(&name(session, rank)?)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Connects to a lower rank and proves the key.
pub(super) fn connect(
    clock: &Clock,
    session: &SessionId,
    rank: u32,
    mut dialer: Dialer,
) -> io::Result<UnixStream> {
    let mut stream = UnixStream::connect_addr(&name(session, rank)?)?;
    let until = clock.now().after(HANDSHAKE_NS);
    demand_same_user(&stream)?;
    loop {
        limit(&stream, clock, until)?;
        stream.write_all(dialer.to_write())?;
        let written = dialer.to_write().len();
        dialer.wrote(written);
        let count = stream.read(dialer.to_read())?;
        if count == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        match dialer.read(count) {
            Step::More => {}
            Step::Done(_) => {
                // The memory comes next.
                limit(&stream, clock, clock.now().after(HANDSHAKE_NS))?;
                return Ok(stream);
            }
            Step::Refused(refused) => return Err(io::Error::other(refused)),
        }
    }
}

/// Waits for a rank that `awaits` names; others are sent away.
pub(super) fn accept(
    clock: &Clock,
    due: Time,
    listener: &UnixListener,
    trust: &dyn Fn() -> io::Result<Listener>,
    awaits: &dyn Fn(u32) -> bool,
) -> io::Result<(u32, UnixStream)> {
    loop {
        // Also after strangers, who must not keep a rank here.
        if clock.now() >= due {
            return Err(io::Error::new(
                ErrorKind::TimedOut,
                "the peer did not come to the shared memory",
            ));
        }
        match listener.accept() {
            Ok((stream, _)) => {
                if let Ok(proven) = judge(stream, clock, trust()?, awaits) {
                    return Ok(proven);
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                let limit = timespec(clock.until(due, Duration::from_millis(100)));
                // An interrupted wait is a short one.
                let _ = poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&limit));
            }
            Err(error) => return Err(error),
        }
    }
}

fn judge(
    mut stream: UnixStream,
    clock: &Clock,
    mut trust: Listener,
    awaits: &dyn Fn(u32) -> bool,
) -> io::Result<(u32, UnixStream)> {
    let until = clock.now().after(HANDSHAKE_NS);
    demand_same_user(&stream)?;
    loop {
        limit(&stream, clock, until)?;
        stream.write_all(trust.to_write())?;
        let written = trust.to_write().len();
        trust.wrote(written);
        let count = stream.read(trust.to_read())?;
        if count == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let wanted = |peer: u32, channel: Channel| channel == Channel::Data && awaits(peer);
        let step = trust.read(count, wanted);
        if step != Step::More {
            stream.write_all(trust.to_write())?;
        }
        match step {
            Step::More => {}
            Step::Done(proven) => {
                limit(&stream, clock, clock.now().after(HANDSHAKE_NS))?;
                return Ok((proven.peer, stream));
            }
            Step::Refused(refused) => return Err(io::Error::other(refused)),
        }
    }
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

/// Bounds the next message by what is left of the handshake.
fn limit(stream: &UnixStream, clock: &Clock, until: Time) -> io::Result<()> {
    let left = clock.until(until, Duration::from_nanos(HANDSHAKE_NS));
    if left.is_zero() {
        return Err(ErrorKind::TimedOut.into());
    }
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(left))?;
    stream.set_write_timeout(Some(left))
}
