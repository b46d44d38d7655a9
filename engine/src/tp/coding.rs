//! Little-endian numbers in byte strings, checked.

use std::fmt;

/// The input ended before its last field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnexpectedEnd;

impl fmt::Display for UnexpectedEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the message ends before its last field")
    }
}

impl std::error::Error for UnexpectedEnd {}

/// Takes fields off the front of a byte string.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], UnexpectedEnd> {
        let (first, rest) = self.0.split_first_chunk::<N>().ok_or(UnexpectedEnd)?;
        self.0 = rest;
        Ok(*first)
    }

    pub(super) fn slice(&mut self, length: usize) -> Result<&'a [u8], UnexpectedEnd> {
        let (first, rest) = self.0.split_at_checked(length).ok_or(UnexpectedEnd)?;
        self.0 = rest;
        Ok(first)
    }

    pub(super) fn u16(&mut self) -> Result<u16, UnexpectedEnd> {
        self.array().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, UnexpectedEnd> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn i32(&mut self) -> Result<i32, UnexpectedEnd> {
        self.array().map(i32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, UnexpectedEnd> {
        self.array().map(u64::from_le_bytes)
    }

    /// Demands that nothing is left.
    pub(super) fn end(self) -> Result<(), UnexpectedEnd> {
        self.0.is_empty().then_some(()).ok_or(UnexpectedEnd)
    }

    pub(super) const fn rest(self) -> &'a [u8] {
        self.0
    }
}

/// Puts fields one behind the other into an array; what does not fit is dropped, which the tests
/// of each format rule out.
#[derive(Debug)]
pub(super) struct ArrayWriter<const N: usize> {
    bytes: [u8; N],
    at: usize,
}

impl<const N: usize> ArrayWriter<N> {
    pub(super) const fn new() -> Self {
        Self {
            bytes: [0; N],
            at: 0,
        }
    }

    pub(super) fn put<const M: usize>(&mut self, field: [u8; M]) -> &mut Self {
        let end = self.at.saturating_add(M);
        if let Some(place) = self.bytes.get_mut(self.at..end) {
            place.copy_from_slice(&field);
            self.at = end;
        }
        self
    }

    pub(super) fn written(&self) -> &[u8] {
        self.bytes.get(..self.at).unwrap_or_default()
    }

    pub(super) const fn finish(&self) -> [u8; N] {
        self.bytes
    }
}

/// The most bytes of a reason in words.
pub(super) const TEXT_BYTES_MAX: usize = 256;

/// Appends a text with its length, cut at a character.
pub(super) fn put_text(out: &mut Vec<u8>, text: &str) {
    let mut end = text.len().min(TEXT_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end = end.saturating_sub(1);
    }
    let text = text.get(..end).unwrap_or_default().as_bytes();
    let length = u16::try_from(text.len()).unwrap_or(0);
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(text);
}

/// Takes a text; what is not printable is replaced.
pub(super) fn take_text(reader: &mut Reader<'_>) -> Result<String, UnexpectedEnd> {
    let length = usize::from(reader.u16()?);
    if length > TEXT_BYTES_MAX {
        return Err(UnexpectedEnd);
    }
    let text = std::str::from_utf8(reader.slice(length)?).map_err(|_| UnexpectedEnd)?;
    let printable = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    Ok(text.chars().map(printable).collect())
}
