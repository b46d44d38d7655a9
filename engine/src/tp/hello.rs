//! What each rank says of itself, and what must be equal.

use std::fmt;

use super::coding::{Reader, UnexpectedEnd};
use super::exchange::SumLimits;
use super::schedule::Schedule;
use super::slab::SlabLayout;
use super::transport::TransportSet;

/// Bytes of a hello's payload.
pub const HELLO_BYTES: usize = 128;

/// What the ranks of a group must have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// A hash of the model's content, by which both sides run the same weights.
    pub model: [u8; 32],
    /// The model's vocabulary.
    pub n_vocab: u32,
    /// Bits of a weight, as the reference counts them.
    pub quant_bits: u32,
    /// A hash of all switches that change which gates there are.
    pub switches: u64,
    /// Where everything lies.
    pub layout: SlabLayout,
    /// Which gates a token passes.
    pub schedule: Schedule,
    /// Whether each rank sends its share of the logits.
    pub split_logits: bool,
    /// Whether payloads of gates carry checksums.
    pub payload_crc: bool,
}

impl Identity {
    /// Ranks that pass these gates, with checksums, and of whose model nothing else is told: all
    /// other fields are zero or false.
    #[must_use]
    pub const fn new(layout: SlabLayout, schedule: Schedule) -> Self {
        Self {
            model: [0; 32],
            n_vocab: 0,
            quant_bits: 0,
            switches: 0,
            layout,
            schedule,
            split_logits: false,
            payload_crc: true,
        }
    }
}

/// A hello, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The rank that says it.
    pub rank: u32,
    /// How many ranks it expects.
    pub ranks: u32,
    /// Tokens for which it has room.
    pub context: u32,
    /// The transports that it may use.
    pub transports: TransportSet,
    /// Hash of its slab's layout.
    pub layout_hash: u64,
    /// Layers.
    pub n_layer: u32,
    /// Numbers in a hidden vector.
    pub n_embd: u32,
    /// Vocabulary.
    pub n_vocab: u32,
    /// Bits of a weight.
    pub quant_bits: u32,
    /// Hash of the switches.
    pub switches: u64,
    /// Start, step and length of the gate schedule.
    pub schedule: [u32; 3],
    /// Bit 0: logits are split; bit 1: gates carry checksums.
    pub flags: u32,
    /// Hash of the model's content.
    pub model: [u8; 32],
    /// By what it chooses the way of a sum.
    pub ways: SumLimits,
}

impl Hello {
    /// What a rank says of itself.
    #[must_use]
    pub fn new(identity: &Identity, rank: u32, context: u32, transports: TransportSet) -> Self {
        let geometry = identity.layout.geometry();
        let schedule = &identity.schedule;
        Self {
            rank,
            ranks: geometry.ranks,
            context,
            transports,
            layout_hash: identity.layout.hash(),
            n_layer: geometry.n_layer,
            n_embd: geometry.n_embd,
            n_vocab: identity.n_vocab,
            quant_bits: identity.quant_bits,
            switches: identity.switches,
            schedule: [schedule.start(), schedule.step(), schedule.per_token()],
            flags: u32::from(identity.split_logits) | u32::from(identity.payload_crc) << 1,
            model: identity.model,
            ways: SumLimits::default(),
        }
    }

    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HELLO_BYTES);
        let mut put = |bytes: &[u8]| out.extend_from_slice(bytes);
        for word in [
            self.rank,
            self.ranks,
            self.context,
            self.transports.bits(),
            self.n_layer,
            self.n_embd,
            self.n_vocab,
            self.quant_bits,
        ] {
            put(&word.to_le_bytes());
        }
        put(&self.layout_hash.to_le_bytes());
        put(&self.switches.to_le_bytes());
        for word in self.schedule {
            put(&word.to_le_bytes());
        }
        put(&self.flags.to_le_bytes());
        put(&self.model);
        put(&self.ways.one_shot_bytes_max.to_le_bytes());
        put(&self.ways.piece_bytes.to_le_bytes());
        out.resize(HELLO_BYTES, 0);
        out
    }

    /// Reads a hello; spare bytes may hold what a later version says.
    ///
    /// # Errors
    /// [`UnexpectedEnd`], and for anything that is not [`HELLO_BYTES`] long.
    pub fn decode(payload: &[u8]) -> Result<Self, UnexpectedEnd> {
        if payload.len() != HELLO_BYTES {
            return Err(UnexpectedEnd);
        }
        let mut reader = Reader::new(payload);
        Ok(Self {
            rank: reader.u32()?,
            ranks: reader.u32()?,
            context: reader.u32()?,
            transports: TransportSet::from_bits(reader.u32()?),
            n_layer: reader.u32()?,
            n_embd: reader.u32()?,
            n_vocab: reader.u32()?,
            quant_bits: reader.u32()?,
            layout_hash: reader.u64()?,
            switches: reader.u64()?,
            schedule: [reader.u32()?, reader.u32()?, reader.u32()?],
            flags: reader.u32()?,
            model: reader.array()?,
            ways: SumLimits {
                one_shot_bytes_max: reader.u32()?,
                piece_bytes: reader.u32()?,
            },
        })
    }

    /// Compares a peer's hello with the own one; `peer` is the rank that the connection proved.
    ///
    /// # Errors
    /// [`Mismatch`], the first thing that differs.
    pub fn check(&self, theirs: &Self, peer: u32) -> Result<(), Mismatch> {
        let words = [
            ("rank", u64::from(peer), u64::from(theirs.rank)),
            (
                "number of ranks",
                u64::from(self.ranks),
                u64::from(theirs.ranks),
            ),
            ("layers", u64::from(self.n_layer), u64::from(theirs.n_layer)),
            ("width", u64::from(self.n_embd), u64::from(theirs.n_embd)),
            (
                "vocabulary",
                u64::from(self.n_vocab),
                u64::from(theirs.n_vocab),
            ),
            (
                "bits of a weight",
                u64::from(self.quant_bits),
                u64::from(theirs.quant_bits),
            ),
            ("first gate", word(self, 0), word(theirs, 0)),
            ("step between gates", word(self, 1), word(theirs, 1)),
            ("gates of a token", word(self, 2), word(theirs, 2)),
            (
                "options (split logits, checksums)",
                u64::from(self.flags),
                u64::from(theirs.flags),
            ),
            (
                "most bytes that leave a rank in one shot",
                u64::from(self.ways.one_shot_bytes_max),
                u64::from(theirs.ways.one_shot_bytes_max),
            ),
            (
                "piece of a ring",
                u64::from(self.ways.piece_bytes),
                u64::from(theirs.ways.piece_bytes),
            ),
        ];
        for (what, own, theirs) in words {
            if own != theirs {
                return Err(Mismatch::number(what, own, theirs));
            }
        }
        for (what, own, theirs) in [
            ("slab layout", self.layout_hash, theirs.layout_hash),
            ("switches", self.switches, theirs.switches),
        ] {
            if own != theirs {
                return Err(Mismatch::hash(what, own, theirs));
            }
        }
        if self.model != theirs.model {
            return Err(Mismatch::hash(
                "model content",
                front(&self.model),
                front(&theirs.model),
            ));
        }
        Ok(())
    }
}

fn word(hello: &Hello, index: usize) -> u64 {
    hello.schedule.get(index).copied().map_or(0, u64::from)
}

/// The first eight bytes, as people compare hashes.
fn front(hash: &[u8; 32]) -> u64 {
    hash.first_chunk().copied().map_or(0, u64::from_be_bytes)
}

/// What differs between two ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// What it is.
    pub what: &'static str,
    /// The own value.
    pub own: String,
    /// The peer's value.
    pub theirs: String,
}

impl Mismatch {
    pub(super) fn number(what: &'static str, own: u64, theirs: u64) -> Self {
        Self {
            what,
            own: own.to_string(),
            theirs: theirs.to_string(),
        }
    }

    pub(super) fn hash(what: &'static str, own: u64, theirs: u64) -> Self {
        Self {
            what,
            own: format!("{own:016x}"),
            theirs: format!("{theirs:016x}"),
        }
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the ranks do not fit together: {} is {} here and {} there",
            self.what, self.own, self.theirs
        )
    }
}

impl std::error::Error for Mismatch {}
