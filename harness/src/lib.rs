//! The harness behind the `ds4` command.
#![forbid(unsafe_code)]

pub mod gguf;
pub mod planning;
