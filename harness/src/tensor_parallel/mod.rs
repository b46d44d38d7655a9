//! One rank of a tensor-parallel run, from the command line to its report.
//!
//! Until a model runs here, the ranks exchange every gate that it would pass, with partial sums
//! that anybody can compute, and verify each sum. Commands, mirrored sessions, drafts, shares of
//! the logits and the check that the ranks are in step are those of a real run.

mod auto;
mod histogram;
mod launcher;
mod pattern;
mod plan;
mod protocol;
mod report;
mod run;
mod shape;

pub use histogram::Histogram;
pub use plan::Plan;
pub use run::run_rank;
