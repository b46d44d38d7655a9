//! Where workers listen, so that nobody but the leader must be known beforehand: frames on the control
//! connections of groups of more than two ranks, before the data connections.
//!
//! Each worker says its port; the leader, who sees where it connects from, tells all to all.
//! `PROTOCOL.md` has the bytes.

use super::coding::{Reader, UnexpectedEnd};

/// The version of this message.
pub const VERSION: u16 = 1;
/// The most entries: one for each worker of the largest group.
pub const ENTRIES_MAX: usize = 31;

/// A host's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Host {
    /// The leader's own host, by whichever name the reader reaches the leader.
    Leaders,
    /// An IPv4 address.
    V4([u8; 4]),
    /// An IPv6 address.
    V6([u8; 16]),
}

/// Where a worker listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The worker.
    pub rank: u32,
    /// Its port; 0 for one that does not listen.
    pub port: u16,
    /// Its host.
    pub host: Host,
}

/// The message's bytes; entries beyond the most are left out.
#[must_use]
pub fn encode(entries: &[Entry]) -> Vec<u8> {
    let entries = entries.get(..ENTRIES_MAX).unwrap_or(entries);
    let mut out = Vec::with_capacity(8 + 24 * ENTRIES_MAX);
    out.extend_from_slice(&VERSION.to_le_bytes());
    out.extend_from_slice(&[u8::try_from(entries.len()).unwrap_or(0), 0, 0, 0, 0, 0]);
    for entry in entries {
        let (family, mut address) = (family(entry.host), [0; 16]);
        match entry.host {
            Host::Leaders => {}
            Host::V4([a, b, c, d]) => {
                [address[0], address[1], address[2], address[3]] = [a, b, c, d];
            }
            Host::V6(whole) => address = whole,
        }
        out.extend_from_slice(&entry.rank.to_le_bytes());
        out.extend_from_slice(&entry.port.to_le_bytes());
        out.extend_from_slice(&[family, 0]);
        out.extend_from_slice(&address);
    }
    out
}

/// Reads the message.
///
/// # Errors
/// [`UnexpectedEnd`], and for a version, number or field that is not allowed.
pub fn decode(payload: &[u8]) -> Result<Vec<Entry>, UnexpectedEnd> {
    let mut reader = Reader::new(payload);
    if reader.u16()? != VERSION {
        return Err(UnexpectedEnd);
    }
    let [count, 0, 0, 0, 0, 0] = reader.array()? else {
        return Err(UnexpectedEnd);
    };
    if usize::from(count) > ENTRIES_MAX {
        return Err(UnexpectedEnd);
    }
    let mut entries = Vec::with_capacity(usize::from(count));
    for _ in 0..count {
        let (rank, port) = (reader.u32()?, reader.u16()?);
        let [family, 0] = reader.array()? else {
            return Err(UnexpectedEnd);
        };
        let address: [u8; 16] = reader.array()?;
        let host = match (family, address) {
            (0, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]) => Host::Leaders,
            (4, [a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]) => Host::V4([a, b, c, d]),
            (6, whole) => Host::V6(whole),
            _ => return Err(UnexpectedEnd),
        };
        entries.push(Entry { rank, port, host });
    }
    reader.end()?;
    Ok(entries)
}

const fn family(host: Host) -> u8 {
    match host {
        Host::Leaders => 0,
        Host::V4(_) => 4,
        Host::V6(_) => 6,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn arbitrary_bytes_are_refused_or_read_as_what_they_encode_to(
            bytes in proptest::collection::vec(any::<u8>(), 0..80), count in 0_u8..4, family in 0_u8..8,
        ) {
            let mut bytes = bytes;
            if let Some(head) = bytes.first_chunk_mut::<8>() {
                *head = [1, 0, count, 0, 0, 0, 0, 0];
            }
            for entry in bytes.get_mut(8..).unwrap_or_default().chunks_mut(24) {
                if let Some(place) = entry.get_mut(6..8) {
                    place.copy_from_slice(&[family, 0]);
                }
            }
            if let Ok(entries) = decode(&bytes) {
                prop_assert_eq!(decode(&encode(&entries)), Ok(entries));
            }
        }
    }
}
