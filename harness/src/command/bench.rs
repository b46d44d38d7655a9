//! `ds4 bench`: times and capacities beside other allocators, and connections of ranks.

use serde_json::{Value, json};

use crate::bench::links::{self, LinkRow};
use crate::bench::sums;
use crate::bench::tools::measure_tools;
use crate::bench::{
    Measured, Options, Row, benches, device_benches, measure, measure_device, measure_device_gates,
};
use crate::cli::{BenchArgs, MachineArgs};
use crate::exit::Exit;
use crate::machine::{Flag, Machine, refuse_flags, roomy};
use crate::output::{Console, Failure, Outcome};

/// Measures the allocator.
pub(super) fn alloc(
    machine: &MachineArgs,
    args: &BenchArgs,
    console: &Console,
) -> Result<Outcome, Failure> {
    let unused = [Flag::Faults, Flag::Hints, Flag::Topology];
    refuse_flags(machine, &unused, "bench")?;
    let options = options(args);
    let resolved = Machine::resolve(machine, roomy(1))?;
    let real = resolved.target.real_devices();
    if real.is_none() {
        refuse_flags(machine, &[Flag::Devices], "bench on simulated devices")?;
    }
    let count = real.map_or_else(|| benches(&options), |_| device_benches(&options));
    let bar = console.progress(count as u64, "measuring");
    let mut last = None;
    let mut text = match real {
        Some(_) => format!(
            "{}; host time alone, least ns per operation of a round; a pair is two operations\n\n",
            resolved.target.origin()
        ),
        None => String::from(
            "simulated devices: the host's work alone, no driver's; least ns per operation of a round\n\n",
        ),
    };
    let each = |row: &Row| {
        // A bench has several rows.
        if last.replace(row.bench.clone()) != Some(row.bench.clone()) {
            bar.inc(1);
        }
        text.push_str(&format!("{row}\n"));
    };
    let measured = match real {
        Some(backend) => measure_device(backend, &options, console.stop(), each),
        None => measure(&options, Vec::new(), console.stop(), each),
    };
    let measured = measured.map_err(Failure::failed)?;
    bar.finish_and_clear();
    let Measured { rows, incomplete } = measured;
    if real.is_some() && !incomplete {
        text.push_str("\nno call of the driver once the memory was there (counted)\n");
    }
    if rows.is_empty() && !incomplete {
        return Err(Failure {
            exit: Exit::NothingDone,
            message: "no bench has that in its name; see ds4 bench alloc without --only".to_owned(),
        });
    }
    let value = json!({
        "backend": resolved.target.kind().name(),
        "origin": resolved.target.origin(),
        "rows": rows,
        "incomplete": incomplete,
        "machine": host(),
    });
    Ok(outcome(console, incomplete, text, value))
}

/// Measures the connections of two ranks.
pub(super) fn links(
    machine: &MachineArgs,
    args: &BenchArgs,
    what: links::Subject,
    console: &Console,
) -> Result<Outcome, Failure> {
    let unused = [Flag::Faults, Flag::Hints, Flag::Topology];
    refuse_flags(machine, &unused, "bench")?;
    let resolved = Machine::resolve(machine, roomy(1))?;
    let devices = resolved.target.real_devices();
    if devices.is_none() {
        refuse_flags(machine, &[Flag::Devices], "bench of connections")?;
    }
    let head = match devices {
        Some(_) => format!(
            "{}; two devices, a thread each; a batch's time by its gates, p50 of batches first",
            resolved.target.origin()
        ),
        None => String::from("two threads of one process, looking without sleep; p50 first"),
    };
    match devices.filter(|_| what == links::Subject::Gates) {
        Some(backend) => between_ranks(args, &head, console, false, |options, each| {
            measure_device_gates(backend, options, console.stop(), each)
        }),
        None => between_ranks(args, &head, console, true, |options, each| {
            links::measure(what, options, console.stop(), each)
        }),
    }
}

/// Measures sums over groups of ranks.
pub(super) fn sums(
    machine: &MachineArgs,
    args: &BenchArgs,
    console: &Console,
) -> Result<Outcome, Failure> {
    let unused = [Flag::Faults, Flag::Hints, Flag::Topology, Flag::Devices];
    refuse_flags(machine, &unused, "bench")?;
    let head = "a thread for each rank; means of eight sums, p50 of them first";
    between_ranks(args, head, console, false, |options, each| {
        sums::measure(options, console.stop(), each)
    })
}

type LinkRows = Result<(Vec<LinkRow>, bool), String>;

/// Measures, with other tools beside where they know what is measured.
fn between_ranks(
    args: &BenchArgs,
    head: &str,
    console: &Console,
    with_tools: bool,
    measure: impl FnOnce(&Options, &mut dyn FnMut(&LinkRow)) -> LinkRows,
) -> Result<Outcome, Failure> {
    let bar = console.progress(0, "measuring");
    let mut text = format!("{head}\n\n");
    let options = options(args);
    let measured = measure(&options, &mut |row| {
        bar.inc(1);
        text.push_str(&format!("{row}\n"));
    });
    let (rows, incomplete) = measured.map_err(Failure::failed)?;
    let mut tools = Vec::new();
    if with_tools {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let filter = options.filter.as_deref();
        let mut shown = String::from("\nother tools, two processes each\n\n");
        tools = measure_tools(filter, &path, console.stop(), &mut |row| {
            bar.inc(1);
            shown.push_str(&format!("{row}\n"));
        });
        if !tools.is_empty() {
            text.push_str(&shown);
        }
    }
    bar.finish_and_clear();
    if rows.is_empty() && tools.is_empty() && !incomplete {
        return Err(Failure {
            exit: Exit::NothingDone,
            message: "no bench has that in its name; run it without --only".to_owned(),
        });
    }
    let value = json!({
        "rows": rows,
        "tools": tools,
        "incomplete": incomplete,
        "machine": host(),
    });
    Ok(outcome(console, incomplete, text, value))
}

/// Where it was measured.
fn host() -> Value {
    json!({
        "cores": std::thread::available_parallelism().map_or(1, usize::from),
        "arch": std::env::consts::ARCH,
        "os": std::env::consts::OS,
    })
}

fn outcome(console: &Console, incomplete: bool, mut text: String, value: Value) -> Outcome {
    let exit = if incomplete {
        text.push_str("\nincomplete: interrupted\n");
        Exit::Interrupted
    } else {
        Exit::Ok
    };
    console.outcome(exit, "bench", text, value)
}

fn options(args: &BenchArgs) -> Options {
    Options {
        rounds: args.runs as usize,
        filter: args.only.clone(),
        quick: args.quick,
    }
}
