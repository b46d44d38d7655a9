//! `ds4 scaling`: the model beside what was measured, and files of measurements.

#![expect(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::path::{Path, PathBuf};
use std::process::Command;

use ds4_sim::scaling::shipped;
use serde_json::Value;

fn golden() -> PathBuf {
    let manifest = std::env::var("CARGO_MANIFEST_DIR");
    Path::new(&manifest.unwrap_or_else(|_| env!("CARGO_MANIFEST_DIR").to_owned())).join("../golden")
}

fn scaling(arguments: &[&str]) -> (i32, Value, String) {
    let path = std::env::var("NEXTEST_BIN_EXE_ds4");
    let output = Command::new(path.unwrap_or_else(|_| env!("CARGO_BIN_EXE_ds4").to_owned()))
        .args(["scaling", "--format", "json"])
        .args(arguments)
        .output()
        .unwrap();
    let value = serde_json::from_slice(&output.stdout).unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    (output.status.code().unwrap(), value, said)
}

fn measured() -> PathBuf {
    golden().join("hardware/2026-11-30-2xh200/gates.json")
}

#[test]
fn the_shipped_nvlink_points_are_those_that_were_measured() {
    let file = std::fs::read(measured()).unwrap();
    let file: Value = serde_json::from_slice(&file).unwrap();
    let mut compared = 0;
    for link in shipped().unwrap() {
        if !link.name.starts_with("nvlink") {
            continue;
        }
        let rows = file["rows"].as_array().unwrap().iter();
        let rows: Vec<&Value> = rows
            .filter(|row| row["subject"] == link.subject.as_str())
            .filter(|row| row["bench"].as_str().unwrap().starts_with("gate "))
            .collect();
        assert_eq!(rows.len(), link.point.len(), "{}", link.name);
        for (row, point) in rows.iter().zip(&link.point) {
            assert_eq!(row["bytes"], point.bytes);
            let off = row["p50"].as_f64().unwrap() - point.ns as f64;
            assert!(off.abs() <= 0.5, "{row}");
            compared += 1;
        }
    }
    assert_eq!(compared, 20);
}

#[test]
fn gates_of_a_token_measured_apart_are_predicted_within_fifteen_percent() {
    let file = std::fs::read(measured()).unwrap();
    let file: Value = serde_json::from_slice(&file).unwrap();
    let rows = file["rows"].as_array().unwrap();
    let token = rows.iter().find(|row| row["bench"] == "86 gates a token");
    let measured_ps = token.unwrap()["p50"].as_f64().unwrap() * 1000.0;
    let (code, value, _) = scaling(&["--ranks", "2", "--algorithm", "one-shot"]);
    assert_eq!(code, 0);
    let model_ps = value["rows"][0]["gate_ps"].as_f64().unwrap();
    assert!(
        (model_ps / measured_ps - 1.0).abs() < 0.15,
        "{model_ps} {measured_ps}"
    );
}

#[test]
fn a_file_of_the_bench_gives_the_same_model_as_what_is_shipped() {
    let file = measured().display().to_string();
    let (code, of_file, _) = scaling(&["--link", &file, "--subject", "graph", "--ranks", "2,3,8"]);
    assert_eq!(code, 0);
    let (_, of_name, _) = scaling(&["--ranks", "2,3,8"]);
    assert_eq!(of_file["rows"], of_name["rows"]);
    assert_eq!(of_file["within_15_percent"]["fitted"], 8);
}

#[test]
fn what_is_no_measurement_is_refused_with_what_to_give() {
    let file = measured().display().to_string();
    let readme = golden().join("hardware/README.md").display().to_string();
    for (arguments, part) in [
        (vec!["--link", "smoke"], "neither a link"),
        (vec!["--link", file.as_str()], "choose whose gates"),
        (
            vec!["--link", readme.as_str()],
            "ds4 bench gate --format json",
        ),
        (vec!["--subject", "graph"], "leave it out"),
        (vec!["--bytes", "2G"], "at most 1G"),
    ] {
        let (code, _, said) = scaling(&arguments);
        assert_eq!(code, 2, "{arguments:?}");
        assert!(said.contains(part), "{arguments:?}: {said}");
    }
}
