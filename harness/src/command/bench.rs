//! `ds4 bench`: times and capacities beside other allocators.

use serde_json::json;

use crate::bench::{Measured, Options, measure};
use crate::cli::{BenchArgs, MachineArgs};
use crate::exit::Exit;
use crate::machine::{Flag, refuse_flags};
use crate::output::{Console, Failure, Outcome};

/// Measures the allocator.
pub(super) fn alloc(
    machine: &MachineArgs,
    args: &BenchArgs,
    console: &Console,
) -> Result<Outcome, Failure> {
    let unused = [Flag::Faults, Flag::Hints, Flag::Devices, Flag::Topology];
    refuse_flags(machine, &unused, "bench")?;
    let named = machine.backend.as_deref().filter(|name| !name.is_empty());
    if named.is_some_and(|name| !name.eq_ignore_ascii_case("sim")) {
        return Err(Failure {
            exit: Exit::NothingDone,
            message: "bench alloc measures on simulated devices; use --backend sim".to_owned(),
        });
    }
    let options = Options {
        rounds: args.runs as usize,
        filter: args.only.clone(),
        quick: args.quick,
    };
    let bar = console.progress(0, "measuring");
    let mut text = String::from(
        "simulated devices: the host's work alone, no driver's; least ns per operation of a round\n\n",
    );
    let measured = measure(&options, Vec::new(), console.stop(), |row| {
        bar.inc(1);
        text.push_str(&format!("{row}\n"));
    })
    .map_err(Failure::failed)?;
    bar.finish_and_clear();
    let Measured { rows, incomplete } = measured;
    if rows.is_empty() && !incomplete {
        return Err(Failure {
            exit: Exit::NothingDone,
            message: "no bench has that in its name; see ds4 bench alloc without --only".to_owned(),
        });
    }
    let value = json!({
        "backend": "sim",
        "rows": rows,
        "incomplete": incomplete,
        "machine": { "cores": std::thread::available_parallelism().map_or(1, usize::from),
                     "arch": std::env::consts::ARCH, "os": std::env::consts::OS },
    });
    let exit = if incomplete {
        text.push_str("\nincomplete: interrupted\n");
        Exit::Interrupted
    } else {
        Exit::Ok
    };
    Ok(console.outcome(exit, "bench", text, value))
}
