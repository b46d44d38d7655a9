//! A minimalloc problem: each row is a buffer that lives from `lower` up to, and not
//! including, `upper`.
//!
//! The buffer is allocated at time `lower` and freed at time `upper`. At equal times frees come
//! first, because the intervals are half open; otherwise rows keep their order.

use std::collections::HashMap;
use std::io::Read;

use super::book::{Book, RawAlloc, RawFree};
use super::detect::unquoted;
use super::error::{Position, Site};
use super::rmm::{csv_error, csv_header, csv_rows, parse_whole, row_position, shown};
use super::{NoteKind, ReadLimits, Trace, TraceError, TraceFormat};

const MEND: &str = "mend the row";

/// Ids are kept to find the one that comes twice.
const MAX_ID_BYTES: usize = 64;

pub(super) fn is_header(columns: &[String]) -> bool {
    Columns::find(columns).is_some()
}

/// Which field of a row is which; the order of columns is free.
struct Columns {
    id: usize,
    lower: usize,
    upper: usize,
    size: usize,
    count: usize,
}

impl Columns {
    fn find(columns: &[String]) -> Option<Self> {
        let find = |name: &str| columns.iter().position(|column| column == name);
        Some(Self {
            id: find("id")?,
            lower: find("lower")?,
            upper: find("upper")?,
            size: find("size")?,
            count: columns.len(),
        })
    }
}

struct Buffer {
    at: Position,
    label: u64,
    lower: u64,
    upper: u64,
    bytes: u64,
}

/// Reads a minimalloc problem.
pub(super) fn read(
    content: impl Read,
    site: Site<'_>,
    limits: &ReadLimits,
) -> Result<Trace, TraceError> {
    let mut rows = csv_rows(content, limits);
    let Some(columns) = Columns::find(&csv_header(&mut rows, site)?) else {
        let problem = "the header lacks one of id, lower, upper, size";
        return Err(site.format(Position::Line(1), problem, "name the columns"));
    };
    let mut book = Book::new(TraceFormat::MinimallocCsv, site, limits);
    for _ in 4..columns.count {
        book.note(NoteKind::UnusedColumns);
    }
    let mut buffers = Vec::new();
    let mut lines_by_id: HashMap<Box<[u8]>, Position> = HashMap::new();
    let mut row = csv::ByteRecord::new();
    while rows
        .read_byte_record(&mut row)
        .map_err(|error| csv_error(error, site))?
    {
        let at = row_position(&row);
        let (id, buffer) = parse_row(&columns, &row, at, buffers.len())
            .map_err(|problem| site.format(at, problem, MEND))?;
        if let Some(earlier) = lines_by_id.insert(id.into(), at) {
            let problem = format!("id {} was given before at {earlier}", shown(id));
            return Err(site.sequence(at, problem, "give each buffer an id of its own"));
        }
        if lines_by_id.len() > limits.max_events / 2 {
            let problem = format!("the trace has more than {} events", limits.max_events);
            return Err(site.limit(at, problem));
        }
        if buffer.bytes == 0 {
            book.note(NoteKind::ZeroBytes);
        } else {
            buffers.push(buffer);
        }
    }
    drop(lines_by_id);
    play(&mut book, &buffers)?;
    book.finish()
}

fn parse_row<'a>(
    columns: &Columns,
    row: &'a csv::ByteRecord,
    at: Position,
    index: usize,
) -> Result<(&'a [u8], Buffer), String> {
    if row.len() != columns.count {
        return Err(format!(
            "the row has {} fields, not {}",
            row.len(),
            columns.count
        ));
    }
    let field = |column: usize| row.get(column).map(unquoted).unwrap_or_default();
    let id = field(columns.id);
    if id.is_empty() {
        return Err("the row has no id".to_owned());
    }
    if id.len() > MAX_ID_BYTES {
        return Err(format!("the id is longer than {MAX_ID_BYTES} bytes"));
    }
    let lower = parse_whole("lower", field(columns.lower))?;
    let upper = parse_whole("upper", field(columns.upper))?;
    let bytes = parse_whole("size", field(columns.size))?;
    if upper <= lower {
        return Err(format!("upper {upper} is not above lower {lower}"));
    }
    // An id may be any word in this format. A word gets a label above every number.
    let word = u64::MAX - u64::try_from(index).unwrap_or(0);
    let label = parse_whole("id", id).unwrap_or(word);
    Ok((
        id,
        Buffer {
            at,
            label,
            lower,
            upper,
            bytes,
        },
    ))
}

fn play(book: &mut Book<'_>, buffers: &[Buffer]) -> Result<(), TraceError> {
    const FREE: u8 = 0;
    const ALLOC: u8 = 1;
    let mut edges: Vec<(u64, u8, usize)> = Vec::with_capacity(buffers.len() * 2);
    for (row, buffer) in buffers.iter().enumerate() {
        edges.push((buffer.lower, ALLOC, row));
        edges.push((buffer.upper, FREE, row));
    }
    edges.sort_unstable();
    for (time_us, edge, row) in edges {
        let Some(&Buffer {
            at, label, bytes, ..
        }) = buffers.get(row)
        else {
            continue;
        };
        if edge == ALLOC {
            book.alloc(RawAlloc {
                at,
                time_us,
                label,
                bytes,
                device: 0,
                stream: 0,
            })?;
        } else {
            let bytes = Some(bytes);
            book.free(RawFree {
                at,
                time_us,
                label,
                bytes,
                device: 0,
                stream: None,
            })?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{TraceAction, read_bytes};

    fn problem(text: &str) -> Result<Trace, TraceError> {
        read_bytes(text.as_bytes(), "t", &ReadLimits::default())
    }

    #[test]
    fn frees_come_before_allocs_at_equal_times() {
        let trace = problem("id,lower,upper,size\n7,0,5,64\n8,5,9,64\n9,0,9,32\n").unwrap();
        let seen: Vec<_> = (trace.events.iter())
            .map(|e| {
                (
                    e.time_us,
                    e.label,
                    matches!(e.action, TraceAction::Alloc { .. }),
                )
            })
            .collect();
        let expected = [
            (0, 7, true),
            (0, 9, true),
            (5, 7, false),
            (5, 8, true),
            (9, 8, false),
            (9, 9, false),
        ];
        assert_eq!(seen, expected);
        assert_eq!((trace.devices, trace.blocks), (1, 3));
    }

    #[test]
    fn columns_may_come_in_any_order_with_others_beside() {
        let trace = problem("size,offset,upper,lower,id\n64,0,5,0,weights\n").unwrap();
        assert_eq!(trace.events.len(), 2);
        assert_eq!(trace.notes.first().unwrap().kind, NoteKind::UnusedColumns);
    }

    #[test]
    fn rows_without_bytes_count_too() {
        let limits = ReadLimits {
            max_events: 4,
            ..ReadLimits::default()
        };
        let text = "id,lower,upper,size\n1,0,1,0\n2,0,1,0\n3,0,1,0\n";
        let message = read_bytes(text.as_bytes(), "t", &limits)
            .unwrap_err()
            .to_string();
        assert!(
            message.starts_with("t line 4: the trace has more than 4 events"),
            "{message}"
        );
    }

    #[test]
    fn bad_rows_are_named_with_their_line() {
        for (row, what) in [
            ("1,5,5,64", "upper 5 is not above lower 5"),
            ("1,6,5,64", "upper 5 is not above lower 6"),
            ("1,-6,5,64", "negative"),
            ("1,0,5,9223372036854775808", "above"),
            ("1,0,5,1.5", "not a whole number"),
            ("1,0,5", "3 fields"),
            (",0,5,8", "no id"),
            ("0,0,1,8", "given before at line 2"),
            (&format!("{},0,1,8", "x".repeat(65)), "longer than 64 bytes"),
        ] {
            let text = format!("id,lower,upper,size\n0,0,1,8\n{row}\n");
            let message = problem(&text).unwrap_err().to_string();
            assert!(
                message.starts_with("t line 3: ") && message.contains(what),
                "{message}"
            );
        }
    }
}
