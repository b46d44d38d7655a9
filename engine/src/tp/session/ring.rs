//! Gates whose sum travels round a ring, in pieces: see [`crate::tp::exchange`].
//!
//! Every byte that a rank sends goes to the next one and every byte that it gets comes from the one
//! before, both ways at once. The vector holds the own part, then piece by piece the sum of the
//! ranks so far, then the sum of all. A piece is sent on only after its checksum was right, and a
//! sum takes the place of a partial only after that was sent on.

use crate::tp::error::{Cause, TpError};
use crate::tp::exchange::{Ring, Way};
use crate::tp::frame::{FrameError, HEAD_BYTES, Head, Kind, Piece};
use crate::tp::reduce::add_before;
use crate::tp::schedule::Gate;
use crate::tp::time::Time;

use super::gates::GateState;
use super::link::describe;
use super::{Dialect, Session};

/// A ring under way.
#[derive(Debug)]
pub(super) struct RingGate {
    pub(super) ring: Ring,
    gate: Gate,
    seq: u64,
    kind: Kind,
    checked: bool,
    /// How long the gate may take.
    pub(super) limit_ns: u64,
    partials_in: u16,
    partials_out: u16,
    sums_in: u16,
    sums_out: u16,
    /// The piece being sent.
    sending: Option<Piece>,
    out_head: [u8; HEAD_BYTES],
    out_done: usize,
    /// The piece being received, once its header was judged, and the checksum that it must have.
    receiving: Option<(Piece, Option<u32>)>,
    in_head: [u8; HEAD_BYTES],
    in_done: usize,
    in_crc: u32,
}

impl RingGate {
    fn new(ring: Ring, gate: Gate, seq: u64, kind: Kind, checked: bool) -> Self {
        Self {
            ring,
            gate,
            seq,
            kind,
            checked,
            limit_ns: 0,
            partials_in: 0,
            partials_out: 0,
            sums_in: 0,
            sums_out: 0,
            sending: None,
            out_head: [0; HEAD_BYTES],
            out_done: 0,
            receiving: None,
            in_head: [0; HEAD_BYTES],
            in_done: 0,
            in_crc: 0,
        }
    }

    /// Whether nothing comes any more.
    pub(super) fn all_came(&self) -> bool {
        self.partials_in >= self.ring.partials_in() && self.sums_in >= self.ring.sums_in()
    }

    /// Whether nothing is to be sent any more.
    pub(super) fn all_sent(&self) -> bool {
        self.partials_out >= self.ring.partials_out() && self.sums_out >= self.ring.sums_out()
    }

    /// Whether a piece is there to be sent.
    pub(super) const fn has_piece(&self) -> bool {
        self.sending.is_some()
    }

    /// Who keeps the ring up, as far as it shows here: the next rank, if it does not take what is
    /// there for it; else the one before, which may itself be waiting.
    pub(super) const fn suspect(&self) -> u32 {
        if self.has_piece() {
            self.ring.next()
        } else {
            self.ring.before()
        }
    }

    /// Chooses the next piece to send, if one is there: partials first, for others wait for them to
    /// make the sums.
    fn load(&mut self, vector: &[u8]) {
        if self.sending.is_some() {
            return;
        }
        let ring = &self.ring;
        let made = if ring.partials_in() == 0 {
            ring.pieces()
        } else {
            self.partials_in
        };
        let whole = if ring.sums_in() == 0 {
            made
        } else {
            self.sums_in
        };
        let piece = if self.partials_out < ring.partials_out().min(made) {
            Piece::Partial(self.partials_out)
        } else if self.sums_out < ring.sums_out().min(whole) {
            Piece::Sum(self.sums_out)
        } else {
            return;
        };
        let bytes = self.bytes(piece, vector);
        let crc = self.checked.then(|| crc32c::crc32c(bytes));
        // A gate that could not be framed was refused at its beginning.
        let Some(head) = Head::gate(self.gate, self.seq, piece, bytes.len(), crc) else {
            return;
        };
        self.sending = Some(piece);
        self.out_head = head.encode();
        self.out_done = 0;
    }

    fn bytes<'a>(&self, piece: Piece, vector: &'a [u8]) -> &'a [u8] {
        vector
            .get(self.ring.place(piece.number()))
            .unwrap_or_default()
    }

    fn to_write<'a>(&'a self, vector: &'a [u8]) -> (&'a [u8], &'a [u8]) {
        let Some(piece) = self.sending else {
            return (&[], &[]);
        };
        let head = self.out_head.get(self.out_done..).unwrap_or_default();
        let body = self.out_done.saturating_sub(HEAD_BYTES);
        let body = self.bytes(piece, vector).get(body..);
        (head, body.unwrap_or_default())
    }

    fn wrote(&mut self, count: usize) {
        let Some(piece) = self.sending else {
            return;
        };
        self.out_done = self.out_done.saturating_add(count);
        let bytes = self.ring.place(piece.number()).len();
        if self.out_done < HEAD_BYTES.saturating_add(bytes) {
            return;
        }
        self.sending = None;
        match piece {
            Piece::Sum(_) => self.sums_out = self.sums_out.saturating_add(1),
            Piece::Part | Piece::Partial(_) => {
                self.partials_out = self.partials_out.saturating_add(1);
            }
        }
    }

    fn room<'a>(
        &'a mut self,
        staging: &'a mut [u8],
        vector: &'a mut [u8],
    ) -> (&'a mut [u8], &'a mut [u8]) {
        if self.all_came() {
            return (&mut [], &mut []);
        }
        let Some((piece, _)) = self.receiving else {
            let head = self.in_head.get_mut(self.in_done..);
            return (head.unwrap_or_default(), &mut []);
        };
        let place = self.ring.place(piece.number());
        let room = match piece {
            Piece::Sum(_) => vector.get_mut(place),
            Piece::Part | Piece::Partial(_) => staging.get_mut(..place.len()),
        };
        let rest = room.and_then(|room| room.get_mut(self.in_done..));
        (&mut [], rest.unwrap_or_default())
    }

    fn read(&mut self, count: usize, staging: &[u8], vector: &mut [u8]) -> Result<(), Cause> {
        let Some((piece, said)) = self.receiving else {
            self.in_done = self.in_done.saturating_add(count);
            if self.in_done >= HEAD_BYTES {
                self.receiving = Some(self.judge()?);
                self.in_done = 0;
                self.in_crc = 0;
            }
            return Ok(());
        };
        let place = self.ring.place(piece.number());
        let from = self.in_done;
        self.in_done = from.saturating_add(count).min(place.len());
        let room = match piece {
            Piece::Sum(_) => vector.get(place.clone()),
            Piece::Part | Piece::Partial(_) => staging.get(..place.len()),
        };
        let room = room.unwrap_or_default();
        if said.is_some() {
            // Summed while the bytes are in the cache.
            let fresh = room.get(from..self.in_done).unwrap_or_default();
            self.in_crc = crc32c::crc32c_append(self.in_crc, fresh);
        }
        if self.in_done < place.len() {
            return Ok(());
        }
        if let Some(said) = said.filter(|said| *said != self.in_crc) {
            return Err(Cause::Frame(FrameError::PayloadCrc {
                kind: self.kind,
                said,
                computed: self.in_crc,
            }));
        }
        self.receiving = None;
        self.in_done = 0;
        match piece {
            Piece::Sum(_) => self.sums_in = self.sums_in.saturating_add(1),
            Piece::Part | Piece::Partial(_) => {
                let before = staging.get(..place.len()).unwrap_or_default();
                add_before(vector.get_mut(place).unwrap_or_default(), before);
                self.partials_in = self.partials_in.saturating_add(1);
            }
        }
        Ok(())
    }

    /// Compares a header with the two that may come: the next partial and the next sum.
    fn judge(&self) -> Result<(Piece, Option<u32>), Cause> {
        let head = Head::decode(&self.in_head).map_err(Cause::Frame)?;
        let fits = match head.piece {
            Piece::Part => false,
            Piece::Partial(piece) => piece == self.partials_in && piece < self.ring.partials_in(),
            // Its place is free once the partial has gone on.
            Piece::Sum(piece) => {
                piece == self.sums_in && piece < self.ring.sums_in() && piece < self.partials_out
            }
        };
        let bytes = self.ring.place(head.piece.number()).len();
        let want = Head::gate(self.gate, self.seq, head.piece, bytes, head.payload_crc);
        let checked = head.payload_crc.is_some() == self.checked;
        if fits && checked && want == Some(head) {
            Ok((head.piece, head.payload_crc))
        } else {
            Err(Cause::Desync {
                want: (self.gate, self.seq),
                got: describe(&head),
            })
        }
    }
}

impl Session {
    /// The way that all ranks take for a gate of so many bytes.
    #[must_use]
    pub fn way(&self, bytes: usize) -> Way {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        self.hello.ways.choose(self.ranks(), bytes)
    }

    /// Begins a gate whose sum travels round the ring of all ranks: `vector` holds the own part, and
    /// the sum when the gate is done. The sequence number comes back.
    ///
    /// # Errors
    /// As [`Session::gate_begin`].
    pub fn ring_begin(&mut self, now: Time, gate: Gate, vector: &[u8]) -> Result<u64, TpError> {
        let seq = self.check_begin(gate, vector.len())?;
        let ways = &self.hello.ways;
        let ring = Ring::new(ways, self.config.rank, self.ranks(), vector.len())
            .filter(|_| self.config.dialect == Dialect::Native);
        let head = Head::gate(gate, seq, Piece::Part, vector.len(), None);
        let (ring, head) = ring
            .zip(head)
            .ok_or_else(|| self.misuse(format!("{gate} cannot go round a ring")))?;
        let piece_bytes = ring.place(0).len();
        if self.staging.len() < piece_bytes {
            self.staging.resize(piece_bytes, 0);
        }
        let checked = self.config.identity.payload_crc;
        let mut round = RingGate::new(ring, gate, seq, head.kind, checked);
        round.limit_ns = self.gate_limit_ns(vector.len());
        // The leader knows of every rank whether it lives: its word comes before the others' guess.
        let grace_ns = if self.config.rank == 0 {
            0
        } else {
            round.limit_ns / 4
        };
        let due = now.after(round.limit_ns).after(grace_ns);
        round.load(vector);
        self.round = Some(round);
        self.enter_gate(now, gate, seq, due);
        Ok(seq)
    }

    /// What to write now and to whom: the rest of a header, then the rest of a piece. Both in one
    /// vectored write; both empty when nothing is there to be sent.
    #[must_use]
    pub fn ring_to_write<'a>(&'a self, vector: &'a [u8]) -> Option<(u32, &'a [u8], &'a [u8])> {
        let round = self.round.as_ref()?;
        let (head, body) = round.to_write(vector);
        Some((round.ring.next(), head, body))
    }

    /// So many bytes of it were written.
    pub fn ring_wrote(&mut self, count: usize, vector: &[u8]) -> GateState {
        if let Some(round) = &mut self.round {
            round.wrote(count);
            round.load(vector);
        }
        self.settle_gate()
    }

    /// What to read now and from whom: the rest of a header, or the rest of a piece.
    pub fn ring_to_read<'a>(
        &'a mut self,
        vector: &'a mut [u8],
    ) -> Option<(u32, &'a mut [u8], &'a mut [u8])> {
        let round = self.round.as_mut()?;
        let before = round.ring.before();
        let (head, body) = round.room(&mut self.staging, vector);
        Some((before, head, body))
    }

    /// So many bytes of it were read.
    ///
    /// # Errors
    /// A piece is not one of this gate or is damaged, and the session has ended: what lies in
    /// `vector` is worthless.
    pub fn ring_read(
        &mut self,
        now: Time,
        count: usize,
        vector: &mut [u8],
    ) -> Result<GateState, TpError> {
        if let Some(error) = &self.error {
            return Err(error.clone());
        }
        let Some(round) = &mut self.round else {
            return Ok(GateState::Done);
        };
        let before = round.ring.before();
        match round.read(count, &self.staging, vector) {
            Ok(()) => {
                round.load(vector);
                Ok(self.settle_gate())
            }
            Err(cause) => Err(self.fail_gate(now, before, cause)),
        }
    }
}

#[cfg(test)]
#[path = "ring_tests.rs"]
mod tests;
