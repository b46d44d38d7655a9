//! Models split over several files, `NAME-00001-of-00003.gguf` and on.

use super::GgufHeader;
use super::error::{GgufError, GgufFault};
use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;

pub(super) fn open(path: &Path) -> Result<GgufHeader, GgufError> {
    let file = path
        .file_name()
        .unwrap_or(path.as_os_str())
        .to_string_lossy()
        .into_owned();
    let Some(name) = ShardName::parse(&file) else {
        let header = open_one(path, &file)?;
        return match header.metadata.count("split.count") {
            Some(count @ 2..) => Err(error(&file, GgufFault::ShardName { count })),
            _ => Ok(header),
        };
    };
    // A folder with all parts missing but the first is refused before any header is read.
    for number in 1..=name.count {
        let part = name.part(number);
        if !path.with_file_name(&part).exists() {
            return Err(error(&file, GgufFault::MissingShard(part)));
        }
    }
    join(path, &file, &name)
}

fn join(path: &Path, file: &str, name: &ShardName<'_>) -> Result<GgufHeader, GgufError> {
    let mut whole = open_part(path, name, 1)?;
    let mut names: BTreeSet<String> = whole
        .tensors
        .iter()
        .map(|tensor| tensor.name.clone())
        .collect();
    for number in 2..=name.count {
        let part = open_part(path, name, number)?;
        for mut tensor in part.tensors {
            if !names.insert(tensor.name.clone()) {
                let what = "tensors";
                let name = tensor.name;
                return Err(error(&part.file, GgufFault::Duplicate { what, name }));
            }
            tensor.shard = number - 1;
            whole.tensors.push(tensor);
        }
    }
    if let Some(expected) = whole.metadata.count("split.tensors.count") {
        let found = whole.tensors.len() as u64;
        same(file, "the number of tensors", expected, found)?;
    }
    whole.file = file.to_owned();
    whole.shards = name.count;
    Ok(whole)
}

fn open_part(path: &Path, name: &ShardName<'_>, number: u32) -> Result<GgufHeader, GgufError> {
    let file = name.part(number);
    let part = open_one(&path.with_file_name(&file), &file)?;
    if let Some(count) = part.metadata.count("split.count") {
        same(&file, "the number of parts", name.count.into(), count)?;
    }
    if let Some(index) = part.metadata.count("split.no") {
        let expected = u64::from(number - 1);
        same(&file, "the index of this part", expected, index)?;
    }
    Ok(part)
}

fn open_one(path: &Path, file: &str) -> Result<GgufHeader, GgufError> {
    let unreadable = |cause: std::io::Error| error(file, GgufFault::Io(cause.to_string()));
    let handle = File::open(path).map_err(unreadable)?;
    let facts = handle.metadata().map_err(unreadable)?;
    if facts.is_dir() {
        let cause = "it is a folder".to_owned();
        return Err(error(file, GgufFault::Io(cause)));
    }
    // A pipe has no length; its header is read all the same, and its data cannot be checked.
    let length = facts.is_file().then_some(facts.len());
    let header = GgufHeader::read(handle, file, length)?;
    if let Some(length) = length {
        header.check_length(length)?;
    }
    Ok(header)
}

fn same(file: &str, what: &'static str, expected: u64, found: u64) -> Result<(), GgufError> {
    if expected == found {
        return Ok(());
    }
    let fault = GgufFault::ShardMismatch {
        what,
        expected,
        found,
    };
    Err(error(file, fault))
}

fn error(file: &str, fault: GgufFault) -> GgufError {
    GgufError {
        file: file.to_owned(),
        at: 0,
        fault,
    }
}

/// The name of a part, as llama.cpp's `gguf-split` gives it.
struct ShardName<'a> {
    stem: &'a str,
    count: u32,
}

impl<'a> ShardName<'a> {
    fn parse(file: &'a str) -> Option<Self> {
        let (rest, count) = file.strip_suffix(".gguf")?.rsplit_once("-of-")?;
        let (stem, number) = rest.rsplit_once('-')?;
        let five_digits = |text: &str| {
            let digits = text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
            digits.then(|| text.parse::<u32>().ok()).flatten()
        };
        let (number, count) = (five_digits(number)?, five_digits(count)?);
        (1..=count)
            .contains(&number)
            .then_some(Self { stem, count })
    }

    fn part(&self, number: u32) -> String {
        format!("{}-{number:05}-of-{:05}.gguf", self.stem, self.count)
    }
}
