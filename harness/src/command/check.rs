//! `ds4 check`: the conformance suites.

use std::collections::BTreeSet;
use std::path::Path;

use ds4_sim::read_file;
use serde_json::json;

use crate::cli::{CheckArgs, Format, MachineArgs};
use crate::exit::Exit;
use crate::machine::{Flag, MIXED, Machine, backend_kind, refuse_flags};
use crate::output::{Console, Failure, Outcome, counted, wrapped};
use crate::suite::junit::to_xml;
use crate::suite::script::Script;
use crate::suite::{
    CheckOptions, CheckResult, CheckRun, Replayed, Suite, Verdict, check_names, count, replay, run,
};
use crate::target::BackendKind;

/// Runs the suites, or replays one recorded failure.
pub(super) fn check(
    machine: &MachineArgs,
    args: &CheckArgs,
    console: &Console,
) -> Result<Outcome, Failure> {
    refuse_flags(
        machine,
        &[Flag::Faults, Flag::Hints],
        "check, which makes its own,",
    )?;
    if let Some(path) = &args.replay {
        refuse_flags(
            machine,
            &[Flag::Topology, Flag::Devices],
            "check --replay, whose file names the machine,",
        )?;
        if backend_kind(machine)? != BackendKind::Sim {
            return Err(Failure::usage(
                "check --replay runs on the simulated machine of its file; use --backend sim",
            ));
        }
        return replay_file(path, console);
    }
    let options = options(args, machine.topology.clone())?;
    let machine = Machine::resolve(machine, MIXED)?;
    let bar = console.progress(count(&options) as u64, "checking");
    let done = run(&machine.target, &options, console.stop(), &mut |_| {
        bar.inc(1);
    });
    bar.finish_and_clear();
    let exit = exit_of(&done);
    let origin = machine.target.origin();
    if console.format == Format::Junit {
        return junit(&done, &origin, exit, console);
    }
    let mut value = json!({ "backend": machine.target.kind().name(), "origin": origin });
    let body = serde_json::to_value(&done).map_err(|error| Failure {
        exit: Exit::Internal,
        message: format!("the result could not be written as JSON: {error}"),
    })?;
    if let (Some(value), serde_json::Value::Object(body)) = (value.as_object_mut(), body) {
        value.extend(body);
    }
    Ok(console.outcome(exit, "check", render(&origin, &options, &done), value))
}

fn options(args: &CheckArgs, topology: Option<String>) -> Result<CheckOptions, Failure> {
    let mut suites = BTreeSet::new();
    for name in &args.suite {
        let suite = Suite::from_name(name.trim()).ok_or_else(|| {
            let all: Vec<&str> = Suite::ALL.iter().map(|suite| suite.name()).collect();
            Failure::usage(format!(
                "--suite: '{name}' is no suite; use {}",
                all.join(", ")
            ))
        })?;
        suites.insert(suite);
    }
    let suites = if suites.is_empty() {
        Suite::ALL.to_vec()
    } else {
        suites.into_iter().collect()
    };
    if let Some(only) = &args.only
        && !check_names(&suites).any(|name| name == only)
    {
        return Err(Failure::usage(format!(
            "--only: '{only}' is no check of these suites; `ds4 check` lists all names"
        )));
    }
    Ok(CheckOptions {
        suites,
        seed: args.seed,
        cases: args.cases.unwrap_or(CheckOptions::DEFAULT_CASES),
        only: args.only.clone(),
        topology,
    })
}

fn exit_of(run: &CheckRun) -> Exit {
    if run.incomplete {
        return Exit::Interrupted;
    }
    match run.worst() {
        Some(Verdict::Pass) => Exit::Ok,
        // Skips beside passes are told, not held against the run.
        Some(Verdict::Skip) if run.totals.pass > 0 => Exit::Ok,
        Some(Verdict::Skip) | None => Exit::NothingDone,
        Some(Verdict::Fail | Verdict::Error) => Exit::CheckFailed,
    }
}

fn render(origin: &str, options: &CheckOptions, run: &CheckRun) -> String {
    let mut text = format!(
        "{origin}: its devices, paging and links, with small uneven budgets\nseed {}, {}\n\n",
        run.seed,
        counted(u64::from(options.cases), "case")
    );
    let mut suite = None;
    for check in &run.checks {
        if suite.replace(check.suite) != Some(check.suite) {
            text.push_str(&format!("{}\n", check.suite));
        }
        let line = format!(
            "  {:<5} {} ({})",
            word(check.verdict),
            check.name,
            check.did
        );
        text.push_str(&wrapped(&line, "        "));
        text.push('\n');
    }
    for check in run
        .checks
        .iter()
        .filter(|check| check.verdict != Verdict::Pass)
    {
        text.push_str(&format!("\n{}", explain(check)));
    }
    // Only a whole run is expected to meet everything.
    if !run.incomplete && options.only.is_none() && options.suites.len() == Suite::ALL.len() {
        for never in run.coverage.iter().filter(|one| one.hits == 0) {
            text.push_str(&format!("never met in this run: {}\n", never.situation));
        }
    }
    let totals = run.totals;
    text.push_str(&format!(
        "\n{}{} passed, {} failed, {} skipped, {} not run\nstate {}\n",
        if run.incomplete {
            format!(
                "incomplete: interrupted with {} to go; ",
                counted(run.not_run as u64, "check")
            )
        } else {
            String::new()
        },
        totals.pass,
        totals.fail,
        totals.skip,
        totals.error,
        run.state_hash
    ));
    text
}

fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Pass => "ok",
        Verdict::Skip => "skip",
        Verdict::Fail => "FAIL",
        Verdict::Error => "ERROR",
    }
}

fn explain(check: &CheckResult) -> String {
    let sentence = format!("{} {}: {}", word(check.verdict), check.name, check.detail);
    let mut text: String = sentence
        .lines()
        .map(|line| format!("{}\n", wrapped(line, "  ")))
        .collect();
    if check.verdict != Verdict::Skip {
        text.push_str(&format!("  again: {}\n", check.repro));
    }
    if let Some(script) = check
        .script
        .as_ref()
        .and_then(|one| serde_json::to_string(one).ok())
    {
        text.push_str(&format!(
            "  shrunk, for ds4 check --replay FILE: {script}\n"
        ));
    }
    text
}

fn junit(done: &CheckRun, origin: &str, exit: Exit, console: &Console) -> Result<Outcome, Failure> {
    let text = to_xml(done, origin).map_err(|error| Failure {
        exit: Exit::Internal,
        message: format!("the JUnit file could not be written: {error}"),
    })?;
    Ok(console.outcome(exit, "check", text, serde_json::Value::Null))
}

fn replay_file(path: &Path, console: &Console) -> Result<Outcome, Failure> {
    let name = path.display().to_string();
    let json = read_file(path, "the recorded check").map_err(Failure::usage)?;
    let script = Script::from_json(&json, &name).map_err(Failure::usage)?;
    let (exit, verdict, detail) = match replay(&script, console.stop()) {
        Replayed::Holds => (Exit::Ok, Verdict::Pass, String::new()),
        Replayed::Broken(broken) => (Exit::CheckFailed, Verdict::Fail, broken),
        Replayed::Failed(why) => (Exit::CheckFailed, Verdict::Error, why),
        Replayed::Stopped => {
            let message = format!("{name}: interrupted before all operations were done");
            let exit = Exit::Interrupted;
            return Err(Failure { exit, message });
        }
    };
    if console.format == Format::Junit {
        let done = CheckRun::of(CheckResult {
            suite: Suite::Faults,
            name: "the-recorded-operations-hold",
            verdict,
            did: counted(script.ops.len() as u64, "operation"),
            detail,
            repro: format!("ds4 check --replay {name}"),
            script: None,
        });
        return junit(&done, "the machine of the file", exit, console);
    }
    let sentence = match verdict {
        Verdict::Pass => "ok: the recorded operations hold".to_owned(),
        Verdict::Skip | Verdict::Fail | Verdict::Error => format!("{}: {detail}", word(verdict)),
    };
    let value = json!({ "replay": name, "detail": sentence });
    Ok(console.outcome(exit, "check", format!("{sentence}\n"), value))
}
