//! Why a header was refused, as one sentence with a position and a remedy.

use super::types::TensorType;
use ds4_engine::bytes::format_bytes;
use std::fmt;

/// A refused GGUF file: which, where and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GgufError {
    /// The file's name.
    pub file: String,
    /// The byte position of what is wrong, from 0.
    pub at: u64,
    /// What is wrong.
    pub fault: GgufFault,
}

/// What is wrong with a GGUF file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GgufFault {
    /// The operating system refused to read.
    Io(String),
    /// The first four bytes are not `GGUF`.
    NotGguf,
    /// The header is written in big-endian order.
    BigEndian,
    /// A version other than 2 and 3.
    Version(u32),
    /// The file ends, or would have to go on beyond its end, inside this part of the header.
    Cut(String),
    /// A count no real model has.
    Count {
        /// What is counted.
        what: &'static str,
        /// The count in the file.
        count: u64,
        /// The largest accepted.
        limit: u64,
    },
    /// A string longer than its kind may be.
    Length {
        /// What the string is.
        what: &'static str,
        /// The length in the file, in bytes.
        bytes: u64,
        /// The largest accepted, in bytes.
        limit: u64,
    },
    /// A header longer than any real one.
    HeaderTooLarge {
        /// The largest accepted, in bytes.
        limit: u64,
    },
    /// A name that is not UTF-8.
    NotText(&'static str),
    /// A name that was there before.
    Duplicate {
        /// What has the name.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// A metadata value of no known type.
    ValueType {
        /// The key.
        key: String,
        /// The type's number.
        code: u32,
    },
    /// Arrays within arrays beyond any use.
    Nesting {
        /// The key.
        key: String,
    },
    /// `general.alignment` is no power of two.
    Alignment(u64),
    /// More axes than ggml has.
    Dimensions {
        /// The tensor.
        tensor: String,
        /// The number of axes.
        count: u32,
    },
    /// A tensor type of no known size.
    TensorKind {
        /// The tensor.
        tensor: String,
        /// The type's number.
        code: u32,
    },
    /// A row that is no whole number of blocks.
    Row {
        /// The tensor.
        tensor: String,
        /// The type.
        kind: TensorType,
        /// Elements in a row.
        elements: u64,
    },
    /// Sizes or offsets whose product or sum no file can hold.
    Overflow {
        /// The tensor.
        tensor: String,
    },
    /// A tensor that does not start on the file's alignment.
    Offset {
        /// The tensor.
        tensor: String,
        /// Its offset, in bytes.
        offset: u64,
        /// The alignment, in bytes.
        alignment: u64,
    },
    /// The file ends before its tensor data does.
    Short {
        /// The size that the header claims, in bytes.
        needed: u64,
        /// The size of the file, in bytes.
        length: u64,
    },
    /// A file of a split model is not beside the others.
    MissingShard(String),
    /// A file of a split model whose name does not say which.
    ShardName {
        /// The number of files that the metadata gives.
        count: u64,
    },
    /// Files beside each other that do not belong together.
    ShardMismatch {
        /// What differs.
        what: &'static str,
        /// The value expected.
        expected: u64,
        /// The value found.
        found: u64,
    },
}

const DAMAGED: &str = "the file is damaged or no model; download it again";

impl fmt::Display for GgufError {
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "the other faults have a position in a header and are worded by `fmt_header`"
    )]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.file.escape_debug())?;
        match &self.fault {
            GgufFault::Io(cause) => write!(
                f,
                "cannot be read at byte {}: {cause}; check the path and its permissions",
                self.at
            ),
            GgufFault::MissingShard(name) => write!(
                f,
                "'{}', a part of this split model, is missing; put all parts into one folder",
                name.escape_debug()
            ),
            GgufFault::ShardName { count } => write!(
                f,
                "is one of {count} parts of a split model, but its name does not end in \
                 -00001-of-{count:05}.gguf; give the parts the names they were published with"
            ),
            GgufFault::ShardMismatch {
                what,
                expected,
                found,
            } => write!(
                f,
                "the parts of this split model do not belong together: {what} is {found}, not \
                 {expected}; download the parts from one place"
            ),
            GgufFault::Short { needed, length } => write!(
                f,
                "ends at byte {length}, but its header claims tensors up to byte {needed} ({} \
                 missing); download it again",
                format_bytes(needed - length)
            ),
            _ => {
                self.fault.fmt_header(f)?;
                write!(f, " at byte {}; {}", self.at, self.fault.remedy())
            }
        }
    }
}

impl GgufFault {
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "`GgufError::fmt` words the faults that have no position in a header"
    )]
    fn fmt_header(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotGguf => f.write_str("does not begin with 'GGUF'"),
            Self::BigEndian => f.write_str("is written in big-endian order"),
            Self::Version(version) => {
                write!(f, "has GGUF version {version} (2 and 3 are read)")
            }
            Self::Cut(what) => write!(f, "ends inside its header ({})", what.escape_debug()),
            Self::Count { what, count, limit } => {
                write!(f, "claims {count} {what}, above the limit of {limit},")
            }
            Self::Length { what, bytes, limit } => write!(
                f,
                "claims a {what} of {bytes} bytes, above the limit of {limit},"
            ),
            Self::HeaderTooLarge { limit } => {
                write!(f, "has a header above {}", format_bytes(*limit))
            }
            Self::NotText(what) => write!(f, "has a {what} that is not UTF-8"),
            Self::Duplicate { what, name } => {
                write!(f, "has two {what} named '{}'", name.escape_debug())
            }
            Self::ValueType { key, code } => write!(
                f,
                "has metadata '{}' of unknown type {code}",
                key.escape_debug()
            ),
            Self::Nesting { key } => write!(
                f,
                "has metadata '{}' with arrays nested too deeply",
                key.escape_debug()
            ),
            Self::Alignment(value) => write!(
                f,
                "has general.alignment {value}, which is no power of two that fits 32 bits,"
            ),
            Self::Dimensions { tensor, count } => write!(
                f,
                "has tensor '{}' with {count} axes (the most is 4)",
                tensor.escape_debug()
            ),
            Self::TensorKind { tensor, code } => write!(
                f,
                "has tensor '{}' of type {code}, whose size is not known,",
                tensor.escape_debug()
            ),
            Self::Row {
                tensor,
                kind,
                elements,
            } => write!(
                f,
                "has tensor '{}' with rows of {elements}, no whole number of {} blocks ({} \
                 elements),",
                tensor.escape_debug(),
                kind.name(),
                kind.block().0
            ),
            Self::Overflow { tensor } => write!(
                f,
                "has tensor '{}' whose size or end exceeds what a file can hold",
                tensor.escape_debug()
            ),
            Self::Offset {
                tensor,
                offset,
                alignment,
            } => write!(
                f,
                "has tensor '{}' at offset {offset}, no multiple of {alignment},",
                tensor.escape_debug()
            ),
            _ => Ok(()),
        }
    }

    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "every other fault is damage and has one remedy"
    )]
    fn remedy(&self) -> &'static str {
        match self {
            Self::NotGguf => "give a model in GGUF format",
            Self::BigEndian => "convert it to little-endian, for example with gguf-convert-endian",
            Self::Version(..2) => "convert the model again with a current converter",
            Self::Version(_) => "convert the model to version 3, or use a newer ds4",
            Self::Cut(_) => "download it again",
            Self::TensorKind { .. } => {
                "quantize the model again to a current type, or use a newer ds4"
            }
            _ => DAMAGED,
        }
    }
}

impl std::error::Error for GgufError {}
