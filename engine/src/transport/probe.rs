//! Whether a path carries what is given to it: looked at on the path itself, before it is voted
//! for.
//!
//! Each rank sends its peer [`PROBE_BYTES`] of a pattern that names session, sender and place, and
//! reads as many into poisoned memory, both ways at once. The peer sends the same on its side, so
//! nothing of it is left when the first gate comes.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, poll};

use super::clock::Clock;
use super::path::{Path, is_later};
use super::wait::timespec;
use crate::tp::time::Time;
use crate::tp::trust::SessionId;

/// Bytes that are sent each way.
pub const PROBE_BYTES: usize = 256 << 10;
const STEP_BYTES: usize = 16 << 10;
const POISON: u8 = 0xa5;

/// One path under test.
pub(super) struct Probe {
    out: Vec<u8>,
    want: Vec<u8>,
    sent: usize,
    came: usize,
}

impl Probe {
    pub(super) fn new(session: &SessionId, own: u32, peer: u32) -> Self {
        Self {
            out: pattern(session, own, peer),
            want: pattern(session, peer, own),
            sent: 0,
            came: 0,
        }
    }

    fn done(&self) -> bool {
        self.sent == self.out.len() && self.came == self.want.len()
    }

    /// Moves what can be moved; true when something was.
    fn step(&mut self, path: &mut Path) -> io::Result<bool> {
        let mut moved = false;
        if let Some(rest) = self.out.get(self.sent..).filter(|rest| !rest.is_empty()) {
            match path.write(&[], rest) {
                Ok(count) => {
                    self.sent = self.sent.saturating_add(count);
                    moved = count > 0;
                }
                Err(error) if is_later(&error) => {}
                Err(error) => return Err(error),
            }
        }
        let mut buffer = [POISON; STEP_BYTES];
        let rest = self.want.get(self.came..).unwrap_or_default();
        let room = rest.len().min(STEP_BYTES);
        if room > 0 {
            let into = buffer.get_mut(..room).unwrap_or_default();
            match path.read(&mut [], into) {
                Ok(count) => {
                    if rest.get(..count) != buffer.get(..count) {
                        return Err(io::Error::new(
                            io::ErrorKind::InvalidData,
                            "the bytes that came are not those that were sent",
                        ));
                    }
                    self.came = self.came.saturating_add(count);
                    moved = true;
                }
                Err(error) if is_later(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(moved)
    }
}

/// Runs all probes at once until they are done, one fails, the user wants to stop, or the time is
/// over.
pub(super) fn run(
    clock: &Clock,
    due: Time,
    stop: &AtomicBool,
    probes: &mut [(Probe, &mut Path)],
) -> Result<(), String> {
    loop {
        let mut moved = false;
        for (probe, path) in probes.iter_mut() {
            let stepped = path.listen(clock.now()).and_then(|()| probe.step(path));
            moved |= stepped.map_err(|error| error.to_string())?;
        }
        if probes.iter().all(|(probe, _)| probe.done()) {
            return Ok(());
        }
        if stop.load(Ordering::Relaxed) {
            return Err("interrupted".to_owned());
        }
        if clock.now() >= due {
            return Err("its bytes did not come in time".to_owned());
        }
        if moved {
            continue;
        }
        let mut asleep = true;
        for (probe, path) in probes.iter_mut() {
            asleep &= path
                .doze(probe.sent < probe.out.len())
                .map_err(|error| error.to_string())?;
        }
        if asleep {
            let mut fds: Vec<PollFd<'_>> = Vec::new();
            let mut until = due;
            for (probe, path) in probes.iter().filter(|(probe, _)| !probe.done()) {
                let sleeps =
                    path.sleeps_on(probe.came < probe.want.len(), probe.sent < probe.out.len());
                let polled = sleeps.map(|(fd, events)| PollFd::from_borrowed_fd(fd, events));
                fds.extend(polled);
                until = until.min(path.due());
            }
            let limit = timespec(clock.until(until, Duration::from_millis(50)));
            // An interrupted wait is a short one.
            let _ = poll(&mut fds, Some(&limit));
        }
    }
}

/// The bytes that `from` sends `to`: a simple generator, seeded with all that they belong to.
pub(super) fn pattern(session: &SessionId, from: u32, to: u32) -> Vec<u8> {
    let mut state = u64::from(from) << 32 | u64::from(to);
    for byte in session {
        state = (state ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    }
    let words = (0..PROBE_BYTES / 8).flat_map(move |_| {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        (state ^ state >> 29)
            .wrapping_mul(0xbf58_476d_1ce4_e5b9)
            .to_le_bytes()
    });
    words.collect()
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::transport::wire::Wire;

    #[test]
    fn the_wish_to_stop_ends_the_probe_of_a_silent_peer() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        stream.set_nonblocking(true).unwrap();
        let mut path = Path::Tcp(Wire::new(stream, None));
        let mut probes = [(Probe::new(&SessionId::default(), 0, 1), &mut path)];
        let stop = AtomicBool::new(true);
        let ended = run(&Clock::start(), Time::NEVER, &stop, &mut probes);
        assert_eq!(ended, Err("interrupted".to_owned()));
    }
}
