//! The commands: from typed arguments to printed results.

mod bench;
mod check;
mod devices;
mod fake;
mod fit;
mod keygen;
mod plan;
mod rdma;
mod replay;
mod scaling;
mod slab;
mod tensor_parallel;
mod validate;
mod workload;

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::Parser;
use ds4_embedded::Interface;

use crate::bench::links::Subject;
use crate::cli::{BenchCommand, Cli, Command, Format};
use crate::exit::Exit;
use crate::output::{Console, Failure, Outcome, failure_object, print, remark};
use crate::printable::printable_lines;
use crate::suite::junit::failure_to_xml;
use crate::workload::Phase;

/// What a newcomer sees who types the command's name alone.
const WELCOME: &str = "\
ds4 places device memory on the GPUs you allow, refuses honestly and recovers.

  ds4 check             prove it here, on simulated GPUs, in a few seconds
  ds4 replay TRACE      run a recorded allocation trace (PyTorch snapshot, RMM log, JSONL)
  ds4 plan --model F    say whether a model fits on your cards, and why not
  ds4 devices           list devices and how they reach each other

Every command and flag: ds4 --help, and ds4 COMMAND --help with examples.
";

/// Runs the command line of this process.
#[must_use]
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return explain(&error),
    };
    let console = match &cli.command {
        Some(Command::FakeCuda(_) | Command::FakeHip(_)) => Console::of_parent(cli.format),
        Some(_) | None => Console::new(cli.format),
    };
    let alone = if cli.rank.tensor_parallel {
        "tensor-parallel"
    } else {
        "ds4"
    };
    let name = cli.command.as_ref().map_or(alone, name);
    let outcome = run(&cli, &console).unwrap_or_else(|failure| {
        console.remark(&failure.message);
        let text = match cli.format {
            Format::Json => failure_object(name, &failure),
            Format::Junit if makes_checks(&cli) => {
                let message = printable_lines(&failure.message);
                // Without the document there is still the sentence on standard error.
                failure_to_xml(name, &message).unwrap_or_default()
            }
            Format::Text | Format::Junit => String::new(),
        };
        Outcome {
            exit: failure.exit,
            text,
        }
    });
    ended(outcome.exit, print(&outcome.text))
}

/// Help, the version, or what is wrong with the command line; as JSON too if that was asked for.
fn explain(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        return ended(Exit::Ok, error.print().and_then(|()| io::stdout().flush()));
    }
    // What was typed is part of the message. A closed stream leaves nobody to tell.
    let message = error.render().to_string();
    let _ = io::stderr().write_all(printable_lines(&message).as_bytes());
    let words: Vec<String> = std::env::args_os()
        .skip(1)
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let json = words.iter().any(|word| word == "--format=json")
        || words.windows(2).any(|pair| pair == ["--format", "json"]);
    if json {
        let first = message
            .lines()
            .next()
            .unwrap_or_default()
            .trim_start_matches("error: ");
        let _ = print(&failure_object("ds4", &Failure::usage(first)));
    }
    Exit::Usage.into()
}

/// The exit code of a command once its result was written, or was not.
fn ended(exit: Exit, written: io::Result<()>) -> ExitCode {
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            remark(&format!("the result could not be written: {error}"));
            Exit::Internal.into()
        }
        _ => exit.into(),
    }
}

fn makes_checks(cli: &Cli) -> bool {
    matches!(cli.command, Some(Command::Check(_) | Command::Validate(_)))
}

fn run(cli: &Cli, console: &Console) -> Result<Outcome, Failure> {
    tensor_parallel::refuse_misplaced(cli)?;
    let Some(command) = &cli.command else {
        if cli.rank.tensor_parallel {
            return tensor_parallel::run(cli, console);
        }
        let help = serde_json::json!({ "help": WELCOME });
        return Ok(console.outcome(Exit::Ok, "ds4", WELCOME.to_owned(), help));
    };
    if cli.format == Format::Junit && !makes_checks(cli) {
        return Err(Failure::usage(format!(
            "--format junit is for check and validate; use text or json with {}",
            name(command)
        )));
    }
    let sized = matches!(
        command,
        Command::Train(_) | Command::Prefill(_) | Command::Decode(_)
    );
    if cli.tensor_size.is_some() && !sized {
        return Err(Failure::usage(format!(
            "{} does not use --tensor-size; leave it out",
            name(command)
        )));
    }
    match command {
        Command::Devices(args) => devices::run(&cli.machine, args, console),
        Command::Replay(args) => replay::run(&cli.machine, args, console),
        Command::Fit(args) => fit::run(&cli.machine, args, console),
        Command::Train(args) => workload::run(cli, args, Phase::Train, console),
        Command::Prefill(args) => workload::run(cli, args, Phase::Prefill, console),
        Command::Decode(args) => workload::run(cli, args, Phase::Decode, console),
        Command::Plan(args) => plan::run(&cli.machine, args, console),
        Command::Slab(args) => slab::run(args, console),
        Command::Scaling(args) => scaling::run(args, console),
        Command::Keygen(args) => keygen::run(args, console),
        Command::Bench(BenchCommand::Alloc(args)) => bench::alloc(&cli.machine, args, console),
        Command::Bench(BenchCommand::Link(args)) => {
            bench::links(&cli.machine, args, Subject::Paths, console)
        }
        Command::Bench(BenchCommand::Gate(args)) => {
            bench::links(&cli.machine, args, Subject::Gates, console)
        }
        Command::Bench(BenchCommand::Sum(args)) => bench::sums(&cli.machine, args, console),
        Command::Check(args) => check::check(&cli.machine, args, console),
        Command::Validate(args) => validate::run(&cli.machine, args, console),
        Command::FakeCuda(args) => fake::run(&cli.machine, args, Interface::Cuda, console),
        Command::FakeHip(args) => fake::run(&cli.machine, args, Interface::Hip, console),
    }
}

fn name(command: &Command) -> &'static str {
    match command {
        Command::Devices(_) => "devices",
        Command::Check(_) => "check",
        Command::Validate(_) => "validate",
        Command::Replay(_) => "replay",
        Command::Fit(_) => "fit",
        Command::Plan(_) => "plan",
        Command::Train(_) => "train",
        Command::Prefill(_) => "prefill",
        Command::Decode(_) => "decode",
        Command::Slab(_) => "slab",
        Command::Scaling(_) => "scaling",
        Command::Keygen(_) => "keygen",
        Command::Bench(_) => "bench",
        Command::FakeCuda(_) => "fake-cuda",
        Command::FakeHip(_) => "fake-hip",
    }
}
