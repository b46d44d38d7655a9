//! The project's tasks, run as `cargo ci TASK`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(ds4_ci::run(std::env::args().skip(1)))
}
