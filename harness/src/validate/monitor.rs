//! What watches devices beside their driver, behind a trait that tests can answer.

use std::fmt;

/// A reading, or why there is none.
pub type Reading<T> = Result<T, String>;

/// Versions of the software below.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Versions {
    /// The driver.
    pub driver: String,
    /// The watching library.
    pub library: String,
    /// How many devices it sees, hidden ones included.
    pub devices: u32,
}

/// Another process on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its number; in a container it may be the host's.
    pub pid: u32,
    /// The memory that it holds, if the driver says so.
    pub bytes: Option<u64>,
}

/// Whether memory errors are corrected, and from the next restart on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ecc {
    /// Now.
    pub enabled: bool,
    /// After the next reset.
    pub pending: bool,
}

/// Memory errors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EccErrors {
    /// Corrected since the driver was loaded.
    pub corrected: u64,
    /// Not corrected since the driver was loaded.
    pub uncorrected: u64,
    /// Not corrected in the life of the device.
    pub uncorrected_ever: u64,
}

/// Rows of memory that were replaced by spares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemappedRows {
    /// After corrected errors.
    pub corrected: u64,
    /// After errors that were not corrected.
    pub uncorrected: u64,
    /// A row waits for a reset to be replaced.
    pub pending: bool,
    /// A row could not be replaced.
    pub failed: bool,
}

/// Why clocks are lower than they could be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Throttle {
    /// Every reason, idleness and settings included.
    pub reasons: Vec<String>,
    /// Those that mean heat or lack of power.
    pub harmful: Vec<String>,
}

/// The link to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "generation and lanes, now and at most")]
pub struct Pcie {
    pub generation: u32,
    pub generation_max: u32,
    pub width: u32,
    pub width_max: u32,
}

/// Errors of a link since its counters were cleared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the counters by the vendor's names")]
pub struct LinkErrors {
    pub replay: u64,
    pub recovery: u64,
    pub crc_flit: u64,
    pub crc_data: u64,
}

impl LinkErrors {
    /// All of them.
    #[must_use]
    pub fn sum(self) -> u64 {
        [self.replay, self.recovery, self.crc_flit, self.crc_data]
            .into_iter()
            .fold(0, u64::saturating_add)
    }
}

/// A link between devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkHealth {
    /// Its number on the device.
    pub link: u32,
    /// Whether it is up.
    pub active: bool,
    /// Its errors.
    pub errors: Reading<LinkErrors>,
}

/// What a device says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// The PCI bus id.
    pub pci_bus_id: Reading<String>,
    /// Error correction.
    pub ecc: Reading<Ecc>,
    /// Memory errors.
    pub ecc_errors: Reading<EccErrors>,
    /// Replaced rows.
    pub remapped: Reading<RemappedRows>,
    /// A page waits for a reset to be retired; of devices before row remapping.
    pub retirement_pending: Reading<bool>,
    /// Clock limits.
    pub throttle: Reading<Throttle>,
    /// Degrees Celsius.
    pub temperature_c: Reading<u32>,
    /// At which clocks are lowered.
    pub temperature_slowdown_c: Reading<u32>,
    /// The power cap in force, in milliwatts.
    pub power_cap_mw: Reading<u32>,
    /// The power cap as delivered, in milliwatts.
    pub power_cap_default_mw: Reading<u32>,
    /// The clock of the processors, in MHz, now and at most.
    pub sm_clock_mhz: Reading<(u32, u32)>,
    /// The clock of the memory, in MHz, now and at most.
    pub memory_clock_mhz: Reading<(u32, u32)>,
    /// The link to the host.
    pub pcie: Reading<Pcie>,
    /// Packets sent again over the link to the host.
    pub pcie_replays: Reading<u64>,
    /// The links between devices.
    pub links: Reading<Vec<LinkHealth>>,
    /// Who was on the device before this process.
    pub processes: Reading<Vec<Process>>,
    /// Whether the driver stays loaded without users.
    pub persistence: Reading<bool>,
    /// Who may use it: `default`, `exclusive process`, `prohibited`.
    pub compute_mode: Reading<String>,
}

impl Health {
    /// Nothing could be read, for this reason.
    #[must_use]
    pub fn unread(why: &str) -> Self {
        let no = || why.to_owned();
        Self {
            pci_bus_id: Err(no()),
            ecc: Err(no()),
            ecc_errors: Err(no()),
            remapped: Err(no()),
            retirement_pending: Err(no()),
            throttle: Err(no()),
            temperature_c: Err(no()),
            temperature_slowdown_c: Err(no()),
            power_cap_mw: Err(no()),
            power_cap_default_mw: Err(no()),
            sm_clock_mhz: Err(no()),
            memory_clock_mhz: Err(no()),
            pcie: Err(no()),
            pcie_replays: Err(no()),
            links: Err(no()),
            processes: Err(no()),
            persistence: Err(no()),
            compute_mode: Err(no()),
        }
    }
}

/// What watches devices; it changes nothing.
pub trait Monitor: Send + Sync + fmt::Debug {
    /// Versions of driver and library.
    ///
    /// # Errors
    /// Why they cannot be read.
    fn versions(&self) -> Reading<Versions>;

    /// Reads a device that is named by its UUID.
    ///
    /// # Errors
    /// It does not know such a device.
    fn read(&self, uuid: &str) -> Reading<Health>;
}
