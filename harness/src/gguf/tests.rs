//! Headers written by a small builder, real ones, and every way they can be unsound.

use super::*;
use proptest::prelude::*;
use std::io::Cursor;
use std::path::PathBuf;

/// A GGUF header under construction.
#[derive(Clone, Default)]
pub(crate) struct Draft {
    pairs: Vec<u8>,
    pair_count: u64,
    tensors: Vec<u8>,
    tensor_count: u64,
    next_offset: u64,
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

impl Draft {
    /// Adds a pair of any type from its raw bytes.
    pub(crate) fn raw(mut self, key: &str, code: u32, value: &[u8]) -> Self {
        put_text(&mut self.pairs, key);
        self.pairs.extend(code.to_le_bytes());
        self.pairs.extend(value);
        self.pair_count += 1;
        self
    }

    pub(crate) fn number(self, key: &str, value: u32) -> Self {
        self.raw(key, 4, &value.to_le_bytes())
    }

    pub(crate) fn text(self, key: &str, value: &str) -> Self {
        let mut bytes = Vec::new();
        put_text(&mut bytes, value);
        self.raw(key, 8, &bytes)
    }

    pub(crate) fn numbers(self, key: &str, values: &[u32]) -> Self {
        let mut bytes = 4_u32.to_le_bytes().to_vec();
        bytes.extend((values.len() as u64).to_le_bytes());
        bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        self.raw(key, 9, &bytes)
    }

    pub(crate) fn bools(self, key: &str, values: &[bool]) -> Self {
        let mut bytes = 7_u32.to_le_bytes().to_vec();
        bytes.extend((values.len() as u64).to_le_bytes());
        bytes.extend(values.iter().map(|value| u8::from(*value)));
        self.raw(key, 9, &bytes)
    }

    /// Adds a tensor after the last one, whatever its size.
    pub(crate) fn tensor(mut self, name: &str, dims: &[u64], kind: TensorType) -> Self {
        let bytes = kind.bytes(dims.iter().product()).unwrap();
        let offset = self.next_offset;
        self.next_offset += bytes.next_multiple_of(32);
        self.tensor_raw(name, dims, kind.code(), offset)
    }

    fn tensor_raw(mut self, name: &str, dims: &[u64], code: u32, offset: u64) -> Self {
        put_text(&mut self.tensors, name);
        self.tensors
            .extend(u32::try_from(dims.len()).unwrap().to_le_bytes());
        self.tensors
            .extend(dims.iter().flat_map(|dim| dim.to_le_bytes()));
        self.tensors.extend(code.to_le_bytes());
        self.tensors.extend(offset.to_le_bytes());
        self.tensor_count += 1;
        self
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(3_u32.to_le_bytes());
        out.extend(self.tensor_count.to_le_bytes());
        out.extend(self.pair_count.to_le_bytes());
        out.extend(&self.pairs);
        out.extend(&self.tensors);
        out
    }

    pub(crate) fn header(&self) -> GgufHeader {
        read(&self.bytes()).unwrap()
    }
}

fn read(bytes: &[u8]) -> Result<GgufHeader, GgufError> {
    GgufHeader::read(bytes, "model.gguf", None)
}

fn small() -> Draft {
    Draft::default()
        .text("general.architecture", "llama")
        .number("llama.block_count", 1)
        .numbers("llama.attention.head_count_kv", &[4, 0])
        .bools("flags", &[true, false])
        .text("tokenizer.chat_template", &"x".repeat(5000))
        .tensor("token_embd.weight", &[256, 512], TensorType::Q8_0)
        .tensor("blk.0.attn_norm.weight", &[256], TensorType::F32)
}

/// The workspace's `golden` folder, wherever this binary was built.
pub(crate) fn golden(path: &str) -> PathBuf {
    let harness =
        std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    PathBuf::from(harness).join("../golden").join(path)
}

#[test]
fn a_header_reads_back_as_written() {
    let header = small().header();
    assert_eq!(header.architecture(), Some("llama"));
    assert_eq!(header.model_name(), "model.gguf");
    assert_eq!(header.metadata.count("llama.block_count"), Some(1));
    assert_eq!(
        header.metadata.counts("llama.attention.head_count_kv"),
        Some(vec![4, 0])
    );
    assert_eq!(header.metadata.counts("flags"), Some(vec![1, 0]));
    assert_eq!(
        header.metadata.value("tokenizer.chat_template"),
        Some(&Value::Skipped)
    );
    let sizes: Vec<u64> = header.tensors.iter().map(|tensor| tensor.bytes).collect();
    assert_eq!(sizes, [512 * 256 / 32 * 34, 1024]);
    assert_eq!(
        header.file_bytes_needed,
        header.data_start + 512 * 256 / 32 * 34 + 1024
    );
}

#[test]
fn version_two_has_the_same_layout() {
    let mut bytes = small().bytes();
    bytes[4] = 2;
    assert_eq!(read(&bytes).unwrap().tensors, small().header().tensors);
}

#[test]
fn keys_with_hyphens_and_texts_that_are_not_utf8_are_accepted() {
    let header = small()
        .number("gpt-oss.block_count", 24)
        .raw("odd", 8, &[2, 0, 0, 0, 0, 0, 0, 0, 0xff, b'a'])
        .header();
    assert_eq!(header.metadata.count("gpt-oss.block_count"), Some(24));
    assert_eq!(header.metadata.text("odd"), Some("\u{fffd}a"));
}

#[test]
fn a_header_cut_anywhere_is_refused_with_its_position() {
    let bytes = small().bytes();
    for end in 0..bytes.len() {
        for length in [None, Some(end as u64)] {
            let error = GgufHeader::read(&bytes[..end], "m.gguf", length).unwrap_err();
            assert!(matches!(error.fault, GgufFault::Cut(_)), "{end}: {error}");
            assert!(error.at <= end as u64, "{end}: {error}");
        }
    }
}

#[test]
fn the_golden_header_of_a_real_file_reads() {
    let bytes = std::fs::read(golden("gguf/tiny_llama_q8_0.header.gguf")).unwrap();
    let header = GgufHeader::read(&bytes[..], "tiny.gguf", Some(bytes.len() as u64)).unwrap();
    assert_eq!(header.model_name(), "tiny-random-llama");
    assert_eq!(header.tensors.len(), 39);
    assert_eq!(header.data_start, 14_144);
    assert_eq!(header.file_bytes_needed, 4_043_584);
    assert!(header.check_length(4_043_584).is_ok());
    insta::assert_snapshot!(
        header.check_length(bytes.len() as u64).unwrap_err(),
        @"tiny.gguf: ends at byte 14144, but its header claims tensors up to byte 4043584 (3.8 MiB missing); download it again"
    );
}

#[test]
fn a_second_reader_agrees_on_a_real_header() {
    let mut bytes = std::fs::read(golden("gguf/tiny_llama_q8_0.header.gguf")).unwrap();
    let ours = GgufHeader::read(&bytes[..], "tiny.gguf", None).unwrap();
    bytes.resize(usize::try_from(ours.file_bytes_needed).unwrap(), 0);
    let theirs = gguf_rs_lib::reader::GGUFFileReader::new(Cursor::new(bytes)).unwrap();
    assert_eq!(theirs.tensor_count(), ours.tensors.len());
    for (ours, theirs) in ours.tensors.iter().zip(theirs.tensor_infos()) {
        assert_eq!(ours.name, theirs.name());
        assert_eq!(ours.offset, theirs.data_offset());
        assert_eq!(ours.bytes, theirs.checked_expected_data_size().unwrap());
    }
}

#[test]
fn a_second_table_agrees_on_every_type() {
    use gguf_rs_lib::format::types::GGUFTensorType;
    for code in 0..200 {
        let theirs = GGUFTensorType::from_u32(code).ok();
        let theirs = theirs.map(|kind| {
            (
                kind.block_size() as u64,
                kind.block_size_bytes().unwrap() as u64,
            )
        });
        let ours = TensorType::from_code(code);
        assert_eq!(ours.map(TensorType::block), theirs, "type {code}");
        assert_eq!(ours.map_or(code, TensorType::code), code);
    }
}

/// Each way a header is unsound, with its sentence.
fn unsound() -> Vec<(&'static str, Vec<u8>)> {
    let with = |at: usize, new: &[u8]| {
        let mut bytes = small().bytes();
        bytes[at..at + new.len()].copy_from_slice(new);
        bytes
    };
    let huge = (1_u64 << 60).to_le_bytes();
    let f32s = TensorType::F32.code();
    let plain = |draft: Draft| draft.bytes();
    let nested = [9, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0].repeat(9);
    let long_array = |code: u32| [&code.to_le_bytes()[..], &huge].concat();
    vec![
        ("no magic", b"PK\x03\x04 a zip file".to_vec()),
        ("empty", Vec::new()),
        ("big-endian", with(4, &[0, 0, 0, 3])),
        ("version 1", with(4, &[1])),
        ("version 4", with(4, &[4])),
        ("2^60 tensors", with(8, &huge)),
        ("2^60 pairs", with(16, &huge)),
        ("key of 2^60 bytes", with(24, &huge)),
        ("text of 2^60 bytes", plain(small().raw("a", 8, &huge))),
        (
            "text of 2^64 - 1 bytes",
            plain(small().raw("a", 8, &[0xff; 8])),
        ),
        (
            "array of 2^60 texts",
            plain(small().raw("a", 9, &long_array(8))),
        ),
        (
            "array of 2^60 numbers",
            plain(small().raw("a", 9, &long_array(4))),
        ),
        (
            "array of arrays of arrays",
            plain(small().raw("a", 9, &nested)),
        ),
        (
            "array of unknown type",
            plain(small().raw("a", 9, &long_array(77))),
        ),
        ("value of unknown type", plain(small().raw("a", 13, &[]))),
        (
            "key twice",
            plain(small().number("a\n", 1).number("a\n", 2)),
        ),
        ("alignment 0", plain(small().number("general.alignment", 0))),
        (
            "alignment 24",
            plain(small().number("general.alignment", 24)),
        ),
        (
            "alignment text",
            plain(small().text("general.alignment", "32")),
        ),
        (
            "tensor twice",
            plain(small().tensor("token_embd.weight", &[1], TensorType::F32)),
        ),
        (
            "five axes",
            plain(small().tensor_raw("t", &[1; 5], f32s, 0)),
        ),
        (
            "product above 2^64",
            plain(small().tensor_raw("t", &[1 << 33, 1 << 33], f32s, 0)),
        ),
        (
            "one axis above 2^63",
            plain(small().tensor_raw("t", &[u64::MAX], f32s, 0)),
        ),
        (
            "zero hides a product",
            plain(small().tensor_raw("t", &[1 << 62, 1 << 62, 0], f32s, 0)),
        ),
        (
            "end above 2^63",
            plain(small().tensor_raw("t", &[8], f32s, i64::MAX as u64 & !31)),
        ),
        ("offset 8", plain(small().tensor_raw("t", &[8], f32s, 8))),
        ("type 99", plain(small().tensor_raw("t", &[8], 99, 0))),
        (
            "type 4, withdrawn",
            plain(small().tensor_raw("t", &[8], 4, 0)),
        ),
        (
            "row of 33 in q8_0",
            plain(small().tensor_raw("t", &[33], 8, 0)),
        ),
        (
            "name of 2000 bytes",
            plain(small().tensor_raw(&"n".repeat(2000), &[8], f32s, 0)),
        ),
    ]
}

#[test]
fn unsound_headers_are_refused_in_one_sentence() {
    let mut table = String::new();
    for (what, bytes) in unsound() {
        let error = read(&bytes).expect_err(what).to_string();
        assert!(!error.contains('\n'), "{what}");
        table += &format!("{what}\n    {error}\n");
    }
    insta::with_settings!({
        snapshot_path => "../../../golden/gguf",
        prepend_module_to_snapshot => false,
    }, {
        insta::assert_snapshot!("refused", table);
    });
}

#[test]
fn a_claim_beyond_a_known_end_is_refused_before_it_is_read() {
    let bytes = small().raw("a", 8, &(1_u64 << 40).to_le_bytes()).bytes();
    let error = GgufHeader::read(&bytes[..], "m", Some(bytes.len() as u64)).unwrap_err();
    assert_eq!(error.fault, GgufFault::Cut("a".to_owned()));
}

fn write_parts(folder: &Path, count: u16) -> PathBuf {
    for number in 0..count {
        let mut bytes = Draft::default()
            .raw("split.no", 2, &number.to_le_bytes())
            .raw("split.count", 2, &count.to_le_bytes())
            .number("split.tensors.count", count.into())
            .tensor(&format!("blk.{number}.w"), &[8], TensorType::F32)
            .bytes();
        bytes.resize(bytes.len().next_multiple_of(32) + 32, 0);
        let name = format!("m-{:05}-of-{count:05}.gguf", number + 1);
        std::fs::write(folder.join(name), bytes).unwrap();
    }
    folder.join("m-00002-of-00003.gguf")
}

#[test]
fn the_parts_of_a_split_model_are_read_as_one() {
    let folder = tempfile::tempdir().unwrap();
    let header = GgufHeader::open(&write_parts(folder.path(), 3)).unwrap();
    assert_eq!(header.shards, 3);
    let shards: Vec<u32> = header.tensors.iter().map(|tensor| tensor.shard).collect();
    assert_eq!(shards, [0, 1, 2]);
}

#[test]
fn a_split_model_with_a_part_missing_or_renamed_is_refused() {
    let mut settings = insta::Settings::clone_current();
    settings.add_filter(r"^\S*/", "");
    let _bound = settings.bind_to_scope();
    let folder = tempfile::tempdir().unwrap();
    let path = write_parts(folder.path(), 3);
    let alone = folder.path().join("alone.gguf");
    std::fs::copy(&path, &alone).unwrap();
    insta::assert_snapshot!(
        GgufHeader::open(&alone).unwrap_err(),
        @"alone.gguf: is one of 3 parts of a split model, but its name does not end in -00001-of-00003.gguf; give the parts the names they were published with"
    );
    std::fs::copy(&path, folder.path().join("m-00003-of-00003.gguf")).unwrap();
    insta::assert_snapshot!(
        GgufHeader::open(&path).unwrap_err(),
        @"m-00003-of-00003.gguf: the parts of this split model do not belong together: the index of this part is 1, not 2; download the parts from one place"
    );
    std::fs::remove_file(folder.path().join("m-00003-of-00003.gguf")).unwrap();
    insta::assert_snapshot!(
        GgufHeader::open(&path).unwrap_err(),
        @"m-00002-of-00003.gguf: 'm-00003-of-00003.gguf', a part of this split model, is missing; put all parts into one folder"
    );
}

#[test]
fn a_file_shorter_than_its_tensors_or_absent_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    assert!(matches!(
        GgufHeader::open(&path).unwrap_err().fault,
        GgufFault::Io(_)
    ));
    assert!(matches!(
        GgufHeader::open(folder.path()).unwrap_err().fault,
        GgufFault::Io(_)
    ));
    std::fs::write(&path, small().bytes()).unwrap();
    assert!(matches!(
        GgufHeader::open(&path).unwrap_err().fault,
        GgufFault::Short { .. }
    ));
}

proptest! {
    #[test]
    fn no_bytes_bring_the_reader_down(
        tail in proptest::collection::vec(any::<u8>(), 0..200),
        known: bool,
    ) {
        let bytes = [&b"GGUF\x03\0\0\0\x02\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0"[..], &tail].concat();
        let length = known.then_some(bytes.len() as u64);
        let _ = GgufHeader::read(&bytes[..], "m", length);
    }

    #[test]
    fn one_wrong_byte_never_brings_the_reader_down(at: prop::sample::Index, byte: u8) {
        let mut bytes = small().bytes();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        let _ = read(&bytes);
    }
}
