//! How a sum over N ranks travels, as lists of steps.
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

/// Beyond so many bytes out of each rank, the ring is taken.
const ONE_SHOT_BYTES_MAX: u64 = 512 << 10;
/// A piece of the ring: large enough to be worth a message, small enough for all links to be busy.
const PIECE_BYTES: u64 = 64 << 10;

/// The way of a sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// Everybody to everybody.
    OneShot,
    /// From neighbour to neighbour.
    Ring,
}

/// The way for a vector of `bytes` bytes: every rank computes the same.
#[must_use]
pub const fn choose(ranks: u32, bytes: u64) -> Way {
    let others = ranks.saturating_sub(1) as u64;
    // Two ranks are each other's only neighbours: a ring would only add a hop.
    if ranks <= 2 || bytes.saturating_mul(others) <= ONE_SHOT_BYTES_MAX {
        Way::OneShot
    } else {
        Way::Ring
    }
}

/// What a rank does with a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Send the own part.
    SendOwn,
    /// Send the sum so far: of the ranks up to this one.
    SendPartial,
    /// Send the whole sum.
    SendSum,
    /// Receive a rank's own part and keep it for the sum.
    ReceivePart,
    /// Receive the sum so far and add the own part to it.
    ReceivePartial,
    /// Receive the whole sum.
    ReceiveSum,
}

impl Action {
    /// Whether bytes leave the rank.
    #[must_use]
    pub const fn sends(self) -> bool {
        matches!(self, Self::SendOwn | Self::SendPartial | Self::SendSum)
    }
}

/// One step of one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Step {
    /// The other rank.
    pub peer: u32,
    /// The number of the piece, as in its header.
    pub piece: u16,
    /// Where the piece begins, in bytes.
    pub offset: u64,
    /// Its length.
    pub bytes: u64,
    /// What to do.
    pub action: Action,
}

/// The steps of a sum, for every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    ranks: u32,
    bytes: u64,
    way: Way,
    piece_bytes: u64,
}

impl Plan {
    /// The plan of a vector; the way is chosen by its size.
    #[must_use]
    pub fn new(ranks: u32, bytes: u64) -> Self {
        Self::by(choose(ranks, bytes), ranks, bytes)
    }

    /// The plan of a vector by a given way.
    #[must_use]
    pub fn by(way: Way, ranks: u32, bytes: u64) -> Self {
        let least = bytes.div_ceil(u64::from(u16::MAX));
        let piece_bytes = match way {
            Way::OneShot => bytes,
            // Whole numbers only, and no more pieces than their numbers can count.
            Way::Ring => PIECE_BYTES.max(least.next_multiple_of(4)),
        };
        Self {
            ranks,
            bytes,
            way,
            piece_bytes: piece_bytes.max(1),
        }
    }

    /// Its way.
    #[must_use]
    pub const fn way(&self) -> Way {
        self.way
    }

    /// The steps of one rank. Sends and receipts of the same peer happen in this order; a send
    /// follows the receipt of what it sends, and else nobody waits for anybody.
    #[must_use]
    pub fn steps(&self, rank: u32) -> Vec<Step> {
        if self.ranks < 2 || rank >= self.ranks || self.bytes == 0 {
            return Vec::new();
        }
        match self.way {
            Way::OneShot => self.one_shot(rank),
            Way::Ring => self
                .pieces()
                .flat_map(|(piece, place)| self.ring(rank, piece, &place))
                .collect(),
        }
    }

    fn pieces(&self) -> impl Iterator<Item = (u16, Range<u64>)> + use<> {
        let (whole, piece) = (self.bytes, self.piece_bytes);
        (0_u16..=u16::MAX)
            .map(move |number| {
                let start = u64::from(number).saturating_mul(piece);
                (number, start..start.saturating_add(piece).min(whole))
            })
            .take_while(|(_, place)| !place.is_empty())
    }

    fn one_shot(&self, rank: u32) -> Vec<Step> {
        let step = |peer, action| Step {
            peer,
            piece: 0,
            offset: 0,
            bytes: self.bytes,
            action,
        };
        let peers = (0..self.ranks).filter(|peer| *peer != rank);
        let sends = peers.clone().map(|peer| step(peer, Action::SendOwn));
        sends
            .chain(peers.map(|peer| step(peer, Action::ReceivePart)))
            .collect()
    }

    fn ring(&self, rank: u32, piece: u16, place: &Range<u64>) -> Vec<Step> {
        let last = self.ranks.saturating_sub(1);
        let next = if rank == last {
            0
        } else {
            rank.saturating_add(1)
        };
        let before = rank.checked_sub(1).unwrap_or(last);
        let step = |peer, action| Step {
            peer,
            piece,
            offset: place.start,
            bytes: place.end.saturating_sub(place.start),
            action,
        };
        let mut steps = Vec::with_capacity(4);
        if rank > 0 {
            steps.push(step(before, Action::ReceivePartial));
        }
        if rank == 0 {
            steps.push(step(next, Action::SendOwn));
        } else if rank < last {
            steps.push(step(next, Action::SendPartial));
        }
        if rank == last {
            steps.push(step(next, Action::SendSum));
        } else {
            steps.push(step(before, Action::ReceiveSum));
            // The rank before the last is the last to get it.
            if next != last {
                steps.push(step(next, Action::SendSum));
            }
        }
        steps
    }
}

#[cfg(test)]
#[path = "exchange_tests.rs"]
mod tests;
