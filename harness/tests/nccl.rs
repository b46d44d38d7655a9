//! Ranks that sum by a collective library: the stand-in over simulated CUDA devices, and its faults.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a failed step is a failed test")]
#![expect(
    clippy::disallowed_methods,
    reason = "faults strike running processes, and how soon they end is what is shown"
)]

mod common;

use std::path::Path;
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use ds4_embedded::{Interface, nccl_bytes, write_nccl_to};
use tempfile::TempDir;

use common::processes::{SHAPE, ds4, ended, free_port, signal, until_said};

/// A folder with the simulated driver and the stand-in.
fn libraries() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    Interface::Cuda.write_to(folder.path()).unwrap();
    write_nccl_to(folder.path()).unwrap();
    folder
}

fn on_simulated_gpu(folder: &Path) -> Command {
    let mut command = ds4();
    command
        .env_remove("CUDA_VISIBLE_DEVICES")
        .env("LD_LIBRARY_PATH", folder)
        .env("DS4_FAKE_GPUS", "1G")
        .env("DS4_FAKE_LEDGER", "1");
    command
}

/// Starts as many ranks; the `faulty` one with a fault.
fn group(folder: &Path, ranks: usize, more: &[&str], (faulty, fault): (usize, &str)) -> Vec<Child> {
    let port = free_port().to_string();
    let start = |rank: usize| {
        let mut command = on_simulated_gpu(folder);
        if rank == faulty {
            command.env("DS4_FAKE_NCCL", fault);
        }
        command
            .env("PMI_RANK", rank.to_string())
            .env("PMI_SIZE", ranks.to_string())
            .args(["--tensor-parallel", "--role", "auto", "--format", "json"])
            .args(["--coordinator", "127.0.0.1", &port])
            .args(SHAPE)
            .args(more)
            .spawn()
            .unwrap()
    };
    (0..ranks).map(start).collect()
}

const NCCL: [&str; 4] = ["--backend", "cuda", "--transport", "nccl"];
const FOR_EVER: [&str; 2] = ["--tokens", "1000000000"];
const CLEAN: &str = "the ledger has 0 findings";

#[test]
fn two_to_four_ranks_get_the_sums_that_they_get_over_tcp_and_leak_nothing() {
    let folder = libraries();
    for ranks in [2, 3, 4] {
        let run = |more: &[&str]| -> Vec<_> {
            let more = [more, &["--tokens", "5"]].concat();
            let group = group(folder.path(), ranks, &more, (ranks, ""));
            group.into_iter().map(ended).collect()
        };
        let over_tcp = run(&["--backend", "sim", "--transport", "tcp"]);
        let state = &over_tcp[0].1["state_hash"];
        assert!(state.is_string());
        for (code, value, said) in run(&NCCL) {
            assert_eq!(code, 0, "{said}");
            assert_eq!(&value["state_hash"], state);
            assert_eq!(value["transport"]["path"], "nccl");
            // Six gates a token and two of a prompt, drafts and one of them again.
            assert_eq!(value["gates"], 6 * 8);
            let library = value["transport"]["library"].as_str().unwrap();
            let file = folder.path().join("libnccl.so.2").display().to_string();
            assert!(
                library.contains(&file) && library.contains("SIMULATED"),
                "{library}"
            );
            assert!(said.contains(CLEAN), "{said}");
        }
    }
}

/// A fault of one rank of three: its name, who has it, the exit codes of the ranks, and what each of
/// them says.
type Case = (&'static str, usize, [i32; 3], &'static str);

const CASES: [Case; 8] = [
    ("join-hang", 1, [1, 1, 1], "did not come about in time"),
    (
        "join-error",
        2,
        [1, 1, 1],
        "ncclCommInitRankConfig: unhandled system error",
    ),
    ("sum-flip:1", 1, [1, 1, 1], "its sum differs from ours"),
    ("sum-hang:5", 2, [124, 1, 1], "sequence 4: "),
    ("sum-block:5", 1, [124, 1, 1], "sequence 4: "),
    ("sum-error:5", 0, [1, 1, 1], "sequence 4: "),
    (
        "sum-error:5",
        2,
        [1, 1, 1],
        "ncclAllReduce: unhandled cuda error",
    ),
    ("sum-flip:9", 1, [1, 1, 1], "gate ffn, number 7: the sum is"),
];

/// The limits under which a fault shows soon; others end by themselves, however slow the machine is.
fn limits(fault: &str) -> &'static [&'static str] {
    match fault {
        "join-hang" => &["--connect-timeout", "4"],
        "sum-hang:5" | "sum-block:5" => &["--gate-timeout", "1"],
        _ => &[],
    }
}

#[test]
fn every_fault_of_the_library_ends_all_ranks_in_time_with_its_reason_and_without_a_leak() {
    let folder = libraries();
    thread::scope(|scope| {
        for (fault, faulty, codes, reason) in CASES {
            let folder = folder.path();
            scope.spawn(move || {
                let since = Instant::now();
                let more = [&NCCL[..], &FOR_EVER, limits(fault)].concat();
                let children = group(folder, 3, &more, (faulty, fault));
                let ends: Vec<_> = children.into_iter().map(ended).collect();
                let took = since.elapsed();
                assert!(took < Duration::from_secs(30), "{fault}: {took:?}");
                for (rank, ((code, _, said), want)) in ends.into_iter().zip(codes).enumerate() {
                    assert_eq!(code, want, "{fault} of rank {faulty}: {said}");
                    assert!(said.contains(reason), "{fault} of rank {faulty}: {said}");
                    // A call that never returns costs its thread, and what that may use.
                    let left = said.contains("ncclAllReduce has not returned");
                    assert_eq!(left, fault == "sum-block:5" && rank == faulty, "{said}");
                    assert_eq!(!left, said.contains(CLEAN), "{fault} of {faulty}: {said}");
                }
            });
        }
    });
}

#[test]
fn an_interrupt_and_a_death_end_ranks_whose_sum_hangs() {
    let folder = libraries();
    for (name, struck) in [("-INT", 0), ("-KILL", 1)] {
        let more = [&NCCL[..], &FOR_EVER].concat();
        let mut children = group(folder.path(), 3, &more, (2, "sum-hang:20"));
        until_said(&mut children[0], "gates travel by nccl");
        signal(&children[struck], name);
        let since = Instant::now();
        let ends: Vec<_> = children.into_iter().map(ended).collect();
        // The gate alone could take sixty seconds.
        assert!(since.elapsed() < Duration::from_secs(20));
        for (rank, (code, value, said)) in ends.into_iter().enumerate() {
            let message = &value["error"]["message"];
            if rank == struck {
                assert_eq!(code, if name == "-INT" { 130 } else { -1 }, "{said}");
            } else {
                let why = message.as_str().unwrap();
                assert_eq!(code, 1, "{why}");
                let named = format!("rank {struck}");
                assert!(why.contains(&named) && why.contains("sequence"), "{why}");
            }
        }
    }
}

#[test]
fn a_library_that_is_absent_too_old_or_lacks_a_function_is_no_device_with_the_remedy() {
    let folder = libraries();
    let lead = |folder: &Path, more: &[&str], fault: &str| {
        let output = on_simulated_gpu(folder)
            .env("DS4_FAKE_NCCL", fault)
            .args(["--tensor-parallel", "--role", "leader"])
            .args([
                "--listen",
                "127.0.0.1",
                "1099",
                "--n-layer",
                "3",
                "--n-embd",
                "64",
            ])
            .args(more)
            .output()
            .unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        (output.status.code().unwrap(), said)
    };
    let (code, said) = lead(folder.path(), &NCCL, "version:21304");
    assert_eq!(code, 4, "{said}");
    assert!(
        said.contains("is version 2.13.4") && said.contains("update it"),
        "{said}"
    );

    let name = b"ncclCommFinalize\0";
    let mut bytes = nccl_bytes().to_vec();
    let at = bytes.windows(name.len()).position(|part| part == name);
    bytes[at.unwrap()] = b'X';
    let path = folder.path().join("libnccl.so.2");
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, bytes).unwrap();
    let (code, said) = lead(folder.path(), &NCCL, "");
    assert_eq!(code, 4, "{said}");
    assert!(
        said.contains("libnccl.so.2 lacks ncclCommFinalize"),
        "{said}"
    );

    let without = tempfile::tempdir().unwrap();
    Interface::Cuda.write_to(without.path()).unwrap();
    std::fs::write(without.path().join("libnccl.so.2"), "no library").unwrap();
    std::fs::write(without.path().join("libnccl.so"), "no library").unwrap();
    let (code, said) = lead(without.path(), &NCCL, "");
    assert_eq!(code, 4, "{said}");
    assert!(
        said.contains("libnccl.so.2 or libnccl.so") && said.contains("install NCCL"),
        "{said}"
    );

    let (code, said) = lead(
        folder.path(),
        &["--transport", "nccl", "--backend", "sim"],
        "",
    );
    assert_eq!(code, 2, "{said}");
    assert!(said.contains("--backend cuda or hip"), "{said}");
}
