//! Kernels on devices against their CPU references: every byte that they leave, the bytes around
//! included.

use std::sync::Arc;

use ds4_engine::alloc::Request;
use ds4_engine::backend::{Backend, BackendError};
use ds4_engine::bytes::MIB;
use ds4_engine::device::{DeviceAddress, DeviceId, DeviceMask, PeerAccess, StreamId};
use ds4_kernels::{Launch, Pattern, Tally as Wrong, add_f32, checksum, fill};

use super::Suite::Kernels;
use super::trial::{Check, Failure, Held, Needs, Trial};
use super::world::{Setup, World};

pub(super) const CHECKS: &[Check] = &[
    Check {
        suite: Kernels,
        name: "a-fill-sets-its-bytes-and-no-other",
        needs: Needs::NOTHING,
        body: |trial| on_each_device(trial, fills),
    },
    Check {
        suite: Kernels,
        name: "patterns-are-written-as-by-the-reference",
        needs: Needs::NOTHING,
        body: |trial| on_each_device(trial, patterns),
    },
    Check {
        suite: Kernels,
        name: "every-wrong-word-of-a-pattern-is-found-and-counted",
        needs: Needs::NOTHING,
        body: |trial| on_each_device(trial, wrong_words),
    },
    Check {
        suite: Kernels,
        name: "checksums-are-those-of-the-reference-from-any-address",
        needs: Needs::NOTHING,
        body: |trial| on_each_device(trial, checksums),
    },
    Check {
        suite: Kernels,
        name: "sums-of-floats-equal-the-reference-bit-for-bit",
        needs: Needs::NOTHING,
        body: |trial| on_each_device(trial, float_sums),
    },
    Check {
        suite: Kernels,
        name: "kernels-of-a-stream-run-in-their-order",
        needs: Needs::NOTHING,
        body: |trial| on_each_device(trial, in_order),
    },
    Check {
        suite: Kernels,
        name: "kernels-reach-a-peers-memory-over-a-direct-path",
        needs: Needs::TWO,
        body: peers,
    },
];

/// Numbers of elements around the sizes of words, blocks and pages.
const COUNTS: [usize; 11] = [0, 1, 7, 8, 9, 255, 256, 257, 4095, 4096, 4097];
/// More elements than a block of threads takes, in bytes; each check does few of these.
const LARGE_BYTES: usize = (1 << 20) + 3;
/// Bytes before and after what a kernel may touch.
const GUARD: usize = 64;
/// What the guards, and memory before it is written, hold.
const POISON: u8 = 0xC3;
const BLOCK_BYTES: u64 = 2 * MIB;
const PATTERNS: [Pattern; 3] = [
    Pattern::OwnAddress,
    Pattern::MovingInversion {
        word: 0x0123_4567_89AB_CDEF,
    },
    Pattern::Random { seed: 7 },
];
/// Positions of a first word or byte; after the last one they wrap.
const FIRST_POSITIONS: [u64; 4] = [0, 1, 1 << 40, u64::MAX - 4];

/// A block on a device, in which kernels work.
struct Field {
    backend: Arc<dyn Backend>,
    device: DeviceId,
    address: u64,
}

impl Field {
    fn new(world: &mut World, device: DeviceId) -> Result<Self, Failure> {
        let block = world.grant(&Request {
            mask: DeviceMask::only(device),
            ..Request::new(BLOCK_BYTES)
        })?;
        let field = Self {
            backend: world.target.backend().clone(),
            device,
            address: block.allocation.address.0,
        };
        // Another device's kernel has to wait for the first use of the block.
        field.wait()?;
        Ok(field)
    }

    fn at(&self, offset: usize) -> u64 {
        self.address + offset as u64
    }

    fn put(&self, offset: usize, bytes: &[u8]) -> Held {
        self.backend
            .write(self.device, DeviceAddress(self.at(offset)), bytes)
            .map_err(Failure::error)
    }

    fn get(&self, bytes: usize) -> Result<Vec<u8>, Failure> {
        let mut seen = vec![0; bytes];
        self.backend
            .read(self.device, DeviceAddress(self.address), &mut seen)
            .map_err(Failure::error)?;
        Ok(seen)
    }

    fn wait(&self) -> Held {
        self.backend
            .synchronize(self.device, StreamId::DEFAULT)
            .map_err(Failure::error)
    }

    fn launch(&self, launch: &Launch) -> Held {
        let launched = self.backend.launch(self.device, StreamId::DEFAULT, launch);
        launched.map_err(|error| {
            if matches!(error, BackendError::Unsupported { .. }) {
                Failure::Skip(error.to_string())
            } else {
                Failure::Broken(format!("{launch:?}: {error}"))
            }
        })
    }

    /// The block begins with these bytes once all work is done.
    fn holds(&self, expected: &[u8], what: &dyn std::fmt::Debug) -> Held {
        self.wait()?;
        let seen = self.get(expected.len())?;
        let mut pairs = seen.iter().zip(expected).enumerate();
        if let Some((at, (seen, expected))) = pairs.find(|(_, (seen, expected))| seen != expected) {
            return Err(Failure::Broken(format!(
                "{}: byte {at} of a block is {seen:#04x}, not {expected:#04x}, after {what:?} \
                 in the block at {:#x}",
                self.device, self.address
            )));
        }
        Ok(())
    }
}

/// The fields of a device, and how many launches there were.
struct Bench {
    data: Field,
    other: Field,
    launches: u64,
}

impl Bench {
    fn new(world: &mut World, device: DeviceId) -> Result<Self, Failure> {
        Ok(Self {
            data: Field::new(world, device)?,
            other: Field::new(world, device)?,
            launches: 0,
        })
    }

    fn launch(&mut self, launch: &Launch) -> Held {
        self.launches += 1;
        self.data.launch(launch)
    }

    /// Words between guards at the start of the other field.
    fn set_words(&self, words: [u64; 2]) -> Held {
        self.other.put(0, &between_guards(words))
    }

    fn words_are(&self, words: [u64; 2], what: &Launch) -> Held {
        self.other.holds(&between_guards(words), what)
    }

    fn words(&self) -> u64 {
        self.other.at(8)
    }
}

fn between_guards([one, two]: [u64; 2]) -> [u8; 32] {
    let guard = u64::from_le_bytes([POISON; 8]);
    let mut bytes = [0; 32];
    let words = bytes.as_chunks_mut().0;
    for (to, word) in words.iter_mut().zip([guard, one, two, guard]) {
        *to = word.to_le_bytes();
    }
    bytes
}

fn on_each_device(trial: &mut Trial<'_>, body: fn(&mut Bench) -> Held) -> Held {
    for device in DeviceMask::first(trial.devices()).iter() {
        let mut world = trial.world(Setup::default())?;
        let mut bench = Bench::new(&mut world, device)?;
        body(&mut bench)?;
        world.tally.launches += bench.launches;
        trial.close(world)?;
    }
    Ok(())
}

/// Poison with `count` bytes for a kernel at `GUARD + offset`.
fn poisoned(offset: usize, count: usize) -> Vec<u8> {
    vec![POISON; GUARD + offset + count + GUARD]
}

/// Bytes without a pattern.
fn noise(bytes: usize) -> Vec<u8> {
    let mut words = vec![[0; 8]; bytes.div_ceil(8)];
    Pattern::Random { seed: 99 }.write(&mut words, 0);
    let mut noise = words.into_flattened();
    noise.truncate(bytes);
    noise
}

fn part(bytes: &mut [u8], offset: usize, count: usize) -> &mut [u8] {
    bytes.get_mut(offset..offset + count).unwrap_or_default()
}

fn fills(bench: &mut Bench) -> Held {
    let small = COUNTS
        .into_iter()
        .flat_map(|count| [0, 1, 7, 8, 13].map(|offset| (count, offset, 0)));
    let large = [(LARGE_BYTES, 0, 0x5A), (LARGE_BYTES, 13, 0xFF)];
    for (count, offset, value) in small.chain(large) {
        let mut image = poisoned(offset, count);
        bench.data.put(0, &image)?;
        let launch = Launch::Fill {
            to: bench.data.at(GUARD + offset),
            bytes: count as u64,
            value,
        };
        bench.launch(&launch)?;
        fill(part(&mut image, GUARD + offset, count), value);
        bench.data.holds(&image, &launch)?;
    }
    Ok(())
}

/// Patterns, first positions, numbers of words and offsets in bytes.
fn pattern_cases() -> impl Iterator<Item = (Pattern, u64, usize, usize)> {
    PATTERNS.into_iter().flat_map(|pattern| {
        let small = FIRST_POSITIONS.into_iter().flat_map(move |first| {
            COUNTS
                .into_iter()
                .flat_map(move |count| [0, 8].map(|offset| (pattern, first, count, offset)))
        });
        small.chain([(pattern, u64::MAX - 1000, LARGE_BYTES / 8 + 3, 8)])
    })
}

fn patterns(bench: &mut Bench) -> Held {
    for (pattern, first_position, count, offset) in pattern_cases() {
        let mut image = poisoned(offset, 8 * count);
        bench.data.put(0, &image)?;
        let launch = Launch::WritePattern {
            to: bench.data.at(GUARD + offset),
            words: count as u64,
            first_position,
            pattern,
        };
        bench.launch(&launch)?;
        let words = part(&mut image, GUARD + offset, 8 * count).as_chunks_mut();
        pattern.write(words.0, first_position);
        bench.data.holds(&image, &launch)?;
    }
    Ok(())
}

fn wrong_words(bench: &mut Bench) -> Held {
    for (pattern, first_position, count, offset) in pattern_cases() {
        let mut words = vec![[0; 8]; count];
        pattern.write(&mut words, first_position);
        let start = GUARD + offset;
        bench.data.put(0, &poisoned(offset, 8 * count))?;
        bench.data.put(start, words.as_flattened())?;
        let launch = Launch::CheckPattern {
            from: bench.data.at(start),
            words: count as u64,
            first_position,
            pattern,
            result: bench.words(),
        };
        // Each adds to what the one before found: first nothing, then one wrong word more each.
        let mut expected = Wrong::CLEAN;
        bench.set_words([u64::MAX, 0])?;
        bench.launch(&launch)?;
        bench.words_are([u64::MAX, 0], &launch)?;
        for (number, at) in [count.saturating_sub(1), count / 2, 0]
            .into_iter()
            .enumerate()
        {
            let Some(word) = words.get_mut(at) else {
                continue;
            };
            let bit = 1 << (number + 5);
            if let Some(byte) = word.get_mut(at % 8) {
                *byte ^= bit;
            }
            bench.data.put(start + 8 * at, word)?;
            bench.launch(&launch)?;
            expected = expected.and(pattern.tally(&words, first_position));
            let result = [expected.least_position, expected.wrong_words];
            bench.words_are(result, &launch)?;
        }
        let zeros = vec![[0; 8]; count];
        bench.data.put(start, zeros.as_flattened())?;
        bench.set_words([u64::MAX, 0])?;
        bench.launch(&launch)?;
        let all = pattern.tally(&zeros, first_position);
        bench.words_are([all.least_position, all.wrong_words], &launch)?;
    }
    Ok(())
}

fn checksums(bench: &mut Bench) -> Held {
    let image = noise(GUARD + 16 + LARGE_BYTES + GUARD);
    bench.data.put(0, &image)?;
    let small = COUNTS
        .into_iter()
        .flat_map(|count| [0, 1, 3, 8, 15].map(|offset| (count, offset)))
        .flat_map(|(count, offset)| FIRST_POSITIONS.map(|first| (count, offset, first)));
    let large = [(LARGE_BYTES, 0, 0), (LARGE_BYTES, 5, u64::MAX - 1000)];
    for (count, offset, first_position) in small.chain(large) {
        let start = GUARD + offset;
        let launch = Launch::Checksum {
            from: bench.data.at(start),
            bytes: count as u64,
            first_position,
            sum: bench.words(),
        };
        let before = u64::MAX - 5;
        bench.set_words([before, 0])?;
        bench.launch(&launch)?;
        let bytes = image.get(start..start + count).unwrap_or_default();
        let sum = before.wrapping_add(checksum(bytes, first_position));
        bench.words_are([sum, 0], &launch)?;
    }
    bench.data.holds(&image, &"checksums")
}

/// Floats of every kind but NaN, whose bits are no device's promise.
const FLOATS: [f32; 14] = [
    0.0,
    -0.0,
    1.0,
    -1.5,
    f32::MIN_POSITIVE,
    -f32::MIN_POSITIVE,
    f32::from_bits(1),
    -f32::from_bits(0x007F_FFFF),
    1e-40,
    f32::MAX,
    f32::MIN,
    f32::INFINITY,
    16_777_216.0,
    0.1,
];

/// Two vectors in which every two of [`FLOATS`] meet.
fn float_pairs(count: usize) -> (Vec<f32>, Vec<f32>) {
    let float = |number: usize| FLOATS.get(number % FLOATS.len()).copied().unwrap_or(0.0);
    (0..count)
        .map(|number| (float(number), float(number / FLOATS.len())))
        .unzip()
}

fn bytes_of(floats: &[f32]) -> Vec<u8> {
    floats
        .iter()
        .flat_map(|float| float.to_le_bytes())
        .collect()
}

fn float_sums(bench: &mut Bench) -> Held {
    let small = COUNTS
        .into_iter()
        .flat_map(|count| [(0, 0), (4, 4), (0, 4), (12, 8)].map(|(to, from)| (count, to, from)));
    let large = [(LARGE_BYTES / 4 + 3, 4, 4), (LARGE_BYTES / 4 + 3, 0, 12)];
    for (count, to, from) in small.chain(large) {
        let (mut sums, others) = float_pairs(count);
        let mut image = poisoned(to, 4 * count);
        part(&mut image, GUARD + to, 4 * count).copy_from_slice(&bytes_of(&sums));
        let mut other = poisoned(from, 4 * count);
        part(&mut other, GUARD + from, 4 * count).copy_from_slice(&bytes_of(&others));
        bench.data.put(0, &image)?;
        bench.other.put(0, &other)?;
        let launch = Launch::AddF32 {
            sum: bench.data.at(GUARD + to),
            other: bench.other.at(GUARD + from),
            count: count as u64,
        };
        bench.launch(&launch)?;
        add_f32(&mut sums, &others);
        part(&mut image, GUARD + to, 4 * count).copy_from_slice(&bytes_of(&sums));
        bench.data.holds(&image, &launch)?;
        bench.other.holds(&other, &launch)?;
    }
    Ok(())
}

/// Nothing waits between the launches, each of which spoils the result of a later one's work.
fn in_order(bench: &mut Bench) -> Held {
    let words = LARGE_BYTES as u64 / 8;
    let (to, sum) = (bench.data.at(0), bench.words());
    bench.set_words([0, 0])?;
    let mut expected = 0_u64;
    for round in 0..8_u8 {
        let pattern = Pattern::Random { seed: round.into() };
        let mut image = vec![[round; 8]; LARGE_BYTES / 8];
        bench.launch(&Launch::Fill {
            to,
            bytes: 8 * words,
            value: round,
        })?;
        let second_half = image.split_at_mut(LARGE_BYTES / 16).1;
        bench.launch(&Launch::WritePattern {
            to: to + 8 * (words - second_half.len() as u64),
            words: second_half.len() as u64,
            first_position: 0,
            pattern,
        })?;
        pattern.write(second_half, 0);
        bench.launch(&Launch::Checksum {
            from: to,
            bytes: 8 * words,
            first_position: 0,
            sum,
        })?;
        expected = expected.wrapping_add(checksum(image.as_flattened(), 0));
    }
    let last = Launch::Fill {
        to,
        bytes: 8 * words,
        value: POISON,
    };
    bench.launch(&last)?;
    bench.words_are([expected, 0], &last)
}

fn peers(trial: &mut Trial<'_>) -> Held {
    let ids = DeviceMask::first(trial.devices());
    let mut paths = 0;
    for near in ids.iter() {
        let mut world = trial.world(Setup::default())?;
        let mut bench = Bench::new(&mut world, near)?;
        let backend = world.target.backend().clone();
        for far in ids.without(DeviceMask::only(near)).iter() {
            let access = backend.peer_access(near, far).map_err(Failure::error)?;
            if access == PeerAccess::Direct {
                paths += 1;
                let peer = Field::new(&mut world, far)?;
                over_a_path(&mut bench, &peer)?;
            }
        }
        world.tally.launches += bench.launches;
        trial.close(world)?;
    }
    if paths == 0 {
        let why = "no two devices of the machine have a direct path".to_owned();
        return Err(Failure::Skip(why));
    }
    Ok(())
}

/// Writes, reads and adds in the other device's memory.
fn over_a_path(bench: &mut Bench, peer: &Field) -> Held {
    let (bytes, count) = (5003, 1250);
    let mut image = poisoned(1, bytes);
    peer.put(0, &image)?;
    let filled = Launch::Fill {
        to: peer.at(GUARD + 1),
        bytes: bytes as u64,
        value: 0x3C,
    };
    bench.launch(&filled)?;
    let from = (GUARD + 8, GUARD + 4);
    bench.set_words([0, 0])?;
    let summed = Launch::Checksum {
        from: peer.at(3),
        bytes: bytes as u64,
        first_position: 11,
        sum: bench.words(),
    };
    bench.launch(&summed)?;
    fill(part(&mut image, GUARD + 1, bytes), 0x3C);
    let sum = checksum(image.get(3..3 + bytes).unwrap_or_default(), 11);
    bench.words_are([sum, 0], &summed)?;
    peer.holds(&image, &filled)?;

    let (mut sums, others) = float_pairs(count);
    bench.data.put(from.0, &bytes_of(&others))?;
    peer.put(from.1, &bytes_of(&sums))?;
    let added = Launch::AddF32 {
        sum: peer.at(from.1),
        other: bench.data.at(from.0),
        count: count as u64,
    };
    bench.launch(&added)?;
    bench.data.wait()?;
    add_f32(&mut sums, &others);
    part(&mut image, from.1, 4 * count).copy_from_slice(&bytes_of(&sums));
    peer.holds(&image, &added)?;
    Ok(())
}
