//! What a simulated machine consists of.

use ds4_engine::bytes::{KIB, MIB, format_bytes};
use ds4_engine::device::{DeviceId, MAX_DEVICES, Ordinal, PeerAccess};

use crate::cost::{NVLINK_BYTES_PER_SECOND, NVLINK_LATENCY_NS};
use crate::input::InputError;

/// The largest capacity of a device, in bytes: a quarter of its 16 TiB of address space, so that all
/// memory can be allocated once while a range for all memory is reserved as well.
pub const MAX_CAPACITY_BYTES: u64 = 4 << 40;

/// The least granularity and page size, in bytes: addresses are multiples of it.
pub const MIN_GRANULE_BYTES: u64 = 256;

/// The longest name of a device or a machine, in characters: names stand in tables.
pub const MAX_NAME_CHARS: usize = 128;

/// The largest page, in bytes: drivers map pages of 4 KiB to 1 GiB.
const MAX_PAGE_BYTES: u64 = 1 << 30;

/// The most pages of one device: an allocator keeps a record of each.
pub const MAX_PAGES: u64 = 1 << 24;

/// One simulated device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimDevice {
    /// The name the driver would give.
    pub name: String,
    /// All memory, in bytes.
    pub capacity_bytes: u64,
    /// Page size of virtual memory management, in bytes, a power of two; `None` for a device
    /// without it.
    pub page_bytes: Option<u64>,
    /// What `allocate` rounds up to, in bytes, a power of two.
    pub granularity_bytes: u64,
    /// Memory that other processes hold from the start, in bytes.
    pub other_process_bytes: u64,
}

impl SimDevice {
    /// A device of `capacity_bytes` with 2 MiB pages and granularity that nobody else uses.
    #[must_use]
    pub fn new(capacity_bytes: u64) -> Self {
        Self {
            name: "Simulated GPU".to_owned(),
            capacity_bytes,
            page_bytes: Some(2 * MIB),
            granularity_bytes: 2 * MIB,
            other_process_bytes: 0,
        }
    }

    pub(crate) fn problem(&self) -> Option<Problem> {
        granule_problem("granularity", self.granularity_bytes, self.capacity_bytes)
            .filter(|_| self.capacity_bytes != 0)
            .or_else(|| self.capacity_problem())
            .or_else(|| {
                let page = self.page_bytes?;
                granule_problem("page", page, self.capacity_bytes)
            })
            .or_else(|| self.name_problem())
    }

    fn capacity_problem(&self) -> Option<Problem> {
        if self.capacity_bytes == 0 {
            return Some(Problem::new(
                "capacity",
                "the capacity is zero".to_owned(),
                "write a size such as \"24GiB\", or leave the device out",
            ));
        }
        if self.capacity_bytes > MAX_CAPACITY_BYTES {
            return Some(Problem::new(
                "capacity",
                format!(
                    "the capacity of {} exceeds the largest, {}",
                    format_bytes(self.capacity_bytes),
                    format_bytes(MAX_CAPACITY_BYTES)
                ),
                "write a smaller size",
            ));
        }
        if self.other_process_bytes > self.capacity_bytes {
            return Some(Problem::new(
                "other_processes",
                format!(
                    "other processes hold {}, more than the capacity of {}",
                    format_bytes(self.other_process_bytes),
                    format_bytes(self.capacity_bytes)
                ),
                "write at most the capacity",
            ));
        }
        None
    }

    fn name_problem(&self) -> Option<Problem> {
        bad_name(&self.name).map(|problem| {
            Problem::new(
                "name",
                format!("the device's name {problem}"),
                "write a short printable name such as \"Simulated H200\"",
            )
        })
    }
}

/// What is wrong with the name of a device or a machine.
pub(crate) fn bad_name(name: &str) -> Option<String> {
    if name.is_empty() || name.chars().any(char::is_control) {
        return Some("is empty or has control characters".to_owned());
    }
    let length = name.chars().count();
    (length > MAX_NAME_CHARS)
        .then(|| format!("has {length} characters; the most is {MAX_NAME_CHARS}"))
}

fn granule_problem(field: &'static str, bytes: u64, capacity_bytes: u64) -> Option<Problem> {
    if !bytes.is_power_of_two() || bytes < MIN_GRANULE_BYTES {
        return Some(Problem::new(
            field,
            format!("the {field} of {bytes} bytes is not a power of two of 256 or more"),
            "write for example \"2MiB\"",
        ));
    }
    let odd = bytes > MAX_PAGE_BYTES || capacity_bytes / bytes > MAX_PAGES;
    if field == "page" && bytes <= capacity_bytes && odd {
        return Some(Problem::new(
            field,
            format!(
                "a page of {} on a device of {} is out of range",
                format_bytes(bytes),
                format_bytes(capacity_bytes)
            ),
            "write at most \"1GiB\", and no more than 16 Mi pages on a device",
        ));
    }
    (bytes > capacity_bytes).then(|| {
        Problem::new(
            field,
            format!(
                "the {field} of {} exceeds the capacity of {}",
                format_bytes(bytes),
                format_bytes(capacity_bytes)
            ),
            "write a smaller size",
        )
    })
}

/// What is wrong with a field of a device.
#[derive(Debug)]
pub(crate) struct Problem {
    pub(crate) field: &'static str,
    pub(crate) problem: String,
    pub(crate) remedy: &'static str,
}

impl Problem {
    fn new(field: &'static str, problem: String, remedy: &'static str) -> Self {
        Self {
            field,
            problem,
            remedy,
        }
    }
}

/// The path from one device to another, one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Whether the path is offered and whether it delivers.
    pub access: PeerAccess,
    /// Time until the first byte arrives, in nanoseconds.
    pub latency_ns: u64,
    /// Bandwidth, in bytes per second; not zero.
    pub bytes_per_second: u64,
}

impl Link {
    /// A direct path with the figures measured between two H200.
    #[must_use]
    pub fn nvlink() -> Self {
        Self {
            access: PeerAccess::Direct,
            latency_ns: NVLINK_LATENCY_NS,
            bytes_per_second: NVLINK_BYTES_PER_SECOND,
        }
    }

    /// No direct path.
    #[must_use]
    pub fn absent() -> Self {
        Self {
            access: PeerAccess::Absent,
            ..Self::nvlink()
        }
    }
}

/// A simulated machine: its devices and the links between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimConfig {
    /// The name of the machine, for example `2xh200`.
    pub machine: String,
    /// The devices; the index is the `DeviceId`.
    pub devices: Vec<SimDevice>,
    /// The links, row by row: the link from `i` to `j` is entry `i * devices.len() + j`.
    pub links: Vec<Link>,
    /// The driver's number of each device.
    pub ordinals: Vec<Ordinal>,
    /// Whether freed addresses are handed out again at once, lowest first, as drivers do; without
    /// it an address comes back only after the whole address space was used, so that use after
    /// free is always caught.
    pub reuse_addresses: bool,
}

impl SimConfig {
    /// `devices`, all linked directly with the H200's figures.
    #[must_use]
    pub fn new(machine: &str, devices: Vec<SimDevice>) -> Self {
        let links = vec![Link::nvlink(); devices.len() * devices.len()];
        let ordinals = (0..).take(devices.len()).map(Ordinal).collect();
        Self {
            machine: machine.to_owned(),
            devices,
            links,
            ordinals,
            reuse_addresses: false,
        }
    }

    /// `count` equal devices of `capacity_bytes`, all linked directly.
    #[must_use]
    pub fn uniform(count: usize, capacity_bytes: u64) -> Self {
        let machine = format!("{count}x{}k", capacity_bytes / KIB);
        Self::new(&machine, vec![SimDevice::new(capacity_bytes); count])
    }

    /// The machine as a process sees it that selected these devices, in this order.
    ///
    /// Numbers that no device has are left out.
    #[must_use]
    pub fn select(&self, ordinals: &[Ordinal]) -> Self {
        let places: Vec<usize> = ordinals
            .iter()
            .filter_map(|ordinal| self.ordinals.iter().position(|own| own == ordinal))
            .collect();
        let ids = || places.iter().filter_map(|place| DeviceId::new(*place));
        let links = ids().flat_map(|from| ids().filter_map(move |to| self.link(from, to)));
        Self {
            machine: self.machine.clone(),
            devices: places
                .iter()
                .filter_map(|place| self.devices.get(*place))
                .cloned()
                .collect(),
            links: links.collect(),
            ordinals: places
                .iter()
                .filter_map(|place| self.ordinals.get(*place))
                .copied()
                .collect(),
            reuse_addresses: self.reuse_addresses,
        }
    }

    /// The link from one device to another; a device reaches itself.
    #[must_use]
    pub fn link(&self, from: DeviceId, to: DeviceId) -> Option<Link> {
        self.link_index(from, to)
            .and_then(|index| self.links.get(index))
            .copied()
    }

    /// Sets the link from one device to another; devices that do not exist are ignored.
    pub fn set_link(&mut self, from: DeviceId, to: DeviceId, link: Link) {
        if let Some(slot) = self
            .link_index(from, to)
            .and_then(|index| self.links.get_mut(index))
        {
            *slot = link;
        }
    }

    fn link_index(&self, from: DeviceId, to: DeviceId) -> Option<usize> {
        let count = self.devices.len();
        (from.index() < count && to.index() < count).then(|| from.index() * count + to.index())
    }

    /// Checks what the types leave open.
    ///
    /// # Errors
    /// An [`InputError`] that names the machine, the device and the field.
    pub fn validate(&self) -> Result<(), InputError> {
        let file = format!("machine '{}'", self.machine);
        let count = self.devices.len();
        if count == 0 {
            return Err(InputError::new(&file, "", "there is no device", "add one"));
        }
        if count > MAX_DEVICES {
            return Err(InputError::new(
                &file,
                "",
                format!("there are {count} devices"),
                format!("keep at most {MAX_DEVICES}"),
            ));
        }
        for (index, device) in self.devices.iter().enumerate() {
            if let Some(Problem {
                field,
                problem,
                remedy,
            }) = device.problem()
            {
                let place = format!("device {index}.{field}");
                return Err(InputError::new(&file, place, problem, remedy));
            }
        }
        if self.links.len() != count * count {
            return Err(InputError::new(
                &file,
                "links",
                format!("there are {} links for {count} devices", self.links.len()),
                "give one for each ordered pair, the pairs of a device with itself included",
            ));
        }
        if self.links.iter().any(|link| link.bytes_per_second == 0) {
            return Err(InputError::new(
                &file,
                "links",
                "a link has no bandwidth",
                "write bytes per second above zero, or make the link absent",
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ds4_engine::bytes::GIB;

    #[test]
    fn pages_that_no_driver_has_are_refused() {
        let device = |capacity: u64, page: u64| SimDevice {
            page_bytes: Some(page),
            granularity_bytes: 256,
            ..SimDevice::new(capacity)
        };
        assert!(device(24 << 30, 8 << 30).problem().is_some());
        assert!(device(1 << 40, 256).problem().is_some());
        assert!(device(24 << 30, 1 << 30).problem().is_none());
        assert!(device(1 << 20, 256).problem().is_none());
    }

    #[test]
    fn a_name_that_no_table_holds_is_refused() {
        let named = |length| SimDevice {
            name: "x".repeat(length),
            ..SimDevice::new(GIB)
        };
        assert!(named(MAX_NAME_CHARS).problem().is_none());
        let problem = named(MAX_NAME_CHARS + 1).problem().unwrap();
        assert_eq!(problem.field, "name");
        assert!(problem.problem.contains("129 characters"));
    }

    #[test]
    fn a_machine_without_devices_or_with_too_many_is_refused() {
        assert!(SimConfig::uniform(0, GIB).validate().is_err());
        assert!(SimConfig::uniform(32, GIB).validate().is_ok());
        assert!(SimConfig::uniform(33, GIB).validate().is_err());
    }

    #[test]
    fn a_bad_device_is_refused_with_its_number_and_field() {
        let mut config = SimConfig::uniform(2, GIB);
        config.devices[1].page_bytes = Some(3 * MIB);
        let text = config.validate().unwrap_err().to_string();
        assert!(
            text.contains("device 1.page") && text.contains("power of two"),
            "{text}"
        );
    }

    #[test]
    fn links_are_per_ordered_pair() {
        let mut config = SimConfig::uniform(2, GIB);
        let (a, b) = (DeviceId::new(0).unwrap(), DeviceId::new(1).unwrap());
        config.set_link(a, b, Link::absent());
        assert_eq!(config.link(a, b).unwrap().access, PeerAccess::Absent);
        assert_eq!(config.link(b, a).unwrap().access, PeerAccess::Direct);
        assert_eq!(config.link(a, DeviceId::new(2).unwrap()), None);
    }
}
