//! `ds4 devices --rdma`: network devices with direct memory access, and what ranks would use.

use ds4_engine::bytes::format_bytes;
use ds4_engine::transport::verbs::{
    DeviceReport, Library, PortReport, SystemVerbs, Wish, no_devices, survey, take,
};
use serde_json::{Value, json};

use crate::exit::Exit;
use crate::output::{Console, Failure, Outcome, table};

/// Lists devices, ports and tables of addresses.
pub(super) fn run(console: &Console) -> Result<Outcome, Failure> {
    let none = |message: String| Failure {
        exit: Exit::NothingDone,
        message,
    };
    let library = SystemVerbs::load().map_err(|error| none(error.to_string()))?;
    let reports = survey(&library).map_err(|error| none(no_devices(&error)))?;
    if reports.is_empty() {
        return Err(none("this host has no RDMA device".to_owned()));
    }
    Ok(report(&library.origin(), &reports, console))
}

/// The report on what was found.
fn report(origin: &str, reports: &[DeviceReport], console: &Console) -> Outcome {
    let taken = take(reports, &Wish::default(), &[]);
    let (verdict, exit) = match &taken {
        Ok(taken) => {
            let best = taken.report.ranked().into_iter().next();
            let best = best.map(|it| format!(", GID {} ({})", it.index, it.why));
            let (device, port) = (&taken.device, taken.report.number);
            let text = format!(
                "ranks would use {device} port {port}{}; a peer's table or --rdma-device and \
                 --rdma-gid-index may change that",
                best.unwrap_or_default()
            );
            (text, Exit::Ok)
        }
        Err(error) => (error.to_string(), Exit::NothingDone),
    };
    let mut text = format!("{origin}\n\n{}", port_table(reports));
    for report in reports {
        for port in report.ports.iter().flatten() {
            text.push_str(&gid_table(&report.name, port));
        }
    }
    text.push_str(&format!("\n{verdict}\n"));
    let chosen = taken.as_ref().ok().map(|taken| {
        json!({
            "device": taken.device,
            "port": taken.report.number,
            "gid_index": taken.report.ranked().first().map(|it| it.index),
        })
    });
    let value = json!({
        "library": origin,
        "rdma_devices": reports.iter().map(device_value).collect::<Vec<_>>(),
        "chosen": chosen,
        "verdict": verdict,
    });
    console.outcome(exit, "devices", text, value)
}

fn port_table(reports: &[DeviceReport]) -> String {
    let heads = [
        "device",
        "port",
        "state",
        "link",
        "LID",
        "MTU",
        "at most",
        "largest message",
    ];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    for report in reports {
        let name = &report.name;
        match &report.ports {
            Err(error) => rows.push(vec![name.clone(), "-".to_owned(), error.to_string()]),
            Ok(ports) => rows.extend(ports.iter().map(|it| {
                vec![
                    name.clone(),
                    it.number.to_string(),
                    it.port.state.to_string(),
                    it.port.link.to_string(),
                    it.port.lid.to_string(),
                    it.port.active_mtu.bytes().to_string(),
                    it.port.max_mtu.bytes().to_string(),
                    format_bytes(u64::from(it.port.max_message_bytes)),
                ]
            })),
        }
    }
    table(&rows)
}

fn gid_table(device: &str, port: &PortReport) -> String {
    let heads = ["GID", "address", "type", "reaches", "interface", "order"];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    let ranked = port.ranked();
    for gid in &port.table.gids {
        let place = ranked.iter().position(|it| it.index == gid.index);
        rows.push(vec![
            gid.index.to_string(),
            gid.address().to_string(),
            gid.kind.to_string(),
            gid.scope().to_string(),
            gid.interface.clone().unwrap_or_else(|| "-".to_owned()),
            place.map_or_else(String::new, |place| (place + 1).to_string()),
        ]);
    }
    format!(
        "\n{device} port {}: addresses, and in which order they are tried\n{}",
        port.number,
        table(&rows)
    )
}

fn device_value(report: &DeviceReport) -> Value {
    match &report.ports {
        Err(error) => json!({ "device": report.name, "error": error.to_string() }),
        Ok(ports) => json!({
            "device": report.name,
            "ports": ports.iter().map(port_value).collect::<Vec<_>>(),
        }),
    }
}

fn port_value(report: &PortReport) -> Value {
    let gids = report.table.gids.iter().map(|gid| {
        json!({
            "index": gid.index,
            "gid": gid.address().to_string(),
            "type": gid.kind.to_string(),
            "scope": gid.scope().to_string(),
            "interface": gid.interface,
        })
    });
    let ranked = report.ranked();
    let ranked = ranked
        .iter()
        .map(|it| json!({ "index": it.index, "why": it.why }));
    json!({
        "port": report.number,
        "state": report.port.state.to_string(),
        "usable": report.usable(),
        "link_layer": report.port.link.to_string(),
        "lid": report.port.lid,
        "active_mtu_bytes": report.port.active_mtu.bytes(),
        "max_mtu_bytes": report.port.max_mtu.bytes(),
        "max_message_bytes": report.port.max_message_bytes,
        "gids": gids.collect::<Vec<_>>(),
        "ranked": ranked.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use ds4_sim::verbs::{Fabric, VerbsPlan};

    use super::*;
    use crate::cli::Format;

    #[test]
    fn the_report_names_every_address_and_the_choice() {
        let mut plan = VerbsPlan::quiet(1);
        let library = Fabric::new(plan.clone()).library(0);
        let reports = survey(&*library).unwrap();
        let console = Console::new(Format::Text);
        let found = report(&library.origin(), &reports, &console);
        assert_eq!(found.exit, Exit::Ok);
        insta::assert_snapshot!(found.text, @r"
        simulated verbs

        device  port   state      link  LID   MTU  at most  largest message
        sim0       1  active  Ethernet    0  1024     1024            1 GiB

        sim0 port 1: addresses, and in which order they are tried
        GID          address     type          reaches  interface  order
        0            fe80::1  RoCE v2  link-local IPv6       eth0      2
        1    ::ffff:10.8.0.1  RoCE v2             IPv4       eth0      1

        ranks would use sim0 port 1, GID 1 (RoCE v2, IPv4); a peer's table or --rdma-device and --rdma-gid-index may change that
        ");
        for host in &mut plan.hosts {
            host.active = false;
        }
        let library = Fabric::new(plan).library(0);
        let reports = survey(&*library).unwrap();
        let found = report(&library.origin(), &reports, &console);
        assert_eq!(found.exit, Exit::NothingDone);
        assert!(found.text.contains("sim0 port 1 is down"), "{}", found.text);
    }
}
