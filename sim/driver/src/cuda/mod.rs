//! The CUDA driver API, one file for each area. Names, parameters and codes are those of `cuda.h`.

mod context;
mod device;
mod info;
mod memory;
mod module;
mod proc_address;
mod stack;
mod stream;
mod stubs;
mod virtual_memory;

use std::ffi::c_void;

use ds4_engine::device::DeviceId;

/// The address of an exported function.
fn find(name: &str) -> Option<*const c_void> {
    const FILES: [fn(&str) -> Option<*const c_void>; 9] = [
        memory::find,
        context::find,
        device::find,
        info::find,
        stream::find,
        module::find,
        virtual_memory::find,
        proc_address::find,
        stubs::find,
    ];
    FILES.iter().find_map(|find_in_file| find_in_file(name))
}

/// The number of a device, as callers know it.
fn number(device: DeviceId) -> i32 {
    i32::try_from(device.index()).unwrap_or(-1)
}
