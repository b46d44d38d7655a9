//! What goes wrong, as the environment says.

use std::env;

/// The environment variable: `KIND` or `KIND:N`, where N counts sums from 1 on.
const VARIABLE: &str = "DS4_FAKE_NCCL";

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Joining a group never ends.
    JoinHangs,
    /// Joining a group fails.
    JoinFails,
    /// The n-th sum never ends, and aborting ends it.
    SumHangs(u64),
    /// The call of the n-th sum never returns.
    SumBlocks(u64),
    /// The n-th sum fails after its call.
    SumFails(u64),
    /// One bit of the n-th sum is wrong.
    SumFlips(u64),
    /// The library says it is this version.
    Version(i32),
}

impl Fault {
    /// The fault of this process; a word that is none is as good as no fault, and told.
    pub(crate) fn of_environment() -> Option<Self> {
        let word = env::var(VARIABLE).ok()?;
        let fault = Self::parse(&word);
        if fault.is_none() && !word.is_empty() {
            #[expect(clippy::print_stderr, reason = "a library has no other way to say it")]
            {
                eprintln!("{VARIABLE}={word} is no fault");
            }
        }
        fault
    }

    fn parse(word: &str) -> Option<Self> {
        let (kind, number) = match word.split_once(':') {
            Some((kind, number)) => (kind, number.parse::<u64>().ok()?),
            None => (word, 1),
        };
        Some(match kind {
            "join-hang" => Self::JoinHangs,
            "join-error" => Self::JoinFails,
            "sum-hang" => Self::SumHangs(number),
            "sum-block" => Self::SumBlocks(number),
            "sum-error" => Self::SumFails(number),
            "sum-flip" => Self::SumFlips(number),
            "version" => Self::Version(i32::try_from(number).ok()?),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_read_as_written() {
        assert_eq!(Fault::parse("join-hang"), Some(Fault::JoinHangs));
        assert_eq!(Fault::parse("sum-flip:7"), Some(Fault::SumFlips(7)));
        assert_eq!(Fault::parse("version:21300"), Some(Fault::Version(21_300)));
        assert_eq!(Fault::parse("sum-flip:x"), None);
        assert_eq!(Fault::parse("nothing"), None);
    }
}
