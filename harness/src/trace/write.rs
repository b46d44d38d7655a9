//! Writing a run of ours as a trace that our readers and other people's tools take.

use std::collections::HashMap;
use std::io::{self, Write};

use super::rmm::DAY_US;

/// What happened in a recorded event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RecordedKind {
    /// A block was allocated.
    Alloc,
    /// A block was freed and its memory is free for others.
    Free,
    /// An allocation was refused; the address means nothing.
    Refused,
}

/// An event of a recorded run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordedEvent {
    /// Time in microseconds on any clock.
    pub time_us: u64,
    /// Index into [`RecordedRun::devices`].
    pub device: u32,
    /// What happened.
    pub kind: RecordedKind,
    /// Address of the block on its device.
    pub address: u64,
    /// Bytes that the block takes, after rounding.
    pub bytes: u64,
    /// Bytes asked for.
    pub requested_bytes: u64,
    /// Stream number; 0 is the default stream.
    pub stream: u32,
}

/// A block that was live when the recording ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordedBlock {
    /// Offset from the segment's address, in bytes.
    pub offset_bytes: u64,
    /// Bytes that the block takes, after rounding.
    pub bytes: u64,
    /// Bytes asked for.
    pub requested_bytes: u64,
}

/// A part of a device's pool that lies in one piece, at the end of a recording.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedSegment {
    /// Address of the first byte.
    pub address: u64,
    /// Size, in bytes.
    pub bytes: u64,
    /// Live blocks, in any order; they do not overlap and lie within the segment.
    pub blocks_at_end: Vec<RecordedBlock>,
}

/// The pool of one device at the end of a recording.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RecordedDevice {
    /// Its parts.
    pub segments: Vec<RecordedSegment>,
}

impl RecordedDevice {
    fn bytes(&self) -> u64 {
        self.segments
            .iter()
            .fold(0, |sum, segment| sum.saturating_add(segment.bytes))
    }
}

/// A run as it was recorded.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RecordedRun {
    /// The devices, by index.
    pub devices: Vec<RecordedDevice>,
    /// The events, in order.
    pub events: Vec<RecordedEvent>,
}

fn invalid(problem: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, problem)
}

/// Writes the run as our JSONL trace. Refused allocations have no line. Ids count from 1.
///
/// # Errors
/// What `out` reports, and `InvalidInput` if an event frees a block that is not live.
pub fn write_jsonl(run: &RecordedRun, out: &mut impl Write) -> io::Result<()> {
    let mut live: HashMap<(u32, u64), (u64, u32)> = HashMap::new();
    let mut last_id = 0_u64;
    for event in &run.events {
        let RecordedEvent {
            time_us,
            device,
            address,
            requested_bytes,
            stream,
            ..
        } = *event;
        match event.kind {
            RecordedKind::Alloc => {
                last_id += 1;
                live.insert((device, address), (last_id, stream));
                writeln!(
                    out,
                    "{{\"t\":{time_us},\"op\":\"alloc\",\"id\":{last_id},\
                     \"bytes\":{requested_bytes},\"device\":{device},\"stream\":{stream}}}"
                )?;
            }
            RecordedKind::Free => {
                let (id, own_stream) = live.remove(&(device, address)).ok_or_else(|| {
                    invalid(format!(
                        "device {device} frees {address:#x}, which is not live"
                    ))
                })?;
                write!(
                    out,
                    "{{\"t\":{time_us},\"op\":\"free\",\"id\":{id},\"device\":{device}"
                )?;
                if stream != own_stream {
                    write!(out, ",\"stream\":{stream}")?;
                }
                out.write_all(b"}\n")?;
            }
            RecordedKind::Refused => {}
        }
    }
    Ok(())
}

/// Writes one device's events as an RMM log, as RMM writes a log per device. Times are taken
/// modulo a day, since the format has no date.
///
/// # Errors
/// What `out` reports.
pub fn write_rmm_csv(run: &RecordedRun, device: u32, out: &mut impl Write) -> io::Result<()> {
    out.write_all(b"Thread,Time,Action,Pointer,Size,Stream\n")?;
    for event in run.events.iter().filter(|event| event.device == device) {
        let micros = event.time_us % DAY_US;
        let seconds = micros / 1_000_000;
        write!(
            out,
            "1,{:02}:{:02}:{:02}.{:06},",
            seconds / 3600,
            seconds / 60 % 60,
            seconds % 60,
            micros % 1_000_000
        )?;
        match event.kind {
            RecordedKind::Alloc => write!(out, "allocate,{:#x}", event.address)?,
            RecordedKind::Free => write!(out, "free,{:#x}", event.address)?,
            RecordedKind::Refused => out.write_all(b"allocate failure,(nil)")?,
        }
        write!(out, ",{},", event.requested_bytes)?;
        match event.stream {
            0 => out.write_all(b"0\n")?,
            // Handles 1 and 2 are CUDA's names for its default streams.
            stream => writeln!(out, "{:#x}", (u64::from(stream) + 1) << 4)?,
        }
    }
    Ok(())
}

/// Writes the run as a PyTorch memory snapshot, which <https://pytorch.org/memory_viz> opens.
///
/// Each part of a pool is a segment. A free is written as `free_requested` and `free_completed`, a
/// refusal as `oom` with the bytes of the pool that were free.
///
/// # Errors
/// What `out` reports, and `InvalidInput` if an event names no device of the run, or if blocks
/// at the end overlap or leave their segment.
pub fn write_pytorch_snapshot(run: &RecordedRun, out: &mut impl Write) -> io::Result<()> {
    if let Some(event) = run
        .events
        .iter()
        .find(|event| usize_of(event.device) >= run.devices.len())
    {
        return Err(invalid(format!(
            "an event names device {}, which is not there",
            event.device
        )));
    }
    let mut pickle = Pickle::begin(out)?;
    pickle.dict(|root| {
        root.text("segments")?;
        root.list(|segments| {
            for (index, device) in (0_u64..).zip(&run.devices) {
                for part in &device.segments {
                    segments.append_dict(|segment| write_segment(segment, index, part))?;
                }
            }
            Ok(())
        })?;
        root.text("device_traces")?;
        root.list(|traces| {
            for (index, device) in (0_u32..).zip(&run.devices) {
                let events = run.events.iter().filter(|event| event.device == index);
                traces.append_list(|trace| write_device_trace(trace, device, events))?;
            }
            Ok(())
        })?;
        // Readers test `allocator_settings` and `external_annotations` for presence only.
        root.text("allocator_settings")?;
        root.dict(|_| Ok(()))?;
        root.text("external_annotations")?;
        root.list(|_| Ok(()))
    })?;
    pickle.end()
}

fn usize_of(index: u32) -> usize {
    usize::try_from(index).unwrap_or(usize::MAX)
}

fn write_segment<W: Write>(
    segment: &mut Pickle<'_, W>,
    index: u64,
    part: &RecordedSegment,
) -> io::Result<()> {
    let mut blocks = part.blocks_at_end.clone();
    blocks.sort_by_key(|block| block.offset_bytes);
    let taken: u64 = blocks.iter().map(|block| block.bytes).sum();
    let requested = blocks.iter().map(|block| block.requested_bytes).sum();
    segment.field("device", index)?;
    segment.field("address", part.address)?;
    segment.field("total_size", part.bytes)?;
    segment.field("allocated_size", taken)?;
    segment.field("active_size", taken)?;
    segment.field("requested_size", requested)?;
    segment.field("stream", 0)?;
    segment.text("segment_type")?;
    segment.text("large")?;
    segment.text("segment_pool_id")?;
    segment.zero_pair()?;
    segment.text("is_expandable")?;
    segment.put(b"\x89")?;
    segment.text("frames")?;
    segment.list(|_| Ok(()))?;
    segment.text("blocks")?;
    segment.list(|list| write_blocks(list, part, &blocks))
}

/// Blocks must tile the segment: the page derives each address from the sizes before it.
fn write_blocks<W: Write>(
    list: &mut Pickle<'_, W>,
    part: &RecordedSegment,
    blocks: &[RecordedBlock],
) -> io::Result<()> {
    let mut end = 0;
    for block in blocks {
        let outside = || {
            invalid(format!(
                "blocks overlap or leave their segment at offset {end}"
            ))
        };
        let gap = block.offset_bytes.checked_sub(end).ok_or_else(outside)?;
        let next_end = block
            .offset_bytes
            .checked_add(block.bytes)
            .ok_or_else(outside)?;
        if next_end > part.bytes {
            return Err(outside());
        }
        write_block(list, part.address.saturating_add(end), gap, None)?;
        let address = part.address.saturating_add(block.offset_bytes);
        write_block(list, address, block.bytes, Some(block.requested_bytes))?;
        end = next_end;
    }
    let rest = part.bytes.saturating_sub(end);
    write_block(list, part.address.saturating_add(end), rest, None)
}

/// Writes a live block, or a free one if nothing is requested; a block of no bytes is left out.
fn write_block<W: Write>(
    list: &mut Pickle<'_, W>,
    address: u64,
    bytes: u64,
    requested: Option<u64>,
) -> io::Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    list.append_dict(|block| {
        block.field("address", address)?;
        block.field("size", bytes)?;
        block.field("requested_size", requested.unwrap_or(0))?;
        block.text("state")?;
        block.text(if requested.is_some() {
            "active_allocated"
        } else {
            "inactive"
        })?;
        block.text("frames")?;
        block.list(|_| Ok(()))
    })
}

fn write_device_trace<'a, W: Write>(
    trace: &mut Pickle<'_, W>,
    device: &RecordedDevice,
    events: impl Iterator<Item = &'a RecordedEvent>,
) -> io::Result<()> {
    let whole = device.bytes();
    let mut free = whole;
    let mut events = events.peekable();
    let Some(first) = events.peek().copied() else {
        return Ok(());
    };
    for part in &device.segments {
        let segment = RecordedEvent {
            address: part.address,
            requested_bytes: part.bytes,
            stream: 0,
            ..*first
        };
        trace.append_dict(|entry| write_entry(entry, "segment_alloc", "addr", &segment))?;
    }
    for event in events {
        match event.kind {
            RecordedKind::Alloc => {
                free = free.saturating_sub(event.bytes);
                trace.append_dict(|entry| write_entry(entry, "alloc", "addr", event))?;
            }
            RecordedKind::Free => {
                free = free.saturating_add(event.bytes).min(whole);
                trace.append_dict(|entry| write_entry(entry, "free_requested", "addr", event))?;
                trace.append_dict(|entry| write_entry(entry, "free_completed", "addr", event))?;
            }
            RecordedKind::Refused => {
                let refusal = RecordedEvent {
                    address: free,
                    ..*event
                };
                trace.append_dict(|entry| write_entry(entry, "oom", "device_free", &refusal))?;
            }
        }
    }
    Ok(())
}

fn write_entry<W: Write>(
    entry: &mut Pickle<'_, W>,
    action: &'static str,
    address_key: &'static str,
    event: &RecordedEvent,
) -> io::Result<()> {
    entry.text("action")?;
    entry.text(action)?;
    entry.field(address_key, event.address)?;
    entry.field("size", event.requested_bytes)?;
    entry.field("stream", u64::from(event.stream))?;
    entry.field("time_us", event.time_us)?;
    entry.text("frames")?;
    entry.list(|_| Ok(()))
}

/// Writes pickle protocol 4 with the opcodes that memory_viz knows. Lists grow by one item at a
/// time: the page passes a batch as arguments of one call, and a long batch overflows its stack.
struct Pickle<'a, W> {
    out: &'a mut W,
    /// Memo numbers of the texts written so far.
    memo: HashMap<&'static str, u32>,
}

impl<'a, W: Write> Pickle<'a, W> {
    fn begin(out: &'a mut W) -> io::Result<Self> {
        out.write_all(b"\x80\x04")?;
        Ok(Self {
            out,
            memo: HashMap::new(),
        })
    }

    fn end(self) -> io::Result<()> {
        self.out.write_all(b".")
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.out.write_all(bytes)
    }

    fn dict(&mut self, items: impl FnOnce(&mut Self) -> io::Result<()>) -> io::Result<()> {
        self.put(b"}(")?;
        items(self)?;
        self.put(b"u")
    }

    /// An empty list, then what `items` appends to it.
    fn list(&mut self, items: impl FnOnce(&mut Self) -> io::Result<()>) -> io::Result<()> {
        self.put(b"]")?;
        items(self)
    }

    fn append_dict(&mut self, items: impl FnOnce(&mut Self) -> io::Result<()>) -> io::Result<()> {
        self.dict(items)?;
        self.put(b"a")
    }

    fn append_list(&mut self, items: impl FnOnce(&mut Self) -> io::Result<()>) -> io::Result<()> {
        self.list(items)?;
        self.put(b"a")
    }

    fn zero_pair(&mut self) -> io::Result<()> {
        self.put(b"K\0K\0\x86")
    }

    fn field(&mut self, key: &'static str, number: u64) -> io::Result<()> {
        self.text(key)?;
        self.number(number)
    }

    /// A text of at most 255 bytes, once in full and then by its memo number.
    fn text(&mut self, text: &'static str) -> io::Result<()> {
        if let Some(known) = self.memo.get(text) {
            let known = u8::try_from(*known).map_err(|_| invalid("too many texts".to_owned()))?;
            return self.put(&[b'h', known]);
        }
        let length = u8::try_from(text.len()).map_err(|_| invalid("text too long".to_owned()))?;
        let next = u32::try_from(self.memo.len()).unwrap_or(u32::MAX);
        self.memo.insert(text, next);
        self.put(&[0x8c, length])?;
        self.put(text.as_bytes())?;
        self.put(b"\x94")
    }

    fn number(&mut self, number: u64) -> io::Result<()> {
        if let Ok(byte) = u8::try_from(number) {
            return self.put(&[b'K', byte]);
        }
        if let Ok(short) = u16::try_from(number) {
            self.put(b"M")?;
            return self.put(&short.to_le_bytes());
        }
        // The ninth byte keeps a number above 2^63 - 1 from reading as negative.
        let signed = i64::try_from(number).is_ok();
        self.put(&[0x8a, if signed { 8 } else { 9 }])?;
        self.put(&number.to_le_bytes())?;
        if signed { Ok(()) } else { self.put(&[0]) }
    }
}
