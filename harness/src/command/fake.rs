//! `ds4 fake-cuda` and `ds4 fake-hip`: a program on simulated GPUs, through a driver library in
//! place of the real one.

use std::env;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::ops::RangeInclusive;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, absolute};
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

use ds4_embedded::Interface;
use ds4_engine::bytes::{format_bytes, parse_size};
use ds4_sim::Topology;
use rustix::process::{Pid, Signal};
use signal_hook::consts::{SIGHUP, SIGINT};

use crate::cli::{FakeArgs, Format, MachineArgs};
use crate::exit::Exit;
use crate::machine::{Flag, Machine, refuse_flags};
use crate::output::{Console, Failure, Outcome};

/// The machine if none is asked for.
const OTHERWISE: &str = "2xh200";

/// What the library reads, so that nothing from outside mixes with the flags.
const VARIABLES: [&str; 6] = [
    "DS4_FAKE_GPUS",
    "DS4_FAKE_TOPOLOGY",
    "DS4_FAKE_FAULTS",
    "DS4_FAKE_VERSION",
    "DS4_FAKE_LOG",
    "DS4_FAKE_LEDGER",
];

/// Runs the program; its exit code is the command's.
pub(super) fn run(
    machine: &MachineArgs,
    args: &FakeArgs,
    interface: Interface,
    console: &Console,
) -> Result<Outcome, Failure> {
    let name = name(interface);
    refuse_flags(machine, &[Flag::Hints, Flag::Devices], name)?;
    if console.format != Format::Text {
        return Err(Failure::usage(format!(
            "{name}: what is printed is the program's own; leave --format out"
        )));
    }
    if args.gpus.is_some() && machine.topology.is_some() {
        return Err(Failure::usage("give --gpus or --topology, not both"));
    }
    check_settings(args, interface)?;
    check(machine, args, interface, console)?;
    let Some((program, words)) = args.command.split_first() else {
        return Err(Failure::usage(format!("{name}: give a program after --")));
    };
    let folder = tempfile::Builder::new().prefix("ds4-driver-").tempdir();
    let folder = folder.map_err(|error| not_written(&error))?;
    interface
        .write_to(folder.path())
        .map_err(|error| not_written(&error))?;
    if args.nccl {
        ds4_embedded::write_nccl_to(folder.path()).map_err(|error| not_written(&error))?;
    }
    let mut command = Command::new(program);
    command.args(words);
    for variable in VARIABLES {
        command.env_remove(variable);
    }
    command
        .envs(settings(machine, args)?)
        .env("LD_LIBRARY_PATH", library_path(folder.path()));
    let child = command
        .spawn()
        .map_err(|error| not_started(program, &error))?;
    let status = wait(child, console).map_err(Failure::failed)?;
    Ok(Outcome {
        exit: Exit::Child(code(status)),
        text: String::new(),
    })
}

const fn name(interface: Interface) -> &'static str {
    match interface {
        Interface::Cuda => "fake-cuda",
        Interface::Hip => "fake-hip",
    }
}

/// The least and the most that a driver of the kind has given as its version, and an example.
const fn versions(interface: Interface) -> (RangeInclusive<u32>, &'static str) {
    match interface {
        Interface::Cuda => (9000..=99_999, "12040 for CUDA 12.4"),
        Interface::Hip => (40_000_000..=999_999_999, "60241134 for HIP 6.2.41134"),
    }
}

/// Refuses what the library could not use, which nobody would hear of once the program runs.
fn check_settings(args: &FakeArgs, interface: Interface) -> Result<(), Failure> {
    let (range, example) = versions(interface);
    if let Some(version) = args
        .driver_version
        .filter(|version| !range.contains(version))
    {
        return Err(Failure::usage(format!(
            "--driver-version: {version} is no version of such a driver; write a number from {} to \
             {}, such as {example}",
            range.start(),
            range.end()
        )));
    }
    let sizes = args.gpus.iter().flat_map(|gpus| gpus.split(','));
    for (place, piece) in sizes.map(str::trim).enumerate() {
        let problem = match piece {
            "auto" => "is no size",
            "" => "is empty",
            _ if parse_size(piece) == Ok(0) => "is zero",
            _ => continue,
        };
        return Err(Failure::usage(format!(
            "--gpus: entry {} {problem}; write the memory of each GPU, for example 24G,24G",
            place + 1
        )));
    }
    if let Some(log) = &args.log {
        let opened = File::options().create(true).append(true).open(log);
        opened.map_err(|error| {
            Failure::usage(format!(
                "--log {}: the file cannot be written ({error}); name another one",
                log.display()
            ))
        })?;
    }
    Ok(())
}

/// Opens the machine here first, so that what is wrong with it is said before the program runs, and
/// says what the program will see.
fn check(
    machine: &MachineArgs,
    args: &FakeArgs,
    interface: Interface,
    console: &Console,
) -> Result<(), Failure> {
    let flags = MachineArgs {
        backend: Some("sim".to_owned()),
        gpu_vram: args.gpus.clone(),
        ..machine.clone()
    };
    // Only --gpus was typed, and is read as --gpu-vram is.
    let opened = Machine::resolve(&flags, OTHERWISE).map_err(|failure| Failure {
        message: failure
            .message
            .replace("--gpu-vram", "--gpus")
            .replace(", or auto alone (lower case) for what is free", ""),
        ..failure
    })?;
    let devices = opened.target.backend().devices();
    let sizes: Vec<String> = devices
        .iter()
        .map(|device| format_bytes(device.total_bytes))
        .collect();
    let library = interface.file_names().first().copied().unwrap_or_default();
    console.remark(&format!(
        "the GPUs are SIMULATED: {} ({}) through a stand-in for {library}; nothing that the \
         program prints is a measurement of hardware",
        devices.len(),
        sizes.join(", ")
    ));
    Ok(())
}

/// The library's settings; files by their whole path, since the program may change its folder.
fn settings(
    machine: &MachineArgs,
    args: &FakeArgs,
) -> Result<Vec<(&'static str, OsString)>, Failure> {
    let whole = |path: &Path| match absolute(path) {
        Ok(path) => Ok(OsString::from(path)),
        Err(error) => Err(Failure::usage(format!("{}: {error}", path.display()))),
    };
    let mut settings = Vec::new();
    match &args.gpus {
        Some(gpus) => settings.push(("DS4_FAKE_GPUS", OsString::from(gpus))),
        None => {
            let name = machine.topology.as_deref().unwrap_or(OTHERWISE);
            let is_shipped = Topology::shipped().any(|shipped| shipped == name);
            let topology = if is_shipped || !Path::new(name).exists() {
                OsString::from(name)
            } else {
                whole(Path::new(name))?
            };
            settings.push(("DS4_FAKE_TOPOLOGY", topology));
        }
    }
    if let Some(plan) = &machine.faults {
        settings.push(("DS4_FAKE_FAULTS", whole(plan)?));
    }
    if let Some(log) = &args.log {
        settings.push(("DS4_FAKE_LOG", whole(log)?));
    }
    if let Some(version) = args.driver_version {
        settings.push(("DS4_FAKE_VERSION", version.to_string().into()));
    }
    if args.ledger {
        settings.push(("DS4_FAKE_LEDGER", "1".into()));
    }
    Ok(settings)
}

/// The folder before all others.
fn library_path(folder: &Path) -> OsString {
    let mut path = folder.as_os_str().to_owned();
    if let Some(before) = env::var_os("LD_LIBRARY_PATH").filter(|before| !before.is_empty()) {
        path.push(":");
        path.push(before);
    }
    path
}

/// Waits for the program and passes signals on to it. One that goes on although the user wants an
/// end is killed once it had time to end by itself.
fn wait(mut child: Child, console: &Console) -> io::Result<ExitStatus> {
    const PAUSE: Duration = Duration::from_millis(10);
    const PAUSES_TO_END: u32 = 200;
    let mut pauses = 0;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if let Some(signal) = console.take_signal() {
            pass_on(signal, &child)?;
        }
        if console.stopped() {
            pauses += 1;
            if pauses > PAUSES_TO_END {
                child.kill()?;
            }
        }
        #[expect(
            clippy::disallowed_methods,
            reason = "the end of a program and a flag of a signal's: nothing waits for both"
        )]
        std::thread::sleep(PAUSE);
    }
}

/// Sends a signal to the program, unless the terminal has: Ctrl-C goes to all in its foreground.
fn pass_on(signal: i32, child: &Child) -> io::Result<()> {
    let foreground = rustix::termios::tcgetpgrp(io::stdin()).ok();
    if signal == SIGINT && foreground == Some(rustix::process::getpgrp()) {
        return Ok(());
    }
    let signal = match signal {
        SIGINT => Signal::INT,
        SIGHUP => Signal::HUP,
        _ => Signal::TERM,
    };
    // It was not waited for yet, so that its number is no other process's.
    Ok(rustix::process::kill_process(
        Pid::from_child(child),
        signal,
    )?)
}

/// As shells have it: 128 and the signal for a program that one ended.
fn code(status: ExitStatus) -> u8 {
    let ended = status.signal().map(|signal| 128 + signal);
    let code = status.code().or(ended).unwrap_or(255);
    u8::try_from(code).unwrap_or(255)
}

fn not_written(error: &io::Error) -> Failure {
    let message = format!("the driver library cannot be written ({error}); is TMPDIR writable?");
    Failure {
        exit: Exit::Internal,
        message,
    }
}

/// As shells have it: 127 for a program that is not there, 126 for one that cannot be run.
fn not_started(program: &OsString, error: &io::Error) -> Failure {
    let is_absent = error.kind() == io::ErrorKind::NotFound;
    Failure {
        exit: Exit::Child(if is_absent { 127 } else { 126 }),
        message: format!("'{}' cannot be run ({error})", program.display()),
    }
}
