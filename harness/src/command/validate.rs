//! `ds4 validate`: the health of devices.

use std::sync::Arc;

use ds4_sim::read_file;
use serde_json::Value;

use crate::cli::{Format, MachineArgs, ValidateArgs};
use crate::exit::Exit;
use crate::machine::{Flag, Machine, backend_kind, refuse_flags, roomy};
use crate::output::{Console, Failure, Outcome, print};
use crate::target::BackendKind;
use crate::validate::watch::Watch;
use crate::validate::{
    Expectations, Level, Monitor, Options, Record, Run, Subject, asked_for, check_names, junit,
    level_of, open_nvml, run as run_checks, text,
};

const SECOND_NS: u64 = 1_000_000_000;

/// How long level 2 takes if nothing is said.
const DEFAULT_SECONDS: u64 = 120;

/// Makes the checks of a level.
pub(super) fn run(
    machine: &MachineArgs,
    args: &ValidateArgs,
    console: &Console,
) -> Result<Outcome, Failure> {
    refuse_flags(machine, &[Flag::Hints], "validate")?;
    let options = options(args)?;
    let expectations = expectations(args)?;
    let record = Record::default();
    // From here on calls of a driver may hang.
    let watch = watch(args, &options, console, &record)?;
    let done = validate(machine, &options, expectations, console, &record);
    watch.finish();
    let done = done?;
    if let Some(why) = done.untested_memory() {
        console.remark(&format!(
            "no memory was tested: {why}; leave --max-bytes out or give more, for example 64M"
        ));
    }
    render(&done, console)
}

fn validate(
    args: &MachineArgs,
    options: &Options,
    expectations: Expectations,
    console: &Console,
    record: &Record,
) -> Result<Run, Failure> {
    let monitor = monitor(backend_kind(args)?);
    let machine = Machine::resolve(args, roomy(1))?;
    let target = machine.fresh()?;
    let budgets = machine.config.budgets.iter();
    let subject = Subject {
        target: target.clone(),
        budgets: budgets.map(|budget| budget.configured_bytes).collect(),
        monitor,
        expectations,
    };
    let mut options = options.clone();
    if target.is_simulated() {
        // Their bytes are the host's, also behind a driver library.
        options.max_bytes = options.max_bytes.or(Some(Options::SIM_MAX_BYTES));
        record.mark_simulated();
    }
    let bar = console.progress(asked_for(&options).count() as u64, "checking");
    record.show(bar.clone());
    let done = run_checks(&subject, &options, record, console.stop());
    bar.finish_and_clear();
    machine.remark_faults(&target, console);
    Ok(done)
}

/// Opened before any device, so that this process is none of those that it lists.
fn monitor(kind: BackendKind) -> Result<Box<dyn Monitor>, String> {
    match kind {
        BackendKind::Sim => Err("simulated devices have no NVML".to_owned()),
        BackendKind::Cuda => open_nvml(),
        BackendKind::Hip => Err("NVML knows NVIDIA devices only".to_owned()),
    }
}

fn options(args: &ValidateArgs) -> Result<Options, Failure> {
    let only: Vec<String> = args
        .only
        .iter()
        .map(|name| name.trim().to_owned())
        .collect();
    if let Some(unknown) = only
        .iter()
        .find(|only| !check_names().any(|name| name == *only))
    {
        let names: Vec<&str> = check_names().collect();
        return Err(Failure::usage(format!(
            "--only: '{unknown}' is no check; use {}",
            names.join(", ")
        )));
    }
    let level =
        Level::from_number(args.level).ok_or_else(|| Failure::usage("--level: use 0, 1 or 2"))?;
    let above = only.iter().find_map(|name| {
        let own = level_of(name).filter(|own| *own > level)?;
        Some((name, own.number()))
    });
    if let Some((name, own)) = above {
        return Err(Failure::usage(format!(
            "--only: '{name}' is a check of level {own}; add --level {own}"
        )));
    }
    if args.seconds.is_some() && level != Level::Soak {
        return Err(Failure::usage(
            "--for is how long level 2 soaks; add --level 2 or leave --for out",
        ));
    }
    Ok(Options {
        level,
        only,
        soak_ns: seconds(args).saturating_mul(SECOND_NS),
        max_bytes: args.max_bytes,
        allow_busy: args.allow_busy,
    })
}

fn seconds(args: &ValidateArgs) -> u64 {
    args.seconds.unwrap_or(DEFAULT_SECONDS)
}

fn expectations(args: &ValidateArgs) -> Result<Expectations, Failure> {
    let shipped = Expectations::shipped().map_err(|error| Failure {
        exit: Exit::Internal,
        message: error.to_string(),
    })?;
    let Some(path) = &args.expect else {
        return Ok(shipped);
    };
    let name = path.display().to_string();
    let bytes = read_file(path, "the file of expectations").map_err(Failure::usage)?;
    let text = String::from_utf8(bytes)
        .map_err(|_| Failure::usage(format!("{name}: it is no text; write TOML in UTF-8")))?;
    shipped.and_file(&text, &name).map_err(Failure::usage)
}

/// Ends the process at the deadline with what is there.
fn watch(
    args: &ValidateArgs,
    options: &Options,
    console: &Console,
    record: &Record,
) -> Result<Watch, Failure> {
    let usual = match options.level {
        Level::Look => 30,
        Level::Test => 180,
        Level::Soak => seconds(args).saturating_add(180),
    };
    let deadline_ns = args.deadline.unwrap_or(usual).saturating_mul(SECOND_NS);
    let (console, record, level) = (console.clone(), record.clone(), options.level);
    let stop = Arc::clone(console.stop());
    let started = Watch::start(deadline_ns, stop, move |ended| {
        let partial = record.so_far(level, Some(ended));
        let exit = partial.exit();
        if let Ok(outcome) = render(&partial, &console) {
            // Nobody is left to tell if it cannot be written.
            let _ = print(&outcome.text);
        }
        // No exit handler may run: a driver's would wait for the call that hangs.
        signal_hook::low_level::exit(i32::from(exit.code()));
    });
    started.map_err(|error| Failure {
        exit: Exit::Internal,
        message: format!("no thread can watch the deadline ({error})"),
    })
}

fn render(done: &Run, console: &Console) -> Result<Outcome, Failure> {
    let internal = |error: String| Failure {
        exit: Exit::Internal,
        message: format!("the result could not be written: {error}"),
    };
    let exit = done.exit();
    match console.format {
        Format::Junit => {
            let text = junit(done).map_err(|error| internal(error.to_string()))?;
            Ok(console.outcome(exit, "validate", text, Value::Null))
        }
        Format::Json => {
            let value = serde_json::to_value(done).map_err(|error| internal(error.to_string()))?;
            Ok(console.outcome(exit, "validate", String::new(), value))
        }
        Format::Text => Ok(console.outcome(exit, "validate", text(done), Value::Null)),
    }
}
