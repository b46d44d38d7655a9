//! The `ds4` command as a user meets it: help, results, refusals and bad input.

#![expect(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// Found at run time, so that the tests also run from an archive on another machine.
fn ds4() -> Command {
    let path = std::env::var("NEXTEST_BIN_EXE_ds4");
    let mut command = Command::new(path.unwrap_or_else(|_| env!("CARGO_BIN_EXE_ds4").to_owned()));
    command
        .env_remove("DS4_BACKEND")
        .env("NO_COLOR", "1")
        .env("COLUMNS", "100");
    command
}

fn golden() -> PathBuf {
    let manifest = std::env::var("CARGO_MANIFEST_DIR");
    Path::new(&manifest.unwrap_or_else(|_| env!("CARGO_MANIFEST_DIR").to_owned())).join("../golden")
}

fn trace(name: &str) -> String {
    golden().join("traces").join(name).display().to_string()
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

fn assert_golden(name: &str, found: &str) {
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path(golden().join("cli"));
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.add_filter(
        r"\d+ ns each on average; one by one p50 \d+ ns, p99 \d+ ns",
        "[time]",
    );
    settings.add_filter(r"trace: .*/golden/", "trace: golden/");
    settings.bind(|| insta::assert_snapshot!(name, found));
}

#[test]
fn help_of_every_command_is_as_reviewed() {
    let mut all = text(&run(&["--help"]).stdout);
    for command in [
        "devices",
        "check",
        "validate",
        "replay",
        "fit",
        "plan",
        "train",
        "prefill",
        "decode",
        "slab",
        "scaling",
        "keygen",
        "bench alloc",
        "fake-cuda",
        "fake-hip",
    ] {
        let words: Vec<&str> = command.split(' ').chain(["--help"]).collect();
        let output = run(&words);
        assert!(output.status.success(), "{command}");
        all.push_str(&format!(
            "\n==== ds4 {command} --help\n{}",
            text(&output.stdout)
        ));
    }
    assert_golden("help", &all);
}

#[test]
fn a_newcomer_who_types_only_the_name_gets_a_short_help() {
    let output = run(&[]);
    assert_eq!(output.status.code(), Some(0));
    assert_golden("welcome", &text(&output.stdout));
}

#[test]
fn the_first_seeds_command_lines_work_as_written() {
    let output = run(&["--gpu-placement=0,1", "--tensor-size=64M", "train"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_golden("train", &text(&output.stdout));
    let (code, value) = json(&["--gpu-exclude=2", "decode"]);
    assert_eq!(code, 0);
    let devices = value["devices"].as_array().unwrap();
    assert_eq!(devices[2]["allocs"], 0);
    assert!(devices[3]["allocs"].as_u64().unwrap() > 0);
}

#[test]
fn a_real_trace_replays_with_a_placement_report() {
    let output = run(&["replay", &trace("two_gpu_pipeline.jsonl.gz")]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_golden("replay", &text(&output.stdout));
}

#[test]
fn a_trace_that_does_not_fit_is_refused_with_the_first_refusal_explained() {
    let output = run(&["replay", &trace("resnet_var.pickle.gz"), "--gpu-vram", "3"]);
    assert_eq!(output.status.code(), Some(1));
    assert_golden("replay-refused", &text(&output.stdout));
}

#[test]
fn replay_as_json_has_the_documented_shape_and_repeats() {
    let name = trace("resnet_var.jsonl.gz");
    let (code, value) = json(&["replay", &name]);
    assert_eq!(
        (code, &value["schema"], &value["command"]),
        (0, &1.into(), &"replay".into())
    );
    assert_eq!(value["trace"]["events"], 14332);
    assert_eq!(
        value["devices"][0]["peak_live_bytes"].as_u64().unwrap() >> 20,
        3757
    );
    assert_eq!(value["totals"]["ops"], 14332);
    assert_eq!(value["verdict"], "ok");
    assert_eq!(
        json(&["replay", &name]).1["state_hash"],
        value["state_hash"]
    );
}

#[test]
fn a_fault_plan_refuses_what_it_names_and_the_replay_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("plan.json");
    fs::write(
        &plan,
        r#"{"seed":7,"faults":[{"at":"alloc","device":0,"skip":2,"count":2,"kind":"oom"}]}"#,
    )
    .unwrap();
    let arguments = [
        "replay",
        &trace("two_gpu_pipeline.jsonl.gz"),
        "--faults",
        plan.to_str().unwrap(),
    ];
    let (code, value) = json(&arguments);
    assert_eq!((code, &value["verdict"]), (1, &"refused".into()));
    assert!(value["refusals_by_reason"]["injected"].as_u64().unwrap() > 0);
    let fault = &value["faults"][0];
    assert_eq!(
        (&fault["entry"], &fault["kind"]),
        (&0.into(), &"oom".into())
    );
    assert_eq!(fault["fired"], 2);
    let first = &value["first_refusal"];
    assert!(first["bytes"].as_u64().unwrap() > 0, "{first}");
    assert_eq!(first["devices"][0]["reason"], "injected");
    assert!(value["totals"]["ops"].as_u64().unwrap() > 17_000);
}

#[test]
fn what_a_replay_records_replays_to_the_same_figures_in_every_format() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let name = trace("resnet_var.jsonl.gz");
    let (code, first) = json(&["replay", &name, "--record", out.to_str().unwrap()]);
    assert_eq!(code, 0);
    let files: Vec<PathBuf> = fs::read_dir(&out)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    assert!(files.len() >= 3, "{files:?}");
    for file in files
        .iter()
        .filter(|file| !file.to_string_lossy().contains("gpu1"))
    {
        let (code, again) = json(&["replay", file.to_str().unwrap()]);
        assert_eq!(code, 0, "{}", file.display());
        let peak = |value: &Value| value["devices"][0]["peak_live_bytes"].as_u64().unwrap();
        assert_eq!(peak(&again), peak(&first), "{}", file.display());
        assert_eq!(again["devices"][0]["allocs"], first["devices"][0]["allocs"]);
    }
}

#[test]
fn fit_finds_close_to_the_peak_on_real_traces() {
    let (code, value) = json(&["fit", &trace("two_gpu_pipeline.jsonl.gz")]);
    assert_eq!(code, 0);
    let devices = value["devices"].as_array().unwrap();
    assert_eq!(devices.len(), 2);
    for device in devices {
        assert!(device["ratio"].as_f64().unwrap() <= 1.02, "{device}");
    }
}

#[test]
fn what_fit_prints_replays_on_machines_with_and_without_pages() {
    let name = trace("two_gpu_pipeline.jsonl.gz");
    for machine in ["4x24g-bare", "8x24g-mixed"] {
        let (code, value) = json(&["fit", &name, "--topology", machine]);
        assert_eq!(code, 0);
        let bytes = |device: usize| value["devices"][device]["min_capacity_bytes"].to_string();
        let budgets = format!("{}B,{}B", bytes(0), bytes(1));
        let machine = ["--topology", machine, "--gpu-devices", "0,1"];
        let again = ["replay", &name, "--gpu-vram", &budgets];
        let (code, value) = json(&[&again[..], &machine].concat());
        assert_eq!((code, &value["verdict"]), (0, &"ok".into()), "{budgets}");
    }
}

#[test]
fn decoding_a_large_model_takes_little_memory_of_the_host() {
    // Two gibibytes are copied through the host, and as many between the devices.
    let words = "decode --tensor-size 512M --steps 1 --layers 8";
    let script = format!("ulimit -v 1500000; exec \"$0\" {words}");
    let shell = Command::new("sh")
        .args(["-c", &script])
        .arg(ds4().get_program())
        .output()
        .unwrap();
    let said = text(&shell.stdout) + &text(&shell.stderr);
    assert_eq!(shell.status.code(), Some(0), "{said}");
    assert!(said.contains("by host bounce"), "{said}");
}

#[cfg(unix)]
#[test]
fn a_place_that_cannot_be_written_is_a_usage_error_before_the_work() {
    let name = trace("two_gpu_pipeline.jsonl.gz");
    for arguments in [
        ["replay", &name, "--record", "/proc/ds4/out"],
        ["devices", "--save", "/proc/ds4.toml", "--format=text"],
    ] {
        let output = run(&arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn a_failure_before_any_check_is_a_junit_error() {
    for command in ["check", "validate"] {
        let output = run(&[command, "--topology", "no-such", "--format", "junit"]);
        assert_eq!(output.status.code(), Some(2));
        let xml = text(&output.stdout);
        assert!(
            xml.contains("errors=\"1\"") && xml.contains("no-such"),
            "{xml}"
        );
    }
}

#[test]
fn numbers_that_are_none_are_explained_in_words() {
    let cases: [(&[&str], &str); 6] = [
        (&["train", "--tensor-size", "-1"], "'-1' is not a size"),
        (&["--tensor-size", "-64M", "train"], "'-64M' is not a size"),
        (&["check", "--seed", "x"], "write a whole number from 0"),
        (&["check", "--cases", "0"], "write a whole number from 1"),
        (
            &["train", "--steps", "-3"],
            "write a whole number from 1 to 100000",
        ),
        (
            &["devices", "--gpu-devices", "-1"],
            "'-1' is not a device number",
        ),
    ];
    for (arguments, expected) in cases {
        let output = run(arguments);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(expected), "{said}");
    }
}

#[test]
fn rdma_devices_are_listed_or_their_absence_is_said() {
    let (code, value) = json(&["devices", "--rdma"]);
    if code == 0 {
        assert!(value["chosen"]["device"].is_string(), "{value}");
        return;
    }
    assert_eq!(code, 4, "{value}");
    let why = value["error"]["message"].as_str();
    let why = why.or(value["verdict"].as_str()).unwrap();
    let known = ["libibverbs.so.1", "no RDMA device", "no RDMA port"];
    assert!(known.iter().any(|it| why.contains(it)), "{why}");
    let output = run(&["devices", "--rdma", "--gpu-vram", "3"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("--gpu-vram"));
}

#[test]
fn devices_can_be_saved_and_used_again() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mine.toml");
    let saved = run(&[
        "devices",
        "--topology",
        "8x24g-mixed",
        "--save",
        file.to_str().unwrap(),
    ]);
    assert_eq!(saved.status.code(), Some(0));
    let (_, first) = json(&["devices", "--topology", "8x24g-mixed"]);
    let (code, again) = json(&["devices", "--topology", file.to_str().unwrap()]);
    assert_eq!(code, 0);
    assert_eq!(again["peers"], first["peers"]);
    assert_eq!(
        again["devices"][7]["total_bytes"],
        first["devices"][7]["total_bytes"]
    );
}

#[test]
fn the_backend_variable_counts_in_any_case_and_absence_is_an_error() {
    let ok = ds4()
        .env("DS4_BACKEND", "SIM")
        .arg("devices")
        .output()
        .unwrap();
    assert_eq!(ok.status.code(), Some(0));
    let wrong = ds4()
        .env("DS4_BACKEND", "metal")
        .arg("devices")
        .output()
        .unwrap();
    assert_eq!(wrong.status.code(), Some(2));
    assert_eq!(run(&["devices", "--backend", "hip"]).status.code(), Some(4));
}

/// Runs a bad command line in an empty folder: exit 2, one sentence, no output, nothing written.
fn refusal_of(arguments: &[&str], files: &[(&str, &[u8])]) -> String {
    let folder = tempfile::tempdir().unwrap();
    for (name, content) in files {
        fs::write(folder.path().join(name), content).unwrap();
    }
    let output = ds4()
        .args(arguments)
        .current_dir(folder.path())
        .output()
        .unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
    assert!(output.stdout.is_empty(), "{arguments:?}");
    assert!(!said.contains("panicked"), "{said}");
    assert_eq!(
        fs::read_dir(folder.path()).unwrap().count(),
        files.len(),
        "{arguments:?}"
    );
    let shown: Vec<&str> = arguments
        .iter()
        .map(|word| word.rsplit('/').next().unwrap())
        .collect();
    format!("$ ds4 {}\n{}\n", shown.join(" "), said.trim_end())
}

#[test]
fn bad_command_lines_get_one_sentence_each() {
    let real = trace("two_gpu_pipeline.jsonl.gz");
    let mut all = String::new();
    for mask in ["0,0", "32", "-1", "abc", "", "8"] {
        all.push_str(&refusal_of(
            &["train", &format!("--gpu-placement={mask}")],
            &[],
        ));
    }
    for size in ["64Q", "-1", "0", "18446744073709551616", ""] {
        all.push_str(&refusal_of(
            &["train", &format!("--tensor-size={size}")],
            &[],
        ));
    }
    for vram in ["0", "0,24", "abc", "24,", "-1", "99999", ""] {
        all.push_str(&refusal_of(
            &["replay", &real, &format!("--gpu-vram={vram}")],
            &[],
        ));
    }
    for words in [
        &["plan", "--model", "none.gguf", "--gpu-vram", "24"][..],
        &["plan", "--model", "none.gguf"],
        &["check", "--suite", "nope"],
        &["check", "--only", "nope"],
        &["devices", "--format", "junit"],
        &["devices", "--backend", "metal"],
        &["devices", "--topology", "nope"],
        &["train", "--gpu-exclude", "0,1,2,3,4,5,6,7"],
        &["replay", "none.jsonl"],
    ] {
        all.push_str(&refusal_of(words, &[]));
    }
    assert_golden("bad-command-lines", &all);
}

#[test]
fn bad_files_get_one_sentence_with_file_position_and_remedy() {
    let cut = fs::read(trace("resnet_var.pickle.gz")).unwrap();
    let mut all = String::new();
    let event = br#"{"t":0,"op":"alloc","id":1,"bytes":64,"device":0}"#;
    let twice = [&event[..], b"\n", event, b"\n"].concat();
    let free = br#"{"t":1,"op":"free","id":1,"device":0}"#;
    let double = [&event[..], b"\n", free, b"\n", free, b"\n"].concat();
    for (name, content) in [
        ("empty.jsonl", &b""[..]),
        ("unknown-id.jsonl", free),
        ("live-twice.jsonl", &twice),
        ("double-free.jsonl", &double),
        (
            "negative.jsonl",
            br#"{"t":0,"op":"alloc","id":1,"bytes":-1,"device":0}"#,
        ),
        (
            "huge.jsonl",
            br#"{"t":0,"op":"alloc","id":1,"bytes":18446744073709551616,"device":0}"#,
        ),
        ("cut.jsonl", br#"{"t":0,"op":"alloc","id":1,"#),
        ("not-utf8.jsonl", b"{\"t\":0,\"op\":\"\xff\xfe\"}"),
        ("picture.png", b"\x89PNG\r\n\x1a\n0000"),
        ("cut.pickle.gz", cut.get(..100).unwrap()),
        ("code.pickle", b"\x80\x04cos\nsystem\n(S'true'\ntR."),
        (
            "log.csv",
            b"Thread,Time,Action,Pointer,Size,Stream\n1,00:00:00.1,free,0xzz,8,0\n",
        ),
        ("mini.csv", b"id,lower,upper,size\n0,5,5,1\n"),
    ] {
        all.push_str(&refusal_of(&["replay", name], &[(name, content)]));
    }
    let real = trace("two_gpu_pipeline.jsonl.gz");
    for content in [
        r#"{"seed":7,"faults":[{"at":"alloc","device":"x","kind":"oom"}]}"#,
        r#"{"seed":7,"faults":[{"at":"alloc","device":9,"kind":"oom"}]}"#,
        r#"{"seed":7,"faultz":[]}"#,
        r#"{"seed":-1,"faults":[]}"#,
        "[",
    ] {
        let plan = [("plan.json", content.as_bytes())];
        all.push_str(&refusal_of(
            &["replay", &real, "--faults", "plan.json"],
            &plan,
        ));
    }
    let device = "machine = 'm'\n[link]\nlatency_ns = 1\nbytes_per_second = 1\n[[device]]\n";
    for line in ["capacity = '0'", "capacity = 5", "capasity = '1GiB'"] {
        let content = format!("{device}{line}\n");
        let file = [("t.toml", content.as_bytes())];
        all.push_str(&refusal_of(&["devices", "--topology", "t.toml"], &file));
    }
    for content in [
        &b""[..],
        b"GGUF",
        b"GGUF\x03\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff\0\0\0\0\0\0\0\0",
    ] {
        let file = [("m.gguf", content)];
        let words = ["plan", "--model", "m.gguf", "--gpu-vram", "24"];
        all.push_str(&refusal_of(&words, &file));
    }
    assert_golden("bad-files", &all);
}

#[test]
fn a_failure_is_json_where_json_was_asked_for() {
    let (code, value) = json(&["replay", "does-not-exist.jsonl"]);
    assert_eq!(
        (code, &value["exit"], &value["command"]),
        (2, &2.into(), &"replay".into())
    );
    assert!(
        value["error"]["message"]
            .as_str()
            .unwrap()
            .contains("does-not-exist.jsonl")
    );
}

#[test]
fn a_reader_that_goes_away_is_not_an_error() {
    let mut child = ds4()
        .args(["replay", &trace("resnet_var.jsonl.gz")])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn the_slab_is_printed_with_every_region_and_its_hash() {
    let output = run(&["slab", "--n-layer", "43", "--n-embd", "4096"]);
    assert_golden("slab", &text(&output.stdout));
    let shape = [
        "slab",
        "--n-layer",
        "43",
        "--n-embd",
        "4096",
        "--layout",
        "ds4",
    ];
    let (code, value) = json(&shape);
    assert_eq!(code, 0);
    assert_eq!(value["slab_bytes"], 14_091_976);
    assert_eq!(value["vec_bytes"], 16_384);
    let regions = value["regions"].as_array().unwrap();
    let names: Vec<&str> = regions
        .iter()
        .map(|region| region["name"].as_str().unwrap())
        .collect();
    assert_eq!(
        names.join(" "),
        "out in in_flags token out_flags gpu_flags batch_out batch_in"
    );
    assert_eq!(regions[7]["offset"], 8_455_880);
    assert_eq!(value["hash"].as_str().unwrap().len(), 16);
    for shape in [
        ["0", "1", "2"],
        ["1", "0", "2"],
        ["1", "1", "33"],
        ["4294967295", "4294967295", "2"],
    ] {
        let [layers, width, ranks] = shape;
        let output = run(&[
            "slab",
            "--n-layer",
            layers,
            "--n-embd",
            width,
            "--ranks",
            ranks,
        ]);
        assert_eq!(output.status.code(), Some(2), "{shape:?}");
    }
}

#[test]
fn the_cost_of_gates_on_more_ranks_is_printed_with_what_it_rests_on() {
    let output = run(&["scaling", "--ranks", "2,3,8,72"]);
    assert_eq!(output.status.code(), Some(0));
    assert_golden("scaling", &text(&output.stdout));
}

#[test]
fn a_key_is_written_once_and_for_its_owner_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tp.key");
    let name = path.display().to_string();
    assert_eq!(run(&["keygen", "-o", &name]).status.code(), Some(0));
    let key = fs::read_to_string(&path).unwrap();
    ds4_engine::tp::trust::Key::parse(&key).unwrap();
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
    let again = run(&["keygen", "-o", &name]);
    assert_eq!(again.status.code(), Some(2));
    assert_eq!(fs::read_to_string(&path).unwrap(), key);
    assert!(!text(&again.stderr).contains(key.trim()));
}
