//! What a GPU host without Rust needs to run the hardware tests.

use std::fs;
use std::io;
use std::path::Path;

use crate::exit;
use crate::step::{Failure, Program, root, say, step};
use crate::tasks::{release_dir, target_dir};
use crate::tool;

/// The launcher: nothing but the command, so that it can be read and typed.
const LAUNCHER: &str = "\
#!/bin/sh
# Runs the hardware tests on this host's GPUs. DS4_BACKEND is cuda unless set to hip.
cd \"$(dirname \"$0\")\" || exit 70
DS4_BACKEND=\"${DS4_BACKEND:-cuda}\" INSTA_WORKSPACE_ROOT=tree exec ./cargo-nextest nextest run \\
    --archive-file tests.tar.zst --workspace-remap tree --profile hardware \"$@\"
";

/// What the tests find by path, and what nextest wants of a workspace.
const TREE: [&str; 4] = ["Cargo.toml", ".config", "golden", "harness/Cargo.toml"];

/// Builds the archive and puts it beside its runner.
pub(crate) fn run() -> Result<(), Failure> {
    tool::NEXTEST.ensure()?;
    let folder = target_dir()?.join("hardware");
    let archive = folder.join("tests.tar.zst");
    // What an earlier run left must not travel along.
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).map_err(|error| failed(&folder, &error))?;
    step("archive", || {
        Program::new("cargo nextest archive --release -p ds4-harness --test hardware")
            .arg("--archive-file")
            .arg(archive.to_string_lossy())
            .run()
    })?;
    for name in TREE {
        let (from, to) = (root().join(name), folder.join("tree").join(name));
        copy(&from, &to).map_err(|error| failed(&from, &error))?;
    }
    let ds4 = release_dir()?.join("ds4");
    fs::copy(&ds4, folder.join("ds4")).map_err(|error| failed(&ds4, &error))?;
    let runner = nextest()?;
    fs::copy(&runner, folder.join("cargo-nextest")).map_err(|error| failed(&runner, &error))?;
    let launcher = folder.join("run");
    fs::write(&launcher, LAUNCHER).map_err(|error| failed(&launcher, &error))?;
    make_executable(&launcher).map_err(|error| failed(&launcher, &error))?;
    say(&format!(
        "copy {} to the GPU host and run its 'run' there",
        folder.display()
    ));
    Ok(())
}

/// The file of the test runner, which does its work without cargo.
fn nextest() -> Result<std::path::PathBuf, Failure> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let home = std::env::var_os("CARGO_HOME").map(|home| Path::new(&home).join("bin"));
    let user = std::env::var_os("HOME").map(|home| Path::new(&home).join(".cargo/bin"));
    let mut folders = std::env::split_paths(&path).chain(home).chain(user);
    let found = folders.find_map(|folder| {
        let file = folder.join("cargo-nextest");
        file.is_file().then_some(file)
    });
    found.ok_or_else(|| {
        let what = "cargo-nextest is on neither PATH nor in cargo's folder.";
        Failure::new(exit::INTERNAL, what, "cargo ci hw-archive")
    })
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    if !from.is_dir() {
        if let Some(folder) = to.parent() {
            fs::create_dir_all(folder)?;
        }
        return fs::copy(from, to).map(|_| ());
    }
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        copy(&entry.path(), &to.join(entry.file_name()))?;
    }
    Ok(())
}

#[cfg(unix)]
fn make_executable(file: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(file, fs::Permissions::from_mode(0o755))
}

#[cfg(not(unix))]
fn make_executable(_: &Path) -> io::Result<()> {
    Ok(())
}

fn failed(path: &Path, error: &io::Error) -> Failure {
    let what = format!("{}: {error}.", path.display());
    Failure::new(exit::INTERNAL, what, "cargo ci hw-archive")
}
