//! Groups of tensor-parallel ranks under faults of connections and processes, on virtual time.

use ds4_engine::tp::error::{Cause, Wait};
use ds4_engine::tp::frame::FrameError;
use ds4_engine::tp::trust::Channel;
use ds4_sim::link::{LinkPlan, LinkReport, run_links, shrink_links};

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
/// From so many runs on, every one of [`SITUATIONS`] must have been met.
const THOROUGH_RUNS: u64 = 2000;
/// From so many runs on, every one of [`RARE`] too.
const CAMPAIGN_RUNS: u64 = 100_000;

/// What a thorough run meets at least once: each fault, and each end that faults can bring about.
pub(super) const SITUATIONS: &[&str] = &[
    "a segment was lost",
    "a segment came twice",
    "two segments were swapped",
    "a bit was flipped",
    "a connection was late",
    "a connection broke inside a segment",
    "a connection fell silent",
    "a connection broke",
    "a rank was killed",
    "a rank stood still",
    "several faults in one run",
    "ranks: every gate passed without a fault",
    "ranks: every gate passed in spite of a fault",
    "ranks: every living rank failed",
    "ranks: the control connection was closed",
    "ranks: the data connection was closed",
    "ranks: nobody came in time",
    "ranks: a vote was late",
    "ranks: a gate was late",
    "ranks: a peer fell silent",
    "ranks: no header was where one should be",
    "ranks: a header was damaged",
    "ranks: a payload was damaged",
    "ranks: a frame was missing or came twice",
    "ranks: a peer was at another gate",
    "ranks: a peer said why it gave up",
    "ranks: a connection was refused",
];

/// What faults of this kind bring about once in some thousand runs.
const RARE: &[&str] = &[
    "ranks: a hello was late",
    "ranks: an answer was late",
    "ranks: a stop was not answered",
];

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
    let runs = u64::from(trial.cases) * RUNS_PER_CASE;
    for run in 0..runs {
        trial.go_on()?;
        let seed = trial.seed.wrapping_mul(1_000_003).wrapping_add(run);
        let plan = LinkPlan::random(seed);
        let report = run_links(&plan);
        if let Some(breach) = report.breach() {
            let small = shrink_links(&plan);
            return Err(Failure::Broken(format!(
                "{breach}; link seed {seed}, the last run with --cases {}; shrunk: {small:?}",
                run / RUNS_PER_CASE + 1
            )));
        }
        trial.tally.gates += report.ranks.first().map_or(0, |rank| rank.gates_right);
        trial.tally.faults += report.struck.len() as u64;
        trial.tally.worlds += 1;
        for situation in situations(&report) {
            trial.tally.met(situation);
        }
    }
    covered(trial, runs)
}

/// Fails a campaign that shows too little.
fn covered(trial: &Trial<'_>, runs: u64) -> Held {
    let wanted = [(THOROUGH_RUNS, SITUATIONS), (CAMPAIGN_RUNS, RARE)];
    for (least_runs, situations) in wanted {
        let missed = trial.tally.missed(situations);
        hold!(
            runs < least_runs || missed.is_empty(),
            "{runs} runs never met: {}",
            missed.join("; ")
        );
    }
    Ok(())
}

/// What a run met.
fn situations(report: &LinkReport) -> Vec<&'static str> {
    let mut met = report.struck.clone();
    if met.len() > 1 {
        met.push("several faults in one run");
    }
    let living = report.ranks.iter().filter(|rank| !rank.killed);
    let failed = living.clone().filter(|rank| rank.error.is_some()).count();
    if report.complete() {
        met.push(if report.struck.is_empty() {
            "ranks: every gate passed without a fault"
        } else {
            "ranks: every gate passed in spite of a fault"
        });
    } else if failed == living.clone().count() {
        met.push("ranks: every living rank failed");
    }
    let errors = living.filter_map(|rank| rank.error.as_ref());
    met.extend(errors.filter_map(|error| end(&error.cause)));
    met
}

fn end(cause: &Cause) -> Option<&'static str> {
    Some(match cause {
        Cause::Closed(Channel::Control) => "ranks: the control connection was closed",
        Cause::Closed(Channel::Data) => "ranks: the data connection was closed",
        Cause::Deadline { wait, .. } => match wait {
            Wait::Connect => "ranks: nobody came in time",
            Wait::Hello => "ranks: a hello was late",
            Wait::Gate | Wait::Sum => "ranks: a gate was late",
            Wait::Idle => "ranks: a peer fell silent",
            Wait::Vote => "ranks: a vote was late",
            Wait::Reply => "ranks: an answer was late",
            Wait::Close => "ranks: a stop was not answered",
        },
        Cause::Frame(FrameError::HeadCrc { .. }) => "ranks: a header was damaged",
        Cause::Frame(FrameError::PayloadCrc { .. }) => "ranks: a payload was damaged",
        Cause::Frame(FrameError::Sequence { .. }) => "ranks: a frame was missing or came twice",
        Cause::Frame(FrameError::Magic(_)) => "ranks: no header was where one should be",
        Cause::Desync { .. } => "ranks: a peer was at another gate",
        Cause::Told { .. } => "ranks: a peer said why it gave up",
        Cause::Local(_) => "ranks: a connection was refused",
        // What faults of connections and processes cannot bring about.
        Cause::Frame(_)
        | Cause::Message(_)
        | Cause::Hello(_)
        | Cause::NoTransport(_)
        | Cause::Divergence { .. }
        | Cause::Mirror(_)
        | Cause::Path(_) => return None,
    })
}
