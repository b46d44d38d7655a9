//! The one shape of error for files that people write: topologies and fault plans.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use ds4_engine::bytes::format_bytes;

/// Why an input was refused: where, what is wrong, and what to write instead, in one sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputError {
    /// The file as the user named it.
    pub file: String,
    /// `line`, `line:column` or a JSON path; empty when the whole file is meant.
    pub place: String,
    /// What is wrong.
    pub problem: String,
    /// What to do about it.
    pub remedy: String,
}

impl InputError {
    pub(crate) fn new(
        file: &str,
        place: impl Into<String>,
        problem: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            file: file.to_owned(),
            place: place.into(),
            problem: problem.into(),
            remedy: remedy.into(),
        }
    }
}

impl fmt::Display for InputError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if !self.place.is_empty() {
            write!(f, ":{}", self.place)?;
        }
        write!(f, ": {}; {}", self.problem, self.remedy)
    }
}

impl std::error::Error for InputError {}

/// The most that is read of a file that people write, in bytes.
pub const MAX_FILE_BYTES: u64 = 16 << 20;

/// Reads a file that people write; `what` is what the user calls it.
///
/// # Errors
/// An [`InputError`] when it cannot be read or is longer than [`MAX_FILE_BYTES`], as devices and
/// pipes without end are.
pub fn read_file(path: &Path, what: &str) -> Result<Vec<u8>, InputError> {
    let file = path.display().to_string();
    read_at_most(path, MAX_FILE_BYTES)
        .map_err(|error| {
            let problem = format!("{what} cannot be read ({error})");
            InputError::new(
                &file,
                "",
                problem,
                "check the path and that it is a text file",
            )
        })?
        .ok_or_else(|| {
            let problem = format!("{what} is longer than {}", format_bytes(MAX_FILE_BYTES));
            InputError::new(&file, "", problem, "give a file that a person would write")
        })
}

fn read_at_most(path: &Path, most_bytes: u64) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    let read = File::open(path)?
        .take(most_bytes + 1)
        .read_to_end(&mut bytes)?;
    Ok((read as u64 <= most_bytes).then_some(bytes))
}

/// The line and column, from 1 on, of a byte offset in `text`.
pub(crate) fn line_and_column(text: &str, offset: usize) -> (usize, usize) {
    let before = text.as_bytes().get(..offset).unwrap_or(text.as_bytes());
    let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
    let column = before
        .iter()
        .rev()
        .take_while(|byte| **byte != b'\n')
        .count()
        + 1;
    (line, column)
}

/// Messages of parsers span lines; the product's are one sentence.
pub(crate) fn one_line(message: &str) -> String {
    let words: Vec<&str> = message.split_whitespace().collect();
    words.join(" ")
}

/// A parser's message with what is expected as users know it.
pub(crate) fn in_words(message: &str) -> String {
    [
        ("expected u64", "expected a whole number from 0"),
        ("expected f64", "expected a number"),
        ("expected a boolean", "expected true or false"),
        ("expected a string", "expected a text in quotes"),
        ("expected a sequence", "expected a list in brackets"),
        ("invalid type: map", "invalid type: an object"),
        ("invalid type: sequence", "invalid type: a list"),
    ]
    .iter()
    .fold(message.to_owned(), |text, (jargon, words)| {
        text.replace(jargon, words)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offset_is_a_line_and_a_column_even_past_the_end() {
        assert_eq!(line_and_column("", 0), (1, 1));
        assert_eq!(line_and_column("ab\ncd", 4), (2, 2));
        assert_eq!(line_and_column("ab\ncd", 99), (2, 3));
    }

    #[cfg(unix)]
    #[test]
    fn a_file_without_end_is_refused_by_name_and_limit() {
        let text = read_file(Path::new("/dev/zero"), "the plan")
            .unwrap_err()
            .to_string();
        assert!(
            text.starts_with("/dev/zero: the plan is longer than 16 MiB"),
            "{text}"
        );
    }

    #[test]
    fn the_sentence_leaves_out_an_empty_place() {
        let error = InputError::new("a.toml", "", "it is empty", "add a device");
        assert_eq!(error.to_string(), "a.toml: it is empty; add a device");
    }
}
