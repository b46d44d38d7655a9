//! The key-value part of a header.

use super::error::{GgufError, GgufFault};
use super::source::Source;
use std::collections::BTreeMap;
use std::io::Read;

/// The longest key, in bytes, as the specification has it.
const KEY_BYTES_MAX: u64 = 65_535;
/// The longest text that is kept, in bytes: names are short, chat templates are of no use here.
const TEXT_BYTES_KEPT: u64 = 4096;
/// The longest array that is kept: per-layer arrays are short, vocabularies are of no use here.
const LIST_LENGTH_KEPT: u64 = 4096;
/// The most that is kept of all values together, in bytes.
const TOTAL_BYTES_KEPT: u64 = 16 << 20;
/// How deep arrays may nest; the specification allows it and nobody does.
const NESTING_MAX: u32 = 4;

/// A metadata value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// An integer of any width.
    Integer(i128),
    /// A floating-point number of either width.
    Float(f64),
    /// A truth value.
    Bool(bool),
    /// A text, with what is not UTF-8 replaced.
    Text(String),
    /// An array of integers or truth values, the latter as 0 and 1.
    List(Vec<i128>),
    /// A value that was passed over because no plan needs one so long.
    Skipped,
}

/// The metadata of a model by key, in key order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metadata {
    values: BTreeMap<String, Value>,
    bytes_kept: u64,
}

impl Metadata {
    /// The value of `key`.
    #[must_use]
    pub fn value(&self, key: &str) -> Option<&Value> {
        self.values.get(key)
    }

    /// The text of `key`, if it is one.
    #[must_use]
    pub fn text(&self, key: &str) -> Option<&str> {
        let Some(Value::Text(text)) = self.value(key) else {
            return None;
        };
        Some(text)
    }

    /// The value of `key` as a count, if it is an integer that is none below zero.
    #[must_use]
    pub fn count(&self, key: &str) -> Option<u64> {
        let Some(Value::Integer(number)) = self.value(key) else {
            return None;
        };
        u64::try_from(*number).ok()
    }

    /// The counts of `key` when it is an array of them.
    #[must_use]
    pub fn counts(&self, key: &str) -> Option<Vec<u64>> {
        let Some(Value::List(numbers)) = self.value(key) else {
            return None;
        };
        numbers
            .iter()
            .map(|number| u64::try_from(*number).ok())
            .collect()
    }

    /// The keys with their values, in key order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.values.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// Reads the next key and its value.
    pub(super) fn read_pair<R: Read>(
        &mut self,
        source: &mut Source<'_, R>,
    ) -> Result<(), GgufError> {
        let at = source.at();
        let key = source.name("metadata key", KEY_BYTES_MAX)?;
        if self.values.contains_key(&key) {
            let what = "metadata keys";
            return Err(source.fail(at, GgufFault::Duplicate { what, name: key }));
        }
        let code_at = source.at();
        let code = source.u32(&key)?;
        let value = self.read_value(source, &key, code_at, code)?;
        self.bytes_kept += key.len() as u64;
        self.values.insert(key, value);
        Ok(())
    }

    fn read_value<R: Read>(
        &mut self,
        source: &mut Source<'_, R>,
        key: &str,
        code_at: u64,
        code: u32,
    ) -> Result<Value, GgufError> {
        match code {
            STRING => {
                let bytes = source.u64(key)?;
                if !self.keep(bytes, TEXT_BYTES_KEPT) {
                    return source.skip(bytes, key).map(|()| Value::Skipped);
                }
                let bytes = source.bytes(bytes, key)?;
                Ok(Value::Text(String::from_utf8_lossy(&bytes).into_owned()))
            }
            ARRAY => self.read_array(source, key, 0),
            _ => read_scalar(source, key, code_at, code),
        }
    }

    fn read_array<R: Read>(
        &mut self,
        source: &mut Source<'_, R>,
        key: &str,
        depth: u32,
    ) -> Result<Value, GgufError> {
        let code_at = source.at();
        let code = source.u32(key)?;
        let length = source.u64(key)?;
        match code {
            // Both loops end with the file at the latest: each turn reads at least 8 bytes.
            STRING => {
                for _ in 0..length {
                    let bytes = source.u64(key)?;
                    source.skip(bytes, key)?;
                }
            }
            ARRAY if depth < NESTING_MAX => {
                for _ in 0..length {
                    self.read_array(source, key, depth + 1)?;
                }
            }
            ARRAY => {
                let key = key.to_owned();
                return Err(source.fail(code_at, GgufFault::Nesting { key }));
            }
            _ => {
                let Some(width) = scalar_bytes(code) else {
                    let key = key.to_owned();
                    return Err(source.fail(code_at, GgufFault::ValueType { key, code }));
                };
                let whole = !matches!(code, FLOAT32 | FLOAT64) && depth == 0;
                let kept_bytes = length.saturating_mul(16);
                if whole && self.keep(kept_bytes, LIST_LENGTH_KEPT * 16) {
                    return read_list(source, key, code_at, code, length);
                }
                source.skip(length.saturating_mul(width), key)?;
            }
        }
        Ok(Value::Skipped)
    }

    /// Whether a value of `bytes` bytes is to be kept; if so, it is counted.
    fn keep(&mut self, bytes: u64, limit: u64) -> bool {
        let kept = bytes <= limit && self.bytes_kept + bytes <= TOTAL_BYTES_KEPT;
        if kept {
            self.bytes_kept += bytes;
        }
        kept
    }
}

// The numbers of `enum gguf_metadata_value_type` in the specification.
const UINT8: u32 = 0;
const INT8: u32 = 1;
const UINT16: u32 = 2;
const INT16: u32 = 3;
const UINT32: u32 = 4;
const INT32: u32 = 5;
const FLOAT32: u32 = 6;
const BOOL: u32 = 7;
const STRING: u32 = 8;
const ARRAY: u32 = 9;
const UINT64: u32 = 10;
const INT64: u32 = 11;
const FLOAT64: u32 = 12;

fn scalar_bytes(code: u32) -> Option<u64> {
    match code {
        UINT8 | INT8 | BOOL => Some(1),
        UINT16 | INT16 => Some(2),
        UINT32 | INT32 | FLOAT32 => Some(4),
        UINT64 | INT64 | FLOAT64 => Some(8),
        _ => None,
    }
}

fn read_scalar<R: Read>(
    source: &mut Source<'_, R>,
    key: &str,
    code_at: u64,
    code: u32,
) -> Result<Value, GgufError> {
    Ok(match code {
        UINT8 => Value::Integer(source.u8(key)?.into()),
        INT8 => Value::Integer(source.u8(key)?.cast_signed().into()),
        UINT16 => Value::Integer(source.u16(key)?.into()),
        INT16 => Value::Integer(source.u16(key)?.cast_signed().into()),
        UINT32 => Value::Integer(source.u32(key)?.into()),
        INT32 => Value::Integer(source.u32(key)?.cast_signed().into()),
        UINT64 => Value::Integer(source.u64(key)?.into()),
        INT64 => Value::Integer(source.u64(key)?.cast_signed().into()),
        FLOAT32 => Value::Float(f32::from_bits(source.u32(key)?).into()),
        FLOAT64 => Value::Float(f64::from_bits(source.u64(key)?)),
        BOOL => Value::Bool(source.u8(key)? != 0),
        _ => {
            let key = key.to_owned();
            return Err(source.fail(code_at, GgufFault::ValueType { key, code }));
        }
    })
}

fn read_list<R: Read>(
    source: &mut Source<'_, R>,
    key: &str,
    code_at: u64,
    code: u32,
    length: u64,
) -> Result<Value, GgufError> {
    let mut list = Vec::new();
    for _ in 0..length {
        list.push(match read_scalar(source, key, code_at, code)? {
            Value::Integer(number) => number,
            Value::Bool(truth) => truth.into(),
            Value::Float(_) | Value::Text(_) | Value::List(_) | Value::Skipped => 0,
        });
    }
    Ok(Value::List(list))
}
