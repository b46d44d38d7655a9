//! What both interfaces say about a device.

use ds4_engine::device::DeviceInfo;

use crate::context;
use crate::driver::Driver;
use crate::raw::{Out, TextOut};
use crate::status::{Outcome, Status};

/// A device's 16 bytes of identity.
pub(crate) type Uuid = [u8; 16];

/// Where a device sits on the bus.
pub(crate) struct Pci {
    pub(crate) domain: i32,
    pub(crate) bus: i32,
}

/// The digits of the model's identity behind a text that says what it is.
pub(crate) fn uuid(info: &DeviceInfo) -> Uuid {
    let mut uuid = *b"ds4-sim\0\0\0\0\0\0\0\0\0";
    let digits: Vec<u8> = info
        .uuid
        .trim_start_matches("SIM-")
        .bytes()
        .filter(u8::is_ascii_hexdigit)
        .collect();
    for (byte, pair) in uuid.iter_mut().skip(8).zip(digits.chunks(2)) {
        let pair = std::str::from_utf8(pair).unwrap_or_default();
        *byte = u8::from_str_radix(pair, 16).unwrap_or(0);
    }
    uuid
}

/// The numbers of `domain:bus:device.function`.
pub(crate) fn pci(info: &DeviceInfo) -> Pci {
    let mut parts = info.pci_bus_id.split(':');
    let mut number = || i32::from_str_radix(parts.next().unwrap_or_default(), 16).unwrap_or(0);
    Pci {
        domain: number(),
        bus: number(),
    }
}

/// The numbers of the attributes that the machine knows, and what others say.
pub(crate) struct Attributes {
    pub(crate) pci_bus: u32,
    pub(crate) pci_domain: u32,
    pub(crate) virtual_memory: u32,
    pub(crate) others: &'static [(u32, i32)],
}

impl Attributes {
    /// What an attribute of a device says; unknown ones say 0.
    pub(crate) fn of(&self, driver: &Driver, device: i32, attribute: u32) -> Result<i32, Status> {
        let info = driver.info(driver.device(device)?)?;
        let known = self.others.iter().find(|(number, _)| *number == attribute);
        Ok(if attribute == self.pci_bus {
            pci(info).bus
        } else if attribute == self.pci_domain {
            pci(info).domain
        } else if attribute == self.virtual_memory {
            i32::from(info.page_bytes.is_some())
        } else {
            known.map_or(0, |(_, value)| *value)
        })
    }
}

/// Writes the size of a device's memory.
pub(crate) fn total_bytes(driver: &Driver, device: i32, bytes: Out<usize>) -> Outcome {
    let total = driver.info(driver.device(device)?)?.total_bytes;
    bytes.put(usize::try_from(total).unwrap_or(usize::MAX))
}

/// Writes a device's name.
pub(crate) fn name(driver: &Driver, device: i32, name: TextOut, room: i32) -> Outcome {
    let info = driver.info(driver.device(device)?)?;
    name.put(&info.name, usize::try_from(room).unwrap_or(0))
}

/// Writes whether a device reaches another.
pub(crate) fn can_access(driver: &Driver, can: Out<i32>, device: i32, peer: i32) -> Outcome {
    let (device, peer) = (driver.device(device)?, driver.device(peer)?);
    can.put(i32::from(context::offers_path(driver, device, peer)?))
}

/// The number of the device that sits there.
pub(crate) fn by_pci(driver: &Driver, id: &str) -> Result<i32, Status> {
    let is_it = |device: &i32| {
        let info = driver
            .device(*device)
            .and_then(|device| driver.info(device));
        info.is_ok_and(|info| info.pci_bus_id.eq_ignore_ascii_case(id))
    };
    (0..driver.count())
        .find(is_it)
        .ok_or(Status::INVALID_DEVICE)
}
