//! Cargo's own tools: found, or installed from their source.

use crate::exit;
use crate::step::{Failure, Program, say, step};

/// A subcommand of cargo that is a package of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tool {
    /// As in `cargo NAME`.
    pub name: &'static str,
    /// What the builder of the tool should expect.
    pub note: &'static str,
}

/// Runs the tests.
pub const NEXTEST: Tool = Tool {
    name: "nextest",
    note: "some minutes, once",
};
/// Checks the dependencies.
pub const DENY: Tool = Tool {
    name: "deny",
    note: "ten minutes and more on two cores, once",
};
/// Fuzzes.
pub const FUZZ: Tool = Tool {
    name: "fuzz",
    note: "two minutes, once",
};
/// Mutates.
pub const MUTANTS: Tool = Tool {
    name: "mutants",
    note: "some minutes, once",
};

impl Tool {
    /// Whether cargo finds it.
    #[must_use]
    pub fn is_there(self) -> bool {
        Program::new(&format!("cargo {} --version", self.name)).succeeds()
    }

    /// Installs it if cargo does not find it.
    ///
    /// # Errors
    /// It cannot be built.
    pub fn ensure(self) -> Result<(), Failure> {
        if self.is_there() {
            return Ok(());
        }
        let package = format!("cargo-{}", self.name);
        step(&format!("installing {package} ({})", self.note), || {
            Program::new(&format!("cargo install {package} --locked")).run()
        })?;
        if self.is_there() {
            return Ok(());
        }
        Err(Failure::new(
            exit::INTERNAL,
            format!("{package} was installed and cargo does not find it."),
            format!("cargo {} --version", self.name),
        ))
    }
}

/// Says that something was not run, so that nobody takes silence for a pass.
pub fn not_run(what: &str, why: &str) {
    say(&format!("NOT RUN: {what}: {why}"));
}
