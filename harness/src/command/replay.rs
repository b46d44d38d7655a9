//! `ds4 replay`: a recorded trace on this machine.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ds4_engine::alloc::{Observer, Recorder};
use ds4_engine::bytes::format_bytes;
use serde_json::{Value, json};

use crate::cli::{MachineArgs, ReplayArgs};
use crate::exit::Exit;
use crate::files::Staged;
use crate::machine::{Machine, roomy};
use crate::output::{Console, Failure, Outcome, counted, refusal_value, table, with_field};
use crate::printable::printable;
use crate::record::recorded_run;
use crate::replay::{Replay, ReplayError, ReplayOptions, replay};
use crate::stopwatch::Stopwatch;
use crate::trace::{
    ReadLimits, RecordedRun, Trace, TraceError, read_path_until, write_jsonl,
    write_pytorch_snapshot, write_rmm_csv,
};

/// Replays a trace and reports where everything went.
pub(super) fn run(
    machine: &MachineArgs,
    args: &ReplayArgs,
    console: &Console,
) -> Result<Outcome, Failure> {
    let trace = read(&args.trace, console)?;
    let machine = Machine::resolve(machine, roomy(trace.devices as usize))?;
    if let Some(directory) = &args.record {
        check_record_directory(directory)?;
    }
    let measured = measure(&machine, &trace, args.record.is_some(), console)?;
    if let (Some(directory), Some(recording)) = (&args.record, &measured.recording) {
        write_recording(recording, directory)?;
        console.remark(&format!("recorded in {}", directory.display()));
        if measured.run.incomplete {
            console.remark(&format!(
                "the recording is cut short: it has what was done in {} of {}",
                measured.run.events,
                counted(trace.events.len() as u64, "event")
            ));
        }
    }
    let run = &measured.run;
    let exit = match (measured.incomplete, run.refusals) {
        (true, _) => Exit::Interrupted,
        (false, 0) => Exit::Ok,
        (false, _) => Exit::CheckFailed,
    };
    let text = render(&machine, args, &trace, &measured);
    Ok(console.outcome(
        exit,
        "replay",
        text,
        value(&machine, args, &trace, &measured),
    ))
}

/// Reads a trace and remarks on what was left out of it.
pub(super) fn read(path: &Path, console: &Console) -> Result<Trace, Failure> {
    let trace = read_path_until(path, &ReadLimits::default(), console.stop());
    let trace = trace.map_err(|error| {
        let stopped = matches!(error, TraceError::Stopped { .. });
        Failure {
            exit: if stopped {
                Exit::Interrupted
            } else {
                Exit::Usage
            },
            message: error.to_string(),
        }
    })?;
    for note in &trace.notes {
        console.remark(&note.to_string());
    }
    Ok(trace)
}

/// After how many events the progress bar moves.
const BAR_STEP: u64 = 1 << 12;

struct Measured {
    run: Replay,
    recording: Option<RecordedRun>,
    /// Nanoseconds per operation without a clock inside, if any was done.
    mean_ns: Option<f64>,
    /// The median and the 99th percentile with a clock inside, if every operation was timed.
    each_ns: Option<(u64, u64)>,
    /// What became of each planned fault.
    faults: Vec<Value>,
    /// One of the replays was ended early.
    incomplete: bool,
}

/// Replays twice: once to be timed as a whole, once to be timed by operation.
///
/// Both must end in the same state, which every replay thereby checks; for that the second one has
/// the budgets of the first, as what is free on a real device varies.
fn measure(
    machine: &Machine,
    trace: &Trace,
    record: bool,
    console: &Console,
) -> Result<Measured, Failure> {
    let placement = Some(machine.placement()).filter(|mask| !mask.is_empty());
    let trace_time_us = Arc::new(AtomicU64::new(0));
    let options = || ReplayOptions {
        placement,
        stop: Some(console.stop()),
        trace_time_us: record.then_some(&*trace_time_us),
    };
    let target = machine.fresh()?;
    let now = Arc::clone(&trace_time_us);
    let recorder = record.then(|| Arc::new(Recorder::new(move || now.load(Ordering::Relaxed))));
    let observer = recorder
        .clone()
        .map(|recorder| recorder as Arc<dyn Observer>);
    let allocator = machine.allocator(&target, observer)?;
    let bar = console.progress(2 * trace.events.len() as u64, "replaying");
    let mut done = 0;
    // Seldom enough to be in no figure.
    let mut step = || {
        done += 1;
        if done % BAR_STEP == 0 {
            bar.inc(BAR_STEP);
        }
    };
    let watch = Stopwatch::start();
    let run = replay(&allocator, trace, &options(), &mut step);
    let elapsed_ns = watch.elapsed_ns();
    let run = run.map_err(|error| failure(&error))?;
    #[expect(clippy::cast_precision_loss, reason = "a mean for people")]
    let mean_ns = (run.ops > 0).then(|| elapsed_ns as f64 / run.ops as f64);
    machine.remark_faults(&target, console);
    let faults = machine.fault_values(&target);
    let recording = recorder.map(|recorder| recorded_run(&recorder.take(), &run, &allocator));

    if run.incomplete {
        return Ok(Measured {
            run,
            recording,
            mean_ns,
            each_ns: None,
            faults,
            incomplete: true,
        });
    }

    let mut samples = Vec::with_capacity(trace.events.len());
    let target = machine.fresh()?;
    let budgets = allocator.budgets();
    drop(allocator);
    let allocator = machine.with_budgets(budgets).allocator(&target, None)?;
    let watch = Stopwatch::start();
    let mut last = 0;
    let again = replay(&allocator, trace, &options(), || {
        let now = watch.elapsed_ns();
        samples.push(now - last);
        last = now;
        step();
    })
    .map_err(|error| failure(&error))?;
    bar.finish_and_clear();
    if !again.incomplete && run.state_hash != again.state_hash {
        return Err(Failure {
            exit: Exit::Internal,
            message: format!(
                "two replays of one trace ended in different states ({:016x} and {:016x})",
                run.state_hash, again.state_hash
            ),
        });
    }
    samples.sort_unstable();
    let at = |permille: usize| {
        let place = samples.len() * permille / 1000;
        samples.get(place).copied()
    };
    Ok(Measured {
        each_ns: at(500).zip(at(990)).filter(|_| !again.incomplete),
        run,
        recording,
        mean_ns,
        faults,
        incomplete: again.incomplete,
    })
}

/// A selection that is too small is the user's; everything else happened in the run.
fn failure(error: &ReplayError) -> Failure {
    match error {
        ReplayError::NoSuchDevice { .. } => Failure::usage(error),
        ReplayError::Request(_) | ReplayError::Free(_) | ReplayError::Stream(_) => {
            Failure::failed(error)
        }
    }
}

fn render(machine: &Machine, args: &ReplayArgs, trace: &Trace, measured: &Measured) -> String {
    let run = &measured.run;
    let mut text = machine.headline();
    text.push_str(&format!(
        "trace: {} ({}, {}, {})\n\n",
        printable(&args.trace.display().to_string()),
        trace.format,
        counted(trace.events.len() as u64, "event"),
        counted(trace.blocks, "block")
    ));
    let heads = [
        "device",
        "budget",
        "peak live",
        "peak reserved",
        "live at end",
        "allocs",
        "frees",
        "refused",
    ];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    for (device, stats) in &run.devices {
        rows.push(vec![
            device.to_string(),
            format_bytes(stats.budget_bytes),
            format_bytes(stats.peak_requested_bytes),
            format_bytes(stats.peak_reserved_bytes),
            format_bytes(stats.requested_bytes),
            stats.allocations.to_string(),
            stats.frees.to_string(),
            stats.refusals.to_string(),
        ]);
    }
    text.push_str(&table(&rows));
    text.push_str(&format!("\n{}", counted(run.ops, "operation")));
    if let Some(mean_ns) = measured.mean_ns {
        text.push_str(&format!(", {mean_ns:.0} ns each on average"));
    }
    if let Some((p50_ns, p99_ns)) = measured.each_ns {
        text.push_str(&format!(
            "; one by one p50 {p50_ns} ns, p99 {p99_ns} ns, clock included"
        ));
    }
    text.push_str(&format!("\nstate {:016x}\n", run.state_hash));
    if let Some((position, refusal)) = &run.first_refusal {
        let reasons: Vec<String> = run
            .refusals_by_reason
            .iter()
            .map(|(label, count)| format!("{count} {label}"))
            .collect();
        text.push_str(&format!(
            "\n{} refused ({})\nfirst, at event {}: {refusal}\n",
            counted(run.refusals, "request"),
            reasons.join(", "),
            position + 1
        ));
    }
    text.push_str(&format!("\n{}\n", verdict_line(measured)));
    text
}

fn verdict(measured: &Measured) -> &'static str {
    match (measured.incomplete, measured.run.refusals) {
        (true, _) => "incomplete",
        (false, 0) => "ok",
        (false, _) => "refused",
    }
}

fn verdict_line(measured: &Measured) -> String {
    let run = &measured.run;
    match verdict(measured) {
        "ok" => "ok: every request was granted".to_owned(),
        "incomplete" if !run.incomplete => {
            "incomplete: interrupted while each operation was timed".to_owned()
        }
        "incomplete" => format!(
            "incomplete: interrupted after {}",
            counted(run.ops, "operation")
        ),
        _ => {
            let memory = ["budget", "fragmentation", "driver-oom"];
            let advice = if memory
                .iter()
                .any(|label| run.refusals_by_reason.contains_key(label))
            {
                "; `ds4 fit` finds the least memory for it"
            } else {
                ""
            };
            format!("refused: {} of the trace's requests{advice}", run.refusals)
        }
    }
}

fn value(machine: &Machine, args: &ReplayArgs, trace: &Trace, measured: &Measured) -> Value {
    let run = &measured.run;
    let devices: Vec<_> = run
        .devices
        .iter()
        .map(|(device, stats)| {
            json!({
                "device": device.index(),
                "capacity_bytes": stats.budget_bytes,
                "peak_live_bytes": stats.peak_requested_bytes,
                "peak_reserved_bytes": stats.peak_reserved_bytes,
                "live_at_end_bytes": stats.requested_bytes,
                "allocs": stats.allocations,
                "frees": stats.frees,
                "refusals": stats.refusals,
            })
        })
        .collect();
    json!({
        "backend": machine.target.kind().name(),
        "origin": machine.target.origin(),
        "trace": {
            "file": args.trace.display().to_string(),
            "format": trace.format.name(),
            "events": trace.events.len(),
            "notes": trace.notes.iter().map(ToString::to_string).collect::<Vec<_>>(),
        },
        "devices": devices,
        "totals": {
            "ops": run.ops,
            "ns_per_op_mean": measured.mean_ns,
            "ns_per_op_p50": measured.each_ns.map(|(p50_ns, _)| p50_ns),
            "ns_per_op_p99": measured.each_ns.map(|(_, p99_ns)| p99_ns),
            "refusals": run.refusals,
        },
        "refusals_by_reason": run.refusals_by_reason,
        "first_refusal": run.first_refusal.as_ref().map(|(position, refusal)| {
            with_field(refusal_value(refusal), "event", position + 1)
        }),
        "faults": measured.faults,
        "state_hash": format!("{:016x}", run.state_hash),
        "verdict": verdict(measured),
        "incomplete": measured.incomplete,
    })
}

const RECORDED_JSONL: &str = "trace.jsonl";
const RECORDED_SNAPSHOT: &str = "snapshot.pickle";

fn check_record_directory(directory: &Path) -> Result<(), Failure> {
    match fs::read_dir(directory).map(Iterator::count) {
        Ok(0) => check_writable(directory),
        Ok(_) => Err(Failure::usage(format!(
            "--record {}: the directory is not empty; name a new one",
            directory.display()
        ))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => check_writable(directory),
        Err(error) => Err(Failure::usage(format!(
            "--record {}: {error}; name a new directory",
            directory.display()
        ))),
    }
}

/// Writes a file there and removes it, before anything is replayed for it.
fn check_writable(directory: &Path) -> Result<(), Failure> {
    let mut staged = Staged::default();
    let written = staged
        .folder(directory)
        .and_then(|()| staged.write(&directory.join(RECORDED_JSONL), |_| Ok(())));
    written.map_err(|error| {
        Failure::usage(format!(
            "--record {}: it cannot be written ({error}); name another directory",
            directory.display()
        ))
    })
}

fn write_recording(recording: &RecordedRun, directory: &Path) -> Result<(), Failure> {
    let write = || {
        let mut staged = Staged::default();
        staged.folder(directory)?;
        staged.write(&directory.join(RECORDED_JSONL), |out| {
            write_jsonl(recording, out)
        })?;
        for device in 0..u32::try_from(recording.devices.len()).unwrap_or(u32::MAX) {
            let name = directory.join(format!("rmm-gpu{device}.csv"));
            staged.write(&name, |out| write_rmm_csv(recording, device, out))?;
        }
        let name = directory.join(RECORDED_SNAPSHOT);
        staged.write(&name, |out| write_pytorch_snapshot(recording, out))?;
        staged.finish()
    };
    write().map_err(|error| {
        Failure::failed(format!(
            "--record {}: {error}; nothing is left there; check space and rights",
            directory.display()
        ))
    })
}
