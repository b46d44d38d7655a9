//! Byte sources that know where to stop: a cap on bytes, a cap on a line, damaged gzip.

use std::io::{self, BufRead, Read};
use std::sync::atomic::{AtomicBool, Ordering};

use super::error::{Position, Site, SourceProblem};
use super::{ReadLimits, TraceError};

/// Refuses to yield more than a fixed number of bytes.
pub(super) struct Capped<R> {
    inner: R,
    max: u64,
    left: u64,
}

impl<R: Read> Capped<R> {
    pub(super) fn new(inner: R, max: u64) -> Self {
        Self {
            inner,
            max,
            left: max,
        }
    }
}

impl<R: Read> Read for Capped<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buf)?;
        self.left = (self.left)
            .checked_sub(read as u64)
            .ok_or(SourceProblem::TooManyBytes { max: self.max })?;
        Ok(read)
    }
}

/// Stops yielding bytes once a flag is set.
pub(super) struct Stoppable<'a, R> {
    inner: R,
    stop: &'a AtomicBool,
}

impl<'a, R: Read> Stoppable<'a, R> {
    pub(super) fn new(inner: R, stop: &'a AtomicBool) -> Self {
        Self { inner, stop }
    }
}

impl<R: Read> Read for Stoppable<'_, R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(SourceProblem::Stopped.into());
        }
        self.inner.read(buf)
    }
}

/// Tells a damaged gzip stream from a file that cannot be read.
pub(super) struct Gunzip<R> {
    inner: flate2::bufread::MultiGzDecoder<R>,
}

impl<R: BufRead> Gunzip<R> {
    pub(super) fn new(inner: R) -> Self {
        Self {
            inner: flate2::bufread::MultiGzDecoder::new(inner),
        }
    }
}

impl<R: BufRead> Read for Gunzip<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.inner.read(buf).map_err(|error| {
            let damaged = matches!(
                error.kind(),
                io::ErrorKind::InvalidInput
                    | io::ErrorKind::InvalidData
                    | io::ErrorKind::UnexpectedEof
            );
            if damaged {
                SourceProblem::GzipDamaged.into()
            } else {
                error
            }
        })
    }
}

/// Refuses a line that is too long, for readers that would buffer all of it.
pub(super) struct LineCap<R> {
    inner: R,
    max: usize,
    line: u64,
    run: usize,
}

impl<R: Read> LineCap<R> {
    pub(super) fn new(inner: R, limits: &ReadLimits) -> Self {
        Self {
            inner,
            max: limits.max_line_bytes,
            line: 1,
            run: 0,
        }
    }
}

impl<R: Read> Read for LineCap<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buf)?;
        for part in buf
            .get(..read)
            .unwrap_or_default()
            .split_inclusive(|byte| *byte == b'\n')
        {
            self.run += part.len();
            if self.run > self.max {
                return Err(SourceProblem::LineTooLong {
                    line: self.line,
                    max: self.max,
                }
                .into());
            }
            if part.ends_with(b"\n") {
                self.run = 0;
                self.line += 1;
            }
        }
        Ok(read)
    }
}

/// Lines of a text, in one reused buffer.
pub(super) struct Lines<'a, R> {
    reader: R,
    site: Site<'a>,
    max: usize,
    line: u64,
    buffer: Vec<u8>,
}

impl<'a, R: BufRead> Lines<'a, R> {
    pub(super) fn new(reader: R, site: Site<'a>, limits: &ReadLimits) -> Self {
        Self {
            reader,
            site,
            max: limits.max_line_bytes,
            line: 0,
            buffer: Vec::new(),
        }
    }

    /// The next line with its number, counted from 1; `None` at the end.
    pub(super) fn next_line(&mut self) -> Result<Option<(u64, &[u8])>, TraceError> {
        self.buffer.clear();
        self.line += 1;
        let room = u64::try_from(self.max)
            .unwrap_or(u64::MAX)
            .saturating_add(1);
        let mut bounded = (&mut self.reader).take(room);
        let read = bounded
            .read_until(b'\n', &mut self.buffer)
            .map_err(|e| self.site.io(e))?;
        if read == 0 {
            return Ok(None);
        }
        if read > self.max {
            let problem = SourceProblem::LineTooLong {
                line: self.line,
                max: self.max,
            };
            return Err(self
                .site
                .limit(Position::Line(self.line), problem.to_string()));
        }
        Ok(Some((self.line, &self.buffer)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(max_line_bytes: usize) -> ReadLimits {
        ReadLimits {
            max_line_bytes,
            ..ReadLimits::default()
        }
    }

    #[test]
    fn capped_source_stops_at_its_limit() {
        let mut out = Vec::new();
        Capped::new(&b"abcd"[..], 4).read_to_end(&mut out).unwrap();
        assert_eq!(out, b"abcd");
        assert!(Capped::new(&b"abcde"[..], 4).read_to_end(&mut out).is_err());
    }

    #[test]
    fn long_line_is_refused_with_its_number_by_both_readers() {
        let text = b"ab\nabcdef\n";
        let site = Site { file: "t" };
        let mut lines = Lines::new(&text[..], site, &limits(4));
        assert_eq!(lines.next_line().unwrap().unwrap(), (1, &b"ab\n"[..]));
        let from_lines = lines.next_line().unwrap_err().to_string();
        let error = LineCap::new(&text[..], &limits(4))
            .read_to_end(&mut Vec::new())
            .unwrap_err();
        assert_eq!(from_lines, site.io(error).to_string());
        assert!(from_lines.starts_with("t line 2: "), "{from_lines}");
    }
}
