//! `ds4 devices`: what there is and how it is linked.

use std::io::Write as _;

use ds4_engine::backend::driver::Vendor;
use ds4_engine::backend::{Backend, BackendError};
use ds4_engine::bytes::format_bytes;
use ds4_engine::device::{DeviceId, DeviceMask, PeerAccess};
use ds4_sim::{MAX_NAME_CHARS, Topology};
use serde_json::{Value, json};

use crate::cli::{DevicesArgs, MachineArgs};
use crate::exit::Exit;
use crate::files::write_new;
use crate::machine::{Flag, Machine, refuse_flags, roomy};
use crate::output::{Console, Failure, Outcome, table, table_in_parts};
use crate::printable::cleaned;
use crate::target::Target;

/// Lists the devices, and saves them as a topology if asked.
pub(super) fn run(
    machine: &MachineArgs,
    args: &DevicesArgs,
    console: &Console,
) -> Result<Outcome, Failure> {
    if args.rdma {
        let flags = [Flag::Faults, Flag::Hints, Flag::Devices, Flag::Topology];
        refuse_flags(machine, &flags, "devices --rdma")?;
        return super::rdma::run(console);
    }
    refuse_flags(machine, &[Flag::Faults, Flag::Hints], "devices")?;
    let machine = Machine::resolve(machine, roomy(1))?;
    let target = machine.fresh()?;
    let matrix = peer_matrix(&**target.backend()).map_err(Failure::failed)?;
    if let Some(path) = &args.save {
        save(&target, &matrix, path)?;
        console.remark(&format!(
            "saved as {}; use it with --topology",
            path.display()
        ));
    }
    if let Some(backend) = target.real_devices() {
        explain_visibility(backend.vendor(), console);
    }
    let rows = device_rows(&target).map_err(Failure::failed)?;
    let mut text = format!("{}\n\n{}", target.origin(), rows.0);
    text.push_str("\nhow the row's device reaches the column's\n");
    text.push_str(&table_in_parts(&matrix_rows(&matrix)));
    let value = json!({
        "backend": target.kind().name(),
        "origin": target.origin(),
        "devices": rows.1,
        "peers": matrix.iter().map(|row| row.iter().map(word).collect()).collect::<Vec<Vec<_>>>(),
    });
    Ok(console.outcome(Exit::Ok, "devices", text, value))
}

/// Says why a device's number may not be the one that other tools show.
fn explain_visibility(vendor: Vendor, console: &Console) {
    for name in vendor.visibility() {
        if let Some(value) = std::env::var_os(name) {
            console.remark(&format!(
                "{name}={} hides and renumbers devices: the driver's numbers are positions in \
                 that list; compare bus ids or UUIDs with other tools",
                value.to_string_lossy()
            ));
        }
    }
}

type Matrix = Vec<Vec<Option<PeerAccess>>>;

fn ids(backend: &dyn Backend) -> impl Iterator<Item = DeviceId> {
    DeviceMask::first(backend.devices().len()).iter()
}

fn peer_matrix(backend: &dyn Backend) -> Result<Matrix, BackendError> {
    ids(backend)
        .map(|from| {
            ids(backend)
                .map(|to| {
                    (from != to)
                        .then(|| backend.peer_access(from, to))
                        .transpose()
                })
                .collect()
        })
        .collect()
}

fn word(access: &Option<PeerAccess>) -> &'static str {
    match access {
        None => "self",
        Some(PeerAccess::Absent) => "absent",
        Some(PeerAccess::Bounce) => "bounce",
        Some(PeerAccess::Direct) => "direct",
        Some(PeerAccess::Broken) => "broken",
    }
}

fn device_rows(target: &Target) -> Result<(String, Vec<Value>), BackendError> {
    let heads = ["device", "driver", "name", "memory", "free", "page"];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    let mut identities = Vec::new();
    let mut values = Vec::new();
    for (id, info) in ids(&**target.backend()).zip(target.backend().devices()) {
        let memory = target.backend().memory_info(id)?;
        rows.push(vec![
            id.to_string(),
            info.ordinal.to_string(),
            info.name.clone(),
            format_bytes(memory.total_bytes),
            format_bytes(memory.free_bytes),
            info.page_bytes
                .map_or_else(|| "none".to_owned(), format_bytes),
        ]);
        // Outside the table, which would cut them: they are there to be copied.
        identities.push(format!("{id}  {}  {}\n", info.pci_bus_id, info.uuid));
        values.push(json!({
            "device": id.index(),
            "ordinal": info.ordinal.0,
            "name": info.name,
            "pci_bus_id": info.pci_bus_id,
            "uuid": info.uuid,
            "total_bytes": memory.total_bytes,
            "free_bytes": memory.free_bytes,
            "page_bytes": info.page_bytes,
        }));
    }
    let text = format!("{}\n{}", table(&rows), identities.concat());
    Ok((text, values))
}

fn matrix_rows(matrix: &Matrix) -> Vec<Vec<String>> {
    let mut head = vec![String::new()];
    head.extend((0..matrix.len()).map(|to| format!("gpu{to}")));
    let mut rows = vec![head];
    for (from, row) in matrix.iter().enumerate() {
        let mut cells = vec![format!("gpu{from}")];
        cells.extend(
            row.iter()
                .map(|access| if access.is_some() { word(access) } else { "-" }.to_owned()),
        );
        rows.push(cells);
    }
    rows
}

fn save(target: &Target, matrix: &Matrix, path: &std::path::Path) -> Result<(), Failure> {
    let name = path
        .file_stem()
        .map_or_else(|| "host".into(), |stem| stem.to_string_lossy());
    let name = cleaned(&name, MAX_NAME_CHARS);
    let topology = match target.sim() {
        Some(sim) => Topology {
            about: format!("Saved from {}.", target.origin()),
            config: ds4_sim::SimConfig {
                machine: name,
                ..sim.config().clone()
            },
        },
        None => Topology::from_devices(&name, target.backend().devices(), |from, to| {
            let access = matrix.get(from.index()).and_then(|row| row.get(to.index()));
            access.copied().flatten().unwrap_or(PeerAccess::Absent)
        }),
    };
    let written = write_new(path, |file| file.write_all(topology.to_toml().as_bytes()));
    written.map_err(|error| {
        Failure::usage(format!(
            "{}: cannot be written ({error}); name a new file",
            path.display()
        ))
    })
}
