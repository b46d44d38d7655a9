//! The suites on a backend that has no instruments of its own, as real devices have none.

mod common;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use common::*;
use ds4_engine::backend::Backend;
use ds4_harness::suite::{CheckOptions, CheckRun, Suite, Verdict, check_names, run};
use ds4_harness::target::{BackendKind, Target};
use ds4_sim::{Instruments, SimBackend, SimConfig, SimDevice};

/// What shows itself on the virtual clock alone.
const NEEDS_VIRTUAL_TIME: [&str; 3] = [
    "another-stream-gets-freed-memory-after-its-work-is-done",
    "a-block-used-on-two-streams-waits-for-both",
    "histories-with-faults-repeat",
];

/// Room for all machines of random histories.
fn five_devices() -> SimConfig {
    SimConfig::new("five", devices(&[1024; 5], true))
}

fn run_check(target: &Target, name: &str) -> CheckRun {
    let options = CheckOptions {
        cases: 8,
        only: Some(name.to_owned()),
        ..CheckOptions::default()
    };
    run(target, &options, &AtomicBool::new(false), &mut |_| ())
}

#[test]
fn every_check_says_the_same_with_instruments_around_a_bare_backend() {
    let inner = Arc::new(SimBackend::new(five_devices()).unwrap());
    let wrapped = Target::lasting(BackendKind::Sim, inner.clone());
    let simulated = Target::simulated(five_devices()).unwrap();
    assert!(wrapped.sim().is_none());
    let fresh = inner.state_hash();
    for name in check_names(&Suite::ALL) {
        let outside = run_check(&wrapped, name);
        let [check] = outside.checks.as_slice() else {
            panic!("{name} is not one check");
        };
        assert_eq!(inner.state_hash(), fresh, "{name} leaves something behind");
        assert_eq!(inner.ledger().findings(), [], "{name} misuses the backend");
        if NEEDS_VIRTUAL_TIME.contains(&name) {
            assert_eq!(check.verdict, Verdict::Skip, "{check:?}");
            continue;
        }
        let inside = run_check(&simulated, name);
        assert_eq!(check.verdict, Verdict::Pass, "{check:?}");
        // Which call a fault meets in a history on several streams depends on what is done by then.
        if check.suite != Suite::Faults {
            assert_eq!(outside.checks, inside.checks);
            assert_eq!(outside.state_hash, inside.state_hash, "{name}");
        }
    }
    inner.ledger().check_shutdown();
    assert_eq!(inner.ledger().findings(), []);
}

#[test]
fn two_worlds_on_lasting_devices_do_not_see_each_other() {
    let inner: Arc<dyn Backend> = Arc::new(SimBackend::new(five_devices()).unwrap());
    let target = Target::lasting(BackendKind::Sim, inner.clone());
    let one = target.instrumented().unwrap();
    let other = target.instrumented().unwrap();
    let ours = one.instruments().unwrap().clone();
    let theirs = other.instruments().unwrap().clone();
    ours.take_memory(gpu(0), u64::MAX);
    assert!(one.backend().allocate(gpu(0), MIB).is_err());
    assert!(other.backend().allocate(gpu(0), MIB).is_ok());
    assert_eq!(ours.calls().total(), 1);
    theirs.ledger().check_shutdown();
    assert_eq!(theirs.ledger().finding_count(), 1);
    assert_eq!(ours.ledger().finding_count(), 0);
    drop((one, other, ours, theirs));
    let free = inner.memory_info(gpu(0)).unwrap().free_bytes;
    assert_eq!(free, GIB);
}

/// Real drivers count memory in pieces of 2 MiB and have much more than any world needs.
#[test]
fn every_check_holds_on_one_or_two_devices_that_count_as_real_ones_do() {
    for (count, page_bytes) in [(1, None), (1, Some(PAGE)), (2, Some(PAGE))] {
        let device = SimDevice {
            page_bytes,
            granularity_bytes: PAGE,
            ..SimDevice::new(140 * GIB)
        };
        let config = SimConfig::new("like a real one", vec![device; count]);
        let inner = Arc::new(SimBackend::new(config).unwrap());
        let target = Target::lasting(BackendKind::Sim, inner.clone());
        let options = CheckOptions {
            cases: 64,
            ..CheckOptions::default()
        };
        let run = run(&target, &options, &AtomicBool::new(false), &mut |_| ());
        for check in &run.checks {
            let held = matches!(check.verdict, Verdict::Pass | Verdict::Skip);
            assert!(held, "{check:?}");
            let virtual_time = NEEDS_VIRTUAL_TIME.contains(&check.name);
            assert!(count == 1 || virtual_time == (check.verdict == Verdict::Skip));
        }
        inner.ledger().check_shutdown();
        assert_eq!(inner.ledger().findings(), []);
    }
}
