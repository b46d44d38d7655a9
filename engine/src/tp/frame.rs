//! Native frames: a header of 32 bytes, then as many bytes as it says.
//!
//! `PROTOCOL.md` has the bytes. A header is judged whole before anything that follows it is read:
//! magic, its own checksum, kind, flags, fields that must be zero, and length against the
//! [cap of the kind](Kind::payload_bytes_max).

use std::fmt;

use super::coding::{ArrayWriter, Reader};
use super::schedule::{Gate, GateKind, GateName};
use super::trust;

/// Bytes of a header.
pub const HEAD_BYTES: usize = 32;
/// The first four bytes of a header: `D4TP`.
pub const MAGIC: [u8; 4] = *b"D4TP";
/// The most bytes of one gate's payload (1 GiB).
pub const GATE_BYTES_MAX: u32 = 1 << 30;
/// The most bytes of a command (4 MiB: a million tokens).
pub const COMMAND_BYTES_MAX: u32 = 4 << 20;
/// The most bytes of one rank's share of the logits (4 MiB: a million of them).
pub const LOGITS_BYTES_MAX: u32 = 4 << 20;

const FLAG_PAYLOAD_CRC: u8 = 1;
const FLAG_PARTIAL: u8 = 2;
const FLAG_SUM: u8 = 4;
/// The gate field of frames that belong to no gate.
const NO_GATE: u8 = 0xff;

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $text:literal, $cap:expr;)*) => {
        /// What a frame is.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum Kind { $($(#[$doc])* $name = $code,)* }

        impl Kind {
            /// Every kind, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// The kind of a number.
            #[must_use]
            pub const fn from_code(code: u8) -> Option<Self> {
                match code { $($code => Some(Self::$name),)* _ => None }
            }

            /// Its name in messages.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// The most bytes that may follow the header.
            #[must_use]
            pub const fn payload_bytes_max(self) -> u32 {
                match self { $(Self::$name => $cap,)* }
            }
        }
    };
}

kinds! {
    /// Who a rank is and what it runs.
    Hello = 1, "HELLO", 128;
    /// The transports that a rank has proved.
    Vote = 2, "VOTE", 8;
    /// The transport that all ranks use.
    Chosen = 3, "CHOSEN", 8;
    /// Why the sender gives up.
    Error = 4, "ERROR", 320;
    /// The sender is alive.
    Ping = 5, "PING", 0;
    /// How the two ranks of a data connection would reach each other's memory.
    Verbs = 6, "VERBS", 1024;
    /// The group of a collective library that the ranks may join.
    Collective = 7, "COLLECTIVE", 512;
    /// Where workers listen.
    Roster = 8, "ROSTER", 1024;
    /// A prompt.
    Sync = 16, "SYNC", COMMAND_BYTES_MAX;
    /// One token.
    Eval = 17, "EVAL", 24;
    /// Back to a position.
    Rewind = 18, "REWIND", 16;
    /// A session's state is worthless.
    Invalidate = 19, "INVALIDATE", 8;
    /// The end.
    Stop = 20, "STOP", 0;
    /// A hash of a rank's state.
    Hash = 21, "HASH", 16;
    /// A rank's share of the logits.
    Logits = 22, "LOGITS", LOGITS_BYTES_MAX;
    /// Drafts to judge.
    Verify = 23, "VERIFY", COMMAND_BYTES_MAX;
    /// Which drafts stay.
    VerifyCommit = 24, "VERIFY_COMMIT", 8;
    /// A new session.
    SessionCreate = 25, "SESSION_CREATE", 16;
    /// A session's end.
    SessionDestroy = 26, "SESSION_DESTROY", 8;
    /// One token of each of several sessions.
    EvalBatch = 27, "EVAL_BATCH", COMMAND_BYTES_MAX;
    /// A prompt, and one token of each of several sessions.
    MixedBatch = 28, "MIXED_BATCH", COMMAND_BYTES_MAX;
    /// What came of a command.
    Ack = 29, "ACK", 16;
    /// The answer to a STOP.
    StopAck = 30, "STOP_ACK", 0;
    /// One vector.
    RowGate = 64, "ROW_GATE", GATE_BYTES_MAX;
    /// Several vectors.
    BatchGate = 65, "BATCH_GATE", GATE_BYTES_MAX;
    /// Any number of bytes.
    BigGate = 66, "BIG_GATE", GATE_BYTES_MAX;
}

impl Kind {
    /// Its number on the wire.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Whether it travels on the data channel.
    #[must_use]
    pub const fn is_gate(self) -> bool {
        matches!(self, Self::RowGate | Self::BatchGate | Self::BigGate)
    }
}

/// What is wrong with a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameError {
    /// It does not begin with the magic.
    Magic([u8; 4]),
    /// It does not begin with the magic of ds4's own protocol.
    Ds4Magic(u32),
    /// No command of ds4's own protocol, or none that is spoken here, has this number.
    Ds4Kind(u32),
    /// The connection ended in the middle of it.
    Cut,
    /// Its own checksum differs.
    HeadCrc {
        /// What the header says.
        said: u32,
        /// What its bytes give.
        computed: u32,
    },
    /// No frame has this number.
    Kind(u8),
    /// A flag that this version does not know, or one that is missing.
    Flags(u8),
    /// A field is not what its kind allows.
    Field(Kind),
    /// More bytes than the kind may have.
    TooLong {
        /// The kind.
        kind: Kind,
        /// Its length as said.
        bytes: u32,
    },
    /// A frame is missing, was sent twice, or is out of order.
    Sequence {
        /// The number that it should have.
        want: u64,
        /// The number that it has.
        got: u64,
    },
    /// The payload's checksum differs.
    PayloadCrc {
        /// The kind.
        kind: Kind,
        /// What the header says.
        said: u32,
        /// What the bytes give.
        computed: u32,
    },
    /// A frame of this kind has no place on this channel or in this phase.
    Unexpected(Kind),
    /// The payload is not what its kind allows.
    Payload(Kind),
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Magic(found) => write!(f, "a frame begins with {found:02x?} instead of 'D4TP'"),
            Self::Ds4Magic(found) if found.to_le_bytes() == trust::MAGIC => f.write_str(
                "the other side speaks the native protocol, this one ds4-v7: give all ranks the \
                 same --protocol",
            ),
            Self::Ds4Magic(found) => write!(
                f,
                "what came begins with {found:08x} instead of ds4's 44533454: not a ds4 rank, or of \
                 another byte order"
            ),
            Self::Ds4Kind(code) => {
                write!(
                    f,
                    "a command has the number {code}, which is not spoken here"
                )
            }
            Self::Cut => f.write_str("the connection ended in the middle of a frame"),
            Self::HeadCrc { said, computed } => write!(
                f,
                "a header is damaged: checksum {said:08x} said, {computed:08x} found"
            ),
            Self::Kind(code) => write!(f, "no frame has the number {code}"),
            Self::Flags(flags) => write!(f, "a frame has the flags {flags:#04x}"),
            Self::Field(kind) => write!(f, "a field of a {} header is not allowed", kind.name()),
            Self::TooLong { kind, bytes } => write!(
                f,
                "a {} frame of {bytes} bytes; at most {} are allowed",
                kind.name(),
                kind.payload_bytes_max()
            ),
            Self::Sequence { want, got } => {
                write!(f, "a frame has the number {got} instead of {want}")
            }
            Self::PayloadCrc {
                kind,
                said,
                computed,
            } => write!(
                f,
                "the payload of a {} frame is damaged: checksum {said:08x} said, {computed:08x} found",
                kind.name()
            ),
            Self::Unexpected(kind) => write!(f, "a {} frame was not expected here", kind.name()),
            Self::Payload(kind) => write!(f, "the payload of a {} frame is not valid", kind.name()),
        }
    }
}

impl std::error::Error for FrameError {}

/// What of a gate a frame carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// The sender's own vector.
    Part,
    /// A piece of the sum of the ranks up to the sender.
    Partial(u16),
    /// A piece of the sum of all ranks.
    Sum(u16),
}

impl Piece {
    const fn flag(self) -> u8 {
        match self {
            Self::Part => 0,
            Self::Partial(_) => FLAG_PARTIAL,
            Self::Sum(_) => FLAG_SUM,
        }
    }

    /// Its number; 0 for a part.
    pub(super) const fn number(self) -> u16 {
        match self {
            Self::Part => 0,
            Self::Partial(number) | Self::Sum(number) => number,
        }
    }

    const fn read(flags: u8, number: u16) -> Option<Self> {
        match (flags & !FLAG_PAYLOAD_CRC, number) {
            (0, 0) => Some(Self::Part),
            (FLAG_PARTIAL, number) => Some(Self::Partial(number)),
            (FLAG_SUM, number) => Some(Self::Sum(number)),
            _ => None,
        }
    }
}

impl fmt::Display for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Part => f.write_str("a rank's part"),
            Self::Partial(number) => write!(f, "piece {number} of a partial sum"),
            Self::Sum(number) => write!(f, "piece {number} of the whole sum"),
        }
    }
}

/// A header, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// What follows.
    pub kind: Kind,
    /// The gate that the frame belongs to.
    pub gate: Option<(u16, GateName)>,
    /// Rows of a batch gate, else 0.
    pub rows: u8,
    /// What of a gate it carries.
    pub piece: Piece,
    /// Bytes that follow.
    pub bytes: u32,
    /// A control frame's number on its connection, a gate's number in its count.
    pub seq: u64,
    /// The checksum of what follows, if it has one.
    pub payload_crc: Option<u32>,
}

impl Head {
    /// A control frame's header.
    #[must_use]
    pub fn control(kind: Kind, seq: u64, payload: &[u8]) -> Option<Self> {
        let bytes = u32::try_from(payload.len()).ok()?;
        (bytes <= kind.payload_bytes_max()).then(|| Self {
            kind,
            gate: None,
            rows: 0,
            piece: Piece::Part,
            bytes,
            seq,
            payload_crc: Some(crc32c::crc32c(payload)),
        })
    }

    /// The header of a gate whose payload has `bytes` bytes; none when a field does not fit.
    #[must_use]
    pub fn gate(
        gate: Gate,
        seq: u64,
        piece: Piece,
        bytes: usize,
        payload_crc: Option<u32>,
    ) -> Option<Self> {
        let (kind, rows) = match gate.kind {
            GateKind::Row => (Kind::RowGate, 0),
            GateKind::Batch { rows } => (Kind::BatchGate, u8::try_from(rows).ok()?),
            GateKind::Big { .. } => (Kind::BigGate, 0),
        };
        let bytes = u32::try_from(bytes).ok()?;
        Some(Self {
            kind,
            gate: Some((u16::try_from(gate.layer).ok()?, gate.name)),
            rows,
            piece,
            bytes: (bytes <= GATE_BYTES_MAX).then_some(bytes)?,
            seq,
            payload_crc,
        })
    }

    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; HEAD_BYTES] {
        let (layer, gate) = match self.gate {
            Some((layer, name)) => (layer, name.code()),
            None => (0, NO_GATE),
        };
        let crc = if self.payload_crc.is_some() {
            FLAG_PAYLOAD_CRC
        } else {
            0
        };
        let flags = crc | self.piece.flag();
        let mut out = ArrayWriter::<HEAD_BYTES>::new();
        out.put(MAGIC)
            .put([self.kind.code(), flags, gate, self.rows])
            .put(layer.to_le_bytes())
            .put(self.piece.number().to_le_bytes())
            .put(self.bytes.to_le_bytes())
            .put(self.seq.to_le_bytes())
            .put(self.payload_crc.unwrap_or(0).to_le_bytes());
        let crc = crc32c::crc32c(out.written());
        out.put(crc.to_le_bytes());
        out.finish()
    }

    /// Reads and judges a header.
    ///
    /// # Errors
    /// [`FrameError`], by the first thing that is wrong.
    pub fn decode(bytes: &[u8; HEAD_BYTES]) -> Result<Self, FrameError> {
        let (covered, _) = bytes.split_at(HEAD_BYTES - 4);
        let mut reader = Reader::new(bytes);
        // The array has all bytes that are read below.
        let short = |_| FrameError::Magic([0; 4]);
        let magic: [u8; 4] = reader.array().map_err(short)?;
        let [code, flags, gate, rows] = reader.array().map_err(short)?;
        let layer = reader.u16().map_err(short)?;
        let number = reader.u16().map_err(short)?;
        let length = reader.u32().map_err(short)?;
        let seq = reader.u64().map_err(short)?;
        let payload_crc = reader.u32().map_err(short)?;
        let said = reader.u32().map_err(short)?;
        if magic != MAGIC {
            return Err(FrameError::Magic(magic));
        }
        let computed = crc32c::crc32c(covered);
        if said != computed {
            return Err(FrameError::HeadCrc { said, computed });
        }
        let kind = Kind::from_code(code).ok_or(FrameError::Kind(code))?;
        let piece = match Piece::read(flags, number) {
            Some(piece) if kind.is_gate() || piece == Piece::Part => piece,
            // A number that the flags leave no room for.
            None if Piece::read(flags, 0) == Some(Piece::Part) => {
                return Err(FrameError::Field(kind));
            }
            Some(_) | None => return Err(FrameError::Flags(flags)),
        };
        let payload_crc = match flags & FLAG_PAYLOAD_CRC {
            0 if kind.is_gate() && payload_crc == 0 => None,
            FLAG_PAYLOAD_CRC => Some(payload_crc),
            _ => return Err(FrameError::Flags(flags)),
        };
        let gate = match (kind.is_gate(), GateName::from_code(gate)) {
            (true, Some(name)) => Some((layer, name)),
            (false, None) if gate == NO_GATE && layer == 0 => None,
            _ => return Err(FrameError::Field(kind)),
        };
        let rows_allowed = if kind == Kind::BatchGate {
            (1..=8).contains(&rows)
        } else {
            rows == 0
        };
        if !rows_allowed {
            return Err(FrameError::Field(kind));
        }
        if length > kind.payload_bytes_max() {
            return Err(FrameError::TooLong {
                kind,
                bytes: length,
            });
        }
        Ok(Self {
            kind,
            gate,
            rows,
            piece,
            bytes: length,
            seq,
            payload_crc,
        })
    }
}

/// Appends a whole control frame to a queue; false, and nothing appended, when it is too long.
#[must_use]
pub fn push_control(queue: &mut Vec<u8>, kind: Kind, seq: u64, payload: &[u8]) -> bool {
    let Some(head) = Head::control(kind, seq, payload) else {
        return false;
    };
    queue.extend_from_slice(&head.encode());
    queue.extend_from_slice(payload);
    true
}

#[cfg(test)]
#[path = "frame_tests.rs"]
mod tests;
