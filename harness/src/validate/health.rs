//! What devices say about themselves, without any load.

use ds4_engine::bytes::format_bytes;
use ds4_engine::device::DeviceId;
use serde_json::json;

use super::run::{Finding, Group, Probe, Stop};
use super::{CheckId, Did, Health, Level, Pcie, Reading, Verdict};
use crate::target::BackendKind;

const fn look(name: &'static str, code: &'static str) -> CheckId {
    CheckId {
        name,
        code,
        level: Level::Look,
    }
}

const IDENTITY: CheckId = look("identity", "DV-0001");
const VERSIONS: CheckId = look("versions", "DV-0002");
const VISIBLE: CheckId = look("visible-devices", "DV-0003");
const ECC: CheckId = look("ecc", "DV-0004");
const REMAPPED: CheckId = look("remapped-rows", "DV-0005");
const THROTTLE: CheckId = look("throttle", "DV-0006");
const TEMPERATURE: CheckId = look("temperature", "DV-0007");
const POWER: CheckId = look("power-and-clocks", "DV-0008");
const PROCESSES: CheckId = look("other-processes", "DV-0009");
const MODE: CheckId = look("modes", "DV-0010");
const FREE: CheckId = look("free-memory", "DV-0011");
const PCIE: CheckId = look("pcie", "DV-0012");
const NVLINK: CheckId = look("nvlink", "DV-0013");

pub(super) const GROUPS: &[Group] = &[
    Group {
        checks: &[IDENTITY],
        body: |probe| probe.each(&IDENTITY, |id| Ok(identity(probe, id))),
    },
    Group {
        checks: &[VERSIONS],
        body: versions,
    },
    Group {
        checks: &[VISIBLE],
        body: visible,
    },
    Group {
        checks: &[ECC],
        body: |probe| by_health(probe, &ECC, ecc),
    },
    Group {
        checks: &[REMAPPED],
        body: |probe| by_health(probe, &REMAPPED, remapped),
    },
    Group {
        checks: &[THROTTLE],
        body: |probe| by_health(probe, &THROTTLE, throttle),
    },
    Group {
        checks: &[TEMPERATURE],
        body: |probe| by_health(probe, &TEMPERATURE, temperature),
    },
    Group {
        checks: &[POWER],
        body: |probe| by_health(probe, &POWER, power),
    },
    Group {
        checks: &[PROCESSES],
        body: |probe| probe.each(&PROCESSES, |id| processes(probe, id)),
    },
    Group {
        checks: &[MODE],
        body: |probe| by_health(probe, &MODE, modes),
    },
    Group {
        checks: &[FREE],
        body: |probe| probe.each(&FREE, |id| free(probe, id)),
    },
    Group {
        checks: &[PCIE],
        body: |probe| {
            probe.each(&PCIE, |id| {
                Ok(or_skip(
                    probe.first_health(id).and_then(|health| health.pcie),
                    |pcie| self::pcie(probe, id, *pcie),
                ))
            });
        },
    },
    Group {
        checks: &[NVLINK],
        body: nvlink,
    },
];

fn did(readings: u64) -> Did {
    Did {
        ops: readings,
        ..Did::default()
    }
}

fn or_skip<T>(reading: Reading<T>, judge: impl FnOnce(&T) -> Finding) -> Finding {
    match reading {
        Ok(read) => judge(&read),
        Err(why) => Finding::skip(&why),
    }
}

fn by_health(probe: &Probe<'_>, check: &CheckId, judge: fn(&Health) -> Finding) {
    probe.each(check, |id| Ok(or_skip(probe.first_health(id), judge)));
}

/// A bus id with its domain in four digits or more, as one library prints it and another does not.
fn same_bus(one: &str, other: &str) -> bool {
    let plain = |id: &str| id.to_ascii_lowercase().trim_start_matches('0').to_owned();
    plain(one) == plain(other)
}

fn identity(probe: &Probe<'_>, id: DeviceId) -> Finding {
    let Some(info) = probe.info(id) else {
        return Finding::error("the backend does not list it");
    };
    let detail = format!(
        "{}, device {} of the driver, PCI {}, {}, {}",
        info.name,
        info.ordinal,
        info.pci_bus_id,
        info.uuid,
        format_bytes(info.total_bytes)
    );
    let twin = probe.devices().find(|other| {
        let same = |one: &str, two: &str| !one.is_empty() && one == two;
        *other != id
            && probe.info(*other).is_some_and(|other| {
                same(&other.uuid, &info.uuid) || same(&other.pci_bus_id, &info.pci_bus_id)
            })
    });
    let said = probe.first_health(id).and_then(|health| health.pci_bus_id);
    let expected = probe.subject.expectations.of("memory", &info.name);
    let measured = json!({
        "name": info.name, "ordinal": info.ordinal.0, "pci_bus_id": info.pci_bus_id,
        "uuid": info.uuid, "total_bytes": info.total_bytes,
    });
    let finding = match (twin, said) {
        (Some(twin), _) => Finding::fail(did(1), format!("{detail}; {twin} says the same"))
            .hint("two devices with one identity: select each device once"),
        (None, Ok(said)) if !same_bus(&said, &info.pci_bus_id) => Finding::fail(
            did(2),
            format!("{detail}; NVML has this UUID at PCI {said}"),
        ),
        _ if info.total_bytes == 0 || info.name.is_empty() => Finding::fail(did(1), detail),
        _ => Finding::pass(did(1), detail),
    };
    match expected {
        Some(least) => {
            let enough = info.total_bytes >= least.at_least;
            let finding = if enough || finding.verdict != Verdict::Pass {
                finding
            } else {
                Finding::new(least.otherwise, did(1), finding.detail)
            };
            let wish = format!("at least {} of memory", format_bytes(least.at_least));
            finding.expected(wish, &least.source)
        }
        None => finding,
    }
    .measured(measured)
}

fn versions(probe: &Probe<'_>) {
    let origin = probe.subject.target.origin();
    let monitor = probe.subject.monitor.as_ref();
    let versions = monitor.map_err(Clone::clone).and_then(|m| m.versions());
    let finding = match versions {
        Ok(versions) => Finding::pass(
            did(2),
            format!(
                "{origin}; driver {}, NVML {}",
                versions.driver, versions.library
            ),
        )
        .measured(json!({
            "origin": origin, "driver": versions.driver, "nvml": versions.library,
        })),
        Err(why) => {
            Finding::pass(did(1), format!("{origin}; {why}")).measured(json!({ "origin": origin }))
        }
    };
    probe.tell(&VERSIONS, None, finding);
}

/// The variables that hide devices, and how many devices there are against how many are used.
fn visible(probe: &Probe<'_>) {
    let names: &[&str] = match probe.subject.target.kind() {
        BackendKind::Sim => {
            let why = "simulated devices are hidden by no variable";
            return probe.tell(&VISIBLE, None, Finding::skip(why));
        }
        BackendKind::Cuda => &[
            "CUDA_VISIBLE_DEVICES",
            "CUDA_DEVICE_ORDER",
            "NVIDIA_VISIBLE_DEVICES",
        ],
        BackendKind::Hip => &[
            "HIP_VISIBLE_DEVICES",
            "ROCR_VISIBLE_DEVICES",
            "GPU_DEVICE_ORDINAL",
        ],
    };
    let values = names.iter().map(|name| {
        let value = std::env::var_os(name);
        (
            *name,
            value.map(|value| value.to_string_lossy().into_owned()),
        )
    });
    let values: Vec<(&str, Option<String>)> = values.collect();
    let used = probe.devices().count();
    let monitor = probe.subject.monitor.as_ref();
    let present = monitor
        .ok()
        .and_then(|m| m.versions().ok())
        .map(|v| v.devices);
    probe.tell(&VISIBLE, None, judge_visible(&values, used, present));
}

fn judge_visible(values: &[(&str, Option<String>)], used: usize, present: Option<u32>) -> Finding {
    let parts: Vec<String> = values
        .iter()
        .map(|(name, value)| match value {
            Some(value) => format!("{name}='{}'", value.escape_debug()),
            None => format!("{name} not set"),
        })
        .collect();
    let mut detail = format!("{used} devices used; {}", parts.join(", "));
    let measured = json!({
        "used": used,
        "present": present,
        "variables": values.iter().cloned().collect::<std::collections::BTreeMap<_, _>>(),
    });
    let present = present.and_then(|count| usize::try_from(count).ok());
    if let Some(present) = present {
        detail.push_str(&format!("; {present} present"));
    }
    match present {
        Some(present) if present > used => Finding::warn(did(1), detail)
            .hint("devices are hidden or were not selected: these are not looked at"),
        _ => Finding::pass(did(1), detail),
    }
    .measured(measured)
}

fn ecc(health: &Health) -> Finding {
    let (mode, errors) = match (&health.ecc, &health.ecc_errors) {
        (Ok(mode), Ok(errors)) => (mode, errors),
        (Ok(mode), Err(_)) if !mode.enabled => {
            return Finding::warn(did(1), "error correction is off: memory errors go unseen")
                .hint("nvidia-smi -e 1, then reset the device");
        }
        (Err(why), _) | (_, Err(why)) => return Finding::skip(why),
    };
    let detail = format!(
        "{}; since the driver was loaded {} corrected and {} uncorrected errors, {} uncorrected ever",
        if mode.enabled { "on" } else { "off" },
        errors.corrected,
        errors.uncorrected,
        errors.uncorrected_ever
    );
    let finding = if errors.uncorrected > 0 {
        Finding::fail(did(2), detail)
            .hint("reset the device; if the count rises again, have it replaced")
    } else if !mode.enabled || mode.pending != mode.enabled {
        Finding::warn(did(2), detail).hint(
            "error correction is off now or after the next reset; nvidia-smi -e 1 turns it on",
        )
    } else if errors.uncorrected_ever > 0 {
        Finding::warn(did(2), detail).hint("it had memory errors before; see remapped-rows")
    } else {
        Finding::pass(did(2), detail)
    };
    finding.measured(json!({
        "enabled": mode.enabled, "pending": mode.pending, "corrected": errors.corrected,
        "uncorrected": errors.uncorrected, "uncorrected_ever": errors.uncorrected_ever,
    }))
}

fn remapped(health: &Health) -> Finding {
    let rows = match (&health.remapped, &health.retirement_pending) {
        (Ok(rows), _) => rows,
        (Err(_), Ok(false)) => return Finding::pass(did(1), "no page waits to be retired"),
        (Err(_), Ok(true)) => {
            return Finding::warn(did(1), "a page waits to be retired").hint("reset the device");
        }
        (Err(why), Err(_)) => return Finding::skip(why),
    };
    let detail = format!(
        "{} rows replaced after corrected errors, {} after others{}{}",
        rows.corrected,
        rows.uncorrected,
        if rows.pending {
            "; one waits for a reset"
        } else {
            ""
        },
        if rows.failed {
            "; one could not be replaced"
        } else {
            ""
        }
    );
    let finding = if rows.failed {
        Finding::fail(did(1), detail).hint("no spare row was left: have the device replaced")
    } else if rows.pending {
        Finding::warn(did(1), detail).hint("reset the device, so that the row is replaced")
    } else {
        Finding::pass(did(1), detail)
    };
    finding.measured(json!({
        "corrected": rows.corrected, "uncorrected": rows.uncorrected,
        "pending": rows.pending, "failed": rows.failed,
    }))
}

pub(super) fn throttle(health: &Health) -> Finding {
    or_skip(health.throttle.clone(), |throttle| {
        let listed = |reasons: &[String]| reasons.join(", ");
        let measured = json!({ "reasons": throttle.reasons });
        if throttle.harmful.is_empty() {
            let detail = match throttle.reasons.is_empty() {
                true => "clocks are not held back".to_owned(),
                false => format!("clocks held back only by: {}", listed(&throttle.reasons)),
            };
            return Finding::pass(did(1), detail).measured(measured);
        }
        let detail = format!("clocks held back by {}", listed(&throttle.harmful));
        Finding::warn(did(1), detail)
            .measured(measured)
            .hint("look at cooling and power; figures of this run are low")
    })
}

fn temperature(health: &Health) -> Finding {
    let (now, limit) = match (&health.temperature_c, &health.temperature_slowdown_c) {
        (Ok(now), Ok(limit)) => (*now, *limit),
        (Ok(now), Err(_)) => {
            return Finding::skip(&format!("{now} °C; the device names no limit"))
                .measured(json!({ "celsius": now }));
        }
        (Err(why), _) => return Finding::skip(why),
    };
    let detail = format!("{now} °C, clocks are lowered at {limit} °C");
    let finding = if now >= limit {
        Finding::fail(did(2), detail).hint("look at the cooling")
    } else {
        Finding::pass(did(2), detail)
    };
    finding
        .measured(json!({ "celsius": now }))
        .expected(format!("below {limit} °C"), "the device's own limit")
}

fn power(health: &Health) -> Finding {
    let (cap, whole) = match (&health.power_cap_mw, &health.power_cap_default_mw) {
        (Ok(cap), Ok(whole)) => (*cap, *whole),
        (Err(why), _) | (_, Err(why)) => return Finding::skip(why),
    };
    let mut detail = format!("power cap {} W of {} W", cap / 1000, whole / 1000);
    for (what, clock) in [
        ("SM", &health.sm_clock_mhz),
        ("memory", &health.memory_clock_mhz),
    ] {
        if let Ok((now, most)) = clock {
            detail.push_str(&format!(", {what} at {now} of {most} MHz"));
        }
    }
    let finding = if cap < whole {
        Finding::warn(did(2), detail).hint("somebody lowered the cap: figures will be low")
    } else {
        Finding::pass(did(2), detail)
    };
    finding
        .measured(json!({
            "power_cap_mw": cap,
            "sm_mhz": health.sm_clock_mhz.as_ref().ok().map(|clock| clock.0),
            "memory_mhz": health.memory_clock_mhz.as_ref().ok().map(|clock| clock.0),
        }))
        .expected(format!("{} W", whole / 1000), "the device's default cap")
}

fn processes(probe: &Probe<'_>, id: DeviceId) -> Result<Finding, Stop> {
    const ALONE: &str = "nobody else was on the device";
    if probe.sim().is_some() && probe.subject.monitor.is_err() {
        let memory = probe.backend().memory_info(id)?;
        let (held, _) = probe.held_by_others(id, memory);
        let finding = match held {
            0 => Finding::pass(did(1), ALONE),
            held => Finding::warn(did(1), format!("others hold {}", format_bytes(held))),
        };
        return Ok(finding.measured(json!({ "held_bytes": held })));
    }
    Ok(or_skip(
        probe.first_health(id).and_then(|health| health.processes),
        |list| {
            if list.is_empty() {
                return Finding::pass(did(1), ALONE);
            }
            let parts: Vec<String> = list
                .iter()
                .map(|one| match one.bytes {
                    Some(bytes) => format!("process {} holds {}", one.pid, format_bytes(bytes)),
                    None => format!("process {} holds an unknown amount", one.pid),
                })
                .collect();
            let who = list
                .iter()
                .map(|one| json!({ "pid": one.pid, "bytes": one.bytes }));
            Finding::warn(did(1), parts.join(", "))
                .measured(json!({ "processes": who.collect::<Vec<_>>() }))
                .hint("memory and speed are shared with them")
        },
    ))
}

fn modes(health: &Health) -> Finding {
    let mode = match &health.compute_mode {
        Ok(mode) => mode,
        Err(why) => return Finding::skip(why),
    };
    let kept = match health.persistence {
        Ok(true) => "; the driver stays loaded",
        Ok(false) => "; the driver unloads without users (nvidia-smi -pm 1 keeps it)",
        Err(_) => "",
    };
    let detail = format!("compute mode {mode}{kept}");
    let finding = match mode.as_str() {
        "default" => Finding::pass(did(2), detail),
        "prohibited" => {
            Finding::fail(did(2), detail).hint("nvidia-smi -c DEFAULT lets programs in")
        }
        _ => Finding::warn(did(2), detail).hint("one process at a time can use it"),
    };
    finding.measured(json!({
        "compute_mode": mode, "persistence": health.persistence.as_ref().ok(),
    }))
}

fn free(probe: &Probe<'_>, id: DeviceId) -> Result<Finding, Stop> {
    let memory = probe.backend().memory_info(id)?;
    let (free, total) = (memory.free_bytes, memory.total_bytes);
    let detail = format!("{} of {} are free", format_bytes(free), format_bytes(total));
    let finding = if free == 0 {
        Finding::fail(did(1), detail).hint("nothing can run on it; see other-processes")
    } else if free / 9 < total / 10 {
        Finding::warn(did(1), detail).hint("more than a tenth is in use; see other-processes")
    } else {
        Finding::pass(did(1), detail)
    };
    Ok(finding.measured(json!({ "free_bytes": free, "total_bytes": total })))
}

fn pcie(probe: &Probe<'_>, id: DeviceId, pcie: Pcie) -> Finding {
    let Pcie {
        generation,
        generation_max,
        width,
        width_max,
    } = pcie;
    let detail =
        format!("generation {generation} of {generation_max}, {width} of {width_max} lanes");
    let measured = json!({
        "generation": generation, "generation_max": generation_max,
        "width": width, "width_max": width_max,
    });
    for (figure, now, unit) in [
        ("pcie-width", width, "lanes"),
        ("pcie-generation", generation, ""),
    ] {
        let Some(least) = probe.subject.expectations.of(figure, probe.name(id)) else {
            continue;
        };
        if u64::from(now) < least.at_least {
            let wish = format!("{figure} at least {} {unit}", least.at_least);
            return Finding::new(least.otherwise, did(4), detail)
                .measured(measured)
                .expected(wish.trim_end(), &least.source)
                .hint("reseat the card or look at the slot; generations below the largest are usual when idle");
        }
    }
    if width < width_max {
        return Finding::warn(did(4), detail)
            .measured(measured)
            .expected(format!("{width_max} lanes"), "what device and slot can do")
            .hint("the slot gives fewer lanes than the card has");
    }
    Finding::pass(did(4), detail).measured(measured)
}

/// Links are judged by a profile, else by the device of this machine that has most of them.
fn nvlink(probe: &Probe<'_>) {
    let active = |id: DeviceId| -> Reading<(u64, usize, u64)> {
        let links = probe.first_health(id)?.links?;
        let up = links.iter().filter(|link| link.active).count();
        let errors = links.iter().filter_map(|link| link.errors.as_ref().ok());
        let errors = errors.fold(0_u64, |sum, one| sum.saturating_add(one.sum()));
        Ok((up as u64, links.len(), errors))
    };
    let peers = probe.devices().count();
    let most = probe
        .devices()
        .filter_map(|id| Some(active(id).ok()?.0))
        .max();
    probe.each(&NVLINK, |id| {
        Ok(or_skip(active(id), |(up, links, errors)| {
            let detail = format!("{up} of {links} links up, {errors} errors counted");
            let measured = json!({ "active": up, "links": links, "errors": errors });
            if peers < 2 {
                let why = format!("{detail}; one device alone uses none");
                return Finding::skip(&why).measured(measured);
            }
            let own = probe.subject.expectations.of("nvlink", probe.name(id));
            let (least, otherwise, source) = match own {
                Some(own) => (own.at_least, own.otherwise, own.source.as_str()),
                None => (
                    most.unwrap_or(0),
                    Verdict::Fail,
                    "the other devices of this machine",
                ),
            };
            let finding = if *up < least {
                Finding::new(otherwise, did(*links as u64), detail)
                    .hint("links are down: see nvidia-smi nvlink --status and the fabric manager")
            } else if *errors > 0 {
                Finding::warn(did(*links as u64), detail)
                    .hint("run level 2: it says whether the count rises")
            } else {
                Finding::pass(did(*links as u64), detail)
            };
            finding
                .measured(measured)
                .expected(format!("at least {least} links up"), source)
        }))
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bus_ids_are_the_same_whatever_the_width_of_their_domain() {
        assert!(same_bus("00000000:1B:00.0", "0000:1b:00.0"));
        assert!(!same_bus("00000000:1B:00.0", "0000:1c:00.0"));
    }

    #[test]
    fn hidden_devices_are_told() {
        let hidden = judge_visible(
            &[("CUDA_VISIBLE_DEVICES", Some("0".to_owned()))],
            1,
            Some(8),
        );
        assert_eq!(hidden.verdict, Verdict::Warn);
        let all = judge_visible(&[("CUDA_VISIBLE_DEVICES", None)], 8, Some(8));
        assert_eq!(all.verdict, Verdict::Pass);
        assert_eq!(judge_visible(&[], 2, None).verdict, Verdict::Pass);
    }
}
