//! Recorded allocation traces: reading them in four formats, and writing our own runs.
//!
//! Every reader feeds one `Book`, so what makes a trace valid is decided once:
//! an event frees only what is live, an allocation has a size, a device index is at most 31.
//! What a reader leaves out or adds is counted in [`Trace::notes`], never silent.
//!
//! Formats are told apart by content, not by extension; gzip is seen through. Readers stream: no
//! reader holds the file beside the events. Nothing in a pickle is ever executed.
//!
//! Left out on purpose: what a trace means to an allocator (see the replay), and events of
//! the recording allocator's own segments.

mod book;
mod detect;
mod error;
mod jsonl;
mod minimalloc;
mod pickle;
mod pytorch;
mod record;
mod rmm;
mod source;
#[cfg(test)]
mod tests;
mod write;

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use error::Site;

pub use error::{Complaint, Position, TraceError};
pub use record::write_files;
pub use write::{
    RecordedBlock, RecordedDevice, RecordedEvent, RecordedKind, RecordedRun, RecordedSegment,
    write_jsonl, write_pytorch_snapshot, write_rmm_csv,
};

/// The highest device index that a trace may name; a device mask has 32 bits.
pub const MAX_DEVICE_INDEX: u32 = 31;

/// The most streams of one device that a trace may use, the default stream not counted.
pub const MAX_STREAMS: u32 = 4096;

/// A file format that a trace can be read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TraceFormat {
    /// Our own: a JSON object per line.
    Jsonl,
    /// The pickle that `torch.cuda.memory._dump_snapshot` writes.
    PytorchSnapshot,
    /// The CSV log of RMM's `logging_resource_adaptor`.
    RmmCsv,
    /// A minimalloc problem: buffers with lifetimes, as CSV.
    MinimallocCsv,
}

impl TraceFormat {
    /// The name used in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Jsonl => "jsonl",
            Self::PytorchSnapshot => "pytorch-snapshot",
            Self::RmmCsv => "rmm-csv",
            Self::MinimallocCsv => "minimalloc-csv",
        }
    }
}

impl fmt::Display for TraceFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What an event does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TraceAction {
    /// A block comes to life.
    Alloc {
        /// Size asked for, in bytes; at least 1 and at most `i64::MAX`.
        bytes: u64,
        /// Device index, at most [`MAX_DEVICE_INDEX`].
        device: u32,
        /// Stream number, dense per device in order of first use; 0 is the default stream.
        stream: u32,
    },
    /// A live block dies.
    Free {
        /// Device index; equal to that of the allocation.
        device: u32,
        /// Stream that frees; the allocating stream where the format does not say.
        stream: u32,
    },
}

/// One event of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceEvent {
    /// Time in microseconds on the recorder's clock. File order is kept, so time may step back.
    /// For minimalloc it is the file's own unit of time.
    pub time_us: u64,
    /// The block: dense from 0 and unique within the trace, so it may index a table.
    pub id: u64,
    /// What the file calls the block: the id, or the address where the format has no ids.
    pub label: u64,
    /// What happens to the block.
    pub action: TraceAction,
}

/// Something that a reader left out of a trace or added to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum NoteKind {
    /// Blocks freed, or still live, whose allocation precedes the recording; allocations of
    /// them were added at the start.
    LiveBeforeRecording,
    /// Allocations of zero bytes, left out.
    ZeroBytes,
    /// Allocations that failed when recorded, left out.
    FailedAllocations,
    /// Events of the recording allocator's own segments, left out.
    SegmentEvents,
    /// Actions that are neither allocation nor free, left out.
    OtherActions,
    /// Frees that name another size than the allocation; the allocation's is kept.
    SizeMismatches,
    /// Columns that say nothing about allocation, left out.
    UnusedColumns,
}

impl NoteKind {
    pub(crate) const ALL: [Self; 7] = [
        Self::LiveBeforeRecording,
        Self::ZeroBytes,
        Self::FailedAllocations,
        Self::SegmentEvents,
        Self::OtherActions,
        Self::SizeMismatches,
        Self::UnusedColumns,
    ];
}

/// How often a reader left something out or added something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceNote {
    /// What was left out or added.
    pub kind: NoteKind,
    /// How many times; at least 1.
    pub count: u64,
}

impl fmt::Display for TraceNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.kind {
            NoteKind::LiveBeforeRecording => {
                "blocks were allocated before the recording began; allocations of them were \
                 added at the start"
            }
            NoteKind::ZeroBytes => "allocations of zero bytes left out",
            NoteKind::FailedAllocations => "allocations that failed when recorded left out",
            NoteKind::SegmentEvents => {
                "events of the recording allocator's own segments left out (they are its bookkeeping)"
            }
            NoteKind::OtherActions => "events that neither allocate nor free left out",
            NoteKind::SizeMismatches => {
                "frees name another size than the allocation; the allocation's size is kept"
            }
            NoteKind::UnusedColumns => "columns without meaning for a replay left out",
        };
        write!(f, "{} {text}", self.count)
    }
}

/// A validated trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace {
    /// The format it was read from.
    pub format: TraceFormat,
    /// The events, in file order; at least one.
    pub events: Vec<TraceEvent>,
    /// Number of devices that a replay needs: the highest device index named, plus 1.
    pub devices: u32,
    /// Number of distinct blocks; every event's id is below it.
    pub blocks: u64,
    /// What the reader left out or added; empty if nothing.
    pub notes: Vec<TraceNote>,
}

/// How much a reader accepts before it refuses. A trace at the limits is read in less than 1 GB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadLimits {
    /// Bytes of the file once decompressed.
    pub max_bytes: u64,
    /// Bytes of one line of a text format.
    pub max_line_bytes: usize,
    /// Events of the trace, up to 200 bytes of memory each while it is read.
    pub max_events: usize,
    /// Values of a pickle that are held at once, up to 32 bytes of memory each.
    pub max_pickle_items: usize,
}

impl Default for ReadLimits {
    fn default() -> Self {
        Self {
            max_bytes: 4 << 30,
            max_line_bytes: 64 << 10,
            max_events: 3_500_000,
            max_pickle_items: 20 << 20,
        }
    }
}

/// Reads the trace in the file at `path`, whatever its extension.
///
/// # Errors
/// [`TraceError::Io`] if the file cannot be read, [`TraceError::Format`] if it is not a trace
/// or is damaged, [`TraceError::Sequence`] if its events contradict each other, and
/// [`TraceError::Limit`] if it exceeds `limits`.
pub fn read_path(path: &Path, limits: &ReadLimits) -> Result<Trace, TraceError> {
    let file = path.display().to_string();
    let opened = File::open(path).map_err(|source| Site { file: &file }.io(source))?;
    read_from(opened, &file, limits)
}

/// As [`read_path`], until `stop` is set.
///
/// # Errors
/// As [`read_path`], and [`TraceError::Stopped`].
pub fn read_path_until(
    path: &Path,
    limits: &ReadLimits,
    stop: &AtomicBool,
) -> Result<Trace, TraceError> {
    let file = path.display().to_string();
    let opened = File::open(path).map_err(|source| Site { file: &file }.io(source))?;
    read_from(source::Stoppable::new(opened, stop), &file, limits)
}

/// Reads a trace from `reader`; `file` names it in errors.
///
/// # Errors
/// As [`read_path`].
pub fn read_from(reader: impl Read, file: &str, limits: &ReadLimits) -> Result<Trace, TraceError> {
    let site = Site { file };
    let mut content = detect::open(reader, site, limits)?;
    let format = detect::format(&mut content, site)?;
    read_content(format, content, site, limits)
}

/// Reads a trace from memory; `file` names it in errors.
///
/// # Errors
/// As [`read_path`], without [`TraceError::Io`].
pub fn read_bytes(bytes: &[u8], file: &str, limits: &ReadLimits) -> Result<Trace, TraceError> {
    read_from(bytes, file, limits)
}

/// Reads a trace of a known format from memory, without detection; `file` names it in errors.
///
/// # Errors
/// As [`read_bytes`].
pub fn read_bytes_as(
    format: TraceFormat,
    bytes: &[u8],
    file: &str,
    limits: &ReadLimits,
) -> Result<Trace, TraceError> {
    let site = Site { file };
    read_content(format, detect::open(bytes, site, limits)?, site, limits)
}

fn read_content(
    format: TraceFormat,
    content: detect::Content<'_>,
    site: Site<'_>,
    limits: &ReadLimits,
) -> Result<Trace, TraceError> {
    match format {
        TraceFormat::Jsonl => jsonl::read(content, site, limits),
        TraceFormat::PytorchSnapshot => pytorch::read(content, site, limits),
        TraceFormat::RmmCsv => rmm::read(content, site, limits),
        TraceFormat::MinimallocCsv => minimalloc::read(content, site, limits),
    }
}
