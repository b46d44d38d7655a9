//! The CSV log of RMM's `logging_resource_adaptor`.
//!
//! `Thread,Time,Action,Pointer,Size,Stream`. A log covers one device, so every event is on
//! device 0. Events keep file order across threads, as RMM's own replay does. Time is
//! `HH:MM:SS.ffffff` (older versions put a colon before the fraction) or seconds since the
//! epoch; a time of day that falls back by more than half a day starts a new day.

use std::io::Read;

use super::book::{Book, RawAlloc, RawFree};
use super::detect::{column_name, unquoted};
use super::error::{Position, Site};
use super::source::LineCap;
use super::{NoteKind, ReadLimits, Trace, TraceError, TraceFormat};

pub(super) const COLUMNS: [&str; 6] = ["thread", "time", "action", "pointer", "size", "stream"];

const RECORD_AGAIN: &str = "mend the line or record the log again";
const HALF_DAY_US: u64 = DAY_US / 2;
pub(super) const DAY_US: u64 = 24 * 3600 * 1_000_000;

/// CUDA's handle for the legacy default stream, which is the null stream by another name.
const LEGACY_STREAM: u64 = 1;

pub(super) fn is_header(columns: &[String]) -> bool {
    columns == COLUMNS
}

/// Reads an RMM log.
pub(super) fn read(
    content: impl Read,
    site: Site<'_>,
    limits: &ReadLimits,
) -> Result<Trace, TraceError> {
    let mut rows = csv_rows(content, limits);
    if !is_header(&csv_header(&mut rows, site)?) {
        let problem = "the header is not Thread,Time,Action,Pointer,Size,Stream";
        return Err(site.format(Position::Line(1), problem, RECORD_AGAIN));
    }
    let mut book = Book::new(TraceFormat::RmmCsv, site, limits);
    let mut clock = Clock::default();
    let mut row = csv::ByteRecord::new();
    while rows
        .read_byte_record(&mut row)
        .map_err(|error| csv_error(error, site))?
    {
        let at = row_position(&row);
        enter(&mut book, &mut clock, &row, at).map_err(|problem| problem.into_error(site, at))?;
    }
    book.finish()
}

/// A CSV reader for tables of plain words and numbers. Quotes are not special, so that a row is
/// a line and the cap on a line bounds the reader's memory.
pub(super) fn csv_rows<R: Read>(content: R, limits: &ReadLimits) -> csv::Reader<LineCap<R>> {
    csv::ReaderBuilder::new()
        .flexible(true)
        .quoting(false)
        .from_reader(LineCap::new(content, limits))
}

/// The names of its columns.
pub(super) fn csv_header(
    rows: &mut csv::Reader<impl Read>,
    site: Site<'_>,
) -> Result<Vec<String>, TraceError> {
    let header = rows.byte_headers();
    let header = header.map_err(|error| csv_error(error, site))?;
    Ok(header.iter().map(column_name).collect())
}

pub(super) fn csv_error(error: csv::Error, site: Site<'_>) -> TraceError {
    let at = error
        .position()
        .map_or(Position::File, |position| Position::Line(position.line()));
    let problem = error.to_string();
    if let csv::ErrorKind::Io(source) = error.into_kind() {
        return site.io(source);
    }
    site.format(at, problem, RECORD_AGAIN)
}

pub(super) fn row_position(row: &csv::ByteRecord) -> Position {
    row.position()
        .map_or(Position::File, |position| Position::Line(position.line()))
}

/// Why a row was refused: by its own text, or by the book.
enum RowProblem {
    Text(String),
    Book(TraceError),
}

impl RowProblem {
    fn into_error(self, site: Site<'_>, at: Position) -> TraceError {
        match self {
            Self::Text(problem) => site.format(at, problem, RECORD_AGAIN),
            Self::Book(error) => error,
        }
    }
}

impl From<String> for RowProblem {
    fn from(problem: String) -> Self {
        Self::Text(problem)
    }
}

impl From<TraceError> for RowProblem {
    fn from(error: TraceError) -> Self {
        Self::Book(error)
    }
}

fn enter(
    book: &mut Book<'_>,
    clock: &mut Clock,
    row: &csv::ByteRecord,
    at: Position,
) -> Result<(), RowProblem> {
    let mut fields = row.iter().map(unquoted);
    let (Some(_thread), Some(time), Some(action), Some(pointer), Some(size), Some(stream), None) = (
        fields.next(),
        fields.next(),
        fields.next(),
        fields.next(),
        fields.next(),
        fields.next(),
        fields.next(),
    ) else {
        return Err(format!("the row has {} fields, not 6", row.len()).into());
    };
    let time_us = clock.read(time)?;
    let label = parse_handle("pointer", pointer)?;
    let bytes = parse_whole("size", size)?;
    let stream = match parse_handle("stream", stream)? {
        LEGACY_STREAM => 0,
        handle => handle,
    };
    match action {
        b"allocate" => book.alloc(RawAlloc {
            at,
            time_us,
            label,
            bytes,
            device: 0,
            stream,
        })?,
        b"free" if pointer == b"(nil)" => book.note(NoteKind::ZeroBytes),
        b"free" => {
            let (bytes, stream) = (Some(bytes), Some(stream));
            book.free(RawFree {
                at,
                time_us,
                label,
                bytes,
                device: 0,
                stream,
            })?;
        }
        b"allocate failure" => book.note(NoteKind::FailedAllocations),
        _ => return Err(format!("action {} is unknown", shown(action)).into()),
    }
    Ok(())
}

/// A field for a message: short, printable, quoted.
pub(super) fn shown(field: &[u8]) -> String {
    const SHOWN_CHARS: usize = 24;
    let text = String::from_utf8_lossy(field);
    let mut short: String = text.chars().take(SHOWN_CHARS).collect();
    if text.chars().nth(SHOWN_CHARS).is_some() {
        short.push('…');
    }
    format!("{short:?}")
}

/// A decimal number from 0 to `i64::MAX`.
pub(super) fn parse_whole(what: &str, field: &[u8]) -> Result<u64, String> {
    let digits = field.strip_prefix(b"-").unwrap_or(field);
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err(format!("{what} {} is not a whole number", shown(field)));
    }
    if digits.len() < field.len() {
        return Err(format!("{what} {} is negative", shown(field)));
    }
    let number = digits.iter().try_fold(0_u64, |number, digit| {
        number.checked_mul(10)?.checked_add(u64::from(digit - b'0'))
    });
    match number {
        Some(number) if i64::try_from(number).is_ok() => Ok(number),
        Some(_) | None => Err(format!("{what} {} is above {}", shown(field), i64::MAX)),
    }
}

/// A pointer or stream handle: hexadecimal with or without `0x`, or `(nil)`. Handles are
/// labels, so a decimal one may be read as hexadecimal without harm.
fn parse_handle(what: &str, field: &[u8]) -> Result<u64, String> {
    if field == b"(nil)" {
        return Ok(0);
    }
    let digits = field
        .strip_prefix(b"0x")
        .or_else(|| field.strip_prefix(b"0X"))
        .unwrap_or(field);
    if digits.is_empty() {
        return Err(format!(
            "{what} {} is not a hexadecimal number",
            shown(field)
        ));
    }
    digits
        .iter()
        .try_fold(0_u64, |number, digit| {
            let digit = char::from(*digit).to_digit(16)?;
            number.checked_mul(16)?.checked_add(u64::from(digit))
        })
        .ok_or_else(|| {
            format!(
                "{what} {} is not a hexadecimal number of 64 bits",
                shown(field)
            )
        })
}

/// Turns times of day into times that go on past midnight.
#[derive(Default)]
struct Clock {
    last_us: u64,
    days: u64,
}

impl Clock {
    fn read(&mut self, field: &[u8]) -> Result<u64, String> {
        let bad = || format!("time {} is not HH:MM:SS.ffffff", shown(field));
        let Some((hours, rest)) = split_at(field, b':') else {
            return seconds_us(field).ok_or_else(bad);
        };
        let (minutes, seconds) = split_at(rest, b':').ok_or_else(bad)?;
        let hours = small_number(hours, 23).ok_or_else(bad)?;
        let minutes = small_number(minutes, 59).ok_or_else(bad)?;
        let seconds = seconds_us(seconds).ok_or_else(bad)?;
        if seconds >= 61 * 1_000_000 {
            return Err(bad());
        }
        let of_day = (hours * 60 + minutes) * 60 * 1_000_000 + seconds;
        if of_day + HALF_DAY_US < self.last_us {
            self.days += 1;
        }
        self.last_us = of_day;
        Ok(self.days * DAY_US + of_day)
    }
}

fn split_at(field: &[u8], separator: u8) -> Option<(&[u8], &[u8])> {
    let at = field.iter().position(|byte| *byte == separator)?;
    Some((field.get(..at)?, field.get(at + 1..)?))
}

fn small_number(field: &[u8], max: u64) -> Option<u64> {
    parse_whole("", field).ok().filter(|number| *number <= max)
}

/// `SS`, `SS.ffffff` or `SS:ffffff` in microseconds; finer digits are dropped.
fn seconds_us(field: &[u8]) -> Option<u64> {
    let (whole, fraction) = split_at(field, b'.')
        .or_else(|| split_at(field, b':'))
        .unwrap_or((field, b"0"));
    let whole = parse_whole("", whole).ok()?.checked_mul(1_000_000)?;
    if fraction.is_empty() || !fraction.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let micros = fraction
        .iter()
        .copied()
        .chain(std::iter::repeat(b'0'))
        .take(6);
    whole.checked_add(micros.fold(0, |number, digit| number * 10 + u64::from(digit - b'0')))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{TraceAction, TraceNote, read_bytes};

    const HEADER: &str = "Thread,Time,Action,Pointer,Size,Stream\n";

    fn log(rows: &str) -> Result<Trace, TraceError> {
        read_bytes(
            format!("{HEADER}{rows}").as_bytes(),
            "t",
            &ReadLimits::default(),
        )
    }

    #[test]
    fn log_as_rmm_writes_it_is_read() {
        let trace = log(
            "2342727,15:47:02.841961,allocate,0x10012400000,1048576,0x0\r\n\
                         2342727,15:47:02.841962,allocate failure,(nil),99999999999,0x7f00\r\n\
                         2342727,15:47:02.841977,free,0x10012400000,1048576,0x7f00\r\n\
                         2342727,15:47:02.841978,allocate,(nil),0,0\r\n\
                         2342727,15:47:02.841978,free,(nil),0,0\r\n",
        )
        .unwrap();
        let seen: Vec<_> = trace.events.iter().map(|e| (e.time_us, e.action)).collect();
        let alloc = TraceAction::Alloc {
            bytes: 1_048_576,
            device: 0,
            stream: 0,
        };
        let free = TraceAction::Free {
            device: 0,
            stream: 1,
        };
        assert_eq!(seen, [(56_822_841_961, alloc), (56_822_841_977, free)]);
        let failed = TraceNote {
            kind: NoteKind::FailedAllocations,
            count: 1,
        };
        let empty = TraceNote {
            kind: NoteKind::ZeroBytes,
            count: 2,
        };
        assert_eq!(trace.notes, [empty, failed]);
    }

    #[test]
    fn log_that_started_late_restores_the_blocks_it_frees() {
        let trace = log("1,00:00:01.5,free,0x10,64,0\n1,00:00:02.5,allocate,0x10,8,0\n").unwrap();
        let restored = trace.events.first().unwrap();
        assert_eq!((restored.time_us, restored.label), (1_500_000, 0x10));
        assert_eq!(trace.events.len(), 3);
        let note = trace.notes.first().unwrap();
        assert_eq!((note.kind, note.count), (NoteKind::LiveBeforeRecording, 1));
    }

    #[test]
    fn times_in_every_documented_form_agree() {
        let read = |field: &str| Clock::default().read(field.as_bytes());
        assert_eq!(read("00:00:02.000250"), Ok(2_000_250));
        assert_eq!(read("00:00:02:000250"), Ok(2_000_250));
        assert_eq!(read("2.00025"), Ok(2_000_250));
        assert_eq!(read("00:00:02"), Ok(2_000_000));
        for bad in [
            "", "x", "24:00:00", "0:60:00", "0:0:61", "0:0:1.", "0:0:-1", "1:2", "9e9",
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
        let mut clock = Clock::default();
        assert_eq!(clock.read(b"23:59:59"), Ok(DAY_US - 1_000_000));
        assert_eq!(clock.read(b"00:00:01"), Ok(DAY_US + 1_000_000));
    }

    #[test]
    fn bad_fields_are_named_with_their_line() {
        for (row, what) in [
            ("1,00:00:01,allocate,0x10,64", "5 fields"),
            ("1,00:00:01,allocate,0x10,64,0,0", "7 fields"),
            ("1,00:00:01,allocate,zz,64,0", "pointer \"zz\""),
            ("1,00:00:01,allocate,0x11112222333344445,64,0", "64 bits"),
            ("1,00:00:01,allocate,0x10,-1,0", "negative"),
            ("1,00:00:01,allocate,0x10,1e30,0", "not a whole number"),
            ("1,00:00:01,allocate,0x10,9223372036854775808,0", "above"),
            ("1,00:00:01,allocate,0x10,18446744073709551616,0", "above"),
            (
                "1,00:00:01,resize,0x10,64,0",
                "action \"resize\" is unknown",
            ),
            ("1,now,allocate,0x10,64,0", "time \"now\""),
        ] {
            let message = log(row).unwrap_err().to_string();
            assert!(
                message.starts_with("t line 2: ") && message.contains(what),
                "{message}"
            );
        }
    }
}
