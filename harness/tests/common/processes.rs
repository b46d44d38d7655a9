//! The command as processes: ranks, and what becomes of them.

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::TcpListener;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread;

use serde_json::Value;

pub const SHAPE: [&str; 4] = ["--n-layer", "3", "--n-embd", "64"];

pub fn ds4() -> Command {
    let path = std::env::var("NEXTEST_BIN_EXE_ds4");
    let mut command = Command::new(path.unwrap_or_else(|_| env!("CARGO_BIN_EXE_ds4").to_owned()));
    command
        .env_remove("DS4_BACKEND")
        .env_remove("DS4_TP_KEY")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// A port that no other test takes: each process has eight of its own, below those that systems
/// give to outgoing connections, so that none is taken between here and its use.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = 10_000 + u16::try_from(std::process::id() % 2_500).unwrap() * 8;
    loop {
        let port = first + NEXT.fetch_add(1, Ordering::Relaxed) % 8;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// The shape of a small model, unless another one is given.
fn shape(more: &[&str]) -> &'static [&'static str] {
    if more.contains(&"--n-layer") {
        &[]
    } else {
        &SHAPE
    }
}

pub fn leader(port: u16, more: &[&str]) -> Child {
    rank(["leader", "--listen", "127.0.0.1"], port, more)
}

pub fn worker(port: u16, more: &[&str]) -> Child {
    rank(["worker", "--coordinator", "localhost"], port, more)
}

fn rank(place: [&str; 3], port: u16, more: &[&str]) -> Child {
    ds4()
        .args(["--tensor-parallel", "--role"])
        .args(place)
        .arg(port.to_string())
        .args(shape(more))
        .args(["--format", "json"])
        .args(more)
        .spawn()
        .unwrap()
}

pub fn ended(child: Child) -> (i32, Value, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = child.wait_with_output().unwrap();
    let value = serde_json::from_slice(&stdout).unwrap_or(Value::Null);
    let stderr = String::from_utf8(stderr).unwrap();
    (status.code().unwrap_or(-1), value, stderr)
}

pub fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill")
        .args([name, &child.id().to_string()])
        .status();
    assert!(sent.unwrap().success());
}

/// Waits until a process says a text on standard error; what it says later comes back at its end.
pub fn until_said(child: &mut Child, text: &str) {
    let mut lines = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains(text) {
        line.clear();
        assert!(
            lines.read_line(&mut line).unwrap() > 0,
            "it never said {text}"
        );
    }
    // Keeps the pipe empty, and open.
    thread::spawn(move || lines.read_to_end(&mut Vec::new()));
}
