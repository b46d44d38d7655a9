//! The functions of a driver, looked up once by name, so that a missing one is an error and not a
//! crash at the first call.
//!
//! Results are plain numbers: a code that is newer than any binding is an unknown error here, and
//! would be undefined behaviour as a Rust enum. Handles are integers of a pointer's width, which
//! only the driver ever turns back into pointers.

use std::ffi::{CStr, c_char};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};

use libloading::Library;

use super::Vendor;

/// An opaque handle of the driver.
pub(super) type RawHandle = usize;

/// The code that a driver gives for success.
const SUCCESS: u32 = 0;
/// `CUDA_ERROR_NOT_SUPPORTED` and `hipErrorNotSupported`.
const NOT_SUPPORTED: u32 = 801;

/// A call that did not succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Status {
    pub(super) call: &'static str,
    pub(super) code: u32,
}

/// Declares the table: `needed` functions must be there, `optional` ones answer "not supported"
/// when they are not. A name of `""` means that the vendor has no such function.
macro_rules! functions {
    ($($(#[$doc:meta])* $kind:ident fn $name:ident($($arg:ident: $type:ty),* $(,)?) = $cuda:literal | $hip:literal;)*) => {
        /// Every function of the driver that ds4 calls and that returns a status.
        #[derive(Debug)]
        pub(super) struct Functions {
            vendor: Vendor,
            texts: Texts,
            calls: AtomicU64,
            $($name: Option<unsafe extern "C" fn($($type),*) -> u32>,)*
        }

        impl Functions {
            /// Looks every function up.
            ///
            /// # Errors
            /// The names of the needed functions that are missing.
            pub(super) fn load(vendor: Vendor, library: &'static Library) -> Result<Self, Vec<&'static str>> {
                let mut missing = Vec::new();
                let table = Self {
                    vendor,
                    texts: Texts::load(vendor, library),
                    calls: AtomicU64::new(0),
                    $($name: {
                        let symbol = match vendor { Vendor::Cuda => $cuda, Vendor::Hip => $hip };
                        // SAFETY: the vendor's header gives the function of this name this
                        // signature, handles being pointers and enums being 32-bit integers.
                        let found = (!symbol.is_empty()).then(|| unsafe {
                            library.get::<unsafe extern "C" fn($($type),*) -> u32>(symbol.as_bytes())
                        });
                        let found = found.and_then(Result::ok).map(|symbol| *symbol);
                        if found.is_none() && !symbol.is_empty() && stringify!($kind) == "needed" {
                            missing.push(symbol);
                        }
                        found
                    },)*
                };
                if missing.is_empty() { Ok(table) } else { Err(missing) }
            }

            $($(#[$doc])*
            ///
            /// # Safety
            /// Pointers are valid for what the function reads or writes, handles are live.
            #[allow(clippy::too_many_arguments, clippy::allow_attributes, reason = "the driver's")]
            pub(super) unsafe fn $name(&self, $($arg: $type),*) -> Result<(), Status> {
                let call = match self.vendor { Vendor::Cuda => $cuda, Vendor::Hip => $hip };
                let Some(function) = self.$name else {
                    return Err(Status { call, code: NOT_SUPPORTED });
                };
                self.calls.fetch_add(1, Ordering::Relaxed);
                // SAFETY: the caller vouches for the arguments.
                match unsafe { function($($arg),*) } {
                    SUCCESS => Ok(()),
                    code => Err(Status { call, code }),
                }
            })*
        }
    };
}

functions! {
    /// Starts the driver; the flags must be 0.
    needed fn init(flags: u32) = "cuInit" | "hipInit";
    /// The version of the interface.
    needed fn version(version: *mut i32) = "cuDriverGetVersion" | "hipRuntimeGetVersion";
    /// How many devices are visible.
    needed fn device_count(count: *mut i32) = "cuDeviceGetCount" | "hipGetDeviceCount";
    /// The device of a number.
    needed fn device_get(device: *mut i32, ordinal: i32) = "cuDeviceGet" | "hipDeviceGet";
    /// Writes the name, at most `length` bytes with its NUL.
    needed fn device_name(name: *mut c_char, length: i32, device: i32) = "cuDeviceGetName" | "hipDeviceGetName";
    /// Writes the bus id, at most `length` bytes with its NUL.
    needed fn device_pci_bus_id(id: *mut c_char, length: i32, device: i32) = "cuDeviceGetPCIBusId" | "hipDeviceGetPCIBusId";
    /// Writes the 16 bytes of the UUID.
    optional fn device_uuid(uuid: *mut [u8; 16], device: i32) = "cuDeviceGetUuid_v2" | "hipDeviceGetUuid";
    /// All memory of a device.
    needed fn device_total(bytes: *mut usize, device: i32) = "cuDeviceTotalMem_v2" | "hipDeviceTotalMem";
    /// One attribute; the numbers differ between vendors.
    needed fn device_attribute(value: *mut i32, attribute: u32, device: i32) = "cuDeviceGetAttribute" | "hipDeviceGetAttribute";
    /// Whether a device may be given direct access to a peer's memory.
    needed fn can_access_peer(can: *mut i32, device: i32, peer: i32) = "cuDeviceCanAccessPeer" | "hipDeviceCanAccessPeer";

    /// Takes a reference to a device's primary context.
    needed fn context_retain(context: *mut RawHandle, device: i32) = "cuDevicePrimaryCtxRetain" | "";
    /// Gives the reference back.
    needed fn context_release(device: i32) = "cuDevicePrimaryCtxRelease_v2" | "";
    /// Makes a context the calling thread's; 0 for none.
    needed fn context_set(context: RawHandle) = "cuCtxSetCurrent" | "";
    /// The calling thread's context.
    needed fn context_get(context: *mut RawHandle) = "cuCtxGetCurrent" | "";
    /// Gives the current context access to another's memory; the flags must be 0.
    optional fn context_enable_peer(context: RawHandle, flags: u32) = "cuCtxEnablePeerAccess" | "";
    /// Makes a device the calling thread's.
    needed fn device_set(device: i32) = "" | "hipSetDevice";
    /// The calling thread's device.
    needed fn device_current(device: *mut i32) = "" | "hipGetDevice";
    /// Gives the current device access to another's memory; the flags must be 0.
    optional fn device_enable_peer(device: i32, flags: u32) = "" | "hipDeviceEnablePeerAccess";

    /// Free and total bytes of the current device.
    needed fn memory_info(free: *mut usize, total: *mut usize) = "cuMemGetInfo_v2" | "hipMemGetInfo";
    /// Takes memory of the current device.
    needed fn memory_allocate(address: *mut u64, bytes: usize) = "cuMemAlloc_v2" | "hipMalloc";
    /// Gives it back, after all work of the device.
    needed fn memory_free(address: u64) = "cuMemFree_v2" | "hipFree";
    /// Takes memory of the driver's own pool, in stream order.
    optional fn pool_allocate(address: *mut u64, bytes: usize, stream: RawHandle) = "cuMemAllocAsync" | "hipMallocAsync";
    /// Gives it back, in stream order.
    optional fn pool_free(address: u64, stream: RawHandle) = "cuMemFreeAsync" | "hipFreeAsync";
    /// Takes page-locked host memory that every device may copy from and to.
    needed fn host_allocate(address: *mut RawHandle, bytes: usize, flags: u32) = "cuMemHostAlloc" | "hipHostMalloc";
    /// Gives page-locked host memory back.
    needed fn host_free(address: RawHandle) = "cuMemFreeHost" | "hipHostFree";

    /// Copies from the host.
    needed fn copy_to_device(to: u64, from: *const u8, bytes: usize) = "cuMemcpyHtoD_v2" | "hipMemcpyHtoD";
    /// Copies to the host.
    needed fn copy_to_host(to: *mut u8, from: u64, bytes: usize) = "cuMemcpyDtoH_v2" | "hipMemcpyDtoH";
    /// Copies from page-locked host memory, in stream order.
    needed fn copy_to_device_async(to: u64, from: RawHandle, bytes: usize, stream: RawHandle) = "cuMemcpyHtoDAsync_v2" | "hipMemcpyHtoDAsync";
    /// Copies to page-locked host memory, in stream order.
    needed fn copy_to_host_async(to: RawHandle, from: u64, bytes: usize, stream: RawHandle) = "cuMemcpyDtoHAsync_v2" | "hipMemcpyDtoHAsync";
    /// Copies within the current device, in stream order.
    needed fn copy_on_device(to: u64, from: u64, bytes: usize, stream: RawHandle) = "cuMemcpyDtoDAsync_v2" | "hipMemcpyDtoDAsync";
    /// Copies between the memory of two contexts, in stream order.
    needed fn copy_between_contexts(to: u64, to_context: RawHandle, from: u64, from_context: RawHandle, bytes: usize, stream: RawHandle) = "cuMemcpyPeerAsync" | "";
    /// Copies between the memory of two devices, in stream order.
    needed fn copy_between_devices(to: u64, to_device: i32, from: u64, from_device: i32, bytes: usize, stream: RawHandle) = "" | "hipMemcpyPeerAsync";
    /// Sets bytes, in stream order.
    needed fn fill(to: u64, value: u8, bytes: usize, stream: RawHandle) = "cuMemsetD8Async" | "hipMemsetD8Async";

    /// The size of a page that [`Functions::page_create`] makes.
    optional fn page_granularity(bytes: *mut usize, properties: *const PageProperties, kind: u32) = "cuMemGetAllocationGranularity" | "hipMemGetAllocationGranularity";
    /// Reserves addresses.
    optional fn range_reserve(address: *mut u64, bytes: usize, align: usize, hint: u64, flags: u64) = "cuMemAddressReserve" | "hipMemAddressReserve";
    /// Gives a whole reservation back.
    optional fn range_release(address: u64, bytes: usize) = "cuMemAddressFree" | "hipMemAddressFree";
    /// Takes physical memory.
    optional fn page_create(page: *mut u64, bytes: usize, properties: *const PageProperties, flags: u64) = "cuMemCreate" | "hipMemCreate";
    /// Gives physical memory back once it is mapped nowhere.
    optional fn page_release(page: u64) = "cuMemRelease" | "hipMemRelease";
    /// Maps physical memory into a reservation; nobody may touch it yet.
    optional fn page_map(address: u64, bytes: usize, offset: usize, page: u64, flags: u64) = "cuMemMap" | "hipMemMap";
    /// Unmaps it.
    optional fn page_unmap(address: u64, bytes: usize) = "cuMemUnmap" | "hipMemUnmap";
    /// Says which devices may read and write a mapping.
    optional fn page_access(address: u64, bytes: usize, access: *const PageAccess, count: usize) = "cuMemSetAccess" | "hipMemSetAccess";

    /// Makes a stream.
    needed fn stream_create(stream: *mut RawHandle, flags: u32) = "cuStreamCreate" | "hipStreamCreateWithFlags";
    /// Removes a stream; its work goes on.
    needed fn stream_destroy(stream: RawHandle) = "cuStreamDestroy_v2" | "hipStreamDestroy";
    /// Waits for a stream's work.
    needed fn stream_synchronize(stream: RawHandle) = "cuStreamSynchronize" | "hipStreamSynchronize";
    /// Makes later work wait for an event; the flags must be 0.
    needed fn stream_wait_event(stream: RawHandle, event: RawHandle, flags: u32) = "cuStreamWaitEvent" | "hipStreamWaitEvent";
    /// Makes an event.
    needed fn event_create(event: *mut RawHandle, flags: u32) = "cuEventCreate" | "hipEventCreateWithFlags";
    /// Removes an event.
    needed fn event_destroy(event: RawHandle) = "cuEventDestroy_v2" | "hipEventDestroy";
    /// Records what a stream holds now.
    needed fn event_record(event: RawHandle, stream: RawHandle) = "cuEventRecord" | "hipEventRecord";
    /// Succeeds when everything before the event is done.
    needed fn event_query(event: RawHandle) = "cuEventQuery" | "hipEventQuery";
    /// Waits until everything before the event is done.
    needed fn event_synchronize(event: RawHandle) = "cuEventSynchronize" | "hipEventSynchronize";

    /// Begins to capture a stream's work instead of running it.
    optional fn stream_begin_capture(stream: RawHandle, mode: u32) = "cuStreamBeginCapture_v2" | "hipStreamBeginCapture";
    /// Ends the capture.
    optional fn stream_end_capture(stream: RawHandle, graph: *mut RawHandle) = "cuStreamEndCapture" | "hipStreamEndCapture";
    /// Makes captured work ready to run; the flags may be 0.
    optional fn graph_instantiate(executable: *mut RawHandle, graph: RawHandle, flags: u64) = "cuGraphInstantiateWithFlags" | "hipGraphInstantiateWithFlags";
    /// Runs it, in stream order.
    optional fn graph_launch(executable: RawHandle, stream: RawHandle) = "cuGraphLaunch" | "hipGraphLaunch";
    /// Removes what can run.
    optional fn graph_executable_destroy(executable: RawHandle) = "cuGraphExecDestroy" | "hipGraphExecDestroy";
    /// Removes what was captured.
    optional fn graph_destroy(graph: RawHandle) = "cuGraphDestroy" | "hipGraphDestroy";

    /// Loads kernels.
    optional fn module_load(module: *mut RawHandle, image: *const u8) = "cuModuleLoadData" | "hipModuleLoadData";
    /// Unloads them.
    optional fn module_unload(module: RawHandle) = "cuModuleUnload" | "hipModuleUnload";
    /// The kernel of a name.
    optional fn module_function(function: *mut RawHandle, module: RawHandle, name: *const c_char) = "cuModuleGetFunction" | "hipModuleGetFunction";
    /// Runs a kernel, in stream order.
    optional fn launch(
        function: RawHandle,
        grid_x: u32, grid_y: u32, grid_z: u32,
        block_x: u32, block_y: u32, block_z: u32,
        shared_bytes: u32,
        stream: RawHandle,
        arguments: *const *const u64,
        extra: usize,
    ) = "cuLaunchKernel" | "hipModuleLaunchKernel";
    /// Runs a kernel with attributes, in stream order.
    optional fn launch_extended(config: *const LaunchConfig<'_>, function: RawHandle, arguments: *const *const u64, extra: usize) = "cuLaunchKernelEx" | "";
}

/// How a kernel is launched: `CUlaunchConfig`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct LaunchConfig<'a> {
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    stream: RawHandle,
    attributes: *const LaunchAttribute,
    count: u32,
    lives: PhantomData<&'a [LaunchAttribute]>,
}

impl<'a> LaunchConfig<'a> {
    pub(super) fn new(
        blocks: u32,
        threads: u32,
        stream: RawHandle,
        attributes: &'a [LaunchAttribute; 1],
    ) -> Self {
        Self {
            grid: [blocks, 1, 1],
            block: [threads, 1, 1],
            shared_bytes: 0,
            stream,
            attributes: attributes.as_ptr(),
            count: 1,
            lives: PhantomData,
        }
    }
}

/// `CUlaunchAttribute`, whose value is a union of 64 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct LaunchAttribute {
    kind: u32,
    padding: u32,
    value: [u64; 8],
}

impl LaunchAttribute {
    /// `CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION`: the kernel may begin before the one
    /// before it has ended, and waits for it itself.
    pub(super) const EARLY: Self = Self {
        kind: 6,
        padding: 0,
        value: [1, 0, 0, 0, 0, 0, 0, 0],
    };
}

const _: () = assert!(
    size_of::<LaunchConfig<'_>>() == size_of::<cudarc::driver::sys::CUlaunchConfig>()
        && size_of::<LaunchAttribute>() == size_of::<cudarc::driver::sys::CUlaunchAttribute>()
        && std::mem::offset_of!(LaunchAttribute, value)
            == std::mem::offset_of!(cudarc::driver::sys::CUlaunchAttribute, value)
);

/// What physical memory is asked for: `CUmemAllocationProp` and `hipMemAllocationProp`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct PageProperties {
    /// 1: memory that stays where it is.
    pub(super) kind: u32,
    /// 0: it is not shared with other processes.
    pub(super) shared_as: u32,
    /// 1: on a device.
    pub(super) location_kind: u32,
    pub(super) device: i32,
    pub(super) windows: usize,
    pub(super) flags: u64,
}

/// Who may use a mapping: `CUmemAccessDesc` and `hipMemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct PageAccess {
    /// 1: a device.
    pub(super) location_kind: u32,
    pub(super) device: i32,
    /// 3: reading and writing.
    pub(super) access: u32,
}

const _: () = assert!(
    size_of::<PageProperties>() == size_of::<cudarc::driver::sys::CUmemAllocationProp>()
        && size_of::<PageProperties>() == size_of::<hip_sys::hiprt::hipMemAllocationProp>()
        && size_of::<PageAccess>() == size_of::<cudarc::driver::sys::CUmemAccessDesc>()
        && size_of::<PageAccess>() == size_of::<hip_sys::hiprt::hipMemAccessDesc>()
);

/// How a driver puts its codes into words.
#[derive(Clone, Copy, Debug)]
enum Texts {
    Cuda([Option<unsafe extern "C" fn(u32, *mut *const c_char) -> u32>; 2]),
    Hip([Option<unsafe extern "C" fn(u32) -> *const c_char>; 2]),
}

impl Texts {
    fn load(vendor: Vendor, library: &'static Library) -> Self {
        // SAFETY: the signatures are those of the vendors' headers.
        let cuda = |name: &str| unsafe { library.get(name.as_bytes()) }.ok().map(|f| *f);
        // SAFETY: as above.
        let hip = |name: &str| unsafe { library.get(name.as_bytes()) }.ok().map(|f| *f);
        match vendor {
            Vendor::Cuda => Self::Cuda([cuda("cuGetErrorName"), cuda("cuGetErrorString")]),
            Vendor::Hip => Self::Hip([hip("hipGetErrorName"), hip("hipGetErrorString")]),
        }
    }
}

impl Functions {
    /// Whether kernels can be launched with attributes.
    pub(super) fn can_launch_extended(&self) -> bool {
        self.launch_extended.is_some()
    }

    /// How many calls of the driver were made.
    pub(super) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// A code in the driver's words: name, text and number.
    pub(super) fn describe(&self, code: u32) -> String {
        let text = |which: usize| -> Option<String> {
            let words = match self.texts {
                Texts::Cuda(functions) => {
                    let mut words = std::ptr::null();
                    let function = functions.get(which).copied().flatten()?;
                    // SAFETY: `words` is a valid place for the pointer.
                    let status = unsafe { function(code, &raw mut words) };
                    (status == SUCCESS).then_some(words)?
                }
                // SAFETY: any code may be asked about.
                Texts::Hip(functions) => unsafe { functions.get(which).copied().flatten()?(code) },
            };
            if words.is_null() {
                return None;
            }
            // SAFETY: the driver returns a string that lives as long as the driver.
            let words = unsafe { CStr::from_ptr(words) };
            Some(words.to_string_lossy().into_owned())
        };
        match (text(0), text(1)) {
            (Some(name), Some(words)) => format!("{words} ({name}, error {code})"),
            (Some(name), None) => format!("{name}, error {code}"),
            _ => format!("error {code}, which this driver does not name"),
        }
    }
}
