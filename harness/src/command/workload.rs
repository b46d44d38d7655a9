//! `ds4 train`, `prefill` and `decode`: synthetic workloads under hints.

use ds4_engine::alloc::AllocatorReport;
use ds4_engine::bytes::{MIB, format_bytes};
use serde_json::json;

use crate::cli::{Cli, WorkloadArgs};
use crate::exit::Exit;
use crate::machine::{MIXED, Machine};
use crate::output::{Console, Failure, Outcome, counted, refusal_value, table, with_field};
use crate::workload::{Phase, Shape, WorkloadRun, run as run_workload};

const DEFAULT_TENSOR_BYTES: u64 = 64 * MIB;

/// Runs a workload and reports where everything went.
pub(super) fn run(
    cli: &Cli,
    args: &WorkloadArgs,
    phase: Phase,
    console: &Console,
) -> Result<Outcome, Failure> {
    if cli.tensor_size.is_some() && args.tensor_size.is_some() {
        return Err(Failure::usage(
            "--tensor-size is given before and after the command; give it once",
        ));
    }
    let machine = Machine::resolve(&cli.machine, MIXED)?;
    let target = machine.fresh()?;
    let allocator = machine.allocator(&target, None)?;
    let shape = Shape {
        phase,
        tensor_bytes: args
            .tensor_size
            .or(cli.tensor_size)
            .unwrap_or(DEFAULT_TENSOR_BYTES),
        layers: args.layers,
        steps: args.steps,
        placement: machine.placement(),
    };
    let run = run_workload(&allocator, &shape, console.stop());
    machine.remark_faults(&target, console);
    let exit = match (&run.refusal, run.incomplete) {
        _ if run.failure.is_some() => Exit::CheckFailed,
        (Some(_), _) => Exit::CheckFailed,
        (None, true) => Exit::Interrupted,
        (None, false) => Exit::Ok,
    };
    let name = name(phase);
    let report = allocator.report();
    let text = render(&machine, &shape, &run, &report);
    let value = value(&machine, &shape, &run, &report);
    let value = with_field(value, "faults", machine.fault_values(&target));
    Ok(console.outcome(exit, name, text, value))
}

fn name(phase: Phase) -> &'static str {
    match phase {
        Phase::Train => "train",
        Phase::Prefill => "prefill",
        Phase::Decode => "decode",
    }
}

fn render(machine: &Machine, shape: &Shape, run: &WorkloadRun, report: &AllocatorReport) -> String {
    let mut text = machine.headline();
    text.push_str(&format!(
        "{}: {}, tensors of {}, {} of {} done\n\n",
        name(shape.phase),
        counted(u64::from(shape.layers), "layer"),
        format_bytes(shape.tensor_bytes),
        run.steps_done,
        counted(u64::from(shape.steps), "step")
    ));
    let mut rows = vec![
        ["tensors", "device", "count", "allocated in all"]
            .map(str::to_owned)
            .to_vec(),
    ];
    for ((kind, device), placed) in &run.placed {
        rows.push(vec![
            (*kind).to_owned(),
            device.to_string(),
            placed.count.to_string(),
            format_bytes(placed.bytes),
        ]);
    }
    text.push_str(&table(&rows));
    let heads = ["device", "budget", "in use", "peak", "reserved"];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    for (device, stats) in &report.devices {
        rows.push(vec![
            device.to_string(),
            format_bytes(stats.budget_bytes),
            format_bytes(stats.used_bytes),
            format_bytes(stats.peak_used_bytes),
            format_bytes(stats.reserved_bytes),
        ]);
    }
    text.push_str(&format!("\n{}", table(&rows)));
    for (path, copies) in &run.copies {
        text.push_str(&format!(
            "{} {} by {path}, {}\n",
            copies.count,
            if copies.count == 1 { "copy" } else { "copies" },
            format_bytes(copies.bytes)
        ));
    }
    text.push_str(&format!("state {:016x}\n", report.state_hash));
    if let Some((kind, refusal)) = &run.refusal {
        let remedy = match run.relaxed_to {
            Some(device) => format!("with --gpu-placement relaxed it would go to {device}"),
            None => "no device could take it; use smaller tensors or more memory".to_owned(),
        };
        text.push_str(&format!("\n{kind} {refusal}\n{remedy}\n"));
    } else if let Some(failure) = &run.failure {
        text.push_str(&format!("\nfailed: {failure}\n"));
    } else if run.incomplete {
        text.push_str("\nincomplete: interrupted\n");
    } else {
        text.push_str("\nok: every request was granted\n");
    }
    text
}

fn value(
    machine: &Machine,
    shape: &Shape,
    run: &WorkloadRun,
    report: &AllocatorReport,
) -> serde_json::Value {
    let tensors: Vec<_> = run
        .placed
        .iter()
        .map(|((kind, device), placed)| {
            json!({ "kind": kind, "device": device.index(), "count": placed.count,
                    "bytes": placed.bytes })
        })
        .collect();
    let devices: Vec<_> = report
        .devices
        .iter()
        .map(|(device, stats)| {
            json!({
                "device": device.index(),
                "capacity_bytes": stats.budget_bytes,
                "used_bytes": stats.used_bytes,
                "peak_used_bytes": stats.peak_used_bytes,
                "peak_reserved_bytes": stats.peak_reserved_bytes,
                "allocs": stats.allocations,
                "frees": stats.frees,
                "refusals": stats.refusals,
            })
        })
        .collect();
    json!({
        "backend": machine.target.kind().name(),
        "origin": machine.target.origin(),
        "tensor_bytes": shape.tensor_bytes,
        "layers": shape.layers,
        "steps": shape.steps,
        "steps_done": run.steps_done,
        "placement_mask": shape.placement.0,
        "tensors": tensors,
        "copies": run.copies,
        "devices": devices,
        "refusal": run.refusal.as_ref().map(|(kind, refusal)| {
            let value = with_field(refusal_value(refusal), "kind", *kind);
            with_field(value, "relaxed_to", run.relaxed_to.map(|device| device.index()))
        }),
        "state_hash": format!("{:016x}", report.state_hash),
        "failure": run.failure,
        "verdict": match (&run.refusal, &run.failure) {
            (Some(_), _) => "refused",
            (None, Some(_)) => "failed",
            (None, None) if run.incomplete => "incomplete",
            (None, None) => "ok",
        },
        "incomplete": run.incomplete,
    })
}
