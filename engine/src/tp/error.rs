//! What ends a session: who, where, and why, in a form that travels to the peers.

use std::fmt;

use super::coding::Reader;
use super::command::BadMessage;
use super::frame::FrameError;
use super::hello::Mismatch;
use super::schedule::{Gate, GateName};
use super::trust::Channel;

/// The most bytes of a message that travels.
const TEXT_BYTES_MAX: usize = 256;
const ERROR_HEAD_BYTES: usize = 32;

/// Where in the run: the gate under way, or the next one. Sequence numbers count from 1; 0 means
/// that no gate was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The layer.
    pub layer: u32,
    /// The gate.
    pub gate: GateName,
    /// The gate's sequence number.
    pub seq: u64,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "layer {} gate {} sequence {}",
            self.layer, self.gate, self.seq
        )
    }
}

/// What a rank waited for in vain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// A peer's connection.
    Connect,
    /// A peer's hello.
    Hello,
    /// The vote on the transport.
    Vote,
    /// A gate's end.
    Gate,
    /// A sum that a collective library makes.
    Sum,
    /// The answer to a command.
    Reply,
    /// Any sign of life.
    Idle,
    /// The answer to a STOP.
    Close,
}

impl Wait {
    const fn name(self) -> &'static str {
        match self {
            Self::Connect => "its connection",
            Self::Hello => "its hello",
            Self::Vote => "the vote on the transport",
            Self::Gate => "its part of the gate",
            Self::Sum => "the sum of the collective library",
            Self::Reply => "its answer to a command",
            Self::Idle => "a sign of life",
            Self::Close => "its answer to the stop",
        }
    }
}

/// Why a session ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The peer closed a connection, or it broke.
    Closed(Channel),
    /// The peer was silent for too long.
    Deadline {
        /// What was awaited.
        wait: Wait,
        /// For how long, in nanoseconds.
        waited_ns: u64,
    },
    /// A frame is not valid.
    Frame(FrameError),
    /// A command or answer is not valid.
    Message(BadMessage),
    /// The peer is at another gate.
    Desync {
        /// The own gate and its sequence number.
        want: (Gate, u64),
        /// What the peer's header says, in words.
        got: String,
    },
    /// The two sides do not fit together.
    Hello(Mismatch),
    /// No transport works for all ranks.
    NoTransport(String),
    /// The ranks' states differ.
    Divergence {
        /// When the hashes were taken.
        seq: u64,
        /// The own hash.
        own: u64,
        /// The peer's hash.
        theirs: u64,
    },
    /// The peer answered what was not asked, or a command breaks the mirrored state.
    Mirror(String),
    /// The peer gave up and said why.
    Told {
        /// The number of its cause.
        code: u16,
        /// The rank that it blames.
        blamed: u32,
        /// Its words.
        text: String,
    },
    /// The way that gates take to the peer failed: its own words.
    Path(String),
    /// The own side gave up: a device, a transport or a user.
    Local(String),
}

impl Cause {
    /// Its number in error frames.
    #[must_use]
    pub const fn code(&self) -> u16 {
        match self {
            Self::Closed(_) => 1,
            Self::Deadline { .. } => 2,
            Self::Frame(_) => 3,
            Self::Message(_) => 4,
            Self::Desync { .. } => 5,
            Self::Hello(_) => 6,
            Self::NoTransport(_) => 7,
            Self::Divergence { .. } => 8,
            Self::Mirror(_) => 9,
            Self::Told { code, .. } => *code,
            Self::Local(_) => 10,
            Self::Path(_) => 11,
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed(channel) => write!(f, "the {channel} connection was closed"),
            Self::Deadline { wait, waited_ns } => write!(
                f,
                "waited {} ms for {} in vain",
                waited_ns / 1_000_000,
                wait.name()
            ),
            Self::Frame(error) => error.fmt(f),
            Self::Message(BadMessage(kind)) => {
                write!(f, "the payload of a {} frame is not valid", kind.name())
            }
            Self::Desync { want, got } => write!(
                f,
                "gate desync: {} sequence {} here, {got} there",
                want.0, want.1
            ),
            Self::Hello(mismatch) => mismatch.fmt(f),
            Self::NoTransport(why) => write!(f, "no transport works for all ranks: {why}"),
            Self::Divergence { seq, own, theirs } => write!(
                f,
                "the ranks' states differ at {seq}: {own:016x} here, {theirs:016x} there"
            ),
            Self::Mirror(what) | Self::Path(what) | Self::Local(what) => f.write_str(what),
            Self::Told { blamed, text, .. } => write!(f, "gave up over rank {blamed}: {text}"),
        }
    }
}

/// The end of a session: everything that a person needs to find the fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TpError {
    /// The rank that it concerns: the peer that is silent, wrong or gone, or the own one.
    pub rank: u32,
    /// Where the run was.
    pub at: Position,
    /// Why.
    pub cause: Cause,
}

impl fmt::Display for TpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}, {}: {}", self.rank, self.at, self.cause)
    }
}

impl std::error::Error for TpError {}

impl TpError {
    /// The payload of an error frame.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        // What was told is passed on as it came, with the rank that was blamed first.
        let (blamed, text) = if let Cause::Told { blamed, text, .. } = &self.cause {
            (*blamed, text.clone())
        } else {
            (self.rank, self.cause.to_string())
        };
        let mut end = text.len().min(TEXT_BYTES_MAX);
        while !text.is_char_boundary(end) {
            end = end.saturating_sub(1);
        }
        let text = text.get(..end).unwrap_or_default().as_bytes();
        let mut out = Vec::with_capacity(ERROR_HEAD_BYTES.saturating_add(text.len()));
        out.extend_from_slice(&self.cause.code().to_le_bytes());
        out.extend_from_slice(&[self.at.gate.code(), 0]);
        out.extend_from_slice(&blamed.to_le_bytes());
        out.extend_from_slice(&self.at.layer.to_le_bytes());
        // The text's length is at most TEXT_BYTES_MAX.
        let length = u32::try_from(text.len()).unwrap_or(0);
        out.extend_from_slice(&length.to_le_bytes());
        out.extend_from_slice(&self.at.seq.to_le_bytes());
        out.extend_from_slice(&[0; 8]);
        out.extend_from_slice(text);
        out
    }

    /// Reads an error frame that rank `from` sent. Its words are shown to people, so that what is
    /// not printable is replaced.
    #[must_use]
    pub fn decode(from: u32, payload: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(payload);
        let code = reader.u16().ok()?;
        let [gate, zero] = reader.array().ok()?;
        let blamed = reader.u32().ok()?;
        let layer = reader.u32().ok()?;
        let length = reader.u32().ok()?;
        let seq = reader.u64().ok()?;
        let spare: [u8; 8] = reader.array().ok()?;
        let text = reader.rest();
        let fits = usize::try_from(length) == Ok(text.len()) && text.len() <= TEXT_BYTES_MAX;
        if !fits || zero != 0 || spare != [0; 8] {
            return None;
        }
        let gate = GateName::from_code(gate)?;
        let printable = |c: char| if c.is_control() { '\u{fffd}' } else { c };
        let text = std::str::from_utf8(text).ok()?;
        Some(Self {
            rank: from,
            at: Position { layer, gate, seq },
            cause: Cause::Told {
                code,
                blamed,
                text: text.chars().map(printable).collect(),
            },
        })
    }
}
