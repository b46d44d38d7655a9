//! The conformance suites of `ds4 check`, on these devices.

use serde_json::json;

use super::run::{Finding, Group, Probe};
use super::{CheckId, Did, Level};
use crate::suite::{self, CheckOptions, CheckRun, Suite, Verdict};

const SUITES: CheckId = CheckId {
    name: "conformance",
    code: "DV-1012",
    level: Level::Test,
};

/// Random histories of each check; `ds4 check` runs more.
const CASES: u32 = 16;

pub(super) const GROUPS: &[Group] = &[Group {
    checks: &[SUITES],
    body: suites,
}];

fn suites(probe: &Probe<'_>) {
    for one in Suite::ALL {
        let timer = probe.timer();
        let options = CheckOptions {
            suites: vec![one],
            cases: CASES,
            ..CheckOptions::default()
        };
        let target = &probe.subject.target;
        let run = suite::run(target, &options, probe.stop, &mut |_| {});
        if run.incomplete {
            return;
        }
        let done = u64::from(run.totals.pass + run.totals.fail);
        let finding = judge(one, &run, timer.did(0, done));
        probe.tell(&SUITES, None, finding);
    }
}

fn judge(suite: Suite, run: &CheckRun, did: Did) -> Finding {
    let totals = run.totals;
    let detail = format!(
        "suite {suite}: {} hold, {} do not, {} skipped, {} not run",
        totals.pass, totals.fail, totals.skip, totals.error
    );
    let measured = json!({ "suite": suite, "totals": totals, "state_hash": run.state_hash });
    let bad = run.checks.iter().find(|check| match check.verdict {
        Verdict::Fail | Verdict::Error => true,
        Verdict::Pass | Verdict::Skip => false,
    });
    match bad {
        Some(bad) => {
            let detail = format!("{detail}; {}: {}", bad.name, bad.detail);
            let again = format!("again: {}", bad.repro);
            let finding = if bad.verdict == Verdict::Fail {
                Finding::fail(did, detail)
            } else {
                Finding::error(&detail)
            };
            finding.hint(&again)
        }
        None if totals.pass == 0 => Finding::skip(&detail),
        None => Finding::pass(did, detail),
    }
    .measured(measured)
}

#[cfg(test)]
mod tests {
    use super::super::Verdict as Judged;
    use super::*;
    use crate::suite::{CheckResult, Totals};

    #[test]
    fn one_broken_check_fails_its_suite_and_tells_the_command() {
        let check = |name, verdict| CheckResult {
            suite: Suite::Refusal,
            name,
            verdict,
            did: String::new(),
            detail: "off by one".to_owned(),
            repro: "ds4 check --only b".to_owned(),
            script: None,
        };
        let run = |second| CheckRun {
            checks: vec![check("a", Verdict::Pass), check("b", second)],
            seed: 1,
            state_hash: String::new(),
            totals: Totals {
                pass: 1,
                ..Totals::default()
            },
            coverage: Vec::new(),
            incomplete: false,
            not_run: 0,
        };
        let judged = |second| judge(Suite::Refusal, &run(second), Did::default());
        assert_eq!(judged(Verdict::Fail).verdict, Judged::Fail);
        assert!(judged(Verdict::Fail).detail.ends_with("b: off by one"));
        assert_eq!(judged(Verdict::Error).verdict, Judged::Error);
        assert_eq!(judged(Verdict::Skip).verdict, Judged::Pass);
    }
}
