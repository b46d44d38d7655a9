//! The bytes of ds4's own protocol, version 7, so that a real ds4 rank can be the peer.
//!
//! It has no keys, checksums, error frames, answers to a stop, or limits; ours are applied to what
//! we receive. Two ranks only. Payloads of commands are those of [`super::command`].

use super::coding::{ArrayWriter, Reader};
use super::frame::{FrameError, Kind};
use super::hello::Mismatch;
use super::schedule::{Gate, GateKind};

/// Bytes of a hello.
pub const HELLO_BYTES: usize = 64;
/// Bytes of a command's header.
pub const HEAD_BYTES: usize = 12;
/// Bytes of a gate's header.
pub const GATE_HEAD_BYTES: usize = 16;
/// The version.
pub const VERSION: u32 = 7;

pub(super) const MAGIC: u32 = 0x4453_3454;
const BULK_MAGIC: u32 = 0x4453_3442;
const BIG_GATE: u16 = 0x0b16;

/// Kinds with their numbers there.
const KINDS: [(Kind, u32); 14] = [
    (Kind::Sync, 1),
    (Kind::Eval, 2),
    (Kind::Rewind, 3),
    (Kind::Invalidate, 4),
    (Kind::Stop, 5),
    (Kind::Hash, 6),
    (Kind::Logits, 10),
    (Kind::Verify, 11),
    (Kind::VerifyCommit, 12),
    (Kind::SessionCreate, 13),
    (Kind::SessionDestroy, 14),
    (Kind::EvalBatch, 15),
    (Kind::MixedBatch, 16),
    (Kind::Ack, 17),
    // Numbers 7 and 9 belong to its RDMA, which is not spoken here; 8 is reserved.
];

/// A command's header.
#[must_use]
pub fn encode_head(kind: Kind, bytes: u32) -> Option<[u8; HEAD_BYTES]> {
    let code = KINDS
        .iter()
        .find(|(known, _)| *known == kind)
        .map(|(_, code)| *code)?;
    let mut out = ArrayWriter::new();
    out.put(MAGIC.to_le_bytes())
        .put(code.to_le_bytes())
        .put(bytes.to_le_bytes());
    Some(out.finish())
}

/// A command's kind and length.
///
/// # Errors
/// [`FrameError::Ds4Magic`]; [`FrameError::Ds4Kind`] for a command that is not spoken here;
/// [`FrameError::TooLong`].
pub fn decode_head(bytes: &[u8; HEAD_BYTES]) -> Result<(Kind, u32), FrameError> {
    let mut reader = Reader::new(bytes);
    let (Ok(magic), Ok(code), Ok(bytes)) = (reader.u32(), reader.u32(), reader.u32()) else {
        return Err(FrameError::Ds4Magic(0));
    };
    if magic != MAGIC {
        return Err(FrameError::Ds4Magic(magic));
    }
    match KINDS.iter().find(|(_, known)| *known == code) {
        Some((kind, _)) if bytes <= kind.payload_bytes_max() => Ok((*kind, bytes)),
        Some((kind, _)) => Err(FrameError::TooLong { kind: *kind, bytes }),
        None => Err(FrameError::Ds4Kind(code)),
    }
}

/// Whether these may be the first bytes that a ds4 rank says; as far as they go.
#[must_use]
pub fn begins_hello(bytes: &[u8]) -> bool {
    MAGIC
        .to_le_bytes()
        .iter()
        .zip(bytes)
        .all(|(own, theirs)| own == theirs)
}

/// A gate's header; none when the layer does not fit its 16 bits.
#[must_use]
pub fn encode_gate(gate: Gate, seq: u64) -> Option<[u8; GATE_HEAD_BYTES]> {
    let (magic, field) = match gate.kind {
        GateKind::Row => (MAGIC, u16::from(gate.name.code())),
        GateKind::Batch { rows } => (BULK_MAGIC, u16::try_from(rows).ok()?),
        GateKind::Big { .. } => (BULK_MAGIC, BIG_GATE),
    };
    let mut out = ArrayWriter::new();
    out.put(magic.to_le_bytes())
        .put(u16::try_from(gate.layer).ok()?.to_le_bytes())
        .put(field.to_le_bytes())
        .put(seq.to_le_bytes());
    Some(out.finish())
}

/// What a gate's header says, for messages.
#[must_use]
pub fn describe_gate(bytes: &[u8; GATE_HEAD_BYTES]) -> String {
    let mut reader = Reader::new(bytes);
    let fields = (reader.u32(), reader.u16(), reader.u16(), reader.u64());
    let (Ok(magic), Ok(layer), Ok(gate), Ok(seq)) = fields else {
        return String::new();
    };
    format!("magic {magic:08x} layer {layer} gate {gate} sequence {seq}")
}

/// The hello, field by field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// [`VERSION`].
    pub version: u32,
    /// 1 for the leader, 2 for the worker.
    pub role: u32,
    /// Whether its RDMA could be used.
    pub rdma_ok: u32,
    /// Bytes of the model file.
    pub gguf_bytes: u64,
    /// The model's number.
    pub model_id: u32,
    /// Layers.
    pub n_layer: u32,
    /// Numbers in a hidden vector.
    pub n_embd: u32,
    /// Vocabulary.
    pub n_vocab: u32,
    /// Bits of a weight.
    pub quant_bits: u32,
    /// Tokens for which there is room; a worker says 0.
    pub ctx_size: u32,
    /// The first slot of a token.
    pub gate_slot_start: u32,
    /// From one slot to the next.
    pub gate_slot_step: u32,
    /// Gates of a token; 0 for every slot.
    pub gates_per_token: u32,
}

impl Hello {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; HELLO_BYTES] {
        let mut out = ArrayWriter::new();
        out.put(MAGIC.to_le_bytes())
            .put(self.version.to_le_bytes())
            .put(self.role.to_le_bytes())
            .put(self.rdma_ok.to_le_bytes())
            .put(self.gguf_bytes.to_le_bytes());
        for word in [
            self.model_id,
            self.n_layer,
            self.n_embd,
            self.n_vocab,
            self.quant_bits,
            self.ctx_size,
            self.gate_slot_start,
            self.gate_slot_step,
            self.gates_per_token,
            0,
        ] {
            out.put(word.to_le_bytes());
        }
        out.finish()
    }

    /// Reads one; none without the magic.
    #[must_use]
    pub fn decode(bytes: &[u8; HELLO_BYTES]) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        if reader.u32().ok()? != MAGIC {
            return None;
        }
        let mut word = || reader.u32().ok();
        let (version, role, rdma_ok) = (word()?, word()?, word()?);
        let gguf_bytes = u64::from(word()?) | u64::from(word()?) << 32;
        Some(Self {
            version,
            role,
            rdma_ok,
            gguf_bytes,
            model_id: word()?,
            n_layer: word()?,
            n_embd: word()?,
            n_vocab: word()?,
            quant_bits: word()?,
            ctx_size: word()?,
            gate_slot_start: word()?,
            gate_slot_step: word()?,
            gates_per_token: word()?,
        })
    }

    /// Compares a peer's hello with the own one, in the reference's order; roles must be the two
    /// that exist.
    ///
    /// # Errors
    /// [`Mismatch`], the first thing that differs.
    pub fn check(&self, theirs: &Self) -> Result<(), Mismatch> {
        let their_role = match self.role {
            1 => 2,
            _ => 1,
        };
        for (what, own, theirs) in [
            ("protocol version", self.version, theirs.version),
            ("role of the peer", their_role, theirs.role),
        ] {
            if own != theirs {
                return Err(Mismatch::number(what, u64::from(own), u64::from(theirs)));
            }
        }
        if self.gguf_bytes != theirs.gguf_bytes {
            return Err(Mismatch::number(
                "model file size",
                self.gguf_bytes,
                theirs.gguf_bytes,
            ));
        }
        for (what, own, theirs) in [
            ("model number", self.model_id, theirs.model_id),
            ("layers", self.n_layer, theirs.n_layer),
            ("width", self.n_embd, theirs.n_embd),
            ("vocabulary", self.n_vocab, theirs.n_vocab),
            ("bits of a weight", self.quant_bits, theirs.quant_bits),
            ("first gate", self.gate_slot_start, theirs.gate_slot_start),
            (
                "step between gates",
                self.gate_slot_step,
                theirs.gate_slot_step,
            ),
            (
                "gates of a token",
                self.gates_per_token,
                theirs.gates_per_token,
            ),
        ] {
            if own != theirs {
                return Err(Mismatch::number(what, u64::from(own), u64::from(theirs)));
            }
        }
        Ok(())
    }
}
