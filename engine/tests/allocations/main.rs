//! Ranks at work ask for no memory: counted, thread by thread.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod commands;
mod groups;
