//! The exit codes of `ds4`, for scripts and CI.

use std::process::ExitCode;

/// Why the command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Everything asked for was done and holds.
    Ok,
    /// A check failed, or a refusal that the run was to do without.
    CheckFailed,
    /// The command line or an input file is wrong; nothing was done.
    Usage,
    /// Slower than the baseline allows.
    Regression,
    /// Nothing was measured, or there is no device; a number that no device has is [`Exit::Usage`].
    NothingDone,
    /// A fault of this program.
    Internal,
    /// A device is busy; try again.
    Busy,
    /// The deadline passed.
    Deadline,
    /// Interrupted by the user; what was done so far was printed.
    Interrupted,
    /// The code of the program that was run.
    Child(u8),
}

impl Exit {
    /// The number that the process ends with.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Ok => 0,
            Self::CheckFailed => 1,
            Self::Usage => 2,
            Self::Regression => 3,
            Self::NothingDone => 4,
            Self::Internal => 70,
            Self::Busy => 75,
            Self::Deadline => 124,
            Self::Interrupted => 130,
            Self::Child(code) => code,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}
