//! From the flags as typed to a machine, its budgets and the placement hint.

use std::sync::Arc;

use ds4_engine::alloc::placement::OrphanPolicy;
use ds4_engine::alloc::{Allocator, AllocatorConfig, DeviceBudget, InitError, Observer};
use ds4_engine::backend::BackendError;
use ds4_engine::backend::driver::{Driver, Vendor, bounce_is_forced};
use ds4_engine::bytes::{GIB, format_bytes};
use ds4_engine::device::DeviceMask;
use ds4_engine::selection::{Budget, Selection};
use ds4_sim::{FaultPlan, MAX_CAPACITY_BYTES, SimConfig, SimDevice, Topology, read_file};
use serde_json::{Value, json};

use crate::cli::MachineArgs;
use crate::exit::Exit;
use crate::output::{Console, Failure};
use crate::target::{BackendKind, Target, TargetError};

/// The machine of a run, ready to be opened as often as needed.
#[derive(Clone, Debug)]
pub struct Machine {
    /// The devices, in the order of the selection.
    pub target: Target,
    /// Which devices were selected, and the placement hint.
    pub selection: Selection,
    /// Budgets, exclusion and policy.
    pub config: AllocatorConfig,
    plan: Option<FaultPlan>,
}

/// What to do about a device that is lost before any work is done.
const LOST: &str = "; reset it, or choose other devices with --gpu-devices";

/// The shipped machine with unequal devices, for commands that show where memory goes.
pub const MIXED: &str = "8x24g-mixed";

/// The shipped machine with at least so many equal devices, for traces of real ones.
#[must_use]
pub fn roomy(devices: usize) -> &'static str {
    if devices <= 2 { "2xh200" } else { "8xh200" }
}

impl Machine {
    /// Resolves the flags; without --topology and --gpu-vram the machine is `otherwise`.
    ///
    /// # Errors
    /// [`Failure`] with [`Exit::Usage`] for flags or files that are wrong,
    /// [`Exit::NothingDone`] for devices that are not there.
    pub fn resolve(args: &MachineArgs, otherwise: &str) -> Result<Self, Failure> {
        match backend_kind(args)? {
            BackendKind::Sim => Self::simulated(args, otherwise),
            BackendKind::Cuda => Self::real(args, Vendor::Cuda),
            BackendKind::Hip => Self::real(args, Vendor::Hip),
        }
    }

    fn simulated(args: &MachineArgs, otherwise: &str) -> Result<Self, Failure> {
        let flags = args.selection_flags();
        let sized = args.topology.is_none() && args.gpu_vram.as_deref().is_some_and(lists_sizes);
        let topology = match (&args.topology, sized) {
            (Some(name), _) => Some(Topology::load(name).map_err(Failure::usage)?),
            (None, false) => Some(Topology::load(otherwise).map_err(Failure::usage)?),
            (None, true) => None,
        };
        let present = topology
            .as_ref()
            .map(|topology| topology.config.devices.len());
        let selection = Selection::parse(&flags, present).map_err(Failure::usage)?;
        let ordinals = selection.ordinals();
        let sim = match topology {
            Some(topology) => topology.config.select(&ordinals),
            None => sized_machine(&selection)?,
        };
        let target = Target::simulated(sim).map_err(Failure::usage)?;
        Self::new(target, selection, args)
    }

    /// Real devices; what only a simulated machine has is refused, not ignored.
    fn real(args: &MachineArgs, vendor: Vendor) -> Result<Self, Failure> {
        let command = format!("--backend {}", vendor.backend_name());
        refuse_flags(args, &[Flag::Topology], &command)?;
        let absent = |error: TargetError| Failure {
            exit: Exit::NothingDone,
            message: error.to_string(),
        };
        let driver = Driver::load(vendor).map_err(|error| absent(error.into()))?;
        let present = usize::try_from(driver.count()).ok();
        let selection =
            Selection::parse(&args.selection_flags(), present).map_err(Failure::usage)?;
        let ordinals = selection.ordinals();
        let force_bounce = bounce_is_forced().map_err(Failure::usage)?;
        let excluded = selection.excluded();
        let target = Target::real(&driver, &ordinals, excluded, force_bounce).map_err(absent)?;
        Self::new(target, selection, args)
    }

    fn new(target: Target, selection: Selection, args: &MachineArgs) -> Result<Self, Failure> {
        let config = allocator_config(&selection, args.strict_hints);
        let plan = read_plan(args, target.backend().devices().len())?;
        Ok(Self {
            target,
            selection,
            config,
            plan,
        })
    }

    /// The line that every text output begins with.
    #[must_use]
    pub fn headline(&self) -> String {
        let mut text = format!("{}\n{}\n", self.target.origin(), self.selection);
        if self.plan.is_some() && self.target.sim().is_none() {
            text.push_str("faults: injected by ds4, not by the devices\n");
        }
        text
    }

    /// The same machine in its first state, with its faults armed.
    ///
    /// # Errors
    /// [`Failure`] if it cannot be opened.
    pub fn fresh(&self) -> Result<Target, Failure> {
        let Some(plan) = &self.plan else {
            return self.target.fresh().map_err(Failure::failed);
        };
        let target = self.target.instrumented().map_err(Failure::failed)?;
        if let Some(instruments) = target.instruments() {
            instruments
                .set_faults(plan.clone())
                .map_err(Failure::usage)?;
        }
        Ok(target)
    }

    /// An allocator on `target` with this machine's budgets.
    ///
    /// # Errors
    /// [`Failure`] with the allocator's sentence.
    pub fn allocator(
        &self,
        target: &Target,
        observer: Option<Arc<dyn Observer>>,
    ) -> Result<Allocator, Failure> {
        let config = AllocatorConfig {
            observer,
            ..self.config.clone()
        };
        let opened = Allocator::new(Arc::clone(target.backend()), config);
        opened.map_err(|error| {
            let lost = matches!(error, InitError::Backend(BackendError::DeviceLost { .. }));
            let remedy = if lost { LOST } else { "" };
            Failure::failed(format!("{error}{remedy}"))
        })
    }

    /// The same machine with these budgets, whatever is free.
    #[must_use]
    pub fn with_budgets(&self, budgets: Vec<DeviceBudget>) -> Self {
        let mut machine = self.clone();
        machine.config.budgets = budgets;
        machine
    }

    /// The placement hint, [`DeviceMask::EMPTY`] if none was given.
    #[must_use]
    pub fn placement(&self) -> DeviceMask {
        self.selection.placement
    }

    /// What became of each planned fault on `target`; nothing without a plan.
    #[must_use]
    pub fn fault_values(&self, target: &Target) -> Vec<Value> {
        let Some(instruments) = target.instruments().filter(|_| self.plan.is_some()) else {
            return Vec::new();
        };
        let faults = instruments.fault_report().into_iter();
        let values = faults.map(|fault| {
            json!({ "entry": fault.entry, "kind": fault.kind.name(), "enabled": fault.enabled,
                    "fired": fault.fired, "matched": fault.matched })
        });
        values.collect()
    }

    /// Says what became of each planned fault, so that a plan that did nothing is noticed.
    pub fn remark_faults(&self, target: &Target, console: &Console) {
        let Some(instruments) = target.instruments().filter(|_| self.plan.is_some()) else {
            return;
        };
        for fault in instruments.fault_report() {
            let (entry, name) = (fault.entry, fault.kind.name());
            console.remark(&if fault.enabled {
                format!(
                    "fault {entry} ({name}) fired {} of {} times",
                    fault.fired, fault.matched
                )
            } else {
                format!("fault {entry} ({name}) was switched off by the swarm")
            });
        }
    }
}

/// The flags of [`MachineArgs`] that only some commands use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flag {
    /// --faults
    Faults,
    /// --gpu-placement, --gpu-exclude, --gpu-reserve and --strict-hints
    Hints,
    /// --gpu-devices and --gpu-vram
    Devices,
    /// --topology
    Topology,
}

/// Refuses flags that a command would otherwise ignore.
///
/// # Errors
/// [`Failure`] that names the flag and the command.
pub fn refuse_flags(args: &MachineArgs, flags: &[Flag], command: &str) -> Result<(), Failure> {
    let given = [
        (Flag::Faults, "--faults", args.faults.is_some()),
        (Flag::Hints, "--gpu-placement", args.gpu_placement.is_some()),
        (Flag::Hints, "--gpu-exclude", args.gpu_exclude.is_some()),
        (Flag::Hints, "--gpu-reserve", args.gpu_reserve.is_some()),
        (Flag::Hints, "--strict-hints", args.strict_hints),
        (Flag::Devices, "--gpu-devices", args.gpu_devices.is_some()),
        (Flag::Devices, "--gpu-vram", args.gpu_vram.is_some()),
        (Flag::Topology, "--topology", args.topology.is_some()),
    ];
    match given
        .iter()
        .find(|(flag, _, given)| *given && flags.contains(flag))
    {
        Some((_, name, _)) => Err(Failure::usage(format!(
            "{command} does not use {name}; leave it out"
        ))),
        None => Ok(()),
    }
}

/// The backend of the flags, the simulator if they name none.
///
/// # Errors
/// [`Failure`] for a name that is no backend.
pub fn backend_kind(args: &MachineArgs) -> Result<BackendKind, Failure> {
    let Some(name) = args.backend.as_deref().filter(|name| !name.is_empty()) else {
        return Ok(BackendKind::Sim);
    };
    BackendKind::from_name(name).ok_or_else(|| {
        Failure::usage(format!(
            "--backend (or DS4_BACKEND): '{name}' is no backend; use sim, cuda or hip"
        ))
    })
}

fn lists_sizes(vram: &str) -> bool {
    vram.trim() != "auto"
}

/// Simulated devices that have just what `--gpu-vram` says.
fn sized_machine(selection: &Selection) -> Result<SimConfig, Failure> {
    let mut devices = Vec::new();
    for device in &selection.devices {
        let Budget::Bytes(bytes) = device.budget else {
            continue;
        };
        let simulated = SimDevice::new(bytes);
        let least = simulated.page_bytes.unwrap_or(simulated.granularity_bytes);
        if bytes < least {
            return Err(Failure::usage(format!(
                "--gpu-vram: {} for {} is less than a page; give at least {}",
                format_bytes(bytes),
                device.id,
                format_bytes(least)
            )));
        }
        if bytes > MAX_CAPACITY_BYTES {
            return Err(Failure::usage(format!(
                "--gpu-vram: {} GiB for {} exceeds the largest simulated device, {} GiB; plain \
                 numbers are GiB, so write 24 for 24 GiB and 512M for 512 MiB",
                bytes.div_ceil(GIB),
                device.id,
                MAX_CAPACITY_BYTES / GIB
            )));
        }
        devices.push(simulated);
    }
    let plural = if devices.len() == 1 { "" } else { "s" };
    let machine = format!("of {} GPU{plural} as given", devices.len());
    let mut config = SimConfig::new(&machine, devices);
    config.ordinals = selection.ordinals();
    Ok(config)
}

fn allocator_config(selection: &Selection, strict_hints: bool) -> AllocatorConfig {
    AllocatorConfig {
        orphans: if strict_hints {
            OrphanPolicy::Refuse
        } else {
            OrphanPolicy::LeastLoaded
        },
        ..AllocatorConfig::of(selection)
    }
}

fn read_plan(args: &MachineArgs, devices: usize) -> Result<Option<FaultPlan>, Failure> {
    let Some(path) = &args.faults else {
        return Ok(None);
    };
    let json = read_file(path, "the fault plan").map_err(Failure::usage)?;
    let name = path.display().to_string();
    let plan = FaultPlan::from_json(&json, &name).map_err(Failure::usage)?;
    plan.check_devices(devices).map_err(Failure::usage)?;
    Ok(Some(plan))
}
