//! The project's tasks, run as `cargo ci TASK`: what CI runs, and nothing that only CI could run.
//!
//! A task is a list of steps. Each prints its name and its time; the first failure ends the task
//! with a sentence that names the step and the command that repeats it, and with that command's
//! own exit code. A tool that is missing is installed where that is quick enough; what was not run
//! is said, loudly, and never counts as run.
#![forbid(unsafe_code)]

pub mod archive;
pub mod bench;
pub mod campaign;
pub mod cli;
pub mod clients;
pub mod fuzz;
pub mod gate;
pub mod header;
pub mod kernels;
pub mod rdma;
pub mod step;
pub mod tasks;
pub mod tidy;
pub mod tool;

/// Exit codes of the tasks themselves; a failed step's own code is passed on.
pub mod exit {
    /// Everything that was asked for ran and passed.
    pub const OK: u8 = 0;
    /// A check failed.
    pub const FAILED: u8 = 1;
    /// The command line is wrong.
    pub const USAGE: u8 = 2;
    /// A count or an instruction count grew.
    pub const REGRESSION: u8 = 3;
    /// Nothing was measured, or it cannot be compared.
    pub const NOT_COMPARED: u8 = 4;
    /// A program could not be started.
    pub const INTERNAL: u8 = 70;
}

/// Runs what the words ask for; returns the exit code.
pub fn run(words: impl Iterator<Item = String>) -> u8 {
    let words: Vec<String> = words.collect();
    match cli::parse(&words) {
        Ok(cli::Task::Help) => {
            step::say(cli::HELP);
            exit::OK
        }
        Ok(task) => tasks::run(&task),
        Err(why) => {
            step::say(&format!("cargo ci: {why}\n\n{}", cli::HELP));
            exit::USAGE
        }
    }
}
