//! What crosses the interface: plain structures and numbers.

use std::ffi::{c_char, c_int};

/// It worked.
pub const DS4_OK: c_int = 0;
/// ds4_gpu_mgpu_init was not called, or ds4_gpu_mgpu_shutdown was.
pub const DS4_NOT_INITIALIZED: c_int = 1;
/// ds4_gpu_mgpu_init was called before; shut down first.
pub const DS4_ALREADY_INITIALIZED: c_int = 2;
/// An argument makes no sense; the sentence says which and what to write instead.
pub const DS4_INVALID_ARGUMENT: c_int = 3;
/// No such driver, or no such device.
pub const DS4_NO_DEVICE: c_int = 4;
/// Every candidate refused; the sentence gives each one's reason. Free memory or relax the hint.
pub const DS4_REFUSED: c_int = 5;
/// The block was freed before.
pub const DS4_DOUBLE_FREE: c_int = 6;
/// The pointer is not memory of this allocator.
pub const DS4_FOREIGN_POINTER: c_int = 7;
/// The pointer lies inside a block, not at its start.
pub const DS4_INTERIOR_POINTER: c_int = 8;
/// The driver failed; the sentence has its words.
pub const DS4_DRIVER_ERROR: c_int = 9;
/// A bug of ds4.
pub const DS4_INTERNAL_ERROR: c_int = 10;

/// ds4_gpu_mgpu_copy: source and destination are on one device.
pub const DS4_COPY_SAME_DEVICE: c_int = 1;
/// ds4_gpu_mgpu_copy: straight from device to device.
pub const DS4_COPY_PEER: c_int = 2;
/// ds4_gpu_mgpu_copy: through host memory, because the devices do not reach each other.
pub const DS4_COPY_HOST_BOUNCE: c_int = 3;

/// The most devices: a mask has this many bits.
pub const DS4_MAX_GPUS: usize = 32;

/// On which devices a block may live.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Placement {
    /// Bit i stands for device i. No bit at all means every device.
    pub mask: u32,
}

/// How the allocator is set up. Set everything to zero first, then struct_size to
/// sizeof(ds4_gpu_mgpu_config_t): what is zero has its default.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Config {
    /// sizeof(ds4_gpu_mgpu_config_t), so that programs work with later versions of this library.
    pub struct_size: usize,
    /// "cuda", "hip" or "sim"; NULL for what DS4_BACKEND says. Without either, cuda is tried and
    /// then hip. Simulated devices are never chosen unless asked for.
    pub backend: *const c_char,
    /// The simulated machine: a shipped name such as "8x24g-mixed" or the path of a TOML file;
    /// NULL for what DS4_TOPOLOGY says, and without that for "8x24g-mixed".
    pub topology: *const c_char,
    /// Devices that are never used, not even opened for allocation: bit i stands for device i.
    pub exclude_mask: u32,
    /// Not 0: a hint of which no device exists is refused. 0: it takes the least loaded device.
    pub strict_hints: u32,
    /// For each device the most that its live blocks may take; 0 for all that is free at the
    /// start.
    pub budget_bytes: [u64; DS4_MAX_GPUS],
    /// For each device what is left alone for others.
    pub reserve_bytes: [u64; DS4_MAX_GPUS],
}

impl Default for Config {
    fn default() -> Self {
        Self {
            struct_size: size_of::<Self>(),
            backend: std::ptr::null(),
            topology: std::ptr::null(),
            exclude_mask: 0,
            strict_hints: 0,
            budget_bytes: [0; DS4_MAX_GPUS],
            reserve_bytes: [0; DS4_MAX_GPUS],
        }
    }
}

/// The figures of one device's pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PoolStats {
    /// The most that live blocks may take.
    pub budget_bytes: u64,
    /// Live blocks, rounded up to 256 bytes each.
    pub used_bytes: u64,
    /// The most that used_bytes ever was.
    pub peak_used_bytes: u64,
    /// What the owners of live blocks asked for.
    pub requested_bytes: u64,
    /// The most that requested_bytes ever was.
    pub peak_requested_bytes: u64,
    /// Taken from the driver.
    pub reserved_bytes: u64,
    /// The most that reserved_bytes ever was.
    pub peak_reserved_bytes: u64,
    /// The largest request that would be granted without freeing anything.
    pub largest_free_bytes: u64,
    /// Live blocks.
    pub live_blocks: u64,
    /// Requests granted so far.
    pub allocs: u64,
    /// Blocks given back so far.
    pub frees: u64,
    /// Requests that this device could not take so far, whether or not another one could.
    pub refusals: u64,
    /// 0; room for figures of later versions.
    pub spare: [u64; 4],
}

impl From<ds4_engine::alloc::PoolStats> for PoolStats {
    fn from(stats: ds4_engine::alloc::PoolStats) -> Self {
        Self {
            budget_bytes: stats.budget_bytes,
            used_bytes: stats.used_bytes,
            peak_used_bytes: stats.peak_used_bytes,
            requested_bytes: stats.requested_bytes,
            peak_requested_bytes: stats.peak_requested_bytes,
            reserved_bytes: stats.reserved_bytes,
            peak_reserved_bytes: stats.peak_reserved_bytes,
            largest_free_bytes: stats.largest_free_bytes,
            live_blocks: stats.live_blocks,
            allocs: stats.allocations,
            frees: stats.frees,
            refusals: stats.refusals,
            spare: [0; 4],
        }
    }
}
