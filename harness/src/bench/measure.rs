//! Timing: subject and peer take turns in one process, so that both meet the same machine.
//!
//! Of times measured apart, the ratio varies by a tenth and more on a shared machine; of rounds in
//! ABBA order, the median ratio varies by about one percent. So a ratio here always comes from
//! rounds of one call, and a time is quoted as the least of the rounds.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::peers::{Contender, Runner};
use super::workload::Workload;
use crate::stopwatch::Stopwatch;

/// Operations between two readings of the clock: a reading costs about 25 ns.
const BATCH_OPS: usize = 128;

/// The fewest rounds of which a least time is worth quoting.
pub const MIN_ROUNDS: usize = 3;

/// One allocator on one workload.
#[derive(Clone, Debug)]
pub struct Spec {
    /// The allocator.
    pub contender: Arc<Contender>,
    /// What it runs.
    pub workload: Arc<Workload>,
    /// The bytes it may hand out.
    pub capacity_bytes: u64,
    /// How many threads run the workload at once; times are per operation of all of them.
    pub threads: usize,
}

impl Spec {
    /// One thread with room to spare over the workload's peak.
    #[must_use]
    pub fn new(contender: &Arc<Contender>, workload: &Arc<Workload>) -> Self {
        Self {
            contender: Arc::clone(contender),
            workload: Arc::clone(workload),
            capacity_bytes: roomy(workload.peak_live_bytes),
            threads: 1,
        }
    }
}

/// Half as much again as `peak_bytes`, in whole pages: room in which no allocator refuses.
#[must_use]
pub fn roomy(peak_bytes: u64) -> u64 {
    (peak_bytes + peak_bytes / 2).next_multiple_of(2 << 20)
}

/// Times of one allocator, in nanoseconds per operation.
#[derive(Clone, Debug, Default)]
pub struct Times {
    /// The mean of each round.
    pub rounds: Vec<f64>,
    /// The mean of each batch of operations, over all rounds.
    pub batches: Vec<f64>,
    /// Requests refused in all rounds.
    pub refused: u64,
}

impl Times {
    /// The least mean of a round.
    #[must_use]
    pub fn min(&self) -> f64 {
        self.rounds.iter().copied().fold(f64::INFINITY, f64::min)
    }

    /// The value below which `permille` thousandths of the batches lie.
    #[must_use]
    pub fn quantile(&self, permille: usize) -> f64 {
        quantile(&self.batches, permille)
    }
}

/// The value below which `permille` thousandths of `values` lie; NaN of none.
#[must_use]
pub fn quantile(values: &[f64], permille: usize) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let index = (sorted.len() * permille / 1000).min(sorted.len().saturating_sub(1));
    sorted.get(index).copied().unwrap_or(f64::NAN)
}

struct Lane {
    runner: Box<dyn Runner>,
    workload: Arc<Workload>,
    threads: usize,
    times: Times,
}

impl Lane {
    fn open(spec: &Spec) -> Result<Self, String> {
        let mut runner = spec
            .contender
            .open(spec.capacity_bytes, spec.workload.slots)?;
        let refused = runner.run(&spec.workload.setup);
        if refused > 0 {
            let name = &spec.contender.name;
            return Err(format!(
                "{name} refused {refused} requests before {} began",
                spec.workload.name
            ));
        }
        let (workload, threads) = (Arc::clone(&spec.workload), spec.threads);
        let mut lane = Self {
            runner,
            workload,
            threads,
            times: Times::default(),
        };
        // The first round meets cold caches, unmapped pages and tables that still grow.
        lane.round();
        lane.times = Times::default();
        Ok(lane)
    }

    /// Runs the workload once; returns the time of each batch, in nanoseconds.
    fn round(&mut self) -> Vec<f64> {
        let batch = match self.threads {
            1 => BATCH_OPS,
            // Threads are started for each batch: one batch, then.
            _ => self.workload.ops.len().max(1),
        };
        let mut times = Vec::with_capacity(self.workload.ops.len() / batch + 1);
        for ops in self.workload.ops.chunks(batch) {
            let watch = Stopwatch::start();
            self.times.refused += self.runner.run(ops);
            let elapsed = as_f64(watch.elapsed_ns());
            let count = as_f64((ops.len() * self.threads) as u64);
            self.times.batches.push(elapsed / count);
            times.push(elapsed);
        }
        if !self.workload.cyclic {
            self.runner.drain();
        }
        self.times.rounds.push(self.mean(&times));
        times
    }

    /// The mean of an operation, of the times of all batches.
    fn mean(&self, batches: &[f64]) -> f64 {
        let ops = self.workload.ops.len() * self.threads;
        batches.iter().sum::<f64>() / as_f64(ops as u64)
    }

    /// The mean of two runs of which each batch counts at its faster time: a batch in which the
    /// system ran something else is seldom so twice.
    fn mean_of_faster(&self, first: &[f64], second: &[f64]) -> f64 {
        let faster: Vec<f64> = first.iter().zip(second).map(|(a, b)| a.min(*b)).collect();
        self.mean(&faster)
    }

    /// The times, if the workload was really done.
    fn finish(self, name: &str) -> Result<Times, String> {
        let Times { refused, .. } = self.times;
        if refused > 0 && !self.workload.refuses {
            return Err(format!(
                "{name} refused {refused} requests of {}: its times would be no measure",
                self.workload.name
            ));
        }
        Ok(self.times)
    }
}

/// What a comparison measured.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// The subject's times.
    pub subject: Times,
    /// The peer's times.
    pub peer: Times,
    /// Subject ÷ peer of each round.
    pub ratios: Vec<f64>,
}

/// Times one allocator alone.
///
/// # Errors
/// It cannot be opened, or refused what it had to hold.
pub fn time(spec: &Spec, rounds: usize) -> Result<Times, String> {
    let timed = time_until(spec, rounds, &AtomicBool::new(false))?;
    timed.ok_or_else(|| "stopped".to_owned())
}

/// As [`time`]; `None` once `stop` is set.
pub(super) fn time_until(
    spec: &Spec,
    rounds: usize,
    stop: &AtomicBool,
) -> Result<Option<Times>, String> {
    let mut lane = Lane::open(spec)?;
    for _ in 0..rounds.max(MIN_ROUNDS) {
        if stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        lane.round();
    }
    lane.finish(&spec.contender.name).map(Some)
}

/// Times two allocators in turns: subject, peer, peer, subject.
///
/// # Errors
/// One cannot be opened, or refused what it had to hold.
pub fn compare(subject: &Spec, peer: &Spec, rounds: usize) -> Result<Comparison, String> {
    let compared = compare_until(subject, peer, rounds, &AtomicBool::new(false))?;
    compared.ok_or_else(|| "stopped".to_owned())
}

/// As [`compare`]; `None` once `stop` is set.
pub(super) fn compare_until(
    subject: &Spec,
    peer: &Spec,
    rounds: usize,
    stop: &AtomicBool,
) -> Result<Option<Comparison>, String> {
    let (mut a, mut b) = (Lane::open(subject)?, Lane::open(peer)?);
    let mut ratios = Vec::new();
    for _ in 0..rounds.max(MIN_ROUNDS) {
        if stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let (a1, b1, b2, a2) = (a.round(), b.round(), b.round(), a.round());
        ratios.push(a.mean_of_faster(&a1, &a2) / b.mean_of_faster(&b1, &b2));
    }
    Ok(Some(Comparison {
        subject: a.finish(&subject.contender.name)?,
        peer: b.finish(&peer.contender.name)?,
        ratios,
    }))
}

#[expect(
    clippy::cast_precision_loss,
    reason = "operations and nanoseconds here are far below 2^53"
)]
fn as_f64(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::peers::{peers, subjects};
    use crate::bench::workload::churn;

    #[test]
    fn quantiles_are_values_of_the_list() {
        let values: Vec<f64> = (0..1000_u32).rev().map(f64::from).collect();
        assert_eq!(quantile(&values, 500).to_bits(), 500.0_f64.to_bits());
        assert_eq!(quantile(&values, 990).to_bits(), 990.0_f64.to_bits());
        assert_eq!(quantile(&values, 1000).to_bits(), 999.0_f64.to_bits());
        assert!(quantile(&[], 500).is_nan());
    }

    #[test]
    fn every_contender_runs_the_churn_without_a_refusal_and_every_figure_is_finite() {
        let workload = Arc::new(churn(1, 4_000, 400));
        for contender in subjects().into_iter().chain(peers()).map(Arc::new) {
            let times = time(&Spec::new(&contender, &workload), 3).unwrap();
            assert_eq!(times.refused, 0, "{}", contender.name);
            assert_eq!(times.rounds.len(), 3);
            for figure in [times.min(), times.quantile(500), times.quantile(990)] {
                assert!(
                    figure.is_finite() && figure > 0.0,
                    "{}: {figure}",
                    contender.name
                );
            }
        }
    }

    #[test]
    fn a_contender_without_room_is_an_error_not_a_time() {
        let contender = Arc::new(subjects().remove(0));
        let mut spec = Spec::new(&contender, &Arc::new(super::super::workload::refusal(10)));
        spec.capacity_bytes = 1 << 20;
        assert!(time(&spec, 3).unwrap_err().contains("before refusal began"));
    }
}
