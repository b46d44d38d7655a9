//! One open device: its context and everything that has a handle there.

use std::collections::{BTreeMap, HashMap};
use std::ffi::CStr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::backend::{BackendError, EventId};
use crate::device::{DeviceId, DeviceInfo, Ordinal, StreamId};

use super::context::Context;
use super::launch::Module;
use super::load::{Driver, OpenError};
use super::status::DEVICE_UNAVAILABLE;
use super::stream::{Event, Stream};
use super::table::{PageProperties, RawHandle, Status};
use super::vendor::Attribute;

/// The drivers take memory from the device in pieces of this size, and small allocations share one.
const GRANULARITY_BYTES: u64 = 2 << 20;

/// A device with its open context.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) id: DeviceId,
    pub(super) driver: Driver,
    handles: Mutex<Handles>,
    pub(super) module: OnceLock<Result<Module, BackendError>>,
    /// Dropped after everything that lives in it.
    pub(super) context: Arc<Context>,
}

/// What the device's numbers stand for.
#[derive(Debug, Default)]
pub(super) struct Handles {
    pub(super) streams: BTreeMap<u32, Arc<Stream>>,
    pub(super) events: HashMap<u64, Arc<Event>>,
    /// Events that nobody uses: making one costs more than recording it.
    pub(super) spare_events: Vec<Arc<Event>>,
    next_event: u64,
    /// By number: the driver's handle of the physical memory.
    pub(super) pages: HashMap<u64, u64>,
    next_page: u64,
}

impl Handles {
    pub(super) fn add_event(&mut self, event: Arc<Event>) -> EventId {
        self.next_event += 1;
        self.events.insert(self.next_event, event);
        EventId(self.next_event)
    }

    pub(super) fn add_page(&mut self, raw: u64) -> u64 {
        self.next_page += 1;
        self.pages.insert(self.next_page, raw);
        self.next_page
    }

    /// The least stream number that is not in use, from 1 on.
    pub(super) fn free_stream(&self) -> StreamId {
        let mut used = self.streams.keys().zip(1..);
        let gap = used.find(|(used, wanted)| **used != *wanted);
        let all = || u32::try_from(self.streams.len() + 1).unwrap_or(u32::MAX);
        StreamId(gap.map_or_else(all, |(_, wanted)| wanted))
    }
}

impl Device {
    /// Opens device `ordinal` of the driver as `id`.
    pub(super) fn open(driver: &Driver, id: DeviceId, ordinal: Ordinal) -> Result<Self, OpenError> {
        let unknown = || OpenError::UnknownDevice {
            ordinal,
            count: driver.count,
            vendor: driver.vendor,
        };
        let number = i32::try_from(ordinal.0).map_err(|_| unknown())?;
        if ordinal.0 >= driver.count {
            return Err(unknown());
        }
        let context =
            Context::open(driver, number).map_err(|status| failed(driver, ordinal, status))?;
        Ok(Self {
            id,
            driver: driver.clone(),
            handles: Mutex::default(),
            module: OnceLock::new(),
            context: Arc::new(context),
        })
    }

    pub(super) fn handles(&self) -> MutexGuard<'_, Handles> {
        // The maps are valid between statements, also after a panic elsewhere.
        self.handles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs calls with this device as the thread's; `bytes` is what an error says was asked for.
    pub(super) fn with<T>(
        &self,
        bytes: u64,
        work: impl FnOnce() -> Result<T, Status>,
    ) -> Result<T, BackendError> {
        let entered = self.context.enter();
        let result = entered.and_then(|_entered| work());
        result.map_err(|status| self.driver.functions.error(self.id, bytes, status))
    }

    /// The driver's handle of a stream, which stays valid while the result lives.
    pub(super) fn stream(&self, stream: StreamId) -> Result<Option<Arc<Stream>>, BackendError> {
        if stream == StreamId::DEFAULT {
            return Ok(None);
        }
        let found = self.handles().streams.get(&stream.0).cloned();
        found
            .map(Some)
            .ok_or_else(|| self.unknown(format!("there is no {stream}")))
    }

    pub(super) fn event(&self, event: EventId) -> Result<Arc<Event>, BackendError> {
        let found = self.handles().events.get(&event.0).cloned();
        found.ok_or_else(|| self.unknown(format!("there is no event {}", event.0)))
    }

    /// The error of a number that stands for nothing.
    pub(super) fn unknown(&self, detail: String) -> BackendError {
        BackendError::Driver {
            device: self.id,
            call: "lookup",
            detail,
        }
    }

    pub(super) fn page_properties(&self) -> PageProperties {
        PageProperties {
            kind: 1,
            shared_as: 0,
            location_kind: 1,
            device: self.context.device,
            windows: 0,
            flags: 0,
        }
    }

    pub(super) fn info(&self, ordinal: Ordinal) -> Result<DeviceInfo, OpenError> {
        let described = self.describe(ordinal);
        described.map_err(|status| failed(&self.driver, ordinal, status))
    }

    fn describe(&self, ordinal: Ordinal) -> Result<DeviceInfo, Status> {
        let functions = &self.driver.functions;
        let device = self.context.device;
        let mut name = [0; 256];
        // SAFETY: the buffer has the length that is given.
        unsafe { functions.device_name(name.as_mut_ptr(), 256, device) }?;
        let mut bus_id = [0; 64];
        // SAFETY: as above.
        unsafe { functions.device_pci_bus_id(bus_id.as_mut_ptr(), 64, device) }?;
        let mut total = 0;
        // SAFETY: the place is valid.
        unsafe { functions.device_total(&raw mut total, device) }?;
        let mut uuid = [0; 16];
        // SAFETY: the place is valid. An old driver has no such function: the UUID stays zero.
        let _ = unsafe { functions.device_uuid(&raw mut uuid, device) };
        Ok(DeviceInfo {
            ordinal,
            name: text(&name),
            pci_bus_id: text(&bus_id),
            uuid: uuid_text(uuid),
            total_bytes: total as u64,
            page_bytes: self.page_bytes()?,
            granularity_bytes: GRANULARITY_BYTES,
        })
    }

    fn attribute(&self, attribute: Attribute) -> Result<i32, Status> {
        let mut value = 0;
        let number = self.driver.vendor.attribute(attribute);
        let functions = &self.driver.functions;
        // SAFETY: the place is valid.
        unsafe { functions.device_attribute(&raw mut value, number, self.context.device) }?;
        Ok(value)
    }

    /// Major and minor version of what the device can do.
    pub(super) fn compute_capability(&self) -> Result<(i32, i32), Status> {
        let major = self.attribute(Attribute::ComputeMajor)?;
        Ok((major, self.attribute(Attribute::ComputeMinor)?))
    }

    /// The least page that can be mapped, or `None` without virtual memory management.
    fn page_bytes(&self) -> Result<Option<u64>, Status> {
        // A driver that does not know the attribute cannot map pages either.
        if self.attribute(Attribute::VirtualMemory).unwrap_or(0) == 0 {
            return Ok(None);
        }
        let (mut bytes, properties) = (0, self.page_properties());
        let _entered = self.context.enter()?;
        let functions = &self.driver.functions;
        // SAFETY: the places are valid; 0 asks for the least size.
        let asked = unsafe { functions.page_granularity(&raw mut bytes, &raw const properties, 0) };
        let pages = asked.is_ok() && bytes.is_power_of_two() && bytes >= 4096;
        Ok(pages.then_some(bytes as u64))
    }
}

fn failed(driver: &Driver, ordinal: Ordinal, status: Status) -> OpenError {
    let detail = driver.functions.describe(status.code);
    if status.code == DEVICE_UNAVAILABLE {
        return OpenError::Unavailable { ordinal, detail };
    }
    OpenError::Device {
        ordinal,
        call: status.call,
        detail,
    }
}

/// The text before the NUL of a buffer that the driver filled.
fn text(buffer: &[std::ffi::c_char]) -> String {
    #[expect(clippy::cast_sign_loss, reason = "characters are bytes here")]
    let bytes: Vec<u8> = buffer.iter().map(|byte| *byte as u8).collect();
    CStr::from_bytes_until_nul(&bytes)
        .map(|text| text.to_string_lossy().into_owned())
        .unwrap_or_default()
}

/// `GPU-` and the UUID: in groups as NVIDIA prints it, or as it is where ROCm gives characters.
fn uuid_text(uuid: [u8; 16]) -> String {
    if uuid.iter().all(u8::is_ascii_alphanumeric) {
        return format!("GPU-{}", String::from_utf8_lossy(&uuid));
    }
    let mut text = String::from("GPU");
    for (position, byte) in uuid.iter().enumerate() {
        if [0, 4, 6, 8, 10].contains(&position) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

/// The driver's handle of a stream, 0 for the default one.
pub(super) fn raw(stream: &Option<Arc<Stream>>) -> RawHandle {
    stream.as_ref().map_or(0, |stream| stream.raw())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_printed_as_the_vendors_tools_print_it() {
        let mut uuid = [0; 16];
        uuid.iter_mut()
            .zip(0..)
            .for_each(|(byte, value)| *byte = value);
        assert_eq!(uuid_text(uuid), "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f");
        assert_eq!(uuid_text(*b"9391a1f59d0e0d3c"), "GPU-9391a1f59d0e0d3c");
    }
}
