//! The exported functions. Names, parameters and results are those of `nccl.h`.

use std::ffi::{c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::thread;

use crate::comm::{Comm, Sum, code};
use crate::driver::Driver;
use crate::fault::Fault;
use crate::hub::{self, NAME_BYTES};

/// Of a version that never was.
const VERSION: i32 = 29_999;
const FLOAT32: u32 = 7;
const SUM: u32 = 0;
/// What a configuration begins with: its bytes, its magic, its version.
const MAGIC: u32 = 0xcafe_beef;

#[repr(C)]
#[derive(Clone, Copy)]
struct UniqueId([u8; NAME_BYTES]);

#[repr(C)]
struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
}

fn fault() -> Option<Fault> {
    static FAULT: OnceLock<Option<Fault>> = OnceLock::new();
    *FAULT.get_or_init(Fault::of_environment)
}

/// No panic leaves the library.
fn enter(work: impl FnOnce() -> Result<u32, u32>) -> u32 {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(code) | Err(code)) => code,
        Err(_) => code::INTERNAL,
    }
}

/// Puts a value where the caller wants it.
///
/// # Safety
/// The place is null or valid.
unsafe fn put<T>(place: *mut T, value: T) -> Result<(), u32> {
    if place.is_null() {
        return Err(code::INVALID_ARGUMENT);
    }
    // SAFETY: the caller vouches for the place.
    unsafe { place.write(value) };
    Ok(())
}

/// The communicator of a handle.
///
/// # Safety
/// The handle is null or live.
unsafe fn comm<'a>(handle: *mut Comm) -> Result<&'a Comm, u32> {
    // SAFETY: the caller vouches for the handle.
    unsafe { handle.as_ref() }.ok_or(code::INVALID_ARGUMENT)
}

/// Says that this is no library of a vendor.
#[unsafe(no_mangle)]
extern "C" fn ds4_simulated_nccl() {}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclGetVersion(version: *mut c_int) -> u32 {
    enter(|| {
        let said = match fault() {
            Some(Fault::Version(version)) => version,
            _ => VERSION,
        };
        // SAFETY: the caller's place.
        unsafe { put(version, said) }?;
        Ok(code::SUCCESS)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclGetUniqueId(id: *mut UniqueId) -> u32 {
    enter(|| {
        let name = hub::open().map_err(|_| code::SYSTEM)?;
        // SAFETY: the caller's place.
        unsafe { put(id, UniqueId(name)) }?;
        Ok(code::SUCCESS)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommInitRankConfig(
    out: *mut *mut Comm,
    ranks: c_int,
    id: UniqueId,
    rank: c_int,
    config: *const Config,
) -> u32 {
    enter(|| {
        // SAFETY: the caller's configuration, or none.
        let config = unsafe { config.as_ref() }.ok_or(code::INVALID_ARGUMENT)?;
        let sound = config.size >= size_of::<Config>()
            && config.magic == MAGIC
            && config.version >= 21_400
            && config.blocking == 0;
        let ranks = u32::try_from(ranks).map_err(|_| code::INVALID_ARGUMENT)?;
        let rank = u32::try_from(rank).map_err(|_| code::INVALID_ARGUMENT)?;
        if !sound || rank >= ranks {
            return Err(code::INVALID_ARGUMENT);
        }
        let driver = Driver::find().ok_or(code::INVALID_USAGE)?;
        let comm = Comm::start(id.0, (rank, ranks), driver, fault())?;
        // SAFETY: the caller's place.
        unsafe { put(out, Box::into_raw(Box::new(comm))) }?;
        Ok(code::IN_PROGRESS)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommGetAsyncError(handle: *mut Comm, state: *mut u32) -> u32 {
    enter(|| {
        // SAFETY: the caller's handle.
        let comm = unsafe { comm(handle) }?;
        // SAFETY: the caller's place.
        unsafe { put(state, comm.state()) }?;
        Ok(code::SUCCESS)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclAllReduce(
    from: u64,
    to: u64,
    count: usize,
    data_type: u32,
    operation: u32,
    handle: *mut Comm,
    stream: usize,
) -> u32 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static CALLS: AtomicU64 = AtomicU64::new(0);
    enter(|| {
        let call = CALLS.fetch_add(1, Ordering::Relaxed) + 1;
        while fault() == Some(Fault::SumBlocks(call)) {
            thread::park();
        }
        if data_type != FLOAT32 || operation != SUM {
            return Err(code::INVALID_ARGUMENT);
        }
        let bytes = count.checked_mul(4).ok_or(code::INVALID_ARGUMENT)?;
        // SAFETY: the caller's handle.
        let comm = unsafe { comm(handle) }?;
        Ok(comm.sum(Sum {
            from,
            to,
            bytes,
            stream,
        }))
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommFinalize(handle: *mut Comm) -> u32 {
    enter(|| {
        // SAFETY: the caller's handle.
        unsafe { comm(handle) }?;
        Ok(code::SUCCESS)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommDestroy(handle: *mut Comm) -> u32 {
    enter(|| {
        // SAFETY: the caller's handle.
        unsafe { comm(handle) }?;
        // SAFETY: it was made by `ncclCommInitRankConfig`, and the caller gives it back.
        drop(unsafe { Box::from_raw(handle) });
        Ok(code::SUCCESS)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommAbort(handle: *mut Comm) -> u32 {
    // SAFETY: as for the caller's own call.
    unsafe { ncclCommDestroy(handle) }
}

#[unsafe(no_mangle)]
extern "C" fn ncclGetErrorString(result: u32) -> *const c_char {
    let text = match result {
        code::SUCCESS => c"no error",
        code::UNHANDLED_CUDA => c"unhandled cuda error",
        code::SYSTEM => c"unhandled system error",
        code::INTERNAL => c"internal error",
        code::INVALID_ARGUMENT => c"invalid argument",
        code::INVALID_USAGE => c"invalid usage",
        code::REMOTE => c"remote process exited or there was a network error",
        code::IN_PROGRESS => c"operation in progress",
        _ => c"unknown result code",
    };
    text.as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn ncclGetLastError(_handle: *const c_void) -> *const c_char {
    c"simulated NCCL: it runs on simulated devices of one host alone".as_ptr()
}
