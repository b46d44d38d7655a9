//! Why a trace was refused: one sentence with the file, the position and a remedy.

use std::error::Error;
use std::fmt;
use std::io;

/// Where in a trace file a problem was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Position {
    /// The file as a whole.
    File,
    /// A line of a text file, counted from 1.
    Line(u64),
    /// A byte of the decompressed file, counted from 0.
    Byte(u64),
    /// An entry of a PyTorch snapshot's `device_traces`.
    Entry {
        /// Index into `device_traces`, which is the device.
        device: u64,
        /// Index into that device's list.
        index: u64,
    },
    /// A block of a PyTorch snapshot's `segments`.
    Block {
        /// Index into `segments`.
        segment: u64,
        /// Index into that segment's `blocks`.
        index: u64,
    },
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File => f.write_str("the file"),
            Self::Line(line) => write!(f, "line {line}"),
            Self::Byte(offset) => write!(f, "byte {offset}"),
            Self::Entry { device, index } => write!(f, "device_traces[{device}][{index}]"),
            Self::Block { segment, index } => write!(f, "segments[{segment}].blocks[{index}]"),
        }
    }
}

/// What is wrong, where, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Complaint {
    /// Name of the file as the caller gave it.
    pub file: String,
    /// Where the problem was met.
    pub at: Position,
    /// The problem, as a fragment of a sentence.
    pub problem: String,
    /// What the reader of the message can do, as a fragment of a sentence.
    pub remedy: &'static str,
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if self.at != Position::File {
            write!(f, " {}", self.at)?;
        }
        write!(f, ": {}; {}", self.problem, self.remedy)
    }
}

/// Why a trace could not be read, by what the caller can do about it.
#[derive(Debug)]
#[non_exhaustive]
pub enum TraceError {
    /// The file could not be read: check the path and its permissions, or try again.
    Io {
        /// Name of the file as the caller gave it.
        file: String,
        /// What the operating system said.
        source: io::Error,
    },
    /// The bytes are not a trace in an accepted format, or are damaged: give another file.
    Format(Complaint),
    /// The bytes are well formed but contradict themselves: mend the trace or record it again.
    Sequence(Complaint),
    /// The trace is larger than the caller allows: raise the limit or record less.
    Limit(Complaint),
    /// The caller wanted the reading to end.
    Stopped {
        /// Name of the file as the caller gave it.
        file: String,
    },
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { file, source } => {
                write!(
                    f,
                    "{file}: cannot be read ({source}); check the path and its permissions"
                )
            }
            Self::Format(complaint) | Self::Sequence(complaint) | Self::Limit(complaint) => {
                complaint.fmt(f)
            }
            Self::Stopped { file } => write!(f, "{file}: interrupted while it was read"),
        }
    }
}

impl Error for TraceError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            Self::Format(_) | Self::Sequence(_) | Self::Limit(_) | Self::Stopped { .. } => None,
        }
    }
}

/// A problem that a byte source meets; it travels inside an [`io::Error`], because readers of
/// other crates stand between the source and us.
#[derive(Debug)]
pub(super) enum SourceProblem {
    TooManyBytes { max: u64 },
    LineTooLong { line: u64, max: usize },
    GzipDamaged,
    Stopped,
}

impl fmt::Display for SourceProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooManyBytes { max } => {
                write!(f, "the trace is longer than {max} bytes once decompressed")
            }
            Self::LineTooLong { max, .. } => write!(f, "the line is longer than {max} bytes"),
            Self::GzipDamaged => f.write_str("the gzip data is cut short or damaged"),
            Self::Stopped => f.write_str("stopped"),
        }
    }
}

impl Error for SourceProblem {}

impl From<SourceProblem> for io::Error {
    fn from(problem: SourceProblem) -> Self {
        Self::other(problem)
    }
}

const RECORD_LESS: &str = "record a shorter trace";

/// The file being read, as the maker of errors about it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Site<'a> {
    pub(super) file: &'a str,
}

impl Site<'_> {
    fn complaint(self, at: Position, problem: String, remedy: &'static str) -> Complaint {
        Complaint {
            file: self.file.to_owned(),
            at,
            problem,
            remedy,
        }
    }

    pub(super) fn format(
        self,
        at: Position,
        problem: impl Into<String>,
        remedy: &'static str,
    ) -> TraceError {
        TraceError::Format(self.complaint(at, problem.into(), remedy))
    }

    pub(super) fn sequence(
        self,
        at: Position,
        problem: impl Into<String>,
        remedy: &'static str,
    ) -> TraceError {
        TraceError::Sequence(self.complaint(at, problem.into(), remedy))
    }

    pub(super) fn limit(self, at: Position, problem: impl Into<String>) -> TraceError {
        TraceError::Limit(self.complaint(at, problem.into(), RECORD_LESS))
    }

    /// A limit that no caller can raise.
    pub(super) fn fixed_limit(
        self,
        at: Position,
        problem: impl Into<String>,
        remedy: &'static str,
    ) -> TraceError {
        TraceError::Limit(self.complaint(at, problem.into(), remedy))
    }

    pub(super) fn io(self, source: io::Error) -> TraceError {
        let Some(problem) = source.get_ref().and_then(|inner| inner.downcast_ref()) else {
            return TraceError::Io {
                file: self.file.to_owned(),
                source,
            };
        };
        match problem {
            SourceProblem::TooManyBytes { .. } => self.limit(Position::File, problem.to_string()),
            SourceProblem::LineTooLong { line, .. } => {
                self.limit(Position::Line(*line), problem.to_string())
            }
            SourceProblem::GzipDamaged => self.format(
                Position::File,
                problem.to_string(),
                "copy or record the file again",
            ),
            SourceProblem::Stopped => TraceError::Stopped {
                file: self.file.to_owned(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_is_one_sentence_with_file_position_and_remedy() {
        let error = Site {
            file: "trace.jsonl",
        }
        .sequence(
            Position::Line(17),
            "free of id 42, which was never allocated",
            "remove the line or record the trace again",
        );
        assert_eq!(
            error.to_string(),
            "trace.jsonl line 17: free of id 42, which was never allocated; \
             remove the line or record the trace again"
        );
    }

    #[test]
    fn source_problem_is_recovered_from_an_io_error() {
        let error = Site { file: "t" }.io(SourceProblem::TooManyBytes { max: 8 }.into());
        assert!(matches!(error, TraceError::Limit(_)), "{error}");
        let error = Site { file: "t" }.io(io::ErrorKind::PermissionDenied.into());
        assert!(matches!(error, TraceError::Io { .. }), "{error}");
        assert!(error.source().is_some());
    }
}
