//! The command line of `cargo ci`.

/// What `cargo ci` prints without a task.
pub const HELP: &str = "\
The project's tasks.

  cargo ci test                    all tests, by nextest, then the doctests
  cargo ci check [--skip-tests]    everything that CI runs
  cargo ci golden                  rewrites the golden files and shows what changed
  cargo ci bench [--save]          exact counts and instructions against the baselines
  cargo ci kernels [--save]        compiles the device kernels and compares with what is checked in
  cargo ci header [--save]         the C header, compared with what is checked in
  cargo ci tidy                    imports, file lengths, module docs, the code map
  cargo ci deny                    licences, bans, sources and advisories of the dependencies
  cargo ci fuzz [TARGET] [--seconds N]   fuzzes one target, or each in turn, for N seconds (60)
  cargo ci campaign [--seed N]     100 000 simulated runs of ranks, 17 million gates of processes
  cargo ci clients                 programs from PyPI on the simulated driver (needs pip)
  cargo ci rdma                    RDMA in virtual machines with Soft-RoCE (needs apt-get, once)
  cargo ci hw-archive              all that a GPU host without Rust needs for the hardware tests
  cargo ci mutants                 mutates placement and the pool: every mutant must be caught
  cargo ci loom                    the engine's models under loom
  cargo ci miri                    the engine's unit tests under Miri

Examples:
  cargo ci test
  cargo ci bench --save && git diff golden ci/baselines
  cargo ci fuzz frame --seconds 300

Exit codes: 0 passed, 1 a check failed, 2 usage, 3 a count grew, 4 nothing to compare with,
70 a program could not be started; a failed program's own code is passed on (nextest: 100 a test
failed, 4 no test ran).";

/// One task with its options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Task {
    /// Prints [`HELP`].
    Help,
    /// All tests and doctests.
    Test,
    /// Everything that CI runs.
    Check {
        /// The tests ran before.
        skip_tests: bool,
    },
    /// Rewrites golden files.
    Golden,
    /// The gates on counts and instructions.
    Bench {
        /// Writes the baselines instead of comparing.
        save: bool,
    },
    /// The compiled device kernels.
    Kernels {
        /// Writes them instead of comparing.
        save: bool,
    },
    /// The C header.
    Header {
        /// Writes it instead of comparing.
        save: bool,
    },
    /// The rules on the source tree.
    Tidy,
    /// The rules on dependencies.
    Deny,
    /// Fuzzing.
    Fuzz {
        /// `None` for every target.
        target: Option<String>,
        /// How long for each target.
        seconds: u32,
    },
    /// What is too long for CI.
    Campaign {
        /// Drives the simulated runs.
        seed: u64,
    },
    /// Mutation testing.
    Mutants,
    /// Programs of others on the simulated driver.
    Clients,
    /// RDMA in virtual machines.
    Rdma,
    /// The tests for a GPU host.
    HwArchive,
    /// Loom models.
    Loom,
    /// Miri.
    Miri,
}

/// Reads the words after `cargo ci`.
///
/// # Errors
/// A sentence on the first word that is not understood.
pub fn parse(words: &[String]) -> Result<Task, String> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        [] | ["help" | "-h" | "--help", ..] | [_, "-h" | "--help", ..] => Ok(Task::Help),
        ["test"] => Ok(Task::Test),
        ["check"] => Ok(Task::Check { skip_tests: false }),
        ["check", "--skip-tests"] => Ok(Task::Check { skip_tests: true }),
        ["golden"] => Ok(Task::Golden),
        ["bench"] => Ok(Task::Bench { save: false }),
        ["bench", "--save"] => Ok(Task::Bench { save: true }),
        ["kernels"] => Ok(Task::Kernels { save: false }),
        ["kernels", "--save"] => Ok(Task::Kernels { save: true }),
        ["header"] => Ok(Task::Header { save: false }),
        ["header", "--save"] => Ok(Task::Header { save: true }),
        ["tidy"] => Ok(Task::Tidy),
        ["deny"] => Ok(Task::Deny),
        ["fuzz", rest @ ..] => parse_fuzz(rest),
        ["campaign"] => Ok(Task::Campaign { seed: 1 }),
        ["campaign", "--seed", number] => match number.parse() {
            Ok(seed) => Ok(Task::Campaign { seed }),
            Err(_) => Err(format!("--seed takes a number, not '{number}'")),
        },
        ["mutants"] => Ok(Task::Mutants),
        ["clients"] => Ok(Task::Clients),
        ["rdma"] => Ok(Task::Rdma),
        ["hw-archive"] => Ok(Task::HwArchive),
        ["loom"] => Ok(Task::Loom),
        ["miri"] => Ok(Task::Miri),
        [task, rest @ ..] if TASKS.contains(task) => {
            Err(format!("'{task}' does not take '{}'", rest.join(" ")))
        }
        [task, ..] => Err(format!("there is no task '{task}'")),
    }
}

const TASKS: [&str; 15] = [
    "test",
    "check",
    "golden",
    "bench",
    "kernels",
    "header",
    "tidy",
    "deny",
    "campaign",
    "clients",
    "rdma",
    "hw-archive",
    "mutants",
    "loom",
    "miri",
];

fn parse_fuzz(mut words: &[&str]) -> Result<Task, String> {
    let (mut target, mut seconds) = (None, 60);
    loop {
        match words {
            [] => return Ok(Task::Fuzz { target, seconds }),
            ["--seconds", number, rest @ ..] => {
                seconds = number
                    .parse()
                    .ok()
                    .filter(|seconds| *seconds > 0)
                    .ok_or_else(|| format!("--seconds takes a number above 0, not '{number}'"))?;
                words = rest;
            }
            [name, rest @ ..] if !name.starts_with('-') && target.is_none() => {
                target = Some((*name).to_owned());
                words = rest;
            }
            [word, ..] => return Err(format!("'fuzz' does not take '{word}'")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Task, String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        parse(&words)
    }

    #[test]
    fn every_task_in_the_help_is_understood() {
        for line in HELP
            .lines()
            .filter_map(|line| line.strip_prefix("  cargo ci "))
        {
            let task = line.split_whitespace().next().unwrap();
            assert!(read(task).is_ok(), "{task}");
        }
        assert_eq!(read(""), Ok(Task::Help));
        assert_eq!(read("bench --help"), Ok(Task::Help));
    }

    #[test]
    fn fuzz_takes_a_target_and_seconds_in_either_order() {
        let task = |target: Option<&str>, seconds| {
            Ok(Task::Fuzz {
                target: target.map(str::to_owned),
                seconds,
            })
        };
        assert_eq!(read("fuzz"), task(None, 60));
        assert_eq!(read("fuzz frame --seconds 5"), task(Some("frame"), 5));
        assert_eq!(read("fuzz --seconds 5 frame"), task(Some("frame"), 5));
    }

    #[test]
    fn what_is_not_understood_is_named() {
        for (line, part) in [
            ("tests", "no task 'tests'"),
            ("check --fast", "does not take '--fast'"),
            ("fuzz --seconds 0", "above 0"),
            ("fuzz --seconds", "'--seconds'"),
            ("fuzz a b", "'b'"),
            ("campaign --seed x", "'x'"),
            ("campaign --quick", "does not take"),
        ] {
            let why = read(line).unwrap_err();
            assert!(why.contains(part), "{line}: {why}");
        }
    }
}
