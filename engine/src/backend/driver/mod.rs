//! Real devices, through the CUDA driver or the HIP runtime.
//!
//! The two interfaces agree in nearly everything, so that there is one backend over one table of
//! functions (`table`). Names and numbers that differ are in `vendor`; where the calls themselves
//! do (contexts, peers, kernels, versions), their file has a branch for each. Libraries are loaded
//! at run time: the same binary starts where neither is installed.

mod bounce;
mod context;
mod copy;
mod device;
mod graph;
mod launch;
mod load;
mod memory;
mod status;
mod stream;
mod table;
mod vendor;

use std::sync::OnceLock;

use ds4_kernels::Launch;

use crate::device::{
    DeviceAddress, DeviceId, DeviceInfo, DeviceMask, MAX_DEVICES, MemoryInfo, Ordinal, PeerAccess,
    StreamId,
};

use super::peer_probe;
use super::{Backend, BackendError, EventId, PageId};
use bounce::Bounce;
use device::Device;
use table::PageAccess;

pub use graph::Graph;
pub use load::{Driver, OpenError, mapped_file};
pub use vendor::Vendor;

/// Whether `DS4_FORCE_BOUNCE` asks that no direct path between devices be used.
///
/// # Errors
/// A sentence that says what the variable may hold.
pub fn bounce_is_forced() -> Result<bool, String> {
    match std::env::var_os("DS4_FORCE_BOUNCE") {
        None => Ok(false),
        Some(value) if value.is_empty() || value == "0" => Ok(false),
        Some(value) if value == "1" => Ok(true),
        Some(value) => Err(format!(
            "DS4_FORCE_BOUNCE is '{}'; set it to 1 (copy through host memory) or 0",
            value.to_string_lossy().escape_debug()
        )),
    }
}

/// The devices of one driver, behind the engine's trait.
#[derive(Debug)]
pub struct DriverBackend {
    driver: Driver,
    infos: Vec<DeviceInfo>,
    devices: Vec<Device>,
    force_bounce: bool,
    bounce: Bounce,
    /// By `from * count + to`: the verdict, once there is one.
    peers: Vec<OnceLock<PeerAccess>>,
}

/// The page for a budget: `least_bytes`, doubled while a page is less than its 8192nd part, and at
/// most 32 MiB.
fn page_bytes_for(budget_bytes: u64, least_bytes: u64) -> u64 {
    const PAGES_LEAST: u64 = 8192;
    const PAGE_BYTES_MAX: u64 = 32 << 20;
    let mut page_bytes = least_bytes;
    while page_bytes < PAGE_BYTES_MAX && budget_bytes / PAGES_LEAST >= 2 * page_bytes {
        page_bytes *= 2;
    }
    page_bytes
}

impl DriverBackend {
    /// Opens the devices `ordinals` of the driver, in this order, [`MAX_DEVICES`] at most.
    ///
    /// Those in `excluded`, which names positions in that order, are described and not opened:
    /// they get no context until a call uses them. With `force_bounce` no device reaches another's
    /// memory, whatever the driver offers.
    ///
    /// # Errors
    /// [`OpenError::UnknownDevice`], [`OpenError::Unavailable`] and [`OpenError::Device`].
    pub fn open(
        driver: &Driver,
        ordinals: &[Ordinal],
        excluded: DeviceMask,
        force_bounce: bool,
    ) -> Result<Self, OpenError> {
        let mut devices = Vec::new();
        let mut infos = Vec::new();
        for (index, ordinal) in ordinals.iter().enumerate().take(MAX_DEVICES) {
            let Some(id) = DeviceId::new(index) else {
                continue;
            };
            let device = Device::find(driver, id, *ordinal)?;
            if !excluded.contains(id) {
                device.open()?;
            }
            infos.push(device.info()?);
            devices.push(device);
        }
        let pairs = devices.len() * devices.len();
        Ok(Self {
            driver: driver.clone(),
            infos,
            devices,
            force_bounce,
            bounce: Bounce::default(),
            peers: std::iter::repeat_with(OnceLock::new).take(pairs).collect(),
        })
    }

    /// Takes memory in larger pages where much of it will be in use: a page of 2 MiB and one of
    /// 16 MiB cost a driver the same, and what the edges of blocks waste counts by the whole.
    ///
    /// `budget_bytes` says for each device how much that is; of the rest, and of devices without
    /// pages, nothing changes. Call it before anything is mapped.
    #[must_use]
    pub fn with_pages_for(mut self, budget_bytes: &[u64]) -> Self {
        for (info, budget_bytes) in self.infos.iter_mut().zip(budget_bytes) {
            info.page_bytes = info
                .page_bytes
                .map(|least_bytes| page_bytes_for(*budget_bytes, least_bytes));
        }
        self
    }

    /// Whose devices they are.
    #[must_use]
    pub fn vendor(&self) -> Vendor {
        self.driver.vendor
    }

    /// The number of a stream that somebody else made and will remove: `raw` is its `CUstream`
    /// or `hipStream_t` as a number, 0 for the default stream.
    ///
    /// # Errors
    /// [`BackendError::Driver`] for a device that does not exist.
    pub fn adopt_stream(&self, device: DeviceId, raw: usize) -> Result<StreamId, BackendError> {
        let device = self.device(device)?;
        Ok(match raw {
            0 => StreamId::DEFAULT,
            raw => device.adopt_stream(raw),
        })
    }

    /// Runs `work` with a device as the calling thread's, for libraries beside the driver. It is
    /// given the stream's `CUstream` or `hipStream_t` as a number, which is live meanwhile.
    ///
    /// # Errors
    /// [`BackendError::Driver`] for a device or stream that does not exist, or a device that cannot
    /// be entered.
    pub fn on_stream<T>(
        &self,
        device: DeviceId,
        stream: StreamId,
        work: impl FnOnce(usize) -> T,
    ) -> Result<T, BackendError> {
        let device = self.device(device)?;
        let held = device.stream(stream)?;
        device.with(0, || Ok(work(device::raw(&held))))
    }

    /// Memory of the driver's own stream-ordered pool, on the default stream: what ds4's allocator
    /// is compared with.
    ///
    /// # Errors
    /// As [`Backend::allocate`], and [`BackendError::Unsupported`] by an old driver.
    pub fn pool_allocate(
        &self,
        device: DeviceId,
        bytes: u64,
    ) -> Result<DeviceAddress, BackendError> {
        self.device(device)?.pool_allocate(bytes)
    }

    /// Gives back what [`DriverBackend::pool_allocate`] returned.
    ///
    /// # Errors
    /// As [`Backend::free`].
    pub fn pool_free(&self, device: DeviceId, address: DeviceAddress) -> Result<(), BackendError> {
        self.device(device)?.pool_free(address)
    }

    /// How many calls of the driver this process has made through ds4.
    #[must_use]
    pub fn driver_calls(&self) -> u64 {
        self.driver.functions.calls()
    }

    fn device(&self, device: DeviceId) -> Result<&Device, BackendError> {
        self.devices
            .get(device.index())
            .ok_or_else(|| BackendError::Driver {
                device,
                call: "lookup",
                detail: format!("invalid device: {} are open", self.devices.len()),
            })
    }

    fn page_bytes(&self, device: DeviceId) -> Result<u64, BackendError> {
        let info = self.infos.get(device.index());
        info.and_then(|info| info.page_bytes)
            .ok_or(BackendError::Unsupported {
                device,
                call: "page mapping",
            })
    }

    fn judge(&self, from: DeviceId, to: DeviceId) -> Result<PeerAccess, BackendError> {
        if from == to {
            return Ok(PeerAccess::Direct);
        }
        let (near, far) = (self.device(from)?, self.device(to)?);
        if self.force_bounce {
            return Ok(PeerAccess::Bounce);
        }
        if !near.enable_peer(far)? {
            return Ok(PeerAccess::Absent);
        }
        peer_probe::judge(self, from, to)
    }
}

impl Backend for DriverBackend {
    fn name(&self) -> &'static str {
        self.driver.vendor.backend_name()
    }

    fn origin(&self) -> String {
        self.driver.origin()
    }

    fn devices(&self) -> &[DeviceInfo] {
        &self.infos
    }

    fn memory_info(&self, device: DeviceId) -> Result<MemoryInfo, BackendError> {
        self.device(device)?.memory_info()
    }

    fn allocate(&self, device: DeviceId, bytes: u64) -> Result<DeviceAddress, BackendError> {
        self.device(device)?.allocate(bytes)
    }

    fn free(&self, device: DeviceId, address: DeviceAddress) -> Result<(), BackendError> {
        self.device(device)?.free(address)
    }

    fn reserve(&self, device: DeviceId, bytes: u64) -> Result<DeviceAddress, BackendError> {
        self.device(device)?.reserve(bytes)
    }

    fn release(
        &self,
        device: DeviceId,
        base: DeviceAddress,
        bytes: u64,
    ) -> Result<(), BackendError> {
        self.device(device)?.release(base, bytes)
    }

    fn create_page(&self, device: DeviceId) -> Result<PageId, BackendError> {
        self.device(device)?.create_page(self.page_bytes(device)?)
    }

    fn destroy_page(&self, device: DeviceId, page: PageId) -> Result<(), BackendError> {
        self.device(device)?.destroy_page(page)
    }

    fn map(
        &self,
        device: DeviceId,
        address: DeviceAddress,
        page: PageId,
        peers: DeviceMask,
    ) -> Result<(), BackendError> {
        let mut users = Vec::new();
        for user in peers.or(DeviceMask::only(device)).iter() {
            users.push(PageAccess {
                location_kind: 1,
                device: self.device(user)?.number,
                access: 3,
            });
        }
        let page_bytes = self.page_bytes(device)?;
        self.device(device)?.map(address, page, page_bytes, &users)
    }

    fn unmap(&self, device: DeviceId, address: DeviceAddress) -> Result<(), BackendError> {
        self.device(device)?
            .unmap(address, self.page_bytes(device)?)
    }

    fn create_stream(&self, device: DeviceId) -> Result<StreamId, BackendError> {
        self.device(device)?.create_stream()
    }

    fn destroy_stream(&self, device: DeviceId, stream: StreamId) -> Result<(), BackendError> {
        self.device(device)?.destroy_stream(stream)
    }

    fn synchronize(&self, device: DeviceId, stream: StreamId) -> Result<(), BackendError> {
        self.device(device)?.synchronize(stream)
    }

    fn record_event(&self, device: DeviceId, stream: StreamId) -> Result<EventId, BackendError> {
        self.device(device)?.record_event(stream)
    }

    fn event_done(&self, device: DeviceId, event: EventId) -> Result<bool, BackendError> {
        self.device(device)?.event_done(event)
    }

    fn wait_event(&self, device: DeviceId, event: EventId) -> Result<(), BackendError> {
        self.device(device)?.wait_event(event)
    }

    fn stream_wait_event(
        &self,
        device: DeviceId,
        stream: StreamId,
        event_device: DeviceId,
        event: EventId,
    ) -> Result<(), BackendError> {
        let event = self.device(event_device)?.event(event)?;
        self.device(device)?.stream_wait_event(stream, &event)
    }

    fn destroy_event(&self, device: DeviceId, event: EventId) -> Result<(), BackendError> {
        self.device(device)?.destroy_event(event)
    }

    fn write(
        &self,
        device: DeviceId,
        address: DeviceAddress,
        data: &[u8],
    ) -> Result<(), BackendError> {
        self.device(device)?.write(address, data)
    }

    fn read(
        &self,
        device: DeviceId,
        address: DeviceAddress,
        data: &mut [u8],
    ) -> Result<(), BackendError> {
        self.device(device)?.read(address, data)
    }

    fn fill(
        &self,
        device: DeviceId,
        address: DeviceAddress,
        bytes: u64,
        value: u8,
        stream: StreamId,
    ) -> Result<(), BackendError> {
        self.device(device)?.fill(address, bytes, value, stream)
    }

    fn copy_local(
        &self,
        device: DeviceId,
        from: DeviceAddress,
        to: DeviceAddress,
        bytes: u64,
        stream: StreamId,
    ) -> Result<(), BackendError> {
        self.device(device)?.copy_local(from, to, bytes, stream)
    }

    fn copy_peer(
        &self,
        from: (DeviceId, DeviceAddress),
        to: (DeviceId, DeviceAddress),
        bytes: u64,
        stream: StreamId,
    ) -> Result<(), BackendError> {
        let target = (self.device(to.0)?, to.1);
        self.device(from.0)?
            .copy_peer(from.1, target, bytes, stream)
    }

    fn copy_via_host(
        &self,
        from: (DeviceId, DeviceAddress),
        to: (DeviceId, DeviceAddress),
        bytes: u64,
    ) -> Result<(), BackendError> {
        let source = (self.device(from.0)?, from.1);
        self.bounce.copy(source, (self.device(to.0)?, to.1), bytes)
    }

    fn launch(
        &self,
        device: DeviceId,
        stream: StreamId,
        launch: &Launch,
    ) -> Result<(), BackendError> {
        self.device(device)?.launch(stream, launch)
    }

    /// Judged once for each ordered pair, when it is first asked for; failures are forgotten.
    fn peer_access(&self, from: DeviceId, to: DeviceId) -> Result<PeerAccess, BackendError> {
        self.device(from)?;
        self.device(to)?;
        let place = from.index() * self.devices.len() + to.index();
        let known = self.peers.get(place);
        if let Some(verdict) = known.and_then(OnceLock::get) {
            return Ok(*verdict);
        }
        let verdict = self.judge(from, to)?;
        Ok(known.map_or(verdict, |known| *known.get_or_init(|| verdict)))
    }
}

#[cfg(test)]
mod tests {
    use super::page_bytes_for;
    use crate::bytes::{GIB, MIB};

    #[test]
    fn pages_grow_with_the_budget_and_never_shrink() {
        for (budget_bytes, page_bytes) in [
            (0, 2 * MIB),
            (24 * GIB, 2 * MIB),
            (32 * GIB, 4 * MIB),
            (80 * GIB, 8 * MIB),
            (141 * GIB, 16 * MIB),
            (u64::MAX, 32 * MIB),
        ] {
            assert_eq!(page_bytes_for(budget_bytes, 2 * MIB), page_bytes);
            assert_eq!(page_bytes_for(budget_bytes, 64 * MIB), 64 * MIB);
        }
    }
}
