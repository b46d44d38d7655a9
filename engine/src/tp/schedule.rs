//! Which gates a token, a batch or a prompt passes, in which order and with which sequence numbers.
//!
//! A *slot* is a place of the slab: `2 · layer + gate`. A schedule names the slots that one token
//! passes: `start`, `start + step`, … , `per_token` of them. Row gates are numbered from 1 on over
//! the whole session; batch and big gates share a second count. Every rank computes the same.

use std::fmt;

use super::slab::{BATCH_ROWS_MAX, GATES_PER_LAYER};

/// The most layers of a session: a header gives the layer 16 bits.
pub const LAYERS_MAX: u32 = 65_535;

/// The place in a layer where partial results are exchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GateName {
    /// Behind the attention block.
    Attention,
    /// Behind the feed-forward block.
    FeedForward,
}

impl GateName {
    /// Its number in slots and headers.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Attention => 0,
            Self::FeedForward => 1,
        }
    }

    /// The gate of a number.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::Attention),
            1 => Some(Self::FeedForward),
            _ => None,
        }
    }
}

impl fmt::Display for GateName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Attention => "attn",
            Self::FeedForward => "ffn",
        })
    }
}

/// What a gate carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GateKind {
    /// One vector.
    Row,
    /// From 1 to 8 vectors.
    Batch {
        /// How many.
        rows: u32,
    },
    /// Any number of bytes, outside the slab.
    Big {
        /// How many.
        bytes: u64,
    },
}

/// One gate: the same on every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Gate {
    /// The layer, from 0 on.
    pub layer: u32,
    /// Where in the layer.
    pub name: GateName,
    /// What it carries.
    pub kind: GateKind,
}

impl fmt::Display for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "layer {} gate {}", self.layer, self.name)?;
        match self.kind {
            GateKind::Row => Ok(()),
            GateKind::Batch { rows } => write!(f, ", {rows} rows"),
            GateKind::Big { bytes } => write!(f, ", {bytes} bytes"),
        }
    }
}

/// Why a schedule is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScheduleError {
    /// No layer, or more than [`LAYERS_MAX`].
    Layers(u32),
    /// A token would pass no gate.
    Empty,
    /// A gate lies outside the slab.
    OutOfRange {
        /// The last slot that the schedule names.
        last_slot: u64,
        /// How many slots there are.
        slots: u32,
    },
}

impl fmt::Display for ScheduleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Layers(layers) => {
                write!(
                    f,
                    "{layers} layers: a session has from 1 to {LAYERS_MAX} of them"
                )
            }
            Self::Empty => f.write_str("a token would pass no gate"),
            Self::OutOfRange { last_slot, slots } => write!(
                f,
                "the gate schedule reaches slot {last_slot}, the slab has {slots}"
            ),
        }
    }
}

impl std::error::Error for ScheduleError {}

/// The slots that a token passes, in order.
///
/// ```
/// use ds4_engine::tp::schedule::Schedule;
///
/// let glm = Schedule::new(79, 7, 2, 75)?;
/// assert_eq!((glm.slot(1), glm.slot(75), glm.slot(76)), (7, 155, 7));
/// # Ok::<(), ds4_engine::tp::schedule::ScheduleError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Schedule {
    n_layer: u32,
    start: u32,
    step: u32,
    per_token: u32,
}

impl Schedule {
    /// Both gates of every layer, as DeepSeek's models have them.
    ///
    /// # Errors
    /// [`ScheduleError::Layers`].
    pub fn every_gate(n_layer: u32) -> Result<Self, ScheduleError> {
        let per_token = n_layer
            .checked_mul(GATES_PER_LAYER)
            .ok_or(ScheduleError::Layers(n_layer))?;
        Self::new(n_layer, 0, 1, per_token)
    }

    /// `per_token` slots from `start` on, `step` apart.
    ///
    /// # Errors
    /// [`ScheduleError`], by what is wrong with the numbers.
    pub fn new(n_layer: u32, start: u32, step: u32, per_token: u32) -> Result<Self, ScheduleError> {
        if !(1..=LAYERS_MAX).contains(&n_layer) {
            return Err(ScheduleError::Layers(n_layer));
        }
        let before_last = per_token.checked_sub(1).ok_or(ScheduleError::Empty)?;
        let slots = n_layer.saturating_mul(GATES_PER_LAYER);
        // Below 2^64: a u32 and a product of two.
        let last_slot = u64::from(start) + u64::from(before_last) * u64::from(step);
        if last_slot >= u64::from(slots) {
            return Err(ScheduleError::OutOfRange { last_slot, slots });
        }
        Ok(Self {
            n_layer,
            start,
            step,
            per_token,
        })
    }

    /// Layers of the model.
    #[must_use]
    pub const fn n_layer(&self) -> u32 {
        self.n_layer
    }

    /// The first slot.
    #[must_use]
    pub const fn start(&self) -> u32 {
        self.start
    }

    /// From one slot to the next.
    #[must_use]
    pub const fn step(&self) -> u32 {
        self.step
    }

    /// Gates that one token passes.
    #[must_use]
    pub const fn per_token(&self) -> u32 {
        self.per_token
    }

    /// The slot of the row gate with a sequence number; they count from 1, and 0 is taken as 1.
    #[must_use]
    pub fn slot(&self, seq: u64) -> u32 {
        let ordinal = seq.saturating_sub(1) % u64::from(self.per_token);
        // Below `per_token`, and the schedule was checked to stay inside the slots.
        let ordinal = u32::try_from(ordinal).unwrap_or(0);
        self.start.saturating_add(ordinal.saturating_mul(self.step))
    }

    /// The layer and gate of the row gate with a sequence number.
    #[must_use]
    pub fn row_gate(&self, seq: u64) -> Gate {
        self.at(self.slot(seq), GateKind::Row)
    }

    /// The gates of one piece of work, in order: none for a piece without rows or bytes.
    ///
    /// A batch of more than eight rows passes each place several times, eight rows at a time.
    pub fn gates(&self, work: Work) -> impl Iterator<Item = Gate> + use<> {
        let this = *self;
        let passes = work.passes();
        (0..this.per_token).flat_map(move |ordinal| {
            let slot = this.start.saturating_add(ordinal.saturating_mul(this.step));
            (0..passes).map(move |pass| this.at(slot, work.kind(pass)))
        })
    }

    fn at(&self, slot: u32, kind: GateKind) -> Gate {
        let name = if slot.is_multiple_of(GATES_PER_LAYER) {
            GateName::Attention
        } else {
            GateName::FeedForward
        };
        Gate {
            layer: slot / GATES_PER_LAYER,
            name,
            kind,
        }
    }
}

/// One piece of work between two commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// One token of one session.
    Token,
    /// One token of each of several sessions, or the drafts of one.
    Batch {
        /// How many rows.
        rows: u32,
    },
    /// A prompt, or a part of one.
    Prompt {
        /// Bytes of all its vectors.
        bytes: u64,
    },
}

impl Work {
    fn passes(self) -> u32 {
        match self {
            Self::Token => 1,
            Self::Batch { rows } => rows.div_ceil(BATCH_ROWS_MAX),
            Self::Prompt { bytes } => u32::from(bytes > 0),
        }
    }

    fn kind(self, pass: u32) -> GateKind {
        match self {
            Self::Token => GateKind::Row,
            Self::Batch { rows } => GateKind::Batch {
                rows: rows
                    .saturating_sub(pass.saturating_mul(BATCH_ROWS_MAX))
                    .min(BATCH_ROWS_MAX),
            },
            Self::Prompt { bytes } => GateKind::Big { bytes },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sequence_numbers_fall_on_the_references_slots() {
        let flash = Schedule::every_gate(43).unwrap();
        for (seq, slot) in [(1, 0), (86, 85), (87, 0)] {
            assert_eq!(flash.slot(seq), slot);
        }
        let glm = Schedule::new(79, 7, 2, 75).unwrap();
        for (seq, slot) in [(1, 7), (75, 155), (76, 7)] {
            assert_eq!(glm.slot(seq), slot);
        }
        let gate = glm.row_gate(75);
        assert_eq!((gate.layer, gate.name), (77, GateName::FeedForward));
    }

    #[test]
    fn schedules_that_leave_the_slab_are_refused() {
        assert_eq!(Schedule::new(2, 0, 1, 0), Err(ScheduleError::Empty));
        assert_eq!(
            Schedule::every_gate(65_536),
            Err(ScheduleError::Layers(65_536))
        );
        assert!(Schedule::every_gate(u32::MAX).is_err());
        // The reference accepts this one.
        let far = Schedule::new(2, 4_000_000, 77, 9);
        assert!(matches!(far, Err(ScheduleError::OutOfRange { .. })));
        assert!(Schedule::new(1, u32::MAX, u32::MAX, u32::MAX).is_err());
    }

    #[test]
    fn a_batch_of_more_than_eight_rows_passes_each_place_again() {
        let schedule = Schedule::every_gate(1).unwrap();
        let rows: Vec<GateKind> = schedule
            .gates(Work::Batch { rows: 10 })
            .map(|gate| gate.kind)
            .collect();
        let (eight, two) = (GateKind::Batch { rows: 8 }, GateKind::Batch { rows: 2 });
        assert_eq!(rows, [eight, two, eight, two]);
        assert_eq!(schedule.gates(Work::Batch { rows: 0 }).count(), 0);
        assert_eq!(schedule.gates(Work::Prompt { bytes: 0 }).count(), 0);
        assert_eq!(schedule.gates(Work::Prompt { bytes: 9 }).count(), 2);
    }

    proptest! {
        #[test]
        fn a_tokens_gates_are_those_of_its_sequence_numbers(
            n_layer in 1_u32..90, start in 0_u32..8, step in 0_u32..4, per_token in 1_u32..99, token in 0_u64..9,
        ) {
            let Ok(schedule) = Schedule::new(n_layer, start, step, per_token) else { return Ok(()) };
            let first = token * u64::from(per_token) + 1;
            for (seq, gate) in (first..).zip(schedule.gates(Work::Token)) {
                prop_assert_eq!(schedule.row_gate(seq), gate);
                prop_assert!(gate.layer < n_layer);
            }
        }

        #[test]
        fn no_numbers_panic(n_layer: u32, start: u32, step: u32, per_token: u32, seq: u64) {
            if let Ok(schedule) = Schedule::new(n_layer, start, step, per_token) {
                prop_assert!(schedule.slot(seq) < n_layer * 2);
            }
        }
    }
}
