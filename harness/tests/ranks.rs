//! Ranks as processes: the two commands, and what ends them.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a failed step is a failed test")]
#![expect(
    clippy::disallowed_methods,
    reason = "faults strike running processes, and how soon they end is what is shown"
)]

mod common;

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddrV4, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::processes::{SHAPE, ds4, ended, free_port, leader, signal, until_said, worker};
use serde_json::Value;

fn key(directory: &Path, name: &str) -> PathBuf {
    let path = directory.join(name);
    let made = ds4().args(["keygen", "-o"]).arg(&path).output().unwrap();
    assert!(made.status.success());
    path
}

#[test]
fn a_key_in_the_environment_that_is_none_never_means_that_none_is_wanted() {
    use std::os::unix::ffi::OsStrExt as _;
    for value in [&b"\xff"[..], b"", b"zz"] {
        let port = free_port().to_string();
        let output = ds4()
            .args([
                "--tensor-parallel",
                "--role",
                "leader",
                "--listen",
                "127.0.0.1",
            ])
            .args([&port, "--connect-timeout", "1"])
            .args(SHAPE)
            .env("DS4_TP_KEY", std::ffi::OsStr::from_bytes(value))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("DS4_TP_KEY"), "{said}");
    }
}

#[test]
fn half_a_key_is_not_left_behind_on_a_full_disk() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tp.key");
    let output = Command::new("prlimit")
        .args(["--fsize=10", "--"])
        .arg(ds4().get_program())
        .args(["keygen", "-o"])
        .arg(&path)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("File too large"), "{said}");
    assert!(!path.exists());
}

#[test]
fn the_two_commands_end_with_equal_verified_totals() {
    let directory = tempfile::tempdir().unwrap();
    let key = key(directory.path(), "tp.key").display().to_string();
    for transport in ["auto", "tcp", "shm"] {
        let port = free_port();
        let common = ["--transport", transport, "--key-file", &key];
        let worker = worker(port, &common);
        let (code, lead, said) = ended(leader(port, &[&common[..], &["--tokens", "70"]].concat()));
        assert_eq!(code, 0, "{said}");
        let (code, follow, said) = ended(worker);
        assert_eq!(code, 0, "{said}");
        assert_eq!(lead["state_hash"], follow["state_hash"]);
        assert_eq!(
            (&lead["tokens"], &follow["tokens"]),
            (&70.into(), &70.into())
        );
        // Six gates a token, two of a prompt, drafts and one of them again.
        assert_eq!(lead["gates"], 6 * 73);
        assert_eq!(lead["hash_checks"], 2);
        assert!(lead["verified_bytes"].as_u64().unwrap() > 6 * 70 * 256);
        let path = if transport == "tcp" { "tcp" } else { "shm" };
        assert_eq!(follow["transport"]["path"], path);
    }
}

#[test]
fn two_ranks_that_encrypt_end_in_order_and_one_alone_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let key = key(directory.path(), "tp.key").display().to_string();
    let plain = ["--transport", "tcp", "--key-file", &key];
    let sealed = [&plain[..], &["--encrypt"]].concat();
    let port = free_port();
    let leader = leader(port, &[&sealed[..], &["--tokens", "5"]].concat());
    let (code, _, said) = ended(worker(port, &plain));
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("--encrypt"), "{said}");
    let (code, follow, said) = ended(worker(port, &sealed));
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("all connections are encrypted"), "{said}");
    let (code, lead, said) = ended(leader);
    assert_eq!(code, 0, "{said}");
    assert_eq!(lead["encrypted"], true);
    assert_eq!(lead["state_hash"], follow["state_hash"]);
}

/// Processor time of a process, of which the system counts hundredths of seconds.
fn processor_time(child: &Child) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
    // The name in parentheses may hold anything.
    let (_, fields) = stat.rsplit_once(')').unwrap();
    let ticks: Vec<u64> = fields
        .split_whitespace()
        .skip(11)
        .take(2)
        .map(|field| field.parse().unwrap())
        .collect();
    Duration::from_millis(10 * ticks.iter().sum::<u64>())
}

#[test]
fn a_rank_that_waits_with_block_takes_less_than_a_twentieth_of_a_core() {
    for transport in ["tcp", "shm"] {
        let port = free_port();
        let common = ["--transport", transport, "--wait", "block"];
        let mut leader = leader(port, &[&common[..], &["--tokens", "1000000000"]].concat());
        let mut worker = worker(port, &common);
        until_said(&mut leader, "gates travel by");
        thread::sleep(Duration::from_millis(200));
        // With its leader stopped the worker waits, for a command or in a gate.
        signal(&leader, "-STOP");
        thread::sleep(Duration::from_millis(100));
        let (before, since) = (processor_time(&worker), Instant::now());
        assert!(before > Duration::ZERO, "it worked before");
        thread::sleep(Duration::from_millis(1500));
        let (used, passed) = (processor_time(&worker) - before, since.elapsed());
        for child in [&mut leader, &mut worker] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert!(used * 20 < passed, "{transport}: {used:?} of {passed:?}");
    }
}

#[test]
fn benches_of_links_give_every_figure_and_name_the_tools_that_are_missing() {
    for what in ["link", "gate"] {
        let output = ds4()
            .args([
                "bench", what, "--quick", "--only", "16KiB", "--format", "json",
            ])
            .env("PATH", "/nowhere")
            .output()
            .unwrap();
        assert!(output.status.success());
        let value: Value = serde_json::from_slice(&output.stdout).unwrap();
        let rows = value["rows"].as_array().unwrap();
        assert!(rows.len() >= 7, "{value}");
        for row in rows {
            let figures = ["min", "p50", "p99", "p999", "bytes_per_second"];
            let figures = figures.map(|name| row[name].as_f64().unwrap());
            assert!(
                figures.is_sorted_by(|a, b| a <= b) && figures[0] > 0.0,
                "{row}"
            );
            assert!(row["verified_bytes"].as_u64().unwrap() > 16 << 10, "{row}");
        }
        let tools = value["tools"].as_array().unwrap();
        assert_eq!(tools.len(), 3, "{value}");
        assert!(tools.iter().all(|tool| tool["state"] == "not installed"));
    }
}

/// A leader and a worker in the middle of a run that would take hours.
fn endless(transport: &str) -> (Child, Child) {
    let port = free_port();
    let common = ["--transport", transport, "--gate-timeout", "1"];
    let mut leader = leader(port, &[&common[..], &["--tokens", "1000000000"]].concat());
    let worker = worker(port, &common);
    until_said(&mut leader, "gates travel by");
    thread::sleep(Duration::from_millis(200));
    (leader, worker)
}

#[test]
fn a_killed_peer_ends_the_other_at_once_and_a_stopped_one_at_the_deadline() {
    for transport in ["tcp", "shm"] {
        for (name, code, limit) in [("-KILL", 1, 3), ("-STOP", 124, 6)] {
            let (leader, mut worker) = endless(transport);
            signal(&worker, name);
            let since = Instant::now();
            let (exit, value, _) = ended(leader);
            let took = since.elapsed();
            let why = value["error"]["message"].as_str().unwrap().to_owned();
            assert_eq!(exit, code, "{transport} {name}: {why}");
            assert!(why.contains("rank 1") && why.contains("sequence"), "{why}");
            assert!(
                took < Duration::from_secs(limit),
                "{transport} {name}: {took:?}"
            );
            assert_eq!(value["complete"], false);
            worker.kill().unwrap();
            worker.wait().unwrap();
        }
    }
}

#[test]
fn ctrl_c_ends_both_and_the_other_side_is_told_why() {
    let (leader, worker) = endless("auto");
    signal(&leader, "-INT");
    let (code, value, _) = ended(leader);
    assert_eq!(code, 130, "{value}");
    assert!(value["tokens"].as_u64().unwrap() > 0, "{value}");
    let (code, _, said) = ended(worker);
    assert_eq!(code, 1, "{said}");
    assert!(
        said.contains("rank 0") && said.contains("interrupted"),
        "{said}"
    );
}

#[test]
fn a_wrong_key_is_refused_and_the_right_worker_still_gets_in() {
    let directory = tempfile::tempdir().unwrap();
    let right = key(directory.path(), "right.key").display().to_string();
    let wrong = key(directory.path(), "wrong.key").display().to_string();
    let port = free_port();
    let leader = leader(port, &["--key-file", &right, "--tokens", "3"]);
    let (code, _, said) = ended(worker(port, &["--key-file", &wrong]));
    assert_eq!(code, 1);
    assert!(said.contains("does not have the same key"), "{said}");
    let (code, _, said) = ended(worker(port, &["--insecure"]));
    assert_eq!(code, 1);
    assert!(said.contains("has a key and this one has none"), "{said}");
    let (code, _, said) = ended(worker(port, &["--key-file", &right]));
    assert_eq!(code, 0, "{said}");
    let (code, _, said) = ended(leader);
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("refused a connection"), "{said}");
}

/// A connection from another address than the ranks': who fails there is slowed down, not they.
fn stranger(port: u16) -> TcpStream {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&socket, &SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, 2), 0)).unwrap();
    connect(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, port)).unwrap();
    socket.into()
}

#[test]
fn scans_floods_garbage_and_slow_strangers_do_not_end_the_bring_up() {
    let port = free_port();
    let mut leader = leader(port, &["--tokens", "3"]);
    until_said(&mut leader, "waiting for ranks");
    // A hundred at once: some go, some stay silent, some talk nonsense, one byte at a time.
    let mut strangers = Vec::new();
    for number in 0..100_u8 {
        let mut stream = stranger(port);
        match number % 4 {
            0 => drop(stream),
            1 => strangers.push(stream),
            2 => {
                let _ = stream.write_all(&[b'G'; 300]);
                strangers.push(stream);
            }
            _ => {
                let _ = stream.write_all(&[number]);
                let _ = stream.shutdown(Shutdown::Write);
            }
        }
    }
    let (code, _, said) = ended(worker(port, &[]));
    assert_eq!(code, 0, "{said}");
    assert_eq!(leader.wait().unwrap().code(), Some(0));
}

#[test]
fn nobody_can_connect_once_the_ranks_are_together() {
    let port = free_port();
    let mut leader = leader(port, &["--tokens", "1000000000"]);
    let mut worker = worker(port, &[]);
    until_said(&mut leader, "gates travel by");
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
    for child in [&mut leader, &mut worker] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

/// What a network in between does from now on.
#[derive(Clone, Copy)]
enum Weather {
    Fine = 0,
    /// Nothing arrives any more, and nobody is told.
    Cut = 1,
    /// Connections are reset.
    Reset = 2,
}

/// A network in between: every connection to the port is passed on.
fn network(to: u16) -> (u16, Arc<AtomicU8>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let weather = Arc::new(AtomicU8::new(Weather::Fine as u8));
    let shown = Arc::clone(&weather);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let near = stream.unwrap();
            let far = TcpStream::connect(("127.0.0.1", to)).unwrap();
            for (mut from, mut into) in [
                (near.try_clone().unwrap(), far.try_clone().unwrap()),
                (far, near),
            ] {
                let weather = Arc::clone(&weather);
                thread::spawn(move || {
                    let mut buffer = [0; 4096];
                    from.set_read_timeout(Some(Duration::from_millis(20)))
                        .unwrap();
                    loop {
                        let count = match from.read(&mut buffer) {
                            Ok(0) => break,
                            Ok(count) => count,
                            Err(_) => 0,
                        };
                        match weather.load(Ordering::Relaxed) {
                            0 if into.write_all(&buffer[..count]).is_err() => break,
                            // Closing with bytes unread resets a connection.
                            2 => break,
                            _ => {}
                        }
                    }
                    let _ = into.shutdown(Shutdown::Both);
                });
            }
        }
    });
    (port, shown)
}

#[test]
fn a_cut_cable_ends_both_at_the_deadline_and_a_reset_at_once() {
    for (weather, limit) in [(Weather::Cut, 8), (Weather::Reset, 4)] {
        let port = free_port();
        let common = ["--transport", "tcp", "--gate-timeout", "1"];
        let mut leader = leader(port, &[&common[..], &["--tokens", "1000000000"]].concat());
        until_said(&mut leader, "waiting for ranks");
        let (between, sky) = network(port);
        let mut worker = worker(between, &common);
        until_said(&mut worker, "gates travel by");
        thread::sleep(Duration::from_millis(200));
        sky.store(weather as u8, Ordering::Relaxed);
        let since = Instant::now();
        for child in [leader, worker] {
            let (code, value, _) = ended(child);
            let why = value["error"]["message"].as_str().unwrap().to_owned();
            assert!(code == 1 || code == 124, "{why}");
            assert!(why.contains("rank ") && why.contains("layer "), "{why}");
        }
        assert!(
            since.elapsed() < Duration::from_secs(limit),
            "{:?}",
            since.elapsed()
        );
    }
}

/// Two hosts on one cable, as network namespaces; gone at the end.
struct Hosts {
    names: [String; 2],
}

impl Hosts {
    fn new() -> Result<Self, String> {
        let id = std::process::id();
        let hosts = Self {
            names: [format!("ds4a{id}"), format!("ds4b{id}")],
        };
        let [a, b] = &hosts.names;
        ip(&["netns", "add", a])?;
        ip(&["netns", "add", b])?;
        let cable = ["link", "add", "c0", "netns", a, "type", "veth"];
        ip(&[&cable[..], &["peer", "name", "c0", "netns", b]].concat())?;
        for (name, address) in [(a, "10.77.0.1/24"), (b, "10.77.0.2/24")] {
            ip(&["-n", name, "addr", "add", address, "dev", "c0"])?;
            ip(&["-n", name, "link", "set", "c0", "up"])?;
        }
        Ok(hosts)
    }

    fn spawn(&self, host: usize, arguments: &[&str]) -> Child {
        let ds4 = ds4();
        Command::new("ip")
            .args(["netns", "exec", &self.names[host]])
            .arg(ds4.get_program())
            .args(arguments)
            .args(SHAPE)
            .args(["--format", "json", "--gate-timeout", "1", "--insecure"])
            .env_remove("DS4_BACKEND")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = ip(&["netns", "del", name]);
        }
    }
}

fn ip(arguments: &[&str]) -> Result<(), String> {
    let output = Command::new("ip").args(arguments).output();
    let output = output.map_err(|error| format!("ip: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    output.status.success().then_some(()).ok_or(said)
}

#[test]
fn ranks_of_two_hosts_take_tcp_and_a_pulled_cable_ends_both_at_the_deadline() {
    let hosts = match Hosts::new() {
        Ok(hosts) => hosts,
        Err(why) => {
            eprintln!("SKIPPED: no two network namespaces here: {why}");
            return;
        }
    };
    let tp = "--tensor-parallel";
    let lead = [tp, "--role", "leader", "--listen", "10.77.0.1", "7000"];
    let mut leader = hosts.spawn(0, &[&lead[..], &["--tokens", "1000000000"]].concat());
    until_said(&mut leader, "waiting for ranks");
    let work = [tp, "--role", "worker", "--coordinator", "10.77.0.1", "7000"];
    let mut worker = hosts.spawn(1, &work);
    until_said(&mut worker, "gates travel by tcp");
    thread::sleep(Duration::from_millis(200));
    ip(&["-n", &hosts.names[1], "link", "set", "c0", "down"]).unwrap();
    let since = Instant::now();
    for child in [leader, worker] {
        let (code, value, _) = ended(child);
        let why = value["error"]["message"].as_str().unwrap().to_owned();
        assert_eq!(code, 124, "{why}");
        assert!(why.contains("rank ") && why.contains("in vain"), "{why}");
        assert!(
            value["transport"]["reason"]
                .as_str()
                .unwrap()
                .contains("another host")
        );
    }
    assert!(since.elapsed() < Duration::from_secs(10));
}

#[test]
fn a_forced_path_that_cannot_be_had_is_an_error_with_the_reason_on_both_sides() {
    let forced = ["--insecure", "--transport", "rdma"];
    let port = free_port();
    let worker = worker(port, &forced);
    let missing = [&forced[..], &["--rdma-device", "no-such-device"]].concat();
    for child in [leader(port, &missing), worker] {
        let (code, value, said) = ended(child);
        assert_eq!(code, 1, "{said}");
        let why = value["error"]["message"].as_str().unwrap();
        assert!(why.contains("no transport works"), "{why}");
        assert!(why.contains("no RDMA: "), "{why}");
    }
    // What is not forced goes another way and says why.
    let port = free_port();
    let auto = ["--insecure", "--rdma-device", "no-such-device"];
    let worker = self::worker(port, &auto);
    for child in [leader(port, &auto), worker] {
        let (code, value, said) = ended(child);
        assert_eq!(code, 0, "{said}");
        assert_eq!(value["transport"]["path"], "shm");
        let why = value["transport"]["reason"].as_str().unwrap();
        assert!(why.contains("no RDMA: "), "{why}");
    }
}

#[test]
fn flags_that_do_not_fit_together_are_refused_in_words() {
    let tp = "--tensor-parallel";
    let lead = [tp, "--role", "leader", "--listen", "127.0.0.1", "1"];
    let work = [tp, "--role", "worker", "--coordinator", "h", "1"];
    let mut all = String::new();
    let mut say = |arguments: &[&str]| {
        let output = ds4().args(arguments).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        all.push_str(&format!("$ ds4 {}\n{said}\n", arguments.join(" ")));
    };
    say(&[tp]);
    say(&[tp, "--role", "boss"]);
    say(&[tp, "--role", "leader"]);
    say(&[tp, "--role", "worker"]);
    say(&[&lead[..], &["--coordinator", "h", "1"]].concat());
    say(&[&work[..], &["--listen", "h", "1"]].concat());
    say(&[tp, "--role", "coordinator", "--listen", "127.0.0.1", "0"]);
    say(&[&lead[..], &["--transport", "bogus"]].concat());
    say(&[
        &lead[..],
        &["--transport", "nvlink", "--rdma-device", "mlx5_0"],
    ]
    .concat());
    say(&[&lead[..], &["--transport", "tcp", "--rdma-gid-index", "3"]].concat());
    say(&[&lead[..], &["--backend", "Metal"]].concat());
    say(&lead);
    say(&[&lead[..], &["--encrypt"]].concat());
    say(&[&lead[..], &["--encrypt", "--insecure"]].concat());
    say(&[&lead[..], &["--rank", "1"]].concat());
    say(&[&work[..], &["--tokens", "3"]].concat());
    say(&[&work[..], &["--ranks", "4", "--rank", "2"]].concat());
    say(&[
        &work[..],
        &["--ranks", "4", "--rank", "3", "--peer", "3", "h", "1"],
    ]
    .concat());
    say(&[tp, "--role", "auto"]);
    say(&[tp, "--role", "auto", "--peer", "1", "h", "1"]);
    let v7 = [&lead[..], &["--protocol", "ds4-v7"]].concat();
    say(&[&lead[..], &["--protocol", "ds4-v9"]].concat());
    say(&[&v7[..], &["--ranks", "3"]].concat());
    say(&[&v7[..], &["--transport", "shm"]].concat());
    say(&[&v7[..], &["--encrypt"]].concat());
    say(&[&v7[..], &["--debug-hash", "8"]].concat());
    say(&["--protocol", "ds4-v7"]);
    say(&[&lead[..], &["train"]].concat());
    say(&["--role", "worker", "check"]);
    say(&["--rdma-device", "mlx5_0"]);
    let open = [tp, "--role", "leader", "--listen", "0.0.0.0"];
    let port = free_port().to_string();
    let text = {
        let output = ds4().args(open).arg(&port).args(SHAPE).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(
        text.contains("--insecure") && text.contains("keygen"),
        "{text}"
    );
    let manifest = std::env::var("CARGO_MANIFEST_DIR");
    let manifest = manifest.unwrap_or_else(|_| env!("CARGO_MANIFEST_DIR").to_owned());
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path(Path::new(&manifest).join("../golden/cli"));
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| insta::assert_snapshot!("bad-ranks", all));
}
