//! The project's tasks, run as `cargo ci TASK`.
#![forbid(unsafe_code)]
fn main() {}
