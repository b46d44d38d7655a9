//! Times in buckets: as many as wanted in the same memory.

/// Bits of a time that are kept: a bucket is at most 1/128 wide.
const BITS: u32 = 7;
const BUCKETS: usize = 64 << BITS;

/// How often each time was measured.
#[derive(Clone, Debug)]
pub struct Histogram {
    counts: Vec<u64>,
    n: u64,
    least: u64,
    most: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            counts: vec![0; BUCKETS],
            n: 0,
            least: u64::MAX,
            most: 0,
        }
    }
}

impl Histogram {
    /// Counts one time.
    pub fn add(&mut self, ns: u64) {
        if let Some(count) = self.counts.get_mut(bucket(ns)) {
            *count += 1;
        }
        self.n += 1;
        self.least = self.least.min(ns);
        self.most = self.most.max(ns);
    }

    /// How many were counted.
    #[must_use]
    pub const fn n(&self) -> u64 {
        self.n
    }

    /// The least; 0 if there is none.
    #[must_use]
    pub const fn min(&self) -> u64 {
        if self.n == 0 { 0 } else { self.least }
    }

    /// The most.
    #[must_use]
    pub const fn max(&self) -> u64 {
        self.most
    }

    /// The time that so many of a thousand do not exceed, rounded down by less than 1 %.
    #[must_use]
    pub fn permille(&self, permille: u64) -> u64 {
        let rank = (self.n * permille).div_ceil(1000).max(1);
        let mut seen = 0;
        for (index, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return floor(index).clamp(self.min(), self.most);
            }
        }
        self.most
    }
}

fn bucket(ns: u64) -> usize {
    let shift = (64 - BITS - 1).saturating_sub(ns.leading_zeros());
    let index = (u64::from(shift) << BITS) + (ns >> shift);
    usize::try_from(index).unwrap_or(usize::MAX)
}

fn floor(index: usize) -> u64 {
    let index = index as u64;
    match (index >> BITS).checked_sub(1) {
        Some(shift) if shift > 0 => ((index & ((1 << BITS) - 1)) | 1 << BITS) << shift,
        _ => index,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_lies_less_than_a_hundredth_above_its_bucket() {
        for ns in (0..5_000).chain([1 << 20, (1 << 40) + 12_345, u64::MAX / 3, u64::MAX]) {
            let low = floor(bucket(ns));
            assert!(bucket(ns) < BUCKETS, "{ns}");
            assert!(low <= ns && (ns - low) <= ns / 100, "{ns} {low}");
        }
    }

    #[test]
    fn quantiles_are_those_of_the_sorted_times() {
        let mut times = Histogram::default();
        for ns in 1..=1000 {
            times.add(ns * 10);
        }
        assert_eq!((times.n(), times.min(), times.max()), (1000, 10, 10_000));
        for (permille, want) in [(500, 5000), (990, 9900), (999, 9990), (1000, 10_000)] {
            let got = times.permille(permille);
            assert!(got <= want && want - got <= want / 100, "{permille} {got}");
        }
    }
}
