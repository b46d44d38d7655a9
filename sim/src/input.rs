//! The one shape of error for files that people write: topologies and fault plans.

use std::fmt;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offset_is_a_line_and_a_column_even_past_the_end() {
        assert_eq!(line_and_column("", 0), (1, 1));
        assert_eq!(line_and_column("ab\ncd", 4), (2, 2));
        assert_eq!(line_and_column("ab\ncd", 99), (2, 3));
    }

    #[test]
    fn the_sentence_leaves_out_an_empty_place() {
        let error = InputError::new("a.toml", "", "it is empty", "add a device");
        assert_eq!(error.to_string(), "a.toml: it is empty; add a device");
    }
}
