//! `ds4 plan`: does a model fit, and where does each layer go.

use ds4_engine::selection::{Budget, Selection};
use ds4_sim::Topology;

use crate::cli::{MachineArgs, PlanArgs};
use crate::exit::Exit;
use crate::gguf::GgufHeader;
use crate::machine::{Flag, refuse_flags};
use crate::output::{Console, Failure, Outcome};
use crate::planning::{KvType, PlanRequest, Verdict, plan, render_text};

/// Plans a model; no device is touched.
pub(super) fn run(
    machine: &MachineArgs,
    args: &PlanArgs,
    console: &Console,
) -> Result<Outcome, Failure> {
    refuse_flags(machine, &[Flag::Faults], "plan")?;
    let kv_type: KvType = args
        .kv_type
        .to_ascii_lowercase()
        .parse()
        .map_err(|problem: String| Failure::usage(format!("--kv-type: {problem}")))?;
    let selection = selection(machine)?;
    let header = GgufHeader::open(&args.model).map_err(Failure::usage)?;
    let request = PlanRequest {
        selection,
        context_tokens: args.context,
        kv_type,
    };
    let result = plan(&header, &request).map_err(Failure::usage)?;
    let exit = match result.verdict {
        Verdict::Fits => Exit::Ok,
        Verdict::DoesNotFit => Exit::CheckFailed,
    };
    let value = serde_json::to_value(&result).map_err(|error| Failure {
        exit: Exit::Internal,
        message: format!("the plan could not be written as JSON: {error}"),
    })?;
    Ok(console.outcome(exit, "plan", render_text(&result), value))
}

/// The devices of the flags; a topology's capacities stand in for sizes that were not given.
fn selection(machine: &MachineArgs) -> Result<Selection, Failure> {
    let flags = machine.selection_flags();
    let topology = machine.topology.as_deref().map(Topology::load).transpose();
    let topology = topology.map_err(Failure::usage)?;
    if topology.is_none() && machine.gpu_vram.is_none() {
        return Err(Failure::usage(
            "plan needs the memory of each device: --gpu-vram 24,24, or a machine with --topology",
        ));
    }
    let present = topology
        .as_ref()
        .map(|topology| topology.config.devices.len());
    let mut selection = Selection::parse(&flags, present).map_err(Failure::usage)?;
    for device in &mut selection.devices {
        let place = topology.as_ref().and_then(|topology| {
            topology
                .config
                .devices
                .get(usize::try_from(device.ordinal.0).ok()?)
        });
        if let (Budget::Auto, Some(place)) = (device.budget, place) {
            device.budget = Budget::Bytes(place.capacity_bytes - place.other_process_bytes);
        }
    }
    Ok(selection)
}
