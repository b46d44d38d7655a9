//! Sealed records: what passes over a connection, unreadable and unchangeable for who lacks the key.
//!
//! A record is the number of its bytes (u32), as many bytes under AES-128-GCM, and a tag of 16. The
//! length is covered by the tag. Each direction of each connection has a key of its own, made by
//! HKDF-Expand from the group's key and the handshake, whose nonces no other connection has. The
//! n-th record of a direction has the nonce n, which is not sent: a record that is missing, comes
//! twice, or comes from elsewhere does not open.

use std::fmt;
use std::ops::Range;

use ring::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};

use super::coding::Reader;

/// The most bytes of one record before it is sealed.
pub const RECORD_BYTES_MAX: usize = 32 << 10;
/// Bytes before a record's own.
pub const LENGTH_BYTES: usize = 4;
/// Bytes behind them.
pub const TAG_BYTES: usize = 16;
/// The most bytes of a record on its way.
pub const SEALED_BYTES_MAX: usize = LENGTH_BYTES + RECORD_BYTES_MAX + TAG_BYTES;

/// Bytes of a key.
pub const KEY_BYTES: usize = 16;

/// The keys of a connection, as one end has them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SealKeys {
    /// Seals what is sent.
    pub send: [u8; KEY_BYTES],
    /// Opens what comes.
    pub receive: [u8; KEY_BYTES],
}

impl fmt::Debug for SealKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SealKeys(..)")
    }
}

/// A record was changed, is missing, came twice, or was sealed with another key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadRecord;

impl fmt::Display for BadRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a sealed record was changed, left out or repeated on the way")
    }
}

impl std::error::Error for BadRecord {}

/// One direction of a connection, at either end.
#[derive(Debug)]
pub struct Seal {
    key: Option<LessSafeKey>,
    records: u64,
}

impl Seal {
    /// The first record is next.
    #[must_use]
    pub fn new(key: &[u8; KEY_BYTES]) -> Self {
        // Keys of this length are always taken; without one nothing is sealed or opened.
        let key = UnboundKey::new(&AES_128_GCM, key).ok();
        Self {
            key: key.map(LessSafeKey::new),
            records: 0,
        }
    }

    /// Appends a record that holds the beginning of `head` and `body`; how many of their bytes it
    /// took.
    ///
    /// # Errors
    /// [`BadRecord`], if 2^64 records were sealed.
    pub fn seal(
        &mut self,
        head: &[u8],
        body: &[u8],
        record: &mut Vec<u8>,
    ) -> Result<usize, BadRecord> {
        let head = head.get(..RECORD_BYTES_MAX).unwrap_or(head);
        let room = RECORD_BYTES_MAX.saturating_sub(head.len());
        let body = body.get(..room).unwrap_or(body);
        let taken = head.len().saturating_add(body.len());
        let length = u32::try_from(taken).map_err(|_| BadRecord)?.to_le_bytes();
        let start = record.len().saturating_add(LENGTH_BYTES);
        record.extend_from_slice(&length);
        record.extend_from_slice(head);
        record.extend_from_slice(body);
        let nonce = self.nonce()?;
        let key = self.key.as_ref().ok_or(BadRecord)?;
        let plain = record.get_mut(start..).unwrap_or_default();
        let tag = key
            .seal_in_place_separate_tag(nonce, Aad::from(length), plain)
            .map_err(|_| BadRecord)?;
        record.extend_from_slice(tag.as_ref());
        Ok(taken)
    }

    /// Opens the record at the beginning of `bytes` in place: where its own bytes lie, and where
    /// the next record begins. None while it is not whole.
    ///
    /// # Errors
    /// [`BadRecord`]; the connection is worthless.
    pub fn open(&mut self, bytes: &mut [u8]) -> Result<Option<(Range<usize>, usize)>, BadRecord> {
        let Some(end) = whole(bytes) else {
            return Ok(None);
        };
        let length: [u8; LENGTH_BYTES] = *bytes.first_chunk().ok_or(BadRecord)?;
        let record = bytes.get_mut(LENGTH_BYTES..end?).ok_or(BadRecord)?;
        let nonce = self.nonce()?;
        let key = self.key.as_ref().ok_or(BadRecord)?;
        let plain = key
            .open_in_place(nonce, Aad::from(length), record)
            .map_err(|_| BadRecord)?;
        let to = LENGTH_BYTES.saturating_add(plain.len());
        Ok(Some((LENGTH_BYTES..to, to.saturating_add(TAG_BYTES))))
    }

    /// A number that no other record of this direction has.
    fn nonce(&mut self) -> Result<Nonce, BadRecord> {
        let mut nonce = [0; 12];
        if let Some(place) = nonce.last_chunk_mut() {
            *place = self.records.to_le_bytes();
        }
        self.records = self.records.checked_add(1).ok_or(BadRecord)?;
        Ok(Nonce::assume_unique_for_key(nonce))
    }
}

/// Where the record at the beginning of `bytes` ends; none while it is not whole, an error if no
/// record has its length.
pub fn whole(bytes: &[u8]) -> Option<Result<usize, BadRecord>> {
    let length = Reader::new(bytes).u32().ok()?;
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    if length == 0 || length > RECORD_BYTES_MAX {
        return Some(Err(BadRecord));
    }
    let end = LENGTH_BYTES
        .saturating_add(length)
        .saturating_add(TAG_BYTES);
    (end <= bytes.len()).then_some(Ok(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: [u8; KEY_BYTES] = [3; KEY_BYTES];

    fn records() -> [Vec<u8>; 2] {
        let mut seal = Seal::new(&KEY);
        [&b"the first"[..], b"the second"].map(|body| {
            let mut record = Vec::new();
            assert_eq!(seal.seal(b"head ", body, &mut record), Ok(5 + body.len()));
            assert_eq!(record.len(), LENGTH_BYTES + 5 + body.len() + TAG_BYTES);
            assert_eq!(whole(&record), Some(Ok(record.len())));
            record
        })
    }

    fn opened(seal: &mut Seal, record: &[u8]) -> Result<Option<Vec<u8>>, BadRecord> {
        let mut bytes = record.to_vec();
        let found = seal.open(&mut bytes)?;
        Ok(found.map(|(place, _)| bytes[place].to_vec()))
    }

    #[test]
    fn records_open_in_their_order_and_show_nothing_before() {
        let [one, two] = records();
        assert!(!one.windows(5).any(|part| part == b"first"));
        let mut seal = Seal::new(&KEY);
        assert_eq!(
            opened(&mut seal, &one),
            Ok(Some(b"head the first".to_vec()))
        );
        assert_eq!(
            opened(&mut seal, &two),
            Ok(Some(b"head the second".to_vec()))
        );
    }

    #[test]
    fn a_changed_bit_anywhere_opens_nothing() {
        let [one, _] = records();
        for bit in 0..one.len() * 8 {
            let mut changed = one.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            let open = opened(&mut Seal::new(&KEY), &changed);
            // A length that is larger by little waits for bytes that are no part of the record.
            assert!(!matches!(open, Ok(Some(_))), "bit {bit}");
            if matches!(open, Ok(None)) {
                changed.resize(SEALED_BYTES_MAX, 0);
                assert!(Seal::new(&KEY).open(&mut changed).is_err(), "bit {bit}");
            }
        }
    }

    #[test]
    fn a_record_that_is_repeated_left_out_or_of_another_key_opens_nothing() {
        let [one, two] = records();
        let mut seal = Seal::new(&KEY);
        assert!(opened(&mut seal, &one).is_ok());
        assert_eq!(opened(&mut seal, &one), Err(BadRecord));
        assert_eq!(opened(&mut Seal::new(&KEY), &two), Err(BadRecord));
        assert_eq!(
            opened(&mut Seal::new(&[4; KEY_BYTES]), &one),
            Err(BadRecord)
        );
    }

    #[test]
    fn a_part_of_a_record_is_none_yet_and_no_record_is_longer_than_it_may_be() {
        let [one, _] = records();
        for end in 0..one.len() {
            assert_eq!(opened(&mut Seal::new(&KEY), &one[..end]), Ok(None), "{end}");
        }
        let long = vec![1; RECORD_BYTES_MAX + 5];
        let mut record = Vec::new();
        let taken = Seal::new(&KEY).seal(&long, &long, &mut record);
        assert_eq!(taken, Ok(RECORD_BYTES_MAX));
        assert_eq!(record.len(), SEALED_BYTES_MAX);
        for length in [0, (32 << 10) + 1, u32::MAX] {
            let mut bytes = length.to_le_bytes();
            assert_eq!(Seal::new(&KEY).open(&mut bytes), Err(BadRecord));
        }
    }
}
