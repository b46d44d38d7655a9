//! Campaigns that are too long for CI: simulated runs under faults, and ranks as processes that
//! pass as many gates as a day of work.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::exit;
use crate::step::{Failure, Program, root, say, step};
use crate::tasks::release_dir;

/// Runs of the simulator; a case of the check is eight.
const SIMULATED_RUNS: u32 = 100_000;
const RUNS_PER_CASE: u32 = 8;
const TOKENS: u64 = 100_000;
/// As many layers as make 86 gates a token.
const LAYERS: u64 = 43;
/// A vector so narrow that the run takes minutes: the gates are what is tried, not the bytes.
const WIDTH: u64 = 16;
/// Pages that a process may touch first in the last nine tenths of its run: buckets of its
/// histogram, for one. A single byte lost at each thirtieth gate would be more.
const GROWTH_BYTES_MAX: u64 = 256 << 10;
const LOOK: Duration = Duration::from_millis(100);
const SAY_EVERY: Duration = Duration::from_secs(10);

/// Both campaigns.
///
/// # Errors
/// A run broke a rule, a fault never struck, a sum was wrong, or memory grew.
pub fn run(seed: u64) -> Result<(), Failure> {
    step("building ds4", || {
        Program::new("cargo build --quiet --release -p ds4-harness").run()
    })?;
    let ds4 = release_dir()?.join("ds4").to_string_lossy().into_owned();
    step(
        &format!("{SIMULATED_RUNS} simulated runs under faults, seed {seed}"),
        || {
            let cases = SIMULATED_RUNS / RUNS_PER_CASE;
            let line = format!("check --suite link --seed {seed} --cases {cases}");
            let words = line.split(' ');
            let program = Program::default().arg(&ds4);
            words.fold(program, |program, word| program.arg(word)).run()
        },
    )?;
    for transport in ["shm", "tcp"] {
        let name = format!("{TOKENS} tokens of {} gates over {transport}", 2 * LAYERS);
        step(&name, || ranks(&ds4, transport))?;
    }
    Ok(())
}

/// A leader and a worker, watched until they end.
fn ranks(ds4: &str, transport: &str) -> Result<(), Failure> {
    let common = format!(
        "--n-layer {LAYERS} --n-embd {WIDTH} --transport {transport} --wait block --format json"
    );
    let port = free_port()?;
    let lead = format!("--role leader --listen 127.0.0.1 {port} --tokens {TOKENS} {common}");
    let follow = format!("--role worker --coordinator 127.0.0.1 {port} {common}");
    let again = format!("ds4 --tensor-parallel {lead} & ds4 --tensor-parallel {follow}");
    let failed = |what: String| Failure::new(exit::FAILED, what, again.clone());
    let mut leader = Watched::start(ds4, &lead).map_err(failed)?;
    let worker = Watched::start(ds4, &follow);
    let mut worker = worker.map_err(|what| {
        leader.end();
        failed(what)
    })?;
    watch(&mut [&mut leader, &mut worker]);
    let (lead, follow) = (leader.report(), worker.report());
    let (lead, follow) = (lead.map_err(failed)?, follow.map_err(failed)?);
    judge(&lead, &follow).map_err(failed)?;
    for (name, memory) in [("leader", &leader.memory), ("worker", &worker.memory)] {
        let (early, late) = grown(memory).map_err(|why| failed(format!("{name}: {why}")))?;
        let kib = |bytes| bytes / 1024;
        say(&format!(
            "{name}: {} KiB resident at a tenth of the run, {} KiB at its end",
            kib(early),
            kib(late)
        ));
    }
    Ok(())
}

/// A port that nobody listens on now.
fn free_port() -> Result<u16, Failure> {
    let bound = TcpListener::bind(("127.0.0.1", 0)).and_then(|it| it.local_addr());
    let port = bound.map(|address| address.port());
    port.map_err(|error| {
        let what = format!("no port could be taken ({error}).");
        Failure::new(exit::INTERNAL, what, "cargo ci campaign")
    })
}

struct Watched {
    child: Child,
    /// Resident bytes, one look after the other.
    memory: Vec<u64>,
}

impl Watched {
    fn start(ds4: &str, line: &str) -> Result<Self, String> {
        let child = Command::new(ds4)
            .arg("--tensor-parallel")
            .args(line.split(' '))
            .current_dir(root())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .map_err(|error| format!("{ds4} could not be started ({error})."))?;
        Ok(Self {
            child,
            memory: Vec::new(),
        })
    }

    /// Looks at its memory; false once it has ended.
    fn look(&mut self) -> bool {
        if !matches!(self.child.try_wait(), Ok(None)) {
            return false;
        }
        self.memory.extend(resident_bytes(self.child.id()));
        true
    }

    fn end(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// What it printed at its end.
    fn report(&mut self) -> Result<Value, String> {
        let status = self.child.wait().map_err(|error| error.to_string())?;
        let out = self.child.stdout.take().ok_or("it has no output.")?;
        let report = std::io::read_to_string(out).map_err(|error| error.to_string())?;
        if !status.success() {
            return Err(format!("a rank ended with {status}: {report}"));
        }
        serde_json::from_str(&report).map_err(|error| format!("a report is no JSON: {error}."))
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "looks at running processes, a tenth of a second apart"
)]
fn watch(ranks: &mut [&mut Watched]) {
    let start = Instant::now();
    let mut said = Duration::ZERO;
    loop {
        let mut running = 0;
        for rank in ranks.iter_mut() {
            running += usize::from(rank.look());
        }
        if running == 0 {
            return;
        }
        let passed = start.elapsed();
        if passed >= said + SAY_EVERY {
            said = passed;
            let resident = ranks.iter().filter_map(|rank| rank.memory.last());
            let resident: Vec<String> = resident
                .map(|bytes| format!("{} KiB", bytes / 1024))
                .collect();
            say(&format!(
                "  {} s, resident {}",
                passed.as_secs(),
                resident.join(" and ")
            ));
        }
        std::thread::sleep(LOOK);
    }
}

/// Resident memory of a process.
fn resident_bytes(process: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// Memory at a tenth of the run and the most from there on.
fn grown(memory: &[u64]) -> Result<(u64, u64), String> {
    let late = memory.get(memory.len() / 10..).unwrap_or_default();
    let (Some(first), Some(most)) = (late.first(), late.iter().max()) else {
        return Err("it ended before its memory was looked at.".to_owned());
    };
    if most - first > GROWTH_BYTES_MAX {
        return Err(format!(
            "its memory grew from {first} bytes at a tenth of the run to {most}."
        ));
    }
    Ok((*first, *most))
}

/// Whether both ranks passed every gate with the right sums.
fn judge(lead: &Value, follow: &Value) -> Result<(), String> {
    let number = |name: &str| lead.get(name).and_then(Value::as_u64).unwrap_or(0);
    // The prompt, the drafts and one of them again pass each gate once more.
    let gates = 2 * LAYERS * (TOKENS + 3);
    if number("tokens") != TOKENS || number("gates") != gates {
        return Err(format!(
            "{} tokens and {} gates instead of {TOKENS} and {gates}.",
            number("tokens"),
            number("gates")
        ));
    }
    for name in ["state_hash", "gates", "complete"] {
        if lead.get(name).is_none() || lead.get(name) != follow.get(name) {
            return Err(format!("the ranks' reports differ in {name}."));
        }
    }
    let verified = number("verified_bytes");
    if verified < gates * WIDTH * 4 {
        return Err(format!("{verified} bytes were verified: too few."));
    }
    say(&format!(
        "{gates} gates, {verified} bytes verified, none wrong"
    ));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn memory_that_grows_after_a_tenth_of_the_run_fails() {
        let mut memory = vec![1 << 20; 100];
        memory[0] = 4096;
        memory[99] += 4096;
        assert_eq!(grown(&memory), Ok((1 << 20, (1 << 20) + 4096)));
        memory[50] += GROWTH_BYTES_MAX + 1;
        assert!(grown(&memory).is_err());
        assert!(grown(&[]).is_err());
        let own = resident_bytes(std::process::id());
        assert!(own.is_some_and(|bytes| bytes > 100_000), "{own:?}");
    }

    #[test]
    fn a_report_with_a_gate_too_few_or_another_state_fails() {
        let gates = 86 * (TOKENS + 3);
        let report = |gates: u64, hash: &str| {
            json!({ "tokens": TOKENS, "gates": gates, "complete": true, "state_hash": hash,
                    "verified_bytes": gates * 64 })
        };
        let good = report(gates, "a");
        assert_eq!(judge(&good, &good), Ok(()));
        assert!(judge(&report(gates - 1, "a"), &good).is_err());
        assert!(judge(&good, &report(gates, "b")).is_err());
        assert!(judge(&json!({}), &json!({})).is_err());
    }
}
