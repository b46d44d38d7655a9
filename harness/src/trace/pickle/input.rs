//! The bytes of a pickle, read piece by piece.

use std::io::{self, Read};

use super::{Fault, Word};

/// Buffered bytes with a position. Lengths from the file never size a buffer.
pub(super) struct Input<R> {
    reader: R,
    buffer: Vec<u8>,
    next: usize,
    filled: usize,
    /// Bytes of the file before `buffer`.
    before: u64,
}

impl<R: Read> Input<R> {
    const BUFFER_BYTES: usize = 64 << 10;

    pub(super) fn new(reader: R) -> Self {
        Self {
            reader,
            buffer: vec![0; Self::BUFFER_BYTES],
            next: 0,
            filled: 0,
            before: 0,
        }
    }

    pub(super) fn offset(&self) -> u64 {
        self.before + self.next as u64
    }

    pub(super) fn byte(&mut self) -> Result<u8, Fault> {
        if self.next == self.filled {
            self.refill()?;
        }
        let byte = self.buffer.get(self.next).copied().ok_or(Fault::CutShort)?;
        self.next += 1;
        Ok(byte)
    }

    fn refill(&mut self) -> Result<(), Fault> {
        self.before += self.filled as u64;
        (self.next, self.filled) = (0, 0);
        loop {
            match self.reader.read(&mut self.buffer) {
                Ok(0) => return Err(Fault::CutShort),
                Ok(read) => {
                    self.filled = read.min(self.buffer.len());
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Fault::Io(error)),
            }
        }
    }

    /// Expects that no byte is left.
    pub(super) fn end(&mut self) -> Result<(), Fault> {
        match self.byte() {
            Ok(_) => Err(Fault::Damaged("more bytes follow the end of the pickle")),
            Err(Fault::CutShort) => Ok(()),
            Err(fault) => Err(fault),
        }
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        let mut bytes = [0; N];
        for byte in &mut bytes {
            *byte = self.byte()?;
        }
        Ok(bytes)
    }

    pub(super) fn skip(&mut self, mut count: u64) -> Result<(), Fault> {
        while count > 0 {
            if self.next == self.filled {
                self.refill()?;
            }
            let held = self.filled - self.next;
            let skipped = usize::try_from(count).map_or(held, |count| count.min(held));
            self.next += skipped;
            count -= skipped as u64;
        }
        Ok(())
    }

    pub(super) fn word(&mut self, length: u64) -> Result<Option<Word>, Fault> {
        let mut text = [0; Word::LONGEST_BYTES];
        let Some(text) = usize::try_from(length)
            .ok()
            .and_then(|length| text.get_mut(..length))
        else {
            self.skip(length)?;
            return Ok(None);
        };
        for byte in text.iter_mut() {
            *byte = self.byte()?;
        }
        Ok(Word::find(text))
    }

    /// A little-endian two's complement integer; `None` if it exceeds 64 bits.
    pub(super) fn long(&mut self, length: u64) -> Result<Option<i64>, Fault> {
        let mut bytes = [0; 8];
        let Some(given) = usize::try_from(length)
            .ok()
            .and_then(|length| bytes.get_mut(..length))
        else {
            self.skip(length)?;
            return Ok(None);
        };
        for byte in given.iter_mut() {
            *byte = self.byte()?;
        }
        let negative = given.last().is_some_and(|last| last & 0x80 != 0);
        let given = given.len();
        if negative {
            for byte in bytes.iter_mut().skip(given) {
                *byte = 0xff;
            }
        }
        Ok(Some(i64::from_le_bytes(bytes)))
    }
}
