//! Every check holds on a machine without faults, and fails for the fault that it is there for.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ds4_engine::bytes::MIB;
use ds4_engine::device::{DeviceId, PeerAccess};
use ds4_sim::{FaultPlan, Instruments, Link, SimConfig};

use super::*;

/// Answers for every device with what a function makes of its UUID and the number of the call.
struct Fake(Answer, AtomicU64);

type Answer = Box<dyn Fn(&str, u64) -> Health + Send + Sync>;

impl std::fmt::Debug for Fake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Fake")
    }
}

impl Monitor for Fake {
    fn versions(&self) -> Reading<Versions> {
        Ok(Versions {
            driver: "580.1".to_owned(),
            library: "13.580".to_owned(),
            devices: 2,
        })
    }

    fn read(&self, uuid: &str) -> Reading<Health> {
        Ok((self.0)(uuid, self.1.fetch_add(1, Ordering::Relaxed)))
    }
}

fn link(active: bool, errors: LinkErrors) -> LinkHealth {
    LinkHealth {
        link: 0,
        active,
        errors: Ok(errors),
    }
}

fn healthy() -> Health {
    Health {
        ecc: Ok(Ecc {
            enabled: true,
            pending: true,
        }),
        ecc_errors: Ok(EccErrors::default()),
        remapped: Ok(RemappedRows::default()),
        retirement_pending: Ok(false),
        throttle: Ok(Throttle::default()),
        temperature_c: Ok(40),
        temperature_slowdown_c: Ok(87),
        power_cap_mw: Ok(700_000),
        power_cap_default_mw: Ok(700_000),
        pcie: Ok(Pcie {
            generation: 5,
            generation_max: 5,
            width: 16,
            width_max: 16,
        }),
        pcie_replays: Ok(0),
        links: Ok(vec![link(true, LinkErrors::default()); 2]),
        processes: Ok(Vec::new()),
        persistence: Ok(true),
        compute_mode: Ok("default".to_owned()),
        ..Health::unread("not told")
    }
}

fn first_link(health: &mut Health) -> &mut LinkErrors {
    health.links.as_mut().unwrap()[0].errors.as_mut().unwrap()
}

fn small(devices: usize) -> SimConfig {
    SimConfig::uniform(devices, 16 * MIB)
}

fn subject(config: SimConfig) -> Subject {
    Subject {
        target: Target::simulated(config).unwrap(),
        budgets: Vec::new(),
        monitor: Err("no monitor here".to_owned()),
        expectations: Expectations::shipped().unwrap(),
    }
}

fn with_faults(config: SimConfig, faults: &str) -> Subject {
    let subject = subject(config);
    let plan = format!("{{\"seed\":5,\"faults\":[{faults}]}}");
    let plan = FaultPlan::from_json(plan.as_bytes(), "plan").unwrap();
    subject.target.sim().unwrap().set_faults(plan).unwrap();
    subject
}

fn watched(health: impl Fn(&str, u64) -> Health + Send + Sync + 'static) -> Subject {
    let mut subject = subject(small(2));
    subject.monitor = Ok(Box::new(Fake(Box::new(health), AtomicU64::new(0))));
    subject
}

fn expecting(mut subject: Subject, figure: &str, at_least: u64) -> Subject {
    let text =
        format!("[[expect]]\nfigure = \"{figure}\"\nat_least = {at_least}\nsource = \"test\"");
    subject.expectations = subject.expectations.and_file(&text, "test.toml").unwrap();
    subject
}

fn run_only(subject: &Subject, name: &str) -> Run {
    let known = check_names().chain([run::NOT_IN_USE.name]);
    assert!(known.into_iter().any(|known| known == name), "{name}");
    let options = Options {
        level: Level::Soak,
        only: vec![name.to_owned()],
        soak_ns: 0,
        max_bytes: None,
        allow_busy: false,
    };
    let record = Record::default();
    run(subject, &options, &record, &AtomicBool::new(false))
}

/// The worst result of a check.
fn worst(subject: &Subject, name: &str) -> CheckResult {
    let run = run_only(subject, name);
    let mut results = run.results;
    results.retain(|result| result.check == name);
    results.sort_by_key(|result| result.verdict);
    results.pop().unwrap()
}

#[track_caller]
fn assert_worst(subject: &Subject, name: &str, verdict: Verdict) -> CheckResult {
    let worst = worst(subject, name);
    assert_eq!(worst.verdict, verdict, "{worst:?}");
    worst
}

#[test]
fn a_machine_without_faults_passes_everything_that_it_can_say() {
    let mut subject = watched(|_, _| healthy());
    // The suites want more than the other checks.
    subject.target = Target::simulated(SimConfig::uniform(2, 256 * MIB)).unwrap();
    let options = Options {
        level: Level::Soak,
        only: Vec::new(),
        soak_ns: 0,
        max_bytes: Some(8 * MIB),
        allow_busy: false,
    };
    let record = Record::default();
    let run = run(&subject, &options, &record, &AtomicBool::new(false));
    for result in &run.results {
        let silent = ["visible-devices", "device-count"].contains(&result.check);
        let expected = if silent { Verdict::Skip } else { Verdict::Pass };
        assert_eq!(result.verdict, expected, "{result:?}");
        assert!(result.did.ops > 0 || silent, "{result:?}");
        assert!(result.simulated);
    }
    for name in check_names() {
        assert!(
            run.results.iter().any(|result| result.check == name),
            "{name}"
        );
    }
    assert_eq!(run.exit(), Exit::Ok);
}

#[test]
fn codes_and_names_are_each_used_once() {
    let checks: Vec<CheckId> = run::checks().chain([run::NOT_IN_USE]).collect();
    let names: BTreeSet<&str> = checks.iter().map(|check| check.name).collect();
    let codes: BTreeSet<&str> = checks.iter().map(|check| check.code).collect();
    assert_eq!((names.len(), codes.len()), (checks.len(), checks.len()));
    assert_eq!(checks.len(), 33);
    for CheckId { code, level, .. } in checks {
        let number = code.strip_prefix("DV-").unwrap();
        assert!(
            number.len() == 4 && number.starts_with(&level.number().to_string()),
            "{code}"
        );
    }
}

#[test]
fn a_device_that_does_not_answer_is_not_taken_for_idle() {
    let silent = r#"{"at":"memory_info","kind":"fail"}"#;
    let found = assert_worst(&with_faults(small(1), silent), "not-in-use", Verdict::Error);
    assert_eq!(found.device.as_deref(), Some("gpu0"));
}

#[test]
fn hours_are_told_in_milliseconds() {
    assert_eq!(
        run::milliseconds(7_200_000_001_999).to_bits(),
        7_200_000.001_f64.to_bits()
    );
}

#[test]
fn each_reading_that_is_bad_gets_its_verdict() {
    type Spoil = fn(&mut Health);
    let cases: [(&str, Spoil, Verdict); 22] = [
        (
            "identity",
            |h| h.pci_bus_id = Ok("0000:99:00.0".to_owned()),
            Verdict::Fail,
        ),
        (
            "ecc",
            |h| h.ecc_errors.as_mut().unwrap().uncorrected = 1,
            Verdict::Fail,
        ),
        (
            "ecc",
            |h| h.ecc_errors.as_mut().unwrap().uncorrected_ever = 1,
            Verdict::Warn,
        ),
        (
            "ecc",
            |h| h.ecc.as_mut().unwrap().enabled = false,
            Verdict::Warn,
        ),
        ("ecc", |h| h.ecc = Err("not told".to_owned()), Verdict::Skip),
        (
            "remapped-rows",
            |h| h.remapped.as_mut().unwrap().failed = true,
            Verdict::Fail,
        ),
        (
            "remapped-rows",
            |h| h.remapped.as_mut().unwrap().pending = true,
            Verdict::Warn,
        ),
        (
            "remapped-rows",
            |h| {
                h.remapped = Err("old".to_owned());
                h.retirement_pending = Ok(true);
            },
            Verdict::Warn,
        ),
        (
            "throttle",
            |h| h.throttle.as_mut().unwrap().harmful.push("heat".to_owned()),
            Verdict::Warn,
        ),
        ("temperature", |h| h.temperature_c = Ok(87), Verdict::Fail),
        (
            "temperature",
            |h| h.temperature_slowdown_c = Err("none".to_owned()),
            Verdict::Skip,
        ),
        (
            "power-and-clocks",
            |h| h.power_cap_mw = Ok(300_000),
            Verdict::Warn,
        ),
        (
            "other-processes",
            |h| {
                h.processes = Ok(vec![Process {
                    pid: 4711,
                    bytes: Some(1 << 20),
                }]);
            },
            Verdict::Warn,
        ),
        (
            "modes",
            |h| h.compute_mode = Ok("prohibited".to_owned()),
            Verdict::Fail,
        ),
        (
            "modes",
            |h| h.compute_mode = Ok("exclusive process".to_owned()),
            Verdict::Warn,
        ),
        (
            "pcie",
            |h| h.pcie.as_mut().unwrap().width = 8,
            Verdict::Warn,
        ),
        (
            "pcie",
            |h| h.pcie = Err("not told".to_owned()),
            Verdict::Skip,
        ),
        ("nvlink", |h| first_link(h).crc_data = 3, Verdict::Warn),
        (
            "nvlink",
            |h| h.links = Err("not told".to_owned()),
            Verdict::Skip,
        ),
        (
            "soak-throttle",
            |h| h.throttle = Err("not told".to_owned()),
            Verdict::Skip,
        ),
        (
            "soak-throttle",
            |h| h.throttle.as_mut().unwrap().harmful.push("heat".to_owned()),
            Verdict::Warn,
        ),
        (
            "soak-counters",
            |h| *h = Health::unread("not told"),
            Verdict::Skip,
        ),
    ];
    for (name, spoil, verdict) in cases {
        let subject = watched(move |_, _| {
            let mut health = healthy();
            spoil(&mut health);
            health
        });
        assert_worst(&subject, name, verdict);
    }
}

#[test]
fn a_process_is_named_with_what_it_holds() {
    let subject = watched(|_, _| Health {
        processes: Ok(vec![Process {
            pid: 4711,
            bytes: Some(3 << 20),
        }]),
        ..healthy()
    });
    let found = worst(&subject, "other-processes");
    assert_eq!(found.detail, "process 4711 holds 3 MiB");
    // Of 16 MiB that is more than a tenth: nothing is loaded.
    let run = run_only(&subject, "memory-random");
    assert_eq!(run.ended, Some(Ended::Busy));
    assert_eq!(run.exit(), Exit::Busy);
    assert!(
        run.results
            .iter()
            .any(|one| one.detail.contains("process 4711"))
    );
}

#[test]
fn a_device_with_fewer_links_than_its_neighbour_fails() {
    let fewer = |uuid: &str, _| {
        let mut health = healthy();
        if uuid.ends_with("1") {
            health.links = Ok(vec![link(false, LinkErrors::default()); 2]);
        }
        health
    };
    let found = assert_worst(&watched(fewer), "nvlink", Verdict::Fail);
    assert_eq!(found.device.as_deref(), Some("gpu1"));
    let all = watched(|_, _| healthy());
    assert_worst(&expecting(all, "nvlink", 3), "nvlink", Verdict::Fail);
}

#[test]
fn what_a_profile_asks_for_is_held_against_what_is_there() {
    for (figure, check) in [
        ("pcie-width", "pcie"),
        ("pcie-generation", "pcie"),
        ("memory", "identity"),
        ("devices", "device-count"),
        ("host-to-device", "host-to-device"),
        ("device-to-host", "device-to-host"),
        ("host-bounce", "host-bounce"),
        ("device-copy", "device-copy"),
        ("peer-copy", "peer-copy"),
    ] {
        let found = |least| worst(&expecting(watched(|_, _| healthy()), figure, least), check);
        let (few, many) = (found(1), found(u64::from(u32::MAX) << 20));
        assert_eq!(few.verdict, Verdict::Pass, "{few:?}");
        assert_eq!(many.verdict, Verdict::Fail, "{many:?}");
        let source = many.source_of_expectation.unwrap();
        assert_eq!(source, "test.toml: test", "{figure}");
    }
}

#[test]
fn memory_of_others_is_told_without_a_monitor_too() {
    let mut config = small(1);
    config.devices[0].other_process_bytes = MIB;
    let found = assert_worst(&subject(config), "other-processes", Verdict::Warn);
    assert_eq!(found.detail, "others hold 1 MiB");
    let mut config = small(1);
    config.devices[0].other_process_bytes = 16 * MIB;
    assert_worst(&subject(config), "free-memory", Verdict::Fail);
}

#[test]
fn each_kind_of_path_gets_its_verdict() {
    for (access, verdict) in [
        (PeerAccess::Direct, Verdict::Pass),
        (PeerAccess::Absent, Verdict::Skip),
        (PeerAccess::Bounce, Verdict::Warn),
        (PeerAccess::Broken, Verdict::Fail),
    ] {
        let mut config = small(2);
        let [from, to] = [0, 1].map(|index| DeviceId::new(index).unwrap());
        let link = Link {
            access,
            ..Link::nvlink()
        };
        config.set_link(from, to, link);
        let found = assert_worst(&subject(config), "peer-access", verdict);
        assert!(verdict == Verdict::Pass || found.device.as_deref() == Some("gpu0->gpu1"));
    }
}

#[test]
fn a_flipped_bit_of_memory_is_named_with_position_expected_and_found() {
    let flip = r#"{"at":"launch","if":{"min_bytes":1048576},"skip":2,"kind":"bit_flip"}"#;
    for name in [
        "memory-own-address",
        "memory-moving-inversion",
        "memory-random",
    ] {
        let found = assert_worst(&with_faults(small(1), flip), name, Verdict::Fail);
        let word = |key: &str| {
            let text = found.measured[key].as_str().unwrap();
            u64::from_str_radix(text.trim_start_matches("0x"), 16).unwrap()
        };
        assert_eq!((word("expected") ^ word("found")).count_ones(), 1);
        assert_eq!(found.measured["wrong_words"], 1);
        let position = found.measured["position"].as_u64().unwrap();
        // The third piece of 2 MiB.
        assert!((2 << 18..3 << 18).contains(&position), "{position}");
        for part in ["position", "expected 0x", "found 0x"] {
            assert!(found.detail.contains(part), "{}", found.detail);
        }
    }
}

#[test]
fn a_check_that_misses_a_planted_word_is_an_error_and_no_pass() {
    // Of six pieces: six writes, six checks, then the check of the planted word.
    let flip = r#"{"at":"launch","if":{"min_bytes":1048576},"skip":12,"kind":"bit_flip"}"#;
    let found = assert_worst(
        &with_faults(small(1), flip),
        "memory-random",
        Verdict::Error,
    );
    assert!(found.detail.contains("planted"), "{}", found.detail);
}

#[test]
fn bytes_lost_on_any_path_fail_in_any_round() {
    let flip = |at: &str, skip: u32| {
        format!(r#"{{"at":"{at}","if":{{"min_bytes":1048576}},"skip":{skip},"kind":"bit_flip"}}"#)
    };
    for (name, at) in [
        ("host-to-device", "write"),
        ("device-to-host", "read"),
        ("host-bounce", "write"),
        ("device-copy", "copy_local"),
        ("peer-copy", "copy_peer"),
    ] {
        for skip in [0, 3] {
            let found = assert_worst(&with_faults(small(2), &flip(at, skip)), name, Verdict::Fail);
            assert!(
                found.detail.starts_with("bytes were lost"),
                "{}",
                found.detail
            );
        }
    }
    for (name, at) in [("soak-memory", "launch"), ("soak-copies", "copy_peer")] {
        let flip = format!(r#"{{"at":"{at}","kind":"bit_flip"}}"#);
        let devices = if name == "soak-copies" { 2 } else { 1 };
        let found = assert_worst(&with_faults(small(devices), &flip), name, Verdict::Fail);
        assert!(found.detail.contains("expected 0x"), "{}", found.detail);
    }
}

#[test]
fn a_wrong_bit_of_any_gate_fails_and_names_the_float_and_what_was_expected() {
    for name in ["gates", "gates-under-load"] {
        for skip in [0, 33] {
            let flip = format!(r#"{{"at":"launch","skip":{skip},"kind":"bit_flip"}}"#);
            let found = assert_worst(&with_faults(small(2), &flip), name, Verdict::Fail);
            assert!(found.detail.contains("was expected"), "{}", found.detail);
            assert_eq!(found.device.as_deref(), Some("gpu0<->gpu1"));
        }
        // A device that dies among gates fails, and the other's kernel ends.
        let lost = r#"{"at":"launch","device":1,"skip":9,"kind":"lost"}"#;
        assert_worst(&with_faults(small(2), lost), name, Verdict::Fail);
        let mut config = small(2);
        let [from, to] = [0, 1].map(|index| DeviceId::new(index).unwrap());
        config.set_link(
            to,
            from,
            Link {
                access: PeerAccess::Broken,
                ..Link::nvlink()
            },
        );
        assert_worst(&subject(config), name, Verdict::Skip);
    }
}

#[test]
fn one_slow_path_of_many_fails_and_of_two_warns() {
    for (devices, verdict) in [(2, Verdict::Warn), (3, Verdict::Fail)] {
        let mut config = small(devices);
        let [from, to] = [0, 1].map(|index| DeviceId::new(index).unwrap());
        let slow = Link {
            bytes_per_second: 25_000_000_000,
            ..Link::nvlink()
        };
        config.set_link(from, to, slow);
        let found = assert_worst(&subject(config), "peer-copy", verdict);
        assert_eq!(found.device.as_deref(), Some("gpu0->gpu1"));
    }
    // One device alone has nothing to be compared with, and says so.
    let alone = assert_worst(&subject(small(1)), "device-copy", Verdict::Skip);
    assert!(alone.detail.ends_with("no expectation"), "{}", alone.detail);
}

#[test]
fn a_context_that_cannot_work_fails() {
    for fault in [
        r#"{"at":"create_stream","kind":"fail"}"#,
        r#"{"at":"read","kind":"bit_flip"}"#,
        r#"{"at":"wait_event","kind":"sticky"}"#,
    ] {
        assert_worst(&with_faults(small(1), fault), "context", Verdict::Fail);
    }
}

#[test]
fn a_driver_that_refuses_what_is_free_or_keeps_what_was_freed_fails() {
    let oom = r#"{"at":"allocate","skip":4,"kind":"oom"}"#;
    let found = assert_worst(
        &with_faults(small(1), oom),
        "allocation-ladder",
        Verdict::Fail,
    );
    assert!(found.detail.contains("although"), "{}", found.detail);
    let once = r#"{"at":"free","count":1,"bytes":65536,"kind":"take"}"#;
    assert_worst(
        &with_faults(small(1), once),
        "allocation-ladder",
        Verdict::Warn,
    );
    let always = r#"{"at":"free","count":"all","bytes":4096,"kind":"take"}"#;
    assert_worst(
        &with_faults(small(1), always),
        "allocation-ladder",
        Verdict::Fail,
    );
}

#[test]
fn a_lost_device_fails_and_another_error_is_not_held_against_it() {
    let lost = r#"{"at":"launch","kind":"lost"}"#;
    for name in ["memory-random", "device-copy", "soak-memory"] {
        assert_worst(&with_faults(small(1), lost), name, Verdict::Fail);
    }
    let failed = r#"{"at":"launch","kind":"fail"}"#;
    for name in ["memory-random", "device-copy", "soak-memory"] {
        assert_worst(&with_faults(small(1), failed), name, Verdict::Error);
    }
}

#[test]
fn counters_that_rise_under_load_are_told() {
    type Count = fn(&mut Health, u64);
    let cases: [(Count, Verdict); 6] = [
        (
            |h, n| h.ecc_errors.as_mut().unwrap().uncorrected = n,
            Verdict::Fail,
        ),
        (
            |h, n| h.ecc_errors.as_mut().unwrap().corrected = n,
            Verdict::Warn,
        ),
        (
            |h, n| h.remapped.as_mut().unwrap().corrected = n,
            Verdict::Warn,
        ),
        (|h, n| h.pcie_replays = Ok(n), Verdict::Warn),
        (|h, n| first_link(h).recovery = n, Verdict::Fail),
        (|h, n| first_link(h).replay = n, Verdict::Warn),
    ];
    for (count, verdict) in cases {
        let subject = watched(move |_, call| {
            let mut health = healthy();
            count(&mut health, call);
            health
        });
        let found = assert_worst(&subject, "soak-counters", verdict);
        assert!(found.detail.contains(" from "), "{}", found.detail);
    }
}

#[test]
fn a_pass_without_work_is_an_error() {
    // A device that lists links and has none: nothing was read.
    let subject = watched(|_, _| Health {
        links: Ok(Vec::new()),
        ..healthy()
    });
    assert_worst(&subject, "nvlink", Verdict::Error);
}

#[test]
fn nothing_but_skips_is_nothing_done_and_a_stop_leaves_what_was_found() {
    assert_eq!(
        run_only(&subject(small(1)), "ecc").exit(),
        Exit::NothingDone
    );
    let (subject, record) = (subject(small(1)), Record::default());
    let options = Options {
        level: Level::Test,
        only: Vec::new(),
        soak_ns: 0,
        max_bytes: None,
        allow_busy: false,
    };
    let stopped = run(&subject, &options, &record, &AtomicBool::new(true));
    assert_eq!(stopped.exit(), Exit::Interrupted);
    assert!(stopped.incomplete);
}
