//! One direction of a connection.

use std::collections::VecDeque;

use super::plan::{Draw, LinkFaultKind};

/// Bytes on their way.
#[derive(Debug)]
pub(super) struct Pipe {
    faults: Vec<(u64, LinkFaultKind)>,
    draw: Draw,
    latency_ns: u64,
    jitter_ns: u64,
    segment_bytes: usize,
    segments: u64,
    flying: VecDeque<(u64, Vec<u8>)>,
    /// A segment that waits for the next one to pass it.
    held: Option<Vec<u8>>,
    late_ns: u64,
    last_arrival: u64,
    stalled: bool,
    /// When the reader sees the end.
    broken_at: Option<u64>,
    /// When a fault last did something.
    pub(super) struck_at: Option<u64>,
    /// The faults that did something.
    pub(super) struck: Vec<LinkFaultKind>,
}

impl Pipe {
    pub(super) fn new(
        draw: Draw,
        latency_ns: u64,
        jitter_ns: u64,
        segment_bytes: usize,
        faults: Vec<(u64, LinkFaultKind)>,
    ) -> Self {
        Self {
            faults,
            draw,
            latency_ns,
            jitter_ns,
            segment_bytes: segment_bytes.max(1),
            segments: 0,
            flying: VecDeque::new(),
            held: None,
            late_ns: 0,
            last_arrival: 0,
            stalled: false,
            broken_at: None,
            struck_at: None,
            struck: Vec::new(),
        }
    }

    /// Takes bytes from the writer: as many as one segment has.
    pub(super) fn write(&mut self, now: u64, bytes: &[u8]) -> usize {
        let mut segment = bytes[..bytes.len().min(self.segment_bytes)].to_vec();
        let taken = segment.len();
        if taken == 0 || self.broken_at.is_some() {
            return taken;
        }
        let number = self.segments;
        self.segments += 1;
        let fault = self.faults.iter().find(|(at, _)| *at == number);
        let fault = fault.map(|(_, kind)| *kind);
        self.struck.extend(fault);
        if fault.is_some() || self.stalled || self.late_ns > 0 {
            self.struck_at = Some(now);
        }
        if self.stalled {
            return taken;
        }
        match fault {
            None => {}
            Some(LinkFaultKind::Drop) => return taken,
            Some(LinkFaultKind::Duplicate) => self.fly(now, segment.clone()),
            Some(LinkFaultKind::Reorder) => {
                self.held = Some(segment);
                return taken;
            }
            Some(LinkFaultKind::Corrupt { bit }) => {
                let bit = bit as usize % (taken * 8);
                segment[bit / 8] ^= 1 << (bit % 8);
            }
            Some(LinkFaultKind::Delay { ns }) => self.late_ns = ns,
            Some(LinkFaultKind::Cut) => {
                segment.truncate(taken / 2);
                self.fly(now, segment);
                self.close(now);
                return taken;
            }
            Some(LinkFaultKind::Stall) => {
                self.stalled = true;
                return taken;
            }
            Some(LinkFaultKind::Break) => {
                self.close(now);
                return taken;
            }
        }
        self.fly(now, segment);
        if let Some(held) = self.held.take() {
            self.fly(now, held);
        }
        taken
    }

    /// The writer has gone; what is on its way arrives still.
    pub(super) fn close(&mut self, now: u64) {
        if self.stalled || self.broken_at.is_some() {
            return;
        }
        self.broken_at = Some(self.arrival(now));
    }

    /// Moves what has arrived into `buffer`.
    pub(super) fn read(&mut self, now: u64, buffer: &mut [u8]) -> usize {
        let Some((arrives, segment)) = self.flying.front_mut() else {
            return 0;
        };
        if *arrives > now {
            return 0;
        }
        let count = segment.len().min(buffer.len());
        buffer[..count].copy_from_slice(&segment[..count]);
        segment.drain(..count);
        if segment.is_empty() {
            self.flying.pop_front();
        }
        count
    }

    /// Whether the reader sees the end.
    pub(super) fn ended(&self, now: u64) -> bool {
        self.flying.is_empty() && self.broken_at.is_some_and(|at| now >= at)
    }

    /// When something arrives next, after `now`.
    pub(super) fn next_arrival(&self, now: u64) -> Option<u64> {
        let bytes = self.flying.front().map(|(at, _)| *at);
        bytes.or(self.broken_at).filter(|at| *at > now)
    }

    fn fly(&mut self, now: u64, segment: Vec<u8>) {
        if segment.is_empty() {
            return;
        }
        let arrives = self.arrival(now);
        self.flying.push_back((arrives, segment));
    }

    /// Segments arrive in the order in which they fly.
    fn arrival(&mut self, now: u64) -> u64 {
        let jitter = self.draw.below(self.jitter_ns);
        let arrives = now + self.latency_ns + jitter + self.late_ns;
        self.last_arrival = self.last_arrival.max(arrives);
        self.last_arrival
    }
}
