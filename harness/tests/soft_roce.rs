//! What must hold on a real verbs library and a real kernel: Soft-RoCE in a virtual machine, started
//! by `cargo ci rdma`, nowhere else.
//!
//! The machine has two devices, `rxe0` and `rxe1`, on the two ends of a virtual cable, and packets
//! between them go over it. What holds here is the use of verbs: states, errors, order. Nothing here
//! says how fast anything is.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a failed step is a failed test")]
#![expect(
    clippy::disallowed_methods,
    reason = "faults strike running processes, and how soon they end is what is shown"
)]

mod common;

use std::io::ErrorKind;
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use common::processes::{ds4, ended, until_said};
use ds4_engine::tp::time::Time;
use ds4_engine::transport::verbs::{
    Endpoint, GidKind, Library as _, PairKind, Scope, SystemVerbs, Taken, VerbsPath, Wish,
    connect_pair, survey, take,
};

fn taken(device: &str) -> Taken {
    let library = SystemVerbs::load().unwrap();
    let wish = Wish {
        device: Some(device.to_owned()),
        gid_index: None,
    };
    take(&survey(&library).unwrap(), &wish, &[]).unwrap()
}

fn end(device: &str, kind: PairKind, psn: u32) -> Endpoint {
    let taken = taken(device);
    let best = taken.report.ranked()[0].index;
    let mut gids = taken.report.table.gids.iter();
    let raw = gids.find(|gid| gid.index == best).unwrap().raw;
    let library = SystemVerbs::load().unwrap();
    Endpoint::prepare(&library, &taken, raw, kind, psn).unwrap()
}

fn paths(kind: PairKind) -> (VerbsPath, VerbsPath) {
    connect_pair(end("rxe0", kind, 7), end("rxe1", kind, 0x00ff_fff0)).unwrap()
}

fn pattern(bytes: usize, salt: usize) -> Vec<u8> {
    (0..bytes)
        .map(|i| ((i * (2 * salt + 3)) >> 3).to_le_bytes()[0])
        .collect()
}

fn later<T>(done: std::io::Result<T>, otherwise: T) -> T {
    match done {
        Err(error) if error.kind() == ErrorKind::WouldBlock => otherwise,
        other => other.unwrap(),
    }
}

/// Sends bytes both ways at once and compares them.
fn exchange(one: &mut VerbsPath, two: &mut VerbsPath, bytes: usize) {
    let start = Instant::now();
    let out = [pattern(bytes, 1), pattern(bytes, 2)];
    let mut come = [vec![0xee; bytes], vec![0xee; bytes]];
    let (mut sent, mut got) = ([0; 2], [0; 2]);
    while got != [bytes; 2] {
        let now = Time(u64::try_from(start.elapsed().as_nanos()).unwrap());
        for (side, path) in [&mut *one, &mut *two].into_iter().enumerate() {
            path.tend(now).unwrap();
            sent[side] += later(path.write(&[], &out[side][sent[side]..]), 0);
            let at = got[side];
            got[side] += later(path.read(&mut [], &mut come[side][at..]), 0);
        }
        assert!(
            start.elapsed() < Duration::from_secs(30),
            "{sent:?} {got:?}"
        );
        thread::yield_now();
    }
    assert!(come[0] == out[1] && come[1] == out[0], "other bytes came");
}

#[test]
fn devices_ports_and_addresses_are_found_and_the_ipv4_one_is_best() {
    let library = SystemVerbs::load().unwrap();
    assert_eq!(library.devices().unwrap().len(), 2);
    for device in ["rxe0", "rxe1"] {
        let report = taken(device).report;
        assert!(report.usable() && report.number == 1);
        assert_eq!(report.port.active_mtu.bytes(), 4096);
        let best = report.ranked()[0].index;
        let gid = report
            .table
            .gids
            .iter()
            .find(|gid| gid.index == best)
            .unwrap();
        assert_eq!((gid.kind, gid.scope()), (GidKind::RoceV2, Scope::Ipv4));
        assert_eq!(
            gid.interface.as_deref(),
            Some(device.replace("rxe", "v").as_str())
        );
        assert!(
            report
                .table
                .gids
                .iter()
                .any(|gid| gid.scope() == Scope::Ipv6LinkLocal)
        );
    }
    let (code, value, said) = ended(
        ds4()
            .args(["devices", "--rdma", "--format", "json"])
            .spawn()
            .unwrap(),
    );
    assert_eq!(code, 0, "{said}");
    assert_eq!(value["chosen"]["device"], "rxe0");
    assert_eq!(value["rdma_devices"][1]["ports"][0]["state"], "active");
}

#[test]
fn bytes_of_all_lengths_pass_both_ways_over_both_kinds() {
    for kind in [PairKind::Reliable, PairKind::Unreliable] {
        let (mut one, mut two) = paths(kind);
        for bytes in [1, 33, 16_416, 32_769, 300_000] {
            exchange(&mut one, &mut two, bytes);
        }
        for _ in 0..20 {
            exchange(&mut one, &mut two, 16 << 10);
        }
    }
}

/// Tends a path until it ends, and says why it did.
fn why_it_ended(path: &mut VerbsPath) -> String {
    let start = Instant::now();
    loop {
        let now = Time(u64::try_from(start.elapsed().as_nanos()).unwrap());
        if let Err(error) = path.tend(now) {
            return error.to_string();
        }
        assert!(start.elapsed() < Duration::from_secs(30), "it did not end");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_wrong_key_is_status_10_and_a_peer_that_is_gone_status_12() {
    let (one, two) = (
        end("rxe0", PairKind::Reliable, 7),
        end("rxe1", PairKind::Reliable, 9),
    );
    let (first, mut second) = (one.said([0; 16]), two.said([0; 16]));
    second.key ^= 0x55;
    let (mut one, mut two) = (one.connect(&second).unwrap(), two.connect(&first).unwrap());
    one.write(b"head", b"body").unwrap();
    let why = why_it_ended(&mut one);
    assert!(why.contains("IBV_WC_REM_ACCESS_ERR, status 10"), "{why}");
    // The receiver's device refused it, and its queue pair is in error as well.
    let why = why_it_ended(&mut two);
    let codes = ["status 5)", "status 8)", "status 10)"];
    assert!(codes.iter().any(|code| why.contains(code)), "{why}");

    let (mut one, two) = paths(PairKind::Reliable);
    drop(two);
    one.write(b"head", b"body").unwrap();
    let why = why_it_ended(&mut one);
    assert!(why.contains("IBV_WC_RETRY_EXC_ERR, status 12"), "{why}");
}

#[test]
fn a_sleeper_is_woken_by_the_bell() {
    for kind in [PairKind::Reliable, PairKind::Unreliable] {
        let (mut one, mut two) = paths(kind);
        assert!(two.doze(false).unwrap(), "nothing is there");
        one.write(b"head", b"body").unwrap();
        let start = Instant::now();
        let mut body = [0; 8];
        let mut come = 0;
        while come < body.len() {
            assert!(start.elapsed() < Duration::from_secs(10));
            if two.doze(false).unwrap() {
                thread::sleep(Duration::from_millis(1));
            } else {
                two.tend(Time(1)).unwrap();
                come += later(two.read(&mut [], &mut body[come..]), 0);
            }
        }
        assert_eq!(&body, b"headbody");
    }
}

/// A leader on `rxe0` and a worker on `rxe1`, of which the key is not what is tested.
fn pair(port: u16, kind: &str, more: &[&str], leads: &[&str]) -> [Child; 2] {
    let port = port.to_string();
    let common = [
        "--n-layer",
        "3",
        "--n-embd",
        "4096",
        "--insecure",
        "--format",
        "json",
    ];
    let start = |role: &[&str], device: &str, last: &[&str]| {
        let mut command = ds4();
        command.env("DS4_RDMA_QUEUE_PAIRS", kind);
        command
            .args(["--tensor-parallel", "--role"])
            .args(role)
            .arg(&port);
        command.args(common).args(["--rdma-device", device]);
        command.args(more).args(last).spawn().unwrap()
    };
    let leader = start(&["leader", "--listen", "127.0.0.1"], "rxe0", leads);
    let worker = start(&["worker", "--coordinator", "127.0.0.1"], "rxe1", &[]);
    [leader, worker]
}

fn all_right(pair: [Child; 2], kind: &str) {
    let sides = pair.map(ended);
    for (code, value, said) in &sides {
        assert_eq!(*code, 0, "{said}");
        assert_eq!(value["transport"]["path"], "rdma", "{said}");
        let why = value["transport"]["reason"].as_str().unwrap();
        assert!(why.contains(&format!("{kind} on rxe")), "{why}");
        assert_eq!(value["complete"], true);
    }
    assert_eq!(sides[0].1["state_hash"], sides[1].1["state_hash"]);
    assert!(sides[0].1["verified_bytes"].as_u64().unwrap() > 100_000);
}

const FORCED: [&str; 2] = ["--transport", "rdma"];

#[test]
fn a_leader_and_a_worker_run_over_both_kinds() {
    all_right(pair(7001, "rc", &FORCED, &["--tokens", "4"]), "RC");
    all_right(pair(7002, "uc", &FORCED, &["--tokens", "4"]), "UC");
}

/// Rules for the cable's packets, for as long as it lives.
struct Netem;

impl Netem {
    fn new(rule: &[&str]) -> Self {
        for device in ["v0", "v1"] {
            let mut tc = Command::new("tc");
            tc.args(["qdisc", "add", "dev", device, "root", "netem"])
                .args(rule);
            assert!(tc.status().unwrap().success());
        }
        Self
    }

    /// Packets that were lost.
    fn dropped(&self) -> u64 {
        let mut dropped = 0;
        for device in ["v0", "v1"] {
            let mut tc = Command::new("tc");
            let said = tc
                .args(["-s", "qdisc", "show", "dev", device])
                .output()
                .unwrap();
            let said = String::from_utf8(said.stdout).unwrap();
            let (_, rest) = said.split_once("(dropped ").unwrap();
            dropped += rest.split(',').next().unwrap().parse::<u64>().unwrap();
        }
        dropped
    }
}

impl Drop for Netem {
    fn drop(&mut self) {
        for device in ["v0", "v1"] {
            let mut tc = Command::new("tc");
            let _ = tc.args(["qdisc", "del", "dev", device, "root"]).status();
        }
    }
}

#[test]
fn one_packet_in_a_hundred_may_be_lost_with_either_kind() {
    for (port, kind) in [(7003, "rc"), (7004, "uc")] {
        let rule = Netem::new(&["loss", "1%"]);
        all_right(
            pair(port, kind, &FORCED, &["--tokens", "4"]),
            &kind.to_uppercase(),
        );
        assert!(rule.dropped() > 0, "nothing was lost");
    }
}

const LONG: [&str; 2] = ["--tokens", "1000000"];

#[test]
fn a_peer_that_is_killed_and_a_cable_that_loses_everything_end_the_run_with_the_reason() {
    let [mut leader, mut worker] = pair(7005, "rc", &FORCED, &LONG);
    until_said(&mut leader, "gates travel by rdma");
    worker.kill().unwrap();
    worker.wait().unwrap();
    let start = Instant::now();
    let (code, value, _) = ended(leader);
    assert_eq!(code, 1);
    let why = value["error"]["message"].as_str().unwrap();
    assert!(why.starts_with("rank 1, layer"), "{why}");
    assert!(start.elapsed() < Duration::from_secs(10), "{why}");

    let [mut leader, worker] = pair(7006, "rc", &FORCED, &LONG);
    until_said(&mut leader, "gates travel by rdma");
    let _rule = Netem::new(&["loss", "100%"]);
    let mut reasons = Vec::new();
    for child in [leader, worker] {
        let (code, value, said) = ended(child);
        assert!(code == 1 || code == 124, "{said}");
        reasons.push(value["error"]["message"].as_str().unwrap().to_owned());
    }
    // Retries end before the gate's deadline, or the deadline does.
    let named = |why: &String| why.contains("status 12") || why.contains("in vain");
    assert!(reasons.iter().all(named), "{reasons:?}");
}

#[test]
fn a_forced_device_that_is_not_there_is_an_error_on_both_sides() {
    let more = [&FORCED[..], &["--rdma-gid-index", "77"]].concat();
    for child in pair(7007, "rc", &more, &[]) {
        let (code, _, said) = ended(child);
        assert_eq!(code, 1, "{said}");
        assert!(said.contains("entry 77 of the table of rxe"), "{said}");
    }
}
