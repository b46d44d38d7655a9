//! Builds the simulated driver libraries and the stand-in for NCCL, so that they travel inside the
//! program.
//!
//! A cargo of its own does it: the libraries are release builds whatever the program is, and no flag
//! for it (of clippy, loom, coverage) reaches them. Nothing is fetched: what they need, the program
//! needs too. It works in one folder beside those of the profiles, so that debug builds, tests and
//! release builds share what it made.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

/// Folders with the libraries' sources, from the root of the workspace.
const SOURCES: [&str; 11] = [
    "Cargo.toml",
    "Cargo.lock",
    "kernels/src",
    "kernels/Cargo.toml",
    "engine/src",
    "engine/Cargo.toml",
    "sim/src",
    "sim/topologies",
    "sim/Cargo.toml",
    "sim/driver",
    "sim/nccl",
];

/// A library to build.
struct Library {
    package: &'static str,
    features: &'static [&'static str],
    /// What cargo calls the file.
    built: &'static str,
    soname: &'static str,
    /// What the program calls the file.
    file: &'static str,
    /// A name that this library has and the others lack.
    symbol: &'static str,
}

const LIBRARIES: [Library; 3] = [
    Library {
        package: "ds4-driver",
        features: &["--no-default-features", "--features", "cuda"],
        built: "libds4_simulated_driver.so",
        soname: "libcuda.so",
        file: "cuda.so",
        symbol: "cuModuleLoadData",
    },
    Library {
        package: "ds4-driver",
        features: &["--no-default-features", "--features", "hip"],
        built: "libds4_simulated_driver.so",
        soname: "libamdhip64.so",
        file: "hip.so",
        symbol: "hipModuleLoadData",
    },
    Library {
        package: "ds4-nccl",
        features: &[],
        built: "libds4_simulated_nccl.so",
        soname: "libnccl.so.2",
        file: "nccl.so",
        symbol: "ncclAllReduce",
    },
];

/// How often a library is built again that another build replaced by the other one meanwhile.
const TRIES: usize = 5;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let own = PathBuf::from(variable("CARGO_MANIFEST_DIR")?);
    let root = own.join("../..");
    println!("cargo::rerun-if-changed=build.rs");
    for source in SOURCES {
        println!("cargo::rerun-if-changed={}", root.join(source).display());
    }
    let out = PathBuf::from(variable("OUT_DIR")?);
    // Other systems find drivers by other means, and a static C library loads no libraries at all.
    let is_linux = variable("CARGO_CFG_TARGET_OS")? == "linux";
    let is_static = env::var("CARGO_CFG_TARGET_ENV").is_ok_and(|library| library == "musl");
    for which in LIBRARIES {
        let bytes = if is_linux && !is_static {
            library(&root, &out, &which)?
        } else {
            Vec::new()
        };
        fs::write(out.join(which.file), bytes)?;
    }
    Ok(())
}

/// One library, built and read. Both drivers come to lie in one place, and another profile's build may
/// put the other one there before this one is read.
fn library(root: &Path, out: &Path, which: &Library) -> io::Result<Vec<u8>> {
    for _ in 0..TRIES {
        let bytes = fs::read(build(root, out, which)?)?;
        let name = format!("\0{}\0", which.symbol);
        let holds_name = |part: &[u8]| part == name.as_bytes();
        if bytes.windows(name.len()).any(holds_name) {
            return Ok(bytes);
        }
    }
    let soname = which.soname;
    let problem = format!("the simulated {soname} was replaced while it was built; build again");
    Err(io::Error::other(problem))
}

/// Builds one library; returns its path.
fn build(root: &Path, out: &Path, which: &Library) -> io::Result<PathBuf> {
    let target = variable("TARGET")?;
    // OUT_DIR is PROFILE/build/PACKAGE/out.
    let profiles = out.ancestors().nth(4).unwrap_or(out);
    let folder = profiles.join("simulated-drivers");
    let mut command = Command::new(variable("CARGO")?);
    for (name, _) in env::vars_os() {
        if is_of_the_outer_build(&name.to_string_lossy()) {
            command.env_remove(name);
        }
    }
    let status = command
        .current_dir(root)
        .args(["rustc", "--quiet", "--frozen", "--release", "--lib"])
        .args(["--package", which.package])
        .args(which.features)
        .args(["--target", &target, "--target-dir"])
        .arg(&folder)
        .env("CARGO_PROFILE_RELEASE_DEBUG", "false")
        .env("CARGO_PROFILE_RELEASE_STRIP", "symbols")
        .arg("--")
        .arg(format!("-Clink-arg=-Wl,-soname,{}", which.soname))
        .status()?;
    if !status.success() {
        let problem = format!("building the simulated {} failed: {status}", which.soname);
        return Err(io::Error::other(problem));
    }
    Ok(folder.join(target).join("release").join(which.built))
}

/// Whether a variable is about how the program is built, which is no business of the libraries.
fn is_of_the_outer_build(name: &str) -> bool {
    const FLAGS: [&str; 8] = [
        "RUSTFLAGS",
        "CARGO_ENCODED_RUSTFLAGS",
        "CARGO_BUILD_RUSTFLAGS",
        "CARGO_BUILD_TARGET",
        "RUSTC_WRAPPER",
        "RUSTC_WORKSPACE_WRAPPER",
        "CLIPPY_ARGS",
        "CLIPPY_CONF_DIR",
    ];
    const PREFIXES: [&str; 5] = [
        "CARGO_PROFILE_",
        "CARGO_CFG_",
        "CARGO_FEATURE_",
        "CARGO_PKG_",
        "CARGO_MANIFEST_",
    ];
    FLAGS.contains(&name)
        || PREFIXES.iter().any(|prefix| name.starts_with(prefix))
        || (name.starts_with("CARGO_BUILD_") && name.ends_with("_WRAPPER"))
}

fn variable(name: &str) -> io::Result<String> {
    env::var(name).map_err(|error| io::Error::other(format!("{name}: {error}")))
}
