//! The ledger of live blocks: what makes a sequence of events a valid trace.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::error::{Position, Site};
use super::{
    MAX_DEVICE_INDEX, MAX_STREAMS, NoteKind, ReadLimits, Trace, TraceAction, TraceError,
    TraceEvent, TraceFormat, TraceNote,
};

/// The largest size that a device address space can express.
const MAX_BYTES: u64 = i64::MAX.unsigned_abs();

/// An allocation as a file tells it.
#[derive(Debug, Clone, Copy)]
pub(super) struct RawAlloc {
    pub(super) at: Position,
    pub(super) time_us: u64,
    /// Id or address, unique among live blocks (of the device, where `Naming` says so).
    pub(super) label: u64,
    pub(super) bytes: u64,
    pub(super) device: u64,
    /// The recorder's stream handle; 0 is the default stream.
    pub(super) stream: u64,
}

/// A free as a file tells it.
#[derive(Debug, Clone, Copy)]
pub(super) struct RawFree {
    pub(super) at: Position,
    pub(super) time_us: u64,
    pub(super) label: u64,
    /// The size, where the format repeats it.
    pub(super) bytes: Option<u64>,
    pub(super) device: u64,
    /// The recorder's stream handle; `None` means the allocating stream.
    pub(super) stream: Option<u64>,
}

/// What the last event of a label left behind; kept after a free to explain a double free.
#[derive(Debug, Clone, Copy)]
struct Slot {
    id: u64,
    bytes: u64,
    device: u32,
    stream: u32,
    live: bool,
    at: Position,
}

/// Collects events and refuses those that contradict earlier ones.
pub(super) struct Book<'a> {
    site: Site<'a>,
    format: TraceFormat,
    max_events: usize,
    /// Allocations that precede the recording.
    before: Vec<TraceEvent>,
    events: Vec<TraceEvent>,
    slots: HashMap<(u32, u64), Slot>,
    streams: Vec<HashMap<u64, u32>>,
    blocks: u64,
    notes: [u64; NoteKind::ALL.len()],
}

impl<'a> Book<'a> {
    pub(super) fn new(format: TraceFormat, site: Site<'a>, limits: &ReadLimits) -> Self {
        Self {
            site,
            format,
            max_events: limits.max_events,
            before: Vec::new(),
            events: Vec::new(),
            slots: HashMap::new(),
            streams: Vec::new(),
            blocks: 0,
            notes: [0; NoteKind::ALL.len()],
        }
    }

    pub(super) fn note(&mut self, kind: NoteKind) {
        let index = NoteKind::ALL.iter().position(|known| *known == kind);
        if let Some(count) = index.and_then(|index| self.notes.get_mut(index)) {
            *count += 1;
        }
    }

    pub(super) fn alloc(&mut self, raw: RawAlloc) -> Result<(), TraceError> {
        let device = self.device(raw.device, raw.at)?;
        self.check_time(raw.time_us, raw.at)?;
        self.check_bytes(raw.bytes, raw.at)?;
        if raw.bytes == 0 {
            if self.format == TraceFormat::Jsonl {
                let name = self.block_name(raw.label);
                let problem = format!("alloc of {name} with zero bytes");
                return Err(self.site.sequence(raw.at, problem, self.mend()));
            }
            self.note(NoteKind::ZeroBytes);
            return Ok(());
        }
        self.check_room(raw.at)?;
        let stream = self.stream(device, raw.stream, raw.at)?;
        let slot = Slot {
            id: self.blocks,
            bytes: raw.bytes,
            device,
            stream,
            live: true,
            at: raw.at,
        };
        let key = self.key(device, raw.label);
        match self.slots.entry(key) {
            Entry::Occupied(known) if known.get().live => {
                let since = since(known.get().at);
                let name = self.block_name(raw.label);
                let problem =
                    format!("alloc of {name}, which is still live (it was allocated {since})");
                return Err(self.site.sequence(raw.at, problem, self.mend()));
            }
            Entry::Occupied(mut known) => {
                known.insert(slot);
            }
            Entry::Vacant(unknown) => {
                unknown.insert(slot);
            }
        }
        self.blocks += 1;
        let action = TraceAction::Alloc {
            bytes: raw.bytes,
            device,
            stream,
        };
        self.push(raw.time_us, slot.id, raw.label, action);
        Ok(())
    }

    pub(super) fn free(&mut self, raw: RawFree) -> Result<(), TraceError> {
        let device = self.device(raw.device, raw.at)?;
        self.check_time(raw.time_us, raw.at)?;
        let key = self.key(device, raw.label);
        let has_room = self.check_room(raw.at);
        let Some(slot) = self.slots.get_mut(&key) else {
            return self.free_of_unknown(raw, device);
        };
        if !slot.live || slot.device != device {
            let slot = *slot;
            return self.refuse_free(raw, device, slot);
        }
        has_room?;
        let known = *slot;
        slot.live = false;
        slot.at = raw.at;
        if raw.bytes.is_some_and(|bytes| bytes != known.bytes) {
            self.note(NoteKind::SizeMismatches);
        }
        let stream = match raw.stream {
            Some(handle) => self.stream(device, handle, raw.at)?,
            None => known.stream,
        };
        self.push(
            raw.time_us,
            known.id,
            raw.label,
            TraceAction::Free { device, stream },
        );
        Ok(())
    }

    fn refuse_free(&self, raw: RawFree, device: u32, slot: Slot) -> Result<(), TraceError> {
        let name = self.block_name(raw.label);
        let problem = if slot.live {
            format!(
                "free of {name} names device {device}, but it was allocated on device {} {}",
                slot.device,
                since(slot.at)
            )
        } else if raw.bytes == Some(0) {
            return Ok(());
        } else {
            format!(
                "free of {name}, which is not live (it was freed {})",
                since(slot.at)
            )
        };
        Err(self.site.sequence(raw.at, problem, self.mend()))
    }

    /// A recorder that started late sees frees of blocks that it never saw allocated. Where the
    /// format repeats the size, the block is a real one and is restored.
    fn free_of_unknown(&mut self, raw: RawFree, device: u32) -> Result<(), TraceError> {
        let Some(bytes) = raw.bytes else {
            let name = self.block_name(raw.label);
            let problem = format!("free of {name}, which was never allocated");
            return Err(self.site.sequence(raw.at, problem, self.mend()));
        };
        if bytes == 0 {
            return Ok(());
        }
        let stream = raw.stream.unwrap_or(0);
        self.live_before(RawAlloc {
            at: raw.at,
            time_us: raw.time_us,
            label: raw.label,
            bytes,
            device: u64::from(device),
            stream,
        })?;
        self.free(raw)
    }

    /// Restores a block that was live when the recording began; does nothing if the recording
    /// knows the block.
    pub(super) fn live_before(&mut self, raw: RawAlloc) -> Result<(), TraceError> {
        let device = self.device(raw.device, raw.at)?;
        self.check_time(raw.time_us, raw.at)?;
        self.check_bytes(raw.bytes, raw.at)?;
        let key = self.key(device, raw.label);
        if raw.bytes == 0 || self.slots.contains_key(&key) {
            return Ok(());
        }
        self.check_room(raw.at)?;
        let stream = self.stream(device, raw.stream, raw.at)?;
        let id = self.blocks;
        self.blocks += 1;
        let slot = Slot {
            id,
            bytes: raw.bytes,
            device,
            stream,
            live: true,
            at: raw.at,
        };
        self.slots.insert(key, slot);
        let action = TraceAction::Alloc {
            bytes: raw.bytes,
            device,
            stream,
        };
        self.before.push(TraceEvent {
            time_us: raw.time_us,
            id,
            label: raw.label,
            action,
        });
        self.note(NoteKind::LiveBeforeRecording);
        Ok(())
    }

    /// Closes the book.
    pub(super) fn finish(mut self) -> Result<Trace, TraceError> {
        if let Some(first) = self.events.first() {
            for event in &mut self.before {
                event.time_us = first.time_us;
            }
        }
        self.events.splice(0..0, self.before);
        if self.events.is_empty() {
            let remedy = match self.format {
                TraceFormat::PytorchSnapshot => {
                    "call torch.cuda.memory._record_memory_history() before the work and dump again"
                }
                TraceFormat::Jsonl | TraceFormat::RmmCsv | TraceFormat::MinimallocCsv => {
                    "record the trace again"
                }
            };
            return Err(self
                .site
                .format(Position::File, "the trace holds no events", remedy));
        }
        let notes = NoteKind::ALL
            .into_iter()
            .zip(self.notes)
            .filter(|(_, count)| *count > 0)
            .map(|(kind, count)| TraceNote { kind, count })
            .collect();
        let devices = u32::try_from(self.streams.len()).unwrap_or(MAX_DEVICE_INDEX + 1);
        Ok(Trace {
            format: self.format,
            events: self.events,
            devices,
            blocks: self.blocks,
            notes,
        })
    }

    fn push(&mut self, time_us: u64, id: u64, label: u64, action: TraceAction) {
        self.events.push(TraceEvent {
            time_us,
            id,
            label,
            action,
        });
    }

    /// Ids of our own format are unique over all devices; addresses only within one, because a
    /// simulated device may start at any address.
    fn key(&self, device: u32, label: u64) -> (u32, u64) {
        match self.format {
            TraceFormat::Jsonl | TraceFormat::MinimallocCsv => (0, label),
            TraceFormat::PytorchSnapshot | TraceFormat::RmmCsv => (device, label),
        }
    }

    fn block_name(&self, label: u64) -> String {
        match self.format {
            TraceFormat::Jsonl | TraceFormat::MinimallocCsv => format!("id {label}"),
            TraceFormat::PytorchSnapshot | TraceFormat::RmmCsv => format!("address {label:#x}"),
        }
    }

    fn mend(&self) -> &'static str {
        match self.format {
            TraceFormat::PytorchSnapshot => "record the snapshot again",
            TraceFormat::Jsonl | TraceFormat::RmmCsv | TraceFormat::MinimallocCsv => {
                "remove the line or record the trace again"
            }
        }
    }

    fn device(&self, device: u64, at: Position) -> Result<u32, TraceError> {
        match u32::try_from(device) {
            Ok(index) if index <= MAX_DEVICE_INDEX => Ok(index),
            Ok(_) | Err(_) => Err(self.site.sequence(
                at,
                format!("device {device} is above {MAX_DEVICE_INDEX}, the highest device index"),
                "number the devices from 0",
            )),
        }
    }

    fn check_bytes(&self, bytes: u64, at: Position) -> Result<(), TraceError> {
        if bytes <= MAX_BYTES {
            return Ok(());
        }
        let problem = format!("size {bytes} is above {MAX_BYTES} bytes, which no device can hold");
        Err(self.site.sequence(at, problem, self.mend()))
    }

    fn check_room(&self, at: Position) -> Result<(), TraceError> {
        if self.events.len() + self.before.len() < self.max_events {
            return Ok(());
        }
        Err(self.site.limit(
            at,
            format!("the trace has more than {} events", self.max_events),
        ))
    }

    /// Times above this would not come back from a recording: pickles have signed numbers.
    fn check_time(&self, time_us: u64, at: Position) -> Result<(), TraceError> {
        if i64::try_from(time_us).is_ok() {
            return Ok(());
        }
        let problem = format!("time {time_us} is above {} microseconds", i64::MAX);
        Err(self.site.sequence(
            at,
            problem,
            "count the time from the start of the recording",
        ))
    }

    /// The dense number of a stream handle, by order of first use on the device.
    fn stream(&mut self, device: u32, handle: u64, at: Position) -> Result<u32, TraceError> {
        let index = usize::try_from(device).unwrap_or(0);
        if self.streams.len() <= index {
            self.streams.resize_with(index + 1, HashMap::new);
        }
        if handle == 0 {
            return Ok(0);
        }
        let Some(known) = self.streams.get_mut(index) else {
            return Ok(0);
        };
        let next = u32::try_from(known.len() + 1).unwrap_or(u32::MAX);
        match known.entry(handle) {
            Entry::Occupied(number) => Ok(*number.get()),
            Entry::Vacant(_) if next > MAX_STREAMS => {
                let problem = format!(
                    "the trace uses more than {MAX_STREAMS} streams on device {device}, the most \
                     that a device has here"
                );
                let remedy = "record the work on fewer streams";
                Err(self.site.fixed_limit(at, problem, remedy))
            }
            Entry::Vacant(unknown) => Ok(*unknown.insert(next)),
        }
    }
}

fn since(at: Position) -> String {
    format!("at {at}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn book(format: TraceFormat) -> Book<'static> {
        let limits = ReadLimits {
            max_events: 4,
            ..ReadLimits::default()
        };
        Book::new(format, Site { file: "t" }, &limits)
    }

    fn alloc(line: u64, label: u64, bytes: u64) -> RawAlloc {
        RawAlloc {
            at: Position::Line(line),
            time_us: line,
            label,
            bytes,
            device: 0,
            stream: 0,
        }
    }

    fn free(line: u64, label: u64, bytes: Option<u64>) -> RawFree {
        let at = Position::Line(line);
        RawFree {
            at,
            time_us: line,
            label,
            bytes,
            device: 0,
            stream: None,
        }
    }

    fn refusal(result: Result<(), TraceError>) -> String {
        result.unwrap_err().to_string()
    }

    #[test]
    fn reused_label_becomes_a_fresh_id() {
        let mut book = book(TraceFormat::Jsonl);
        book.alloc(alloc(1, 9, 8)).unwrap();
        book.free(free(2, 9, None)).unwrap();
        book.alloc(alloc(3, 9, 8)).unwrap();
        let trace = book.finish().unwrap();
        let ids: Vec<u64> = trace.events.iter().map(|event| event.id).collect();
        assert_eq!((ids, trace.blocks), (vec![0, 0, 1], 2));
    }

    #[test]
    fn contradictions_name_both_lines() {
        let mut book = book(TraceFormat::Jsonl);
        book.alloc(alloc(1, 9, 8)).unwrap();
        assert_eq!(
            refusal(book.alloc(alloc(2, 9, 8))),
            "t line 2: alloc of id 9, which is still live (it was allocated at line 1); \
             remove the line or record the trace again"
        );
        let elsewhere = RawFree {
            device: 1,
            ..free(3, 9, None)
        };
        assert_eq!(
            refusal(book.free(elsewhere)),
            "t line 3: free of id 9 names device 1, but it was allocated on device 0 at line 1; \
             remove the line or record the trace again"
        );
        book.free(free(4, 9, None)).unwrap();
        assert_eq!(
            refusal(book.free(free(5, 9, None))),
            "t line 5: free of id 9, which is not live (it was freed at line 4); \
             remove the line or record the trace again"
        );
        assert!(refusal(book.free(free(6, 7, None))).contains("never allocated"));
    }

    #[test]
    fn size_device_and_length_are_bounded() {
        let mut book = book(TraceFormat::Jsonl);
        assert!(refusal(book.alloc(alloc(1, 1, 0))).contains("zero bytes"));
        assert!(refusal(book.alloc(alloc(1, 1, 1 << 63))).contains("no device can hold"));
        book.alloc(alloc(1, 1, MAX_BYTES)).unwrap();
        let far = RawAlloc {
            device: 32,
            ..alloc(2, 2, 8)
        };
        assert!(refusal(book.alloc(far)).contains("device 32 is above 31"));
        book.alloc(RawAlloc {
            device: 31,
            ..alloc(2, 2, 8)
        })
        .unwrap();
        for line in 3..5 {
            book.alloc(alloc(line, line, 8)).unwrap();
        }
        assert!(refusal(book.alloc(alloc(5, 5, 8))).contains("more than 4 events"));
        assert_eq!(book.finish().unwrap().devices, 32);
    }

    #[test]
    fn a_trace_of_too_many_streams_is_refused_at_the_event_that_uses_one_more() {
        let limits = ReadLimits::default();
        let mut book = Book::new(TraceFormat::Jsonl, Site { file: "t" }, &limits);
        let on = |device, stream: u64| RawAlloc {
            stream,
            device,
            ..alloc(stream, stream + (device << 32), 8)
        };
        for stream in 0..=u64::from(MAX_STREAMS) {
            book.alloc(on(0, stream)).unwrap();
        }
        book.alloc(on(1, 9999)).unwrap();
        let message = refusal(book.alloc(on(0, 5000)));
        assert!(
            message.starts_with("t line 5000: the trace uses more than 4096 streams on device 0"),
            "{message}"
        );
    }

    #[test]
    fn a_time_that_no_recording_could_hold_is_refused() {
        let mut book = book(TraceFormat::Jsonl);
        let late = RawAlloc {
            time_us: 1 << 63,
            ..alloc(1, 1, 8)
        };
        assert!(refusal(book.alloc(late)).starts_with("t line 1: time 9223372036854775808 is"));
        book.alloc(RawAlloc {
            time_us: (1 << 63) - 1,
            ..alloc(1, 1, 8)
        })
        .unwrap();
    }

    #[test]
    fn block_of_a_late_recording_is_restored_and_noted() {
        let mut book = book(TraceFormat::RmmCsv);
        book.alloc(alloc(1, 0x10, 8)).unwrap();
        book.free(free(2, 0x20, Some(64))).unwrap();
        book.alloc(alloc(3, 0x30, 0)).unwrap();
        book.free(free(4, 0x30, Some(0))).unwrap();
        assert!(refusal(book.free(free(5, 0x20, Some(64)))).contains("address 0x20"));
        let trace = book.finish().unwrap();
        let first = trace.events.first().unwrap();
        assert_eq!((first.time_us, first.label), (1, 0x20));
        assert!(matches!(first.action, TraceAction::Alloc { bytes: 64, .. }));
        let notes: Vec<NoteKind> = trace.notes.iter().map(|note| note.kind).collect();
        assert_eq!(notes, [NoteKind::LiveBeforeRecording, NoteKind::ZeroBytes]);
    }

    #[test]
    fn streams_are_numbered_per_device_by_first_use() {
        let mut book = book(TraceFormat::RmmCsv);
        for (device, handle) in [(0, 77), (1, 99), (1, 77), (0, 0)] {
            let label = device * 8 + handle;
            book.alloc(RawAlloc {
                device,
                stream: handle,
                ..alloc(1, label, 8)
            })
            .unwrap();
        }
        let streams: Vec<u32> = (book.finish().unwrap().events.iter())
            .map(|event| match event.action {
                TraceAction::Alloc { stream, .. } | TraceAction::Free { stream, .. } => stream,
            })
            .collect();
        assert_eq!(streams, [1, 1, 2, 0]);
    }
}
