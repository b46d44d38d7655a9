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
/// The word of a link that holds the sequence of the gate that failed.
const FAILED_WORD: usize = 5;
/// Where the abort word lies in a link: set it to anything but 0 to end a wait.
pub const ABORT_OFFSET_BYTES: u64 = 32;

const PACKET_BYTES: u64 = 128 << 10;
const FLAG_BYTES: u64 = 128 * PART_BLOCKS as u64;

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
}

impl GateFailure {
    /// What a link's first 128 bytes say; `None` while nothing failed.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; 128]) -> Option<Self> {
        let (words, _) = bytes.as_chunks();
        let mut words = words
            .iter()
            .map(|word| u64::from_le_bytes(*word))
            .skip(FAILED_WORD);
        let mut low = || words.next().map_or(0, low_bits);
        let (sequence, reason, seen) = (low(), low(), low());
        (sequence != 0).then_some(Self {
            sequence,
            aborted: reason == 2,
            seen,
        })
    }
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
    }
}
