//! One connection: bytes in order, heads and bodies.

use std::collections::VecDeque;
use std::ops::Range;

use crate::tp::error::Cause;
use crate::tp::frame::{FrameError, HEAD_BYTES, Head, Kind, push_control};
use crate::tp::hello::Hello;
use crate::tp::mirror::Owed;
use crate::tp::schedule::{Gate, GateKind};
use crate::tp::time::Time;
use crate::tp::transport::TransportSet;
use crate::tp::v7;

use super::Dialect;

/// How much room for a payload is made at once: a length alone never costs memory.
const BODY_STEP_BYTES: usize = 64 << 10;
/// The most bytes that may wait to be written.
const QUEUE_BYTES_MAX: usize = 16 << 20;

/// The control connection to a peer.
#[derive(Debug)]
pub(super) struct ControlLink {
    pub(super) peer: u32,
    pub(super) attached: bool,
    pub(super) closed: bool,
    pub(super) hello: Option<Hello>,
    pub(super) fits: bool,
    pub(super) vote: Option<TransportSet>,
    pub(super) own_hash: Option<(u64, u64)>,
    pub(super) their_hash: Option<(u64, u64)>,
    pub(super) hash_due: Time,
    pub(super) owed: VecDeque<Owed>,
    pub(super) last_in: Time,
    pub(super) last_out: Time,
    pub(super) stop_acked: bool,
    out: Vec<u8>,
    out_done: usize,
    out_seq: u64,
    head: [u8; HEAD_BYTES],
    head_filled: usize,
    body: Vec<u8>,
    body_filled: usize,
    current: Option<Incoming>,
    /// The application has the frame; its room is free at the next look.
    lent: bool,
    in_seq: u64,
}

#[derive(Clone, Copy, Debug)]
struct Incoming {
    kind: Kind,
    bytes: usize,
    crc: Option<u32>,
}

impl ControlLink {
    pub(super) fn new(peer: u32) -> Self {
        Self {
            peer,
            attached: false,
            closed: false,
            hello: None,
            fits: false,
            vote: None,
            own_hash: None,
            their_hash: None,
            hash_due: Time::NEVER,
            owed: VecDeque::new(),
            last_in: Time::ZERO,
            last_out: Time::ZERO,
            stop_acked: false,
            out: Vec::new(),
            out_done: 0,
            out_seq: 0,
            head: [0; HEAD_BYTES],
            head_filled: 0,
            body: Vec::new(),
            body_filled: 0,
            current: None,
            lent: false,
            in_seq: 0,
        }
    }

    pub(super) fn usable(&self) -> bool {
        self.attached && !self.closed
    }

    /// Queues a frame; false when it does not fit the protocol or the queue.
    pub(super) fn push(&mut self, now: Time, dialect: Dialect, kind: Kind, payload: &[u8]) -> bool {
        if !self.usable() || self.out.len().saturating_add(payload.len()) > QUEUE_BYTES_MAX {
            return false;
        }
        self.last_out = now;
        match dialect {
            Dialect::Native => {
                self.out_seq = self.out_seq.saturating_add(1);
                push_control(&mut self.out, kind, self.out_seq, payload)
            }
            Dialect::Ds4V7 { .. } => {
                let bytes = u32::try_from(payload.len()).ok();
                let fits = bytes.filter(|bytes| *bytes <= kind.payload_bytes_max());
                let head = fits.and_then(|bytes| v7::encode_head(kind, bytes));
                if let Some(head) = head {
                    self.out.extend_from_slice(&head);
                    self.out.extend_from_slice(payload);
                }
                head.is_some()
            }
        }
    }

    /// Queues bytes that are no frame.
    pub(super) fn push_raw(&mut self, now: Time, bytes: &[u8]) {
        self.last_out = now;
        self.out.extend_from_slice(bytes);
    }

    pub(super) fn to_write(&self) -> &[u8] {
        if self.closed {
            return &[];
        }
        self.out.get(self.out_done..).unwrap_or_default()
    }

    pub(super) fn wrote(&mut self, count: usize) {
        self.out_done = self.out_done.saturating_add(count);
        if self.out_done >= self.out.len() {
            self.out.clear();
            self.out_done = 0;
        }
    }

    /// Where the next bytes go; empty while a message waits to be taken.
    pub(super) fn read_room(&mut self, dialect: Dialect) -> &mut [u8] {
        self.release();
        if !self.usable() || self.complete() {
            return &mut [];
        }
        match self.current {
            None => {
                let length = self.head_bytes(dialect);
                let buffer = if length > HEAD_BYTES {
                    self.body.resize(length, 0);
                    self.body.as_mut_slice()
                } else {
                    self.head.as_mut_slice()
                };
                buffer.get_mut(self.head_filled..length)
            }
            Some(incoming) => {
                let end = self
                    .body_filled
                    .saturating_add(BODY_STEP_BYTES)
                    .min(incoming.bytes);
                if self.body.len() < end {
                    self.body.resize(end, 0);
                }
                self.body.get_mut(self.body_filled..end)
            }
        }
        .unwrap_or_default()
    }

    /// So many bytes came; true when a frame is complete.
    pub(super) fn read(
        &mut self,
        now: Time,
        dialect: Dialect,
        count: usize,
    ) -> Result<bool, FrameError> {
        self.last_in = now;
        match self.current {
            None => {
                self.head_filled = self.head_filled.saturating_add(count);
                if self.head_filled < self.head_bytes(dialect) {
                    return Ok(false);
                }
                self.head_filled = 0;
                self.body_filled = 0;
                self.current = Some(self.judge(dialect)?);
            }
            Some(_) => self.body_filled = self.body_filled.saturating_add(count),
        }
        self.check_body()
    }

    /// The frame that is complete.
    pub(super) fn frame(&self) -> Option<(Kind, &[u8])> {
        let incoming = self.current.filter(|_| self.complete())?;
        Some((incoming.kind, self.body.get(..incoming.bytes)?))
    }

    /// The frame was dealt with.
    pub(super) fn take(&mut self) {
        self.current = None;
        self.body_filled = 0;
    }

    /// The application gets to see the frame now.
    pub(super) const fn take_later(&mut self) {
        self.lent = true;
    }

    /// The application has seen what it was lent.
    pub(super) fn release(&mut self) {
        if self.lent {
            self.lent = false;
            self.take();
        }
    }

    /// Whether a frame waits to be taken.
    pub(super) fn complete(&self) -> bool {
        self.current
            .is_some_and(|incoming| self.body_filled >= incoming.bytes)
    }

    /// Whether bytes of a frame are there and others are not.
    pub(super) fn cut(&self) -> bool {
        self.head_filled > 0 || (self.current.is_some() && !self.complete())
    }

    fn head_bytes(&self, dialect: Dialect) -> usize {
        match dialect {
            Dialect::Native => HEAD_BYTES,
            Dialect::Ds4V7 { .. } if self.fits => v7::HEAD_BYTES,
            Dialect::Ds4V7 { .. } => v7::HELLO_BYTES,
        }
    }

    fn judge(&mut self, dialect: Dialect) -> Result<Incoming, FrameError> {
        match dialect {
            Dialect::Native => {
                let head = Head::decode(&self.head)?;
                if head.kind.is_gate() {
                    return Err(FrameError::Unexpected(head.kind));
                }
                let want = self.in_seq.saturating_add(1);
                if head.seq != want {
                    let got = head.seq;
                    return Err(FrameError::Sequence { want, got });
                }
                self.in_seq = want;
                Ok(Incoming {
                    kind: head.kind,
                    bytes: usize::try_from(head.bytes).unwrap_or(usize::MAX),
                    crc: head.payload_crc,
                })
            }
            Dialect::Ds4V7 { .. } if !self.fits => {
                // The hello lies in the body already.
                self.body_filled = v7::HELLO_BYTES;
                Ok(Incoming {
                    kind: Kind::Hello,
                    bytes: v7::HELLO_BYTES,
                    crc: None,
                })
            }
            Dialect::Ds4V7 { .. } => {
                let head = self.head.first_chunk::<{ v7::HEAD_BYTES }>();
                let head = head.ok_or(FrameError::Ds4Magic(0))?;
                let (kind, bytes) = v7::decode_head(head)?;
                Ok(Incoming {
                    kind,
                    bytes: usize::try_from(bytes).unwrap_or(usize::MAX),
                    crc: None,
                })
            }
        }
    }

    fn check_body(&self) -> Result<bool, FrameError> {
        let Some(incoming) = self.current.filter(|_| self.complete()) else {
            return Ok(false);
        };
        let body = self.body.get(..incoming.bytes).unwrap_or_default();
        match incoming.crc {
            Some(said) => {
                let computed = crc32c::crc32c(body);
                let kind = incoming.kind;
                if said == computed {
                    Ok(true)
                } else {
                    Err(FrameError::PayloadCrc {
                        kind,
                        said,
                        computed,
                    })
                }
            }
            None => Ok(true),
        }
    }
}

/// The data connection to a peer: one gate at a time, both ways at once.
#[derive(Debug)]
pub(super) struct DataLink {
    pub(super) peer: u32,
    pub(super) attached: bool,
    pub(super) closed_at: Option<Time>,
    head_bytes: usize,
    out_head: [u8; HEAD_BYTES],
    out_done: usize,
    out_bytes: usize,
    in_head: [u8; HEAD_BYTES],
    in_done: usize,
    in_bytes: usize,
    in_crc: u32,
    said_crc: Option<u32>,
    judged: bool,
    want: Option<(Gate, u64, Head)>,
}

impl DataLink {
    pub(super) const fn new(peer: u32, dialect: Dialect) -> Self {
        let head_bytes = match dialect {
            Dialect::Native => HEAD_BYTES,
            Dialect::Ds4V7 { .. } => v7::GATE_HEAD_BYTES,
        };
        Self {
            peer,
            attached: false,
            closed_at: None,
            head_bytes,
            out_head: [0; HEAD_BYTES],
            out_done: 0,
            out_bytes: 0,
            in_head: [0; HEAD_BYTES],
            in_done: 0,
            in_bytes: 0,
            in_crc: 0,
            said_crc: None,
            judged: false,
            want: None,
        }
    }

    /// Begins a gate of `bytes` bytes each way, whose header goes out as `encoded`.
    pub(super) fn begin(
        &mut self,
        gate: Gate,
        seq: u64,
        head: Head,
        encoded: [u8; HEAD_BYTES],
        bytes: usize,
    ) {
        self.out_head = encoded;
        self.out_done = 0;
        self.out_bytes = self.head_bytes.saturating_add(bytes);
        self.in_done = 0;
        self.in_bytes = self.out_bytes;
        self.in_crc = 0;
        self.said_crc = None;
        self.judged = false;
        self.want = Some((gate, seq, head));
    }

    pub(super) const fn done(&self) -> bool {
        self.sent() && self.came()
    }

    pub(super) const fn sent(&self) -> bool {
        self.out_done >= self.out_bytes
    }

    pub(super) const fn came(&self) -> bool {
        self.in_done >= self.in_bytes
    }

    /// How many bytes of the gate came.
    pub(super) const fn arrived(&self) -> usize {
        self.in_done
    }

    pub(super) fn to_write(&self) -> (&[u8], Range<usize>) {
        if self.closed_at.is_some() || self.out_done >= self.out_bytes {
            return (&[], 0..0);
        }
        let head = self.out_head.get(self.out_done..self.head_bytes);
        let body = self.out_done.saturating_sub(self.head_bytes);
        let end = self.out_bytes.saturating_sub(self.head_bytes);
        (head.unwrap_or_default(), body..end)
    }

    pub(super) fn wrote(&mut self, count: usize) {
        self.out_done = self.out_done.saturating_add(count).min(self.out_bytes);
    }

    pub(super) fn read_room(&mut self) -> (&mut [u8], Range<usize>) {
        if self.closed_at.is_some() || self.in_done >= self.in_bytes {
            return (&mut [], 0..0);
        }
        let body = self.in_done.saturating_sub(self.head_bytes);
        let end = self.in_bytes.saturating_sub(self.head_bytes);
        let head = self.in_head.get_mut(self.in_done..self.head_bytes);
        (head.unwrap_or_default(), body..end)
    }

    /// So many bytes came; `incoming` is the whole buffer into which [`DataLink::read_room`]'s
    /// range points.
    pub(super) fn read(&mut self, count: usize, incoming: &[u8]) -> Result<(), Cause> {
        let from = self.in_done.saturating_sub(self.head_bytes);
        self.in_done = self.in_done.saturating_add(count).min(self.in_bytes);
        if !self.judged {
            if self.in_done < self.head_bytes {
                return Ok(());
            }
            self.judge()?;
        }
        let Some(said) = self.said_crc else {
            return Ok(());
        };
        // Summed while the bytes are in the cache.
        let to = self.in_done.saturating_sub(self.head_bytes);
        let fresh = incoming.get(from..to).unwrap_or_default();
        self.in_crc = crc32c::crc32c_append(self.in_crc, fresh);
        if self.in_done >= self.in_bytes && self.in_crc != said {
            let kind = self.want.map_or(Kind::RowGate, |(_, _, head)| head.kind);
            return Err(Cause::Frame(FrameError::PayloadCrc {
                kind,
                said,
                computed: self.in_crc,
            }));
        }
        Ok(())
    }

    /// Compares the peer's header with the own one: all but the checksums must be equal.
    fn judge(&mut self) -> Result<(), Cause> {
        self.judged = true;
        let Some((gate, seq, own)) = self.want else {
            return Ok(());
        };
        if self.head_bytes == v7::GATE_HEAD_BYTES {
            let theirs = self.in_head.first_chunk::<{ v7::GATE_HEAD_BYTES }>();
            let own = self.out_head.first_chunk::<{ v7::GATE_HEAD_BYTES }>();
            if theirs == own {
                return Ok(());
            }
            let got = theirs.map(v7::describe_gate).unwrap_or_default();
            let want = (gate, seq);
            return Err(Cause::Desync { want, got });
        }
        let head = Head::decode(&self.in_head).map_err(Cause::Frame)?;
        let theirs = Head {
            payload_crc: own.payload_crc,
            ..head
        };
        if theirs != own || head.payload_crc.is_some() != own.payload_crc.is_some() {
            let want = (gate, seq);
            return Err(Cause::Desync {
                want,
                got: describe(&head),
            });
        }
        self.said_crc = head.payload_crc;
        Ok(())
    }
}

pub(super) fn describe(head: &Head) -> String {
    let kind = if head.kind == Kind::BatchGate {
        GateKind::Batch {
            rows: u32::from(head.rows),
        }
    } else if head.kind == Kind::BigGate {
        GateKind::Big {
            bytes: u64::from(head.bytes),
        }
    } else {
        GateKind::Row
    };
    match head.gate {
        Some((layer, name)) => {
            let layer = u32::from(layer);
            let gate = Gate { layer, name, kind };
            let (piece, bytes, seq) = (head.piece, head.bytes, head.seq);
            format!("{gate} ({piece}, {bytes} bytes) sequence {seq}")
        }
        None => format!("a {} frame", head.kind.name()),
    }
}
