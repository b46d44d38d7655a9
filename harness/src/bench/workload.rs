//! The operation lists that benches run: pure functions of a seed, in integers only, so that every
//! machine runs the same operations.

use ds4_engine::bytes::{GIB, KIB, MIB};

/// Sizes are counted as multiples of this many bytes, as every allocator measured here rounds.
pub const GRAIN_BYTES: u64 = 256;

/// The splitmix64 generator.
#[derive(Clone, Debug)]
pub struct SplitMix64(u64);

/// `2^(2^-k)` for k from 1 to 16, as 32-bit fixed point.
const ROOTS: [u64; 16] = [
    0x1_6a09_e668,
    0x1_306f_e0a3,
    0x1_172b_83c8,
    0x1_0b55_86d0,
    0x1_059b_0d31,
    0x1_02c9_a3e7,
    0x1_0163_daa0,
    0x1_00b1_afa6,
    0x1_0058_c86e,
    0x1_002c_605e,
    0x1_0016_2f39,
    0x1_000b_175f,
    0x1_0005_8ba0,
    0x1_0002_c5cc,
    0x1_0001_62e5,
    0x1_0000_b172,
];

impl SplitMix64 {
    /// A generator whose whole output follows from `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// A number below `end`; 0 when `end` is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        // The high half of a 128-bit product is below `end`, so it fits.
        u64::try_from((u128::from(self.next_u64()) * u128::from(end)) >> 64).unwrap_or(0)
    }

    /// A size between `1 << low` and `1 << high` bytes, every octave equally likely.
    pub fn log_uniform(&mut self, low: u32, high: u32) -> u64 {
        let octaves = u64::from(high.saturating_sub(low));
        let exponent = self.below(octaves << 16);
        let mut mantissa: u64 = 1 << 32;
        for (k, root) in ROOTS.iter().enumerate() {
            if exponent & (1 << (15 - k)) != 0 {
                mantissa = (mantissa * (root >> 2)) >> 30;
            }
        }
        (((1_u64 << low) << (exponent >> 16)) * (mantissa >> 12)) >> 20
    }
}

/// One step. A slot names a block; it is empty before an allocation and after a free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Asks for `bytes` and keeps what comes in `slot`.
    Allocate {
        /// Where the block is kept.
        slot: u32,
        /// How many bytes.
        bytes: u64,
    },
    /// Gives back what is in `slot`, if anything is.
    Free {
        /// Where the block is kept.
        slot: u32,
    },
}

/// A list of operations with what a runner must know about it.
#[derive(Clone, Debug)]
pub struct Workload {
    /// The name under which results are listed.
    pub name: String,
    /// Done once and not timed.
    pub setup: Vec<Op>,
    /// What is timed.
    pub ops: Vec<Op>,
    /// How many slots the operations name.
    pub slots: usize,
    /// The most bytes live at once, each block rounded up to [`GRAIN_BYTES`].
    pub peak_live_bytes: u64,
    /// The operations leave the same slots full as they found: they repeat without emptying.
    pub cyclic: bool,
    /// Every timed request is meant to be refused.
    pub refuses: bool,
}

#[derive(Debug, Default)]
struct Script {
    ops: Vec<Op>,
    vacant: Vec<u32>,
    live: Vec<(u32, u64)>,
    slots: u32,
    live_bytes: u64,
    peak_bytes: u64,
}

impl Script {
    fn allocate(&mut self, bytes: u64) {
        let slot = self.vacant.pop().unwrap_or_else(|| {
            self.slots += 1;
            self.slots - 1
        });
        self.ops.push(Op::Allocate { slot, bytes });
        let taken = bytes.next_multiple_of(GRAIN_BYTES);
        self.live.push((slot, taken));
        self.live_bytes += taken;
        self.peak_bytes = self.peak_bytes.max(self.live_bytes);
    }

    fn pick(&self, random: &mut SplitMix64) -> usize {
        usize::try_from(random.below(self.live.len() as u64)).unwrap_or(0)
    }

    fn free_random(&mut self, random: &mut SplitMix64) {
        if self.live.is_empty() {
            return;
        }
        let (slot, taken) = self.live.swap_remove(self.pick(random));
        self.live_bytes -= taken;
        self.ops.push(Op::Free { slot });
        self.vacant.push(slot);
    }

    fn replace_random(&mut self, random: &mut SplitMix64, bytes: u64) {
        let index = self.pick(random);
        let Some((slot, taken)) = self.live.get_mut(index) else {
            return;
        };
        self.live_bytes -= *taken;
        *taken = bytes.next_multiple_of(GRAIN_BYTES);
        self.live_bytes += *taken;
        self.peak_bytes = self.peak_bytes.max(self.live_bytes);
        let slot = *slot;
        self.ops.push(Op::Free { slot });
        self.ops.push(Op::Allocate { slot, bytes });
    }

    fn into_workload(self, name: String, setup: Vec<Op>, cyclic: bool) -> Workload {
        Workload {
            name,
            setup,
            ops: self.ops,
            slots: self.slots as usize,
            peak_live_bytes: self.peak_bytes,
            cyclic,
            refuses: false,
        }
    }
}

/// Fills to `live` blocks of 256 B to 64 MiB, then frees a random one and allocates, to `ops`
/// operations in all.
#[must_use]
pub fn churn(seed: u64, ops: usize, live: usize) -> Workload {
    let mut random = SplitMix64::new(seed);
    let mut script = Script::default();
    while script.ops.len() < ops {
        if script.live.len() < live {
            let bytes = random.log_uniform(8, 26);
            script.allocate(bytes);
        } else {
            script.free_random(&mut random);
        }
    }
    script.into_workload("churn".to_owned(), Vec::new(), false)
}

/// The shape of RMM's `random_allocations`: uniform sizes up to 4 MiB, 73 % allocations, at most
/// 15.6 GiB live, until `allocations` were made.
#[must_use]
pub fn rmm_random(seed: u64, allocations: usize) -> Workload {
    const CAP_BYTES: u64 = 16_000 * MIB;
    let mut random = SplitMix64::new(seed);
    let mut script = Script::default();
    let mut made = 0;
    while made < allocations {
        let bytes = 1 + random.below(4 * MIB);
        let fits = script.live_bytes + bytes <= CAP_BYTES;
        if script.live.is_empty() || (fits && random.below(100) < 73) {
            script.allocate(bytes);
            made += 1;
        } else {
            script.free_random(&mut random);
        }
    }
    script.into_workload("rmm_random".to_owned(), Vec::new(), false)
}

/// The shape of VMA's benchmark of virtual blocks: 7 200 blocks of 1 to 2 056 units of 256 B, then
/// 14 400 operations, half of them frees.
#[must_use]
pub fn vma_blocks(seed: u64) -> Workload {
    let mut random = SplitMix64::new(seed);
    let mut script = Script::default();
    for _ in 0..7_200 {
        script.allocate((1 + random.below(2_056)) * GRAIN_BYTES);
    }
    for _ in 0..14_400 {
        if random.below(2) == 0 {
            script.free_random(&mut random);
        } else {
            script.allocate((1 + random.below(2_056)) * GRAIN_BYTES);
        }
    }
    script.into_workload("vma_blocks".to_owned(), Vec::new(), false)
}

/// `live` standing blocks of 256 B to 64 KiB with as many holes as a quarter of them; each timed
/// pair frees a random block and allocates another.
#[must_use]
pub fn standing(seed: u64, live: usize, pairs: usize) -> Workload {
    let mut random = SplitMix64::new(seed);
    let mut script = Script::default();
    for _ in 0..live + live / 4 {
        let bytes = random.log_uniform(8, 16);
        script.allocate(bytes);
    }
    for _ in 0..live / 4 {
        script.free_random(&mut random);
    }
    let setup = std::mem::take(&mut script.ops);
    for _ in 0..pairs {
        let bytes = random.log_uniform(8, 16);
        script.replace_random(&mut random, bytes);
    }
    script.into_workload(format!("random/{live}"), setup, true)
}

/// The same standing blocks; each timed pair allocates a block of 256 B to 64 KiB and frees it.
#[must_use]
pub fn beside(seed: u64, live: usize, pairs: usize) -> Workload {
    let mut workload = standing(seed, live, 0);
    let mut random = SplitMix64::new(seed);
    let slot = u32::try_from(workload.slots).unwrap_or(0);
    for _ in 0..pairs {
        workload.ops.push(Op::Allocate {
            slot,
            bytes: random.log_uniform(8, 16),
        });
        workload.ops.push(Op::Free { slot });
    }
    workload.name = format!("live/{live}");
    workload.slots += 1;
    workload.peak_live_bytes += 1 << 16;
    workload
}

/// A ring of `live` blocks of `1 << low` to `1 << high` bytes; each timed pair replaces the oldest.
#[must_use]
pub fn ring(name: &str, live: u32, pairs: u32, (low, high): (u32, u32)) -> Workload {
    let mut random = SplitMix64::new(1);
    let mut setup = Vec::new();
    let mut ops = Vec::new();
    for slot in 0..live {
        let bytes = random.log_uniform(low, high);
        setup.push(Op::Allocate { slot, bytes });
    }
    for pair in 0..pairs {
        let (slot, bytes) = (pair % live.max(1), random.log_uniform(low, high));
        ops.push(Op::Free { slot });
        ops.push(Op::Allocate { slot, bytes });
    }
    Workload {
        name: name.to_owned(),
        setup,
        ops,
        slots: live as usize,
        peak_live_bytes: u64::from(live) << high,
        cyclic: true,
        refuses: false,
    }
}

/// Allocates one block of `bytes` and frees it, `pairs` times, beside 1 000 standing blocks.
#[must_use]
pub fn one_size(bytes: u64, pairs: usize) -> Workload {
    let mut workload = standing(1, 1_000, 0);
    let slot = u32::try_from(workload.slots).unwrap_or(0);
    for _ in 0..pairs {
        workload.ops.push(Op::Allocate { slot, bytes });
        workload.ops.push(Op::Free { slot });
    }
    workload.name = format!(
        "size/{}",
        ds4_engine::bytes::format_bytes(bytes).replace(' ', "")
    );
    workload.slots += 1;
    // Room for several such blocks: standing blocks may split what one would just fit into.
    workload.peak_live_bytes += 8 * bytes.next_multiple_of(GRAIN_BYTES);
    workload
}

/// Asks `requests` times for more than there ever is, beside 1 000 standing blocks.
#[must_use]
pub fn refusal(requests: usize) -> Workload {
    let mut workload = standing(1, 1_000, 0);
    let slot = u32::try_from(workload.slots).unwrap_or(0);
    let bytes = 512 * GIB;
    workload.ops = vec![Op::Allocate { slot, bytes }; requests];
    workload.name = "refusal".to_owned();
    workload.refuses = true;
    workload.slots += 1;
    workload
}

/// The sizes that [`one_size`] is measured at, in bytes.
pub const SIZES: [u64; 6] = [256, 4 * KIB, 64 * KIB, MIB, 64 * MIB, GIB];

/// The numbers of standing blocks that [`standing`] is measured at.
pub const LIVE_COUNTS: [usize; 4] = [1_000, 10_000, 100_000, 1_000_000];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_gives_the_published_numbers() {
        let mut random = SplitMix64::new(1_234_567);
        assert_eq!(random.next_u64(), 6_457_827_717_110_365_317);
        assert_eq!(random.next_u64(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn log_uniform_sizes_stay_in_range_and_fill_every_octave_alike() {
        let mut random = SplitMix64::new(1);
        let mut octaves = [0_u32; 18];
        for _ in 0..18_000 {
            let bytes = random.log_uniform(8, 26);
            assert!((256..=64 * MIB).contains(&bytes), "{bytes}");
            octaves[(bytes.ilog2() as usize - 8).min(17)] += 1;
        }
        assert!(
            octaves.iter().all(|count| (850..1150).contains(count)),
            "{octaves:?}"
        );
    }

    #[test]
    fn every_free_names_a_full_slot_and_every_allocation_an_empty_one() {
        let lists = [
            churn(1, 5_000, 500),
            rmm_random(1, 2_000),
            vma_blocks(1),
            standing(1, 400, 900),
            ring("ring", 64, 1_000, (8, 20)),
            one_size(MIB, 100),
        ];
        for workload in lists {
            let mut full = vec![false; workload.slots];
            for op in workload.setup.iter().chain(&workload.ops) {
                let (slot, is_free) = match op {
                    Op::Allocate { slot, .. } => (*slot as usize, false),
                    Op::Free { slot } => (*slot as usize, true),
                };
                assert_eq!(full[slot], is_free, "{}", workload.name);
                full[slot] = !is_free;
            }
        }
    }

    #[test]
    fn churn_keeps_about_the_documented_bytes_live() {
        let workload = churn(1, 100_000, 10_000);
        let gib = workload.peak_live_bytes / GIB;
        assert!((50..56).contains(&gib), "{gib} GiB");
        assert_eq!(workload.ops.len(), 100_000);
    }
}
