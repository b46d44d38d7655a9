//! Fuzzing: each target for some time, from what earlier runs found worth keeping.

use std::fs;

use crate::exit;
use crate::step::{Failure, Program, root, step};
use crate::tool;

const DIR: &str = "harness/fuzz";
/// One input a line, in hexadecimal digits; a test replays them without a fuzzer.
const KEPT: &str = "golden/tp/corpus";

/// Fuzzes one target, or each in turn.
///
/// # Errors
/// There is no such target, or an input breaks one: libFuzzer says where it lies.
pub fn run(target: Option<&str>, seconds: u32) -> Result<(), Failure> {
    if !root().join(DIR).join("Cargo.toml").is_file() {
        let what = format!("there are no fuzz targets in {DIR}.");
        return Err(Failure::new(exit::NOT_COMPARED, what, "cargo ci fuzz"));
    }
    tool::FUZZ.ensure()?;
    let cargo_fuzz = |line: &str| {
        // Sanitizers need unstable options of the compiler, which this variable allows.
        Program::new(&format!("cargo fuzz {line}")).env("RUSTC_BOOTSTRAP", "1")
    };
    let all = cargo_fuzz(&format!("list --fuzz-dir {DIR}")).output()?;
    let targets: Vec<&str> = all
        .lines()
        .map(str::trim)
        .filter(|name| target.is_none_or(|one| one == *name))
        .collect();
    if targets.is_empty() {
        let names: Vec<&str> = all.lines().map(str::trim).collect();
        let what = format!(
            "no fuzz target has this name; there are: {}.",
            names.join(", ")
        );
        return Err(Failure::new(exit::USAGE, what, "cargo ci fuzz"));
    }
    for name in targets {
        unpack(name).map_err(|why| Failure::new(exit::FAILED, why, "cargo ci fuzz"))?;
        let line = format!(
            "run --fuzz-dir {DIR} {name} -- -max_total_time={seconds} -verbosity=0 -print_final_stats=1"
        );
        step(&format!("fuzz {name} for {seconds} s"), || {
            cargo_fuzz(&line).run()
        })?;
    }
    Ok(())
}

/// Puts the kept inputs of a target where libFuzzer looks; most targets have none.
fn unpack(target: &str) -> Result<(), String> {
    let kept = root().join(KEPT).join(format!("{target}.hex"));
    let Ok(text) = fs::read_to_string(&kept) else {
        return Ok(());
    };
    let folder = root().join(DIR).join("corpus").join(target);
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}.", folder.display()))?;
    for (number, line) in text.lines().enumerate() {
        let bytes = bytes(line).ok_or_else(|| {
            format!(
                "{}: line {} is not hexadecimal.",
                kept.display(),
                number + 1
            )
        })?;
        let file = folder.join(format!("kept-{number}"));
        fs::write(&file, bytes).map_err(|error| format!("{}: {error}.", file.display()))?;
    }
    Ok(())
}

fn bytes(line: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = line.as_bytes().as_chunks::<2>();
    let byte = |pair: &[u8; 2]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let all: Option<Vec<u8>> = pairs.iter().map(byte).collect();
    all.filter(|_| rest.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_inputs_are_hexadecimal_lines() {
        assert_eq!(bytes("00ff4a"), Some(vec![0, 255, 74]));
        assert_eq!(bytes("0"), None);
        assert_eq!(bytes("0g"), None);
        for target in ["tp_frames", "tp_session", "tp_trust"] {
            let file = root().join(KEPT).join(format!("{target}.hex"));
            let text = fs::read_to_string(file).unwrap();
            assert!(text.lines().all(|line| bytes(line).is_some()), "{target}");
        }
    }
}
