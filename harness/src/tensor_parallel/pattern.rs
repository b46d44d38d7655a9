//! Partial sums that anybody can compute: every rank knows what every other sends.
//!
//! The numbers are whole and below 2^18, so that the sum of 32 ranks is exact in 32-bit floats,
//! whichever way it is computed.

/// What tells the gates of a run apart.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// How many gates there were before it.
    pub gate: u64,
}

impl Place {
    /// The vector of a rank.
    pub(super) fn fill(self, rank: u32, into: &mut [u8]) {
        let seed = self.seed(rank);
        let (words, _) = into.as_chunks_mut::<4>();
        for (index, word) in (0..).zip(words) {
            *word = number(value(seed, index)).to_le_bytes();
        }
    }

    /// Whether a sum is the one of all ranks' vectors; else where it differs first.
    pub(super) fn check(self, ranks: u32, sum: &[u8]) -> Result<(), Wrong> {
        let seeds: Vec<u64> = (0..ranks).map(|rank| self.seed(rank)).collect();
        let (words, _) = sum.as_chunks::<4>();
        for (index, word) in (0..).zip(words) {
            let want: u32 = seeds.iter().map(|seed| value(*seed, index)).sum();
            let got = f32::from_le_bytes(*word);
            if got.to_bits() != number(want).to_bits() {
                return Err(Wrong {
                    index,
                    want: number(want),
                    got,
                });
            }
        }
        Ok(())
    }

    const fn seed(self, rank: u32) -> u64 {
        mix((self.gate ^ 0x5bd1_e995).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ mix(rank as u64 + 1))
    }
}

/// A number that is not what it must be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Wrong {
    /// Its place in the vector.
    pub index: u64,
    /// What it must be.
    pub want: f32,
    /// What it is.
    pub got: f32,
}

const fn value(seed: u64, index: u64) -> u32 {
    // The top 18 bits; the conversion cannot cut.
    (mix(seed.wrapping_add(index.wrapping_mul(0x9e37_79b9_7f4a_7c15))) >> 46) as u32
}

#[expect(
    clippy::cast_precision_loss,
    reason = "whole numbers below 2^23 are exact"
)]
const fn number(value: u32) -> f32 {
    value as f32
}

const fn mix(word: u64) -> u64 {
    let word = (word ^ word >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    word ^ word >> 29
}

#[cfg(test)]
mod tests {
    use super::*;
    use ds4_engine::tp::reduce::sum_in_order;

    #[test]
    fn the_sum_of_all_ranks_is_accepted_and_a_flipped_bit_is_found() {
        let place = Place { gate: 77 };
        for ranks in [2, 3, 32] {
            let parts: Vec<Vec<u8>> = (0..ranks)
                .map(|rank| {
                    let mut part = vec![0; 400];
                    place.fill(rank, &mut part);
                    part
                })
                .collect();
            assert_ne!(parts[0], parts[1]);
            let mut sum = vec![0; 400];
            sum_in_order(&mut sum, parts.iter().map(Vec::as_slice));
            assert_eq!(place.check(ranks, &sum), Ok(()));
            sum[41] ^= 1;
            assert_eq!(place.check(ranks, &sum).unwrap_err().index, 10);
            assert!(Place { gate: 78 }.check(ranks, &sum).is_err());
        }
    }
}
