//! Groups of ranks on virtual time: the engine's sessions, joined by connections that can fail in
//! every way that a network, a shared memory or a process can.
//!
//! A run is a pure function of its [`LinkPlan`]: the same plan gives the same bytes, times and
//! errors on every machine. [`LinkPlan::random`] draws one from a seed, [`shrink_links`] makes one
//! that breaks the rule as small as it can be.
//!
//! **Modelled**: latency with jitter, small writes, segments that are lost, sent twice, swapped,
//! damaged, late or cut in the middle of a frame; connections that break or swallow everything
//! from some point on while they look open; ranks that are killed or stopped for a while at any
//! step; clocks that start anywhere and run at different speeds. **Not modelled**: bandwidth, and
//! an attacker who changes bytes together with their checksums.

mod actor;
mod pipe;
mod plan;
mod pump;
mod run;
mod shrink;
#[cfg(test)]
mod tests;

pub(crate) use plan::Draw;
pub use plan::{LinkFault, LinkFaultKind, LinkPlan, RankFault, RankFaultKind};
pub use run::{Breach, LinkReport, RankReport, run_links};
pub use shrink::shrink_links;
