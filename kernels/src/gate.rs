//! What two devices share while their ranks pass gates: the memory that the kernels of
//! `kernels/device/gate.cu` work on.
//!
//! Each device has a *link*, which its own kernels read, and a *landing*, where the peer's kernels
//! write. A gate's sequence is counted in the link, by block, so that a graph of gates can be
//! replayed; both ranks launch the same gates with the same sizes.

/// Blocks of every launch of packets: few enough that a gate of 16 KiB takes one store a thread.
pub const PACKET_BLOCKS: u32 = 8;
/// Threads of a block of packets.
pub const PACKET_THREADS: u32 = 256;
/// The most bytes of a gate of packets; on the way they take twice as many.
pub const PACKET_GATE_BYTES: u64 = PACKET_BYTES / 2;
/// Blocks of every launch of parts.
pub const PART_BLOCKS: u32 = 128;
/// Threads of a block of parts.
pub const PART_THREADS: u32 = 512;

/// The size of a link, in bytes; it begins at a multiple of 128.
pub const LINK_BYTES: u64 =
    LINK_HEAD_BYTES + SEQUENCE_BYTES * (PACKET_BLOCKS as u64 + PART_BLOCKS as u64);
/// What a link says before its sequences, in bytes.
const LINK_HEAD_BYTES: u64 = 128;
/// A block's sequence, on a sector of its own.
const SEQUENCE_BYTES: u64 = 32;
/// The reason of a wait that was ended from outside.
const ABORTED: u32 = 2;
/// Where the abort word lies in a link: set it to anything but 0 to end a wait.
pub const ABORT_OFFSET_BYTES: u64 = 32;
/// Where a link says which gate failed, and why.
pub const FAILURE_OFFSET_BYTES: u64 = 40;

const PACKET_BYTES: u64 = 128 << 10;
const FLAG_BYTES: u64 = FLAG_STEP_BYTES * PART_BLOCKS as u64;
const FLAG_STEP_BYTES: u64 = 128;

/// The size of a landing for gates of at most `gate_bytes` bytes; `None` if it is no size.
#[must_use]
pub const fn landing_bytes(gate_bytes: u64) -> Option<u64> {
    match part_bytes(gate_bytes).checked_mul(2) {
        Some(parts) => parts.checked_add(2 * (PACKET_BYTES + FLAG_BYTES)),
        None => None,
    }
}

/// The distance of the two places where parts land, in bytes.
#[must_use]
pub const fn part_bytes(gate_bytes: u64) -> u64 {
    gate_bytes.saturating_add(255) & !255
}

/// What a link says at first: sequences of 0, and nothing failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GateLink {
    /// The address of the own landing.
    pub own: u64,
    /// The address of the peer's landing.
    pub peer: u64,
    /// 0 or 1.
    pub rank: u32,
    /// The longest wait of a gate, in nanoseconds.
    pub deadline_ns: u64,
}

/// How the bytes of a gate travel, and what is kept of it: the reference of the kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateForm {
    /// Every float with the gate's sequence behind it.
    Packets,
    /// The floats as they are, and a flag for each block once its floats have arrived.
    Parts {
        /// The distance of the two places where parts land, as [`part_bytes`].
        part_bytes: u64,
    },
}

impl GateForm {
    /// Where a gate's floats land: an offset into the landing, in bytes, and how many there are for
    /// `bytes` bytes of floats.
    #[must_use]
    pub const fn place(self, sequence: u32, bytes: u64) -> (u64, u64) {
        let turn = sequence as u64 % 2;
        match self {
            Self::Packets => (turn * PACKET_BYTES, bytes.saturating_mul(2)),
            Self::Parts { part_bytes } => (
                2 * (PACKET_BYTES + FLAG_BYTES) + turn.saturating_mul(part_bytes),
                bytes,
            ),
        }
    }

    /// Where the flags land, in the order of the blocks: offsets into the landing, in bytes.
    pub fn flags(self, sequence: u32) -> impl Iterator<Item = u64> {
        let blocks = match self {
            Self::Packets => 0,
            Self::Parts { .. } => u64::from(PART_BLOCKS),
        };
        let first = 2 * PACKET_BYTES + u64::from(sequence % 2) * FLAG_BYTES;
        (0..blocks).map(move |block| first + block * FLAG_STEP_BYTES)
    }

    /// Where the blocks keep the sequence of their last gate: offsets into the link, in bytes.
    pub fn sequences(self) -> impl Iterator<Item = u64> {
        let (before, blocks) = match self {
            Self::Packets => (0, PACKET_BLOCKS),
            Self::Parts { .. } => (u64::from(PACKET_BLOCKS), PART_BLOCKS),
        };
        let first = LINK_HEAD_BYTES + before * SEQUENCE_BYTES;
        (0..u64::from(blocks)).map(move |block| first + block * SEQUENCE_BYTES)
    }

    /// The bytes that travel for these floats.
    #[must_use]
    pub fn pack(self, floats: &[[u8; 4]], sequence: u32) -> Vec<u8> {
        match self {
            Self::Packets => floats
                .iter()
                .flat_map(|float| [*float, sequence.to_le_bytes()])
                .flatten()
                .collect(),
            Self::Parts { .. } => floats.as_flattened().to_vec(),
        }
    }

    /// The floats in what has arrived.
    ///
    /// # Errors
    /// The sequence of the first packet that is of another gate.
    pub fn unpack(self, arrived: &[u8], sequence: u32) -> Result<Vec<[u8; 4]>, u32> {
        match self {
            Self::Packets => {
                let (words, _) = arrived.as_chunks();
                let (packets, _) = words.as_chunks();
                packets
                    .iter()
                    .map(|[float, mark]| match u32::from_le_bytes(*mark) {
                        mark if mark == sequence => Ok(*float),
                        other => Err(other),
                    })
                    .collect()
            }
            Self::Parts { .. } => Ok(arrived.as_chunks().0.to_vec()),
        }
    }
}

/// The sequence after `sequence`: never 0, which is what fresh memory holds.
#[must_use]
pub const fn next_sequence(sequence: u32) -> u32 {
    match sequence.wrapping_add(1) {
        0 => 1,
        next => next,
    }
}

/// Why a kernel gave a gate up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GateFailure {
    /// The number of the gate since the link was made, from 1 on; after 2^32 − 1 comes 1.
    pub sequence: u32,
    /// Whether the wait was ended from outside; else it was the deadline.
    pub aborted: bool,
    /// The sequence that lay in place of the one waited for.
    pub seen: u32,
}

impl GateLink {
    /// The bytes of the link.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let words = [self.own, self.peer, u64::from(self.rank), self.deadline_ns];
        let mut bytes: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
        bytes.resize(usize::try_from(LINK_BYTES).unwrap_or(0), 0);
        bytes
    }

    /// What a link's first 128 bytes say.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; 128]) -> Self {
        let [own, peer, rank, deadline_ns, ..] = words(bytes);
        Self {
            own,
            peer,
            rank: low_bits(rank),
            deadline_ns,
        }
    }
}

impl GateFailure {
    /// What a link's first 128 bytes say; `None` while nothing failed.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; 128]) -> Option<Self> {
        let [_, _, _, _, _, sequence, reason, seen, ..] = words(bytes).map(low_bits);
        (sequence != 0).then_some(Self {
            sequence,
            aborted: reason == ABORTED,
            seen,
        })
    }

    /// The words that say so, from [`FAILURE_OFFSET_BYTES`] of a link on.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; 24] {
        let reason = if self.aborted { ABORTED } else { 1 };
        let mut bytes = [0; 24];
        let words = [self.sequence, reason, self.seen].map(u64::from);
        for (to, from) in bytes.as_chunks_mut().0.iter_mut().zip(words) {
            *to = from.to_le_bytes();
        }
        bytes
    }
}

fn words(bytes: &[u8; 128]) -> [u64; 16] {
    let mut words = [0; 16];
    for (to, from) in words.iter_mut().zip(bytes.as_chunks().0) {
        *to = u64::from_le_bytes(*from);
    }
    words
}

fn low_bits(word: u64) -> u32 {
    let [a, b, c, d, ..] = word.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A number that `gate.cu` defines.
    fn defined(name: &str) -> u64 {
        let source = include_str!("../device/gate.cu");
        let line = source
            .lines()
            .find_map(|line| line.strip_prefix(&format!("#define {name} ")))
            .unwrap();
        match line.trim_matches(['(', ')']).split_once(" << ") {
            Some((value, shift)) => value.parse::<u64>().unwrap() << shift.parse::<u32>().unwrap(),
            None => line.parse().unwrap(),
        }
    }

    #[test]
    fn sizes_are_those_of_the_kernels() {
        assert_eq!(defined("GATE_PACKET_BLOCKS"), u64::from(PACKET_BLOCKS));
        assert_eq!(defined("GATE_PACKET_BYTES"), PACKET_BYTES);
        assert_eq!(defined("GATE_PART_BLOCKS"), u64::from(PART_BLOCKS));
        assert_eq!(defined("PACKET_SEQUENCES"), LINK_HEAD_BYTES);
        let source = include_str!("../device/gate.cu");
        for line in [
            "#define PART_SEQUENCES (PACKET_SEQUENCES + 32 * GATE_PACKET_BLOCKS)",
            "#define FLAGS (2 * GATE_PACKET_BYTES)",
            "#define FLAG_BYTES (128 * GATE_PART_BLOCKS)",
            "#define PARTS (FLAGS + 2 * FLAG_BYTES)",
        ] {
            assert!(source.contains(line), "{line}");
        }
        assert_eq!(landing_bytes(u64::MAX), None);
        assert_eq!(
            landing_bytes(1),
            Some(2 * (PACKET_BYTES + FLAG_BYTES + 256))
        );
    }

    #[test]
    fn a_fresh_link_has_failed_at_nothing_and_a_failure_is_read_back() {
        let link = GateLink {
            own: 1 << 40,
            peer: 2 << 40,
            rank: 1,
            deadline_ns: 9,
        };
        let mut bytes = *link.to_bytes().first_chunk().unwrap();
        assert_eq!(GateFailure::from_bytes(&bytes), None);
        bytes[40] = 7;
        bytes[48] = 2;
        bytes[56] = 5;
        let failure = GateFailure {
            sequence: 7,
            aborted: true,
            seen: 5,
        };
        assert_eq!(GateFailure::from_bytes(&bytes), Some(failure));
        assert_eq!(failure.to_bytes(), bytes[40..64]);
        assert_eq!(GateLink::from_bytes(&bytes), link);
    }

    #[test]
    fn no_two_places_of_a_link_or_landing_share_bytes() {
        let gate_bytes = 1 << 20;
        let forms = [
            GateForm::Packets,
            GateForm::Parts {
                part_bytes: part_bytes(gate_bytes),
            },
        ];
        let mut landing = Vec::new();
        let mut link = vec![(0, LINK_HEAD_BYTES)];
        for form in forms {
            link.extend(form.sequences().map(|at| (at, at + 4)));
            for sequence in [1, 2] {
                let bytes = if form == GateForm::Packets {
                    PACKET_GATE_BYTES
                } else {
                    gate_bytes
                };
                let (at, length) = form.place(sequence, bytes);
                landing.push((at, at + length));
                landing.extend(form.flags(sequence).map(|at| (at, at + 4)));
            }
        }
        for (mut places, end) in [
            (landing, landing_bytes(gate_bytes).unwrap()),
            (link, LINK_BYTES),
        ] {
            places.sort_unstable();
            assert!(
                places.windows(2).all(|pair| pair[0].1 <= pair[1].0),
                "{places:?}"
            );
            assert!(places.last().unwrap().1 <= end);
        }
    }

    #[test]
    fn packets_of_another_gate_are_told_from_those_that_are_waited_for() {
        let floats = [[1, 2, 3, 4], [5, 6, 7, 8]];
        let arrived = GateForm::Packets.pack(&floats, 9);
        assert_eq!(arrived.len(), 16);
        assert_eq!(GateForm::Packets.unpack(&arrived, 9), Ok(floats.to_vec()));
        assert_eq!(GateForm::Packets.unpack(&arrived, 11), Err(9));
        assert_eq!([0, 1, u32::MAX].map(next_sequence), [1, 2, 1]);
    }
}
