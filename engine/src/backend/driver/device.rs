//! One device: its context and everything that has a handle there.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::CStr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::backend::{BackendError, EventId};
use crate::device::{DeviceId, DeviceInfo, Ordinal, StreamId};

use super::context::Context;
use super::launch::Module;
use super::load::{Driver, OpenError};
use super::memory::Page;
use super::status::DEVICE_UNAVAILABLE;
use super::stream::{Event, Stream};
use super::table::{PageProperties, RawHandle, Status};

/// The drivers take memory from the device in pieces of this size, and small allocations share one.
const GRANULARITY_BYTES: u64 = 2 << 20;

/// A device, whose context is opened when it is first used.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) id: DeviceId,
    ordinal: Ordinal,
    /// The driver's handle of it.
    pub(super) number: i32,
    pub(super) driver: Driver,
    handles: Mutex<Handles>,
    /// The kernels, once they could be loaded.
    pub(super) module: OnceLock<Module>,
    /// Once it could be opened; dropped after everything that lives in it.
    context: OnceLock<Arc<Context>>,
}

/// What the device's numbers stand for.
#[derive(Debug, Default)]
pub(super) struct Handles {
    pub(super) streams: BTreeMap<u32, Arc<Stream>>,
    pub(super) events: HashMap<u64, Arc<Event>>,
    /// Events that nobody uses: making one costs more than recording it.
    pub(super) spare_events: Vec<Event>,
    next_event: u64,
    /// By number; who else holds a page is mapping it, or has it mapped.
    pub(super) pages: HashMap<u64, Arc<Page>>,
    next_page: u64,
    /// What the driver handed out and did not get back: whole allocations by their address,
    pub(super) allocations: HashSet<u64>,
    /// reserved ranges by their base, with their length,
    pub(super) ranges: HashMap<u64, u64>,
    /// and mapped pages by the address where they are mapped.
    pub(super) mappings: HashMap<u64, Arc<Page>>,
}

impl Handles {
    pub(super) fn add_event(&mut self, event: Event) -> EventId {
        self.next_event += 1;
        self.events.insert(self.next_event, Arc::new(event));
        EventId(self.next_event)
    }

    pub(super) fn add_page(&mut self, page: Page) -> u64 {
        self.next_page += 1;
        self.pages.insert(self.next_page, Arc::new(page));
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
    /// Device `ordinal` of the driver as `id`; no context is made for it.
    pub(super) fn find(driver: &Driver, id: DeviceId, ordinal: Ordinal) -> Result<Self, OpenError> {
        let unknown = || OpenError::UnknownDevice {
            ordinal,
            count: driver.count,
            vendor: driver.vendor,
        };
        let number = i32::try_from(ordinal.0).map_err(|_| unknown())?;
        if ordinal.0 >= driver.count {
            return Err(unknown());
        }
        let mut handle = 0;
        // SAFETY: the place is valid.
        let found = unsafe { driver.functions.device_get(&raw mut handle, number) };
        found.map_err(|status| failed(driver, ordinal, status))?;
        Ok(Self {
            id,
            ordinal,
            number: handle,
            driver: driver.clone(),
            handles: Mutex::default(),
            module: OnceLock::new(),
            context: OnceLock::new(),
        })
    }

    /// Opens the context, if nobody has yet.
    pub(super) fn open(&self) -> Result<(), OpenError> {
        let opened = self.context();
        opened.map_err(|status| failed(&self.driver, self.ordinal, status))?;
        Ok(())
    }

    /// The context, opened now if it is not open yet; a failure is forgotten.
    pub(super) fn context(&self) -> Result<&Arc<Context>, Status> {
        if let Some(context) = self.context.get() {
            return Ok(context);
        }
        let opened = Arc::new(Context::open(&self.driver, self.number)?);
        Ok(self.context.get_or_init(|| opened))
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
        let entered = self.context().and_then(|context| context.enter());
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
            device: self.number,
            windows: 0,
            flags: 0,
        }
    }

    /// What the device is; drivers tell it without a context.
    pub(super) fn info(&self) -> Result<DeviceInfo, OpenError> {
        let described = self.describe();
        described.map_err(|status| failed(&self.driver, self.ordinal, status))
    }

    fn describe(&self) -> Result<DeviceInfo, Status> {
        let functions = &self.driver.functions;
        let device = self.number;
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
            ordinal: self.ordinal,
            name: text(&name),
            pci_bus_id: text(&bus_id),
            uuid: uuid_text(uuid),
            total_bytes: total as u64,
            page_bytes: self.page_bytes(),
            granularity_bytes: GRANULARITY_BYTES,
        })
    }

    /// The least page that can be mapped, or `None` without virtual memory management.
    fn page_bytes(&self) -> Option<u64> {
        let functions = &self.driver.functions;
        let (mut able, attribute) = (0, self.driver.vendor.virtual_memory());
        // A driver that does not know the attribute cannot map pages either.
        // SAFETY: the place is valid.
        let _ = unsafe { functions.device_attribute(&raw mut able, attribute, self.number) };
        if able == 0 {
            return None;
        }
        let (mut bytes, properties) = (0, self.page_properties());
        // SAFETY: the places are valid; 0 asks for the least size.
        let asked = unsafe { functions.page_granularity(&raw mut bytes, &raw const properties, 0) };
        let pages = asked.is_ok() && bytes.is_power_of_two() && bytes >= 4096;
        pages.then_some(bytes as u64)
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
