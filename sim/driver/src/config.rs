//! What the library simulates, as the environment or a program says.
//!
//! | variable | meaning |
//! |---|---|
//! | `DS4_FAKE_GPUS` | memory per device, as for `ds4 --gpu-vram`: `24G,24G` |
//! | `DS4_FAKE_TOPOLOGY` | instead: a shipped machine or a TOML file |
//! | `DS4_FAKE_FAULTS` | a plan of faults (`sim/FAULTS.md`) |
//! | `DS4_FAKE_VERSION` | the version that the driver gives, otherwise 13000 (CUDA) or 60241134 (HIP) |
//! | `DS4_FAKE_LOG` | a file that gets a line for each call: its name and its code |
//! | `DS4_FAKE_LEDGER` | `1` lists at exit what the ledger found |
//! | `CUDA_VISIBLE_DEVICES`, `HIP_VISIBLE_DEVICES` | as for the real drivers, numbers only |
//!
//! Without devices the library answers that there is none; nothing is ever simulated by accident.

use std::fs::File;

use ds4_engine::device::Ordinal;
use ds4_engine::selection::{Budget, Selection, SelectionFlags};
use ds4_sim::{FaultPlan, Instruments, SimBackend, SimConfig, SimDevice, Topology};

/// What a name begins with, so that nothing can be read as hardware.
const MARK: &str = "Simulated ";

#[cfg(feature = "cuda")]
const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";
#[cfg(not(feature = "cuda"))]
const VISIBLE: &str = "HIP_VISIBLE_DEVICES";

/// The settings as texts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Config {
    gpus: Option<String>,
    topology: Option<String>,
    faults: Option<String>,
    version: Option<String>,
    log: Option<String>,
    ledger: Option<String>,
    visible: Option<String>,
}

impl Config {
    /// The settings of the environment.
    pub(crate) fn from_environment() -> Self {
        Self::read(|name| std::env::var(name).ok())
    }

    /// The settings of a text: lines of `NAME=VALUE` with the names of the variables.
    pub(crate) fn from_text(text: &str) -> Self {
        let lines: Vec<(&str, &str)> = text
            .lines()
            .filter_map(|line| line.trim().split_once('='))
            .collect();
        Self::read(|name| {
            let mut found = lines.iter().filter(|(key, _)| *key == name);
            found.next_back().map(|(_, value)| (*value).to_owned())
        })
    }

    fn read(value: impl Fn(&str) -> Option<String>) -> Self {
        let given = |name: &str| value(name).filter(|text| !text.trim().is_empty());
        Self {
            gpus: given("DS4_FAKE_GPUS"),
            topology: given("DS4_FAKE_TOPOLOGY"),
            faults: given("DS4_FAKE_FAULTS"),
            version: given("DS4_FAKE_VERSION"),
            log: given("DS4_FAKE_LOG"),
            ledger: given("DS4_FAKE_LEDGER"),
            // Set and empty hides every device.
            visible: value(VISIBLE),
        }
    }

    /// The machine; `None` if there are no devices.
    pub(crate) fn machine(&self) -> Result<Option<SimBackend>, String> {
        let config = match (&self.gpus, &self.topology) {
            (Some(_), Some(_)) => {
                return Err("give DS4_FAKE_GPUS or DS4_FAKE_TOPOLOGY, not both".to_owned());
            }
            (Some(gpus), None) => sized(gpus)?,
            (None, Some(name)) => {
                Topology::load(name)
                    .map_err(|error| error.to_string())?
                    .config
            }
            (None, None) => return Ok(None),
        };
        let mut config = match &self.visible {
            Some(list) => config.select(&visible(list, config.devices.len())),
            None => config,
        };
        if config.devices.is_empty() {
            return Ok(None);
        }
        for device in &mut config.devices {
            if !device.name.starts_with(MARK) {
                device.name.insert_str(0, MARK);
            }
        }
        let sim = SimBackend::new(config).map_err(|error| error.to_string())?;
        if let Some(path) = &self.faults {
            let json = std::fs::read(path).map_err(|error| format!("{path}: {error}"))?;
            let plan = FaultPlan::from_json(&json, path).map_err(|error| error.to_string())?;
            sim.set_faults(plan).map_err(|error| error.to_string())?;
        }
        Ok(Some(sim))
    }

    /// The version that the driver shall give, if one is set.
    pub(crate) fn version(&self) -> Result<Option<u32>, String> {
        let parse = |text: &String| {
            let number = text.trim().parse();
            number.map_err(|_| format!("DS4_FAKE_VERSION: '{text}' is no number such as 13000"))
        };
        self.version.as_ref().map(parse).transpose()
    }

    /// The log, to which is added.
    pub(crate) fn log(&self) -> Result<Option<File>, String> {
        let Some(path) = &self.log else {
            return Ok(None);
        };
        let created = File::options().create(true).append(true).open(path);
        created
            .map(Some)
            .map_err(|error| format!("DS4_FAKE_LOG: {path}: {error}"))
    }

    /// Whether the ledger's findings are listed at exit.
    pub(crate) fn lists_ledger(&self) -> bool {
        self.ledger
            .as_deref()
            .is_some_and(|text| text.trim() != "0")
    }
}

fn sized(gpus: &str) -> Result<SimConfig, String> {
    let flags = SelectionFlags {
        gpu_vram: Some(gpus),
        ..SelectionFlags::default()
    };
    let selection = Selection::parse(&flags, None)
        .map_err(|error| format!("DS4_FAKE_GPUS, read as --gpu-vram: {error}"))?;
    let devices = selection.devices.iter().map(|device| match device.budget {
        Budget::Bytes(bytes) => Ok(SimDevice::new(bytes)),
        Budget::Auto => Err("DS4_FAKE_GPUS: give the memory of each device".to_owned()),
    });
    let devices: Vec<SimDevice> = devices.collect::<Result<_, String>>()?;
    let machine = format!("of {} GPUs as given", devices.len());
    Ok(SimConfig::new(&machine, devices))
}

/// The devices of a list of numbers; as in the drivers, the first bad one ends the list.
fn visible(list: &str, devices: usize) -> Vec<Ordinal> {
    list.split(',')
        .map_while(|number| {
            let ordinal: u32 = number.trim().parse().ok()?;
            (usize::try_from(ordinal).ok()? < devices).then_some(Ordinal(ordinal))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ds4_engine::backend::Backend;

    fn names(text: &str) -> Result<Vec<String>, String> {
        let machine = Config::from_text(text).machine()?;
        let infos = machine.iter().flat_map(|sim| sim.devices());
        Ok(infos
            .map(|info| format!("{} {}", info.name, info.total_bytes >> 20))
            .collect())
    }

    #[test]
    fn devices_come_from_sizes_or_a_machine_and_are_never_there_by_accident() {
        let two = ["Simulated GPU 24576", "Simulated GPU 512"];
        assert_eq!(names("DS4_FAKE_GPUS=24,512M").unwrap(), two);
        assert_eq!(names("DS4_FAKE_TOPOLOGY=8x24g-mixed").unwrap().len(), 8);
        assert!(names("").unwrap().is_empty());
        assert!(names("DS4_FAKE_GPUS=").unwrap().is_empty());
        assert!(names("DS4_FAKE_GPUS=1\nDS4_FAKE_TOPOLOGY=2xh200").is_err());
        assert!(names("DS4_FAKE_GPUS=much").is_err());
        assert!(names("DS4_FAKE_GPUS=1\nDS4_FAKE_FAULTS=/no/such/plan.json").is_err());
    }

    #[test]
    fn a_device_captured_from_a_real_host_is_marked_as_simulated() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("host.toml");
        let text = "machine = \"host\"\n[[device]]\nname = \"NVIDIA H200\"\ncapacity = \"1GiB\"\n";
        std::fs::write(&path, text).unwrap();
        let names = names(&format!("DS4_FAKE_TOPOLOGY={}", path.display())).unwrap();
        assert_eq!(names, ["Simulated NVIDIA H200 1024"]);
    }

    #[test]
    fn a_list_of_visible_devices_ends_at_the_first_bad_number() {
        let list = |text| {
            visible(text, 3)
                .iter()
                .map(|ordinal| ordinal.0)
                .collect::<Vec<_>>()
        };
        assert_eq!(list("2, 0"), [2, 0]);
        assert_eq!(list("1,7,0"), [1]);
        assert_eq!(list("-1"), [0_u32; 0]);
        assert_eq!(list(""), [0_u32; 0]);
    }
}
