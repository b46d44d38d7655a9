//! Gates: the same bytes to every peer, as many from each, both ways at once.

use std::ops::Range;

use crate::tp::error::{Cause, TpError};
use crate::tp::frame::{GATE_BYTES_MAX, HEAD_BYTES, Head, Piece};
use crate::tp::schedule::{Gate, GateKind};
use crate::tp::time::Time;
use crate::tp::v7;

use super::{Current, Dialect, Phase, Session};

/// How far a gate is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateState {
    /// Bytes are missing.
    Under,
    /// Everything was sent, came, and was checked.
    Done,
}

/// What the gate under way still moves on a peer's path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wants {
    /// Bytes are to come.
    pub reads: bool,
    /// Bytes are there to be sent.
    pub writes: bool,
}

impl Session {
    /// Begins a gate: `out` is what each peer gets, and each peer's part has as many bytes. The
    /// sequence number comes back.
    ///
    /// # Errors
    /// The session has ended; or the call breaks the schedule, and nothing has changed.
    pub fn gate_begin(&mut self, now: Time, gate: Gate, out: &[u8]) -> Result<u64, TpError> {
        let seq = self.check_begin(gate, out.len())?;
        let crc = (self.config.identity.payload_crc && self.config.dialect == Dialect::Native)
            .then(|| crc32c::crc32c(out));
        let head = Head::gate(gate, seq, Piece::Part, out.len(), crc)
            .ok_or_else(|| self.misuse("the gate does not fit a frame".to_owned()))?;
        let encoded = match self.config.dialect {
            Dialect::Native => head.encode(),
            Dialect::Ds4V7 { .. } => {
                let mut wide = [0; HEAD_BYTES];
                let narrow = v7::encode_gate(gate, seq);
                if let (Some(place), Some(narrow)) =
                    (wide.first_chunk_mut::<{ v7::GATE_HEAD_BYTES }>(), narrow)
                {
                    *place = narrow;
                }
                wide
            }
        };
        for link in &mut self.data {
            link.begin(gate, seq, head, encoded, out.len());
        }
        let due = now.after(self.gate_limit_ns(out.len()));
        self.enter_gate(now, gate, seq, due);
        Ok(seq)
    }

    /// What to write to a peer now: the rest of the header, then this part of `out`. Both in one
    /// vectored write.
    #[must_use]
    pub fn gate_to_write(&self, peer: u32) -> (&[u8], Range<usize>) {
        match self.current {
            Some(_) => self
                .data_ref(peer)
                .map_or((&[], 0..0), |link| link.to_write()),
            None => (&[], 0..0),
        }
    }

    /// So many bytes of it were written.
    pub fn gate_wrote(&mut self, peer: u32, count: usize) -> GateState {
        if let Some(link) = self.data_mut(peer) {
            link.wrote(count);
        }
        self.settle_gate()
    }

    /// What to read from a peer now: the rest of the header, then this part of the buffer for the
    /// peer's bytes.
    ///
    /// Both may be read at once. A driver that wants no byte in the buffer before the header was
    /// judged reads the header alone first. Without a gate under way there is nothing to read.
    pub fn gate_to_read(&mut self, peer: u32) -> (&mut [u8], Range<usize>) {
        if self.current.is_none() {
            return (&mut [], 0..0);
        }
        match self.data_mut(peer) {
            Some(link) => link.read_room(),
            None => (&mut [], 0..0),
        }
    }

    /// So many bytes were read, header first; `incoming` is the whole buffer for the peer's bytes.
    ///
    /// # Errors
    /// The peer's part is not the one of this gate or is damaged, and the session has ended: what
    /// lies in the buffer is worthless.
    pub fn gate_read(
        &mut self,
        now: Time,
        peer: u32,
        count: usize,
        incoming: &[u8],
    ) -> Result<GateState, TpError> {
        if let Some(error) = &self.error {
            return Err(error.clone());
        }
        if self.current.is_none() {
            return Ok(GateState::Done);
        }
        let read = match self.data_mut(peer) {
            Some(link) => link.read(count, incoming),
            None => Ok(()),
        };
        match read {
            Ok(()) => Ok(self.settle_gate()),
            Err(cause) => Err(self.fail_gate(now, peer, cause)),
        }
    }

    /// Whether a gate is under way.
    #[must_use]
    pub const fn in_gate(&self) -> bool {
        self.current.is_some()
    }

    /// What the gate under way still moves on a peer's path; nothing without a gate.
    #[must_use]
    pub fn gate_wants(&self, peer: u32) -> Wants {
        let Some(link) = self.data_ref(peer).filter(|_| self.current.is_some()) else {
            return Wants::default();
        };
        match &self.round {
            None => Wants {
                reads: !link.came(),
                writes: !link.sent(),
            },
            Some(round) => Wants {
                reads: peer == round.ring.before() && !round.all_came(),
                writes: peer == round.ring.next() && round.has_piece(),
            },
        }
    }

    /// Whether the gate under way cannot end without more from, or more taken by, this peer.
    pub(super) fn gate_needs(&self, link: &super::DataLink) -> bool {
        if self.collective.limit_ns.is_some() {
            return true;
        }
        match &self.round {
            None => !link.done(),
            Some(round) => {
                (link.peer == round.ring.before() && !round.all_came())
                    || (link.peer == round.ring.next() && !round.all_sent())
            }
        }
    }

    /// The next sequence number, if the gate is in order.
    pub(super) fn check_begin(&self, gate: Gate, bytes: usize) -> Result<u64, TpError> {
        if let Some(error) = &self.error {
            return Err(error.clone());
        }
        let bulk = !matches!(gate.kind, GateKind::Row);
        let seq = if bulk { self.bulk_seq } else { self.row_seq };
        self.check_gate(gate, seq, bytes)
            .map_err(|why| self.misuse(why))?;
        Ok(seq)
    }

    pub(super) const fn enter_gate(&mut self, now: Time, gate: Gate, seq: u64, due: Time) {
        self.current = Some(Current {
            gate,
            seq,
            began: now,
            due,
        });
    }

    /// Ends the session for what came from a peer.
    pub(super) fn fail_gate(&mut self, now: Time, peer: u32, cause: Cause) -> TpError {
        self.fail(now, peer, cause);
        let error = self.error.clone();
        error.unwrap_or_else(|| self.misuse(String::new()))
    }

    pub(super) fn settle_gate(&mut self) -> GateState {
        let Some(current) = self.current else {
            return GateState::Done;
        };
        if self.data.iter().any(|link| self.gate_needs(link)) {
            return GateState::Under;
        }
        self.current = None;
        self.round = None;
        self.gates_done = self.gates_done.saturating_add(1);
        let count = match current.gate.kind {
            GateKind::Row => &mut self.row_seq,
            GateKind::Batch { .. } | GateKind::Big { .. } => &mut self.bulk_seq,
        };
        *count = count.saturating_add(1);
        GateState::Done
    }

    fn check_gate(&self, gate: Gate, seq: u64, bytes: usize) -> Result<(), String> {
        if self.phase != Phase::Ready {
            return Err(format!("no gate passes in the phase {:?}", self.phase));
        }
        if let Some(current) = &self.current {
            return Err(format!("{} is under way", current.gate));
        }
        let layout = &self.config.identity.layout;
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let want = match gate.kind {
            GateKind::Row => {
                let scheduled = self.config.identity.schedule.row_gate(seq);
                if gate != scheduled {
                    return Err(format!(
                        "gate order broke: {gate} at sequence {seq} instead of {scheduled}"
                    ));
                }
                layout.vec_bytes()
            }
            GateKind::Batch { rows } => layout
                .batch_out(gate.layer, rows)
                .map(|span| span.bytes)
                .ok_or_else(|| format!("{gate} is not in the slab"))?,
            GateKind::Big { bytes } => {
                let inside = gate.layer < layout.geometry().n_layer;
                if !inside || bytes == 0 || bytes > u64::from(GATE_BYTES_MAX) {
                    return Err(format!("{gate} is not one that can be sent"));
                }
                bytes
            }
        };
        if bytes == want {
            Ok(())
        } else {
            Err(format!("{gate} has {want} bytes, {bytes} were given"))
        }
    }

    pub(super) fn gate_limit_ns(&self, bytes: usize) -> u64 {
        let limits = &self.config.deadlines;
        let base = if self.gates_done == 0 {
            limits.first_gate_ns.max(limits.gate_ns)
        } else {
            limits.gate_ns
        };
        let mib = u64::try_from(bytes >> 20).unwrap_or(u64::MAX);
        base.saturating_add(mib.saturating_mul(limits.gate_ns_per_mib))
    }

    pub(super) fn misuse(&self, why: String) -> TpError {
        TpError {
            rank: self.config.rank,
            at: self.position(),
            cause: Cause::Local(why),
        }
    }

    fn data_ref(&self, peer: u32) -> Option<&super::DataLink> {
        let index = super::peer_index(self.config.rank, peer)?;
        self.data.get(usize::try_from(index).ok()?)
    }
}
