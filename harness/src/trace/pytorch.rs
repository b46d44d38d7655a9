//! The memory snapshot that `torch.cuda.memory._dump_snapshot` writes.
//!
//! Read are `device_traces[device][]{action, addr, size, stream, time_us}` and, for blocks that
//! were live before the recording began, `segments[]{device, stream, blocks[]}`. A block dies at
//! `free_completed`: between `free_requested` and it the memory is still in use by a stream.

use std::io::Read;

use super::book::{Book, RawAlloc, RawFree};
use super::error::{Position, Site};
use super::pickle::{self, Arena, Value, Word};
use super::{NoteKind, ReadLimits, Trace, TraceError, TraceFormat};

const DUMP: &str = "give a file that torch.cuda.memory._dump_snapshot wrote";

/// Snapshots have about ten keys per dict; a dict of thousands, shared, would cost its size at
/// each use.
const MAX_DICT_KEYS: usize = 64;

/// Reads a PyTorch memory snapshot.
pub(super) fn read(
    content: impl Read,
    site: Site<'_>,
    limits: &ReadLimits,
) -> Result<Trace, TraceError> {
    let (arena, root) = pickle::load(content, site, limits)?;
    let snapshot = Snapshot {
        arena: &arena,
        site,
    };
    let lacks = |what: &str| {
        let problem = format!("the pickle is not a memory snapshot: it has no {what}");
        site.format(Position::File, problem, DUMP)
    };
    let root = Record {
        keys: arena.dict(root).ok_or_else(|| lacks("dict at its root"))?,
    };
    let traces = root
        .get(Word::DeviceTraces)
        .and_then(|traces| arena.list(traces));
    let traces = traces.ok_or_else(|| lacks("list `device_traces`"))?;
    let mut book = Book::new(TraceFormat::PytorchSnapshot, site, limits);
    let mut steps = Steps {
        left: limits.max_pickle_items,
        max: limits.max_pickle_items,
    };
    for (device, trace) in (0_u64..).zip(traces) {
        steps.take(1, site)?;
        let entries = arena.list(*trace).ok_or_else(|| lacks("list per device"))?;
        for (index, entry) in (0_u64..).zip(entries) {
            let at = Position::Entry { device, index };
            let record = snapshot.record(*entry, at, &mut steps)?;
            snapshot.enter(&mut book, &record, device, index)?;
        }
    }
    let segments = root
        .get(Word::Segments)
        .and_then(|segments| arena.list(segments));
    for (segment, value) in (0_u64..).zip(segments.unwrap_or_default()) {
        snapshot.restore(&mut book, *value, segment, &mut steps)?;
    }
    book.finish()
}

/// A bound on the work of walking lists that a pickle may share a thousandfold.
struct Steps {
    left: usize,
    max: usize,
}

impl Steps {
    fn take(&mut self, steps: usize, site: Site<'_>) -> Result<(), TraceError> {
        self.left = self.left.checked_sub(steps).ok_or_else(|| {
            let problem = format!("the pickle expands to more than {} values", self.max);
            site.limit(Position::File, problem)
        })?;
        Ok(())
    }
}

/// A dict of the snapshot.
struct Record<'a> {
    keys: &'a [Value],
}

impl Record<'_> {
    /// The value of a key; of repeated keys the last, as in Python.
    fn get(&self, word: Word) -> Option<Value> {
        let pairs = self.keys.chunks_exact(2);
        pairs.rev().find_map(|pair| match pair {
            [key, value] if *key == Value::Word(word) => Some(*value),
            _ => None,
        })
    }
}

struct Snapshot<'a> {
    arena: &'a Arena,
    site: Site<'a>,
}

impl<'a> Snapshot<'a> {
    fn record(
        &self,
        value: Value,
        at: Position,
        steps: &mut Steps,
    ) -> Result<Record<'a>, TraceError> {
        let Some(keys) = self.arena.dict(value) else {
            return Err(self.site.format(at, "the entry is not a dict", DUMP));
        };
        if keys.len() > 2 * MAX_DICT_KEYS {
            let problem = format!("the entry has more than {MAX_DICT_KEYS} keys");
            return Err(self.site.format(at, problem, DUMP));
        }
        steps.take(1 + keys.len(), self.site)?;
        Ok(Record { keys })
    }

    fn enter(
        &self,
        book: &mut Book<'_>,
        record: &Record<'_>,
        device: u64,
        index: u64,
    ) -> Result<(), TraceError> {
        let at = Position::Entry { device, index };
        let Some(action) = record.get(Word::Action) else {
            return Err(self.site.format(at, "the entry has no `action`", DUMP));
        };
        // PyTorch before 2.1 gives no time; order stands for it.
        let time_us = self.number(record, Word::TimeUs, at)?.unwrap_or(index);
        let stream = self.number(record, Word::Stream, at)?.unwrap_or(0);
        match action {
            Value::Word(Word::Alloc) => {
                let label = self.required(record, Word::Addr, at)?;
                let bytes = self.required(record, Word::Size, at)?;
                book.alloc(RawAlloc {
                    at,
                    time_us,
                    label,
                    bytes,
                    device,
                    stream,
                })
            }
            Value::Word(Word::FreeCompleted) => {
                let label = self.required(record, Word::Addr, at)?;
                let bytes = Some(self.required(record, Word::Size, at)?);
                let stream = Some(stream);
                book.free(RawFree {
                    at,
                    time_us,
                    label,
                    bytes,
                    device,
                    stream,
                })
            }
            Value::Word(Word::FreeRequested) => Ok(()),
            Value::Word(Word::Oom) => {
                book.note(NoteKind::FailedAllocations);
                Ok(())
            }
            Value::Word(
                Word::SegmentAlloc | Word::SegmentFree | Word::SegmentMap | Word::SegmentUnmap,
            ) => {
                book.note(NoteKind::SegmentEvents);
                Ok(())
            }
            Value::Int(_) | Value::Word(_) | Value::Node(_) | Value::Text | Value::Other => {
                book.note(NoteKind::OtherActions);
                Ok(())
            }
        }
    }

    /// Restores the blocks of a segment that are live at the end and that no event mentions.
    fn restore(
        &self,
        book: &mut Book<'_>,
        segment_value: Value,
        segment: u64,
        steps: &mut Steps,
    ) -> Result<(), TraceError> {
        let mut at = Position::Block { segment, index: 0 };
        let record = self.record(segment_value, at, steps)?;
        let device = self.number(&record, Word::Device, at)?.unwrap_or(0);
        let stream = self.number(&record, Word::Stream, at)?.unwrap_or(0);
        let mut address = self.number(&record, Word::Address, at)?.unwrap_or(0);
        let blocks = record
            .get(Word::Blocks)
            .and_then(|blocks| self.arena.list(blocks));
        for (index, block) in (0_u64..).zip(blocks.unwrap_or_default()) {
            at = Position::Block { segment, index };
            let block = self.record(*block, at, steps)?;
            let size = self.required(&block, Word::Size, at)?;
            let bytes = self
                .number(&block, Word::RequestedSize, at)?
                .unwrap_or(size);
            let label = self.number(&block, Word::Address, at)?.unwrap_or(address);
            if let Some(Value::Word(Word::ActiveAllocated | Word::ActivePendingFree)) =
                block.get(Word::State)
            {
                book.live_before(RawAlloc {
                    at,
                    time_us: 0,
                    label,
                    bytes,
                    device,
                    stream,
                })?;
            }
            // Blocks tile their segment; old snapshots leave the addresses out.
            address = address.saturating_add(size);
        }
        Ok(())
    }

    fn required(&self, record: &Record<'_>, word: Word, at: Position) -> Result<u64, TraceError> {
        let lacks = || format!("the entry has no `{}`", word.name());
        self.number(record, word, at)?
            .ok_or_else(|| self.site.format(at, lacks(), DUMP))
    }

    fn number(
        &self,
        record: &Record<'_>,
        word: Word,
        at: Position,
    ) -> Result<Option<u64>, TraceError> {
        match record.get(word) {
            None | Some(Value::Other) => Ok(None),
            Some(Value::Int(Some(number))) if number >= 0 => Ok(Some(number.unsigned_abs())),
            Some(Value::Int(_) | Value::Word(_) | Value::Node(_) | Value::Text) => {
                let problem = format!(
                    "{} is not a whole number from 0 to {}",
                    word.name(),
                    i64::MAX
                );
                Err(self.site.format(at, problem, DUMP))
            }
        }
    }
}
