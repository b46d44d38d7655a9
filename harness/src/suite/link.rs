//! Groups of tensor-parallel ranks under faults of connections and processes, on virtual time.

use ds4_sim::link::{LinkPlan, run_links, shrink_links};

use super::Suite::Link;
use super::trial::{Check, Failure, Held, Needs, Trial, hold};

pub(super) const CHECKS: &[Check] = &[
    Check {
        suite: Link,
        name: "ranks-without-faults-pass-every-gate",
        needs: Needs::NOTHING,
        body: quiet,
    },
    Check {
        suite: Link,
        name: "ranks-under-faults-have-the-right-bytes-or-an-error-in-time",
        needs: Needs::NOTHING,
        body: faulty,
    },
];

/// Runs for each case: 256 cases are the 2 000 runs of a usual check.
const RUNS_PER_CASE: u64 = 8;

fn quiet(trial: &mut Trial<'_>) -> Held {
    for ranks in 2..=8 {
        trial.go_on()?;
        let report = run_links(&LinkPlan::quiet(trial.seed, ranks));
        hold!(
            report.complete(),
            "{ranks} ranks do not end in order: {report:?}"
        );
        trial.tally.gates += report.planned_gates;
        trial.tally.worlds += 1;
    }
    Ok(())
}

fn faulty(trial: &mut Trial<'_>) -> Held {
    for run in 0..u64::from(trial.cases) * RUNS_PER_CASE {
        trial.go_on()?;
        let seed = trial.seed.wrapping_mul(1_000_003).wrapping_add(run);
        let plan = LinkPlan::random(seed);
        let report = run_links(&plan);
        if let Some(breach) = report.breach() {
            let small = shrink_links(&plan);
            return Err(Failure::Broken(format!(
                "{breach}; link seed {seed}, shrunk: {small:?}"
            )));
        }
        trial.tally.gates += report.ranks.first().map_or(0, |rank| rank.gates_right);
        trial.tally.worlds += 1;
    }
    Ok(())
}
