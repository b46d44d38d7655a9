use super::*;
use proptest::prelude::*;

fn device(index: usize) -> DeviceId {
    DeviceId::new(index).unwrap()
}

fn plan(json: &str) -> FaultPlan {
    FaultPlan::from_json(json.as_bytes(), "plan.json").unwrap()
}

/// The numbers, from 0 on, of the allocations of 1 MiB on device 2 that fail.
fn failing(plan: FaultPlan, calls: usize) -> Vec<usize> {
    let mut state = FaultState::new(plan);
    (0..calls)
        .filter(|_| !state.consult(device(2), Call::Allocate, 1 << 20).is_empty())
        .collect()
}

#[test]
fn the_example_of_the_design_skips_three_and_fires_once() {
    let plan = plan(
        r#"{"seed":7,"faults":[{"at":"alloc","device":2,"skip":3,"count":1,
            "if":{"min_bytes":1048576,"mask":"0b0100"},"kind":"oom"}]}"#,
    );
    assert_eq!(failing(plan.clone(), 9), [3]);
    let mut state = FaultState::new(plan);
    for _ in 0..9 {
        assert!(state.consult(device(1), Call::Allocate, 1 << 20).is_empty());
        assert!(state.consult(device(2), Call::Allocate, 1 << 19).is_empty());
        assert!(state.consult(device(2), Call::Free, 1 << 20).is_empty());
    }
    assert_eq!(state.report()[0].matched, 0);
}

#[test]
fn the_nth_call_fails_once_or_from_then_on() {
    assert_eq!(failing(FaultPlan::nth(FaultKind::Fail, 3, false), 6), [2]);
    assert_eq!(
        failing(FaultPlan::nth(FaultKind::Fail, 3, true), 6),
        [2, 3, 4, 5]
    );
    assert_eq!(
        failing(FaultPlan::nth(FaultKind::BitFlip, 1, true), 6),
        [0_usize; 0]
    );
}

#[test]
fn a_probability_is_met_and_the_same_seed_fires_at_the_same_calls() {
    let text = |seed| {
        format!(
            r#"{{"seed":{seed},"faults":[{{"at":"any","kind":"fail","prob":0.25,"count":"all"}}]}}"#
        )
    };
    let fired = failing(plan(&text(1)), 4000);
    assert!((900..1100).contains(&fired.len()), "{}", fired.len());
    assert_eq!(fired, failing(plan(&text(1)), 4000));
    assert_ne!(fired, failing(plan(&text(2)), 4000));
    let never = r#"{"faults":[{"at":"any","kind":"fail","prob":0,"count":"all"}]}"#;
    assert_eq!(failing(plan(never), 100), [0_usize; 0]);
}

#[test]
fn a_swarm_switches_faults_off_for_a_whole_run() {
    let enabled: Vec<bool> = (0..64)
        .map(|seed| {
            let text = format!(
                r#"{{"seed":{seed},"swarm":true,"faults":[{{"at":"any","kind":"fail"}}]}}"#
            );
            FaultState::new(plan(&text)).report()[0].enabled
        })
        .collect();
    let on = enabled.iter().filter(|on| **on).count();
    assert!((16..48).contains(&on), "{on}");
}

#[test]
fn a_call_that_failed_is_not_seen_by_later_faults() {
    let plan = FaultPlan::new(vec![
        Fault::every(FaultKind::Delay { ns: 1 }),
        Fault::every(FaultKind::Fail).times(1, Some(1)),
        Fault::every(FaultKind::Oom),
    ]);
    let mut state = FaultState::new(plan);
    for _ in 0..2 {
        state.consult(device(0), Call::Allocate, 1);
    }
    let fired: Vec<u64> = state.report().iter().map(|count| count.fired).collect();
    assert_eq!(fired, [2, 1, 1]);
}

#[test]
fn each_bad_plan_is_refused_in_a_sentence_with_place_and_remedy() {
    let fault = |rest: &str| format!(r#"{{"faults":[{{"at":"alloc","kind":"oom"{rest}}}]}}"#);
    let cases = [
        (
            String::new(),
            "plan.json:1:0: EOF while parsing a value; see sim/FAULTS.md",
        ),
        (
            "[]".to_owned(),
            "plan.json:1:2: invalid length 2, expected an object with a list named faults",
        ),
        (
            r#"{"faults":7}"#.to_owned(),
            "plan.json:1:11: invalid type: integer `7`, expected a list in brackets",
        ),
        ("{}".to_owned(), "plan.json:1:2: missing field `faults`"),
        (
            r#"{"faults":[],"sead":1}"#.to_owned(),
            "plan.json:1:19: unknown field `sead`, expected",
        ),
        (
            r#"{"faults":[],"seed":-1}"#.to_owned(),
            "plan.json:1:22: invalid value: integer `-1`",
        ),
        (
            r#"{"faults":[{"kind":"oom"}]}"#.to_owned(),
            "plan.json:1:25: missing field `at`",
        ),
        (
            fault(r#","skip":-1"#),
            "plan.json:1:47: invalid value: integer `-1`",
        ),
        (
            fault(r#","skip":"x""#),
            "plan.json:1:48: invalid type: string \"x\", expected a whole number from 0",
        ),
        (
            fault(r#","often":1"#),
            "plan.json:1:45: unknown field `often`",
        ),
        (
            fault(r#","count":0"#),
            "plan.json:faults[0].count: a count of 0 never fires; write 1",
        ),
        (
            fault(r#","count":"some""#),
            "plan.json:faults[0].count: 'some' is no count; write",
        ),
        (
            fault(r#","count":-2"#),
            "plan.json:1:48: invalid type: integer `-2`, expected a whole",
        ),
        (
            fault(r#","prob":1.5"#),
            "plan.json:faults[0].prob: 1.5 is no probability; write 0 to 1",
        ),
        (
            fault(r#","prob":-0.1"#),
            "plan.json:faults[0].prob: -0.1 is no probability; write",
        ),
        (
            fault(r#","device":32"#),
            "plan.json:faults[0].device: there is no device 32; write 0 to 31",
        ),
        (
            fault(r#","if":{"max":1}"#),
            "plan.json:1:49: unknown field `max`",
        ),
        (
            fault(r#","if":{"mask":"0b2"}"#),
            "plan.json:faults[0].if.mask: the mask is not a number",
        ),
        (
            fault(r#","if":{"mask":"+1"}"#),
            "plan.json:faults[0].if.mask: the mask is not a number",
        ),
        (
            fault(r#","if":{"mask":0}"#),
            "plan.json:faults[0].if.mask: the mask is empty; set a bit",
        ),
        (
            fault(r#","ns":1"#),
            "plan.json:faults[0].ns: 'oom' takes no ns; remove it",
        ),
        (
            fault(r#","bytes":1"#),
            "plan.json:faults[0].bytes: 'oom' takes no bytes; remove it",
        ),
        (
            r#"{"faults":[{"at":"alloc","kind":"delay"}]}"#.to_owned(),
            "plan.json:faults[0].ns: a delay has no length; add",
        ),
        (
            r#"{"faults":[{"at":"any","kind":"delay","ns":9000000000000000}]}"#.to_owned(),
            "plan.json:faults[0].ns: the delay of 9000000000000000 ns is too long; write at most",
        ),
        (
            r#"{"faults":[{"at":"any","kind":"take"}]}"#.to_owned(),
            "plan.json:faults[0].bytes: take does not say how much; add",
        ),
        (
            r#"{"faults":[{"at":"malloc","kind":"oom"}]}"#.to_owned(),
            "plan.json:faults[0].at: there is no call 'malloc'; write any, alloc",
        ),
        (
            r#"{"faults":[{"at":"alloc","kind":"boom"}]}"#.to_owned(),
            "plan.json:faults[0].kind: there is no kind 'boom'; write oom",
        ),
        (
            r#"{"faults":[{"at":"free","kind":"oom"}]}"#.to_owned(),
            "plan.json:faults[0].kind: 'oom' does not apply to 'free'; the last table",
        ),
    ];
    for (json, expected) in cases {
        let sentence = FaultPlan::from_json(json.as_bytes(), "plan.json")
            .unwrap_err()
            .to_string();
        assert!(
            sentence.starts_with(expected),
            "{sentence}\n  expected {expected}"
        );
        assert!(
            sentence.contains("; ") && !sentence.contains('\n'),
            "{sentence}"
        );
    }
    let sentence = FaultPlan::from_json(b"\n \xFF", "p")
        .unwrap_err()
        .to_string();
    assert_eq!(
        sentence,
        "p:2:2: the text is not UTF-8; save the plan as UTF-8"
    );
}

#[test]
fn a_missing_file_is_named() {
    let sentence = FaultPlan::load("no/such.json").unwrap_err().to_string();
    assert!(
        sentence.starts_with("no/such.json: the fault plan cannot be read"),
        "{sentence}"
    );
}

#[test]
fn a_plan_for_a_larger_machine_is_refused_when_bound() {
    let device = plan(r#"{"faults":[{"at":"any","kind":"fail","device":5}]}"#);
    assert!(device.check_devices(6).is_ok());
    let sentence = device.check_devices(4).unwrap_err().to_string();
    assert_eq!(
        sentence,
        "plan.json:faults[0].device: there is no device 5; the machine has devices 0 to 3"
    );
    let mask = plan(r#"{"faults":[{"at":"any","kind":"fail","if":{"mask":"0x30"}}]}"#);
    assert!(mask.check_devices(5).is_ok());
    assert!(mask.check_devices(4).is_err());
}

#[test]
fn every_call_and_group_of_the_document_is_accepted() {
    let document = include_str!("../FAULTS.md");
    for call in Call::ALL {
        assert!(document.contains(call.name()), "{call}");
        plan(&format!(
            r#"{{"faults":[{{"at":"{call}","kind":"fail"}}]}}"#
        ));
    }
    for group in ["any", "alloc", "free", "stream", "event", "copy"] {
        plan(&format!(
            r#"{{"faults":[{{"at":"{group}","kind":"fail"}}]}}"#
        ));
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(json in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = FaultPlan::from_json(&json, "x");
    }

    #[test]
    fn arbitrary_values_in_the_right_places_never_panic(
        at in "[a-z_]{0,12}", kind in "oom|delay|take|[a-z]{0,5}", value in "-?[0-9]{1,25}|\"[0-9a-fx]{0,9}\"|null",
    ) {
        for field in ["skip", "count", "device", "prob", "ns", "bytes"] {
            let json = format!(r#"{{"faults":[{{"at":"{at}","kind":"{kind}","{field}":{value}}}]}}"#);
            let _ = FaultPlan::from_json(json.as_bytes(), "x").map(|plan| plan.check_devices(3));
        }
        let json = format!(r#"{{"faults":[{{"at":"any","kind":"fail","if":{{"mask":{value}}}}}]}}"#);
        let _ = FaultPlan::from_json(json.as_bytes(), "x");
    }
}
