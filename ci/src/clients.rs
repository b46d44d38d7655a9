//! Programs of others on the simulated driver, which must take it for one, and the real NCCL, which
//! must not.

use std::path::Path;

use crate::exit;
use crate::step::{Failure, Program, root, step};
use crate::tasks::target_dir;

const AGAIN: &str = "cargo ci clients";

/// What is installed from PyPI, and the script that uses it.
const CLIENTS: [(&str, &str, &str); 3] = [
    (
        "NVIDIA's Python bindings",
        "cuda-bindings==13.5.*",
        "ci/clients/cuda_bindings.py",
    ),
    (
        "Numba",
        "numba-cuda==0.30.4 nvidia-cuda-runtime==13.*",
        "ci/clients/numba_arrays.py",
    ),
    (
        "NCCL, loaded by our ranks",
        "nvidia-nccl-cu12==2.21.5",
        "ci/clients/nccl_ranks.py",
    ),
];

/// Installs the clients into an environment of their own and runs them on simulated GPUs.
///
/// # Errors
/// A client fails, or could not be installed.
pub fn run() -> Result<(), Failure> {
    let environment = target_dir()?.join("clients");
    if !Program::new("python3 -m venv --help").succeeds() {
        return Err(not_run("there is no python3 with venv"));
    }
    let venv = Program::new("python3 -m venv").arg(environment.to_string_lossy());
    venv.run()
        .map_err(|_| not_run("python3 makes no environment"))?;
    let python = environment.join("bin/python");
    for (name, packages, script) in CLIENTS {
        step(&format!("installing {name}"), || install(&python, packages))?;
        step(name, || on_simulated_gpus(&python, script))?;
    }
    Ok(())
}

fn install(python: &Path, packages: &str) -> Result<(), Failure> {
    let pip = Program::default().arg(python.to_string_lossy());
    let words = [
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
    ];
    let words = words.into_iter().chain(packages.split(' '));
    let pip = words.fold(pip, Program::arg);
    pip.run()
        .map_err(|failure| not_run(&format!("pip cannot install {packages}: {}", failure.what)))
}

fn on_simulated_gpus(python: &Path, script: &str) -> Result<(), Failure> {
    let line = "cargo run --quiet -p ds4-harness --bin ds4 -- fake-cuda --gpus 1G,2G --ledger --";
    Program::new(line)
        .arg(python.to_string_lossy())
        .arg(root().join(script).to_string_lossy())
        .run()
}

fn not_run(why: &str) -> Failure {
    let what = format!("the clients were NOT RUN: {why}.");
    Failure::new(exit::NOT_COMPARED, what, AGAIN)
}
