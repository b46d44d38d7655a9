//! The functions of `include/ds4.h`.
//!
//! Their comments are the header's, and so are written for readers of C.

use std::ffi::{CStr, c_char, c_int, c_void};

use ds4_engine::alloc::placement::OrphanPolicy;
use ds4_engine::alloc::{AllocatorConfig, CopyError, CopyPath, DeviceBudget, Handle, Request};
use ds4_engine::device::{DeviceMask, MAX_DEVICES, Ordinal, StreamId};

use crate::failure::Failure;
use crate::instance::{Instance, address, pointer};
use crate::last_error::{guarded, last_status, last_text, status};
use crate::machine::Machine;
use crate::state;
use crate::types::{
    Config, DS4_COPY_HOST_BOUNCE, DS4_COPY_PEER, DS4_COPY_SAME_DEVICE, Placement, PoolStats,
};

/// The version of this library, for example "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn ds4_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => c"",
        };
    VERSION.as_ptr()
}

/// How many GPUs there are: those of the backend that the variable DS4_BACKEND names (cuda, hip or
/// sim), else of CUDA, else of HIP. 0 if there is none, or no driver; ds4_gpu_mgpu_last_error says
/// which. Nothing is initialized.
#[unsafe(no_mangle)]
pub extern "C" fn ds4_gpu_detect() -> c_int {
    guarded(0, || {
        let count = Machine::find(None, None)?.count().min(MAX_DEVICES);
        Ok(c_int::try_from(count).unwrap_or(c_int::MAX))
    })
}

/// Opens the first num_gpus devices, with a pool of memory each. config may be NULL.
///
/// Returns DS4_OK or why not. A second call is refused until ds4_gpu_mgpu_shutdown.
///
/// # Safety
/// config is NULL or points to config->struct_size bytes, and its texts are NULL or end with a
/// zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ds4_gpu_mgpu_init(num_gpus: c_int, config: *const Config) -> c_int {
    status(|| {
        state::open(|| {
            // SAFETY: the caller vouches for `config`.
            let config = unsafe { read_config(config) }?;
            // SAFETY: the caller vouches for its texts.
            let backend = unsafe { text(config.backend, "backend") }?;
            // SAFETY: as above.
            let topology = unsafe { text(config.topology, "topology") }?;
            open(num_gpus, &config, backend, topology)
        })
    })
}

fn open(
    num_gpus: c_int,
    config: &Config,
    backend: Option<&str>,
    topology: Option<&str>,
) -> Result<Instance, Failure> {
    let machine = Machine::find(backend, topology)?;
    let present = machine.count();
    let count = usize::try_from(num_gpus)
        .ok()
        .filter(|count| (1..=present.min(MAX_DEVICES)).contains(count))
        .ok_or_else(|| {
            Failure::Argument(format!(
                "num_gpus is {num_gpus}; there are {present}, and ds4_gpu_detect says how many can \
                 be used"
            ))
        })?;
    let places: Vec<Ordinal> = (0..).take(count).map(Ordinal).collect();
    let sizes = config.budget_bytes.iter().zip(&config.reserve_bytes);
    let mut budgets: Vec<DeviceBudget> = sizes
        .map(|(budget, reserve)| DeviceBudget {
            configured_bytes: (*budget > 0).then_some(*budget),
            reserve_bytes: *reserve,
        })
        .collect();
    // Defaults for devices that are not there are no mistake; budgets for them are.
    while budgets.len() > count && budgets.last() == Some(&DeviceBudget::default()) {
        budgets.pop();
    }
    let config = AllocatorConfig {
        budgets,
        excluded: DeviceMask(config.exclude_mask),
        orphans: match config.strict_hints {
            0 => OrphanPolicy::LeastLoaded,
            _ => OrphanPolicy::Refuse,
        },
        ..AllocatorConfig::default()
    };
    machine.open(&places, config)
}

/// All of the first version's configuration, which ends with `reserve_bytes`.
const FIRST_CONFIG_BYTES: usize =
    std::mem::offset_of!(Config, reserve_bytes) + size_of::<[u64; MAX_DEVICES]>();

/// A configuration of this or another version: what an older one lacks is zero, what a newer one
/// adds must be.
///
/// # Safety
/// As for [`ds4_gpu_mgpu_init`].
unsafe fn read_config(config: *const Config) -> Result<Config, Failure> {
    let mut own = Config::default();
    if config.is_null() {
        return Ok(own);
    }
    // SAFETY: the caller vouches for the structure, whose first field is its size; it may be
    // aligned for a smaller type.
    let size = unsafe { config.cast::<usize>().read_unaligned() };
    let known = size_of::<Config>();
    if !(FIRST_CONFIG_BYTES..=1 << 16).contains(&size) {
        return Err(Failure::Argument(format!(
            "config->struct_size is {size}; set it to sizeof(ds4_gpu_mgpu_config_t), which is {known}"
        )));
    }
    let bytes = config.cast::<u8>();
    // SAFETY: both hold so many bytes, of plain numbers and pointers for which all bits are valid.
    unsafe { std::ptr::copy_nonoverlapping(bytes, (&raw mut own).cast(), size.min(known)) };
    // SAFETY: the caller's structure has `size` bytes.
    let all = unsafe { std::slice::from_raw_parts(bytes, size) };
    if all.iter().skip(known).any(|byte| *byte != 0) {
        return Err(Failure::Argument(
            "config sets what this version of ds4 does not know; leave it zero".to_owned(),
        ));
    }
    Ok(own)
}

/// # Safety
/// The text is null or ends with a zero byte, and outlives the result.
unsafe fn text<'a>(text: *const c_char, name: &str) -> Result<Option<&'a str>, Failure> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller vouches for it.
    let text = unsafe { CStr::from_ptr(text) };
    match text.to_str() {
        Ok(text) => Ok(Some(text)),
        Err(_) => Err(Failure::Argument(format!("config->{name} is not UTF-8"))),
    }
}

/// Memory on the least loaded device of the hint that can hold it; hint NULL means any device.
///
/// The result is an address of that device, a multiple of 256: never read or write through it on
/// the host. NULL if size is 0 or every candidate refuses; ds4_gpu_mgpu_last_error says why, and
/// nothing has changed. The memory is used first, and freed, on the default stream.
///
/// # Safety
/// hint is NULL or points to a placement.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ds4_gpu_mgpu_alloc(size: usize, hint: *const Placement) -> *mut c_void {
    // SAFETY: the caller vouches for `hint`.
    unsafe { ds4_gpu_mgpu_alloc_on(size, hint, 0) }
}

/// As ds4_gpu_mgpu_alloc, for memory that is used first, and freed, on a stream of the chosen
/// device: 0 or a number from ds4_gpu_mgpu_stream_create or ds4_gpu_mgpu_stream_adopt. Memory that
/// this stream freed is taken again at once, that of other streams after their work is done.
///
/// # Safety
/// hint is NULL or points to a placement.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ds4_gpu_mgpu_alloc_on(
    size: usize,
    hint: *const Placement,
    stream: u32,
) -> *mut c_void {
    // SAFETY: the caller vouches for `hint`.
    let mask = unsafe { hint.as_ref() }.map_or(0, |hint| hint.mask);
    guarded(std::ptr::null_mut(), || {
        state::with(|instance| {
            let request = Request {
                mask: DeviceMask(mask),
                stream: StreamId(stream),
                ..Request::new(size as u64)
            };
            Ok(pointer(instance.allocator.allocate(&request)?.address))
        })
    })
}

/// Gives a block back to the pool it came from, in the order of its stream: work that the stream
/// holds may still use it. NULL is ignored.
///
/// Returns DS4_OK, or DS4_DOUBLE_FREE, DS4_FOREIGN_POINTER or DS4_INTERIOR_POINTER, and then
/// nothing has changed.
#[unsafe(no_mangle)]
pub extern "C" fn ds4_gpu_mgpu_free(ptr: *mut c_void) -> c_int {
    if ptr.is_null() {
        return crate::types::DS4_OK;
    }
    status(|| state::with(|instance| Ok(instance.allocator.free_address(address(ptr))?)))
}

/// Says that a block is used on a second stream of its device: after its free it waits for what
/// that stream holds then.
#[unsafe(no_mangle)]
pub extern "C" fn ds4_gpu_mgpu_record_use(ptr: *mut c_void, stream: u32) -> c_int {
    status(|| {
        state::with(|instance| {
            let handle = instance.allocator.handle_at(address(ptr))?;
            Ok(instance.allocator.record_use(handle, StreamId(stream))?)
        })
    })
}

/// Makes a stream on a device; its number is written to stream.
///
/// # Safety
/// stream is NULL or points to a number that may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ds4_gpu_mgpu_stream_create(device: c_int, stream: *mut u32) -> c_int {
    status(|| {
        state::with(|instance| {
            there(stream, "stream")?;
            let device = instance.device(device)?;
            let number = instance.allocator.create_stream(device)?.0;
            // SAFETY: it is not null, and the caller vouches for it.
            unsafe { stream.write(number) };
            Ok(())
        })
    })
}

/// Gives a number to a stream that the program made itself: raw is its cudaStream_t, CUstream or
/// hipStream_t, and NULL the default stream, number 0. The same stream gets the same number each
/// time. It must exist until ds4_gpu_mgpu_shutdown. A simulated device makes a stream of its own
/// for each raw.
///
/// # Safety
/// raw is a stream of the device, and stream is NULL or points to a number that may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ds4_gpu_mgpu_stream_adopt(
    device: c_int,
    raw: *mut c_void,
    stream: *mut u32,
) -> c_int {
    status(|| {
        state::with(|instance| {
            there(stream, "stream")?;
            let device = instance.device(device)?;
            let number = instance.stream(device, raw.addr())?.0;
            // SAFETY: it is not null, and the caller vouches for it.
            unsafe { stream.write(number) };
            Ok(())
        })
    })
}

/// Waits for all work on a device.
#[unsafe(no_mangle)]
pub extern "C" fn ds4_gpu_mgpu_synchronize(device: c_int) -> c_int {
    status(|| {
        state::with(|instance| {
            let device = instance.device(device)?;
            Ok(instance.allocator.synchronize(device)?)
        })
    })
}

/// The device that holds the live block around an address, or -1.
#[unsafe(no_mangle)]
pub extern "C" fn ds4_gpu_mgpu_device_of(ptr: *const c_void) -> c_int {
    guarded(-1, || {
        state::with(|instance| {
            let (handle, _) = instance.block_around(address(ptr))?;
            Ok(c_int::try_from(handle.device().index()).unwrap_or(-1))
        })
    })
}

/// Copies bytes between live blocks, also of different devices; both addresses may lie inside a
/// block. The copy takes its turn in the streams of both blocks.
///
/// The path is written to path unless that is NULL: DS4_COPY_SAME_DEVICE, DS4_COPY_PEER or
/// DS4_COPY_HOST_BOUNCE. A bounced copy is complete on return.
///
/// # Safety
/// path is NULL or points to a number that may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ds4_gpu_mgpu_copy(
    dst: *mut c_void,
    src: *const c_void,
    bytes: usize,
    path: *mut c_int,
) -> c_int {
    status(|| {
        state::with(|instance| {
            let around = |place| instance.block_around(place).map_err(CopyError::NotLive);
            let (from, to) = (around(address(src))?, around(address(dst))?);
            let report = instance.allocator.copy(from, to, bytes as u64)?;
            let taken = match report.path {
                CopyPath::SameDevice => DS4_COPY_SAME_DEVICE,
                CopyPath::Peer => DS4_COPY_PEER,
                CopyPath::HostBounce => DS4_COPY_HOST_BOUNCE,
            };
            if !path.is_null() {
                // SAFETY: it is not null, and the caller vouches for it.
                unsafe { path.write(taken) };
            }
            Ok(())
        })
    })
}

/// Copies from host memory into a live block, after all work on its device, and waits.
///
/// # Safety
/// host points to so many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ds4_gpu_mgpu_write(
    dst: *mut c_void,
    host: *const c_void,
    bytes: usize,
) -> c_int {
    status(|| {
        state::with(|instance| {
            let (handle, offset_bytes) = range(instance, dst, bytes, host)?;
            if bytes == 0 {
                return Ok(());
            }
            // SAFETY: it is not null, no block is longer than `isize::MAX`, and the caller vouches
            // for so many bytes.
            let host = unsafe { std::slice::from_raw_parts(host.cast::<u8>(), bytes) };
            Ok(instance.allocator.write(handle, offset_bytes, host)?)
        })
    })
}

/// Copies from a live block to host memory, after all work on its device, and waits.
///
/// # Safety
/// host points to so many bytes that may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ds4_gpu_mgpu_read(
    host: *mut c_void,
    src: *const c_void,
    bytes: usize,
) -> c_int {
    status(|| {
        state::with(|instance| {
            let (handle, offset_bytes) = range(instance, src, bytes, host)?;
            if bytes == 0 {
                return Ok(());
            }
            let host = host.cast::<u8>();
            // What C hands over may be fresh from malloc, which Rust must not see before it is set.
            // SAFETY: it is not null, and the caller vouches for so many bytes.
            unsafe { host.write_bytes(0, bytes) };
            // SAFETY: as above, they were set, and no block is longer than `isize::MAX`.
            let host = unsafe { std::slice::from_raw_parts_mut(host, bytes) };
            Ok(instance.allocator.read(handle, offset_bytes, host)?)
        })
    })
}

/// The live block around an address, and where in it the range begins that is to be copied: the
/// block holds all of it, and there is a host's side for it.
fn range(
    instance: &Instance,
    start: *const c_void,
    bytes: usize,
    host: *const c_void,
) -> Result<(Handle, u64), Failure> {
    let (handle, offset_bytes) = instance.block_around(address(start))?;
    let allocator = &instance.allocator;
    allocator.holds(handle, offset_bytes, bytes as u64)?;
    if host.is_null() && bytes > 0 {
        return Err(Failure::Argument("host is NULL".to_owned()));
    }
    Ok((handle, offset_bytes))
}

/// Gives memory that no block touches back to the driver; the bytes are written to
/// returned_bytes unless that is NULL.
///
/// # Safety
/// returned_bytes is NULL or points to a number that may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ds4_gpu_mgpu_trim(returned_bytes: *mut u64) -> c_int {
    status(|| {
        state::with(|instance| {
            let bytes = instance.allocator.trim()?;
            if !returned_bytes.is_null() {
                // SAFETY: it is not null, and the caller vouches for it.
                unsafe { returned_bytes.write(bytes) };
            }
            Ok(())
        })
    })
}

/// The figures of one device's pool.
///
/// # Safety
/// stats is NULL or points to a structure that may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ds4_gpu_mgpu_pool_stats(device: c_int, stats: *mut PoolStats) -> c_int {
    status(|| {
        state::with(|instance| {
            there(stats, "stats")?;
            let device = instance.device(device)?;
            let figures = instance
                .allocator
                .stats(device)
                .ok_or_else(|| Failure::Argument(format!("{device} is excluded")))?;
            // SAFETY: it is not null, and the caller vouches for it.
            unsafe { stats.write(figures.into()) };
            Ok(())
        })
    })
}

/// Refuses the null address of something that must be there. What is there may be uninitialised:
/// it is only written, never referred to.
pub(crate) fn there<T>(place: *mut T, name: &str) -> Result<(), Failure> {
    if place.is_null() {
        return Err(Failure::Argument(format!("{name} is NULL")));
    }
    Ok(())
}

/// Why this thread's last failed call failed: one sentence, "" before the first. The text is valid
/// until the thread's next failure; calls that succeed leave it alone.
#[unsafe(no_mangle)]
pub extern "C" fn ds4_gpu_mgpu_last_error() -> *const c_char {
    last_text()
}

/// The number of this thread's last failure, for functions that return pointers; DS4_OK before the
/// first.
#[unsafe(no_mangle)]
pub extern "C" fn ds4_gpu_mgpu_last_status() -> c_int {
    last_status()
}

/// Waits until no other call runs and gives all memory back to the driver, that of live blocks
/// too. Not for a process forked while calls ran: they never end there. After a failure the allocator is closed as well: initialize it anew.
#[unsafe(no_mangle)]
pub extern "C" fn ds4_gpu_mgpu_shutdown() -> c_int {
    status(state::close)
}
