//! What two ranks tell each other to connect queue pairs: frames on their data connection, before
//! it is probed.
//!
//! Everything has a version of its own and a cap: addresses, numbers and texts, never a length
//! that takes memory. `PROTOCOL.md` has the bytes and the order.

use super::coding::{Reader, UnexpectedEnd, put_text, take_text};

/// The version of these messages.
pub const VERSION: u16 = 1;
/// The most entries of a table of GIDs that an offer has.
pub const GIDS_MAX: usize = 32;

/// The bit of reliable connections in [`Offer::kinds`].
pub const RELIABLE: u8 = 1;
/// The bit of unreliable connections in [`Offer::kinds`].
pub const UNRELIABLE: u8 = 2;

/// An entry of a table of GIDs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OfferedGid {
    /// 0 unknown, 1 InfiniBand, 2 RoCE version 1, 3 RoCE version 2.
    pub kind: u8,
    /// Whether the rank sees the network interface that it belongs to.
    pub interface: bool,
    /// The address.
    pub raw: [u8; 16],
}

/// What a rank's port is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// 1 InfiniBand, 2 Ethernet, others by rdma-core's number.
    pub link: u8,
    /// The kinds of connections that the rank would make.
    pub kinds: u8,
    /// The table, best first.
    pub gids: Vec<OfferedGid>,
}

/// One end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// 2 reliable, 3 unreliable.
    pub kind: u8,
    /// The largest packet of this end's port: 1 is 256 bytes, 5 is 4096.
    pub mtu: u8,
    /// Its address in an InfiniBand subnet.
    pub lid: u16,
    /// The number of its queue pair.
    pub number: u32,
    /// Its first packet number, of 24 bits.
    pub psn: u32,
    /// The key of its memory.
    pub key: u32,
    /// The largest message of this end's port, in bytes.
    pub max_message_bytes: u32,
    /// Bytes of each slot.
    pub slot_bytes: u32,
    /// Slots, one after the other.
    pub slots: u32,
    /// Where the first slot begins.
    pub address: u64,
    /// Its own GID.
    pub gid: [u8; 16],
    /// The GID that the receiver of this message is to use.
    pub peer_gid: [u8; 16],
}

/// How an attempt goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Well.
    Good,
    /// This kind of connection cannot be made here.
    NoKind,
    /// These addresses do not work.
    Failed,
    /// No attempt is left.
    Over,
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VerbsMessage {
    /// The rank has a port.
    Offer(Offer),
    /// The rank has none, or does not want one; why.
    Nothing(String),
    /// One end.
    Endpoint(Endpoint),
    /// What came of it, and why.
    Verdict(Verdict, String),
}

impl VerbsMessage {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(128);
        out.extend_from_slice(&VERSION.to_le_bytes());
        match self {
            Self::Offer(offer) => offer.encode(&mut out),
            Self::Nothing(why) => {
                out.extend_from_slice(&[2, 0]);
                put_text(&mut out, why);
            }
            Self::Endpoint(end) => end.encode(&mut out),
            Self::Verdict(verdict, why) => {
                let code = match verdict {
                    Verdict::Good => 0,
                    Verdict::NoKind => 1,
                    Verdict::Failed => 2,
                    Verdict::Over => 3,
                };
                out.extend_from_slice(&[4, code]);
                put_text(&mut out, why);
            }
        }
        out
    }

    /// Reads a message. What it says is shown to people, so that what is not printable is
    /// replaced.
    ///
    /// # Errors
    /// [`UnexpectedEnd`], and for a version, number or length that is not allowed.
    pub fn decode(payload: &[u8]) -> Result<Self, UnexpectedEnd> {
        let mut reader = Reader::new(payload);
        if reader.u16()? != VERSION {
            return Err(UnexpectedEnd);
        }
        let [step, detail] = reader.array()?;
        let message = match (step, detail) {
            (1, count) => Self::Offer(Offer::decode(&mut reader, count)?),
            (2, 0) => Self::Nothing(take_text(&mut reader)?),
            (3, kind @ (2 | 3)) => Self::Endpoint(Endpoint::decode(&mut reader, kind)?),
            (4, 0) => Self::Verdict(Verdict::Good, take_text(&mut reader)?),
            (4, 1) => Self::Verdict(Verdict::NoKind, take_text(&mut reader)?),
            (4, 2) => Self::Verdict(Verdict::Failed, take_text(&mut reader)?),
            (4, 3) => Self::Verdict(Verdict::Over, take_text(&mut reader)?),
            _ => return Err(UnexpectedEnd),
        };
        reader.end()?;
        Ok(message)
    }
}

impl Offer {
    fn encode(&self, out: &mut Vec<u8>) {
        let gids = self.gids.get(..GIDS_MAX).unwrap_or(&self.gids);
        let count = u8::try_from(gids.len()).unwrap_or(0);
        out.extend_from_slice(&[1, count, self.link, self.kinds, 0, 0]);
        for gid in gids {
            out.extend_from_slice(&[gid.kind, u8::from(gid.interface), 0, 0]);
            out.extend_from_slice(&gid.raw);
        }
    }

    fn decode(reader: &mut Reader<'_>, count: u8) -> Result<Self, UnexpectedEnd> {
        let [link, kinds, 0, 0] = reader.array()? else {
            return Err(UnexpectedEnd);
        };
        if kinds > RELIABLE | UNRELIABLE || usize::from(count) > GIDS_MAX {
            return Err(UnexpectedEnd);
        }
        let mut gids = Vec::with_capacity(usize::from(count));
        for _ in 0..count {
            let [kind @ 0..=3, interface @ 0..=1, 0, 0] = reader.array()? else {
                return Err(UnexpectedEnd);
            };
            gids.push(OfferedGid {
                kind,
                interface: interface == 1,
                raw: reader.array()?,
            });
        }
        Ok(Self { link, kinds, gids })
    }
}

impl Endpoint {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&[3, self.kind, self.mtu, 0]);
        out.extend_from_slice(&self.lid.to_le_bytes());
        for word in [
            self.number,
            self.psn,
            self.key,
            self.max_message_bytes,
            self.slot_bytes,
            self.slots,
        ] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        out.extend_from_slice(&self.address.to_le_bytes());
        out.extend_from_slice(&self.gid);
        out.extend_from_slice(&self.peer_gid);
    }

    fn decode(reader: &mut Reader<'_>, kind: u8) -> Result<Self, UnexpectedEnd> {
        let [mtu @ 1..=5, 0] = reader.array()? else {
            return Err(UnexpectedEnd);
        };
        let end = Self {
            kind,
            mtu,
            lid: reader.u16()?,
            number: reader.u32()?,
            psn: reader.u32()?,
            key: reader.u32()?,
            max_message_bytes: reader.u32()?,
            slot_bytes: reader.u32()?,
            slots: reader.u32()?,
            address: reader.u64()?,
            gid: reader.array()?,
            peer_gid: reader.array()?,
        };
        // Packet and queue-pair numbers have 24 bits; a ring of bytes must not wrap addresses.
        let ring = u64::from(end.slot_bytes) * u64::from(end.slots);
        let sane = end.number >> 24 == 0
            && end.psn >> 24 == 0
            && ring > 0
            && end.max_message_bytes > 0
            && end.address.checked_add(ring).is_some();
        if sane { Ok(end) } else { Err(UnexpectedEnd) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::coding::TEXT_BYTES_MAX;
    use super::*;

    #[test]
    fn texts_are_cut_at_a_character_and_cleaned() {
        let long = "é".repeat(TEXT_BYTES_MAX);
        let message = VerbsMessage::Nothing(long).encode();
        let Ok(VerbsMessage::Nothing(text)) = VerbsMessage::decode(&message) else {
            panic!("not read back");
        };
        assert_eq!(text.len(), TEXT_BYTES_MAX);
        let bell = VerbsMessage::Verdict(Verdict::Over, "a\u{7}b".to_owned()).encode();
        let read = VerbsMessage::decode(&bell).unwrap();
        assert_eq!(
            read,
            VerbsMessage::Verdict(Verdict::Over, "a\u{fffd}b".to_owned())
        );
    }

    #[test]
    fn another_version_and_numbers_beyond_24_bits_are_refused() {
        let good = VerbsMessage::Verdict(Verdict::Good, String::new()).encode();
        assert!(VerbsMessage::decode(&good).is_ok());
        let mut later = good;
        later[0] = 2;
        assert!(VerbsMessage::decode(&later).is_err());
        let end = Endpoint {
            kind: 2,
            mtu: 3,
            lid: 0,
            number: 1 << 24,
            psn: 0,
            key: 0,
            max_message_bytes: 1,
            slot_bytes: 1,
            slots: 1,
            address: 0,
            gid: [0; 16],
            peer_gid: [0; 16],
        };
        assert!(VerbsMessage::decode(&VerbsMessage::Endpoint(end).encode()).is_err());
        let end = Endpoint {
            number: 1,
            address: u64::MAX,
            ..end
        };
        assert!(VerbsMessage::decode(&VerbsMessage::Endpoint(end).encode()).is_err());
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_refused_or_read_as_what_they_encode_to(
            bytes in proptest::collection::vec(any::<u8>(), 0..200), step in 1_u8..5,
        ) {
            let mut bytes = bytes;
            if let Some(head) = bytes.first_chunk_mut::<3>() {
                *head = [1, 0, step];
            }
            if let Ok(message) = VerbsMessage::decode(&bytes) {
                let again = VerbsMessage::decode(&message.encode());
                prop_assert_eq!(again, Ok(message));
            }
        }
    }
}
