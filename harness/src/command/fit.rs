//! `ds4 fit`: the least memory for a trace.

use ds4_engine::bytes::{KIB, MIB, format_bytes};
use serde_json::json;

use super::replay::read;
use crate::cli::{FitArgs, MachineArgs};
use crate::exit::Exit;
use crate::fit::{Fit, FitError, fit, part_of, peak_live_bytes};
use crate::machine::{Flag, Machine, refuse_flags, roomy};
use crate::output::{Console, Failure, Outcome, table};
use crate::printable::printable;

/// Finds the least capacity of every device of a trace.
pub(super) fn run(
    machine: &MachineArgs,
    args: &FitArgs,
    console: &Console,
) -> Result<Outcome, Failure> {
    refuse_flags(machine, &[Flag::Faults, Flag::Hints, Flag::Devices], "fit")?;
    let trace = read(&args.trace, console)?;
    let machine = Machine::resolve(machine, roomy(trace.devices as usize))?;
    let Some(sim) = machine.target.sim() else {
        return Err(Failure::usage(
            "fit needs simulated devices; use --backend sim",
        ));
    };
    let mut fits = Vec::new();
    let mut incomplete = false;
    for device in 0..trace.devices {
        let part = part_of(&trace, device);
        if part.events.is_empty() {
            continue;
        }
        let devices = &sim.config().devices;
        let Some(like) = devices.get(device as usize).or(devices.first()) else {
            continue;
        };
        let bar = console.progress(0, "replaying");
        let found = fit(&part, like, console.stop(), |_| bar.inc(1)).map_err(|error| {
            let sentence = error.sentence(&args.trace.display().to_string(), &trace, device);
            match error {
                FitError::TooLarge { .. } => Failure::usage(sentence),
                FitError::Replay(_) => Failure::failed(sentence),
            }
        })?;
        bar.finish_and_clear();
        let Some((min_capacity_bytes, replays)) = found else {
            incomplete = true;
            break;
        };
        let peak_live_bytes = peak_live_bytes(&part);
        #[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
        let ratio = min_capacity_bytes as f64 / peak_live_bytes.max(1) as f64;
        fits.push(Fit {
            device,
            peak_live_bytes,
            min_capacity_bytes,
            ratio,
            replays,
        });
    }
    let exit = if incomplete {
        Exit::Interrupted
    } else {
        Exit::Ok
    };
    let text = render(&machine, args, &fits, incomplete);
    let value = json!({
        "backend": machine.target.kind().name(),
        "trace": { "file": args.trace.display().to_string(), "format": trace.format.name(),
                   "events": trace.events.len() },
        "devices": fits,
        "incomplete": incomplete,
    });
    Ok(console.outcome(exit, "fit", text, value))
}

fn render(machine: &Machine, args: &FitArgs, fits: &[Fit], incomplete: bool) -> String {
    let heads = [
        "device",
        "peak live",
        "least capacity",
        "ratio",
        "replays",
        "as --gpu-vram",
    ];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    for fit in fits {
        rows.push(vec![
            format!("gpu{}", fit.device),
            format_bytes(fit.peak_live_bytes),
            format_bytes(fit.min_capacity_bytes),
            format!("{:.4}", fit.ratio),
            fit.replays.to_string(),
            exact(fit.min_capacity_bytes),
        ]);
    }
    let end = if incomplete {
        "\nincomplete: interrupted\n"
    } else {
        ""
    };
    format!(
        "{}\ntrace: {}\n\n{}{end}",
        machine.target.origin(),
        printable(&args.trace.display().to_string()),
        table(&rows)
    )
}

/// A size as `--gpu-vram` reads it, to the byte.
fn exact(bytes: u64) -> String {
    match (bytes % MIB, bytes % KIB) {
        (0, _) => format!("{}M", bytes / MIB),
        (_, 0) => format!("{}K", bytes / KIB),
        _ => format!("{bytes}B"),
    }
}
