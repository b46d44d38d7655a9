//! Our own trace: a JSON object per line.
//!
//! `{"t":µs,"op":"alloc","id":1,"bytes":65536,"device":0,"stream":0}` and
//! `{"t":µs,"op":"free","id":1,"device":0}`. A missing `stream` is the default stream for an
//! allocation, and the allocating stream for a free. An id may come again once it was freed.

use std::io::BufRead;

use serde::Deserialize;

use super::book::{Book, RawAlloc, RawFree};
use super::error::{Position, Site};
use super::source::Lines;
use super::{ReadLimits, Trace, TraceError, TraceFormat};

const SHAPE: &str = r#"write {"t":0,"op":"alloc","id":1,"bytes":64,"device":0} or {"t":0,"op":"free","id":1,"device":0}"#;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Op {
    Alloc,
    Free,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    t: u64,
    op: Op,
    id: u64,
    bytes: Option<u64>,
    device: u64,
    stream: Option<u64>,
}

/// Reads a JSONL trace; blank lines are skipped.
pub(super) fn read(
    content: impl BufRead,
    site: Site<'_>,
    limits: &ReadLimits,
) -> Result<Trace, TraceError> {
    let mut book = Book::new(TraceFormat::Jsonl, site, limits);
    let mut lines = Lines::new(content, site, limits);
    while let Some((number, text)) = lines.next_line()? {
        if text.trim_ascii().is_empty() {
            continue;
        }
        let at = Position::Line(number);
        let line = match Scanner::line(text) {
            Some(line) => line,
            None => serde_json::from_slice(text)
                .map_err(|error| site.format(at, json_problem(&error), SHAPE))?,
        };
        enter(&mut book, line, site, at)?;
    }
    book.finish()
}

fn enter(book: &mut Book<'_>, line: Line, site: Site<'_>, at: Position) -> Result<(), TraceError> {
    let Line {
        t: time_us,
        op,
        id: label,
        bytes,
        device,
        stream,
    } = line;
    match (op, bytes) {
        (Op::Alloc, Some(bytes)) => {
            let stream = stream.unwrap_or(0);
            book.alloc(RawAlloc {
                at,
                time_us,
                label,
                bytes,
                device,
                stream,
            })
        }
        (Op::Alloc, None) => Err(site.format(at, "the alloc has no field `bytes`", SHAPE)),
        (Op::Free, None) => book.free(RawFree {
            at,
            time_us,
            label,
            bytes,
            device,
            stream,
        }),
        (Op::Free, Some(_)) => Err(site.format(at, "the free has a field `bytes`", SHAPE)),
    }
}

/// Reads the lines that recorders write: known fields in any order, plain numbers, no escapes.
/// Anything else it leaves to serde_json, which decides what is valid and words the refusal;
/// it exists because it takes a third of the time.
struct Scanner<'a> {
    rest: &'a [u8],
}

impl<'a> Scanner<'a> {
    fn line(text: &'a [u8]) -> Option<Line> {
        let mut scanner = Self { rest: text };
        let (mut t, mut op, mut id, mut bytes, mut device, mut stream) =
            (None, None, None, None, None, None);
        scanner.take(b'{')?;
        loop {
            let key = scanner.word()?;
            scanner.take(b':')?;
            let field = match key {
                b"t" => &mut t,
                b"id" => &mut id,
                b"bytes" => &mut bytes,
                b"device" => &mut device,
                b"stream" => &mut stream,
                b"op" if op.is_none() => {
                    op = Some(match scanner.word()? {
                        b"alloc" => Op::Alloc,
                        b"free" => Op::Free,
                        _ => return None,
                    });
                    if scanner.ends_object()? {
                        break;
                    }
                    continue;
                }
                _ => return None,
            };
            let number = scanner.number()?;
            if field.replace(number).is_some() {
                return None;
            }
            if scanner.ends_object()? {
                break;
            }
        }
        scanner.skip_blanks();
        let line = Line {
            t: t?,
            op: op?,
            id: id?,
            bytes,
            device: device?,
            stream,
        };
        scanner.rest.is_empty().then_some(line)
    }

    fn skip_blanks(&mut self) {
        while let [b' ' | b'\t' | b'\r' | b'\n', rest @ ..] = self.rest {
            self.rest = rest;
        }
    }

    fn next(&mut self) -> Option<u8> {
        self.skip_blanks();
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }

    fn take(&mut self, byte: u8) -> Option<()> {
        (self.next()? == byte).then_some(())
    }

    fn ends_object(&mut self) -> Option<bool> {
        match self.next()? {
            b'}' => Some(true),
            b',' => Some(false),
            _ => None,
        }
    }

    fn word(&mut self) -> Option<&'a [u8]> {
        self.take(b'"')?;
        let letters = self
            .rest
            .iter()
            .take_while(|byte| byte.is_ascii_lowercase())
            .count();
        let (word, rest) = self.rest.split_at_checked(letters)?;
        self.rest = rest.strip_prefix(b"\"")?;
        Some(word)
    }

    fn number(&mut self) -> Option<u64> {
        self.skip_blanks();
        let digits = self
            .rest
            .iter()
            .take_while(|byte| byte.is_ascii_digit())
            .count();
        let (digits, rest) = self.rest.split_at_checked(digits)?;
        self.rest = rest;
        match digits {
            [] | [b'0', _, ..] => None,
            _ => digits.iter().try_fold(0_u64, |number, digit| {
                number.checked_mul(10)?.checked_add(u64::from(digit - b'0'))
            }),
        }
    }
}

/// The parser's words without its own "line 1 column 9", which would name the wrong line.
fn json_problem(error: &serde_json::Error) -> String {
    if error.is_eof() {
        return "the line is cut short".to_owned();
    }
    let words = error.to_string();
    let position = format!(" at line {} column {}", error.line(), error.column());
    let words = words.strip_suffix(&position).unwrap_or(&words);
    format!("column {}: {words}", error.column())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::trace::{TraceAction, read_bytes};

    fn refusal(text: &str) -> String {
        read_bytes(text.as_bytes(), "t", &ReadLimits::default())
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn both_kinds_of_line_are_read() {
        let text = "{\"t\":5,\"op\":\"alloc\",\"id\":7,\"bytes\":64,\"device\":1,\"stream\":9}\n\n\
                    {\"t\": 6, \"op\": \"free\", \"id\": 7, \"device\": 1}";
        let trace = read_bytes(text.as_bytes(), "t", &ReadLimits::default()).unwrap();
        assert_eq!(
            (trace.format, trace.devices, trace.blocks),
            (TraceFormat::Jsonl, 2, 1)
        );
        let actions: Vec<_> = trace
            .events
            .iter()
            .map(|e| (e.time_us, e.label, e.action))
            .collect();
        let alloc = TraceAction::Alloc {
            bytes: 64,
            device: 1,
            stream: 1,
        };
        let free = TraceAction::Free {
            device: 1,
            stream: 1,
        };
        assert_eq!(actions, [(5, 7, alloc), (6, 7, free)]);
        assert!(trace.notes.is_empty());
    }

    #[test]
    fn sizes_that_are_not_whole_and_small_are_refused() {
        for size in [
            "-1",
            "0",
            "9223372036854775808",
            "18446744073709551616",
            "1e30",
            "1.5",
            "\"8\"",
        ] {
            let message = refusal(&format!(
                "{{\"t\":0,\"op\":\"alloc\",\"id\":1,\"bytes\":{size},\"device\":0}}"
            ));
            assert!(message.starts_with("t line 1: "), "{message}");
            assert!(!message.contains("at line 1 column"), "{message}");
        }
    }

    #[test]
    fn unknown_and_missing_fields_are_named() {
        let message = refusal("{\"t\":0,\"op\":\"alloc\",\"id\":1,\"size\":8,\"device\":0}");
        assert!(message.contains("unknown field `size`"), "{message}");
        let message = refusal("{\"t\":0,\"op\":\"alloc\",\"id\":1,\"device\":0}");
        assert!(message.contains("no field `bytes`"), "{message}");
        let message = refusal("{\"t\":0,\"op\":\"alloc\",\"id\":1,\"bytes\":8}");
        assert!(message.contains("missing field `device`"), "{message}");
        let message = refusal("{\"t\":0,\"op\":\"free\",\"id\":1,\"bytes\":8,\"device\":0}");
        assert!(message.contains("free has a field `bytes`"), "{message}");
        let message = refusal("{\"t\":0,\"op\":\"alloc\",\"id\":1,\"by");
        assert!(message.contains("cut short"), "{message}");
    }

    #[test]
    fn scanner_takes_what_recorders_write() {
        for text in [
            "{\"t\":5,\"op\":\"alloc\",\"id\":7,\"bytes\":64,\"device\":1,\"stream\":9}\r\n",
            " { \"op\" : \"free\" , \"id\" : 0 , \"t\" : 18446744073709551615, \"device\": 1 } ",
        ] {
            let line = Scanner::line(text.as_bytes());
            assert!(line.is_some(), "{text}");
            assert_eq!(line, serde_json::from_str(text).ok(), "{text}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn scanner_takes_only_what_serde_takes_alike(
            parts in prop::collection::vec(prop::sample::select(vec![
                "{", "}", ":", ",", " ", "0", "17", "-1", "1.5", "18446744073709551616", "null",
                "\"t\":1", "\"op\":\"alloc\"", "\"op\":\"free\"", "\"id\":", "\"bytes\":8",
                "\"device\":0", "\"stream\":", "\"x\":1", "\"i\\u0064\":1", "é",
            ]), 0..12),
            whole in any::<bool>(),
        ) {
            let text = if whole { format!("{{{}}}", parts.join(",")) } else { parts.concat() };
            if let Some(line) = Scanner::line(text.as_bytes()) {
                prop_assert_eq!(Some(line), serde_json::from_str(&text).ok());
            }
        }
    }

    #[test]
    fn device_above_31_is_refused() {
        for device in ["32", "4294967296", "-1"] {
            let line =
                format!("{{\"t\":0,\"op\":\"alloc\",\"id\":1,\"bytes\":8,\"device\":{device}}}");
            assert!(refusal(&line).starts_with("t line 1: "));
        }
    }
}
