//! RDMA on a real kernel: Soft-RoCE in virtual machines, without a device, a disk or an installation.
//!
//! Debian's kernel and a few of its programs are downloaded once, unpacked into the build folder
//! and put into an image in memory, in which the tests of `harness/tests/soft_roce.rs` and two
//! machines with one rank each run. What cannot be had is said, and never counts as passed. The
//! machines are emulated: they show what is right, and nothing about speed.

mod guest;
mod image;
mod machine;
mod packages;

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::exit;
use crate::step::{Failure, Program, say, step};
use crate::tasks::target_dir;
use crate::tool::not_run;
use guest::Scene;
use image::Image;
use machine::{Ended, Machine};
use packages::Kit;

const AGAIN: &str = "cargo ci rdma";

/// Runs everything.
///
/// # Errors
/// A test fails, or the machines cannot be had.
pub fn run() -> Result<(), Failure> {
    match kit()? {
        Ok(kit) => work(&kit),
        Err(why) => {
            let what = format!("rdma: NOT RUN: {why}.");
            Err(Failure::new(exit::NOT_COMPARED, what, AGAIN))
        }
    }
}

/// As [`run`], for a task that goes on where the machines cannot be had.
///
/// # Errors
/// A test fails.
pub fn compare() -> Result<(), Failure> {
    match kit()? {
        Ok(kit) => work(&kit),
        Err(why) => {
            not_run("rdma", &why);
            Ok(())
        }
    }
}

/// What the machines are made of, or why it cannot be had.
fn kit() -> Result<Result<Kit, String>, Failure> {
    let folder = target_dir()?.join("rdma-vm");
    Ok(packages::kit(&folder))
}

fn work(kit: &Kit) -> Result<(), Failure> {
    let binaries = step("building for the virtual machine", build)?;
    let image = image_with(kit, &binaries)?;
    step("Soft-RoCE: verbs, ranks, lost packets", || {
        one_machine(kit, &image)
    })?;
    step("Soft-RoCE: two machines, one rank each", || {
        two_machines(kit, &image)
    })
}

/// The test binary and the command.
struct Binaries {
    tests: PathBuf,
    ds4: PathBuf,
}

fn build() -> Result<Binaries, Failure> {
    // Of the whole workspace, as the other tests: so nothing is built twice.
    let line = "cargo test --workspace --test soft_roce --no-run --message-format json";
    let text = Program::new(line).output()?;
    let executable = |name: &str| {
        text.lines().find_map(|line| {
            let message: serde_json::Value = serde_json::from_str(line).ok()?;
            let target = message.get("target")?.get("name")?.as_str()?;
            let file = message.get("executable")?.as_str()?;
            (target == name).then(|| PathBuf::from(file))
        })
    };
    match (executable("soft_roce"), executable("ds4")) {
        (Some(tests), Some(ds4)) => Ok(Binaries { tests, ds4 }),
        _ => Err(failed("cargo does not say what it built")),
    }
}

/// The kit's image with what was built on top.
fn image_with(kit: &Kit, binaries: &Binaries) -> Result<Vec<u8>, Failure> {
    let words = |error: std::io::Error| failed(&format!("the image: {error}"));
    let folder = tempfile::tempdir().map_err(words)?;
    let mut image = Image::default();
    image.folder("t");
    for (name, file) in [("test", &binaries.tests), ("ds4", &binaries.ds4)] {
        let slim = stripped(file, &folder.path().join(name));
        let bytes = std::fs::read(slim.as_deref().unwrap_or(file)).map_err(words)?;
        image.file(&format!("t/{name}"), true, bytes);
        for library in packages::libraries(file, &[]) {
            image.library(&library).map_err(words)?;
        }
    }
    let mut whole = std::fs::read(&kit.image).map_err(words)?;
    whole.extend(image.finish());
    Ok(whole)
}

/// A copy without symbols, which loads sooner; none without the tool.
fn stripped(file: &Path, to: &Path) -> Option<PathBuf> {
    let mut strip = Command::new("strip");
    let made = strip.arg("-o").arg(to).arg(file).status();
    made.is_ok_and(|it| it.success()).then(|| to.to_owned())
}

fn one_machine(kit: &Kit, image: &[u8]) -> Result<(), Failure> {
    let machine = Machine::start(kit, image, Scene::Tests, None)?;
    let ended = machine.wait();
    let passed = passed(&ended.console);
    match (ended.code, passed) {
        (Some(0), Some(count)) if count > 0 => {
            say(&format!("  {count} tests passed in the virtual machine"));
            Ok(())
        }
        (Some(0), _) => Err(told(&ended, "no test ran in the virtual machine")),
        (Some(code), _) => Err(told(&ended, &format!("the tests ended with code {code}"))),
        (None, _) => Err(told(&ended, "the virtual machine did not end in order")),
    }
}

fn two_machines(kit: &Kit, image: &[u8]) -> Result<(), Failure> {
    let words = |error: std::io::Error| failed(&format!("the machines' network: {error}"));
    let folder = tempfile::tempdir().map_err(words)?;
    let ends = [folder.path().join("a"), folder.path().join("b")];
    let [one, two] = &ends;
    let leader = Machine::start(kit, image, Scene::Leader, Some((one, two)))?;
    let worker = Machine::start(kit, image, Scene::Worker, Some((two, one)))?;
    let ended = [leader.wait(), worker.wait()];
    let mut hashes = Vec::new();
    for (name, ended) in ["leader", "worker"].into_iter().zip(&ended) {
        if ended.code != Some(0) {
            return Err(told(
                ended,
                &format!("the {name}'s machine ended with {:?}", ended.code),
            ));
        }
        for kind in ["RC", "UC"] {
            let report = report(&ended.console, kind);
            let report = report.ok_or_else(|| told(ended, &format!("the {name} said nothing")))?;
            let text = |pointer: &str| report.pointer(pointer).and_then(|it| it.as_str());
            let way = text("/transport/reason").unwrap_or_default();
            let right = text("/transport/path") == Some("rdma")
                && way.contains(&format!("{kind} on rxe0"))
                && report.pointer("/complete") == Some(&serde_json::Value::Bool(true));
            if !right {
                return Err(told(
                    ended,
                    &format!("the {name} did not run over {kind}: {way}"),
                ));
            }
            hashes.push(text("/state_hash").map(str::to_owned));
        }
    }
    let [leader, worker] = [hashes.get(..2), hashes.get(2..)];
    if leader != worker {
        return Err(failed("the ranks' states differ"));
    }
    say("  RC and UC between two machines: every sum right, equal states");
    Ok(())
}

/// How many tests passed, if none failed and none was left out silently.
fn passed(console: &str) -> Option<u64> {
    let line = console
        .lines()
        .find_map(|line| line.trim().strip_prefix("test result: ok. "))?;
    line.split(' ').next()?.parse().ok()
}

/// The report of a rank, between its marks.
fn report(console: &str, kind: &str) -> Option<serde_json::Value> {
    let (_, rest) = console.split_once(&format!("@@report {kind}\n"))?;
    let (text, _) = rest.split_once("@@end")?;
    serde_json::from_str(text).ok()
}

/// A failure with the end of what the machine said.
fn told(ended: &Ended, what: &str) -> Failure {
    let lines: Vec<&str> = ended.console.lines().collect();
    for line in lines.iter().skip(lines.len().saturating_sub(200)) {
        say(&format!("  | {line}"));
    }
    failed(what)
}

fn failed(what: &str) -> Failure {
    Failure::new(exit::FAILED, format!("{what}."), AGAIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_of_passed_tests_is_read_and_a_failure_is_none() {
        let good = "running 9 tests\r\ntest result: ok. 9 passed; 0 failed; 0 ignored\n";
        assert_eq!(passed(good), Some(9));
        assert_eq!(passed("test result: FAILED. 8 passed; 1 failed;"), None);
        assert_eq!(passed(""), None);
    }

    #[test]
    fn a_report_is_read_between_its_marks() {
        let console = "x\n@@report RC\n{\"complete\":\n true}\n@@end\n@@report UC\n{}\n@@end\n";
        assert_eq!(report(console, "RC").unwrap()["complete"], true);
        assert_eq!(report(console, "UC").unwrap(), serde_json::json!({}));
        assert_eq!(report(console, "XX"), None);
    }
}
