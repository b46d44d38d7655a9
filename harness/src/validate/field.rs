//! Memory of a device in equal pieces, written and checked by kernels at the speed of the memory.

use ds4_engine::backend::{Backend, BackendError};
use ds4_engine::device::{DeviceAddress, DeviceId, StreamId};
use ds4_kernels::{Launch, Pattern, Tally};

use crate::output::counted;

pub(super) const WORD_BYTES: u64 = 8;
/// The two words of [`Launch::CheckPattern`]'s result.
pub(super) const RESULT_BYTES: u64 = 16;
/// The most pieces of a field.
const PIECES: u64 = 128;

/// A word that is not what was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wrong {
    pub(super) device: DeviceId,
    /// In words from the start of what was checked.
    pub(super) position: u64,
    pub(super) address: DeviceAddress,
    pub(super) expected: u64,
    /// What was read afterwards.
    pub(super) found: u64,
    /// How many words are wrong in all.
    pub(super) words: u64,
    /// What became of the kernel's report on its way here, if not all of it can be true.
    pub(super) damage: Option<Damage>,
}

/// A report that cannot be what the kernel counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Damage {
    /// Read again it was another one: it was damaged on the way back.
    OnTheWay(Tally),
    /// Read again it was the same: it lies damaged in the device's memory.
    InPlace(Tally),
}

impl Wrong {
    pub(super) fn sentence(&self) -> String {
        let (device, position) = (self.device, self.position);
        let report = |tally: Tally| {
            format!(
                "{} at position {}",
                counted(tally.wrong_words, "wrong word"),
                tally.least_position
            )
        };
        match self.damage {
            Some(Damage::OnTheWay(tally)) => {
                let after = if self.words == 0 {
                    "read again it says that no word is wrong".to_owned()
                } else {
                    format!("read again it says {}", counted(self.words, "wrong word"))
                };
                return format!(
                    "the check's report was damaged on the way back from {device}: it said {}, and \
                     {after}",
                    report(tally)
                );
            }
            Some(Damage::InPlace(tally)) => {
                return format!(
                    "the check's report on {device} is damaged: it says {}, also when read again, \
                     and that word is right or not there",
                    report(tally)
                );
            }
            None => {}
        }
        let bits = u64::from((self.expected ^ self.found).count_ones());
        let differ = if bits == 1 { "differs" } else { "differ" };
        format!(
            "{} on {device}; the first at position {position} ({}): expected {:#018x}, found \
             {:#018x}, {} {differ}",
            counted(self.words, "wrong word"),
            self.address,
            self.expected,
            self.found,
            counted(bits, "bit")
        )
    }
}

/// Words of 8 bytes on a device, and a place for the result of checking them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span<'a> {
    pub(super) backend: &'a dyn Backend,
    pub(super) device: DeviceId,
    pub(super) stream: StreamId,
    pub(super) address: DeviceAddress,
    pub(super) words: u64,
    pub(super) first_position: u64,
    pub(super) result: DeviceAddress,
}

impl Span<'_> {
    pub(super) fn wait(&self) -> Result<(), BackendError> {
        self.backend.synchronize(self.device, self.stream)
    }

    pub(super) fn write(&self, pattern: Pattern) -> Result<(), BackendError> {
        let launch = Launch::WritePattern {
            to: self.address.0,
            words: self.words,
            first_position: self.first_position,
            pattern,
        };
        self.backend.launch(self.device, self.stream, &launch)
    }

    /// Says that nothing was found yet.
    pub(super) fn clear(&self) -> Result<(), BackendError> {
        let clean = [Tally::CLEAN.least_position, Tally::CLEAN.wrong_words];
        let bytes = clean.map(u64::to_le_bytes);
        self.backend
            .write(self.device, self.result, bytes.as_flattened())
    }

    pub(super) fn start_check(&self, pattern: Pattern) -> Result<(), BackendError> {
        let launch = Launch::CheckPattern {
            from: self.address.0,
            words: self.words,
            first_position: self.first_position,
            pattern,
            result: self.result.0,
        };
        self.backend.launch(self.device, self.stream, &launch)
    }

    /// What a check that has ended found.
    ///
    /// A report that cannot be true, or names a word that is right, is read once more, which tells
    /// damage on the way back from damage in the device's memory.
    pub(super) fn verdict(&self, pattern: Pattern) -> Result<Option<Wrong>, BackendError> {
        let first = self.report()?;
        if first == Tally::CLEAN {
            return Ok(None);
        }
        let wrong = self.wrong(pattern, first)?;
        if self.holds(first) && wrong.found != wrong.expected {
            return Ok(Some(wrong));
        }
        let second = self.report()?;
        if second == first {
            let damage = Some(Damage::InPlace(first));
            return Ok(Some(Wrong { damage, ..wrong }));
        }
        let damage = Some(Damage::OnTheWay(first));
        Ok(Some(Wrong {
            damage,
            words: if self.holds(second) {
                second.wrong_words
            } else {
                0
            },
            ..self.wrong(pattern, second)?
        }))
    }

    /// Whether a report can be true of this span.
    fn holds(&self, tally: Tally) -> bool {
        let offset = tally.least_position.wrapping_sub(self.first_position);
        offset < self.words && (1..=self.words - offset).contains(&tally.wrong_words)
    }

    fn report(&self) -> Result<Tally, BackendError> {
        let [least_position, wrong_words] = self.read_words(self.result)?;
        Ok(Tally {
            least_position,
            wrong_words,
        })
    }

    /// The word that a report names; the first word stands for one outside the span.
    fn wrong(&self, pattern: Pattern, tally: Tally) -> Result<Wrong, BackendError> {
        let offset = tally.least_position.wrapping_sub(self.first_position);
        let offset = if offset < self.words { offset } else { 0 };
        let address = DeviceAddress(self.address.0 + offset * WORD_BYTES);
        let [found] = self.read_words(address)?;
        let position = self.first_position.wrapping_add(offset);
        Ok(Wrong {
            device: self.device,
            position,
            address,
            expected: pattern.word(position),
            found,
            words: tally.wrong_words,
            damage: None,
        })
    }

    /// Checks and waits.
    pub(super) fn check(&self, pattern: Pattern) -> Result<Option<Wrong>, BackendError> {
        self.clear()?;
        self.start_check(pattern)?;
        self.wait()?;
        self.verdict(pattern)
    }

    fn read_words<const N: usize>(&self, at: DeviceAddress) -> Result<[u64; N], BackendError> {
        let mut bytes = [[0; 8]; N];
        self.backend
            .read(self.device, at, bytes.as_flattened_mut())?;
        Ok(bytes.map(u64::from_le_bytes))
    }
}

/// One allocation of the driver, given back when dropped.
#[derive(Debug)]
pub(super) struct Block<'a> {
    backend: &'a dyn Backend,
    device: DeviceId,
    pub(super) address: DeviceAddress,
}

impl<'a> Block<'a> {
    pub(super) fn take(
        backend: &'a dyn Backend,
        device: DeviceId,
        bytes: u64,
    ) -> Result<Self, BackendError> {
        Ok(Self {
            backend,
            device,
            address: backend.allocate(device, bytes)?,
        })
    }

    pub(super) fn give_back(self) -> Result<(), BackendError> {
        let freed = self.backend.free(self.device, self.address);
        std::mem::forget(self);
        freed
    }
}

impl Drop for Block<'_> {
    fn drop(&mut self) {
        // The finding stands; a lost device takes its memory with it.
        let _ = self.backend.free(self.device, self.address);
    }
}

/// Much of a device's memory, in pieces of one size.
#[derive(Debug)]
pub(super) struct Field<'a> {
    pieces: Vec<Block<'a>>,
    results: Block<'a>,
    pub(super) piece_bytes: u64,
    backend: &'a dyn Backend,
    device: DeviceId,
}

/// The size of the pieces in which so many bytes are taken: whole granules, some gibibytes at most.
pub(super) fn piece_bytes(quota_bytes: u64, granule_bytes: u64) -> u64 {
    let granule = granule_bytes.max(WORD_BYTES);
    (quota_bytes / PIECES / granule).max(1) * granule
}

impl<'a> Field<'a> {
    /// Takes at most `quota_bytes`, at least one granule; what the driver refuses ends the field.
    pub(super) fn take(
        backend: &'a dyn Backend,
        device: DeviceId,
        quota_bytes: u64,
        granule_bytes: u64,
    ) -> Result<Self, BackendError> {
        let piece_bytes = piece_bytes(quota_bytes, granule_bytes);
        // One piece less, as the results take a granule too.
        let wanted = (quota_bytes / piece_bytes).saturating_sub(1).max(1);
        let mut field = Self {
            pieces: Vec::new(),
            results: Block::take(backend, device, wanted * RESULT_BYTES)?,
            piece_bytes,
            backend,
            device,
        };
        for _ in 0..wanted {
            match Block::take(backend, device, piece_bytes) {
                Ok(piece) => field.pieces.push(piece),
                Err(BackendError::OutOfMemory { .. }) if !field.pieces.is_empty() => break,
                Err(error) => return Err(error),
            }
        }
        Ok(field)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.piece_bytes * self.pieces.len() as u64
    }

    pub(super) fn spans(&self) -> impl DoubleEndedIterator<Item = Span<'a>> {
        let words = self.piece_bytes / WORD_BYTES;
        self.pieces
            .iter()
            .enumerate()
            .map(move |(index, piece)| Span {
                backend: self.backend,
                device: self.device,
                stream: StreamId::DEFAULT,
                address: piece.address,
                words,
                first_position: index as u64 * words,
                result: DeviceAddress(self.results.address.0 + index as u64 * RESULT_BYTES),
            })
    }

    pub(super) fn wait(&self) -> Result<(), BackendError> {
        self.backend.synchronize(self.device, StreamId::DEFAULT)
    }

    /// What checks that have ended found: the first wrong word, with the number of all.
    pub(super) fn verdict(&self, pattern: Pattern) -> Result<Option<Wrong>, BackendError> {
        let mut first: Option<Wrong> = None;
        for span in self.spans() {
            if let Some(wrong) = span.verdict(pattern)? {
                match &mut first {
                    // What a damaged report says is no count, and wrong memory outweighs it.
                    Some(first) if first.damage.is_some() && wrong.damage.is_none() => {
                        *first = wrong;
                    }
                    Some(_) if wrong.damage.is_some() => {}
                    Some(first) => first.words = first.words.saturating_add(wrong.words),
                    None => first = Some(wrong),
                }
            }
        }
        Ok(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::Target;
    use ds4_sim::{FaultPlan, Instruments, SimConfig, SimDevice};

    const PATTERN: Pattern = Pattern::OwnAddress;

    /// What is said of memory that is right once the report on it was overwritten.
    fn said(report: [u64; 2], plan: Option<&str>) -> Option<String> {
        let config = SimConfig::new("t", vec![SimDevice::new(64 << 20)]);
        let target = Target::simulated(config).unwrap();
        let backend = &**target.backend();
        let id = DeviceId::new(0).unwrap();
        let field = Field::take(backend, id, 8 << 20, 2 << 20).unwrap();
        let span = field.spans().next().unwrap();
        span.write(PATTERN).unwrap();
        assert_eq!(span.check(PATTERN).unwrap(), None);
        let bytes = report.map(u64::to_le_bytes);
        backend
            .write(id, span.result, bytes.as_flattened())
            .unwrap();
        if let Some(plan) = plan {
            let plan = FaultPlan::from_json(plan.as_bytes(), "plan").unwrap();
            target.sim().unwrap().set_faults(plan).unwrap();
        }
        let wrong = span.verdict(PATTERN).unwrap();
        wrong.map(|wrong| wrong.sentence())
    }

    #[test]
    fn a_report_that_cannot_be_true_is_told_from_wrong_memory() {
        let clean = [Tally::CLEAN.least_position, Tally::CLEAN.wrong_words];
        assert_eq!(said(clean, None), None);
        // A count above the field's, a position outside, a word that is right.
        for report in [[3, 1 << 40], [u64::MAX, 1], [u64::MAX >> 1, 0], [3, 1]] {
            let sentence = said(report, None).unwrap();
            assert!(sentence.contains("is damaged"), "{sentence}");
        }
        let plan = r#"{"seed":1,"faults":[{"at":"read","count":1,"kind":"bit_flip"}]}"#;
        let sentence = said(clean, Some(plan)).unwrap();
        assert!(
            sentence.contains("on the way back") && sentence.contains("no word is wrong"),
            "{sentence}"
        );
    }
}
