//! Which format a trace is in, by content; extensions are not trusted.

use std::io::{BufRead, BufReader, Chain, Cursor, Read};

use super::error::{Position, Site};
use super::source::{Capped, Gunzip};
use super::{ReadLimits, TraceError, TraceFormat};

/// The decompressed bytes of a trace.
pub(super) type Content<'a> = Chain<Cursor<Vec<u8>>, Box<dyn BufRead + 'a>>;

const GZIP_MAGIC: &[u8] = &[0x1f, 0x8b];
const ZIP_MAGIC: &[u8] = b"PK\x03\x04";
const PICKLE_PROTO: u8 = 0x80;
const PICKLE_PROTO_MAX: u8 = 5;
const UTF8_BOM: &[u8] = &[0xef, 0xbb, 0xbf];

/// Enough for any header line that we accept.
const HEAD_BYTES: usize = 1024;
const BUFFER_BYTES: usize = 64 << 10;

const ACCEPTED: &str = "give a JSONL trace, a PyTorch memory snapshot, an RMM log or a minimalloc \
                        CSV, each plain or gzipped";

fn peek<'a>(mut reader: Box<dyn BufRead + 'a>, site: Site<'_>) -> Result<Content<'a>, TraceError> {
    let mut head = Vec::new();
    let bound = u64::try_from(HEAD_BYTES).unwrap_or(u64::MAX);
    (&mut reader)
        .take(bound)
        .read_to_end(&mut head)
        .map_err(|error| site.io(error))?;
    Ok(Cursor::new(head).chain(reader))
}

/// Opens a trace, seeing through gzip, with a cap on the decompressed bytes.
pub(super) fn open<'a>(
    reader: impl Read + 'a,
    site: Site<'_>,
    limits: &ReadLimits,
) -> Result<Content<'a>, TraceError> {
    let raw = peek(
        Box::new(BufReader::with_capacity(BUFFER_BYTES, reader)),
        site,
    )?;
    let gzipped = raw.get_ref().0.get_ref().starts_with(GZIP_MAGIC);
    let plain: Box<dyn Read + 'a> = if gzipped {
        Box::new(Gunzip::new(raw))
    } else {
        Box::new(raw)
    };
    let capped = Capped::new(plain, limits.max_bytes);
    let mut content = peek(
        Box::new(BufReader::with_capacity(BUFFER_BYTES, capped)),
        site,
    )?;
    if content.get_ref().0.get_ref().starts_with(UTF8_BOM) {
        content.consume(UTF8_BOM.len());
    }
    Ok(content)
}

/// Tells the format of `content` from its first bytes, which stay unread.
pub(super) fn format(content: &mut Content<'_>, site: Site<'_>) -> Result<TraceFormat, TraceError> {
    let (head, _) = content.get_ref();
    let start = usize::try_from(head.position()).unwrap_or(0);
    let head = head.get_ref().get(start..).unwrap_or_default();
    let refuse = |problem: &str| Err(site.format(Position::File, problem, ACCEPTED));
    if head.is_empty() {
        return refuse("the file is empty");
    }
    if head.starts_with(GZIP_MAGIC) {
        return refuse("the file is gzip within gzip");
    }
    if head.starts_with(ZIP_MAGIC) {
        return refuse("the file is a zip archive, such as torch.save writes");
    }
    if let [PICKLE_PROTO, proto, ..] = head
        && *proto <= PICKLE_PROTO_MAX
    {
        return Ok(TraceFormat::PytorchSnapshot);
    }
    match head.trim_ascii_start().first() {
        Some(b'{') => return Ok(TraceFormat::Jsonl),
        Some(b'[') => return refuse("the file is one JSON array, not an object per line"),
        _ => {}
    }
    let line = head.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let columns = header_columns(line);
    if super::rmm::is_header(&columns) {
        Ok(TraceFormat::RmmCsv)
    } else if super::minimalloc::is_header(&columns) {
        Ok(TraceFormat::MinimallocCsv)
    } else {
        refuse("the file is not a trace in a known format")
    }
}

/// Names of a header line's columns, in lower case, without blanks and quotes.
pub(super) fn header_columns(line: &[u8]) -> Vec<String> {
    line.split(|byte| *byte == b',').map(column_name).collect()
}

/// One column's name, in lower case, without blanks and quotes.
pub(super) fn column_name(field: &[u8]) -> String {
    String::from_utf8_lossy(unquoted(field)).to_ascii_lowercase()
}

/// A CSV field without surrounding blanks and quotes; no field of ours contains either.
pub(super) fn unquoted(field: &[u8]) -> &[u8] {
    let field = field.trim_ascii();
    field
        .strip_prefix(b"\"")
        .and_then(|rest| rest.strip_suffix(b"\""))
        .unwrap_or(field)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detected(bytes: &[u8]) -> Result<TraceFormat, String> {
        let site = Site { file: "t" };
        let mut content = open(bytes, site, &ReadLimits::default()).map_err(|e| e.to_string())?;
        format(&mut content, site).map_err(|e| e.to_string())
    }

    #[test]
    fn format_follows_content() {
        assert_eq!(detected(b" {\"t\":0}"), Ok(TraceFormat::Jsonl));
        assert_eq!(detected(b"\xef\xbb\xbf{\"t\":0}"), Ok(TraceFormat::Jsonl));
        assert_eq!(detected(b"\x80\x04}."), Ok(TraceFormat::PytorchSnapshot));
        let rmm = b"Thread,Time,Action,Pointer,Size,Stream\r\n";
        assert_eq!(detected(rmm), Ok(TraceFormat::RmmCsv));
        assert_eq!(
            detected(b"id,lower,upper,size\n"),
            Ok(TraceFormat::MinimallocCsv)
        );
        assert_eq!(
            detected(b"\"size\", id,upper,lower"),
            Ok(TraceFormat::MinimallocCsv)
        );
    }

    #[test]
    fn unrelated_files_are_refused_in_one_sentence() {
        let unrelated: [&[u8]; 8] = [
            b"",
            b"PK\x03\x04 archive/data.pkl",
            b"[{\"t\":0}]",
            b"a,b,c\n",
            b"\x7fELF",
            b"\xff\xfe\x00\x01",
            b"\x80\x09.",
            b"\x1f\x8b",
        ];
        for bytes in unrelated {
            let message = detected(bytes).unwrap_err();
            assert!(message.starts_with("t: the "), "{message}");
            assert!(!message.contains('\n'), "{message}");
        }
    }
}
