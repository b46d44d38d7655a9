//! How a sum over N ranks travels.
//!
//! *One-shot*: every rank sends its vector to every other and sums all of them. One hop, (N − 1)
//! vectors out of each rank: best for small ones.
//!
//! *Ring*: the vector is cut into pieces. Each piece goes from rank 0 to rank N − 1 and every rank
//! adds its own part on the way; the last one has the sum, which goes on round the ring until the
//! rank before it has it. At most two vectors leave each rank, over two neighbours, and the pieces
//! follow each other: best for large ones.
//!
//! Both sum in the order of the ranks ([`super::reduce`]), so that the way changes no bit.

use std::ops::Range;

/// The way of a sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// Everybody to everybody.
    OneShot,
    /// From neighbour to neighbour.
    Ring,
}

/// By what all ranks choose the same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SumLimits {
    /// The most bytes that leave a rank in one shot; beyond, the ring is taken.
    pub one_shot_bytes_max: u32,
    /// Bytes of a ring's piece, a multiple of 4: large enough to be worth a message, small enough
    /// for all links to be busy.
    pub piece_bytes: u32,
}

impl Default for SumLimits {
    /// Where each rank has a core of its own the two ways cross between 384 and 900 KiB out of each
    /// rank, with four and eight ranks, through shared memory and over TCP (measured,
    /// `golden/hardware/README.md`): hops count, of which a ring has 2 (N − 1). Where ranks share
    /// cores the ring is the quicker way sooner.
    fn default() -> Self {
        Self {
            one_shot_bytes_max: 512 << 10,
            piece_bytes: 64 << 10,
        }
    }
}

impl SumLimits {
    /// The way for a vector of `bytes` bytes.
    #[must_use]
    pub fn choose(&self, ranks: u32, bytes: u64) -> Way {
        let others = u64::from(ranks.saturating_sub(1));
        // Two ranks are each other's only neighbours: a ring would only add a hop.
        if ranks <= 2 || bytes.saturating_mul(others) <= u64::from(self.one_shot_bytes_max) {
            Way::OneShot
        } else {
            Way::Ring
        }
    }
}

/// One rank's place in the ring, and what passes there.
///
/// Partial sums go from rank 0 to the last, whole sums from the last over rank 0 to the rank before
/// it. Both kinds of pieces pass in order, each kind in its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ring {
    rank: u32,
    last: u32,
    bytes: usize,
    piece_bytes: usize,
}

impl Ring {
    /// The place of `rank` when `ranks` ranks sum vectors of `bytes` bytes; none when there is no
    /// such rank, or more pieces than 16 bits can number.
    #[must_use]
    pub fn new(ways: &SumLimits, rank: u32, ranks: u32, bytes: usize) -> Option<Self> {
        let ring = Self {
            rank,
            last: ranks
                .checked_sub(1)
                .filter(|last| rank <= *last && *last > 0)?,
            bytes,
            piece_bytes: usize::try_from(ways.piece_bytes).ok()?.max(4) & !3,
        };
        u16::try_from(bytes.div_ceil(ring.piece_bytes)).ok()?;
        Some(ring)
    }

    /// Who gets what this rank sends.
    #[must_use]
    pub const fn next(&self) -> u32 {
        if self.rank >= self.last {
            0
        } else {
            self.rank.saturating_add(1)
        }
    }

    /// From whom this rank gets everything.
    #[must_use]
    pub const fn before(&self) -> u32 {
        match self.rank.checked_sub(1) {
            Some(before) => before,
            None => self.last,
        }
    }

    /// How many pieces the vector has.
    #[must_use]
    pub fn pieces(&self) -> u16 {
        u16::try_from(self.bytes.div_ceil(self.piece_bytes)).unwrap_or(u16::MAX)
    }

    /// Where a piece lies in the vector.
    #[must_use]
    pub fn place(&self, piece: u16) -> Range<usize> {
        let start = usize::from(piece).saturating_mul(self.piece_bytes);
        start.min(self.bytes)..start.saturating_add(self.piece_bytes).min(self.bytes)
    }

    /// Partial sums that come here; the first rank has its own alone.
    #[must_use]
    pub fn partials_in(&self) -> u16 {
        self.pieces_if(self.rank > 0)
    }

    /// Partial sums that go on; the last rank's are the whole ones.
    #[must_use]
    pub fn partials_out(&self) -> u16 {
        self.pieces_if(self.rank < self.last)
    }

    /// Whole sums that come here.
    #[must_use]
    pub fn sums_in(&self) -> u16 {
        self.pieces_if(self.rank < self.last)
    }

    /// Whole sums that go on; the last rank made them.
    #[must_use]
    pub fn sums_out(&self) -> u16 {
        self.pieces_if(self.next() != self.last)
    }

    fn pieces_if(&self, pass: bool) -> u16 {
        if pass { self.pieces() } else { 0 }
    }
}

#[cfg(test)]
#[path = "exchange_tests.rs"]
mod tests;
