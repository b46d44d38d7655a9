//! GGUF headers of any architecture: what a plan needs, and never a byte of tensor data.
//!
//! The format is that of <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>, versions 2
//! and 3, little-endian. A file is read once, forward, through a small buffer; strings and arrays
//! that no plan needs (vocabularies, chat templates) are passed over, so memory stays small
//! whatever the file claims, and a file of 200 GB costs its header alone. Every refusal is one
//! sentence with the file, the byte position and a remedy.
//!
//! # Why a reader of our own
//! The crates were read for hostile and for ordinary files. `gguf` 0.1.2 knows few types, numbers
//! some of them wrongly, and lets a count in the file bound its loops. `ggus` 0.5.1 wants the whole
//! file in memory, reserves by counts from the file, adds offsets unchecked and turns any number
//! into an enum. `gguf-rs` 0.1.8 allocates up to 1 GiB for one string length, panics on tensor type
//! 40, and gives I64, F64 and BF16 blocks of 256. `gguf-rs-lib` 0.3.3 is sound against hostile
//! input, but refuses version 2, keys with a hyphen (`gpt-oss.block_count`, `command-r.…`) and
//! vocabularies that are not UTF-8, keeps every vocabulary in memory, and says no position. It
//! serves the tests as a second opinion on headers and on the table of types.

mod error;
mod metadata;
mod read;
mod shards;
mod source;
mod types;

pub use error::{GgufError, GgufFault};
pub use metadata::{Metadata, Value};
pub use types::TensorType;

use std::path::Path;

/// Where a tensor is and what it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// The name, unique in the model.
    pub name: String,
    /// Elements along each of up to four axes, the contiguous one first; empty for a scalar.
    pub dims: Vec<u64>,
    /// The type of the elements.
    pub kind: TensorType,
    /// Bytes from the start of the tensor data of its file.
    pub offset: u64,
    /// The size of the data, in bytes, without padding.
    pub bytes: u64,
    /// The file of a split model that holds it, from 0.
    pub shard: u32,
}

/// What the header of one file, or of all files of a split model, says.
#[derive(Clone, Debug, PartialEq)]
pub struct GgufHeader {
    /// The file's name, without its folder, as messages name it.
    pub file: String,
    /// The format version, 2 or 3.
    pub version: u32,
    /// The number of files of the model.
    pub shards: u32,
    /// The metadata; of a split model, that of the first file.
    pub metadata: Metadata,
    /// Every tensor, in the order of the files.
    pub tensors: Vec<TensorInfo>,
    /// Where the tensor data of the first file starts, in bytes.
    pub data_start: u64,
    /// How long the first file must be to hold its tensors, in bytes.
    pub file_bytes_needed: u64,
}

impl GgufHeader {
    /// Reads the header of the file at `path`, and of its siblings where the model is split.
    ///
    /// # Errors
    /// [`GgufError`]: the file cannot be read, is no sound GGUF, is shorter than its tensors, or
    /// lacks a sibling.
    pub fn open(path: &Path) -> Result<Self, GgufError> {
        shards::open(path).map_err(|error| GgufError {
            // Parts are named in their folder; people gave a path.
            file: path.with_file_name(&error.file).display().to_string(),
            ..error
        })
    }

    /// Reads one header from `reader`; `file` names it in messages.
    ///
    /// `length` is the size of the file in bytes, where it is known. It lets a claim beyond the end
    /// be refused at once; whether the tensor data is all there is [`Self::check_length`].
    ///
    /// # Errors
    /// [`GgufError`], with the position at which the header is unsound.
    pub fn read(
        reader: impl std::io::Read,
        file: &str,
        length: Option<u64>,
    ) -> Result<Self, GgufError> {
        read::header(reader, file, length)
    }

    /// Checks that a file of `length` bytes holds all the tensor data that its header claims.
    ///
    /// Kept apart from reading, because a header alone is enough for the sizes: a caller that
    /// plans for a file still being downloaded may skip it.
    ///
    /// # Errors
    /// [`GgufFault::Short`] with both sizes.
    pub fn check_length(&self, length: u64) -> Result<(), GgufError> {
        if length >= self.file_bytes_needed {
            return Ok(());
        }
        Err(GgufError {
            file: self.file.clone(),
            at: length,
            fault: GgufFault::Short {
                needed: self.file_bytes_needed,
                length,
            },
        })
    }

    /// The architecture, such as `llama`; the prefix of most metadata keys.
    #[must_use]
    pub fn architecture(&self) -> Option<&str> {
        self.metadata.text("general.architecture")
    }

    /// The model's own name where it has one, else the file's.
    #[must_use]
    pub fn model_name(&self) -> &str {
        self.metadata
            .text("general.name")
            .filter(|name| !name.trim().is_empty())
            .unwrap_or(&self.file)
    }
}

#[cfg(test)]
pub(crate) mod tests;
