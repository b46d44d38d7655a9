//! The `ds4` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    ds4_harness::command::main()
}
