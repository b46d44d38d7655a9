//! Random operations under random faults, then without; and what such a campaign must have met.

use crate::output::counted;

use super::Suite::Faults;
use super::campaign::play_safely;
use super::draw::draw;
use super::script::Script;
use super::shrink::shrink;
use super::trial::{Check, Failure, Held, Needs, Trial, hold};
use crate::target::Target;

/// From so many histories on, every situation must have been met.
const THOROUGH_CASES: u32 = 48;

/// What a thorough run meets at least once.
pub(super) const SITUATIONS: &[&str] = &[
    "refusal: budget",
    "refusal: fragmentation",
    "refusal: injected",
    "refusal: driver",
    "refusal: device lost",
    "refusal: memory taken by another process",
    "refusal: unknown stream",
    "refusal, then success after a free",
    "refusal, then success on a relaxed mask",
    "next candidate taken after one had no room",
    "device lost, another candidate took the request",
    "orphaned hint",
    "freed block merged with both neighbours",
    "free while a further stream uses the block",
    "waited for another stream's event",
    "pages moved to where they were needed",
    "slab taken from the driver",
    "empty slab given back under pressure",
    "trim gave memory back",
    "copy within a device",
    "copy over a peer path",
    "copy through the host",
];

/// Too rare for random histories; a check of its own shows it.
const SHOWN_ELSEWHERE: &str = "empty slab given back under pressure";

pub(super) const CHECKS: &[Check] = &[
    Check {
        suite: Faults,
        name: "random-histories-hold-with-and-after-faults",
        needs: Needs::OWN,
        body: campaign,
    },
    Check {
        suite: Faults,
        name: "random-histories-hold-without-faults",
        needs: Needs::OWN,
        body: calm_campaign,
    },
];

fn campaign(trial: &mut Trial<'_>) -> Held {
    run_histories(trial, true)?;
    // On real devices some depend on their number, their paths and their timing.
    if trial.cases >= THOROUGH_CASES && trial.target.sim().is_some() {
        let mut missed = trial.tally.missed(SITUATIONS);
        missed.retain(|situation| *situation != SHOWN_ELSEWHERE);
        hold!(
            missed.is_empty(),
            "{} histories never met: {}",
            trial.cases,
            missed.join("; ")
        );
    }
    Ok(())
}

fn calm_campaign(trial: &mut Trial<'_>) -> Held {
    run_histories(trial, false)
}

fn run_histories(trial: &mut Trial<'_>, with_faults: bool) -> Held {
    for case in 0..trial.cases {
        trial.go_on()?;
        let real = Some(trial.target).filter(|target| target.sim().is_none());
        let most = real.map_or(usize::MAX, |_| trial.devices());
        let count = (1 + (case as usize * 7 + 2) % 5).min(most);
        let index = u64::from(case) + if with_faults { 0x1000 } else { 0x2000 };
        let script = draw(trial.seed, index, count, with_faults);
        match play_safely(&script, real, trial.stop) {
            Ok(tally) => trial.tally.add(&tally),
            Err(Failure::Broken(why)) => return Err(shown(trial, script, real, case, &why)),
            Err(other) => return Err(other),
        }
    }
    Ok(())
}

/// The failure with the smallest history that shows one.
fn shown(
    trial: &Trial<'_>,
    script: Script,
    real: Option<&Target>,
    case: u32,
    why: &str,
) -> Failure {
    // Once stopped, no candidate fails, and what was found so far is the smallest.
    let fails = |script: &Script| {
        matches!(
            play_safely(script, real, trial.stop),
            Err(Failure::Broken(_))
        )
    };
    let mut small = shrink(script, &mut { fails });
    let now = match play_safely(&small, real, trial.stop) {
        Err(Failure::Broken(now)) => now,
        _ => why.to_owned(),
    };
    small.about.clone_from(&now);
    let detail = format!(
        "history {case}: {why}\nshrunk to {} and {}: {now}",
        counted(small.ops.len() as u64, "operation"),
        counted(small.faults.len() as u64, "fault")
    );
    Failure::Shown(detail, Box::new(small))
}
