//! `ds4 --tensor-parallel`: one rank of a run.

use crate::cli::{Cli, Format};
use crate::output::{Console, Failure, Outcome};
use crate::tensor_parallel::{Plan, run_rank};

/// Runs the rank of the command line.
pub(super) fn run(cli: &Cli, console: &Console) -> Result<Outcome, Failure> {
    if cli.format == Format::Junit {
        return Err(Failure::usage(
            "--format junit is for check and validate; use text or json with --tensor-parallel",
        ));
    }
    let plan = Plan::resolve(&cli.rank, &cli.machine, console.stop())?;
    run_rank(plan, console)
}

/// Refuses flags of a rank where no rank runs, and a rank beside another command.
pub(super) fn refuse_misplaced(cli: &Cli) -> Result<(), Failure> {
    let rank = &cli.rank;
    if rank.tensor_parallel {
        return match &cli.command {
            Some(command) => Err(Failure::usage(format!(
                "--tensor-parallel runs a rank and no other command; leave out {}",
                super::name(command)
            ))),
            None if cli.tensor_size.is_some() => Err(Failure::usage(
                "--tensor-parallel does not use --tensor-size; leave it out",
            )),
            None => Ok(()),
        };
    }
    // `--transport auto` says nothing and passes, as in the reference.
    let transport = rank.transport.as_deref().is_some_and(|name| name != "auto");
    let given = [
        ("--role", rank.role.is_some()),
        ("--listen", rank.listen.is_some()),
        ("--coordinator", rank.coordinator.is_some()),
        ("--transport", transport),
        ("--protocol", rank.protocol.is_some()),
        ("--model", rank.model.is_some()),
        ("--n-layer", rank.n_layer.is_some()),
        ("--tokens", rank.tokens.is_some()),
        ("--key-file", rank.key_file.is_some()),
        ("--insecure", rank.insecure),
        ("--encrypt", rank.encrypt),
        ("--rdma-device", rank.rdma_device.is_some()),
        ("--rdma-gid-index", rank.rdma_gid_index.is_some()),
        ("--debug-hash", rank.debug_hash.is_some()),
        ("--ranks", rank.ranks.is_some()),
        ("--rank", rank.rank.is_some()),
        ("--peer", !rank.peer.is_empty()),
        ("--wait", rank.wait.is_some()),
        ("--connect-timeout", rank.connect_timeout.is_some()),
        ("--gate-timeout", rank.gate_timeout.is_some()),
    ];
    match given.iter().find(|(_, given)| *given) {
        Some((name, _)) => Err(Failure::usage(format!(
            "tensor-parallel options require --tensor-parallel and --role ({name} was given)"
        ))),
        None => Ok(()),
    }
}
