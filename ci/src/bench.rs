//! The gates on speed: exact counts, which are equal everywhere, and instructions under callgrind,
//! which are comparable between equal compilers only. Times are no gate.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::exit;
use crate::gate::{Change, Figures, Limit, callgrind_total, compare};
use crate::step::{Failure, Program, root, say, step};
use crate::tasks::release_dir;
use crate::tool::not_run;

const COUNTS: &str = "golden/counts.json";
const INSTRUCTIONS: &str = "ci/baselines/callgrind.json";
const AGAIN: &str = "cargo ci bench";
const SAVE: &str = "if it is meant: cargo ci bench --save, and say why in the commit";

/// Whether instructions were compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Compared {
    Yes,
    No,
}

/// Both gates, or both baselines with `save`.
///
/// # Errors
/// A figure grew, or nothing could be compared.
pub fn run(save: bool) -> Result<(), Failure> {
    let binary = build()?;
    step("exact counts", || counts(&binary, save))?;
    match step("instructions", || instructions(&binary, save))? {
        Compared::Yes => Ok(()),
        Compared::No => {
            let what = "step 'instructions': they were not compared.";
            Err(Failure::new(exit::NOT_COMPARED, what, AGAIN))
        }
    }
}

/// Both gates, for a task that goes on where instructions cannot be compared.
///
/// # Errors
/// A figure grew.
pub fn gates() -> Result<(), Failure> {
    let binary = build()?;
    step("exact counts", || counts(&binary, false))?;
    step("instructions", || instructions(&binary, false)).map(|_| ())
}

fn build() -> Result<PathBuf, Failure> {
    step("building the counted scenarios", || {
        Program::new("cargo build --quiet --release -p ds4-benches --bin ds4-counted").run()
    })?;
    Ok(release_dir()?.join("ds4-counted"))
}

fn counts(binary: &Path, save: bool) -> Result<(), Failure> {
    let text = Program::default()
        .arg(binary.to_string_lossy())
        .arg("counts")
        .output()?;
    let measured = read_counts(&text).filter(|figures| !figures.is_empty());
    let measured = measured.ok_or_else(|| broken("the scenarios printed no counts"))?;
    if save {
        return write(COUNTS, &text);
    }
    let old = std::fs::read_to_string(root().join(COUNTS)).ok();
    let old = old.and_then(|text| read_counts(&text));
    let old = old.ok_or_else(|| broken(&format!("{COUNTS} cannot be read; {SAVE}")))?;
    judge(&compare(&old, &measured, Limit::NONE), measured.len())
}

/// `scenario/counter` to count, of an object of objects.
fn read_counts(text: &str) -> Option<Figures> {
    let parsed: Value = serde_json::from_str(text).ok()?;
    let mut figures = Figures::new();
    for (scenario, counters) in parsed.as_object()? {
        for (counter, count) in counters.as_object()? {
            figures.insert(format!("{scenario}/{counter}"), count.as_u64()?);
        }
    }
    Some(figures)
}

fn judge(changes: &[Change], figures: usize) -> Result<(), Failure> {
    for change in changes {
        say(&change.to_string());
    }
    let failures = changes.iter().filter(|change| change.fails()).count();
    say(&format!(
        "{figures} figures, {} as before, {failures} not allowed",
        figures.saturating_sub(changes.len())
    ));
    if failures > 0 {
        let what = format!("{failures} figures grew, are new or are missing; {SAVE}.");
        return Err(Failure::new(exit::REGRESSION, what, AGAIN));
    }
    if !changes.is_empty() {
        say("some figures changed within their limits: 'cargo ci bench --save' records them");
    }
    Ok(())
}

fn broken(what: &str) -> Failure {
    Failure::new(exit::FAILED, format!("{what}."), AGAIN)
}

fn write(path: &str, text: &str) -> Result<(), Failure> {
    let full = root().join(path);
    let folder = full.parent().map_or(Ok(()), std::fs::create_dir_all);
    let text = format!("{}\n", text.trim_end());
    folder
        .and_then(|()| std::fs::write(&full, text))
        .map_err(|error| broken(&format!("{path} cannot be written: {error}")))?;
    say(&format!("wrote {path}"));
    Ok(())
}

/// What must be equal for instructions to be comparable.
fn fingerprint() -> Option<BTreeMap<String, String>> {
    let rustc = Program::new("rustc --version --verbose").output().ok()?;
    let line = |start: &str| {
        rustc
            .lines()
            .find(|line| line.starts_with(start))
            .map(str::to_owned)
    };
    let valgrind = Program::new("valgrind --version").output().ok()?;
    Some(BTreeMap::from([
        ("rustc".to_owned(), line("rustc ")?),
        ("host".to_owned(), line("host: ")?),
        ("valgrind".to_owned(), valgrind.trim().to_owned()),
    ]))
}

fn instructions(binary: &Path, save: bool) -> Result<Compared, Failure> {
    if !Program::new("valgrind --version").succeeds() {
        not_run(
            "instructions",
            "valgrind is not installed; nothing was compared",
        );
        return Ok(Compared::No);
    }
    let here =
        fingerprint().ok_or_else(|| broken("rustc or valgrind does not tell its version"))?;
    let old = std::fs::read_to_string(root().join(INSTRUCTIONS)).ok();
    let old: Option<Value> = old.and_then(|text| serde_json::from_str(&text).ok());
    if !save {
        let baseline = old
            .as_ref()
            .ok_or_else(|| broken(&format!("{INSTRUCTIONS}: {SAVE}")))?;
        if let Some(difference) = differs(baseline, &here) {
            not_run(
                "instructions",
                &format!("not comparable with {INSTRUCTIONS}: {difference}"),
            );
            return Ok(Compared::No);
        }
    }
    let measured = count_all(binary)?;
    if save {
        let json = json!({ "schema": 1, "fingerprint": here, "instructions": measured });
        let text =
            serde_json::to_string_pretty(&json).map_err(|error| broken(&error.to_string()))?;
        write(INSTRUCTIONS, &text)?;
        return Ok(Compared::Yes);
    }
    let old = old.as_ref().and_then(read_instructions);
    let old = old.ok_or_else(|| broken(&format!("{INSTRUCTIONS} holds no figures; {SAVE}")))?;
    judge(
        &compare(&old, &measured, Limit::INSTRUCTIONS),
        measured.len(),
    )?;
    Ok(Compared::Yes)
}

fn read_instructions(baseline: &Value) -> Option<Figures> {
    let all = baseline.get("instructions")?.as_object()?;
    all.iter()
        .map(|(name, count)| Some((name.clone(), count.as_u64()?)))
        .collect()
}

/// The first part of the fingerprint that is not as in the baseline.
fn differs(baseline: &Value, here: &BTreeMap<String, String>) -> Option<String> {
    here.iter().find_map(|(name, value)| {
        let old = baseline
            .pointer(&format!("/fingerprint/{name}"))
            .and_then(Value::as_str);
        let old = old.unwrap_or("nothing");
        (old != value).then(|| format!("{name} was '{old}' and is '{value}'"))
    })
}

fn count_all(binary: &Path) -> Result<Figures, Failure> {
    let names = Program::default()
        .arg(binary.to_string_lossy())
        .arg("list")
        .output()?;
    let out = binary.with_file_name("ds4-counted.callgrind");
    let mut figures = Figures::new();
    for name in names.lines() {
        let (total, ops) =
            count(binary, &out, name).map_err(|why| broken(&format!("scenario {name}: {why}")))?;
        say(&format!(
            "  {name:<32} {total:>12} instructions, {:>6} per operation",
            total / ops
        ));
        figures.insert(name.to_owned(), total);
    }
    Ok(figures)
}

/// Instructions and operations of one scenario.
fn count(binary: &Path, out: &Path, name: &str) -> Result<(u64, u64), String> {
    let _ = std::fs::remove_file(out);
    let mut command = Command::new("valgrind");
    command
        .arg("--tool=callgrind")
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg("--toggle-collect=*counted_region*")
        .arg(binary)
        .args(["run", name])
        // Environment and its size change what the start of a program does.
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .stdin(Stdio::null());
    let output = command
        .output()
        .map_err(|error| format!("valgrind did not start: {error}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
    }
    let printed: Option<Value> = serde_json::from_slice(&output.stdout).ok();
    let ops = printed
        .and_then(|json| json.get("ops")?.as_u64())
        .filter(|ops| *ops > 0);
    let ops = ops.ok_or("it printed no number of operations")?;
    let text = std::fs::read_to_string(out).map_err(|error| error.to_string())?;
    Ok((callgrind_total(&text)?, ops))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_flattened_and_anything_else_is_refused() {
        let figures = read_counts(r#"{"a":{"probes":1,"splits":2}}"#).unwrap();
        assert_eq!(
            figures,
            Figures::from([("a/probes".into(), 1), ("a/splits".into(), 2)])
        );
        for text in [
            "",
            "[]",
            r#"{"a":1}"#,
            r#"{"a":{"probes":"1"}}"#,
            r#"{"a":{"probes":-1}}"#,
        ] {
            assert_eq!(read_counts(text), None, "{text}");
        }
    }

    #[test]
    fn another_compiler_is_told_as_not_comparable() {
        let here = BTreeMap::from([("rustc".to_owned(), "rustc 2".to_owned())]);
        let baseline = json!({ "fingerprint": { "rustc": "rustc 1" } });
        let difference = differs(&baseline, &here).unwrap();
        assert_eq!(difference, "rustc was 'rustc 1' and is 'rustc 2'");
        assert!(differs(&json!({}), &here).unwrap().contains("nothing"));
        let same = json!({ "fingerprint": { "rustc": "rustc 2" } });
        assert_eq!(differs(&same, &here), None);
    }
}
