//! Real bytes behind simulated memory, held only where they differ from a constant.
//!
//! Memory is cut into frames of 4 KiB. A frame is either materialised, byte by byte, or part of a
//! run of frames that all hold one constant value; fresh memory is one run of [`POISON`]. So a fill
//! of 141 GiB costs one entry, a tag written into each 2 MiB page of 8 × 141 GiB costs 2.3 GiB of
//! host memory, and only data that is really different costs its own size.

use std::collections::BTreeMap;

/// The value of memory that nobody wrote: reading it shows up in results.
pub const POISON: u8 = 0xA5;

const FRAME_BYTES: u64 = 4096;
const FRAME_LEN: usize = 4096;

type Frame = Box<[u8; FRAME_LEN]>;

/// A part of memory, as it is cheapest to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// So many bytes of one value.
    Constant(u64, u8),
    /// These bytes.
    Bytes(Vec<u8>),
}

/// A range outside the memory was named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfBounds;

impl std::fmt::Display for OutOfBounds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the range reaches outside the memory")
    }
}

impl std::error::Error for OutOfBounds {}

/// A block of memory of fixed length.
#[derive(Clone, Debug)]
pub struct SparseBytes {
    bytes: u64,
    frames: BTreeMap<u64, Frame>,
    /// First frame of a run → its value; a run ends where the next begins, and before the first
    /// one memory is poison.
    runs: BTreeMap<u64, u8>,
}

impl SparseBytes {
    /// `bytes` bytes of [`POISON`]; takes no memory of the host yet.
    #[must_use]
    pub fn new(bytes: u64) -> Self {
        Self {
            bytes,
            frames: BTreeMap::new(),
            runs: BTreeMap::new(),
        }
    }

    /// Its length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.bytes
    }

    /// Whether its length is zero.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Bytes of host memory that hold contents, bookkeeping aside.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        self.frames.len() as u64 * FRAME_BYTES
    }

    /// Copies out `data.len()` bytes from `offset` on.
    ///
    /// # Errors
    /// [`OutOfBounds`], and `data` is unchanged.
    pub fn read(&self, offset: u64, data: &mut [u8]) -> Result<(), OutOfBounds> {
        self.check(offset, data.len() as u64)?;
        let mut rest = data;
        let mut at = offset;
        while !rest.is_empty() {
            let (frame, start, room) = split(at);
            let (now, later) = rest.split_at_mut(room.min(rest.len()));
            match self
                .frames
                .get(&frame)
                .and_then(|bytes| bytes.get(start..start + now.len()))
            {
                Some(bytes) => now.copy_from_slice(bytes),
                None => now.fill(self.constant_of(frame)),
            }
            at += now.len() as u64;
            rest = later;
        }
        Ok(())
    }

    /// Copies in `data` at `offset`.
    ///
    /// # Errors
    /// [`OutOfBounds`], and nothing is written.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), OutOfBounds> {
        self.check(offset, data.len() as u64)?;
        let mut rest = data;
        let mut at = offset;
        while !rest.is_empty() {
            let (frame, start, room) = split(at);
            let (now, later) = rest.split_at(room.min(rest.len()));
            match constant(now) {
                // Copies through the host bring the constants of other memory.
                Some(value) => self.fill(at, now.len() as u64, value)?,
                None => {
                    let target = self.materialise(frame);
                    if let Some(target) = target.get_mut(start..start + now.len()) {
                        target.copy_from_slice(now);
                    }
                }
            }
            at += now.len() as u64;
            rest = later;
        }
        Ok(())
    }

    /// Sets `bytes` bytes from `offset` on to `value`; whole frames become a run.
    ///
    /// # Errors
    /// [`OutOfBounds`], and nothing is written.
    pub fn fill(&mut self, offset: u64, bytes: u64, value: u8) -> Result<(), OutOfBounds> {
        self.check(offset, bytes)?;
        let end = offset + bytes;
        let first_whole = offset.div_ceil(FRAME_BYTES);
        // The last frame of the memory may be shorter than a frame, and is whole nevertheless.
        let end_whole = if end == self.bytes {
            end.div_ceil(FRAME_BYTES)
        } else {
            end / FRAME_BYTES
        };
        if first_whole >= end_whole {
            self.fill_part(offset, end, value);
            return Ok(());
        }
        self.fill_part(offset, first_whole * FRAME_BYTES, value);
        self.set_run(first_whole, end_whole, value);
        self.fill_part((end_whole * FRAME_BYTES).min(end), end, value);
        Ok(())
    }

    /// Appends what `bytes` bytes from `offset` on hold.
    pub(crate) fn pieces(
        &self,
        offset: u64,
        bytes: u64,
        out: &mut Vec<Piece>,
    ) -> Result<(), OutOfBounds> {
        self.check(offset, bytes)?;
        let end = offset + bytes;
        let mut at = offset;
        while at < end {
            let (frame, start, room) = split(at);
            let count = (end - at).min(room as u64);
            if let Some(frame) = self.frames.get(&frame) {
                let stop = start + usize::try_from(count).unwrap_or(room);
                out.push(Piece::Bytes(
                    frame.get(start..stop).unwrap_or_default().to_vec(),
                ));
                at += count;
                continue;
            }
            let stop = self.constant_end(frame).min(end);
            out.push(Piece::Constant(stop - at, self.constant_of(frame)));
            at = stop;
        }
        Ok(())
    }

    fn check(&self, offset: u64, bytes: u64) -> Result<(), OutOfBounds> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.bytes => Ok(()),
            _ => Err(OutOfBounds),
        }
    }

    /// The value of a frame that is not materialised.
    fn constant_of(&self, frame: u64) -> u8 {
        self.runs
            .range(..=frame)
            .next_back()
            .map_or(POISON, |(_, value)| *value)
    }

    /// The offset at which the constant that holds in `frame` may end.
    fn constant_end(&self, frame: u64) -> u64 {
        let next_run = self.runs.range(frame + 1..).next().map(|(start, _)| *start);
        let next_frame = self.frames.range(frame..).next().map(|(index, _)| *index);
        let next = next_run.into_iter().chain(next_frame).min();
        next.map_or(self.bytes, |index| index.saturating_mul(FRAME_BYTES))
    }

    fn materialise(&mut self, frame: u64) -> &mut [u8] {
        let value = self.constant_of(frame);
        self.frames
            .entry(frame)
            .or_insert_with(|| Box::new([value; FRAME_LEN]))
            .as_mut_slice()
    }

    /// Fills part of one frame, without materialising it when it holds the value already.
    fn fill_part(&mut self, offset: u64, end: u64, value: u8) {
        if offset >= end {
            return;
        }
        let (mut at, mut rest) = (offset, end - offset);
        while rest > 0 {
            let (frame, start, room) = split(at);
            let count = rest.min(room as u64);
            if self.frames.contains_key(&frame) || self.constant_of(frame) != value {
                let stop = start + usize::try_from(count).unwrap_or(room);
                if let Some(target) = self.materialise(frame).get_mut(start..stop) {
                    target.fill(value);
                }
            }
            at += count;
            rest -= count;
        }
    }

    fn set_run(&mut self, first: u64, end: u64, value: u8) {
        remove_range(&mut self.frames, first, end);
        let after = self.constant_of(end);
        remove_range(&mut self.runs, first, end);
        if self.constant_of(first) != value {
            self.runs.insert(first, value);
        }
        if after == value {
            self.runs.remove(&end);
        } else {
            self.runs.insert(end, after);
        }
    }
}

/// The one value of all these bytes, if there is one.
fn constant(data: &[u8]) -> Option<u8> {
    let (first, rest) = data.split_first()?;
    // The ends first: data that varies mostly varies there.
    (rest.last().is_none_or(|last| last == first) && rest.iter().all(|byte| byte == first))
        .then_some(*first)
}

/// The frame of an offset, the place in it, and the bytes from there to the frame's end.
fn split(offset: u64) -> (u64, usize, usize) {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "only the low 12 bits are kept"
    )]
    let start = offset as usize & (FRAME_LEN - 1);
    (offset / FRAME_BYTES, start, FRAME_LEN - start)
}

fn remove_range<V>(map: &mut BTreeMap<u64, V>, first: u64, end: u64) {
    while let Some(key) = map.range(first..end).next().map(|(key, _)| *key) {
        map.remove(&key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn a_whole_card_filled_and_tagged_stays_small() {
        let mut memory = SparseBytes::new(141 * GIB);
        memory.fill(0, 141 * GIB, 7).unwrap();
        memory.fill(GIB + 1, GIB, 8).unwrap();
        memory.write(100 * GIB - 2, b"abcd").unwrap();
        assert!(memory.resident_bytes() <= 4 * FRAME_BYTES);
        let mut seen = [0; 6];
        memory.read(100 * GIB - 3, &mut seen).unwrap();
        assert_eq!(&seen, b"\x07abcd\x07");
        memory.fill(0, 141 * GIB, 9).unwrap();
        assert_eq!(memory.resident_bytes(), 0);
    }

    #[test]
    fn untouched_memory_is_poison() {
        let memory = SparseBytes::new(10);
        let mut seen = [0; 10];
        memory.read(0, &mut seen).unwrap();
        assert_eq!(seen, [POISON; 10]);
    }

    #[test]
    fn constants_that_are_written_take_no_memory_of_the_host() {
        let mut memory = SparseBytes::new(100 * FRAME_BYTES);
        memory.write(5, &[POISON; 3 * FRAME_LEN]).unwrap();
        assert_eq!(memory.resident_bytes(), 0);
        memory.write(0, &[7; 10 * FRAME_LEN]).unwrap();
        assert_eq!(memory.resident_bytes(), 0);
        memory.write(FRAME_BYTES + 1, &[8; 2]).unwrap();
        assert_eq!(memory.resident_bytes(), FRAME_BYTES);
        memory.write(FRAME_BYTES, &[7; FRAME_LEN]).unwrap();
        assert_eq!(memory.resident_bytes(), 0);
    }

    #[test]
    fn ranges_outside_are_refused_even_when_they_wrap() {
        let mut memory = SparseBytes::new(10);
        assert_eq!(memory.fill(u64::MAX, 2, 0), Err(OutOfBounds));
        assert_eq!(memory.write(9, &[1, 2]), Err(OutOfBounds));
        assert_eq!(memory.read(11, &mut []), Err(OutOfBounds));
        assert_eq!(memory.read(10, &mut []), Ok(()));
    }

    #[derive(Clone, Debug)]
    enum Step {
        Write(u64, Vec<u8>),
        Fill(u64, u64, u8),
    }

    fn step(bytes: u64) -> impl Strategy<Value = Step> {
        let data = proptest::collection::vec(any::<u8>(), 0..300);
        prop_oneof![
            (0..bytes, data).prop_map(|(at, data)| Step::Write(at, data)),
            (0..bytes, 0..10_000_usize, 0_u8..3)
                .prop_map(|(at, n, value)| Step::Write(at, vec![value; n])),
            (0..bytes, 0..bytes, 0_u8..3).prop_map(|(at, n, value)| Step::Fill(at, n, value)),
            (0_u64..7, 0_u64..4, 0_u8..3).prop_map(|(at, n, value)| Step::Fill(
                at * FRAME_BYTES,
                n * FRAME_BYTES,
                value
            )),
        ]
    }

    proptest! {
        #[test]
        fn sparse_bytes_equal_plain_bytes(
            bytes in 20_000_u64..30_000,
            steps in proptest::collection::vec(step(30_000), 1..24),
        ) {
            let mut memory = SparseBytes::new(bytes);
            let mut model = vec![POISON; usize::try_from(bytes).unwrap()];
            for step in steps {
                let (at, count, result) = match &step {
                    Step::Write(at, data) => (*at, data.len(), memory.write(*at, data)),
                    Step::Fill(at, n, value) => {
                        (*at, usize::try_from(*n).unwrap(), memory.fill(*at, *n, *value))
                    }
                };
                let at = usize::try_from(at).unwrap();
                match model.get_mut(at..at + count) {
                    None => prop_assert_eq!(result, Err(OutOfBounds)),
                    Some(target) => match step {
                        Step::Write(_, data) => target.copy_from_slice(&data),
                        Step::Fill(_, _, value) => target.fill(value),
                    },
                }
                let mut seen = vec![0; model.len()];
                memory.read(0, &mut seen).unwrap();
                prop_assert!(seen == model);
                let mut pieces = Vec::new();
                memory.pieces(0, bytes, &mut pieces).unwrap();
                let flat: Vec<u8> = pieces.into_iter().flat_map(|piece| match piece {
                    Piece::Constant(n, value) => vec![value; usize::try_from(n).unwrap()],
                    Piece::Bytes(bytes) => bytes,
                }).collect();
                prop_assert!(flat == model);
            }
        }
    }
}
