//! A small generator of numbers, equal on every machine.

/// splitmix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators").
#[derive(Clone, Debug)]
pub(super) struct Rng(u64);

impl Rng {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The generator of part `index` of a run with `seed`.
    pub(super) fn part(seed: u64, index: u64) -> Self {
        let mut rng = Self::new(seed ^ index.wrapping_mul(0xD6E8_FEB8_6659_FD93));
        rng.next();
        rng
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `end`; 0 when `end` is 0.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.next().checked_rem(end).unwrap_or(0)
    }

    /// True `percent` times out of 100.
    pub(super) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// A size from 1 to `most` whose logarithm is spread evenly.
    pub(super) fn size(&mut self, most: u64) -> u64 {
        let bits = u64::from(u64::BITS - most.max(1).leading_zeros());
        let top = 1_u64 << self.below(bits);
        (top + self.below(top)).min(most.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_is_the_published_splitmix64() {
        // The first outputs of the reference implementation for seed 1234567.
        let mut rng = Rng::new(1_234_567);
        let first: Vec<u64> = (0..3).map(|_| rng.next()).collect();
        let published = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
        ];
        assert_eq!(first, published);
    }

    #[test]
    fn sizes_stay_in_their_range() {
        let mut rng = Rng::new(1);
        for most in [1, 2, 3, 1000, 1 << 40] {
            for _ in 0..200 {
                assert!((1..=most).contains(&rng.size(most)));
            }
        }
    }
}
