//! Patterns that memory is written with and checked against.

use crate::checksum::mix;

/// What the 64-bit word at each position should hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Its own position: shows address lines that are stuck or crossed.
    OwnAddress,
    /// `word` and, at odd positions, its complement: with both, every bit is seen as 0 and as 1.
    MovingInversion {
        /// The word at even positions.
        word: u64,
    },
    /// A random number made from seed and position: any part can be checked by itself.
    Random {
        /// The seed.
        seed: u64,
    },
}

/// The first word that does not hold what it should.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// Its position, in words of 8 bytes.
    pub position: u64,
    /// What it should hold.
    pub expected: u64,
    /// What it holds.
    pub found: u64,
}

/// What is wrong with a range, in the form of the kernel's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tally {
    /// The least wrong position; `u64::MAX` when all is right.
    pub least_position: u64,
    /// How many words are wrong.
    pub wrong_words: u64,
}

impl Tally {
    /// Nothing is wrong yet.
    pub const CLEAN: Self = Self {
        least_position: u64::MAX,
        wrong_words: 0,
    };

    /// What is wrong with two ranges.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            least_position: self.least_position.min(other.least_position),
            wrong_words: self.wrong_words.wrapping_add(other.wrong_words),
        }
    }
}

impl Pattern {
    /// The kind and the word by which a kernel is told the pattern.
    pub(crate) const fn code(self) -> (u64, u64) {
        match self {
            Self::OwnAddress => (0, 0),
            Self::MovingInversion { word } => (1, word),
            Self::Random { seed } => (2, seed),
        }
    }

    /// The pattern of a kind and a word.
    pub(crate) const fn from_code(kind: u64, word: u64) -> Option<Self> {
        match kind {
            0 => Some(Self::OwnAddress),
            1 => Some(Self::MovingInversion { word }),
            2 => Some(Self::Random { seed: word }),
            _ => None,
        }
    }

    /// The word at a position, counted in words of 8 bytes.
    #[must_use]
    pub fn word(self, position: u64) -> u64 {
        match self {
            Self::OwnAddress => position,
            Self::MovingInversion { word } if position.is_multiple_of(2) => word,
            Self::MovingInversion { word } => !word,
            Self::Random { seed } => mix(seed ^ mix(position)),
        }
    }

    /// Writes the words from `first_position` on, little-endian; after `u64::MAX` comes 0.
    pub fn write(self, memory: &mut [[u8; 8]], first_position: u64) {
        for (word, position) in memory.iter_mut().zip(positions(first_position)) {
            *word = self.word(position).to_le_bytes();
        }
    }

    /// Checks the words from `first_position` on.
    ///
    /// # Errors
    /// The first [`Mismatch`].
    pub fn check(self, memory: &[[u8; 8]], first_position: u64) -> Result<(), Mismatch> {
        self.mismatches(memory, first_position)
            .next()
            .map_or(Ok(()), Err)
    }

    /// Checks all words from `first_position` on, as the kernel reports them.
    #[must_use]
    pub fn tally(self, memory: &[[u8; 8]], first_position: u64) -> Tally {
        self.mismatches(memory, first_position)
            .map(|wrong| Tally {
                least_position: wrong.position,
                wrong_words: 1,
            })
            .fold(Tally::CLEAN, Tally::and)
    }

    fn mismatches(
        self,
        memory: &[[u8; 8]],
        first_position: u64,
    ) -> impl Iterator<Item = Mismatch> + '_ {
        let words = memory.iter().zip(positions(first_position));
        words.filter_map(move |(bytes, position)| {
            let (expected, found) = (self.word(position), u64::from_le_bytes(*bytes));
            (found != expected).then_some(Mismatch {
                position,
                expected,
                found,
            })
        })
    }
}

/// Ascending positions; after `u64::MAX` comes 0.
fn positions(first: u64) -> impl Iterator<Item = u64> {
    (0_u64..).map(move |number| first.wrapping_add(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATTERNS: [Pattern; 3] = [
        Pattern::OwnAddress,
        Pattern::MovingInversion {
            word: 0x00FF_00FF_00FF_00FF,
        },
        Pattern::Random { seed: 7 },
    ];

    #[test]
    fn what_a_pattern_writes_it_accepts_from_any_position() {
        for pattern in PATTERNS {
            let mut memory = [[0xA5; 8]; 100];
            pattern.write(&mut memory, 1000);
            assert_eq!(pattern.check(&memory, 1000), Ok(()));
            assert_eq!(pattern.check(&memory[30..], 1030), Ok(()));
        }
    }

    #[test]
    fn every_flipped_bit_is_found_where_it_is() {
        for pattern in PATTERNS {
            let mut memory = [[0; 8]; 4];
            pattern.write(&mut memory, 0);
            for bit in 0..4 * 64 {
                memory[bit / 64][bit / 8 % 8] ^= 1 << (bit % 8);
                let found = pattern.check(&memory, 0).unwrap_err();
                assert_eq!(found.position, bit as u64 / 64);
                assert_eq!((found.expected ^ found.found).count_ones(), 1);
                memory[bit / 64][bit / 8 % 8] ^= 1 << (bit % 8);
            }
        }
    }

    #[test]
    fn a_tally_counts_all_wrong_words_and_keeps_the_least_position() {
        for pattern in PATTERNS {
            let mut memory = [[0; 8]; 9];
            pattern.write(&mut memory, u64::MAX - 3);
            assert_eq!(pattern.tally(&memory, u64::MAX - 3), Tally::CLEAN);
            memory[1][0] ^= 1;
            memory[6][7] ^= 1;
            let wrong = Tally {
                least_position: 2,
                wrong_words: 2,
            };
            assert_eq!(pattern.tally(&memory, u64::MAX - 3), wrong);
            let parts = pattern.tally(&memory[..3], u64::MAX - 3);
            assert_eq!(parts.least_position, u64::MAX - 2);
            assert_eq!(parts.and(pattern.tally(&memory[3..], u64::MAX)), wrong);
        }
    }
}
