//! Bytes, in order and without loss, through memory that the peer's device writes.
//!
//! Each side has a ring of slots for what it sends and one for what comes. A chunk is one write
//! into the peer's slot of its number, with a number (the *immediate*) that says which chunk it is
//! and how many of the peer's chunks were consumed; the device tells it to the peer when the bytes
//! are there. A slot is written again only when its last chunk was consumed, which is the credit,
//! so that there is always room and always a receive posted: twice as many as there are slots, one
//! for each chunk and one for each word about consumed chunks that may be under way.
//!
//! Unreliable connections lose whole chunks in silence. There the number shows the gap, the
//! receiver asks for what is missing, and what is not consumed in time is sent again.

use std::fmt;
use std::io::{self, ErrorKind};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::calls::{CallError, Completion, Device, PairKind, Write};
use super::status::Status;
use crate::tp::time::Time;
use crate::transport::mapping::Mapping;

/// Slots of each ring.
pub(super) const SLOTS: usize = 16;
/// Bytes of a slot: a gate of 16 KiB and its header are one write.
pub(super) const SLOT_BYTES: usize = 32 << 10;
/// Receives that are always posted.
pub(super) const RECEIVES: usize = 2 * SLOTS;
/// Writes that may be under way: chunks, and words about consumed ones.
pub(super) const WRITES: usize = 2 * SLOTS;

/// The first bit of a receive's number; a write's is its chunk's, or [`WORD`].
const RECEIVE: u64 = 1 << 63;
const WORD: u64 = 1 << 62;

/// Completions that are looked at in one go.
const AT_ONCE: usize = 4 * SLOTS;
/// An unreliable chunk is sent again after so long, then after twice as long.
const RESEND_NS: u64 = 20_000_000;
const RESEND_NS_MAX: u64 = 160_000_000;
/// A word about consumed chunks waits so long for a chunk that takes it along.
const WORD_NS: u64 = 1_000_000;

/// What a write tells beside its bytes: bit 31 chunk or word alone, 30 a chunk is missing, 16 to 29
/// chunks consumed, 0 to 15 the chunk's number; counts are cut to these bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Immediate {
    chunk: Option<u16>,
    consumed: u16,
    missing: bool,
}

const CONSUMED_BITS: u32 = 14;

impl Immediate {
    fn encode(self) -> u32 {
        u32::from(self.chunk.is_some()) << 31
            | u32::from(self.missing) << 30
            | u32::from(self.consumed & low_bits(CONSUMED_BITS)) << 16
            | u32::from(self.chunk.unwrap_or(0))
    }

    fn decode(bits: u32) -> Self {
        let [high, low] = [bits >> 16, bits & 0xffff].map(|half| u16::try_from(half).unwrap_or(0));
        Self {
            chunk: (bits >> 31 == 1).then_some(low),
            consumed: high & low_bits(CONSUMED_BITS),
            missing: bits >> 30 & 1 == 1,
        }
    }
}

const fn low_bits(bits: u32) -> u16 {
    (1 << bits) - 1
}

/// The lowest bits of a count.
fn cut(count: u64, bits: u32) -> u16 {
    u16::try_from(count & ((1 << bits) - 1)).unwrap_or(0)
}

/// How far a cut count lies from a whole one, forwards or backwards.
fn distance(cut_count: u16, from: u64, bits: u32) -> i64 {
    let span = 1_i64 << bits;
    let ahead = (i64::from(cut_count) - i64::from(cut(from, bits))).rem_euclid(span);
    if ahead >= span / 2 {
        ahead - span
    } else {
        ahead
    }
}

/// Where the peer's ring lies.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerRing {
    pub(super) address: u64,
    pub(super) key: u32,
    pub(super) slot_bytes: u64,
    pub(super) slots: u64,
}

/// One end of a connection between queue pairs.
pub struct VerbsPath {
    device: Box<dyn Device>,
    memory: Arc<Mapping>,
    kind: PairKind,
    ring: PeerRing,
    chunk_bytes: usize,
    now: Time,
    // What goes out.
    sent: u64,
    consumed_there: u64,
    lengths: [u32; SLOTS],
    under_way: [u8; SLOTS],
    writes: usize,
    resend_at: Time,
    resend_ns: u64,
    // What comes in.
    read: u64,
    read_at: usize,
    came: [Option<u32>; SLOTS],
    told: u64,
    owed_since: Time,
    missing_asked: Option<u64>,
    failure: Option<String>,
    // For reports.
    resent: u64,
}

impl fmt::Debug for VerbsPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VerbsPath")
            .field("device", &self.device)
            .field("kind", &self.kind)
            .field("sent", &self.sent)
            .field("consumed_there", &self.consumed_there)
            .field("read", &self.read)
            .field("failure", &self.failure)
            .finish_non_exhaustive()
    }
}

impl VerbsPath {
    /// A path over a device whose queue pair is connected and has [`RECEIVES`] receives.
    pub(super) fn new(
        device: Box<dyn Device>,
        memory: Arc<Mapping>,
        kind: PairKind,
        ring: PeerRing,
        chunk_bytes: usize,
    ) -> Self {
        Self {
            device,
            memory,
            kind,
            ring,
            chunk_bytes: chunk_bytes.clamp(1, SLOT_BYTES),
            now: Time::ZERO,
            sent: 0,
            consumed_there: 0,
            lengths: [0; SLOTS],
            under_way: [0; SLOTS],
            writes: 0,
            resend_at: Time::NEVER,
            resend_ns: RESEND_NS,
            read: 0,
            read_at: 0,
            came: [None; SLOTS],
            told: 0,
            owed_since: Time::NEVER,
            missing_asked: None,
            failure: None,
            resent: 0,
        }
    }

    /// What the connection promises.
    #[must_use]
    pub const fn kind(&self) -> PairKind {
        self.kind
    }

    /// Chunks that were sent more than once.
    #[must_use]
    pub const fn resent(&self) -> u64 {
        self.resent
    }

    /// Sends a header and what follows, as much as there is room for.
    ///
    /// # Errors
    /// [`ErrorKind::WouldBlock`] when there is no room; anything else ends the path, and says why.
    pub fn write(&mut self, head: &[u8], body: &[u8]) -> io::Result<usize> {
        let whole = head.len().saturating_add(body.len());
        let mut taken = 0;
        while taken < whole {
            if !self.has_room() {
                self.pump();
                self.sound()?;
                if !self.has_room() {
                    break;
                }
            }
            let slot = slot(self.sent);
            let mut filled = 0;
            for (part, begins) in [(head, 0), (body, head.len())] {
                let from = taken.saturating_sub(begins);
                let end = part
                    .len()
                    .min(from.saturating_add(self.chunk_bytes - filled));
                let piece = part.get(from..end).unwrap_or_default();
                if !self.memory.write(slot * SLOT_BYTES + filled, piece) {
                    return Err(self.fail("a slot outside the registered memory"));
                }
                filled += piece.len();
                taken += piece.len();
            }
            let bytes = u32::try_from(filled).unwrap_or(0);
            if let Some(length) = self.lengths.get_mut(slot) {
                *length = bytes;
            }
            let number = self.sent;
            self.sent += 1;
            if self.resend_at == Time::NEVER {
                self.resend_at = self.now.after(self.resend_ns);
            }
            self.post_chunk(number)?;
        }
        self.sound()?;
        if taken == 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        Ok(taken)
    }

    /// Reads a header and what follows, as much as is there. What came before a failure is read
    /// before the failure shows.
    ///
    /// # Errors
    /// As for [`VerbsPath::write`].
    pub fn read(&mut self, head: &mut [u8], body: &mut [u8]) -> io::Result<usize> {
        if self.front().is_none() {
            self.pump();
        }
        let mut count = 0;
        for part in [head, body] {
            let mut filled = 0;
            while let Some(rest) = part.get_mut(filled..).filter(|rest| !rest.is_empty()) {
                let Some(length) = self.front() else {
                    break;
                };
                let piece = rest.len().min(length - self.read_at);
                let to = rest.get_mut(..piece).unwrap_or_default();
                let at = SLOTS * SLOT_BYTES + slot(self.read) * SLOT_BYTES + self.read_at;
                if !self.memory.read(at, to) {
                    return Err(self.fail("a slot outside the registered memory"));
                }
                filled += piece;
                count += piece;
                self.read_at += piece;
                if self.read_at == length {
                    self.consume()?;
                }
            }
            if filled < part.len() {
                break;
            }
        }
        if count > 0 {
            return Ok(count);
        }
        self.sound()?;
        Err(ErrorKind::WouldBlock.into())
    }

    /// Looks at what is over, asks for what is missing and sends again what was lost.
    ///
    /// # Errors
    /// The path ended, and why.
    pub fn tend(&mut self, now: Time) -> io::Result<()> {
        self.now = now;
        if let Err(error) = self.device.silence() {
            return Err(self.call_failed(&error));
        }
        self.pump();
        self.sound()?;
        // A word that found no room.
        if self.read - self.told >= (SLOTS / 2) as u64 {
            self.post_word(false)?;
        }
        if self.kind == PairKind::Reliable {
            return Ok(());
        }
        if self.owed_since == Time::NEVER && self.read != self.told {
            self.owed_since = now;
        }
        if self.owed_since != Time::NEVER && now >= self.owed_since.after(WORD_NS) {
            self.post_word(false)?;
        }
        if self.sent == self.consumed_there {
            self.resend_at = Time::NEVER;
        } else if self.resend_at == Time::NEVER {
            self.resend_at = now.after(self.resend_ns);
        } else if now >= self.resend_at {
            for number in self.consumed_there..self.sent {
                self.post_again(number)?;
            }
            self.resend_ns = self.resend_ns.saturating_mul(2).min(RESEND_NS_MAX);
            self.resend_at = now.after(self.resend_ns);
        }
        Ok(())
    }

    /// When [`VerbsPath::tend`] must be called at the latest.
    #[must_use]
    pub fn due(&self) -> Time {
        if self.kind == PairKind::Reliable {
            return Time::NEVER;
        }
        let word = match self.owed_since {
            Time::NEVER if self.read != self.told => self.now.after(WORD_NS),
            since => since.after(WORD_NS),
        };
        if self.sent == self.consumed_there {
            word
        } else {
            word.min(self.resend_at)
        }
    }

    /// Prepares to sleep until the bell rings; false when there is something to do already.
    ///
    /// # Errors
    /// The path ended, and why.
    pub fn doze(&mut self, wants_room: bool) -> io::Result<bool> {
        for armed in [false, true] {
            self.pump();
            if self.front().is_some() || (wants_room && self.has_room()) || self.failure.is_some() {
                return Ok(false);
            }
            if !armed && let Err(error) = self.device.arm() {
                return Err(self.call_failed(&error));
            }
        }
        Ok(true)
    }

    /// What becomes readable when something is over.
    pub(in crate::transport) fn bell(&self) -> Option<BorrowedFd<'_>> {
        self.device.bell()
    }

    /// Bytes of the chunk that is read next, once it is there.
    fn front(&self) -> Option<usize> {
        let length = self.came.get(slot(self.read)).copied().flatten()?;
        usize::try_from(length).ok()
    }

    fn has_room(&self) -> bool {
        let unread = self.sent - self.consumed_there;
        let free = self.under_way.get(slot(self.sent)) == Some(&0);
        unread < self.ring.slots.min(SLOTS as u64) && free && self.writes < WRITES - 1
    }

    /// The chunk in front was read to its end: its slot may be written again.
    fn consume(&mut self) -> io::Result<()> {
        if let Some(place) = self.came.get_mut(slot(self.read)) {
            *place = None;
        }
        self.read += 1;
        self.read_at = 0;
        if self.read - self.told >= (SLOTS / 2) as u64 {
            self.post_word(false)?;
        }
        Ok(())
    }

    fn post_chunk(&mut self, number: u64) -> io::Result<()> {
        let slot = slot(number);
        let bytes = self.lengths.get(slot).copied().unwrap_or(0);
        let there = number % self.ring.slots.max(1);
        let write = Write {
            id: number,
            offset: slot * SLOT_BYTES,
            bytes,
            address: self.ring.address + there * self.ring.slot_bytes,
            key: self.ring.key,
            immediate: self.immediate(Some(number), false),
        };
        if let Some(count) = self.under_way.get_mut(slot) {
            *count = count.saturating_add(1);
        }
        self.post(&write)
    }

    /// Sends a lost chunk once more, if its last write is over and there is room.
    fn post_again(&mut self, number: u64) -> io::Result<()> {
        let idle = self.under_way.get(slot(number)) == Some(&0);
        if idle && self.writes < WRITES - 1 {
            self.resent += 1;
            self.post_chunk(number)?;
        }
        Ok(())
    }

    /// Tells how many chunks were consumed, without a chunk.
    fn post_word(&mut self, missing: bool) -> io::Result<()> {
        if self.writes >= WRITES {
            return Ok(());
        }
        let write = Write {
            id: WORD,
            offset: 0,
            bytes: 0,
            address: self.ring.address,
            key: self.ring.key,
            immediate: self.immediate(None, missing),
        };
        self.post(&write)
    }

    fn immediate(&mut self, number: Option<u64>, missing: bool) -> u32 {
        self.told = self.read;
        self.owed_since = Time::NEVER;
        let immediate = Immediate {
            chunk: number.map(|number| cut(number, 16)),
            consumed: cut(self.read, CONSUMED_BITS),
            missing,
        };
        immediate.encode()
    }

    fn post(&mut self, write: &Write) -> io::Result<()> {
        // What follows a chunk that was not sent must not be sent either.
        self.sound()?;
        match self.device.post_write(write) {
            Ok(()) => {
                self.writes += 1;
                Ok(())
            }
            Err(error) => Err(self.call_failed(&error)),
        }
    }

    /// Takes what is over.
    fn pump(&mut self) {
        for _ in 0..AT_ONCE {
            if self.failure.is_some() {
                return;
            }
            match self.device.poll() {
                Ok(None) => return,
                Ok(Some(completion)) => {
                    // The failure is kept and shows at the next call.
                    let _ = self.settle(&completion);
                }
                Err(error) => _ = self.call_failed(&error),
            }
        }
    }

    fn settle(&mut self, completion: &Completion) -> io::Result<()> {
        if completion.status != Status::Success {
            let (what, vendor) = (describe(completion.id), completion.vendor);
            let status = completion.status;
            return Err(self.fail(&format!("{what}: {status}, vendor's code {vendor:#x}")));
        }
        if completion.id & RECEIVE == 0 {
            self.writes = self.writes.saturating_sub(1);
            if completion.id != WORD
                && let Some(count) = self.under_way.get_mut(slot(completion.id))
            {
                *count = count.saturating_sub(1);
            }
            return Ok(());
        }
        if let Err(error) = self.device.post_receive(RECEIVE) {
            return Err(self.call_failed(&error));
        }
        let bits = completion.immediate;
        let bits = bits.ok_or_else(|| self.fail("the peer sent something without a number"))?;
        let said = Immediate::decode(bits);
        self.hear_consumed(said)?;
        match said.chunk {
            Some(number) => self.take_chunk(number, completion.bytes),
            None => Ok(()),
        }
    }

    fn hear_consumed(&mut self, said: Immediate) -> io::Result<()> {
        let ahead = distance(said.consumed, self.consumed_there, CONSUMED_BITS);
        let outstanding = i64::try_from(self.sent - self.consumed_there).unwrap_or(0);
        if ahead > outstanding || (ahead < 0 && self.kind == PairKind::Reliable) {
            return Err(self.fail("the peer has consumed what was never sent"));
        }
        if let Ok(ahead) = u64::try_from(ahead)
            && ahead > 0
        {
            self.consumed_there += ahead;
            self.resend_ns = RESEND_NS;
            self.resend_at = Time::NEVER;
        }
        if said.missing && self.consumed_there < self.sent {
            self.post_again(self.consumed_there)?;
        }
        Ok(())
    }

    fn take_chunk(&mut self, number: u16, bytes: u32) -> io::Result<()> {
        let ahead = distance(number, self.read, 16);
        let fits = usize::try_from(bytes).is_ok_and(|bytes| (1..=SLOT_BYTES).contains(&bytes));
        let slots = i64::try_from(SLOTS).unwrap_or(0);
        if !fits || ahead >= slots {
            return Err(self.fail(&format!(
                "chunk {number} of {bytes} bytes came, which has no slot"
            )));
        }
        let Ok(ahead) = u64::try_from(ahead) else {
            if self.kind == PairKind::Reliable {
                return Err(self.fail(&format!("chunk {number} came twice")));
            }
            // Its word was lost: say it again.
            return self.post_word(false);
        };
        let place = slot(self.read + ahead);
        let before = (0..ahead).find(|behind| {
            let place = slot(self.read + behind);
            self.came.get(place).copied().flatten().is_none()
        });
        if let Some(place) = self.came.get_mut(place) {
            *place = Some(bytes);
        }
        match before {
            None => Ok(()),
            Some(_) if self.kind == PairKind::Reliable => {
                Err(self.fail(&format!("chunk {number} came before an earlier one")))
            }
            // Asked for once; what is lost again is sent again in time.
            Some(0) if self.missing_asked != Some(self.read) => {
                self.missing_asked = Some(self.read);
                self.post_word(true)
            }
            Some(_) => Ok(()),
        }
    }

    fn call_failed(&mut self, error: &CallError) -> io::Error {
        self.fail(&error.to_string())
    }

    /// Keeps the first failure, which says more than those that follow from it.
    fn fail(&mut self, why: &str) -> io::Error {
        let kind = self.kind;
        let why = self
            .failure
            .get_or_insert_with(|| format!("the RDMA connection ({kind}) failed: {why}"));
        io::Error::other(why.clone())
    }

    fn sound(&self) -> io::Result<()> {
        match &self.failure {
            None => Ok(()),
            Some(why) => Err(io::Error::other(why.clone())),
        }
    }
}

/// The number of the receives.
pub(super) const fn receive_id() -> u64 {
    RECEIVE
}

fn describe(id: u64) -> &'static str {
    if id & RECEIVE != 0 {
        "a receive"
    } else if id == WORD {
        "a word about consumed chunks"
    } else {
        "a write"
    }
}

fn slot(number: u64) -> usize {
    usize::try_from(number % SLOTS as u64).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_travel_and_come_back_across_the_wrap() {
        for (sent, consumed) in [
            (0, 0),
            (65_535, 16_383),
            (65_536, 16_384),
            (1 << 40, 3 << 41),
        ] {
            let immediate = Immediate {
                chunk: Some(cut(sent, 16)),
                consumed: cut(consumed, CONSUMED_BITS),
                missing: sent == 0,
            };
            assert_eq!(Immediate::decode(immediate.encode()), immediate);
            for apart in [-9, -1, 0, 1, 15] {
                let number = cut(sent.wrapping_add_signed(apart), 16);
                assert_eq!(distance(number, sent, 16), apart);
            }
        }
        let word = Immediate {
            chunk: None,
            consumed: 5,
            missing: true,
        };
        assert_eq!(Immediate::decode(word.encode()), word);
    }
}
