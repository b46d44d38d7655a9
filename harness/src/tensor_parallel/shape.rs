//! What the ranks must have in common of a model: its shape and a hash of its content.

use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::Path;

use sha2::{Digest as _, Sha256};

use crate::files::open_regular;
use crate::gguf::GgufHeader;
use crate::output::Failure;

/// Up to this length the whole file is hashed.
const WHOLE_BYTES: u64 = 256 << 20;
/// Of longer ones the beginning, the end and pieces between them.
const PIECE_BYTES: u64 = 64 << 10;
const PIECES: u64 = 4096;
/// The vocabulary of a run without a model.
const SMALL_VOCABULARY: u32 = 1024;

/// A model as the ranks see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) name: String,
    pub(super) n_layer: u32,
    pub(super) n_embd: u32,
    pub(super) n_vocab: u32,
    pub(super) content: [u8; 32],
    /// Bytes of the model file; 0 without one.
    pub(super) file_bytes: u64,
    /// Bits of a routed expert's weight as ds4 counts them: 4, 2, or 0 where there is no such expert.
    pub(super) expert_bits: u32,
}

impl Shape {
    /// A shape without a model.
    pub(super) fn bare(n_layer: u32, n_embd: u32) -> Self {
        Self {
            name: format!("{n_layer} layers of width {n_embd}"),
            n_layer,
            n_embd,
            n_vocab: SMALL_VOCABULARY,
            content: [0; 32],
            file_bytes: 0,
            expert_bits: 0,
        }
    }

    /// The shape that a model file gives.
    pub(super) fn of_model(path: &Path) -> Result<Self, Failure> {
        let words = |error: io::Error| Failure::usage(format!("{}: {error}", path.display()));
        // A pipe's header could be read, but not its content after it.
        open_regular(path).map_err(words)?;
        let header = GgufHeader::open(path).map_err(Failure::usage)?;
        let architecture = header.architecture().unwrap_or_default();
        let metadata = &header.metadata;
        let count = |name: &str| -> Result<u32, Failure> {
            let key = format!("{architecture}.{name}");
            let count = metadata.count(&key).and_then(|it| u32::try_from(it).ok());
            count
                .ok_or_else(|| Failure::usage(format!("{}: no usable {key} in it", path.display())))
        };
        let (n_layer, n_embd) = (count("block_count")?, count("embedding_length")?);
        let content = hash(path).map_err(words)?;
        let experts = header.tensors.iter();
        let mut experts = experts.filter(|it| it.name.ends_with(".ffn_gate_exps.weight"));
        Ok(Self {
            name: header.model_name().to_owned(),
            n_layer,
            n_embd,
            n_vocab: count("vocab_size").unwrap_or(SMALL_VOCABULARY),
            content,
            file_bytes: path.metadata().map_err(words)?.len(),
            expert_bits: match experts.next().map(|it| it.kind.name()) {
                None => 0,
                Some("q4_K") => 4,
                Some(_) => 2,
            },
        })
    }
}

/// A hash of the content: all of it, or of a large file its length and evenly spread pieces.
fn hash(path: &Path) -> io::Result<[u8; 32]> {
    let mut file = open_regular(path)?;
    let length = file.metadata()?.len();
    let mut hash = Sha256::new();
    hash.update(length.to_le_bytes());
    if length <= WHOLE_BYTES {
        io::copy(&mut file, &mut hash)?;
        return Ok(hash.finalize().into());
    }
    let mut piece = vec![0; usize::try_from(PIECE_BYTES).unwrap_or(0)];
    let last = length - PIECE_BYTES;
    for index in 0..PIECES {
        // Below 2^64: a file's length in pieces, multiplied by fewer than a piece has bytes.
        let at = u128::from(last) * u128::from(index) / u128::from(PIECES - 1);
        file.seek(SeekFrom::Start(u64::try_from(at).unwrap_or(last)))?;
        file.read_exact(&mut piece)?;
        hash.update(&piece);
    }
    Ok(hash.finalize().into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn a_large_file_is_told_from_another_by_its_beginning_and_its_end() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("model");
        let file = File::create(&path).unwrap();
        file.set_len(WHOLE_BYTES + 1).unwrap();
        let empty = hash(&path).unwrap();
        assert_eq!(empty, hash(&path).unwrap());
        for at in [0, WHOLE_BYTES] {
            std::os::unix::fs::FileExt::write_at(&file, b"x", at).unwrap();
            assert_ne!(hash(&path).unwrap(), empty);
            std::os::unix::fs::FileExt::write_at(&file, &[0], at).unwrap();
        }
        assert_eq!(hash(&path).unwrap(), empty);
    }
}
