//! What both interfaces say about a device.

use ds4_engine::device::DeviceInfo;

use crate::driver::Driver;
use crate::status::Status;

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
