//! The tools that people measure such connections with, run beside ours where they are installed.
//!
//! Each is two processes on this host, as ours are two threads. One that is not installed, or does
//! not work here, has a row that says so.

use std::fmt;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

use crate::stopwatch::Stopwatch;

/// No run of a tool takes as long.
const LIMIT_NS: u64 = 20_000_000_000;
/// Servers need a moment until they listen: so often a client is tried.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(100);
const BYTES: u64 = 16 << 10;

/// What a tool measured, in nanoseconds of one way; or why there is nothing.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ToolRow {
    /// What was run.
    pub bench: String,
    /// The tool and its transport.
    pub tool: &'static str,
    /// `measured`, `not installed`, or why it did not work.
    pub state: String,
    /// Bytes of a message.
    pub bytes: u64,
    /// The median.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p50: Option<f64>,
    /// 99 of 100 lie below.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99: Option<f64>,
    /// 999 of 1000 lie below.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p999: Option<f64>,
    /// The least.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min: Option<f64>,
    /// Bytes a second, one way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_per_second: Option<f64>,
}

impl fmt::Display for ToolRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<19} {:<18} ", self.bench, self.tool)?;
        match (self.p50, self.bytes_per_second) {
            (Some(p50), _) => write!(f, "{:>11.2} us", p50 / 1e3)?,
            (None, Some(rate)) => write!(f, "{:>11.2} GB/s", rate / 1e9)?,
            (None, None) => f.write_str(&self.state)?,
        }
        if let (Some(p99), Some(p999), Some(min)) = (self.p99, self.p999, self.min) {
            write!(
                f,
                "  (p99 {:.1}, p99.9 {:.1}, min {:.2})",
                p99 / 1e3,
                p999 / 1e3,
                min / 1e3
            )?;
        }
        Ok(())
    }
}

struct Tool {
    name: &'static str,
    program: &'static str,
    variables: &'static [(&'static str, &'static str)],
    server: &'static str,
    client: &'static str,
    bench: &'static str,
    bytes: u64,
    read: fn(&str, &mut ToolRow) -> Option<()>,
}

const TOOLS: [Tool; 4] = [
    Tool {
        name: "sockperf tcp",
        program: "sockperf",
        variables: &[],
        server: "server --tcp -i 127.0.0.1 -p PORT --nonblocked",
        client: "ping-pong --tcp -i 127.0.0.1 -p PORT -m 16384 -t 1 --nonblocked",
        bench: "one way 16KiB",
        bytes: BYTES,
        read: sockperf,
    },
    Tool {
        name: "ucx tcp",
        program: "ucx_perftest",
        variables: &[("UCX_TLS", "tcp")],
        server: "-p PORT",
        client: "127.0.0.1 -p PORT -t tag_lat -s 16384 -n 20000 -w 2000 -f",
        bench: "one way 16KiB",
        bytes: BYTES,
        read: ucx,
    },
    Tool {
        name: "ucx shared memory",
        program: "ucx_perftest",
        variables: &[("UCX_TLS", "posix,self")],
        server: "-p PORT",
        client: "127.0.0.1 -p PORT -t tag_lat -s 16384 -n 20000 -w 2000 -f",
        bench: "one way 16KiB",
        bytes: BYTES,
        read: ucx,
    },
    Tool {
        name: "iperf3 tcp",
        program: "iperf3",
        variables: &[],
        server: "-s -B 127.0.0.1 -p PORT",
        client: "-c 127.0.0.1 -p PORT -t 1 -J",
        bench: "stream 128KiB",
        // What iperf3 gives to each call.
        bytes: 128 << 10,
        read: iperf3,
    },
];

/// Runs every tool whose bench contains `filter`; `each` is told of every row.
pub fn measure_tools(
    filter: Option<&str>,
    path: &std::ffi::OsStr,
    stop: &AtomicBool,
    each: &mut dyn FnMut(&ToolRow),
) -> Vec<ToolRow> {
    let mut rows = Vec::new();
    let wanted = |tool: &&Tool| filter.is_none_or(|part| tool.bench.contains(part));
    for tool in TOOLS.iter().filter(wanted) {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let mut row = ToolRow {
            bench: tool.bench.to_owned(),
            tool: tool.name,
            bytes: tool.bytes,
            ..ToolRow::default()
        };
        row.state = match installed(path, tool.program) {
            None => "not installed".to_owned(),
            Some(program) => match run(tool, &program, &mut row) {
                Ok(()) => "measured".to_owned(),
                Err(why) => format!("does not work here: {why}"),
            },
        };
        each(&row);
        rows.push(row);
    }
    rows
}

fn installed(path: &std::ffi::OsStr, program: &str) -> Option<PathBuf> {
    let folders = std::env::split_paths(path);
    let found = folders.map(|folder| folder.join(program));
    found.into_iter().find(|it| it.is_file())
}

fn run(tool: &Tool, program: &Path, row: &mut ToolRow) -> Result<(), String> {
    let port = TcpListener::bind(("127.0.0.1", 0)).and_then(|it| it.local_addr());
    let port = port.map_err(|error| error.to_string())?.port().to_string();
    let start = |line: &str, out: Stdio| {
        Command::new(program)
            .args(line.split(' ').map(|word| word.replace("PORT", &port)))
            .envs(tool.variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| error.to_string())
    };
    let mut server = start(tool.server, Stdio::null())?;
    let watch = Stopwatch::start();
    let mut output = Err("its server did not come up".to_owned());
    for _ in 0..TRIES {
        pause();
        output = start(tool.client, Stdio::piped()).and_then(|client| ended(client, &watch));
        if output.is_ok() || watch.elapsed_ns() > LIMIT_NS {
            break;
        }
    }
    // One that has ended already is no worse.
    let _ = server.kill();
    let _ = server.wait();
    let output = output?;
    (tool.read)(&output, row).ok_or_else(|| "its output has another form".to_owned())
}

/// What a client printed, once it has ended well.
fn ended(mut client: Child, watch: &Stopwatch) -> Result<String, String> {
    // Its output is far below what a pipe holds.
    let status = loop {
        match client.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if watch.elapsed_ns() > LIMIT_NS => {
                let _ = client.kill();
                let _ = client.wait();
                return Err("it did not end in time".to_owned());
            }
            Ok(None) => pause(),
            Err(error) => return Err(error.to_string()),
        }
    };
    let out = client.stdout.take().ok_or("no output")?;
    let text = std::io::read_to_string(out).map_err(|error| error.to_string())?;
    if status.success() {
        Ok(text)
    } else {
        Err(format!("it ended with {status}"))
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a process of others tells nobody when it listens or has ended"
)]
fn pause() {
    std::thread::sleep(PAUSE);
}

fn sockperf(text: &str, row: &mut ToolRow) -> Option<()> {
    let at = |name: &str| {
        let line = text.lines().find(|line| line.contains(name))?;
        let value: f64 = line.split_once('=')?.1.trim().parse().ok()?;
        Some(value * 1e3)
    };
    row.p50 = Some(at("percentile 50.000")?);
    row.p99 = Some(at("percentile 99.000")?);
    row.p999 = Some(at("percentile 99.900")?);
    row.min = Some(at("<MIN> observation")?);
    rate(row)
}

/// The last line: iterations, then the median in microseconds.
fn ucx(text: &str, row: &mut ToolRow) -> Option<()> {
    let numbers = |line: &str| -> Option<Vec<f64>> {
        let words = line.split_whitespace();
        let all: Option<Vec<f64>> = words.map(|word| word.parse().ok()).collect();
        all.filter(|all| all.len() >= 4)
    };
    let last = text.lines().rev().find_map(numbers)?;
    row.p50 = Some(last.get(1)? * 1e3);
    rate(row)
}

fn iperf3(text: &str, row: &mut ToolRow) -> Option<()> {
    let value: Value = serde_json::from_str(text).ok()?;
    let bits = value
        .pointer("/end/sum_received/bits_per_second")?
        .as_f64()?;
    row.bytes_per_second = Some(bits / 8.0);
    Some(())
}

fn rate(row: &mut ToolRow) -> Option<()> {
    row.bytes_per_second = Some(row.bytes as f64 * 1e9 / row.p50?);
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    /// A program in a folder of its own.
    fn pretend(name: &str, script: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(name);
        std::fs::write(&file, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
        folder
    }

    fn all(path: &Path) -> Vec<ToolRow> {
        let never = AtomicBool::new(false);
        measure_tools(None, path.as_os_str(), &never, &mut |_| {})
    }

    #[test]
    fn a_tool_that_is_missing_has_a_row_that_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let rows = all(folder.path());
        assert_eq!(rows.len(), TOOLS.len());
        for row in rows {
            assert_eq!(row.state, "not installed");
            assert!(row.to_string().contains("not installed"), "{row}");
        }
    }

    #[test]
    fn figures_of_each_tool_are_read_and_another_form_is_told() {
        let said = "sockperf: ---> percentile 99.900 =   22.533\n\
                    sockperf: ---> percentile 99.000 =   18.462\n\
                    sockperf: ---> percentile 50.000 =    6.499\n\
                    sockperf: ---> <MIN> observation =    6.049";
        let folder = pretend("sockperf", &format!("cat << 'END'\n{said}\nEND"));
        let row = all(folder.path()).remove(0);
        assert_eq!(row.state, "measured");
        let figures = (row.p50, row.p99, row.p999, row.min);
        let want = (Some(6499.0), Some(18462.0), Some(22533.0), Some(6049.0));
        assert_eq!(figures, want);
        let said = "|  Test  |\n   20000   29.645  30.414  34.121  513.75";
        let folder = pretend("ucx_perftest", &format!("cat << 'END'\n{said}\nEND"));
        assert_eq!(all(folder.path())[1].p50, Some(29_645.0));
        let said = r#"{"end":{"sum_received":{"bits_per_second":8e9}}}"#;
        let folder = pretend("iperf3", &format!("echo '{said}'"));
        assert_eq!(all(folder.path())[3].bytes_per_second, Some(1e9));
        let folder = pretend("iperf3", "echo nothing");
        let row = all(folder.path()).remove(3);
        assert!(row.state.contains("another form"), "{}", row.state);
    }
}
