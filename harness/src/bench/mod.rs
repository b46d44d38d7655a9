//! Measuring the allocator: workloads, peers in the same process, times as ratios, exact counts.
//!
//! A time on a shared machine says little, so every row that has a peer carries the ratio of
//! rounds run in turns. Simulated devices stand below the whole allocator: the rows measure the
//! host's work, and no time of a driver is in them.
//!
//! On a real device ([`measure_device`]) the peers are the driver's own ways of taking memory.
//!
//! [`links`] measures the connections of two ranks, [`sums`] groups of more. Not here: peers that build C++ or need `unsafe`
//! (the benches crate adds them), and kernels.

mod capacity;
pub mod contenders;
mod counts;
mod device;
mod device_gates;
mod handshake;
pub mod links;
mod measure;
pub mod peers;
mod plan;
pub mod sums;
pub mod tools;
pub mod workload;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::Serialize;

pub use capacity::least_capacity;
pub use counts::{Counted, Counts, MASKS, count_all, counted_names, open_counted};
pub use device::{device_benches, measure_device};
pub use device_gates::measure_device_gates;
pub use measure::{Comparison, MIN_ROUNDS, Spec, Times, compare, quantile, roomy, time};
use measure::{compare_until, time_until};
use peers::Contender;

/// What to measure and how long.
#[derive(Clone, Debug)]
pub struct Options {
    /// Rounds of subject and peer in turns; at least [`MIN_ROUNDS`] are run.
    pub rounds: usize,
    /// Only benches whose name contains this.
    pub filter: Option<String>,
    /// A tenth of the operations and no bench above 10 000 live blocks: seconds, not minutes.
    pub quick: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            rounds: 5,
            filter: None,
            quick: false,
        }
    }
}

/// One measured line.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// What was run.
    pub bench: String,
    /// What ran it.
    pub subject: String,
    /// What ran beside it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// The unit of `p50`, `p99` and `min`; `ratio` for capacities.
    pub unit: &'static str,
    /// The median of batches.
    pub p50: f64,
    /// 99 of 100 batches lie below.
    pub p99: f64,
    /// The least mean of a round.
    pub min: f64,
    /// Operations in all rounds.
    pub n: u64,
    /// The median of subject ÷ peer over rounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio_to_peer: Option<f64>,
    /// The least and the largest of those ratios: how far to trust the median.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio_range: Option<(f64, f64)>,
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:<28} {:<20} {:>9.1} {} (p50 {:.1}, p99 {:.1})",
            self.bench, self.subject, self.min, self.unit, self.p50, self.p99
        )?;
        if let (Some(peer), Some(ratio), Some((low, high))) =
            (&self.peer, self.ratio_to_peer, self.ratio_range)
        {
            write!(f, "\n    {ratio:.3} of {peer} ({low:.3} to {high:.3})")?;
        }
        Ok(())
    }
}

/// What was measured.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// The rows, in the order in which they were measured.
    pub rows: Vec<Row>,
    /// The measurement was ended before all rows were there.
    pub incomplete: bool,
}

impl Options {
    fn wants(&self, bench: &str) -> bool {
        self.filter.as_ref().is_none_or(|part| bench.contains(part))
    }
}

/// How many benches [`measure`] runs.
#[must_use]
pub fn benches(options: &Options) -> usize {
    let groups = plan::groups(options);
    let names = groups.iter().flat_map(|group| &group.benches);
    names.filter(|bench| options.wants(bench)).count()
}

/// Measures every bench of the allocator, with this crate's peers and `more` of them.
///
/// `each` is told of every row when it is there. A set `stop` ends the measurement before the
/// next round; the rows until then are returned.
///
/// # Errors
/// A sentence: an allocator cannot be opened, or refused what it had to hold.
pub fn measure(
    options: &Options,
    more: Vec<Contender>,
    stop: &AtomicBool,
    mut each: impl FnMut(&Row),
) -> Result<Measured, String> {
    let peers: Vec<Arc<Contender>> = peers::peers()
        .into_iter()
        .chain(more)
        .map(Arc::new)
        .collect();
    let wanted = |bench: &str| options.wants(bench);
    let mut measured = Measured::default();
    let groups = plan::groups(options);
    let asked_for = groups
        .iter()
        .filter(|group| group.benches.iter().any(|bench| wanted(bench)));
    for group in asked_for {
        if stop.load(Ordering::Relaxed) {
            measured.incomplete = true;
            return Ok(measured);
        }
        for plan in (group.plans)(&peers) {
            if !wanted(&plan.bench) {
                continue;
            }
            let Some(rows) = run(&plan, options.rounds, stop)? else {
                measured.incomplete = true;
                return Ok(measured);
            };
            rows.iter().for_each(&mut each);
            measured.rows.extend(rows);
        }
    }
    Ok(measured)
}

/// The subject's row and, where the peer is another allocator, the peer's own; `None` if stopped.
fn run(plan: &plan::Plan, rounds: usize, stop: &AtomicBool) -> Result<Option<Vec<Row>>, String> {
    let bench = plan.bench.as_str();
    let Some(peer) = &plan.peer else {
        let times = time_until(&plan.subject, rounds, stop)?;
        return Ok(times.map(|times| vec![row(bench, &plan.subject, &times)]));
    };
    let Some(both) = compare_until(&plan.subject, peer, rounds, stop)? else {
        return Ok(None);
    };
    let ratio = |permille| quantile(&both.ratios, permille);
    let subject = Row {
        peer: Some(peer.contender.name.clone()),
        ratio_to_peer: Some(ratio(500)),
        ratio_range: Some((ratio(0), ratio(1000))),
        ..row(bench, &plan.subject, &both.subject)
    };
    Ok(Some(vec![subject, row(bench, peer, &both.peer)]))
}

fn row(bench: &str, spec: &Spec, times: &Times) -> Row {
    let ops = spec.workload.ops.len() * spec.threads * times.rounds.len();
    Row {
        bench: bench.to_owned(),
        subject: spec.contender.name.clone(),
        peer: None,
        unit: "ns/op",
        p50: times.quantile(500),
        p99: times.quantile(990),
        min: times.min(),
        n: ops as u64,
        ratio_to_peer: None,
        ratio_range: None,
    }
}

fn words(error: impl fmt::Display) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::WIDTH;

    #[test]
    fn a_filtered_measurement_has_rows_with_peers_ratios_and_counts() {
        let options = Options {
            rounds: 3,
            filter: Some("churn".to_owned()),
            quick: true,
        };
        let mut seen = 0;
        let rows = measure(&options, Vec::new(), &AtomicBool::new(false), |_| seen += 1)
            .unwrap()
            .rows;
        assert_eq!(rows.len(), seen);
        let subject = rows.iter().find(|row| row.subject == "pool").unwrap();
        assert_eq!(subject.peer.as_deref(), Some("offset-allocator"));
        let ratio = subject.ratio_to_peer.unwrap();
        assert!(ratio.is_finite() && ratio > 0.0 && subject.n > 0);
        assert!(
            rows.iter()
                .any(|row| row.subject == "best-fit" && row.peer.is_none())
        );
    }

    #[test]
    fn a_stopped_measurement_keeps_its_rows_and_says_that_it_is_incomplete() {
        let options = Options {
            rounds: 3,
            filter: Some("mask".to_owned()),
            quick: true,
        };
        let stop = AtomicBool::new(false);
        let measured = measure(&options, Vec::new(), &stop, |_| {
            stop.store(true, Ordering::Relaxed);
        })
        .unwrap();
        assert!(measured.incomplete);
        assert!((1..=2).contains(&measured.rows.len()));
    }

    #[test]
    fn lines_are_no_wider_than_a_terminal_and_orphaned_hints_are_measured() {
        let options = Options {
            rounds: 3,
            filter: Some("mask".to_owned()),
            quick: true,
        };
        let mut lines = Vec::new();
        let rows = measure(&options, Vec::new(), &AtomicBool::new(false), |row| {
            lines.extend(row.to_string().lines().map(str::to_owned));
        })
        .unwrap()
        .rows;
        assert!(lines.iter().all(|line| line.len() <= WIDTH), "{lines:?}");
        assert!(rows.iter().any(|row| row.bench.contains("orphaned")));
    }
}
