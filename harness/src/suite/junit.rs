//! The run as JUnit XML, as CI systems show it: failed, not run and skipped are three things.

use quick_junit::{
    NonSuccessKind, Property, Report, SerializeError, TestCase, TestCaseStatus, TestSuite,
};

use super::{CheckResult, CheckRun, Suite, Verdict};

/// Writes a run as JUnit XML; `machine` is what the checks ran on.
///
/// # Errors
/// The writer's error.
pub fn to_xml(run: &CheckRun, machine: &str) -> Result<String, SerializeError> {
    let mut report = Report::new("ds4 check");
    for suite in Suite::ALL {
        let checks: Vec<&CheckResult> = run
            .checks
            .iter()
            .filter(|check| check.suite == suite)
            .collect();
        if checks.is_empty() {
            continue;
        }
        let mut cases = TestSuite::new(suite.name());
        cases.add_property(Property::new("seed", run.seed.to_string()));
        cases.add_property(Property::new("machine", machine));
        cases.add_property(Property::new("state_hash", run.state_hash.as_str()));
        cases.add_test_cases(checks.into_iter().map(test_case));
        report.add_test_suite(cases);
    }
    if run.incomplete {
        let mut status = TestCaseStatus::non_success(NonSuccessKind::Error);
        status.set_message(format!(
            "incomplete: interrupted; checks that did not run: {}",
            run.not_run
        ));
        let mut suite = TestSuite::new("run");
        suite.add_test_case(TestCase::new("complete", status));
        report.add_test_suite(suite);
    }
    report.to_string()
}

/// A command that could not do its work before any check, as JUnit XML.
///
/// # Errors
/// The writer's error.
pub fn failure_to_xml(command: &str, message: &str) -> Result<String, SerializeError> {
    let mut status = TestCaseStatus::non_success(NonSuccessKind::Error);
    status.set_message(message);
    let mut suite = TestSuite::new("run");
    suite.add_test_case(TestCase::new("start", status));
    let mut report = Report::new(format!("ds4 {command}"));
    report.add_test_suite(suite);
    report.to_string()
}

fn test_case(check: &CheckResult) -> TestCase {
    let mut status = match check.verdict {
        Verdict::Pass => TestCaseStatus::success(),
        Verdict::Skip => TestCaseStatus::skipped(),
        Verdict::Fail => TestCaseStatus::non_success(NonSuccessKind::Failure),
        Verdict::Error => TestCaseStatus::non_success(NonSuccessKind::Error),
    };
    let mut output = None;
    if check.verdict != Verdict::Pass {
        status.set_message(check.detail.as_str());
        if check.verdict != Verdict::Skip {
            output = Some(format!("{}\nreplay with: {}\n", check.did, check.repro));
        }
    }
    let mut case = TestCase::new(check.name, status);
    case.set_classname(check.suite.name());
    if let Some(output) = output {
        case.set_system_out(output);
    }
    case
}

#[cfg(test)]
mod tests {
    use super::super::Totals;
    use super::*;

    #[test]
    fn failed_not_run_and_skipped_are_told_apart() {
        let check = |name, verdict| CheckResult {
            suite: Suite::Placement,
            name,
            verdict,
            did: "2 allocations".to_owned(),
            detail: "because <&>".to_owned(),
            repro: "ds4 check".to_owned(),
            script: None,
        };
        let run = CheckRun {
            checks: vec![
                check("a", Verdict::Pass),
                check("b", Verdict::Fail),
                check("c", Verdict::Error),
                check("d", Verdict::Skip),
            ],
            seed: 9,
            state_hash: "0x1".to_owned(),
            totals: Totals::default(),
            coverage: Vec::new(),
            incomplete: false,
            not_run: 0,
        };
        let xml = to_xml(&run, "2xh200").unwrap();
        for part in [
            "<failure",
            "<error",
            "<skipped",
            "because &lt;&amp;&gt;",
            "value=\"9\"",
        ] {
            assert!(xml.contains(part), "{part} in {xml}");
        }
        assert!(xml.contains("tests=\"4\"") && xml.contains("failures=\"1\""));
        assert!(!xml.contains("complete"));
        let interrupted = CheckRun {
            checks: vec![check("a", Verdict::Pass)],
            incomplete: true,
            not_run: 3,
            ..run
        };
        let xml = to_xml(&interrupted, "2xh200").unwrap();
        assert!(
            xml.contains("errors=\"1\"") && xml.contains("did not run: 3"),
            "{xml}"
        );
    }
}
