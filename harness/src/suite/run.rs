//! Running the checks: in their order, one after another, no panic let through.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use ds4_engine::hash::StateHash;
use ds4_sim::Topology;

use super::campaign::panic_text;
use super::trial::{Check, Failure, Held, Trial};
use super::{CheckOptions, CheckResult, CheckRun, Sometimes, Suite, Totals, Verdict};
use super::{
    determinism, faults, kernels, link, oom_loop, ownership, placement, recovery, refusal, slab,
    streams,
};
use crate::target::{BackendKind, Target};

fn checks() -> impl Iterator<Item = &'static Check> {
    [
        placement::CHECKS,
        ownership::CHECKS,
        refusal::CHECKS,
        recovery::CHECKS,
        streams::CHECKS,
        determinism::CHECKS,
        oom_loop::CHECKS,
        faults::CHECKS,
        kernels::CHECKS,
        slab::CHECKS,
        link::CHECKS,
    ]
    .into_iter()
    .flatten()
}

/// The names of all checks of some suites.
pub fn check_names(suites: &[Suite]) -> impl Iterator<Item = &'static str> {
    checks()
        .filter(|check| suites.contains(&check.suite))
        .map(|check| check.name)
}

/// How many checks `options` ask for.
#[must_use]
pub fn count(options: &CheckOptions) -> usize {
    checks().filter(|check| wanted(check, options)).count()
}

fn wanted(check: &Check, options: &CheckOptions) -> bool {
    options.suites.contains(&check.suite)
        && options.only.as_ref().is_none_or(|only| only == check.name)
}

/// Runs the checks that `options` ask for; `progress` sees each as soon as it ends.
///
/// A set `stop` ends the run before the next history; what was done until then is returned.
pub fn run(
    target: &Target,
    options: &CheckOptions,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(&CheckResult),
) -> CheckRun {
    let mut run = CheckRun {
        checks: Vec::new(),
        seed: options.seed,
        state_hash: String::new(),
        totals: Totals::default(),
        coverage: Vec::new(),
        incomplete: false,
        not_run: 0,
    };
    let mut hash = StateHash::default();
    let mut met = BTreeMap::new();
    for suite in Suite::ALL {
        let of_suite = checks().filter(|check| check.suite == suite);
        for check in of_suite.filter(|check| wanted(check, options)) {
            if stop.load(Ordering::Relaxed) {
                run.incomplete = true;
                break;
            }
            let mut trial = Trial::new(target, options, stop);
            let held = attempt(check, &mut trial);
            if matches!(held, Err(Failure::Stopped)) {
                run.incomplete = true;
                break;
            }
            let result = judge(check, &trial, held, repro(target, options, check));
            hash.word(result.verdict as u64);
            hash.word(trial.tally.hash.finish());
            for (situation, hits) in trial.tally.sometimes {
                *met.entry(situation).or_default() += hits;
            }
            run.totals.count(result.verdict);
            progress(&result);
            run.checks.push(result);
        }
    }
    if run.incomplete {
        run.not_run = count(options) - run.checks.len();
    }
    run.state_hash = format!("{:016x}", hash.finish());
    run.coverage = coverage(&met, &options.suites);
    run
}

/// What the suites that were asked for must meet.
fn coverage(met: &BTreeMap<&'static str, u64>, suites: &[Suite]) -> Vec<Sometimes> {
    let tables = [
        (Suite::Faults, faults::SITUATIONS),
        (Suite::Link, link::SITUATIONS),
    ];
    let asked_for = tables.into_iter().filter(|it| suites.contains(&it.0));
    asked_for
        .flat_map(|(_, situations)| situations)
        .map(|situation| Sometimes {
            situation,
            hits: met.get(situation).copied().unwrap_or(0),
        })
        .collect()
}

fn attempt(check: &Check, trial: &mut Trial<'_>) -> Held {
    if let Some(why) = check.needs.lack(trial.target) {
        return Err(Failure::Skip(why));
    }
    let ran = catch_unwind(AssertUnwindSafe(|| (check.body)(trial)));
    ran.unwrap_or_else(|payload| {
        let text = panic_text(&*payload);
        Err(Failure::Error(format!("panicked: {text}")))
    })
}

fn judge(check: &Check, trial: &Trial<'_>, held: Held, repro: String) -> CheckResult {
    let (verdict, detail, script) = match held {
        Ok(()) if trial.tally.work() == 0 => (
            Verdict::Error,
            "the check did no work, so it shows nothing".to_owned(),
            None,
        ),
        Ok(()) => (Verdict::Pass, String::new(), None),
        Err(Failure::Broken(detail)) => (Verdict::Fail, detail, None),
        Err(Failure::Shown(detail, script)) => (Verdict::Fail, detail, Some(*script)),
        Err(Failure::Skip(why)) => (Verdict::Skip, why, None),
        Err(Failure::Error(why)) => (Verdict::Error, why, None),
        Err(Failure::Stopped) => (Verdict::Error, "stopped".to_owned(), None),
    };
    CheckResult {
        suite: check.suite,
        name: check.name,
        verdict,
        did: trial.tally.sentence(),
        detail,
        repro,
        script,
    }
}

fn repro(target: &Target, options: &CheckOptions, check: &Check) -> String {
    let mut command = format!(
        "ds4 check --suite {} --only {} --seed {} --cases {}",
        check.suite, check.name, options.seed, options.cases
    );
    if target.kind() != BackendKind::Sim {
        command.push_str(&format!(" --backend {}", target.kind().name()));
    }
    let machine = target.sim().map(|sim| sim.config().machine.as_str());
    let shipped = machine.filter(|name| Topology::shipped().any(|shipped| shipped == *name));
    if let Some(topology) = options.topology.as_deref().or(shipped) {
        command.push_str(&format!(" --topology {topology}"));
    }
    command
}
