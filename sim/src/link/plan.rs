//! What happens in a run, as data.

use ds4_engine::tp::exchange::SumLimits;
use ds4_engine::tp::trust::Channel;

/// What happens to a segment: what one write put on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkFaultKind {
    /// It never arrives.
    Drop,
    /// It arrives twice.
    Duplicate,
    /// It arrives behind the next one.
    Reorder,
    /// One of its bits is flipped.
    Corrupt {
        /// Which, counted over the whole segment and beyond.
        bit: u32,
    },
    /// It is late, and all that follow are.
    Delay {
        /// By so many nanoseconds.
        ns: u64,
    },
    /// Half of it arrives, then the connection breaks.
    Cut,
    /// It and everything after it are lost, while the connection looks open.
    Stall,
    /// The connection breaks before it.
    Break,
}

impl LinkFaultKind {
    /// What it does, in words.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Drop => "a segment was lost",
            Self::Duplicate => "a segment came twice",
            Self::Reorder => "two segments were swapped",
            Self::Corrupt { .. } => "a bit was flipped",
            Self::Delay { .. } => "a connection was late",
            Self::Cut => "a connection broke inside a segment",
            Self::Stall => "a connection fell silent",
            Self::Break => "a connection broke",
        }
    }
}

/// A fault of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkFault {
    /// Who writes.
    pub from: u32,
    /// Who reads.
    pub to: u32,
    /// On which connection.
    pub channel: Channel,
    /// Which of the segments in this direction, counted from 0; the handshake's come first.
    pub segment: u64,
    /// What happens.
    pub kind: LinkFaultKind,
}

/// What happens to a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RankFaultKind {
    /// It is gone; its connections break.
    Kill,
    /// It stands still for so many nanoseconds; its connections stay.
    Stop {
        /// How long.
        ns: u64,
    },
}

impl RankFaultKind {
    /// What it does, in words.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kill => "a rank was killed",
            Self::Stop { .. } => "a rank stood still",
        }
    }
}

/// A fault of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankFault {
    /// Which rank.
    pub rank: u32,
    /// Before which of its steps; a step is one look at its connections.
    pub step: u64,
    /// What happens.
    pub kind: RankFaultKind,
}

/// A run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkPlan {
    /// The source of every choice that the plan does not name.
    pub seed: u64,
    /// Ranks of the group.
    pub ranks: u32,
    /// Layers of the model.
    pub n_layer: u32,
    /// Numbers in a hidden vector.
    pub n_embd: u32,
    /// Tokens to run, one by one; batches and a prompt come on top.
    pub tokens: u32,
    /// The longest segment, in bytes.
    pub segment_bytes: usize,
    /// The least time from a write to its arrival, in nanoseconds.
    pub latency_ns: u64,
    /// The most that is added to it.
    pub jitter_ns: u64,
    /// Whether payloads of gates carry checksums.
    pub payload_crc: bool,
    /// Which sums go straight and which round a ring, and in which pieces.
    pub ways: SumLimits,
    /// Whether the ranks' clocks differ in start and speed.
    pub skewed_clocks: bool,
    /// Faults of connections.
    pub link_faults: Vec<LinkFault>,
    /// Faults of ranks.
    pub rank_faults: Vec<RankFault>,
}

impl LinkPlan {
    /// A run without faults.
    #[must_use]
    pub fn quiet(seed: u64, ranks: u32) -> Self {
        Self {
            seed,
            ranks,
            n_layer: 2,
            n_embd: 16,
            tokens: 2,
            segment_bytes: 256,
            latency_ns: 10_000,
            jitter_ns: 5_000,
            payload_crc: true,
            // Single vectors go straight, batches and prompts round.
            ways: SumLimits {
                one_shot_bytes_max: 64 * ranks.saturating_sub(1),
                piece_bytes: 48,
            },
            skewed_clocks: false,
            link_faults: Vec::new(),
            rank_faults: Vec::new(),
        }
    }

    /// The run of a seed: sizes, times and faults are drawn.
    #[must_use]
    pub fn random(seed: u64) -> Self {
        let mut draw = Draw::new(seed);
        let ranks = match draw.below(16) {
            0..=7 => 2,
            8..=11 => 3,
            12..=14 => 4,
            _ => 5 + draw.small(4),
        };
        let mut plan = Self {
            n_layer: 1 + draw.small(3),
            n_embd: 1 + draw.small(40),
            tokens: 1 + draw.small(3),
            segment_bytes: [7, 64, 300, 4096]
                .get(usize::try_from(draw.below(4)).unwrap_or(0))
                .copied()
                .unwrap_or(64),
            latency_ns: 1_000 + draw.below(50_000),
            jitter_ns: 1 + draw.below(100_000),
            skewed_clocks: draw.below(2) == 0,
            ..Self::quiet(seed, ranks)
        };
        // From everything round to everything straight.
        plan.ways.one_shot_bytes_max = draw.small(3) * 500 * (ranks - 1);
        plan.ways.piece_bytes = 4 + 4 * draw.small(60);
        // Some runs have none, most have one, few have several at once.
        let faults = match draw.below(8) {
            0 => 0,
            1..=5 => 1,
            more => more - 4,
        };
        for _ in 0..faults {
            plan.draw_fault(&mut draw);
        }
        plan
    }

    fn draw_fault(&mut self, draw: &mut Draw) {
        let rank = draw.small(self.ranks);
        if draw.below(4) == 0 {
            let kind = if draw.below(2) == 0 {
                RankFaultKind::Kill
            } else {
                RankFaultKind::Stop {
                    ns: draw.below(2_000_000_000),
                }
            };
            // Steps that the run never reaches make it a run without this fault.
            let step = draw.below(200);
            self.rank_faults.push(RankFault { rank, step, kind });
            return;
        }
        let channel = if draw.below(3) == 0 {
            Channel::Control
        } else {
            Channel::Data
        };
        // Control connections go to and from the leader.
        let other = (rank + 1 + draw.small(self.ranks - 1)) % self.ranks;
        let to = match channel {
            Channel::Control if rank != 0 => 0,
            Channel::Control | Channel::Data => other,
        };
        let kind = match draw.below(8) {
            0 => LinkFaultKind::Drop,
            1 => LinkFaultKind::Duplicate,
            2 => LinkFaultKind::Reorder,
            3 => LinkFaultKind::Corrupt {
                bit: draw.small(10_000),
            },
            4 => LinkFaultKind::Delay {
                ns: draw.below(1_000_000_000),
            },
            5 => LinkFaultKind::Cut,
            6 => LinkFaultKind::Stall,
            _ => LinkFaultKind::Break,
        };
        let segment = draw.below(60);
        self.link_faults.push(LinkFault {
            from: rank,
            to,
            channel,
            segment,
            kind,
        });
    }
}

/// Numbers from a seed (SplitMix64, by Vigna).
#[derive(Clone, Debug)]
pub(crate) struct Draw(u64);

impl Draw {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `limit`, or 0.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next().checked_rem(limit).unwrap_or(0)
    }

    pub(super) fn small(&mut self, limit: u32) -> u32 {
        u32::try_from(self.below(u64::from(limit))).unwrap_or(0)
    }

    pub(super) fn bytes<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.next().to_le_bytes()[0])
    }
}
