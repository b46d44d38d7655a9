//! The harness behind the `ds4` command.
#![forbid(unsafe_code)]

pub mod bench;
pub mod cli;
pub mod command;
pub mod exit;
mod files;
pub mod fit;
pub mod gguf;
pub mod machine;
pub mod output;
pub mod planning;
pub mod printable;
mod record;
pub mod replay;
mod signals;
pub mod stopwatch;
pub mod suite;
pub mod target;
pub mod tensor_parallel;
pub mod trace;
pub mod validate;
pub mod workload;
