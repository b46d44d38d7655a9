//! Running steps: name, time, and a failure that says how to repeat it.

use std::ffi::OsStr;
use std::fmt;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::exit;

/// Writes to standard error, where a task's own words go; a closed pipe is not worth a panic.
pub fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Why a task ended early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The process's exit code.
    pub code: u8,
    /// What happened, as a sentence.
    pub what: String,
    /// The command that repeats it.
    pub again: String,
}

impl Failure {
    /// A failure of a task's own.
    pub fn new(code: u8, what: impl Into<String>, again: impl Into<String>) -> Self {
        Self {
            code,
            what: what.into(),
            again: again.into(),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FAILED: {} To repeat it: {}", self.what, self.again)
    }
}

/// The root of the workspace.
#[must_use]
pub fn root() -> PathBuf {
    // Set by cargo for `cargo run`; the compiled-in path serves when the program is run by hand.
    let crate_dir = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    crate_dir
        .parent()
        .map_or(crate_dir.clone(), std::path::Path::to_path_buf)
}

/// A program with its arguments and variables, run in the root of the workspace.
#[derive(Clone, Debug, Default)]
pub struct Program {
    words: Vec<String>,
    variables: Vec<(String, String)>,
}

impl Program {
    /// A command line, split at spaces.
    #[must_use]
    pub fn new(line: &str) -> Self {
        Self {
            words: line.split_whitespace().map(str::to_owned).collect(),
            variables: Vec::new(),
        }
    }

    /// One more argument, taken as it is.
    #[must_use]
    pub fn arg(mut self, word: impl Into<String>) -> Self {
        self.words.push(word.into());
        self
    }

    /// Sets a variable for the program.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    fn command(&self) -> Command {
        let name = self.words.first().map_or(OsStr::new(""), OsStr::new);
        // `cargo ci` passes the cargo that runs it, so that a task uses the same toolchain.
        let cargo = std::env::var_os("CARGO").filter(|_| name == "cargo");
        let mut command = Command::new(cargo.as_deref().unwrap_or(name));
        command
            .args(self.words.iter().skip(1))
            .current_dir(root())
            .stdin(Stdio::null());
        for (name, value) in &self.variables {
            command.env(name, value);
        }
        // Its own crate's variables are no business of the programs that it runs.
        command.env_remove("CARGO_MANIFEST_DIR");
        command
    }

    /// Runs it and returns its standard output; its errors go where ours go.
    ///
    /// # Errors
    /// It cannot be started or fails.
    pub fn output(&self) -> Result<String, Failure> {
        let output = self.command().stderr(Stdio::inherit()).output();
        let output = output.map_err(|error| self.not_started(&error))?;
        self.judge(output.status.code())?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Runs it quietly and says whether it succeeded.
    #[must_use]
    pub fn succeeds(&self) -> bool {
        let mut command = self.command();
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    }

    /// Runs it with our own output.
    ///
    /// # Errors
    /// It cannot be started or fails; its exit code is passed on.
    pub fn run(&self) -> Result<(), Failure> {
        let status = self
            .command()
            .status()
            .map_err(|error| self.not_started(&error))?;
        self.judge(status.code())
    }

    fn judge(&self, code: Option<i32>) -> Result<(), Failure> {
        match code {
            Some(0) => Ok(()),
            Some(code) => {
                let passed_on = u8::try_from(code).unwrap_or(exit::FAILED);
                Err(Failure::new(
                    passed_on,
                    format!("it ended with code {code}."),
                    self.to_string(),
                ))
            }
            None => Err(Failure::new(
                exit::INTERNAL,
                "a signal ended it.",
                self.to_string(),
            )),
        }
    }

    fn not_started(&self, error: &std::io::Error) -> Failure {
        let name = self.words.first().map_or("", String::as_str);
        Failure::new(
            exit::INTERNAL,
            format!("'{name}' could not be started ({error})."),
            self.to_string(),
        )
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in &self.variables {
            write!(f, "{name}={} ", quoted(value))?;
        }
        let words: Vec<String> = self.words.iter().map(|word| quoted(word)).collect();
        f.write_str(&words.join(" "))
    }
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Runs one step of a task: says its name, then how long it took.
///
/// # Errors
/// The step's failure, with its name in front.
#[expect(clippy::disallowed_methods, reason = "the time of a step, for people")]
pub fn step<T>(name: &str, work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    say(&format!("{name} ..."));
    let start = Instant::now();
    let done = work();
    let seconds = start.elapsed().as_secs_f64();
    match done {
        Ok(value) => {
            say(&format!("{name}: ok, {seconds:.1} s"));
            Ok(value)
        }
        Err(failure) => {
            say(&format!("{name}: failed, {seconds:.1} s"));
            Err(Failure {
                what: format!("step '{name}': {}", failure.what),
                ..failure
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_program_passes_its_code_on_and_says_how_to_repeat_it() {
        let program = Program::new("sh -c").arg("exit 100").env("A", "b c");
        let failure = step("shell", || program.run()).unwrap_err();
        assert_eq!(failure.code, 100);
        let text = failure.to_string();
        assert!(
            text.contains("step 'shell'") && text.contains("A='b c' sh -c 'exit 100'"),
            "{text}"
        );
    }

    #[test]
    fn a_missing_program_is_an_error_with_its_name() {
        let failure = Program::new("ds4-no-such-program").run().unwrap_err();
        assert_eq!(failure.code, exit::INTERNAL);
        assert!(failure.what.contains("ds4-no-such-program"));
    }

    #[test]
    fn output_is_what_the_program_printed() {
        assert_eq!(Program::new("echo hello").output().unwrap(), "hello\n");
    }
}
