//! A run as text and as JUnit XML.

use std::collections::BTreeMap;

use quick_junit::{
    NonSuccessKind, Property, Report, SerializeError, TestCase, TestCaseStatus, TestSuite,
};

use super::{CheckResult, Ended, Run, Verdict};

/// For people: a line for each result, with what was expected and what to do below it.
#[must_use]
pub fn text(run: &Run) -> String {
    let mut text = format!("{}\nlevel {}\n\n", run.origin, run.level.number());
    let mut skips: BTreeMap<&str, Vec<&CheckResult>> = BTreeMap::new();
    for result in &run.results {
        if result.verdict == Verdict::Skip && result.measured.is_null() {
            skips.entry(&result.detail).or_default().push(result);
        } else {
            text.push_str(&line(result));
        }
    }
    // One machine that cannot say something cannot say it many times.
    for (why, results) in skips {
        let mut names: Vec<&str> = results.iter().map(|result| result.check).collect();
        names.dedup();
        let simulated = results.iter().any(|result| result.simulated);
        let mark = if simulated { " [simulated]" } else { "" };
        text.push_str(&format!("skip  {why}: {}{mark}\n", names.join(", ")));
    }
    if let Some(ended) = run.ended {
        text.push_str(&format!("\nincomplete: {}\n", sentence(ended)));
    }
    text.push_str(&format!(
        "\n{} passed, {} warned, {} failed, {} not measured, {} skipped\n",
        run.count(Verdict::Pass),
        run.count(Verdict::Warn),
        run.count(Verdict::Fail),
        run.count(Verdict::Error),
        run.count(Verdict::Skip)
    ));
    text
}

/// Why a run is not complete.
fn sentence(ended: Ended) -> &'static str {
    match ended {
        Ended::Deadline => "the deadline passed; results that were there are above",
        Ended::Interrupted => "interrupted; results that were there are above",
        Ended::Busy => "a device is in use by others, so that nothing was loaded",
    }
}

fn line(result: &CheckResult) -> String {
    let mut text = format!(
        "{:<5} {} {:<23} {:<11} {}{}\n",
        result.verdict.word(),
        result.code,
        result.check,
        result.device.as_deref().unwrap_or("-"),
        result.detail,
        work(result)
    );
    if result.verdict != Verdict::Pass {
        if let Some(expected) = &result.expected {
            let source = result.source_of_expectation.as_deref().unwrap_or("");
            text.push_str(&format!("              expected {expected} ({source})\n"));
        }
        if let Some(hint) = &result.hint {
            text.push_str(&format!("              hint: {hint}\n"));
        }
    }
    text
}

/// What was done, and that it was not done on a real device.
fn work(result: &CheckResult) -> String {
    let mut parts = Vec::new();
    if result.did.bytes > 0 {
        parts.push(format!(
            "{} in {:.1} ms",
            ds4_engine::bytes::format_bytes(result.did.bytes),
            result.did.ms
        ));
    }
    if result.simulated {
        parts.push("simulated".to_owned());
    }
    if parts.is_empty() {
        String::new()
    } else {
        format!(" [{}]", parts.join(", "))
    }
}

/// For CI systems.
///
/// # Errors
/// The writer's error.
pub fn junit(run: &Run) -> Result<String, SerializeError> {
    let mut report = Report::new("ds4 validate");
    for level in 0..=run.level.number() {
        let mut suite = TestSuite::new(format!("level {level}"));
        suite.add_property(Property::new("machine", run.origin.as_str()));
        let results = run.results.iter();
        let cases = results.filter(|result| result.level.number() == level);
        suite.add_test_cases(cases.map(test_case));
        report.add_test_suite(suite);
    }
    if let Some(ended) = run.ended {
        let mut status = TestCaseStatus::non_success(NonSuccessKind::Error);
        status.set_message(format!("incomplete: {}", sentence(ended)));
        let mut suite = TestSuite::new("run");
        suite.add_test_case(TestCase::new("complete", status));
        report.add_test_suite(suite);
    }
    report.to_string()
}

fn test_case(result: &CheckResult) -> TestCase {
    let mut status = match result.verdict {
        Verdict::Pass | Verdict::Warn => TestCaseStatus::success(),
        Verdict::Skip => TestCaseStatus::skipped(),
        Verdict::Fail => TestCaseStatus::non_success(NonSuccessKind::Failure),
        Verdict::Error => TestCaseStatus::non_success(NonSuccessKind::Error),
    };
    match result.verdict {
        Verdict::Pass | Verdict::Warn => {}
        Verdict::Skip | Verdict::Fail | Verdict::Error => {
            status.set_message(result.detail.as_str());
        }
    }
    let device = result.device.as_deref().unwrap_or("machine");
    let mut case = TestCase::new(format!("{} {device}", result.check), status);
    case.set_classname(result.code);
    case.set_system_out(line(result));
    case
}
