//! The library as C and C++ programs meet it: compiled against the header, linked and run.
//!
//! Cargo builds the library of this crate in all its forms beside the tests.
#![expect(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test that cannot go on fails, and says what it did not do"
)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use ds4_embedded::Interface;
use ds4_engine::backend::driver::{Driver, Vendor};

const WARNINGS: [&str; 4] = ["-Wall", "-Wextra", "-Werror", "-pedantic"];

fn here(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// Where the library lies that belongs to this test.
fn built() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().unwrap().to_path_buf()
}

fn is_there(program: &str) -> bool {
    Command::new(program)
        .arg("--version")
        .output()
        .is_ok_and(|output| output.status.success())
}

/// The C compiler; without one nothing links, Rust programs neither.
fn c_compiler() -> &'static str {
    assert!(is_there("cc"), "there is no C compiler named cc");
    "cc"
}

/// The C++ compiler; `cargo ci test` says when there is none.
fn cxx_compiler() -> Option<&'static str> {
    if is_there("c++") {
        return Some("c++");
    }
    assert!(
        std::env::var_os("CI").is_none(),
        "there is no C++ compiler named c++"
    );
    eprintln!("NOT RUN: there is no C++ compiler named c++");
    None
}

fn succeed(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

fn compiler(program: &str, standard: &str) -> Command {
    let mut command = Command::new(program);
    command
        .arg(format!("-std={standard}"))
        .args(WARNINGS)
        .arg("-I")
        .arg(here("include"));
    command
}

/// Compiles one source file of the tests against the shared library.
fn program(folder: &Path, compiler_name: &str, standard: &str, source: &str) -> PathBuf {
    let out = folder.join("program");
    let library = built();
    succeed(
        compiler(compiler_name, standard)
            .args(["-g", "-O1", "-pthread", "-o"])
            .arg(&out)
            .arg(here("tests").join(source))
            .arg("-L")
            .arg(&library)
            .arg(format!("-Wl,-rpath,{}", library.display()))
            .arg("-l:libds4.so"),
    );
    out
}

/// Runs a program on the devices that the test was told to use, simulated ones by default.
fn run(command: &mut Command) -> Output {
    if std::env::var_os("DS4_BACKEND").is_none_or(|backend| backend.is_empty()) {
        command.env("DS4_BACKEND", "sim");
    }
    succeed(command)
}

#[test]
fn the_header_is_c99_and_cxx_without_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    let mut compilers = vec![(c_compiler(), "c99", "a.c"), (c_compiler(), "c11", "b.c")];
    compilers.extend(
        cxx_compiler()
            .into_iter()
            .flat_map(|cxx| [(cxx, "c++11", "c.cpp"), (cxx, "c++20", "d.cpp")]),
    );
    for (name, standard, file) in compilers {
        let source = folder.path().join(file);
        std::fs::write(&source, "#include <ds4.h>\n#include <ds4.h>\nint used;\n").unwrap();
        succeed(compiler(name, standard).arg("-fsyntax-only").arg(source));
    }
}

#[test]
fn the_practices_hold_in_c() {
    let folder = tempfile::tempdir().unwrap();
    let program = program(folder.path(), c_compiler(), "gnu99", "practices.c");
    for topology in ["8x24g-mixed", "4x24g-bare", "1x24g"] {
        run(Command::new(&program).env("DS4_TOPOLOGY", topology));
    }
}

#[test]
fn the_practices_hold_on_the_real_backends_over_simulated_drivers() {
    let folder = tempfile::tempdir().unwrap();
    let program = program(folder.path(), c_compiler(), "gnu99", "practices.c");
    for (backend, driver) in [("cuda", Interface::Cuda), ("hip", Interface::Hip)] {
        let libraries = folder.path().join(backend);
        std::fs::create_dir(&libraries).unwrap();
        driver.write_to(&libraries).unwrap();
        succeed(
            Command::new(&program)
                .env("DS4_BACKEND", backend)
                .env("DS4_FAKE_GPUS", "2G,1G")
                .env("LD_LIBRARY_PATH", &libraries),
        );
    }
}

#[test]
fn the_practices_hold_with_the_static_library() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("program");
    succeed(
        compiler(c_compiler(), "gnu99")
            .args(["-pthread", "-o"])
            .arg(&out)
            .arg(here("tests/practices.c"))
            .arg(built().join("libds4.a"))
            .args(["-lgcc_s", "-ldl", "-lm", "-lc"]),
    );
    run(&mut Command::new(out));
}

#[test]
fn the_practices_are_clean_under_valgrind() {
    if !is_there("valgrind") {
        eprintln!("NOT RUN: valgrind is not installed");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = program(folder.path(), c_compiler(), "gnu99", "practices.c");
    run(Command::new("valgrind")
        .args(["--quiet", "--leak-check=full", "--error-exitcode=99"])
        .args([
            "--errors-for-leak-kinds=definite,indirect,possible",
            "--fair-sched=yes",
        ])
        .arg(program));
}

#[test]
fn without_a_driver_there_is_no_gpu_and_no_simulation() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("detect.c");
    let text = "#include <ds4.h>\n#include <stdio.h>\nint main(void) {\n    int count = \
                ds4_gpu_detect();\n    printf(\"%d %s\\n\", count, ds4_gpu_mgpu_last_error());\n    \
                return 0;\n}\n";
    std::fs::write(&source, text).unwrap();
    let program = program(
        folder.path(),
        c_compiler(),
        "c99",
        &source.to_string_lossy(),
    );
    let output = succeed(Command::new(program).env_remove("DS4_BACKEND"));
    let said = String::from_utf8(output.stdout).unwrap();
    let count: u32 = said.split(' ').next().unwrap().parse().unwrap();
    let mut drivers = [Vendor::Cuda, Vendor::Hip]
        .into_iter()
        .filter_map(|vendor| Driver::load(vendor).ok());
    let present = drivers.next().map_or(0, |driver| driver.count().min(32));
    assert_eq!(count, present, "{said}");
    assert!(count > 0 || said.contains("driver"), "{said}");
}

#[test]
fn pytorch_gets_memory_on_its_device_or_an_exception() {
    let Some(cxx) = cxx_compiler() else { return };
    let folder = tempfile::tempdir().unwrap();
    let program = program(folder.path(), cxx, "c++17", "torch.cpp");
    let ran = |command: &mut Command| {
        let output = run(command
            .env("DS4_TOPOLOGY", "2xh200")
            .env("DS4_TORCH_STATS", "1"));
        String::from_utf8(output.stderr).unwrap()
    };
    let said = ran(Command::new(&program).env("DS4_GPU_VRAM", "64M,64M"));
    assert!(said.contains("ds4: device 0: peak live"), "{said}");
    let of_devices = said.lines().filter(|line| line.contains("peak live"));
    assert_eq!(of_devices.count(), 2, "{said}");
    ran(Command::new(&program)
        .arg("borrow")
        .env("DS4_GPU_VRAM", "64M,48M")
        .env("DS4_TORCH_PLACEMENT", "0:0,1"));
}

#[test]
fn pytorch_is_told_how_often_a_driver_was_called() {
    let Some(cxx) = cxx_compiler() else { return };
    let folder = tempfile::tempdir().unwrap();
    let program = program(folder.path(), cxx, "c++17", "torch.cpp");
    let libraries = folder.path().join("cuda");
    std::fs::create_dir(&libraries).unwrap();
    Interface::Cuda.write_to(&libraries).unwrap();
    let output = succeed(
        Command::new(&program)
            .env("DS4_BACKEND", "cuda")
            .env("DS4_FAKE_GPUS", "1G,1G")
            .env("DS4_GPU_VRAM", "64M,64M")
            .env("DS4_TORCH_STATS", "1")
            .env("LD_LIBRARY_PATH", &libraries),
    );
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains(" calls of the driver"), "{said}");
}
