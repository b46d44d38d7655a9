//! Programs on simulated GPUs through the driver libraries: others' and our own backends.

#![expect(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// Found at run time, so that the tests also run from an archive on another machine.
fn ds4() -> PathBuf {
    let path = std::env::var("NEXTEST_BIN_EXE_ds4");
    path.unwrap_or_else(|_| env!("CARGO_BIN_EXE_ds4").to_owned())
        .into()
}

fn run(words: &[&str]) -> Output {
    let mut command = Command::new(ds4());
    for name in ["DS4_BACKEND", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"] {
        command.env_remove(name);
    }
    command.args(words).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn the_exit_code_is_the_programs_and_the_first_line_says_simulated() {
    let code = |script: &str| {
        let output = run(&["fake-cuda", "--gpus", "1G", "--", "sh", "-c", script]);
        let first = text(&output.stderr)
            .lines()
            .next()
            .unwrap_or_default()
            .to_owned();
        assert!(first.contains("SIMULATED: 1 (1 GiB)"), "{first}");
        output.status.code()
    };
    assert_eq!(code("exit 0"), Some(0));
    assert_eq!(code("exit 7"), Some(7));
    assert_eq!(code("kill -9 $$"), Some(137));
}

#[test]
fn the_program_finds_the_library_first_and_its_folder_is_gone_afterwards() {
    let script = "echo ${LD_LIBRARY_PATH%%:*} && ls ${LD_LIBRARY_PATH%%:*} && env | grep DS4_FAKE";
    let words = [
        "fake-hip",
        "--topology",
        "8xh200",
        "--ledger",
        "--",
        "sh",
        "-c",
        script,
    ];
    let output = run(&words);
    let said = text(&output.stdout);
    let folder = said.lines().next().unwrap();
    assert!(
        said.contains("\nlibamdhip64.so\nlibamdhip64.so.5\n"),
        "{said}"
    );
    assert!(said.contains("DS4_FAKE_TOPOLOGY=8xh200"), "{said}");
    assert!(said.contains("DS4_FAKE_LEDGER=1"), "{said}");
    assert!(!PathBuf::from(folder).exists());
}

#[test]
fn what_is_wrong_is_said_before_the_program_runs() {
    let refusal = |words: &[&str]| {
        let words = [&["fake-cuda"], words, &["--", "echo", "it-ran"]].concat();
        let output = run(&words);
        assert!(!text(&output.stdout).contains("it-ran"), "{words:?}");
        (output.status.code().unwrap(), text(&output.stderr))
    };
    let (code, said) = refusal(&["--gpus", "lots"]);
    assert_eq!(code, 2);
    assert!(said.contains("--gpus: 'lots'"), "{said}");
    assert_eq!(refusal(&["--topology", "no-such"]).0, 2);
    assert_eq!(refusal(&["--gpus", "1G", "--topology", "2xh200"]).0, 2);
    assert_eq!(refusal(&["--faults", "no-such.json"]).0, 2);
    assert_eq!(refusal(&["--gpu-vram", "24"]).0, 2);
    assert_eq!(refusal(&["--format", "json"]).0, 2);
    assert_eq!(run(&["fake-cuda", "--gpus", "1G"]).status.code(), Some(2));
    assert_eq!(refusal(&["--log", "/no/such/folder/log"]).0, 2);
    for version in ["0", "7", "60241134"] {
        let (code, said) = refusal(&["--driver-version", version]);
        assert_eq!((code, said.contains("12040")), (2, true), "{said}");
    }
    for gpus in ["0", "auto", "1G,", "1G,0M"] {
        let (code, said) = refusal(&["--gpus", gpus]);
        assert_eq!((code, said.contains("24G,24G")), (2, true), "{said}");
    }
    let hip = run(&["fake-hip", "--driver-version", "12040", "--", "true"]);
    assert!(text(&hip.stderr).contains("60241134"));
    let absent = run(&["fake-cuda", "--gpus", "1G", "--", "no-such-program"]);
    assert_eq!(absent.status.code(), Some(127));
}

#[test]
fn a_program_that_outlives_the_command_is_ended_with_it() {
    let mut command = Command::new(ds4());
    command.args([
        "fake-cuda",
        "--gpus",
        "1G",
        "--",
        "sh",
        "-c",
        "trap '' TERM; echo on; exec sleep 60",
    ]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let sent = Command::new("kill")
        .arg(child.id().to_string())
        .status()
        .unwrap();
    assert!(sent.success());
    assert_eq!(child.wait().unwrap().code(), Some(137));
}

#[test]
fn signals_reach_the_program_and_its_code_comes_back() {
    for (signal, script, code) in [
        (
            "TERM",
            "trap 'exit 9' TERM; echo on; while :; do sleep 0.01; done",
            9,
        ),
        (
            "HUP",
            "trap 'exit 8' HUP; echo on; while :; do sleep 0.01; done",
            8,
        ),
        (
            "INT",
            "trap 'exit 7' INT; echo on; while :; do sleep 0.01; done",
            7,
        ),
        ("TERM", "echo on; exec sleep 60", 128 + 15),
        ("HUP", "echo on; exec sleep 60", 128 + 1),
    ] {
        let mut command = Command::new(ds4());
        command.args(["fake-cuda", "--gpus", "1G", "--", "sh", "-c", script]);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        let mut printed = BufReader::new(child.stdout.take().unwrap());
        printed.read_line(&mut line).unwrap();
        let sent = Command::new("kill")
            .args([&format!("-{signal}"), &child.id().to_string()])
            .status()
            .unwrap();
        assert!(sent.success());
        assert_eq!(
            child.wait().unwrap().code(),
            Some(code),
            "{signal} {script}"
        );
    }
}

#[test]
fn validate_takes_little_of_devices_behind_a_simulated_driver_and_says_so() {
    for (fake, backend) in [("fake-cuda", "cuda"), ("fake-hip", "hip")] {
        let ds4 = ds4().display().to_string();
        let output = Command::new("sh")
            .args(["-c", "ulimit -v 8000000; exec \"$@\"", "sh"])
            .args([&ds4, fake, "--gpus", "24G,24G", "--"])
            .args([&ds4, "validate", "--backend", backend, "--level", "1"])
            .args([
                "--format",
                "json",
                "--only",
                "memory-random,allocation-ladder,identity",
            ])
            .output()
            .unwrap();
        let said = text(&output.stdout) + &text(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{said}");
        let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let results = value["results"].as_array().unwrap();
        assert!(results.len() >= 6);
        for result in results {
            assert_eq!(result["simulated"], true, "{result}");
        }
    }
}

/// Our own command through a library.
fn through(fake: &str, backend: &str, words: &[&str]) -> Output {
    let ds4 = ds4().display().to_string();
    let head = [fake, "--gpus", "2G,1G", "--ledger", "--", &ds4];
    run(&[&head, words, &["--backend", backend]].concat())
}

#[test]
fn our_backends_list_the_simulated_devices_and_name_the_library() {
    for (fake, backend, library) in [
        ("fake-cuda", "cuda", "libcuda.so"),
        ("fake-hip", "hip", "libamdhip64.so"),
    ] {
        let output = through(fake, backend, &["devices"]);
        let said = text(&output.stdout) + &text(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{said}");
        assert!(
            said.contains("Simulated GPU") && said.contains(library),
            "{said}"
        );
        assert!(said.contains("the ledger has 0 findings"), "{said}");
    }
}

#[test]
fn our_backends_pass_the_conformance_suite_on_simulated_drivers() {
    for (fake, backend) in [("fake-cuda", "cuda"), ("fake-hip", "hip")] {
        let output = through(fake, backend, &["check", "--cases", "32"]);
        let said = text(&output.stdout) + &text(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{said}");
    }
}

/// A folder with some other library under a driver's names.
fn impostor(names: &[&str]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let other = [
        "/lib/x86_64-linux-gnu",
        "/usr/lib64",
        "/lib/aarch64-linux-gnu",
        "/usr/lib",
    ];
    let other = other.map(|place| PathBuf::from(place).join("libm.so.6"));
    let other = other.into_iter().find(|file| file.is_file()).unwrap();
    for name in names {
        std::fs::copy(&other, folder.path().join(name)).unwrap();
    }
    folder
}

#[test]
fn another_library_under_a_drivers_name_is_refused_by_its_path() {
    for (backend, names) in [
        ("cuda", ["libcuda.so", "libcuda.so.1"]),
        ("hip", ["libamdhip64.so", "libamdhip64.so.7"]),
    ] {
        let folder = impostor(&names);
        let output = Command::new(ds4())
            .args(["devices", "--backend", backend])
            .env("LD_LIBRARY_PATH", folder.path())
            .output()
            .unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(4), "{said}");
        let path = folder.path().display().to_string();
        assert!(said.contains(&path) && said.contains("it lacks"), "{said}");
    }
}

#[test]
fn a_driver_without_devices_says_which_variables_hide_them() {
    let folder = tempfile::tempdir().unwrap();
    ds4_embedded::Interface::Cuda
        .write_to(folder.path())
        .unwrap();
    let output = Command::new(ds4())
        .args(["devices", "--backend", "cuda"])
        .env("LD_LIBRARY_PATH", folder.path())
        .env("DS4_FAKE_GPUS", "1G")
        .env("CUDA_VISIBLE_DEVICES", "")
        .output()
        .unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(said.contains("CUDA_VISIBLE_DEVICES"), "{said}");
}

#[test]
fn an_excluded_device_gets_no_context() {
    let folder = tempfile::tempdir().unwrap();
    let contexts = |words: &[&str]| {
        let log = folder.path().join("calls").display().to_string();
        let ds4 = ds4().display().to_string();
        let head = ["fake-cuda", "--gpus", "1G,1G,1G", "--log", &log, "--"];
        let tail = ["prefill", "--tensor-size", "32M", "--backend", "cuda"];
        let output = run(&[&head, [ds4.as_str()].as_slice(), &tail, words].concat());
        let said = text(&output.stdout) + &text(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{said}");
        let calls = std::fs::read_to_string(&log).unwrap();
        std::fs::remove_file(&log).unwrap();
        calls.matches("cuDevicePrimaryCtxRetain").count()
    };
    assert_eq!(contexts(&[]), 3);
    assert_eq!(contexts(&["--gpu-exclude", "1"]), 2);
}
