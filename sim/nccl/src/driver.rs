//! The simulated driver that the process has loaded.

use std::ffi::{CStr, c_char, c_int, c_void};

unsafe extern "C" {
    fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

const RTLD_NOW: c_int = 2;
/// Only if it is loaded already.
const RTLD_NOLOAD: c_int = 4;

type Pair = [&'static CStr; 2];

/// The functions used here, by the names of CUDA and HIP.
const TO_HOST: Pair = [c"cuMemcpyDtoH_v2", c"hipMemcpyDtoH"];
const TO_DEVICE: Pair = [c"cuMemcpyHtoD_v2", c"hipMemcpyHtoD"];
const SYNCHRONIZE: Pair = [c"cuStreamSynchronize", c"hipStreamSynchronize"];
const GET: Pair = [c"cuCtxGetCurrent", c"hipGetDevice"];
const SET: Pair = [c"cuCtxSetCurrent", c"hipSetDevice"];
/// Only simulated drivers have it.
const MARK: &CStr = c"ds4_simulated_configure";

/// The driver's functions, which answer 0 if all went well.
#[derive(Clone, Copy)]
pub(crate) struct Driver {
    to_host: unsafe extern "C" fn(*mut u8, u64, usize) -> u32,
    to_device: unsafe extern "C" fn(u64, *const u8, usize) -> u32,
    synchronize: unsafe extern "C" fn(usize) -> u32,
    get: unsafe extern "C" fn(*mut usize) -> u32,
    set: unsafe extern "C" fn(usize) -> u32,
}

impl Driver {
    /// The simulated driver, if this process has loaded one.
    pub(crate) fn find() -> Option<Self> {
        const FILES: [(&CStr, usize); 6] = [
            (c"libcuda.so", 0),
            (c"libcuda.so.1", 0),
            (c"libamdhip64.so", 1),
            (c"libamdhip64.so.7", 1),
            (c"libamdhip64.so.6", 1),
            (c"libamdhip64.so.5", 1),
        ];
        FILES.iter().find_map(|(file, vendor)| {
            // SAFETY: the name ends with a NUL; nothing that is not loaded is loaded.
            let library = unsafe { dlopen(file.as_ptr(), RTLD_NOW | RTLD_NOLOAD) };
            (!library.is_null())
                .then(|| Self::of(library, *vendor))
                .flatten()
        })
    }

    fn of(library: *mut c_void, vendor: usize) -> Option<Self> {
        let find = |name: &CStr| {
            // SAFETY: the library is loaded and the name ends with a NUL.
            let found = unsafe { dlsym(library, name.as_ptr()) };
            (!found.is_null()).then_some(found)
        };
        let named = |pair: Pair| find(pair.get(vendor)?);
        find(MARK)?;
        let (to_host, to_device) = (named(TO_HOST)?, named(TO_DEVICE)?);
        let (synchronize, get, set) = (named(SYNCHRONIZE)?, named(GET)?, named(SET)?);
        Some(Self {
            // SAFETY: cuda.h and hip_runtime_api.h give the function this type.
            to_host: unsafe {
                std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut u8, u64, usize) -> u32>(
                    to_host,
                )
            },
            // SAFETY: as above.
            to_device: unsafe {
                std::mem::transmute::<*mut c_void, unsafe extern "C" fn(u64, *const u8, usize) -> u32>(
                    to_device,
                )
            },
            // SAFETY: as above.
            synchronize: unsafe {
                std::mem::transmute::<*mut c_void, unsafe extern "C" fn(usize) -> u32>(synchronize)
            },
            // SAFETY: as above; HIP's device is an int, of which the rest of the place stays 0.
            get: unsafe {
                std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut usize) -> u32>(get)
            },
            // SAFETY: as above; HIP takes the low half of the word.
            set: unsafe {
                std::mem::transmute::<*mut c_void, unsafe extern "C" fn(usize) -> u32>(set)
            },
        })
    }

    /// The calling thread's context or device.
    pub(crate) fn current(&self) -> Option<usize> {
        let mut current = 0;
        // SAFETY: the place is valid.
        (unsafe { (self.get)(&raw mut current) } == 0).then_some(current)
    }

    /// Makes a context or device the calling thread's.
    pub(crate) fn enter(&self, current: usize) -> bool {
        // SAFETY: the driver judges the number.
        unsafe { (self.set)(current) == 0 }
    }

    /// Waits for what a stream holds.
    pub(crate) fn wait(&self, stream: usize) -> bool {
        // SAFETY: the driver judges the handle.
        unsafe { (self.synchronize)(stream) == 0 }
    }

    /// The bytes at an address of the device.
    pub(crate) fn read(&self, address: u64, bytes: usize) -> Option<Vec<u8>> {
        let mut data = vec![0; bytes];
        // SAFETY: there is room for as many bytes; the driver judges the address.
        (unsafe { (self.to_host)(data.as_mut_ptr(), address, bytes) } == 0).then_some(data)
    }

    /// Puts bytes at an address of the device.
    pub(crate) fn write(&self, address: u64, data: &[u8]) -> bool {
        // SAFETY: as many bytes are there; the driver judges the address.
        unsafe { (self.to_device)(address, data.as_ptr(), data.len()) == 0 }
    }
}
