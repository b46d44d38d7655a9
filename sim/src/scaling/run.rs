//! The same all-reduce message by message, on virtual time.
//!
//! Nothing is computed from the number of ranks: ranks send, ports are busy, messages arrive, and a
//! sum says which ranks are in it. A sum is a run of neighbouring ranks, so a vector added twice,
//! left out or added in another order than the algorithm's is found where it happens.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;

use super::{Algorithm, Link, Step};

/// What a run came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// When the last rank had the sum, in picoseconds.
    pub ps: u64,
    /// Messages sent.
    pub messages: u64,
}

/// A sum that is not what the algorithm promises: a fault of this module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrongSum {
    /// The rank that found it.
    pub rank: u16,
}

impl fmt::Display for WrongSum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "rank {} got a sum that lacks a rank, or has one twice or out of order",
            self.rank
        )
    }
}

impl std::error::Error for WrongSum {}

/// Passes every message of one all-reduce of `bytes` and looks at every rank's sum.
///
/// # Errors
/// [`WrongSum`] if a rank ends with another sum than that of all ranks.
pub fn simulate(
    link: &Link,
    algorithm: Algorithm,
    ranks: u16,
    bytes: u64,
) -> Result<Run, WrongSum> {
    if ranks < 2 {
        return Ok(Run { ps: 0, messages: 0 });
    }
    let step = link.step(algorithm.message_bytes(ranks, bytes));
    let mut wires = Wires::new(step, ranks);
    let end = match algorithm {
        Algorithm::OneShot => one_shot(&mut wires)?,
        Algorithm::Ring => ring(&mut wires)?,
        Algorithm::Tree => tree(&mut wires)?,
    };
    Ok(Run {
        ps: link.once_ps.saturating_add(end),
        messages: wires.sent,
    })
}

/// The sum of `count` neighbouring ranks from `first` on, round the end if need be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Sum {
    first: u16,
    count: u16,
}

impl Sum {
    fn of(rank: u16) -> Self {
        Self {
            first: rank,
            count: 1,
        }
    }

    /// This sum and then `next`, if `next` begins where this one ends and both fit into `ranks`.
    fn and(self, next: Self, ranks: u16) -> Option<Self> {
        let count = self.count + next.count;
        let adjoins = (self.first + self.count) % ranks == next.first;
        (adjoins && count <= ranks).then_some(Self { count, ..self })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Message {
    /// When its first byte is at the receiver's port.
    head_ps: u64,
    to: u16,
    from: u16,
    /// The step of the algorithm that it belongs to.
    step: u16,
    sum: Sum,
}

/// Ports and what is under way between them.
struct Wires {
    step: Step,
    ranks: u16,
    out_free: Vec<u64>,
    in_free: Vec<u64>,
    flying: BinaryHeap<Reverse<Message>>,
    sent: u64,
}

impl Wires {
    fn new(step: Step, ranks: u16) -> Self {
        Self {
            step,
            ranks,
            out_free: vec![0; usize::from(ranks)],
            in_free: vec![0; usize::from(ranks)],
            flying: BinaryHeap::new(),
            sent: 0,
        }
    }

    fn send(&mut self, at_ps: u64, from: u16, to: u16, step: u16, sum: Sum) {
        let mut start = at_ps;
        if let Some(free) = self.out_free.get_mut(usize::from(from)) {
            start = start.max(*free);
            *free = start.saturating_add(self.step.occupied_ps());
        }
        let head_ps = start
            .saturating_add(self.step.gap_ps)
            .saturating_add(self.step.latency_ps);
        self.sent += 1;
        self.flying.push(Reverse(Message {
            head_ps,
            to,
            from,
            step,
            sum,
        }));
    }

    /// The next message to reach a port, and when its last byte is there.
    fn receive(&mut self) -> Option<(Message, u64)> {
        let Reverse(message) = self.flying.pop()?;
        let mut end = message.head_ps;
        if let Some(free) = self.in_free.get_mut(usize::from(message.to)) {
            end = end.max(*free).saturating_add(self.step.wire_ps);
            *free = end;
        }
        Some((message, end))
    }

    fn whole(&self, rank: u16, sum: Option<Sum>) -> Result<(), WrongSum> {
        let all = sum.is_some_and(|sum| sum.count == self.ranks);
        all.then_some(()).ok_or(WrongSum { rank })
    }
}

/// Rank r sends to r + 1, r + 2 and so on, so that no port has two senders at a time.
fn one_shot(wires: &mut Wires) -> Result<u64, WrongSum> {
    let ranks = wires.ranks;
    let mut got: Vec<Vec<Option<Sum>>> = vec![vec![None; usize::from(ranks)]; usize::from(ranks)];
    for rank in 0..ranks {
        wires.send(0, rank, (rank + 1) % ranks, 1, Sum::of(rank));
    }
    let mut last = 0;
    while let Some((message, end)) = wires.receive() {
        let Message { to, from, step, .. } = message;
        last = last.max(end);
        let slot = got
            .get_mut(usize::from(to))
            .and_then(|row| row.get_mut(usize::from(from)));
        if slot.and_then(|slot| slot.replace(message.sum)).is_some() {
            return Err(WrongSum { rank: to });
        }
        if step + 1 < ranks {
            let next = (from + step + 1) % ranks;
            wires.send(0, from, next, step + 1, Sum::of(from));
        }
    }
    for (rank, row) in (0..ranks).zip(&mut got) {
        if let Some(own) = row.get_mut(usize::from(rank)) {
            *own = Some(Sum::of(rank));
        }
        let mut sum = row.first().copied().flatten();
        for part in row.iter().skip(1) {
            sum = sum.zip(*part).and_then(|(sum, part)| sum.and(part, ranks));
        }
        wires.whole(rank, sum)?;
    }
    let adds = u64::from(ranks - 1).saturating_mul(wires.step.add_ps);
    Ok(last.saturating_add(adds))
}

/// In step s rank r sends piece r − s to r + 1; from step N − 1 on the pieces are whole.
fn ring(wires: &mut Wires) -> Result<u64, WrongSum> {
    let ranks = wires.ranks;
    let mut whole = vec![1_u16; usize::from(ranks)];
    for rank in 0..ranks {
        wires.send(0, rank, (rank + 1) % ranks, 0, Sum::of(rank));
    }
    let mut last = 0;
    while let Some((message, end)) = wires.receive() {
        let Message { to, step, sum, .. } = message;
        let reducing = step + 1 < ranks;
        let (sum, ready) = if reducing {
            let added = sum.and(Sum::of(to), ranks).ok_or(WrongSum { rank: to })?;
            (added, end.saturating_add(wires.step.add_ps))
        } else {
            wires.whole(to, Some(sum))?;
            if let Some(pieces) = whole.get_mut(usize::from(to)) {
                *pieces += 1;
            }
            (sum, end)
        };
        last = last.max(ready);
        if step + 3 < 2 * ranks {
            wires.send(ready, to, (to + 1) % ranks, step + 1, sum);
        }
    }
    match (0..ranks).zip(&whole).find(|(_, pieces)| **pieces != ranks) {
        Some((rank, _)) => Err(WrongSum { rank }),
        None => Ok(last),
    }
}

/// What a rank of a tree waits for: its branches, by the level at which they join.
#[derive(Clone, Debug, Default)]
struct Branches {
    arrived: Vec<Option<(u64, Sum)>>,
}

/// Step 0 goes towards rank 0, step 1 away from it.
fn tree(wires: &mut Wires) -> Result<u64, WrongSum> {
    let ranks = wires.ranks;
    let mut waiting: Vec<Branches> = (0..ranks)
        .map(|rank| Branches {
            arrived: vec![None; children(rank, ranks).count()],
        })
        .collect();
    for rank in (0..ranks).filter(|rank| children(*rank, ranks).next().is_none()) {
        wires.send(0, rank, parent(rank), 0, Sum::of(rank));
    }
    let (mut last, mut have) = (0, 0_u16);
    while let Some((message, end)) = wires.receive() {
        let Message {
            to,
            from,
            step,
            sum,
            ..
        } = message;
        if step == 1 {
            wires.whole(to, Some(sum))?;
            (last, have) = (last.max(end), have + 1);
            pass_down(wires, to, end, sum);
            continue;
        }
        let Some(branches) = waiting.get_mut(usize::from(to)) else {
            return Err(WrongSum { rank: to });
        };
        let place = children(to, ranks).position(|child| child == from);
        let slot = place.and_then(|place| branches.arrived.get_mut(place));
        if slot.and_then(|slot| slot.replace((end, sum))).is_some() {
            return Err(WrongSum { rank: to });
        }
        if branches.arrived.iter().any(Option::is_none) {
            continue;
        }
        let (mut ready, mut total) = (0_u64, Sum::of(to));
        for (arrival, part) in branches.arrived.iter().flatten() {
            total = total.and(*part, ranks).ok_or(WrongSum { rank: to })?;
            ready = ready.max(*arrival).saturating_add(wires.step.add_ps);
        }
        if to > 0 {
            wires.send(ready, to, parent(to), 0, total);
            continue;
        }
        wires.whole(to, Some(total))?;
        (last, have) = (last.max(ready), have + 1);
        pass_down(wires, to, ready, total);
    }
    if have == ranks {
        Ok(last)
    } else {
        Err(WrongSum { rank: 0 })
    }
}

fn pass_down(wires: &mut Wires, rank: u16, at_ps: u64, sum: Sum) {
    let mut below: Vec<u16> = children(rank, wires.ranks).collect();
    below.reverse();
    for child in below {
        wires.send(at_ps, rank, child, 1, sum);
    }
}

/// The ranks that send to `rank`: rank + 1, rank + 2, rank + 4 … below its own lowest bit.
fn children(rank: u16, ranks: u16) -> impl Iterator<Item = u16> {
    let levels = if rank == 0 { 15 } else { rank.trailing_zeros() };
    (0..levels)
        .map(move |level| rank + (1 << level))
        .filter(move |child| *child < ranks)
}

/// `rank` without its lowest bit.
fn parent(rank: u16) -> u16 {
    rank & rank.wrapping_sub(1)
}
