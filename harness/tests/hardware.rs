//! The conformance suites on real devices: only under `--profile hardware`, where absence is an
//! error.

use std::process::Command;

#[test]
fn the_suites_hold_on_the_devices_that_ds4_backend_names() {
    let backend = std::env::var("DS4_BACKEND").unwrap_or_default();
    let real = ["cuda", "hip"].contains(&backend.to_ascii_lowercase().as_str());
    assert!(real, "set DS4_BACKEND to cuda or hip; it is '{backend}'");
    let path = std::env::var("NEXTEST_BIN_EXE_ds4");
    let path = path.unwrap_or_else(|_| env!("CARGO_BIN_EXE_ds4").to_owned());
    let output = Command::new(path).arg("check").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{}\n{said}",
        String::from_utf8_lossy(&output.stdout)
    );
}
