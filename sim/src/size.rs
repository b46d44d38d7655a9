//! Sizes in files: a number of bytes or a text such as `"24GiB"`.

use std::fmt;

use ds4_engine::bytes::{MAX_BYTES, parse_size};
use serde::de::{Deserialize, Deserializer, Error, Unexpected, Visitor};

/// A size in bytes, at most [`MAX_BYTES`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size(pub(crate) u64);

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(SizeVisitor)
    }
}

struct SizeVisitor;

impl Visitor<'_> for SizeVisitor {
    type Value = Size;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a size such as \"24GiB\" or a number of bytes")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Size, E> {
        parse_size(text).map(Size).map_err(E::custom)
    }

    fn visit_u64<E: Error>(self, bytes: u64) -> Result<Size, E> {
        if bytes > MAX_BYTES {
            return Err(E::invalid_value(Unexpected::Unsigned(bytes), &self));
        }
        Ok(Size(bytes))
    }

    fn visit_i64<E: Error>(self, bytes: i64) -> Result<Size, E> {
        let unsigned = u64::try_from(bytes);
        unsigned
            .map(Size)
            .map_err(|_| E::invalid_value(Unexpected::Signed(bytes), &self))
    }
}
