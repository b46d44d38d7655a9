//! The proof that both ends of a connection hold the same key, before anything else is read.
//!
//! Three messages of fixed size, on the control and on the data connection alike:
//!
//! ```text
//! listener  -> dialer    challenge  64 bytes   a fresh nonce
//! dialer    -> listener  answer    112 bytes   channel, ranks, a fresh nonce, session, proof
//! listener  -> dialer    verdict    64 bytes   accepted, session, proof; or a refusal
//! ```
//!
//! A proof is HMAC-SHA-256 over a label of the side and all that was said before it. The control
//! connection's proofs use the group's key. The data connection's use a key made from it and the
//! session, which only a peer learned that had proved itself: so the data connection belongs to
//! the session. Nonces are fresh on both sides, so that nothing recorded can be used again.
//!
//! Without a key (`--insecure`) the same messages run with a key that everyone knows. They still
//! keep strangers' connections and other sessions apart by accident, not against intent.

use std::fmt;

use hmac::{Hmac, Mac};
use sha2::Sha256;

use super::coding::{ArrayWriter, Reader};
use super::seal::{KEY_BYTES, SealKeys};
use super::v7;

/// Bytes of the listener's first message.
pub const CHALLENGE_BYTES: usize = 64;
/// Bytes of the dialer's message.
pub const ANSWER_BYTES: usize = 112;
/// Bytes of the listener's second message.
pub const VERDICT_BYTES: usize = 64;
/// The version of these three messages and of all frames.
pub const VERSION: u16 = 1;

pub(super) const MAGIC: [u8; 4] = *b"D4HS";
const PROOF_BYTES: usize = 32;
/// Where each message says whether its sender encrypts what follows.
const ENCRYPTS_AT: usize = 7;

/// A number that is used once; the driver takes it from the system's random source.
pub type Nonce = [u8; 32];
/// Names one run of a group; the leader draws it at random.
pub type SessionId = [u8; 16];

/// The secret that the ranks of a group share.
#[derive(Clone, PartialEq, Eq)]
pub struct Key([u8; 32]);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// Why a text is no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyError;

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key is 64 hexadecimal digits; `ds4 keygen -o FILE` writes one")
    }
}

impl std::error::Error for KeyError {}

impl Key {
    /// A key of random bytes.
    #[must_use]
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The key that stands for none.
    #[must_use]
    pub const fn public() -> Self {
        Self([0; 32])
    }

    /// Reads 64 hexadecimal digits; space around them is ignored.
    ///
    /// # Errors
    /// [`KeyError`]; all zeros are refused, for they are what no key looks like.
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        let digits = text.trim().as_bytes();
        let (pairs, rest) = digits.as_chunks::<2>();
        if pairs.len() != 32 || !rest.is_empty() {
            return Err(KeyError);
        }
        let mut bytes = [0; 32];
        for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
            *byte = nibble(*high)? << 4 | nibble(*low)?;
        }
        let key = Self(bytes);
        if key == Self::public() {
            return Err(KeyError);
        }
        Ok(key)
    }

    /// The key as [`Key::parse`] reads it.
    #[must_use]
    pub fn to_hex(&self) -> String {
        use fmt::Write as _;
        let mut text = String::new();
        for byte in self.0 {
            // Writing to a string cannot fail.
            let _ = write!(text, "{byte:02x}");
        }
        text
    }

    fn is_public(&self) -> bool {
        self.0 == [0; 32]
    }

    fn mac(&self, label: &[u8]) -> Hmac<Sha256> {
        // HMAC takes keys of any length; the fallback is never used.
        let mut mac = Hmac::new_from_slice(&self.0)
            .unwrap_or_else(|_| Hmac::new(&sha2::digest::generic_array::GenericArray::default()));
        mac.update(label);
        mac
    }

    /// The keys of a connection's two directions, the dialer's first (HKDF-Expand, RFC 5869).
    fn seals(&self, challenge: &[u8], answer: &[u8]) -> [[u8; KEY_BYTES]; 2] {
        [
            &b"ds4 tp 1 seal of the dialer"[..],
            b"ds4 tp 1 seal of the listener",
        ]
        .map(|label| {
            let mut mac = self.mac(label);
            mac.update(challenge);
            mac.update(answer);
            mac.update(&[1]);
            let bytes: [u8; PROOF_BYTES] = mac.finalize().into_bytes().into();
            bytes.first_chunk().copied().unwrap_or_default()
        })
    }

    /// The key of a session's data connections.
    fn of_session(&self, session: &SessionId) -> Self {
        let mut mac = self.mac(b"ds4 tp 1 data connections of session");
        mac.update(session);
        Self(mac.finalize().into_bytes().into())
    }
}

fn nibble(digit: u8) -> Result<u8, KeyError> {
    match digit {
        b'0'..=b'9' => Ok(digit - b'0'),
        b'a'..=b'f' => Ok(digit - b'a' + 10),
        b'A'..=b'F' => Ok(digit - b'A' + 10),
        _ => Err(KeyError),
    }
}

/// Which of a peer's two connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Channel {
    /// Commands and answers.
    Control,
    /// Gates.
    Data,
}

impl Channel {
    const fn code(self) -> u8 {
        match self {
            Self::Control => 1,
            Self::Data => 2,
        }
    }

    const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::Control),
            2 => Some(Self::Data),
            _ => None,
        }
    }
}

impl fmt::Display for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Control => "control",
            Self::Data => "data",
        })
    }
}

/// Why a connection was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refused {
    /// The peer speaks something else.
    NotOurs,
    /// The peer speaks ds4's own protocol.
    Ds4V7,
    /// The peer speaks another version.
    Version(u16),
    /// One side has a key, the other has none.
    OneSided {
        /// Whether the own side has one.
        own_key: bool,
    },
    /// One side encrypts, the other does not.
    OneEncrypts {
        /// Whether the own side does.
        own: bool,
    },
    /// The proof is wrong: another key, or something recorded.
    Proof,
    /// The data connection is of another session.
    Session,
    /// No such rank, or one that is there already.
    Rank,
    /// The listener said no, for the reason with this number.
    Told(u8),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotOurs => f.write_str("the other side is no ds4 rank, or an older one"),
            Self::Ds4V7 => f.write_str(
                "the other side speaks ds4-v7, this one the native protocol: give all ranks the \
                 same --protocol",
            ),
            Self::Version(theirs) => write!(
                f,
                "the other side speaks version {theirs}, this one {VERSION}"
            ),
            Self::OneSided { own_key: true } => f.write_str(
                "the other side has no key: give it this side's --key-file, or both --insecure",
            ),
            Self::OneSided { own_key: false } => f.write_str(
                "the other side has a key and this one has none: give this one its --key-file",
            ),
            Self::OneEncrypts { own: true } => f.write_str(
                "the other side does not encrypt: give --encrypt to all ranks or to none",
            ),
            Self::OneEncrypts { own: false } => {
                f.write_str("the other side encrypts: give --encrypt to all ranks or to none")
            }
            Self::Proof => f.write_str(
                "the other side does not have the same key: give all ranks the same --key-file",
            ),
            Self::Session => f.write_str("the connection belongs to another session"),
            Self::Rank => f.write_str("no rank with this number is awaited: it is there already, or --rank or --ranks differ"),
            Self::Told(code) => f.write_str(match code {
                1 => "the listener takes this side for something else than a ds4 rank",
                2 => "the listener speaks another version",
                3 => "one side has a key, the other has none: give all ranks the same --key-file",
                4 => "the listener does not have the same key: give all ranks the same --key-file",
                5 => "the listener runs another session",
                6 => "the listener does not await this rank: it is there already, or --rank or --ranks differ",
                7 => {
                    "one side encrypts, the other does not: give --encrypt to all ranks or to none"
                }
                _ => "the listener refused, without a reason that this version knows",
            }),
        }
    }
}

impl std::error::Error for Refused {}

impl Refused {
    const fn code(self) -> u8 {
        match self {
            Self::NotOurs | Self::Ds4V7 => 1,
            Self::Version(_) => 2,
            Self::OneSided { .. } => 3,
            Self::Proof => 4,
            Self::Session => 5,
            Self::Rank => 6,
            Self::OneEncrypts { .. } => 7,
            Self::Told(code) => code,
        }
    }
}

/// What a finished handshake established.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proven {
    /// Which connection it is.
    pub channel: Channel,
    /// The rank at the other end.
    pub peer: u32,
    /// The session.
    pub session: SessionId,
}

/// What the dialer wants of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dial {
    /// Control, or data with the session that the control connection gave.
    pub channel: Channel,
    /// The dialer's rank.
    pub own: u32,
    /// The rank that is dialled.
    pub peer: u32,
    /// Ranks of the group.
    pub ranks: u32,
    /// The session; zeros on the control connection.
    pub session: SessionId,
}

/// What to do next with a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// More bytes are needed.
    More,
    /// Proven; frames follow.
    Done(Proven),
    /// Refused; write what is left to write, then close.
    Refused(Refused),
}

/// The listening side of a connection: 64 bytes out, 112 in, 64 out.
#[derive(Clone, Debug)]
pub struct Listener {
    key: Key,
    encrypts: bool,
    own: u32,
    ranks: u32,
    session: SessionId,
    challenge: [u8; CHALLENGE_BYTES],
    answer: Inbox<ANSWER_BYTES>,
    verdict: Option<[u8; VERDICT_BYTES]>,
    written: usize,
}

/// The dialling side of a connection.
#[derive(Clone, Debug)]
pub struct Dialer {
    key: Key,
    encrypts: bool,
    dial: Dial,
    nonce: Nonce,
    challenge: Inbox<CHALLENGE_BYTES>,
    answer: Option<[u8; ANSWER_BYTES]>,
    /// Why the challenge does not fit; the answer goes all the same, without a proof.
    refused: Option<Refused>,
    verdict: Inbox<VERDICT_BYTES>,
    written: usize,
}

#[derive(Clone, Debug)]
struct Inbox<const N: usize> {
    bytes: [u8; N],
    filled: usize,
}

impl<const N: usize> Inbox<N> {
    const fn new() -> Self {
        Self {
            bytes: [0; N],
            filled: 0,
        }
    }

    fn want(&mut self) -> &mut [u8] {
        self.bytes.get_mut(self.filled..).unwrap_or_default()
    }

    fn read_so_far(&self) -> &[u8] {
        self.bytes.get(..self.filled).unwrap_or_default()
    }

    fn filled(&mut self, count: usize) -> Option<&[u8; N]> {
        self.filled = self.filled.saturating_add(count).min(N);
        (self.filled == N).then_some(&self.bytes)
    }
}

impl Listener {
    /// A connection was accepted by rank `own` of `ranks`; `nonce` has never been used before.
    #[must_use]
    pub fn new(key: Key, own: u32, ranks: u32, session: SessionId, nonce: Nonce) -> Self {
        let mut challenge = ArrayWriter::<CHALLENGE_BYTES>::new();
        challenge
            .put(MAGIC)
            .put(VERSION.to_le_bytes())
            .put([u8::from(!key.is_public()), 0])
            .put(nonce);
        Self {
            challenge: challenge.finish(),
            key,
            encrypts: false,
            own,
            ranks,
            session,
            answer: Inbox::new(),
            verdict: None,
            written: 0,
        }
    }

    /// Demands that what follows the handshake is sealed, or that it is not.
    #[must_use]
    pub fn sealing(mut self, encrypts: bool) -> Self {
        self.encrypts = encrypts;
        if let Some(flag) = self.challenge.get_mut(ENCRYPTS_AT) {
            *flag = u8::from(encrypts);
        }
        self
    }

    /// The keys of what follows, if it is sealed; of an accepted connection.
    #[must_use]
    pub fn seal_keys(&self, channel: Channel) -> Option<SealKeys> {
        let key = self.key_of(channel);
        let [receive, send] = key.seals(&self.challenge, &self.answer.bytes);
        self.encrypts.then_some(SealKeys { send, receive })
    }

    /// What to write now.
    #[must_use]
    pub fn to_write(&self) -> &[u8] {
        match &self.verdict {
            None => self.challenge.get(self.written..),
            Some(verdict) => self
                .written
                .checked_sub(CHALLENGE_BYTES)
                .and_then(|done| verdict.get(done..)),
        }
        .unwrap_or_default()
    }

    /// So many bytes of it were written.
    pub fn wrote(&mut self, count: usize) {
        self.written = self.written.saturating_add(count);
    }

    /// Where to read to, and no further: what follows belongs to the session.
    pub fn to_read(&mut self) -> &mut [u8] {
        self.answer.want()
    }

    /// So many bytes were read into [`Listener::to_read`]. `awaited` says whether a rank's
    /// connection is missing still.
    pub fn read(&mut self, count: usize, awaited: impl FnOnce(u32, Channel) -> bool) -> Step {
        if self.verdict.is_some() {
            return Step::More;
        }
        let judged = match self.answer.filled(count).copied() {
            Some(answer) => self
                .judge(&answer, awaited)
                .map(|proven| (self.accept(&answer, proven.channel), proven)),
            // Other protocols' first messages may be shorter, and wait for an answer.
            None => match other_magic(self.answer.read_so_far()) {
                Some(refused) => Err(refused),
                None => return Step::More,
            },
        };
        let (verdict, step) = match judged {
            Ok((verdict, proven)) => (verdict, Step::Done(proven)),
            Err(refused) => (refuse(refused), Step::Refused(refused)),
        };
        self.verdict = Some(verdict);
        self.written = self.written.max(CHALLENGE_BYTES);
        step
    }

    fn judge(
        &self,
        answer: &[u8; ANSWER_BYTES],
        awaited: impl FnOnce(u32, Channel) -> bool,
    ) -> Result<Proven, Refused> {
        let (said, proof) = answer.split_at(ANSWER_BYTES - PROOF_BYTES);
        let mut reader = Reader::new(said);
        opening(&mut reader)?.agree(&self.key, self.encrypts)?;
        let fields = (
            reader.u32(),
            reader.u32(),
            reader.u32(),
            reader.u32(),
            reader.array::<32>(),
            reader.array::<16>(),
        );
        let (Ok(channel), Ok(peer), Ok(own), Ok(ranks), Ok(_), Ok(session)) = fields else {
            return Err(Refused::NotOurs);
        };
        let channel = u8::try_from(channel).ok().and_then(Channel::from_code);
        let channel = channel.ok_or(Refused::NotOurs)?;
        // The proof is judged before anything that it covers.
        let key = self.key_of(channel);
        let mut mac = key.mac(b"ds4 tp 1 dialer");
        mac.update(&self.challenge);
        mac.update(said);
        mac.verify_slice(proof).map_err(|_| Refused::Proof)?;
        if channel == Channel::Data && session != self.session {
            return Err(Refused::Session);
        }
        let known = peer < self.ranks && peer != self.own && own == self.own;
        if !known || ranks != self.ranks || !awaited(peer, channel) {
            return Err(Refused::Rank);
        }
        Ok(Proven {
            channel,
            peer,
            session: self.session,
        })
    }

    fn key_of(&self, channel: Channel) -> Key {
        match channel {
            Channel::Control => self.key.clone(),
            Channel::Data => self.key.of_session(&self.session),
        }
    }

    fn accept(&self, answer: &[u8; ANSWER_BYTES], channel: Channel) -> [u8; VERDICT_BYTES] {
        let mut verdict = ArrayWriter::<VERDICT_BYTES>::new();
        verdict
            .put(MAGIC)
            .put(VERSION.to_le_bytes())
            .put([u8::from(!self.key.is_public()), u8::from(self.encrypts)])
            .put([0; 8])
            .put(self.session);
        let mut mac = self.key_of(channel).mac(b"ds4 tp 1 listener");
        mac.update(&self.challenge);
        mac.update(answer);
        mac.update(verdict.written());
        let proof: [u8; PROOF_BYTES] = mac.finalize().into_bytes().into();
        verdict.put(proof);
        verdict.finish()
    }
}

impl Dialer {
    /// A connection was made; `nonce` has never been used before.
    #[must_use]
    pub fn new(key: Key, dial: Dial, nonce: Nonce) -> Self {
        Self {
            key,
            encrypts: false,
            dial,
            nonce,
            challenge: Inbox::new(),
            answer: None,
            refused: None,
            verdict: Inbox::new(),
            written: 0,
        }
    }

    /// Demands that what follows the handshake is sealed, or that it is not.
    #[must_use]
    pub const fn sealing(mut self, encrypts: bool) -> Self {
        self.encrypts = encrypts;
        self
    }

    /// The keys of what follows, if it is sealed; of an accepted connection.
    #[must_use]
    pub fn seal_keys(&self) -> Option<SealKeys> {
        let answer = self.answer.as_ref()?;
        let [send, receive] = self.key().seals(&self.challenge.bytes, answer);
        self.encrypts.then_some(SealKeys { send, receive })
    }

    /// What to write now.
    #[must_use]
    pub fn to_write(&self) -> &[u8] {
        self.answer
            .as_ref()
            .and_then(|answer| answer.get(self.written..))
            .unwrap_or_default()
    }

    /// So many bytes of it were written.
    pub fn wrote(&mut self, count: usize) {
        self.written = self.written.saturating_add(count);
    }

    /// Where to read to, and no further: what follows belongs to the session.
    pub fn to_read(&mut self) -> &mut [u8] {
        if self.answer.is_none() {
            self.challenge.want()
        } else {
            self.verdict.want()
        }
    }

    /// So many bytes were read into [`Dialer::to_read`].
    pub fn read(&mut self, count: usize) -> Step {
        let step = match &self.answer {
            None => self.answer_challenge(count),
            Some(answer) => {
                let answer = *answer;
                self.judge(count, &answer)
            }
        };
        step.unwrap_or_else(Step::Refused)
    }

    fn answer_challenge(&mut self, count: usize) -> Result<Step, Refused> {
        let Some(challenge) = self.challenge.filled(count).copied() else {
            return Ok(Step::More);
        };
        let mut reader = Reader::new(&challenge);
        let theirs = opening(&mut reader)?;
        self.refused = theirs.agree(&self.key, self.encrypts).err();
        let mut answer = ArrayWriter::<ANSWER_BYTES>::new();
        answer
            .put(MAGIC)
            .put(VERSION.to_le_bytes())
            .put([u8::from(!self.key.is_public()), u8::from(self.encrypts)])
            .put(u32::from(self.dial.channel.code()).to_le_bytes())
            .put(self.dial.own.to_le_bytes())
            .put(self.dial.peer.to_le_bytes())
            .put(self.dial.ranks.to_le_bytes())
            .put(self.nonce)
            .put(self.dial.session)
            // Spare bytes, covered by the proof.
            .put([0; 8]);
        let proof: [u8; PROOF_BYTES] = if self.refused.is_some() {
            // The listener learns why, and nothing that depends on a key.
            [0; PROOF_BYTES]
        } else {
            let mut mac = self.key().mac(b"ds4 tp 1 dialer");
            mac.update(&challenge);
            mac.update(answer.written());
            mac.finalize().into_bytes().into()
        };
        answer.put(proof);
        self.answer = Some(answer.finish());
        Ok(Step::More)
    }

    fn key(&self) -> Key {
        match self.dial.channel {
            Channel::Control => self.key.clone(),
            Channel::Data => self.key.of_session(&self.dial.session),
        }
    }

    fn judge(&mut self, count: usize, answer: &[u8; ANSWER_BYTES]) -> Result<Step, Refused> {
        let Some(verdict) = self.verdict.filled(count).copied() else {
            return Ok(Step::More);
        };
        if let Some(refused) = self.refused {
            return Err(refused);
        }
        let (said, proof) = verdict.split_at(VERDICT_BYTES - PROOF_BYTES);
        let mut reader = Reader::new(said);
        opening(&mut reader)?;
        let (Ok([code, ..]), Ok(session)) = (reader.array::<8>(), reader.array::<16>()) else {
            return Err(Refused::NotOurs);
        };
        if code != 0 {
            return Err(Refused::Told(code));
        }
        let mut mac = self.key().mac(b"ds4 tp 1 listener");
        mac.update(&self.challenge.bytes);
        mac.update(answer);
        mac.update(said);
        mac.verify_slice(proof).map_err(|_| Refused::Proof)?;
        if self.dial.channel == Channel::Data && session != self.dial.session {
            return Err(Refused::Session);
        }
        Ok(Step::Done(Proven {
            channel: self.dial.channel,
            peer: self.dial.peer,
            session,
        }))
    }
}

/// What each message says first of its sender.
struct Opening {
    has_key: bool,
    encrypts: bool,
}

impl Opening {
    /// Whether both sides have a key, or none, and both encrypt, or neither.
    fn agree(&self, key: &Key, encrypts: bool) -> Result<(), Refused> {
        let own_key = !key.is_public();
        if self.has_key != own_key {
            return Err(Refused::OneSided { own_key });
        }
        if self.encrypts != encrypts {
            return Err(Refused::OneEncrypts { own: encrypts });
        }
        Ok(())
    }
}

/// Reads magic, version and what the sender says of itself.
fn opening(reader: &mut Reader<'_>) -> Result<Opening, Refused> {
    let fields = (reader.array::<4>(), reader.u16(), reader.array::<2>());
    let (Ok(magic), Ok(version), Ok([has_key, encrypts])) = fields else {
        return Err(Refused::NotOurs);
    };
    if let Some(refused) = other_magic(&magic) {
        return Err(refused);
    }
    if version != VERSION {
        return Err(Refused::Version(version));
    }
    Ok(Opening {
        has_key: has_key == 1,
        encrypts: encrypts == 1,
    })
}

/// Who speaks if the first four bytes, once there, are not [`MAGIC`].
fn other_magic(bytes: &[u8]) -> Option<Refused> {
    let magic = bytes.first_chunk::<4>()?;
    if *magic == MAGIC {
        None
    } else if *magic == v7::MAGIC.to_le_bytes() {
        Some(Refused::Ds4V7)
    } else {
        Some(Refused::NotOurs)
    }
}

fn refuse(refused: Refused) -> [u8; VERDICT_BYTES] {
    let mut verdict = ArrayWriter::<VERDICT_BYTES>::new();
    verdict
        .put(MAGIC)
        .put(VERSION.to_le_bytes())
        .put([0, 0])
        .put([refused.code(), 0, 0, 0, 0, 0, 0, 0]);
    verdict.finish()
}

#[cfg(test)]
#[path = "trust_tests.rs"]
mod tests;
