//! Programs on simulated GPUs through the driver libraries: others' and our own backends.

#![expect(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::path::PathBuf;
use std::process::{Command, Output};

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
    let absent = run(&["fake-cuda", "--gpus", "1G", "--", "no-such-program"]);
    assert_eq!(absent.status.code(), Some(127));
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
