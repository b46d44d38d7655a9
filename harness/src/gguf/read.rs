//! One header, from its magic to the start of its tensor data.

use super::error::{GgufError, GgufFault};
use super::metadata::{Metadata, Value};
use super::source::Source;
use super::types::TensorType;
use super::{GgufHeader, TensorInfo};
use ds4_engine::bytes::align_up;
use std::collections::BTreeSet;
use std::io::Read;

/// The most metadata pairs; real models have below a hundred.
const PAIRS_MAX: u64 = 65_536;
/// The most tensors; the largest models of today have below ten thousand.
const TENSORS_MAX: u64 = 1 << 20;
/// The longest tensor name, in bytes. The specification says 64; some forks write longer ones.
const NAME_BYTES_MAX: u64 = 1024;
/// The most axes of a tensor, `GGML_MAX_DIMS`.
const AXES_MAX: u32 = 4;
/// The alignment of a file that names none, in bytes.
const DEFAULT_ALIGNMENT: u64 = 32;

pub(super) fn header(
    reader: impl Read,
    file: &str,
    length: Option<u64>,
) -> Result<GgufHeader, GgufError> {
    let mut source = Source::new(reader, file, length);
    let version = opening(&mut source)?;
    let tensor_count = count(&mut source, "tensors", TENSORS_MAX)?;
    let pair_count = count(&mut source, "metadata pairs", PAIRS_MAX)?;
    let mut metadata = Metadata::default();
    for _ in 0..pair_count {
        metadata.read_pair(&mut source)?;
    }
    let alignment = alignment(&source, &metadata)?;
    let mut tensors = Vec::new();
    let mut names = BTreeSet::new();
    let mut data_bytes = 0;
    for _ in 0..tensor_count {
        let at = source.at();
        let (tensor, end) = tensor(&mut source, alignment)?;
        if !names.insert(tensor.name.clone()) {
            let what = "tensors";
            let name = tensor.name;
            return Err(source.fail(at, GgufFault::Duplicate { what, name }));
        }
        data_bytes = end.max(data_bytes);
        tensors.push(tensor);
    }
    let overflow = |at| {
        let tensor = tensors
            .last()
            .map_or(String::new(), |last| last.name.clone());
        source.fail(at, GgufFault::Overflow { tensor })
    };
    let data_start = align_up(source.at(), alignment).ok_or_else(|| overflow(source.at()))?;
    let file_bytes_needed = if tensors.is_empty() {
        source.at()
    } else {
        data_start
            .checked_add(data_bytes)
            .ok_or_else(|| overflow(source.at()))?
    };
    Ok(GgufHeader {
        file: file.to_owned(),
        version,
        shards: 1,
        metadata,
        tensors,
        data_start,
        file_bytes_needed,
    })
}

fn opening<R: Read>(source: &mut Source<'_, R>) -> Result<u32, GgufError> {
    if source.magic()? != *b"GGUF" {
        return Err(source.fail(0, GgufFault::NotGguf));
    }
    let at = source.at();
    match source.u32("the version")? {
        version @ 2..=3 => Ok(version),
        // The magic is the same in both byte orders; a small version read backwards is not small.
        version if version.swap_bytes() < 1 << 16 && version >= 1 << 16 => {
            Err(source.fail(at, GgufFault::BigEndian))
        }
        version => Err(source.fail(at, GgufFault::Version(version))),
    }
}

fn count<R: Read>(
    source: &mut Source<'_, R>,
    what: &'static str,
    limit: u64,
) -> Result<u64, GgufError> {
    let at = source.at();
    let count = source.u64(what)?;
    if count > limit {
        return Err(source.fail(at, GgufFault::Count { what, count, limit }));
    }
    Ok(count)
}

fn alignment<R: Read>(source: &Source<'_, R>, metadata: &Metadata) -> Result<u64, GgufError> {
    let value = match metadata.value("general.alignment") {
        None => return Ok(DEFAULT_ALIGNMENT),
        Some(Value::Integer(number)) => u64::try_from(*number).unwrap_or(u64::MAX),
        Some(_) => 0,
    };
    if value.is_power_of_two() && value <= 1 << 31 {
        return Ok(value);
    }
    Err(source.fail(source.at(), GgufFault::Alignment(value)))
}

/// The next tensor, and where its data ends, in bytes from the start of the tensor data.
fn tensor<R: Read>(
    source: &mut Source<'_, R>,
    alignment: u64,
) -> Result<(TensorInfo, u64), GgufError> {
    let name = source.name("tensor name", NAME_BYTES_MAX)?;
    let axes_at = source.at();
    let axes = source.u32(&name)?;
    if axes > AXES_MAX {
        let fault = GgufFault::Dimensions {
            tensor: name,
            count: axes,
        };
        return Err(source.fail(axes_at, fault));
    }
    let mut dims = Vec::new();
    for _ in 0..axes {
        dims.push(source.u64(&name)?);
    }
    let kind_at = source.at();
    let code = source.u32(&name)?;
    let Some(kind) = TensorType::from_code(code) else {
        let tensor = name;
        return Err(source.fail(kind_at, GgufFault::TensorKind { tensor, code }));
    };
    let offset_at = source.at();
    let offset = source.u64(&name)?;
    if !offset.is_multiple_of(alignment) {
        let fault = GgufFault::Offset {
            tensor: name,
            offset,
            alignment,
        };
        return Err(source.fail(offset_at, fault));
    }
    let bytes = tensor_bytes(&name, &dims, kind).map_err(|fault| source.fail(axes_at, fault))?;
    let Some(end) = offset
        .checked_add(bytes)
        .filter(|end| i64::try_from(*end).is_ok())
    else {
        return Err(source.fail(offset_at, GgufFault::Overflow { tensor: name }));
    };
    let info = TensorInfo {
        name,
        dims,
        kind,
        offset,
        bytes,
        shard: 0,
    };
    Ok((info, end))
}

fn tensor_bytes(name: &str, dims: &[u64], kind: TensorType) -> Result<u64, GgufFault> {
    let overflow = || GgufFault::Overflow {
        tensor: name.to_owned(),
    };
    let row = dims.first().copied().unwrap_or(1);
    if !row.is_multiple_of(kind.block().0) {
        return Err(GgufFault::Row {
            tensor: name.to_owned(),
            kind,
            elements: row,
        });
    }
    // A zero on one axis makes the product zero; the others must fit all the same, as in ggml.
    let bytes = dims.iter().skip(1).try_fold(
        kind.bytes(row.max(kind.block().0)).ok_or_else(overflow)?,
        |bytes, dim| bytes.checked_mul((*dim).max(1)).ok_or_else(overflow),
    )?;
    if i64::try_from(bytes).is_err() {
        return Err(overflow());
    }
    Ok(if dims.contains(&0) { 0 } else { bytes })
}
