//! What ranks tell each other to join a group of a collective library: frames on their control
//! connections, between the hellos and the choice of the transport.
//!
//! Rank 0 offers the name of a group, or says why there is none; whoever cannot go on says so, and
//! rank 0 tells the others. `PROTOCOL.md` has the bytes.

use super::coding::{Reader, UnexpectedEnd, put_text, take_text};

/// The version of these messages.
pub const VERSION: u16 = 1;
/// Bytes of a group's name.
pub const NAME_BYTES: usize = 128;

/// NCCL in [`Offer::library`].
pub const NCCL: u8 = 1;
/// RCCL in [`Offer::library`].
pub const RCCL: u8 = 2;

/// A group that ranks may join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Whose group it is: 1 NCCL, 2 RCCL.
    pub library: u8,
    /// The code of the library's version, which is the same on all ranks.
    pub version: u32,
    /// The library's own words of how to find the group.
    pub name: [u8; NAME_BYTES],
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CollectiveMessage {
    /// There is a group.
    Offer(Box<Offer>),
    /// There is none, or the sender is not in it; why.
    Nothing(String),
}

impl CollectiveMessage {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(136);
        out.extend_from_slice(&VERSION.to_le_bytes());
        match self {
            Self::Offer(offer) => {
                out.extend_from_slice(&[1, offer.library]);
                out.extend_from_slice(&offer.version.to_le_bytes());
                out.extend_from_slice(&offer.name);
            }
            Self::Nothing(why) => {
                out.extend_from_slice(&[2, 0]);
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
            (1, library @ (NCCL | RCCL)) => Self::Offer(Box::new(Offer {
                library,
                version: reader.u32()?,
                name: reader.array()?,
            })),
            (2, 0) => Self::Nothing(take_text(&mut reader)?),
            _ => return Err(UnexpectedEnd),
        };
        reader.end()?;
        Ok(message)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn arbitrary_bytes_are_refused_or_read_as_what_they_encode_to(
            bytes in proptest::collection::vec(any::<u8>(), 0..200), step in 1_u8..4, detail in 0_u8..4,
        ) {
            let mut bytes = bytes;
            if let Some(head) = bytes.first_chunk_mut::<4>() {
                *head = [1, 0, step, detail];
            }
            if let Ok(message) = CollectiveMessage::decode(&bytes) {
                let again = CollectiveMessage::decode(&message.encode());
                prop_assert_eq!(again, Ok(message));
            }
        }
    }
}
