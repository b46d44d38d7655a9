//! NVIDIA's management library, loaded at run time.

use std::collections::BTreeMap;

use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{
    Clock, ComputeMode, EccCounter, MemoryError, TemperatureSensor, TemperatureThreshold,
};
use nvml_wrapper::enum_wrappers::nv_link::ErrorCounter;
use nvml_wrapper::enums::device::{SampleValue, UsedGpuMemory};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::sys_exports::field_id;
use nvml_wrapper::{Device, Nvml};

use super::monitor::{
    Ecc, EccErrors, Health, LinkErrors, LinkHealth, Monitor, Pcie, Process, Reading, RemappedRows,
    Throttle, Versions,
};

/// `NVML_NVLINK_MAX_LINKS` of nvml.h.
const LINKS_MAX: u32 = 18;

#[derive(Debug)]
struct Watcher {
    nvml: Nvml,
    /// By UUID, as they were when the library was loaded.
    processes: BTreeMap<String, Reading<Vec<Process>>>,
}

/// Loads the library and notes who uses the devices; call it before opening any, so that this
/// process is not among them (in a container it could not be told by its number).
///
/// # Errors
/// Why there is none.
pub fn open() -> Result<Box<dyn Monitor>, String> {
    let nvml = Nvml::init().map_err(|error| format!("NVML cannot be used: {error}"))?;
    let mut processes = BTreeMap::new();
    for index in 0..nvml.device_count().map_err(said)? {
        let Ok(device) = nvml.device_by_index(index) else {
            continue;
        };
        if let Ok(uuid) = device.uuid() {
            processes.insert(uuid, others(&device));
        }
    }
    Ok(Box::new(Watcher { nvml, processes }))
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "it is the argument of map_err"
)]
fn said(error: NvmlError) -> String {
    format!("NVML: {error}")
}

fn others(device: &Device<'_>) -> Reading<Vec<Process>> {
    let own = std::process::id();
    let compute = device.running_compute_processes().map_err(said)?;
    let graphics = device.running_graphics_processes().unwrap_or_default();
    let mut found = BTreeMap::new();
    for process in compute.into_iter().chain(graphics) {
        let bytes = match process.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Some(bytes),
            UsedGpuMemory::Unavailable => None,
        };
        if process.pid != own {
            found.insert(process.pid, bytes);
        }
    }
    let list = found.into_iter();
    Ok(list.map(|(pid, bytes)| Process { pid, bytes }).collect())
}

impl Monitor for Watcher {
    fn versions(&self) -> Reading<Versions> {
        Ok(Versions {
            driver: self.nvml.sys_driver_version().map_err(said)?,
            library: self.nvml.sys_nvml_version().map_err(said)?,
            devices: self.nvml.device_count().map_err(said)?,
        })
    }

    fn read(&self, uuid: &str) -> Reading<Health> {
        let device = self.nvml.device_by_uuid(uuid).map_err(said)?;
        let unknown = || Err("NVML did not list it at the start".to_owned());
        Ok(Health {
            pci_bus_id: device.pci_info().map(|pci| pci.bus_id).map_err(said),
            ecc: ecc(&device),
            ecc_errors: ecc_errors(&device),
            remapped: remapped(&device),
            retirement_pending: device.are_pages_pending_retired().map_err(said),
            throttle: device
                .current_throttle_reasons()
                .map(throttle)
                .map_err(said),
            temperature_c: device.temperature(TemperatureSensor::Gpu).map_err(said),
            temperature_slowdown_c: device
                .temperature_threshold(TemperatureThreshold::Slowdown)
                .map_err(said),
            power_cap_mw: device.enforced_power_limit().map_err(said),
            power_cap_default_mw: device.power_management_limit_default().map_err(said),
            sm_clock_mhz: clock(&device, Clock::SM),
            memory_clock_mhz: clock(&device, Clock::Memory),
            pcie: pcie(&device),
            pcie_replays: device.pcie_replay_counter().map(u64::from).map_err(said),
            links: links(&device),
            processes: self.processes.get(uuid).cloned().unwrap_or_else(unknown),
            persistence: device.is_in_persistent_mode().map_err(said),
            compute_mode: device
                .compute_mode()
                .map(|mode| compute_mode(&mode).to_owned())
                .map_err(said),
        })
    }
}

fn compute_mode(mode: &ComputeMode) -> &'static str {
    match mode {
        ComputeMode::Default => "default",
        ComputeMode::ExclusiveThread => "exclusive thread",
        ComputeMode::ExclusiveProcess => "exclusive process",
        ComputeMode::Prohibited => "prohibited",
    }
}

fn ecc(device: &Device<'_>) -> Reading<Ecc> {
    let state = device.is_ecc_enabled().map_err(said)?;
    Ok(Ecc {
        enabled: state.currently_enabled,
        pending: state.pending_enabled,
    })
}

fn ecc_errors(device: &Device<'_>) -> Reading<EccErrors> {
    let count = |kind, counter| device.total_ecc_errors(kind, counter).map_err(said);
    Ok(EccErrors {
        corrected: count(MemoryError::Corrected, EccCounter::Volatile)?,
        uncorrected: count(MemoryError::Uncorrected, EccCounter::Volatile)?,
        uncorrected_ever: count(MemoryError::Uncorrected, EccCounter::Aggregate)?,
    })
}

fn remapped(device: &Device<'_>) -> Reading<RemappedRows> {
    let fields = [
        field_id::NVML_FI_DEV_REMAPPED_COR,
        field_id::NVML_FI_DEV_REMAPPED_UNC,
        field_id::NVML_FI_DEV_REMAPPED_PENDING,
        field_id::NVML_FI_DEV_REMAPPED_FAILURE,
    ];
    let samples = device
        .field_values_for(&fields.map(FieldId))
        .map_err(said)?;
    let mut values = Vec::new();
    for sample in samples {
        let sample = sample.map_err(said)?;
        values.push(match sample.value.map_err(said)? {
            SampleValue::U32(value) => u64::from(value),
            SampleValue::U64(value) => value,
            SampleValue::I64(value) => value.unsigned_abs(),
            SampleValue::F64(_) => return Err("NVML gave a fraction of a row".to_owned()),
        });
    }
    match values[..] {
        [corrected, uncorrected, pending, failed] => Ok(RemappedRows {
            corrected,
            uncorrected,
            pending: pending > 0,
            failed: failed > 0,
        }),
        _ => Err("NVML gave fewer values than asked for".to_owned()),
    }
}

fn throttle(reasons: ThrottleReasons) -> Throttle {
    let known = [
        (ThrottleReasons::GPU_IDLE, "idle", false),
        (
            ThrottleReasons::APPLICATIONS_CLOCKS_SETTING,
            "clocks set by the user",
            false,
        ),
        (ThrottleReasons::SW_POWER_CAP, "power cap", false),
        (ThrottleReasons::HW_SLOWDOWN, "hardware slowdown", true),
        (ThrottleReasons::SYNC_BOOST, "sync boost", false),
        (
            ThrottleReasons::SW_THERMAL_SLOWDOWN,
            "thermal slowdown by the driver",
            true,
        ),
        (
            ThrottleReasons::HW_THERMAL_SLOWDOWN,
            "thermal slowdown by the hardware",
            true,
        ),
        (
            ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN,
            "power brake",
            true,
        ),
        (
            ThrottleReasons::DISPLAY_CLOCK_SETTING,
            "display clocks",
            false,
        ),
    ];
    let mut throttle = Throttle::default();
    for (flag, name, harmful) in known {
        if reasons.contains(flag) {
            throttle.reasons.push(name.to_owned());
            if harmful {
                throttle.harmful.push(name.to_owned());
            }
        }
    }
    throttle
}

fn clock(device: &Device<'_>, clock: Clock) -> Reading<(u32, u32)> {
    let now = device.clock_info(clock).map_err(said)?;
    Ok((now, device.max_clock_info(clock).map_err(said)?))
}

fn pcie(device: &Device<'_>) -> Reading<Pcie> {
    Ok(Pcie {
        generation: device.current_pcie_link_gen().map_err(said)?,
        generation_max: device.max_pcie_link_gen().map_err(said)?,
        width: device.current_pcie_link_width().map_err(said)?,
        width_max: device.max_pcie_link_width().map_err(said)?,
    })
}

/// The links that exist; the first that does not ends the list.
fn links(device: &Device<'_>) -> Reading<Vec<LinkHealth>> {
    let mut links = Vec::new();
    for link in 0..LINKS_MAX {
        let wrapper = device.link_wrapper_for(link);
        let active = match wrapper.is_active() {
            Ok(active) => active,
            Err(error) if links.is_empty() => return Err(said(error)),
            Err(_) => break,
        };
        let count = |counter| wrapper.error_counter(counter).map_err(said);
        let errors = || {
            Ok(LinkErrors {
                replay: count(ErrorCounter::DlReplay)?,
                recovery: count(ErrorCounter::DlRecovery)?,
                crc_flit: count(ErrorCounter::DlCrcFlit)?,
                crc_data: count(ErrorCounter::DlCrcData)?,
            })
        };
        links.push(LinkHealth {
            link,
            active,
            errors: errors(),
        });
    }
    Ok(links)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heat_and_lack_of_power_are_told_from_idleness() {
        let idle = throttle(ThrottleReasons::GPU_IDLE | ThrottleReasons::SW_POWER_CAP);
        assert_eq!(idle.reasons, ["idle", "power cap"]);
        assert!(idle.harmful.is_empty());
        let hot = throttle(ThrottleReasons::HW_THERMAL_SLOWDOWN | ThrottleReasons::GPU_IDLE);
        assert_eq!(hot.harmful, ["thermal slowdown by the hardware"]);
        assert_eq!(throttle(ThrottleReasons::NONE), Throttle::default());
    }
}
