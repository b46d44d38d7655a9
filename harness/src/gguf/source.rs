//! A forward reader that knows its position, its end and its limit.

use super::error::{GgufError, GgufFault};
use std::io::{BufRead, BufReader, Read};

/// The longest header that is read, in bytes. The largest vocabularies of today make about 20 MiB.
pub(super) const HEADER_BYTES_MAX: u64 = 256 << 20;

pub(super) struct Source<'a, R> {
    reader: BufReader<R>,
    file: &'a str,
    at: u64,
    length: Option<u64>,
}

impl<'a, R: Read> Source<'a, R> {
    pub(super) fn new(reader: R, file: &'a str, length: Option<u64>) -> Self {
        Self {
            reader: BufReader::with_capacity(64 << 10, reader),
            file,
            at: 0,
            length,
        }
    }

    /// The position of the next byte.
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    /// The error of `fault` at byte `at`.
    pub(super) fn fail(&self, at: u64, fault: GgufFault) -> GgufError {
        GgufError {
            file: self.file.to_owned(),
            at,
            fault,
        }
    }

    /// Makes sure that `bytes` more bytes may exist before anyone waits for or stores them.
    fn claim(&self, bytes: u64, what: &str) -> Result<(), GgufError> {
        let end = self.at.checked_add(bytes);
        if let Some(length) = self.length
            && end.is_none_or(|end| end > length)
        {
            return Err(self.fail(self.at, GgufFault::Cut(what.to_owned())));
        }
        if end.is_none_or(|end| end > HEADER_BYTES_MAX) {
            let limit = HEADER_BYTES_MAX;
            return Err(self.fail(self.at, GgufFault::HeaderTooLarge { limit }));
        }
        Ok(())
    }

    fn failed_read(&self, error: &std::io::Error, what: &str) -> GgufError {
        let fault = if error.kind() == std::io::ErrorKind::UnexpectedEof {
            GgufFault::Cut(what.to_owned())
        } else {
            GgufFault::Io(error.to_string())
        };
        self.fail(self.at, fault)
    }

    fn fixed<const N: usize>(&mut self, what: &str) -> Result<[u8; N], GgufError> {
        self.claim(N as u64, what)?;
        let mut bytes = [0; N];
        self.reader
            .read_exact(&mut bytes)
            .map_err(|error| self.failed_read(&error, what))?;
        self.at += N as u64;
        Ok(bytes)
    }

    pub(super) fn u8(&mut self, what: &str) -> Result<u8, GgufError> {
        self.fixed(what).map(u8::from_le_bytes)
    }

    pub(super) fn u16(&mut self, what: &str) -> Result<u16, GgufError> {
        self.fixed(what).map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self, what: &str) -> Result<u32, GgufError> {
        self.fixed(what).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, what: &str) -> Result<u64, GgufError> {
        self.fixed(what).map(u64::from_le_bytes)
    }

    pub(super) fn magic(&mut self) -> Result<[u8; 4], GgufError> {
        self.fixed("the magic")
    }

    /// Reads `length` bytes that the caller has already found to be few.
    pub(super) fn bytes(&mut self, length: u64, what: &str) -> Result<Vec<u8>, GgufError> {
        self.claim(length, what)?;
        let mut bytes = Vec::new();
        (&mut self.reader)
            .take(length)
            .read_to_end(&mut bytes)
            .map_err(|error| self.failed_read(&error, what))?;
        if (bytes.len() as u64) < length {
            return Err(self.fail(self.at, GgufFault::Cut(what.to_owned())));
        }
        self.at += length;
        Ok(bytes)
    }

    /// A name: UTF-8, length first, at most `limit` bytes.
    pub(super) fn name(&mut self, what: &'static str, limit: u64) -> Result<String, GgufError> {
        let at = self.at;
        let bytes = self.u64(what)?;
        if bytes > limit {
            return Err(self.fail(at, GgufFault::Length { what, bytes, limit }));
        }
        String::from_utf8(self.bytes(bytes, what)?)
            .map_err(|_| self.fail(at, GgufFault::NotText(what)))
    }

    /// Passes over `bytes` bytes.
    pub(super) fn skip(&mut self, bytes: u64, what: &str) -> Result<(), GgufError> {
        self.claim(bytes, what)?;
        let mut rest = bytes;
        while rest > 0 {
            let buffered = match self.reader.fill_buf() {
                Ok(buffer) => buffer.len(),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(self.failed_read(&error, what)),
            };
            if buffered == 0 {
                return Err(self.fail(self.at, GgufFault::Cut(what.to_owned())));
            }
            let step = usize::try_from(rest).map_or(buffered, |rest| rest.min(buffered));
            self.reader.consume(step);
            rest -= step as u64;
            self.at += step as u64;
        }
        Ok(())
    }
}
