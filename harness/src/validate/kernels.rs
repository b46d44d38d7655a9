//! Each kernel once against its CPU reference, byte for byte; suite `kernels` of `ds4 check` tries
//! more.

use ds4_engine::backend::BackendError;
use ds4_engine::device::{DeviceAddress, DeviceId, StreamId};
use ds4_kernels::{Launch, Pattern, Tally, add_f32, checksum, fill};

use super::field::Block;
use super::run::{Finding, Group, Probe, Stop};
use super::{CheckId, Level};

const KERNELS: CheckId = CheckId {
    name: "kernels",
    code: "DV-1011",
    level: Level::Test,
};

pub(super) const GROUPS: &[Group] = &[Group {
    checks: &[KERNELS],
    body: |probe| probe.each(&KERNELS, |id| kernels(probe, id)),
}];

/// More words than a block of threads takes, and no multiple of anything.
const WORDS: usize = 100_003;
const GUARD_WORDS: usize = 8;
const FIRST_POSITION: u64 = u64::MAX - 5;

/// Memory on the device and what it should hold.
struct Image<'a> {
    probe: &'a Probe<'a>,
    device: DeviceId,
    address: DeviceAddress,
    words: Vec<[u8; 8]>,
}

impl Image<'_> {
    fn at(&self, word: usize) -> u64 {
        self.address.0 + 8 * word as u64
    }

    fn put(&self) -> Result<(), BackendError> {
        let bytes = self.words.as_flattened();
        self.probe.backend().write(self.device, self.address, bytes)
    }

    /// Runs a kernel; the first word that then differs from the image.
    fn run(&self, launch: &Launch) -> Result<(), BackendError> {
        let backend = self.probe.backend();
        backend.launch(self.device, StreamId::DEFAULT, launch)?;
        backend.synchronize(self.device, StreamId::DEFAULT)
    }

    fn differs(&self) -> Result<Option<(usize, u64, u64)>, BackendError> {
        let mut seen = vec![[0; 8]; self.words.len()];
        let to = seen.as_flattened_mut();
        self.probe.backend().read(self.device, self.address, to)?;
        let pairs = self.words.iter().zip(&seen).enumerate();
        let word = |bytes: &[u8; 8]| u64::from_le_bytes(*bytes);
        let mut wrong = pairs.filter(|(_, (expected, found))| expected != found);
        Ok(wrong
            .next()
            .map(|(at, (expected, found))| (at, word(expected), word(found))))
    }
}

fn kernels(probe: &Probe<'_>, id: DeviceId) -> Result<Finding, Stop> {
    let timer = probe.timer();
    let all = WORDS + 2 * GUARD_WORDS;
    let block = Block::take(probe.backend(), id, 8 * all as u64)?;
    let mut image = Image {
        probe,
        device: id,
        address: block.address,
        words: vec![[0; 8]; all],
    };
    let bytes = 8 * WORDS as u64;
    for (number, case) in CASES.iter().enumerate() {
        Pattern::Random { seed: 3 }.write(&mut image.words, 0);
        let launch = case(&mut image)?;
        image.run(&launch)?;
        if let Some((at, expected, found)) = image.differs()? {
            let did = timer.did(bytes * (number as u64 + 1), number as u64 + 1);
            let detail = format!(
                "after {launch:?} word {at} of the block at {} is {found:#018x}, and {expected:#018x} by the reference",
                image.address
            );
            return Ok(Finding::fail(did, detail)
                .hint("wrong results on this device; `ds4 check --suite kernels` looks closer"));
        }
    }
    let count = CASES.len() as u64;
    Ok(Finding::pass(
        timer.did(bytes * count, count),
        format!("{count} kernels leave what their references leave"),
    ))
}

/// Puts an image on the device, makes it what the reference leaves, and gives the launch.
type Case = fn(&mut Image<'_>) -> Result<Launch, BackendError>;

const CASES: [Case; 5] = [fills, patterns, checks, checksums, sums];

fn payload(words: &mut [[u8; 8]]) -> &mut [[u8; 8]] {
    let end = words.len() - GUARD_WORDS;
    words.get_mut(GUARD_WORDS..end).unwrap_or_default()
}

fn fills(image: &mut Image<'_>) -> Result<Launch, BackendError> {
    image.put()?;
    let bytes = payload(&mut image.words).as_flattened_mut();
    let inner = bytes.len() - 8;
    fill(bytes.get_mut(3..3 + inner).unwrap_or_default(), 0x6B);
    Ok(Launch::Fill {
        to: image.at(GUARD_WORDS) + 3,
        bytes: inner as u64,
        value: 0x6B,
    })
}

fn patterns(image: &mut Image<'_>) -> Result<Launch, BackendError> {
    image.put()?;
    let pattern = Pattern::Random { seed: 11 };
    pattern.write(payload(&mut image.words), FIRST_POSITION);
    Ok(Launch::WritePattern {
        to: image.at(GUARD_WORDS),
        words: WORDS as u64,
        first_position: FIRST_POSITION,
        pattern,
    })
}

fn set(words: &mut [[u8; 8]], at: usize, value: u64) {
    if let Some(word) = words.get_mut(at) {
        *word = value.to_le_bytes();
    }
}

fn checks(image: &mut Image<'_>) -> Result<Launch, BackendError> {
    let pattern = Pattern::MovingInversion { word: 0x0F1E_2D3C };
    pattern.write(payload(&mut image.words), FIRST_POSITION);
    for at in [
        GUARD_WORDS + 77,
        GUARD_WORDS + WORDS / 2,
        GUARD_WORDS + WORDS - 1,
    ] {
        set(&mut image.words, at, 0x1234);
    }
    set(&mut image.words, 0, Tally::CLEAN.least_position);
    set(&mut image.words, 1, Tally::CLEAN.wrong_words);
    image.put()?;
    let tally = pattern.tally(payload(&mut image.words), FIRST_POSITION);
    set(&mut image.words, 0, tally.least_position);
    set(&mut image.words, 1, tally.wrong_words);
    Ok(Launch::CheckPattern {
        from: image.at(GUARD_WORDS),
        words: WORDS as u64,
        first_position: FIRST_POSITION,
        pattern,
        result: image.at(0),
    })
}

fn checksums(image: &mut Image<'_>) -> Result<Launch, BackendError> {
    const BEFORE: u64 = 5;
    set(&mut image.words, 0, BEFORE);
    image.put()?;
    let bytes = payload(&mut image.words).as_flattened_mut();
    let part = bytes.get(1..).unwrap_or_default();
    let (count, sum) = (part.len() as u64, checksum(part, FIRST_POSITION));
    set(&mut image.words, 0, BEFORE.wrapping_add(sum));
    Ok(Launch::Checksum {
        from: image.at(GUARD_WORDS) + 1,
        bytes: count,
        first_position: FIRST_POSITION,
        sum: image.at(0),
    })
}

fn sums(image: &mut Image<'_>) -> Result<Launch, BackendError> {
    // Numbers, so that no payload of a NaN is compared.
    let half = WORDS / 2;
    let values: Vec<f32> = (0..u16::MAX)
        .cycle()
        .take(4 * half)
        .map(|number| f32::from(number) * 1.7 - 9000.0)
        .collect();
    let (left, right) = values.split_at(2 * half);
    let store = |words: &mut [[u8; 8]], at: usize, floats: &[f32]| {
        let bytes: Vec<u8> = floats
            .iter()
            .flat_map(|float| float.to_le_bytes())
            .collect();
        let to = words.get_mut(at..at + half).unwrap_or_default();
        to.as_flattened_mut().copy_from_slice(&bytes);
    };
    store(&mut image.words, GUARD_WORDS, left);
    store(&mut image.words, GUARD_WORDS + half, right);
    image.put()?;
    let mut sum = left.to_vec();
    add_f32(&mut sum, right);
    store(&mut image.words, GUARD_WORDS, &sum);
    Ok(Launch::AddF32 {
        sum: image.at(GUARD_WORDS),
        other: image.at(GUARD_WORDS + half),
        count: 2 * half as u64,
    })
}
