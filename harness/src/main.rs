//! The `ds4` command.
fn main() {}
