//! The simulated `libamdhip64`, called as a C program calls it.

#![expect(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod common;

use std::ffi::{c_char, c_void};
use std::ptr;

use ds4_embedded::Interface;

const MIB: usize = 1 << 20;
const PAGE: usize = 2 * MIB;

#[repr(C)]
struct Properties {
    kind: u32,
    handle_types: u32,
    location: [i32; 2],
    windows: u64,
    flags: u64,
}

#[repr(C)]
struct Access {
    location: [i32; 2],
    flags: u32,
}

api! { Hip:
    hipGetDeviceCount(count: &mut i32);
    hipSetDevice(device: i32);
    hipGetDevice(device: &mut i32);
    hipDeviceGetName(name: *mut c_char, room: i32, device: i32);
    hipDeviceGetAttribute(value: &mut i32, attribute: u32, device: i32);
    hipDeviceEnablePeerAccess(peer: i32, flags: u32);
    hipGetLastError();
    hipPeekAtLastError();
    hipMemGetInfo(free: &mut usize, total: &mut usize);
    hipMalloc(address: &mut u64, bytes: usize);
    hipFree(address: u64);
    hipMemcpy(to: u64, from: u64, bytes: usize, kind: u32);
    hipMemcpyDtoH(to: *mut u8, from: u64, bytes: usize);
    hipMemcpyPeer(to: u64, target: i32, from: u64, source: i32, bytes: usize);
    hipMemsetAsync(to: u64, value: i32, bytes: usize, stream: u64);
    hipMemAddressReserve(address: &mut u64, bytes: usize, align: usize, hint: u64, flags: u64);
    hipMemCreate(handle: &mut u64, bytes: usize, properties: &Properties, flags: u64);
    hipMemMap(address: u64, bytes: usize, offset: usize, handle: u64, flags: u64);
    hipMemSetAccess(address: u64, bytes: usize, access: &Access, count: usize);
    hipMemUnmap(address: u64, bytes: usize);
    hipMemRelease(handle: u64);
    hipMemAddressFree(address: u64, bytes: usize);
    hipStreamCreateWithFlags(stream: &mut u64, flags: u32);
    hipStreamSynchronize(stream: u64);
    hipEventCreateWithFlags(event: &mut u64, flags: u32);
    hipEventRecord(event: u64, stream: u64);
    hipEventQuery(event: u64);
    hipEventSynchronize(event: u64);
    hipModuleLoadData(module: &mut u64, image: *const c_void);
}

/// A runtime over these GPUs.
fn hip(gpus: &str) -> Hip {
    let hip = Hip::load(Interface::Hip);
    hip.driver
        .configure(&format!("DS4_FAKE_GPUS={gpus}"))
        .unwrap();
    hip
}

impl Hip {
    fn allocate(&self, bytes: usize) -> u64 {
        let mut address = 0;
        assert_eq!(self.hipMalloc(&mut address, bytes), 0);
        address
    }

    fn read(&self, address: u64) -> [u8; 8] {
        let mut data = [0; 8];
        assert_eq!(self.hipMemcpyDtoH(data.as_mut_ptr(), address, 8), 0);
        data
    }
}

#[test]
fn without_a_machine_there_is_no_device() {
    let hip = Hip::load(Interface::Hip);
    assert_eq!(hip.driver.configure("DS4_FAKE_GPUS="), Err(100));
}

#[test]
fn a_thread_has_a_current_device_whose_memory_runs_out_and_comes_back() {
    let hip = hip("1G,2G");
    let (mut count, mut device, mut address) = (0, 7, 0);
    assert_eq!(hip.hipGetDeviceCount(&mut count), 0);
    assert_eq!(hip.hipGetDevice(&mut device), 0);
    assert_eq!((count, device), (2, 0));
    assert_eq!(hip.hipSetDevice(2), 101);
    assert_eq!(hip.hipSetDevice(1), 0);
    let (mut free, mut total) = (0, 0);
    assert_eq!(hip.hipMemGetInfo(&mut free, &mut total), 0);
    assert_eq!(free, 2048 * MIB);
    let first = hip.allocate(1500 * MIB);
    assert_eq!(hip.hipMalloc(&mut address, 1500 * MIB), 2);
    assert_eq!(hip.hipPeekAtLastError(), 2);
    assert_eq!(hip.hipGetLastError(), 2);
    assert_eq!(hip.hipGetLastError(), 0);
    assert_eq!(hip.hipFree(first), 0);
    assert_eq!(hip.hipFree(first), 1);
    assert_eq!(hip.hipMalloc(&mut address, 1500 * MIB), 0);
    assert_eq!(hip.hipMalloc(&mut address, 0), 0);
    assert_eq!(address, 0);
}

#[test]
fn devices_say_that_they_are_simulated() {
    let hip = hip("1G,2G");
    let mut name = [0; 64];
    assert_eq!(hip.hipDeviceGetName(name.as_mut_ptr(), 64, 1), 0);
    // SAFETY: the runtime ended the text with a NUL.
    let name = unsafe { std::ffi::CStr::from_ptr(name.as_ptr()) };
    assert_eq!(name, c"Simulated GPU");
    let mut value = 0;
    for (attribute, expected) in [(23, 9), (61, 4), (67, 2), (87, 64), (89, 1)] {
        assert_eq!(hip.hipDeviceGetAttribute(&mut value, attribute, 1), 0);
        assert_eq!(value, expected, "attribute {attribute}");
    }
}

#[test]
fn copies_follow_their_kind_and_cross_devices() {
    let hip = hip("1G,1G");
    let near = hip.allocate(4096);
    assert_eq!(hip.hipSetDevice(1), 0);
    let far = hip.allocate(4096);
    let data = [1_u8, 2, 3, 4, 5, 6, 7, 8];
    let host = data.as_ptr() as u64;
    assert_eq!(hip.hipMemcpy(near, host, 8, 2), 1);
    assert_eq!(hip.hipMemcpy(near, host, 8, 1), 0);
    assert_eq!(hip.hipMemcpyPeer(far, 1, near, 0, 8), 0);
    assert_eq!(hip.read(far), data);
    assert_eq!(hip.hipMemcpy(far + 4, near, 4, 4), 0);
    assert_eq!(hip.read(far), [1, 2, 3, 4, 1, 2, 3, 4]);
    assert_eq!(hip.hipDeviceEnablePeerAccess(0, 0), 0);
    assert_eq!(hip.hipDeviceEnablePeerAccess(0, 0), 704);
    assert_eq!(hip.hipDeviceEnablePeerAccess(1, 0), 101);
}

#[test]
fn mapped_pages_events_and_streams_work_as_in_the_other_interface() {
    let hip = hip("64M");
    let gpu = Properties {
        kind: 1,
        handle_types: 0,
        location: [1, 0],
        windows: 0,
        flags: 0,
    };
    let access = Access {
        location: [1, 0],
        flags: 3,
    };
    let (mut base, mut handle, mut stream, mut event) = (0, 0, 0, 0);
    assert_eq!(hip.hipMemAddressReserve(&mut base, 8 * PAGE, 0, 0, 0), 0);
    assert_eq!(hip.hipMemCreate(&mut handle, PAGE, &gpu, 0), 0);
    assert_eq!(hip.hipMemMap(base, PAGE, 0, handle, 0), 0);
    assert_eq!(hip.hipMemSetAccess(base, PAGE, &access, 1), 0);
    assert_eq!(hip.hipStreamCreateWithFlags(&mut stream, 1), 0);
    assert_eq!(hip.hipEventCreateWithFlags(&mut event, 2), 0);
    assert_eq!(hip.hipMemsetAsync(base, 7, PAGE, stream), 0);
    assert_eq!(hip.hipEventRecord(event, stream), 0);
    assert_eq!(hip.hipEventQuery(event), 600);
    assert_eq!(hip.hipEventSynchronize(event), 0);
    assert_eq!(hip.hipStreamSynchronize(stream), 0);
    assert_eq!(hip.read(base), [7; 8]);
    assert_eq!(hip.hipMemUnmap(base, PAGE), 0);
    assert_eq!(hip.hipMemRelease(handle), 0);
    assert_eq!(hip.hipMemAddressFree(base, 8 * PAGE), 0);
    assert_eq!(hip.driver.findings(true).unwrap(), [""; 0]);
}

#[test]
fn an_image_that_is_no_code_object_is_refused() {
    let hip = hip("64M");
    let mut module = 0;
    assert_eq!(
        hip.hipModuleLoadData(&mut module, c"text".as_ptr().cast()),
        200
    );
    assert_eq!(hip.hipModuleLoadData(&mut module, ptr::null()), 200);
}
