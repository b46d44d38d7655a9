//! The suites behind `ds4 check`, on every machine that is shipped.
#![expect(clippy::unwrap_used, reason = "a helper of a test fails by panicking")]

use std::sync::atomic::AtomicBool;

use ds4_harness::suite::{CheckOptions, CheckResult, CheckRun, Verdict, junit, run};
use ds4_harness::target::Target;
use ds4_sim::Topology;

fn target(topology: &str) -> Target {
    Target::simulated(Topology::load(topology).unwrap().config).unwrap()
}

fn run_on(topology: &str, options: &CheckOptions) -> CheckRun {
    run(
        &target(topology),
        options,
        &AtomicBool::new(false),
        &mut |_| (),
    )
}

fn assert_passes(run: &CheckRun) {
    let bad: Vec<String> = run
        .checks
        .iter()
        .filter(|check| matches!(check.verdict, Verdict::Fail | Verdict::Error))
        .map(|check| {
            let script = check
                .script
                .as_ref()
                .map_or(String::new(), |script| script.to_json());
            format!(
                "{} ({}): {}\n{}\n{script}",
                check.name, check.did, check.detail, check.repro
            )
        })
        .collect();
    assert!(bad.is_empty(), "{}", bad.join("\n\n"));
    assert!(run.totals.pass > 0);
}

#[test]
fn a_check_that_a_machine_has_no_room_for_is_skipped_with_the_reason() {
    let device = |capacity: &str| format!("[[device]]\nname = 'd'\ncapacity = '{capacity}'\n");
    let machines = [
        format!("{}granularity = '256'\n", device("256")),
        format!("{}granularity = '8GiB'\n", device("24GiB")).repeat(2),
        format!("{}page = '1GiB'\n", device("24GiB")),
        format!("{}page = '64KiB'\ngranularity = '256'\n", device("1GiB")),
        format!("{}page = '2MiB'\n", device("48MiB")).repeat(2),
        format!(
            "{}page = '2MiB'\nother_processes = '1GiB'\n",
            device("1GiB")
        ),
    ];
    for devices in machines {
        let text = format!("machine = 'odd'\n{devices}");
        let config = Topology::from_toml(&text, "odd.toml").unwrap().config;
        let options = CheckOptions {
            cases: 4,
            ..CheckOptions::default()
        };
        let target = Target::simulated(config).unwrap();
        let run = run(&target, &options, &AtomicBool::new(false), &mut |_| ());
        assert_passes(&run);
        let told = |check: &CheckResult| check.verdict != Verdict::Skip || !check.detail.is_empty();
        assert!(run.checks.iter().all(told), "{devices}");
    }
}

#[test]
fn every_check_passes_on_the_default_machine() {
    let run = run_on(
        "2xh200",
        &CheckOptions {
            cases: 48,
            ..CheckOptions::default()
        },
    );
    assert_passes(&run);
    assert!(
        run.coverage.iter().all(|sometimes| sometimes.hits > 0),
        "{:?}",
        run.coverage
    );
}

#[test]
fn every_check_passes_on_every_shipped_machine() {
    for topology in Topology::shipped() {
        assert_passes(&run_on(
            topology,
            &CheckOptions {
                cases: 4,
                ..CheckOptions::default()
            },
        ));
    }
}

#[test]
fn one_seed_gives_one_state_hash_and_another_gives_another() {
    let options = |seed| CheckOptions {
        seed,
        cases: 4,
        ..CheckOptions::default()
    };
    let first = run_on("8x24g-mixed", &options(7));
    assert_eq!(first, run_on("8x24g-mixed", &options(7)));
    assert_ne!(
        first.state_hash,
        run_on("8x24g-mixed", &options(8)).state_hash
    );
}

#[test]
fn a_check_can_be_run_alone_and_says_how_to_repeat_it() {
    let all = run_on(
        "1x24g",
        &CheckOptions {
            cases: 1,
            ..CheckOptions::default()
        },
    );
    for check in &all.checks {
        let alone = CheckOptions {
            cases: 1,
            only: Some(check.name.to_owned()),
            ..CheckOptions::default()
        };
        let again = run_on("1x24g", &alone);
        assert_eq!(again.checks, std::slice::from_ref(check));
        assert!(
            check.repro.contains("--seed 1 --cases 1 --topology 1x24g"),
            "{}",
            check.repro
        );
        assert!(
            check.verdict == Verdict::Skip || check.did != "nothing",
            "{check:?}"
        );
    }
    assert!(junit::to_xml(&all, "1x24g").unwrap().contains("skipped"));
}

#[test]
fn a_stopped_run_is_incomplete() {
    let run = run(
        &target("1x24g"),
        &CheckOptions::default(),
        &AtomicBool::new(true),
        &mut |_| (),
    );
    assert!(run.incomplete && run.checks.is_empty());
}
