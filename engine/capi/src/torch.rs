//! The functions that PyTorch's `CUDAPluggableAllocator` takes by name.
//!
//! The allocator is the process's one; without `ds4_gpu_mgpu_init` it is opened when PyTorch first
//! asks for memory, as the environment says: `DS4_BACKEND`, `DS4_GPU_DEVICES`, `DS4_GPU_VRAM`,
//! `DS4_GPU_RESERVE` and `DS4_GPU_EXCLUDE` as the flags of the same names, and
//! `DS4_TORCH_PLACEMENT`. PyTorch's numbers of devices are the driver's.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::fmt::Write as _;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ds4_engine::alloc::{AllocError, AllocatorConfig, Request};
use ds4_engine::bytes::format_bytes;
use ds4_engine::device::{DeviceAddress, DeviceId, DeviceMask, Ordinal, PeerAccess, StreamId};
use ds4_engine::selection::{Selection, SelectionFlags};

use crate::api::there;
use crate::cxx;
use crate::failure::Failure;
use crate::instance::{Instance, address, pointer};
use crate::last_error::{sentence, status};
use crate::machine::{Machine, read_variable};
use crate::state;
use crate::types::{DS4_OK, PoolStats};

pub(crate) const PLACEMENT: &str = "DS4_TORCH_PLACEMENT";

/// Where the memory of PyTorch's devices may lie.
#[derive(Debug)]
pub(crate) struct Plan {
    homes: Vec<Home>,
    /// Blocks that lie elsewhere than PyTorch believes, with the device that works on them.
    lent: Mutex<BTreeMap<DeviceAddress, DeviceId>>,
    lends: bool,
}

/// One device of PyTorch's.
#[derive(Clone, Copy, Debug)]
struct Home {
    ordinal: Ordinal,
    device: DeviceId,
    /// The devices that hold its memory when it is full.
    others: DeviceMask,
}

impl Plan {
    /// The plan, read when it is first asked for; a failure is forgotten.
    #[inline]
    fn of(instance: &Instance) -> Result<&Self, Failure> {
        match instance.torch.get() {
            Some(plan) => Ok(plan),
            None => {
                let plan = Self::read(instance)?;
                Ok(instance.torch.get_or_init(|| plan))
            }
        }
    }

    /// Reads the placement; a device that no entry names keeps to itself.
    #[cold]
    fn read(instance: &Instance) -> Result<Self, Failure> {
        let infos = instance.allocator.backend().devices().iter().enumerate();
        let mut homes: Vec<Home> = infos
            .filter_map(|(index, info)| {
                let device = DeviceId::new(index)?;
                // Without a pool it is excluded.
                instance.allocator.stats(device)?;
                Some(Home {
                    ordinal: info.ordinal,
                    device,
                    others: DeviceMask::EMPTY,
                })
            })
            .collect();
        for entry in read_variable(PLACEMENT)?
            .iter()
            .flat_map(|text| text.split(';'))
        {
            let (number, list) = entry.split_once(':').ok_or_else(|| malformed(entry))?;
            let own = find(&homes, entry, number)?;
            let mut mask = DeviceMask::EMPTY;
            for piece in list.split(',') {
                mask = mask.or(DeviceMask::only(find(&homes, entry, piece)?));
            }
            let others = mask.without(DeviceMask::only(own));
            reachable(instance, own, others)?;
            for home in homes.iter_mut().filter(|home| home.device == own) {
                home.others = others;
            }
        }
        Ok(Self {
            lends: homes.iter().any(|home| !home.others.is_empty()),
            homes,
            lent: Mutex::default(),
        })
    }

    #[inline]
    fn home(&self, number: c_int) -> Result<Home, Failure> {
        let ours = |home: &&Home| i64::from(home.ordinal.0) == i64::from(number);
        self.homes.iter().find(ours).copied().ok_or_else(|| {
            Failure::Argument(format!(
                "device {number} was not opened; DS4_GPU_DEVICES, DS4_GPU_EXCLUDE or \
                 ds4_gpu_mgpu_init left it out"
            ))
        })
    }

    /// The device that works on a block which lies elsewhere.
    fn borrower(&self, place: DeviceAddress) -> Option<DeviceId> {
        if !self.lends {
            return None;
        }
        self.lent().get(&place).copied()
    }

    fn lent(&self) -> MutexGuard<'_, BTreeMap<DeviceAddress, DeviceId>> {
        self.lent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a block back that lies elsewhere than `own`, which works on it.
    #[cold]
    fn take_back(
        &self,
        instance: &Instance,
        place: DeviceAddress,
        own: DeviceId,
    ) -> Result<(), Failure> {
        instance.allocator.synchronize(own)?;
        // Under the lock, so that the loan which ends is not a later one of the same place.
        let mut lent = self.lent();
        instance.allocator.free_address(place)?;
        lent.remove(&place);
        Ok(())
    }
}

fn malformed(entry: &str) -> Failure {
    Failure::Argument(format!(
        "{PLACEMENT}: '{}' is no placement; write for example 0:0,1;1:1 (device 0's memory on 0 \
         and, when that is full, on 1)",
        entry.escape_debug()
    ))
}

fn find(homes: &[Home], entry: &str, number: &str) -> Result<DeviceId, Failure> {
    let number: u32 = number.trim().parse().map_err(|_| malformed(entry))?;
    let found = homes.iter().find(|home| home.ordinal.0 == number);
    found
        .map(|home| home.device)
        .ok_or_else(|| Failure::Argument(format!("{PLACEMENT}: device {number} was not opened")))
}

/// Kernels of `own` run on memory of `others`, so that nothing but a direct path will do.
fn reachable(instance: &Instance, own: DeviceId, others: DeviceMask) -> Result<(), Failure> {
    for other in others.iter() {
        let access = instance.allocator.backend().peer_access(own, other)?;
        if access != PeerAccess::Direct {
            return Err(Failure::Argument(format!(
                "{PLACEMENT}: {own} does not reach {other} directly; leave it out"
            )));
        }
    }
    Ok(())
}

/// Opens the allocator as the environment says.
fn open() -> Result<Instance, Failure> {
    let read = |name| read_variable(name);
    let (devices, vram) = (read("DS4_GPU_DEVICES")?, read("DS4_GPU_VRAM")?);
    let (reserve, exclude) = (read("DS4_GPU_RESERVE")?, read("DS4_GPU_EXCLUDE")?);
    let machine = Machine::find(None, None)?;
    let flags = SelectionFlags {
        gpu_devices: devices.as_deref(),
        gpu_vram: vram.as_deref(),
        gpu_reserve: reserve.as_deref(),
        gpu_exclude: exclude.as_deref(),
        ..SelectionFlags::default()
    };
    let selection = Selection::parse(&flags, Some(machine.count())).map_err(|error| {
        Failure::Argument(format!("{error} (the DS4_GPU_ variables are such flags)"))
    })?;
    let config = AllocatorConfig::of(&selection);
    let instance = machine.open(&selection.ordinals(), config)?;
    if read("DS4_TORCH_STATS")?.is_some_and(|value| value != "0") {
        print_at_exit();
    }
    Ok(instance)
}

/// Runs `work` on the allocator, which is opened first if need be.
#[inline]
fn with<T>(work: impl Fn(&Instance, &Plan) -> Result<T, Failure>) -> Result<T, Failure> {
    let attempt = || {
        state::with(|instance| {
            let plan = Plan::of(instance)?;
            work(instance, plan)
        })
    };
    match attempt() {
        Err(Failure::NotInitialized) => match state::open(open) {
            // Another thread may have been first.
            Ok(()) | Err(Failure::AlreadyInitialized) => attempt(),
            Err(failure) => Err(failure),
        },
        done => done,
    }
}

#[inline]
fn allocate(size: isize, device: c_int, stream: usize) -> Result<*mut c_void, Failure> {
    if size == 0 {
        return Ok(std::ptr::null_mut());
    }
    let bytes = u64::try_from(size)
        .map_err(|_| Failure::Argument(format!("a request for {size} bytes")))?;
    with(|instance, plan| {
        let home = plan.home(device)?;
        let request = Request {
            mask: DeviceMask::only(home.device),
            stream: instance.stream(home.device, stream)?,
            ..Request::new(bytes)
        };
        match instance.allocator.allocate(&request) {
            Ok(allocation) => Ok(pointer(allocation.address)),
            Err(error) => borrow(instance, plan, home, bytes, error.into()),
        }
    })
}

/// Takes memory of another device, if `own` is that the home has none. The streams of two devices have no common order, so that the
/// host waits: here for what the other device still does, at the free for what the own one does.
#[cold]
fn borrow(
    instance: &Instance,
    plan: &Plan,
    home: Home,
    bytes: u64,
    own: Failure,
) -> Result<*mut c_void, Failure> {
    if home.others.is_empty() || !own.is_memory() {
        return Err(own);
    }
    let request = Request {
        mask: home.others,
        stream: StreamId::DEFAULT,
        ..Request::new(bytes)
    };
    let refused = |error: AllocError| Failure::Lending {
        own: Box::new(own),
        lender: Box::new(error.into()),
    };
    let allocation = instance.allocator.allocate(&request).map_err(refused)?;
    if let Err(error) = instance.allocator.synchronize(allocation.device) {
        instance.allocator.free(allocation.handle)?;
        return Err(error.into());
    }
    plan.lent().insert(allocation.address, home.device);
    Ok(pointer(allocation.address))
}

/// Memory of a device for PyTorch, in the order of one of its streams; NULL for 0 bytes.
///
/// PyTorch does not look whether it gets NULL. A refusal is therefore raised as a C++ exception
/// (std::runtime_error), which Python sees as a RuntimeError that begins with "CUDA out of memory".
/// Where the process has no C++ runtime, the sentence is written to standard error, once, and the
/// result is NULL.
///
/// # Safety
/// stream is NULL or a stream of the device that exists as long as the process.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ds4_torch_alloc(
    size: isize,
    device: c_int,
    stream: *mut c_void,
) -> *mut c_void {
    let work = || allocate(size, device, stream.addr());
    match catch_unwind(AssertUnwindSafe(work)).unwrap_or(Err(Failure::Panic)) {
        Ok(memory) => memory,
        Err(failure) => {
            raise(&failure);
            std::ptr::null_mut()
        }
    }
}

/// Raises the failure as an exception, or says it, once.
#[cold]
fn raise(failure: &Failure) {
    static SAID: AtomicBool = AtomicBool::new(false);
    let text = if failure.is_memory() {
        format!("CUDA out of memory. ds4 {failure}")
    } else {
        format!("ds4: {failure}")
    };
    cxx::throw(sentence(&text));
    if !SAID.swap(true, Ordering::Relaxed) {
        say(&format!("ds4: {failure}"));
    }
}

/// Gives a block of PyTorch's back, in the order of the stream for which it was taken.
///
/// # Safety
/// No work but that of its stream and of streams given to ds4_torch_record_stream uses the block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ds4_torch_free(
    ptr: *mut c_void,
    size: isize,
    device: c_int,
    stream: *mut c_void,
) {
    // The books know all this; what a caller says is not trusted.
    let _ = (size, device, stream);
    if ptr.is_null() {
        return;
    }
    let freed = || {
        state::with(|instance| {
            if let Some(plan) = instance.torch.get()
                && let Some(own) = plan.borrower(address(ptr))
            {
                return plan.take_back(instance, address(ptr), own);
            }
            Ok(instance.allocator.free_address(address(ptr))?)
        })
    };
    // PyTorch frees in destructors, which must not throw.
    match catch_unwind(AssertUnwindSafe(freed)).unwrap_or(Err(Failure::Panic)) {
        Ok(()) => {}
        Err(failure) => say(&format!("ds4: a block was not freed: {failure}")),
    }
}

/// For set_record_stream_fn: the block is used on a second stream too, and after its free waits
/// for what that stream holds then.
///
/// # Safety
/// stream is a stream of the block's device that exists as long as the process.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ds4_torch_record_stream(ptr: *mut c_void, stream: *mut c_void) {
    if ptr.is_null() {
        return;
    }
    let noted = status(|| {
        state::with(|instance| {
            if let Some(plan) = instance.torch.get()
                && plan.borrower(address(ptr)).is_some()
            {
                // Its free waits for the whole device.
                return Ok(());
            }
            let (handle, _) = instance.block_around(address(ptr))?;
            let stream = instance.stream(handle.device(), stream.addr())?;
            Ok(instance.allocator.record_use(handle, stream)?)
        })
    });
    if noted != DS4_OK {
        say("ds4: a second stream was not noted; its work may meet memory that was freed");
    }
}

/// For set_reset_fn, which torch.cuda.empty_cache calls: gives memory that no block touches back
/// to the driver.
#[unsafe(no_mangle)]
pub extern "C" fn ds4_torch_empty_cache() {
    let _ = status(|| {
        state::with(|instance| {
            instance.allocator.trim()?;
            Ok(())
        })
    });
}

/// The figures of a device's pool by PyTorch's number of the device.
///
/// # Safety
/// stats is NULL or points to a structure that may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ds4_torch_stats(device: c_int, stats: *mut PoolStats) -> c_int {
    status(|| {
        with(|instance, plan| {
            let home = plan.home(device)?;
            there(stats, "stats")?;
            let figures = instance.allocator.stats(home.device).unwrap_or_default();
            // SAFETY: it is not null, and the caller vouches for it.
            unsafe { stats.write(figures.into()) };
            Ok(())
        })
    })
}

fn print_at_exit() {
    unsafe extern "C" {
        fn atexit(call: extern "C" fn()) -> c_int;
    }
    extern "C" fn print() {
        let _ = catch_unwind(|| {
            state::with(|instance| {
                say(&summary(instance));
                Ok(())
            })
        });
    }
    // SAFETY: the function lives as long as the library, whose exit runs it at the latest.
    let _ = unsafe { atexit(print) };
}

/// One line for each device that was used, and one for a real driver.
fn summary(instance: &Instance) -> String {
    let mut lines = String::new();
    for (index, info) in instance.allocator.backend().devices().iter().enumerate() {
        let stats = DeviceId::new(index).and_then(|device| instance.allocator.stats(device));
        let Some(stats) = stats.filter(|stats| stats.allocations + stats.refusals > 0) else {
            continue;
        };
        let separator = if lines.is_empty() { "" } else { "\n" };
        let _ = write!(
            lines,
            "{separator}ds4: device {}: peak live {}, peak reserved {}, {} allocations, {} frees, {} \
             refusals",
            info.ordinal,
            format_bytes(stats.peak_used_bytes),
            format_bytes(stats.peak_reserved_bytes),
            stats.allocations,
            stats.frees,
            stats.refusals
        );
    }
    if let Some(calls) = instance.driver_calls() {
        let separator = if lines.is_empty() { "" } else { "\n" };
        let _ = write!(lines, "{separator}ds4: {calls} calls of the driver");
    }
    lines
}

/// Writes to standard error; a closed one is not worth a panic.
fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}
