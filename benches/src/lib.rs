//! The peers that the harness does not link, beside the harness's own workloads and measuring.
//!
//! `unsafe` is here in one place only: the interfaces of those peers are `unsafe` to call.
#![deny(unsafe_code)]

use std::io::Write;

pub mod peers;

pub use ds4_harness::bench::{
    self, Options, Row, least_capacity, measure,
    workload::{self, Op, Workload},
};

/// Writes one line to standard output; a closed pipe is not worth a panic.
pub fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// What a bench was told on its command line.
///
/// `cargo bench` adds `--bench`, which is ignored, as are other options.
#[must_use]
pub fn options_from(arguments: impl Iterator<Item = String>) -> Options {
    let mut options = Options::default();
    for argument in arguments {
        match argument.as_str() {
            "--quick" => options.quick = true,
            other if other.starts_with("--") => {}
            filter => options.filter = Some(filter.to_owned()),
        }
    }
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bench_takes_a_filter_and_quick_and_ignores_what_cargo_adds() {
        let words = ["--bench", "churn", "--quick"].map(str::to_owned);
        let options = options_from(words.into_iter());
        assert_eq!(options.filter.as_deref(), Some("churn"));
        assert!(options.quick);
    }
}
