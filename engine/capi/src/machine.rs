//! Finding the devices that a program means. A missing driver is an error, never a simulation.

use std::sync::Arc;

use ds4_engine::alloc::{Allocator, AllocatorConfig};
use ds4_engine::backend::Backend;
use ds4_engine::backend::driver::{Driver, DriverBackend, OpenError, Vendor, bounce_is_forced};
use ds4_engine::device::Ordinal;
use ds4_sim::{SimBackend, SimConfig, Topology};

use crate::failure::{Failure, is_of_driver};
use crate::instance::Instance;

/// The simulated machine where none is named.
const TOPOLOGY: &str = "8x24g-mixed";

/// Devices that were found and are not open yet.
#[derive(Debug)]
pub(crate) enum Machine {
    Simulated(SimConfig),
    Real(Driver),
}

impl Machine {
    /// The machine of a backend's name; without one, DS4_BACKEND decides, and then what is there.
    pub(crate) fn find(backend: Option<&str>, topology: Option<&str>) -> Result<Self, Failure> {
        let variable = read_variable("DS4_BACKEND")?;
        let (name, said_by) = match backend.filter(|name| !name.is_empty()) {
            Some(name) => (Some(name), "backend"),
            None => (variable.as_deref(), "DS4_BACKEND"),
        };
        match name.map(str::to_ascii_lowercase).as_deref() {
            None => Self::any(),
            Some("cuda") => Self::real(Vendor::Cuda),
            Some("hip") => Self::real(Vendor::Hip),
            Some("sim") => Self::simulated(topology),
            Some(other) => Err(Failure::Argument(format!(
                "{said_by}: '{}' is no backend; use cuda, hip or sim",
                other.escape_debug()
            ))),
        }
    }

    fn real(vendor: Vendor) -> Result<Self, Failure> {
        Ok(Self::Real(Driver::load(vendor)?))
    }

    fn any() -> Result<Self, Failure> {
        let cuda = match Driver::load(Vendor::Cuda) {
            Ok(driver) => return Ok(Self::Real(driver)),
            Err(error) => error,
        };
        let hip = match Driver::load(Vendor::Hip) {
            Ok(driver) => return Ok(Self::Real(driver)),
            Err(error) => error,
        };
        // A driver that is there and does not work is worth more words than one that is not there.
        let absent = |error: &OpenError| matches!(error, OpenError::NoDriver { .. });
        Err(match (absent(&cuda), absent(&hip)) {
            (true, true) => Failure::NoDevice(
                "no GPU driver: neither libcuda.so.1 nor libamdhip64.so can be loaded; \
                 install one, or set DS4_BACKEND=sim for simulated GPUs"
                    .to_owned(),
            ),
            (false, true) => cuda.into(),
            (true, false) => hip.into(),
            (false, false) if is_of_driver(&cuda) || is_of_driver(&hip) => {
                Failure::Driver(format!("{cuda}; {hip}"))
            }
            (false, false) => Failure::NoDevice(format!("{cuda}; {hip}")),
        })
    }

    fn simulated(topology: Option<&str>) -> Result<Self, Failure> {
        let variable = read_variable("DS4_TOPOLOGY")?;
        let name = topology
            .filter(|name| !name.is_empty())
            .or(variable.as_deref())
            .unwrap_or(TOPOLOGY);
        let topology =
            Topology::load(name).map_err(|error| Failure::Argument(error.to_string()))?;
        Ok(Self::Simulated(topology.config))
    }

    /// How many devices there are.
    pub(crate) fn count(&self) -> usize {
        match self {
            Self::Simulated(config) => config.devices.len(),
            Self::Real(driver) => usize::try_from(driver.count()).unwrap_or(usize::MAX),
        }
    }

    /// Opens an allocator on the devices of these places in the driver's order.
    pub(crate) fn open(
        self,
        places: &[Ordinal],
        config: AllocatorConfig,
    ) -> Result<Instance, Failure> {
        let (backend, driver): (Arc<dyn Backend>, _) = match self {
            Self::Simulated(machine) => {
                let chosen: Vec<Ordinal> = places
                    .iter()
                    .filter_map(|place| machine.ordinals.get(place.0 as usize))
                    .copied()
                    .collect();
                let sim = SimBackend::new(machine.select(&chosen))
                    .map_err(|error| Failure::Argument(error.to_string()))?;
                (Arc::new(sim), None)
            }
            Self::Real(driver) => {
                let force_bounce = bounce_is_forced().map_err(Failure::Argument)?;
                let driver = DriverBackend::open(&driver, places, config.excluded, force_bounce)?;
                let budgets = budgets(&driver, &config);
                let driver = Arc::new(driver.with_pages_for(&budgets));
                (driver.clone(), Some(driver))
            }
        };
        let config = AllocatorConfig {
            free_by_address: true,
            ..config
        };
        Ok(Instance::new(Allocator::new(backend, config)?, driver))
    }
}

/// What each device will be asked for at most.
fn budgets(driver: &DriverBackend, config: &AllocatorConfig) -> Vec<u64> {
    let configured = config.budgets.iter().map(|budget| budget.configured_bytes);
    let configured = configured.chain(std::iter::repeat(None));
    let devices = driver.devices().iter().zip(configured);
    devices
        .map(|(info, configured)| configured.unwrap_or(u64::MAX).min(info.total_bytes))
        .collect()
}

/// A variable of the environment; an empty one is none.
pub(crate) fn read_variable(name: &str) -> Result<Option<String>, Failure> {
    match std::env::var(name) {
        Ok(value) if value.is_empty() => Ok(None),
        Ok(value) => Ok(Some(value)),
        Err(std::env::VarError::NotPresent) => Ok(None),
        Err(std::env::VarError::NotUnicode(_)) => {
            Err(Failure::Argument(format!("{name} is not UTF-8")))
        }
    }
}
