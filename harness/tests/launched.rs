//! Ranks started as launchers start them: the same words for all, who they are in the environment.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod common;

use std::process::{Child, Command};

use ds4_embedded::{Interface, write_nccl_to};
use serde_json::Value;

use common::processes::{SHAPE, ended, free_port};

/// Variables of launchers and drivers, which the tests' own surroundings may have.
const VARIABLES: [&str; 9] = [
    "RANK",
    "WORLD_SIZE",
    "SLURM_PROCID",
    "SLURM_NTASKS",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "PMI_RANK",
    "PMI_SIZE",
    "CUDA_VISIBLE_DEVICES",
];

fn ds4() -> Command {
    let mut command = common::processes::ds4();
    for name in VARIABLES {
        command.env_remove(name);
    }
    command
        .args(["--tensor-parallel", "--role", "auto", "--format", "json"])
        .args(SHAPE)
        .args(["--tokens", "5"]);
    command
}

/// Runs three ranks to their end, whose environment is `variables` with each `%` its rank; the last
/// one starts first.
fn three_ranks(variables: &[String], more: &[&str]) -> Vec<(i32, Value, String)> {
    let start = |rank: usize| {
        let mut command = ds4();
        for variable in variables {
            let (name, value) = variable.split_once('=').unwrap();
            command.env(name, value.replace('%', &rank.to_string()));
        }
        command.args(more).spawn().unwrap()
    };
    let mut children: Vec<Child> = (0..3).rev().map(start).collect();
    children.reverse();
    children.into_iter().map(ended).collect()
}

fn assert_all_well(ends: &[(i32, Value, String)], transport: &str) {
    for (rank, (code, value, said)) in ends.iter().enumerate() {
        assert_eq!(*code, 0, "rank {rank}: {said}");
        assert_eq!(value["rank"], rank);
        assert_eq!(value["ranks"], 3);
        assert_eq!(value["transport"]["path"], transport);
        assert_eq!(value["state_hash"], ends[0].1["state_hash"]);
    }
}

fn torchrun(port: u16) -> Vec<String> {
    let port = format!("MASTER_PORT={}", port - 1);
    let words = [
        "RANK=%",
        "WORLD_SIZE=3",
        "LOCAL_RANK=%",
        "LOCAL_WORLD_SIZE=3",
    ];
    let words = words.into_iter().map(str::to_owned);
    words
        .chain(["MASTER_ADDR=a-name-of-this-host".to_owned(), port])
        .collect()
}

#[test]
fn ranks_of_torchrun_meet_on_one_host_over_tcp_and_shared_memory() {
    for transport in ["tcp", "shm"] {
        let ends = three_ranks(&torchrun(free_port()), &["--transport", transport]);
        assert_all_well(&ends, transport);
        let note = "torchrun started rank 2 of 3; rank 0 is at 127.0.0.1";
        assert!(ends[2].2.contains(note), "{}", ends[2].2);
    }
}

#[test]
fn ranks_of_slurm_and_mpi_meet_where_the_words_of_all_say_with_a_key() {
    let port = free_port().to_string();
    let launchers: [&[&str]; 2] = [
        &[
            "SLURM_PROCID=%",
            "SLURM_NTASKS=3",
            "SLURM_LOCALID=%",
            "SLURM_STEP_NUM_NODES=2",
            "SLURM_STEP_NODELIST=no-such-node[1-2]",
        ],
        &["OMPI_COMM_WORLD_RANK=%", "OMPI_COMM_WORLD_SIZE=3"],
    ];
    for launcher in launchers {
        let mut variables: Vec<String> = launcher.iter().map(|it| (*it).to_owned()).collect();
        variables.push(format!("DS4_TP_KEY={}", "5a".repeat(32)));
        let words = ["--transport", "tcp", "--coordinator", "localhost", &port];
        let ends = three_ranks(&variables, &words);
        assert_all_well(&ends, "tcp");
        assert!(ends.iter().all(|(_, value, _)| value["keyed"] == true));
    }
}

#[test]
fn ranks_of_a_launcher_take_the_device_of_their_local_rank_and_sum_by_a_library() {
    let folder = tempfile::tempdir().unwrap();
    Interface::Cuda.write_to(folder.path()).unwrap();
    write_nccl_to(folder.path()).unwrap();
    let mut variables = torchrun(free_port());
    variables.push(format!("LD_LIBRARY_PATH={}", folder.path().display()));
    variables.push("DS4_FAKE_GPUS=1G,1G,1G".to_owned());
    let ends = three_ranks(&variables, &["--backend", "cuda", "--transport", "nccl"]);
    assert_all_well(&ends, "nccl");
    for (rank, (_, _, said)) in ends.iter().enumerate() {
        let note = format!("rank {rank} of 3, device {rank};");
        assert!(said.contains(&note), "{said}");
    }
}

#[test]
fn what_a_launcher_half_says_is_an_error_of_usage_that_names_it() {
    for (set, named) in [("RANK", "WORLD_SIZE"), ("PMI_SIZE", "PMI_RANK")] {
        let output = ds4().env(set, "2").output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(set) && said.contains(named), "{said}");
    }
    let output = ds4()
        .envs([("PMI_RANK", "1"), ("PMI_SIZE", "3")])
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("--coordinator HOST PORT"), "{said}");
}
