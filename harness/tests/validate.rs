//! `ds4 validate` as scripts meet it: formats, exit codes, deadlines.

#![expect(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn ds4() -> Command {
    let path = std::env::var("NEXTEST_BIN_EXE_ds4");
    let mut command = Command::new(path.unwrap_or_else(|_| env!("CARGO_BIN_EXE_ds4").to_owned()));
    command.env_remove("DS4_BACKEND").arg("validate");
    command
}

fn run(arguments: &[&str]) -> Output {
    ds4().args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn json(arguments: &[&str]) -> (i32, Value) {
    let output = run(&[arguments, &["--format", "json"]].concat());
    let value = serde_json::from_slice(&output.stdout).unwrap();
    (output.status.code().unwrap(), value)
}

fn file(name: &str, content: &str) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let path: PathBuf = folder.path().join(name);
    std::fs::write(&path, content).unwrap();
    let path = path.display().to_string();
    (folder, path)
}

#[test]
fn simulated_machines_pass_level_one_and_every_line_says_simulated() {
    let output = run(&["--level", "1", "--max-bytes", "8M"]);
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{said}");
    let lines = said.lines().filter(|line| line.contains("DV-"));
    assert!(lines.clone().count() > 20);
    assert!(
        lines.clone().all(|line| line.contains("simulated")),
        "{said}"
    );
    let skips = said.lines().filter(|line| line.starts_with("skip"));
    assert!(
        skips.clone().all(|line| line.contains("simulated")),
        "{said}"
    );
}

#[test]
fn json_has_every_field_of_every_result() {
    let (code, value) = json(&[
        "--topology",
        "4x24g-bare",
        "--only",
        "identity,peer-access,context",
        "--level",
        "1",
    ]);
    assert_eq!(code, 0);
    assert_eq!(
        (&value["schema"], &value["command"]),
        (&1.into(), &"validate".into())
    );
    assert_eq!(value["level"], 1);
    assert_eq!(value["incomplete"], false);
    let fields = [
        "check",
        "code",
        "device",
        "level",
        "verdict",
        "simulated",
        "did",
        "measured",
        "expected",
        "source_of_expectation",
        "detail",
        "hint",
    ];
    for result in value["results"].as_array().unwrap() {
        for field in fields {
            assert!(result.get(field).is_some(), "{field} in {result}");
        }
        assert_eq!(result["simulated"], true);
    }
}

#[test]
fn a_fault_of_memory_fails_with_position_expected_and_found() {
    let plan = r#"{"seed":3,"faults":[{"at":"launch","device":1,"if":{"min_bytes":65536},"kind":"bit_flip"}]}"#;
    let (_folder, plan) = file("plan.json", plan);
    let output = run(&[
        "--level",
        "1",
        "--max-bytes",
        "8M",
        "--only",
        "memory-random",
        "--faults",
        &plan,
    ]);
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let line = said.lines().find(|line| line.starts_with("FAIL")).unwrap();
    for part in ["DV-1005", "gpu1", "position", "expected 0x", "found 0x"] {
        assert!(line.contains(part), "{line}");
    }
}

#[test]
fn a_broken_path_fails_and_junit_says_so() {
    let output = run(&["--topology", "8x24g-mixed", "--format", "junit"]);
    assert_eq!(output.status.code(), Some(1));
    let xml = text(&output.stdout);
    assert!(
        xml.contains("<failure") && xml.contains("gpu6-&gt;gpu7"),
        "{xml}"
    );
}

const HALF_USED: &str = "machine = \"half\"\n[[device]]\nname = \"A\"\ncapacity = \"1GiB\"\n\
                         page = \"2MiB\"\nother_processes = \"512MiB\"\n";

#[test]
fn a_device_in_use_is_looked_at_and_not_loaded_unless_allowed() {
    let (_folder, machine) = file("half.toml", HALF_USED);
    let (code, value) = json(&["--topology", &machine]);
    assert_eq!(code, 0);
    let results = value["results"].as_array().unwrap();
    let verdict =
        |check: &str| &results.iter().find(|one| one["check"] == check).unwrap()["verdict"];
    assert_eq!(verdict("other-processes"), "warn");
    let test = ["--topology", &machine, "--level", "1", "--only", "context"];
    let (code, value) = json(&test);
    assert_eq!((code, &value["ended"]), (75, &"busy".into()));
    let (code, value) = json(&[&test[..], &["--allow-busy"]].concat());
    assert_eq!((code, &value["ended"]), (0, &Value::Null));
}

#[test]
fn expectations_of_a_file_decide() {
    let expect = |least: &str| {
        format!(
            "[[expect]]\nfigure = \"peer-copy\"\nat_least = {least}\nsource = \"the contract\"\n"
        )
    };
    let test = ["--level", "1", "--max-bytes", "8M", "--only", "peer-copy"];
    for (least, expected) in [("1", 0), ("9_000_000_000_000", 1)] {
        let (_folder, path) = file("e.toml", &expect(least));
        let (code, value) = json(&[&test[..], &["--expect", &path]].concat());
        assert_eq!(code, expected);
        let source = value["results"][0]["source_of_expectation"]
            .as_str()
            .unwrap();
        assert!(source.ends_with("e.toml: the contract"), "{source}");
    }
}

#[test]
fn a_level_one_that_tests_no_memory_is_no_pass() {
    let output = run(&["--level", "1", "--max-bytes", "1K"]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(said.contains("no memory was tested"), "{said}");
}

#[test]
fn the_deadline_ends_the_process_with_what_was_found() {
    let (code, value) = json(&[
        "--level",
        "2",
        "--for",
        "600",
        "--deadline",
        "2",
        "--max-bytes",
        "4M",
        "--only",
        "identity,soak-memory",
    ]);
    assert_eq!(code, 124);
    assert_eq!(
        (&value["incomplete"], &value["ended"]),
        (&true.into(), &"deadline".into())
    );
    assert_eq!(value["results"][0]["check"], "identity");
    assert_eq!(value["exit"], 124);
}

#[test]
fn an_interrupted_run_prints_what_it_has() {
    let only = "identity,soak-memory";
    let mut child = ds4()
        .args([
            "--level",
            "2",
            "--for",
            "600",
            "--max-bytes",
            "4M",
            "--only",
            only,
            "--format",
            "json",
        ])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // Until the process has taken over the signal: it does so before any thread is started.
    let tasks = format!("/proc/{}/task", child.id());
    while std::fs::read_dir(&tasks).unwrap().count() < 4 {
        std::thread::yield_now();
    }
    let pid = child.id().to_string();
    assert!(
        Command::new("kill")
            .args(["-INT", &pid])
            .status()
            .unwrap()
            .success()
    );
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let printed: String = lines.map(|line| line.unwrap() + "\n").collect();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let value: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(value["ended"], "interrupted");
    assert!(!value["results"].as_array().unwrap().is_empty());
}

#[test]
fn what_is_not_there_or_not_meant_is_refused_with_its_code() {
    let (_folder, nonsense) = file("e.toml", "expect = 3");
    let cases: [(&[&str], i32); 10] = [
        (&["--level", "3"], 2),
        // Of a higher level than the one asked for.
        (&["--only", "peer-copy"], 2),
        (&["--for", "5"], 2),
        (&["--level", "1", "--for", "5"], 2),
        (&["--gpu-devices", "9"], 2),
        (&["--only", "everything"], 2),
        (&["--expect", "/nowhere/e.toml"], 2),
        (&["--expect", &nonsense], 2),
        (&["--gpu-placement", "0"], 2),
        // Only what a simulated machine cannot say.
        (&["--only", "ecc"], 4),
    ];
    for (arguments, code) in cases {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}");
    }
}
