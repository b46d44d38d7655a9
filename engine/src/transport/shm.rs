//! Gates through memory that two processes of one host share.
//!
//! Each direction is a ring of bytes with two counts that only grow: how many were written and how
//! many were read. They lie on lines of their own. Gates of any length pass, and a reader may take
//! the first bytes while the last are being written.
//!
//! A Unix socket hands the memory over and stays open. It is the bell for a side that sleeps, and
//! its end is the peer's death, told by the system at once: a sleeper waits for bytes, death, the
//! control connection and the deadline in one `poll`.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use super::mapping::Mapping;

/// Bytes of each ring: small enough to stay in a core's cache.
const RING_BYTES: usize = 256 << 10;
/// After so many bytes the reader may begin.
const STEP_BYTES: usize = 4 << 10;
/// The counts, each on a line of its own, before the rings.
const WORDS_BYTES: usize = 4096;
const LINE_BYTES: usize = 128;
const WHOLE_BYTES: usize = WORDS_BYTES + 2 * RING_BYTES;

/// One end of the shared memory.
#[derive(Debug)]
pub(super) struct ShmPath {
    map: Mapping,
    bell: UnixStream,
    /// 0 for who created the memory, 1 for the other.
    side: usize,
    written: u64,
    written_room_to: u64,
    read: u64,
    read_seen: u64,
}

#[derive(Clone, Copy)]
enum Word {
    Written,
    Read,
    Asleep,
}

impl ShmPath {
    /// Creates the memory and sends it over a proven socket, which has room for it.
    pub(super) fn create(bell: UnixStream) -> io::Result<Self> {
        let (map, file) = Mapping::create(WHOLE_BYTES)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut rights = SendAncillaryBuffer::new(&mut space);
        let files = [file.as_fd()];
        if !rights.push(SendAncillaryMessage::ScmRights(&files)) {
            return Err(io::Error::other("no room for one file"));
        }
        sendmsg(
            &bell,
            &[IoSlice::new(b"M")],
            &mut rights,
            SendFlags::NOSIGNAL,
        )?;
        Self::new(map, bell, 0)
    }

    /// Takes the memory that the peer sends over a proven socket, which blocks.
    pub(super) fn receive(bell: UnixStream) -> io::Result<Self> {
        Self::open(&take_file(&bell)?, bell)
    }

    /// The memory that the peer sent over a proven socket.
    pub(super) fn open(file: &OwnedFd, bell: UnixStream) -> io::Result<Self> {
        Self::new(Mapping::open(file, WHOLE_BYTES)?, bell, 1)
    }

    fn new(map: Mapping, bell: UnixStream, side: usize) -> io::Result<Self> {
        bell.set_nonblocking(true)?;
        Ok(Self {
            map,
            bell,
            side,
            written: 0,
            written_room_to: u64::try_from(RING_BYTES).unwrap_or(0),
            read: 0,
            read_seen: 0,
        })
    }

    /// The socket whose readability means: look again.
    pub(super) const fn bell(&self) -> &UnixStream {
        &self.bell
    }

    /// Copies as much as there is room for.
    pub(super) fn write(&mut self, head: &[u8], body: &[u8]) -> io::Result<usize> {
        let before = self.written;
        'parts: for (part, steps) in [(head, false), (body, true)] {
            let mut rest = part;
            while !rest.is_empty() {
                let room = self.room()?.min(rest.len()).min(STEP_BYTES);
                // Room that comes up later is not for a later part.
                if room == 0 {
                    break 'parts;
                }
                let at = place(self.written);
                let (now, later) = rest.split_at(room.min(RING_BYTES - at));
                if !self.map.write(self.ring(self.side) + at, now) {
                    return Err(outside());
                }
                self.written = self.written.wrapping_add(len(now));
                if steps {
                    self.word(self.side, Word::Written)?
                        .store(self.written, Ordering::Release);
                }
                rest = later;
            }
        }
        let count = self.written.wrapping_sub(before);
        if count > 0 {
            self.word(self.side, Word::Written)?
                .store(self.written, Ordering::Release);
            self.wake()?;
            return Ok(usize::try_from(count).unwrap_or(0));
        }
        Err(ErrorKind::WouldBlock.into())
    }

    /// Copies as much as there is.
    pub(super) fn read(&mut self, head: &mut [u8], body: &mut [u8]) -> io::Result<usize> {
        let peer = 1 - self.side;
        let before = self.read;
        'parts: for part in [head, body] {
            let mut filled = 0;
            while let Some(rest) = part.get_mut(filled..).filter(|rest| !rest.is_empty()) {
                let there = self.there()?;
                if there == 0 {
                    break 'parts;
                }
                let at = place(self.read);
                let count = there.min(rest.len()).min(RING_BYTES - at);
                let to = rest.get_mut(..count).unwrap_or_default();
                if !self.map.read(self.ring(peer) + at, to) {
                    return Err(outside());
                }
                self.read = self.read.wrapping_add(len(to));
                filled += count;
            }
        }
        let count = self.read.wrapping_sub(before);
        if count > 0 {
            self.word(peer, Word::Read)?
                .store(self.read, Ordering::Release);
            self.wake()?;
            return Ok(usize::try_from(count).unwrap_or(0));
        }
        Err(ErrorKind::WouldBlock.into())
    }

    /// Says that this side will sleep. False when there is something to do already.
    pub(super) fn doze(&mut self, wants_room: bool) -> io::Result<bool> {
        self.word(self.side, Word::Asleep)?
            .store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let awake = self.there()? > 0 || (wants_room && self.room()? > 0);
        if awake {
            self.word(self.side, Word::Asleep)?
                .store(0, Ordering::Relaxed);
        }
        Ok(!awake)
    }

    /// Takes the rings of the bell that lie there.
    ///
    /// # Errors
    /// The peer is gone.
    pub(super) fn listen(&mut self) -> io::Result<()> {
        let mut rings = [0; 64];
        loop {
            match (&self.bell).read(&mut rings) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Rings the bell of a peer that sleeps.
    fn wake(&self) -> io::Result<()> {
        // Pairs with the fence of `doze`: either it sees what was stored, or this sees it asleep.
        fence(Ordering::SeqCst);
        let asleep = self.word(1 - self.side, Word::Asleep)?;
        if asleep.load(Ordering::Relaxed) == 0 || asleep.swap(0, Ordering::SeqCst) == 0 {
            return Ok(());
        }
        match rustix::net::send(&self.bell, b"!", SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            // A bell that is full has rung.
            Ok(_) | Err(rustix::io::Errno::AGAIN) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn room(&mut self) -> io::Result<usize> {
        if self.written == self.written_room_to {
            let read = self.word(self.side, Word::Read)?.load(Ordering::Acquire);
            let under_way = self.written.wrapping_sub(read);
            if under_way > ring_bytes() {
                return Err(nonsense());
            }
            self.written_room_to = read.wrapping_add(ring_bytes());
        }
        let room = self.written_room_to.wrapping_sub(self.written);
        Ok(usize::try_from(room).unwrap_or(0))
    }

    fn there(&mut self) -> io::Result<usize> {
        if self.read == self.read_seen {
            let peer = 1 - self.side;
            let written = self.word(peer, Word::Written)?.load(Ordering::Acquire);
            if written.wrapping_sub(self.read) > ring_bytes() {
                return Err(nonsense());
            }
            self.read_seen = written;
        }
        let there = self.read_seen.wrapping_sub(self.read);
        Ok(usize::try_from(there).unwrap_or(0))
    }

    /// The words of the ring that `side` writes, and whether that side sleeps.
    fn word(&self, side: usize, word: Word) -> io::Result<&AtomicU64> {
        let line = side * 3 + word as usize;
        self.map.word(line * LINE_BYTES).ok_or_else(outside)
    }

    const fn ring(&self, side: usize) -> usize {
        WORDS_BYTES + side * RING_BYTES
    }
}

/// The file that the peer sends over a proven socket.
///
/// # Errors
/// [`ErrorKind::WouldBlock`] while it has not; anything else is final.
pub(super) fn take_file(bell: &UnixStream) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut rights = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let came = recvmsg(
        bell,
        &mut [IoSliceMut::new(&mut byte)],
        &mut rights,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let mut files: Vec<OwnedFd> = Vec::new();
    for message in rights.drain() {
        if let RecvAncillaryMessage::ScmRights(sent) = message {
            files.extend(sent);
        }
    }
    let why = if came.bytes == 0 {
        "the peer went away and sent no memory"
    } else if came.flags.contains(ReturnFlags::CTRUNC) {
        "no descriptor is left for the peer's memory: too many open files"
    } else {
        "the peer sent no memory"
    };
    let file = files.into_iter().next();
    file.ok_or_else(|| io::Error::new(ErrorKind::InvalidData, why))
}

fn place(count: u64) -> usize {
    usize::try_from(count % ring_bytes()).unwrap_or(0)
}

const fn ring_bytes() -> u64 {
    RING_BYTES as u64
}

fn len(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}

fn outside() -> io::Error {
    io::Error::other("an offset outside the shared memory")
}

fn nonsense() -> io::Error {
    io::Error::new(
        ErrorKind::InvalidData,
        "the peer's counts in the shared memory make no sense",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (ShmPath, ShmPath) {
        let (one, two) = UnixStream::pair().unwrap();
        let taker = std::thread::spawn(move || ShmPath::receive(two).unwrap());
        (ShmPath::create(one).unwrap(), taker.join().unwrap())
    }

    #[test]
    fn bytes_pass_in_order_and_a_full_ring_takes_no_more() {
        let (mut one, mut two) = pair();
        let sent: Vec<u8> = (0..1_000_003_u32)
            .map(|i| i.to_le_bytes()[0] ^ 0x5a)
            .collect();
        let mut got = vec![0; sent.len()];
        let (mut out, mut come, mut full) = (0, 0, 0);
        while come < got.len() {
            match one.write(&[], &sent[out..]) {
                Ok(count) => out += count,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                    full += 1;
                }
            }
            let end = (come + 77_777).min(got.len());
            come += two.read(&mut [], &mut got[come..end]).unwrap();
        }
        assert!(sent == got && full > 0);
        assert_eq!(
            two.read(&mut [0; 1], &mut []).unwrap_err().kind(),
            ErrorKind::WouldBlock
        );
    }

    #[test]
    fn a_sleeper_is_woken_and_told_of_the_peers_death() {
        let (mut one, mut two) = pair();
        assert!(two.doze(false).unwrap());
        one.write(b"head", b"body").unwrap();
        two.bell.set_nonblocking(false).unwrap();
        two.bell.read_exact(&mut [0]).unwrap();
        two.bell.set_nonblocking(true).unwrap();
        assert!(!two.doze(false).unwrap(), "there is something to read");
        two.listen().unwrap();
        drop(one);
        assert!(two.listen().is_err());
    }

    #[test]
    fn counts_that_make_no_sense_are_refused() {
        let (mut one, two) = pair();
        let word = two.word(1, Word::Written).unwrap();
        word.store(ring_bytes() + 1, Ordering::Release);
        assert_eq!(
            one.read(&mut [0; 4], &mut []).unwrap_err().kind(),
            ErrorKind::InvalidData
        );
        two.word(0, Word::Read).unwrap().store(9, Ordering::Release);
        one.written = one.written_room_to;
        one.written = 3;
        one.written_room_to = 3;
        assert!(one.write(&[], &[1]).is_err());
    }
}
