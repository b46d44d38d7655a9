//! The harness behind the `ds4` command.
#![forbid(unsafe_code)]

pub mod bench;
pub mod exit;
pub mod suite;
pub mod target;
pub mod trace;
