//! The tasks, as lists of steps.

use std::path::PathBuf;

use crate::cli::Task;
use crate::step::{Failure, Program, root, say, step};
use crate::tool::{self, not_run};
use crate::{archive, bench, campaign, clients, exit, fuzz, header, kernels, rdma, tidy};

/// Runs one task; returns the exit code.
#[must_use]
pub fn run(task: &Task) -> u8 {
    let done = match task {
        Task::Help => {
            say(crate::cli::HELP);
            Ok(())
        }
        Task::Test => test(),
        Task::Check { skip_tests } => check(*skip_tests),
        Task::Golden => golden(),
        Task::Bench { save } => bench::run(*save),
        Task::Kernels { save } => kernels::run(*save),
        Task::Header { save } => header::run(*save),
        Task::Tidy => tidy_step(),
        Task::Deny => tool::DENY.ensure().and_then(|()| deny()),
        Task::Fuzz { target, seconds } => fuzz::run(target.as_deref(), *seconds),
        Task::Campaign { seed } => campaign::run(*seed),
        Task::Clients => clients::run(),
        Task::Rdma => rdma::run(),
        Task::Mutants => mutants(),
        Task::HwArchive => archive::run(),
        Task::Loom => loom(),
        Task::Miri => miri(),
    };
    match done {
        Ok(()) => exit::OK,
        Err(failure) => {
            say(&failure.to_string());
            failure.code
        }
    }
}

fn cargo(name: &str, line: &str) -> Result<(), Failure> {
    step(name, || Program::new(&format!("cargo {line}")).run())
}

fn test() -> Result<(), Failure> {
    tool::NEXTEST.ensure()?;
    // Relative to the workspace, wherever builds go.
    let report = root().join("target/nextest/ci/junit.xml");
    // An old report must not pass for this run's.
    let _ = std::fs::remove_file(&report);
    step("tests", || {
        let program = Program::new("cargo nextest run --workspace --profile ci");
        // Golden files are compared, never written.
        program.env("INSTA_UPDATE", "no").run()
    })?;
    let text = std::fs::read_to_string(&report).unwrap_or_default();
    let counts = junit_counts(&text).filter(|(tests, _)| *tests > 0);
    let Some((tests, failed)) = counts else {
        let what = format!(
            "no test ran, or {} does not say how many.",
            report.display()
        );
        return Err(Failure::new(exit::NOT_COMPARED, what, "cargo ci test"));
    };
    // These tests pass where their tools are missing, having done nothing.
    for (tool, what) in [
        ("valgrind", "the C tests under valgrind"),
        ("c++", "the C++ tests of the C interface"),
    ] {
        if !Program::new(&format!("{tool} --version")).succeeds() {
            not_run(what, &format!("there is no {tool}"));
        }
    }
    cargo("doctests", "test --quiet --workspace --doc")?;
    say(&format!(
        "tests: {} passed, {failed} failed",
        tests - failed.min(tests)
    ));
    Ok(())
}

/// Tests and failures of a JUnit report.
fn junit_counts(text: &str) -> Option<(u64, u64)> {
    let (_, rest) = text.split_once("<testsuites")?;
    let (head, _) = rest.split_once('>')?;
    let number = |name: &str| {
        let (_, rest) = head.split_once(&format!(" {name}=\""))?;
        rest.split('"').next()?.parse::<u64>().ok()
    };
    Some((number("tests")?, number("failures")? + number("errors")?))
}

/// Where builds go.
pub(crate) fn target_dir() -> Result<PathBuf, Failure> {
    let text = Program::new("cargo metadata --no-deps --format-version 1").output()?;
    let parsed: Option<serde_json::Value> = serde_json::from_str(&text).ok();
    let found = parsed
        .as_ref()
        .and_then(|json| json.get("target_directory")?.as_str());
    Ok(found.map_or_else(|| root().join("target"), PathBuf::from))
}

/// Where release builds lie.
pub(crate) fn release_dir() -> Result<PathBuf, Failure> {
    Ok(target_dir()?.join("release"))
}

fn check(skip_tests: bool) -> Result<(), Failure> {
    cargo("format", "fmt --all --check")?;
    tidy_step()?;
    header::run(false)?;
    cargo(
        "clippy",
        "clippy --quiet --workspace --all-targets -- -D warnings",
    )?;
    if Program::new("c++ --version").succeeds() {
        let line = "clippy --quiet -p ds4-benches --features vma --all-targets -- -D warnings";
        cargo("clippy with VMA", line)?;
    } else {
        not_run("clippy with VMA", "there is no C++ compiler");
    }
    if !skip_tests {
        test()?;
    }
    step("docs", || {
        let program = Program::new("cargo doc --quiet --workspace --no-deps");
        program.env("RUSTDOCFLAGS", "-D warnings").run()
    })?;
    kernels::compare()?;
    rdma::compare()?;
    bench::gates()?;
    if tool::DENY.is_there() {
        deny()?;
    } else {
        not_run(
            "cargo deny",
            "it is not installed; 'cargo ci deny' installs it",
        );
    }
    if !loom_models().is_empty() {
        loom()?;
    }
    Ok(())
}

fn tidy_step() -> Result<(), Failure> {
    step("tidy", || {
        let metadata = Program::new("cargo metadata --no-deps --format-version 1").output()?;
        let problems = tidy::check(&root(), &metadata);
        for problem in &problems {
            say(problem);
        }
        if problems.is_empty() {
            return Ok(());
        }
        let what = format!("{} rules of the source tree are broken.", problems.len());
        Err(Failure::new(exit::FAILED, what, "cargo ci tidy"))
    })
}

fn golden() -> Result<(), Failure> {
    tool::NEXTEST.ensure()?;
    step("golden tests", || {
        let program = Program::new("cargo nextest run --workspace --profile ci");
        program.env("INSTA_UPDATE", "always").run()
    })?;
    step("what changed", || {
        // New files show in a diff only once git knows that they are to come.
        Program::new("git add --intent-to-add golden").run()?;
        Program::new("git --no-pager diff --stat -- golden").run()
    })
}

fn deny() -> Result<(), Failure> {
    cargo(
        "licences, bans, sources",
        "deny --config ci/deny.toml check licenses bans sources",
    )?;
    // The list of advisories comes from the network; without it there is nothing to compare.
    if Program::new("cargo deny --config ci/deny.toml fetch db").succeeds() {
        return cargo("advisories", "deny --config ci/deny.toml check advisories");
    }
    not_run("advisories", "the database of advisories cannot be fetched");
    Ok(())
}

fn mutants() -> Result<(), Failure> {
    tool::MUTANTS.ensure()?;
    let program = Program::new("cargo mutants --package ds4-engine --jobs 2")
        .arg("--file=engine/src/alloc/placement.rs")
        .arg("--file=engine/src/alloc/pool/*.rs");
    step("mutants of placement and pool", || program.run())
}

/// Files of the engine that hold loom models.
fn loom_models() -> Vec<PathBuf> {
    let files = tidy::rust_files(&root().join("engine/src"));
    let has_models = |path: &PathBuf| {
        std::fs::read_to_string(path).is_ok_and(|text| text.contains("loom::model"))
    };
    files.into_iter().filter(has_models).collect()
}

fn loom() -> Result<(), Failure> {
    if loom_models().is_empty() {
        let what = "the engine has no loom models.";
        return Err(Failure::new(exit::NOT_COMPARED, what, "cargo ci loom"));
    }
    step("loom models", || {
        // A folder of its own: the flag would rebuild everything else too, there and back.
        let target = target_dir()?.join("loom");
        let program = Program::new("cargo test --quiet --package ds4-engine --lib --target-dir");
        let program = program.arg(target.to_string_lossy()).arg("loom");
        program.env("RUSTFLAGS", "--cfg loom").run()
    })
}

fn miri() -> Result<(), Failure> {
    if !Program::new("cargo miri --version").succeeds() {
        let what =
            "Miri is a component of nightly toolchains and is not installed: it was not run.";
        let again = "rustup +nightly component add miri && cargo +nightly ci miri";
        return Err(Failure::new(exit::NOT_COMPARED, what, again));
    }
    cargo("miri", "miri test --package ds4-engine --lib")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counts_of_a_junit_report_are_read() {
        let text = "<?xml version=\"1.0\"?>\n<testsuites name=\"nextest-run\" tests=\"12\" \
                    failures=\"1\" errors=\"2\" uuid=\"x\" time=\"0.1\">";
        assert_eq!(junit_counts(text), Some((12, 3)));
        assert_eq!(junit_counts(""), None);
        assert_eq!(junit_counts("<testsuites name=\"x\">"), None);
    }
}
