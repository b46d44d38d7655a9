//! The `ds4` command under signals, full disks, files without end and names that mean harm.
#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

fn binary() -> String {
    let path = std::env::var("NEXTEST_BIN_EXE_ds4");
    path.unwrap_or_else(|_| env!("CARGO_BIN_EXE_ds4").to_owned())
}

fn ds4(arguments: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command.args(arguments).env_remove("DS4_BACKEND");
    command
}

fn run(arguments: &[&str]) -> (i32, String, String) {
    said(&ds4(arguments).output().unwrap())
}

fn said(output: &Output) -> (i32, String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let code = output.status.code().unwrap();
    (code, text(&output.stdout), text(&output.stderr))
}

/// Runs a script in which `$DS4` is the command.
fn shell(script: &str) -> (i32, String, String) {
    let mut command = Command::new("sh");
    command.args(["-c", script]).env("DS4", binary());
    said(&command.env_remove("DS4_BACKEND").output().unwrap())
}

fn trace(name: &str) -> String {
    let manifest = std::env::var("CARGO_MANIFEST_DIR");
    let root = manifest.unwrap_or_else(|_| env!("CARGO_MANIFEST_DIR").to_owned());
    let path = Path::new(&root).join("../golden/traces").join(name);
    path.display().to_string()
}

/// A field of the process's status, once `ready` says so.
fn status(child: &Child, field: &str, ready: impl Fn(u64) -> bool) -> u64 {
    let path = format!("/proc/{}/status", child.id());
    let mut attempts = 0;
    loop {
        let text = fs::read_to_string(&path).unwrap();
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(field))
            .unwrap();
        let mask = u64::from_str_radix(line.trim_start_matches(':').trim(), 16).unwrap();
        attempts += 1;
        // Before that it is a shell, or the test itself, with signals of its own.
        let is_ds4 = text.starts_with("Name:\tds4\n");
        if (is_ds4 && ready(mask)) || attempts > 4_000 {
            return mask;
        }
        #[expect(
            clippy::disallowed_methods,
            reason = "another process does not say when it is ready"
        )]
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn signal(child: &Child, name: &str) {
    let id = child.id().to_string();
    assert!(
        Command::new("kill")
            .args([name, &id])
            .status()
            .unwrap()
            .success()
    );
}

const HANGUP: u64 = 1;
const INTERRUPT: u64 = 1 << 1;

#[cfg(target_os = "linux")]
#[test]
fn an_interrupted_bench_leaves_its_rows_marked_incomplete() {
    let mut command = ds4(&["bench", "alloc", "--runs", "1000", "--format", "json"]);
    let child = command.stdout(Stdio::piped()).spawn().unwrap();
    status(&child, "SigCgt", |caught| caught & INTERRUPT != 0);
    signal(&child, "-INT");
    let (code, out, _) = said(&child.wait_with_output().unwrap());
    assert_eq!(code, 130);
    let value: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(value["incomplete"], true);
}

#[cfg(target_os = "linux")]
#[test]
fn reading_a_trace_hears_an_interrupt() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    assert!(
        Command::new("mkfifo")
            .arg(&pipe)
            .status()
            .unwrap()
            .success()
    );
    let child = ds4(&["replay", pipe.to_str().unwrap()])
        .stderr(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut writer = fs::OpenOptions::new().write(true).open(&pipe).unwrap();
    status(&child, "SigCgt", |caught| caught & INTERRUPT != 0);
    // The reader is there until the signal; after it the pipe may close at any time.
    let event = b"{\"t\":0,\"op\":\"alloc\",\"id\":1,\"bytes\":64,\"device\":0}\n";
    std::io::Write::write_all(&mut writer, event).unwrap();
    signal(&child, "-INT");
    // A trace without end: what is written after the signal is not read for long.
    let line = b"\n".repeat(1 << 12);
    while std::io::Write::write_all(&mut writer, &line).is_ok() {}
    let (code, _, error) = said(&child.wait_with_output().unwrap());
    assert_eq!(code, 130, "{error}");
    assert!(error.contains("interrupted while it was read"), "{error}");
}

#[cfg(target_os = "linux")]
#[test]
fn signals_that_the_parent_ignores_stay_ignored() {
    let script = "trap '' HUP; exec \"$0\" bench alloc --runs 1000";
    let mut command = Command::new("sh");
    command
        .args(["-c", script, &binary()])
        .stdout(Stdio::null());
    let child = command.spawn().unwrap();
    let caught = status(&child, "SigCgt", |caught| caught & INTERRUPT != 0);
    let ignored = status(&child, "SigIgn", |_| true);
    signal(&child, "-INT");
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(130));
    assert_eq!((ignored & HANGUP, caught & HANGUP), (HANGUP, 0));
}

#[test]
fn a_recording_for_which_there_is_no_room_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("new/out");
    let script = format!(
        "trap '' XFSZ; ulimit -f 8; exec \"$DS4\" replay '{}' --record '{}'",
        trace("resnet_var.jsonl.gz"),
        out.display()
    );
    let (code, _, error) = shell(&script);
    assert_eq!(code, 1, "{error}");
    assert!(error.contains("--record"), "{error}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_machine_is_saved_whole_under_a_clean_name_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a\u{1b}b\u{202e}c.toml");
    let (code, ..) = run(&["devices", "--save", path.to_str().unwrap()]);
    assert_eq!(code, 0);
    let (code, out, error) = run(&["devices", "--topology", path.to_str().unwrap()]);
    assert_eq!(code, 0, "{error}");
    assert!(out.starts_with("simulated machine a_b_c "), "{out}");
    let script = format!(
        "trap '' XFSZ; ulimit -f 0; exec \"$DS4\" devices --save '{}/b.toml'",
        folder.path().display()
    );
    assert_eq!(shell(&script).0, 2);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn files_without_end_are_refused_with_their_name_and_the_limit() {
    let real = trace("resnet_var.jsonl.gz");
    for arguments in [
        &["devices", "--topology", "/dev/zero"][..],
        &["replay", &real, "--faults", "/dev/zero"],
        &["check", "--replay", "/dev/zero"],
    ] {
        let (code, out, error) = run(arguments);
        assert_eq!((code, out.as_str()), (2, ""), "{arguments:?}");
        assert!(error.starts_with("ds4: /dev/zero: the "), "{error}");
        assert!(error.contains("longer than 16 MiB"), "{error}");
    }
}

#[test]
fn nothing_that_a_terminal_would_act_on_is_printed() {
    let evil = "e\u{1b}[31m\u{202e}\u{9b}2J\u{7f}";
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, content: &str| -> String {
        let path: PathBuf = folder.path().join(name);
        fs::write(&path, content).unwrap();
        path.display().to_string()
    };
    let event = "{\"t\":0,\"op\":\"alloc\",\"id\":1,\"bytes\":64,\"device\":0}\n";
    let good = file(&format!("{evil}.jsonl"), event);
    let bad = file(&format!("{evil}\n.jsonl"), "{\"t\":0,");
    let quoted = "e\\u001b[31m\\u202e";
    let plan = file("plan.json", &format!("{{\"{quoted}\":1}}"));
    let script = file("script.json", &format!("{{\"{quoted}\":1}}"));
    let machine = file(
        "m.toml",
        &format!(
            "machine = 'm'\n[[device]]\nname = 'd\u{202e}'\ncapacity = '1GiB'\n\"{}\" = 1\n",
            "\\u001b"
        ),
    );
    let named = file(
        "n.toml",
        "machine = 'm\u{202e}'\n[[device]]\nname = 'd\u{200b}\u{2066}'\ncapacity = '1GiB'\n",
    );
    for arguments in [
        &["replay", &good][..],
        &["fit", &good],
        &["replay", &bad],
        &["replay", &good, "--faults", &plan],
        &["check", "--replay", &script],
        &["devices", "--topology", &machine],
        &["devices", "--topology", &named],
        &["train", &format!("--tensor-size={evil}")],
        &["train", &format!("--gpu-vram={evil}")],
        &["devices", "--topology", evil],
        &["check", "--only", evil],
        &[evil],
    ] {
        for format in [&[][..], &["--format", "json"]] {
            let (_, out, error) = run(&[arguments, format].concat());
            for text in [&out, &error] {
                let acts = |c: char| {
                    c != '\n' && (c.is_control() || "\u{202e}\u{200b}\u{2066}".contains(c))
                };
                assert!(!text.chars().any(acts), "{arguments:?}: {text:?}");
            }
            if !format.is_empty() && out.contains("trace") && out.contains("file") {
                let value: serde_json::Value = serde_json::from_str(&out).unwrap();
                assert_eq!(value["trace"]["file"], good.as_str());
            }
        }
    }
}

#[test]
fn a_full_output_is_an_error_for_results_and_help_alike() {
    for arguments in ["devices", "--help", "--version", "replay --help"] {
        let (code, _, error) = shell(&format!("\"$DS4\" {arguments} > /dev/full"));
        assert_eq!(code, 70, "{arguments}");
        assert!(
            error.starts_with("ds4: the result could not be written: "),
            "{error}"
        );
        let (_, _, error) = shell(&format!("\"$DS4\" {arguments} | true"));
        assert_eq!(error, "", "{arguments}");
    }
}

#[test]
fn flags_that_a_command_does_not_use_are_refused() {
    let real = trace("resnet_var.jsonl.gz");
    for arguments in [
        &["--tensor-size=64M", "replay", &real][..],
        &["--tensor-size=64M", "devices"],
        &["--tensor-size=64M", "train", "--tensor-size=1M"],
        &["check", "--replay", "x.json", "--topology", "2xh200"],
        &["check", "--replay", "x.json", "--gpu-vram", "24"],
        &["check", "--replay", "x.json", "--seed", "7"],
        &["check", "--replay", "x.json", "--backend", "cuda"],
    ] {
        let (code, out, error) = run(arguments);
        assert_eq!((code, out.as_str()), (2, ""), "{arguments:?}: {error}");
        assert!(!error.contains("x.json: "), "{error}");
    }
    let (_, _, error) = run(&["--tensor-size=64M", "replay", &real]);
    assert_eq!(
        error,
        "ds4: replay does not use --tensor-size; leave it out\n"
    );
}

#[test]
fn a_recorded_check_is_junit_where_junit_was_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.json");
    let script = "{\"schema\":1,\"devices\":[{\"capacity_bytes\":8388608,\"pages\":true,\
                  \"peers\":true},{\"capacity_bytes\":8388608,\"pages\":false,\"peers\":true}],\
                  \"seed\":1,\"faults\":[],\"ops\":[]}";
    fs::write(&path, script).unwrap();
    let path = path.to_str().unwrap();
    let (code, out, error) = run(&["check", "--replay", path, "--format", "junit"]);
    assert_eq!(code, 0, "{error}");
    assert!(
        out.starts_with("<?xml") && out.contains("the-recorded-operations-hold"),
        "{out}"
    );
    fs::write(path, script.replace("8388608", "0")).unwrap();
    let (code, _, error) = run(&["check", "--replay", path]);
    assert_eq!(code, 2, "{error}");
    assert!(error.contains("devices[0].capacity_bytes"), "{error}");
}

#[test]
fn a_size_beyond_every_device_is_refused_with_unit_limit_and_form() {
    let (code, _, error) = run(&["train", "--gpu-vram", "4097"]);
    assert_eq!(code, 2);
    for part in [
        "--gpu-vram: 4097 GiB",
        "4096 GiB",
        "plain numbers are GiB",
        "512M",
    ] {
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn no_line_of_a_check_of_any_machine_is_wider_than_100_columns() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("odd.toml");
    let device = "[[device]]\nname = 'd'\ncapacity = '24GiB'\ngranularity = '8GiB'\n";
    fs::write(&path, format!("machine = 'odd'\n{}", device.repeat(32))).unwrap();
    let path = path.to_str().unwrap();
    for arguments in [
        &["check", "--cases", "4", "--suite", "refusal,recovery"][..],
        &[
            "check",
            "--cases",
            "4",
            "--suite",
            "recovery,determinism",
            "--topology",
            path,
        ],
        &["devices", "--topology", path],
    ] {
        let (code, out, error) = run(arguments);
        assert_eq!(code, 0, "{error}");
        for line in out.lines() {
            assert!(line.chars().count() <= 100, "{line}");
        }
    }
}
