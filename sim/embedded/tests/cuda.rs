//! The simulated `libcuda`, called as a C program calls it.

#![expect(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod common;

use std::ffi::{CStr, c_char, c_void};
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

api! { Cuda:
    cuInit(flags: u32);
    cuDriverGetVersion(version: &mut i32);
    cuDeviceGetCount(count: &mut i32);
    cuDeviceGetName(name: *mut c_char, room: i32, device: i32);
    cuDeviceGetAttribute(value: &mut i32, attribute: u32, device: i32);
    cuDeviceGetPCIBusId(id: *mut c_char, room: i32, device: i32);
    cuDeviceGetByPCIBusId(device: &mut i32, id: *const c_char);
    cuDeviceCanAccessPeer(can: &mut i32, device: i32, peer: i32);
    cuDevicePrimaryCtxRetain(context: &mut u64, device: i32);
    cuDevicePrimaryCtxRelease_v2(device: i32);
    cuCtxCreate_v2(context: &mut u64, flags: u32, device: i32);
    cuCtxDestroy_v2(context: u64);
    cuCtxSetCurrent(context: u64);
    cuCtxGetCurrent(context: &mut u64);
    cuCtxPushCurrent_v2(context: u64);
    cuCtxPopCurrent_v2(context: &mut u64);
    cuCtxEnablePeerAccess(context: u64, flags: u32);
    cuCtxDisablePeerAccess(context: u64);
    cuMemGetInfo_v2(free: &mut usize, total: &mut usize);
    cuMemAlloc_v2(address: &mut u64, bytes: usize);
    cuMemFree_v2(address: u64);
    cuMemHostAlloc(address: &mut u64, bytes: usize, flags: u32);
    cuMemFreeHost(address: u64);
    cuMemcpy(to: u64, from: u64, bytes: usize);
    cuMemcpyHtoD_v2(to: u64, from: *const u8, bytes: usize);
    cuMemcpyDtoH_v2(to: *mut u8, from: u64, bytes: usize);
    cuMemcpyHtoDAsync_v2(to: u64, from: *const u8, bytes: usize, stream: u64);
    cuMemcpyPeerAsync(to: u64, target: u64, from: u64, source: u64, bytes: usize, stream: u64);
    cuMemsetD8Async(to: u64, value: u8, count: usize, stream: u64);
    cuMemsetD32_v2(to: u64, value: u32, count: usize);
    cuMemGetAllocationGranularity(bytes: &mut usize, properties: &Properties, option: u32);
    cuMemAddressReserve(address: &mut u64, bytes: usize, align: usize, hint: u64, flags: u64);
    cuMemAddressFree(address: u64, bytes: usize);
    cuMemCreate(handle: &mut u64, bytes: usize, properties: &Properties, flags: u64);
    cuMemRelease(handle: u64);
    cuMemMap(address: u64, bytes: usize, offset: usize, handle: u64, flags: u64);
    cuMemUnmap(address: u64, bytes: usize);
    cuMemSetAccess(address: u64, bytes: usize, access: &Access, count: usize);
    cuPointerGetAttribute(value: *mut c_void, attribute: u32, address: u64);
    cuStreamCreate(stream: &mut u64, flags: u32);
    cuStreamDestroy_v2(stream: u64);
    cuStreamQuery(stream: u64);
    cuStreamSynchronize(stream: u64);
    cuStreamWaitEvent(stream: u64, event: u64, flags: u32);
    cuEventCreate(event: &mut u64, flags: u32);
    cuEventRecord(event: u64, stream: u64);
    cuEventQuery(event: u64);
    cuEventSynchronize(event: u64);
    cuEventElapsedTime(ms: &mut f32, from: u64, to: u64);
    cuEventDestroy_v2(event: u64);
    cuModuleLoadData(module: &mut u64, image: *const c_char);
    cuModuleUnload(module: u64);
    cuModuleGetFunction(function: &mut u64, module: u64, name: *const c_char);
    cuLaunchKernel(function: u64, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32,
        shared: u32, stream: u64, arguments: *const *const u64, extra: *const *const c_void);
    cuGetErrorName(code: u32, name: &mut *const c_char);
    cuGetProcAddress_v2(name: *const c_char, function: &mut *const c_void, version: i32,
        flags: u64, status: &mut u32);
}

/// A driver over these GPUs, with the first one's primary context current.
fn cuda(gpus: &str) -> Cuda {
    let cuda = configured(&format!("DS4_FAKE_GPUS={gpus}"));
    cuda.enter(0);
    cuda
}

fn configured(text: &str) -> Cuda {
    let cuda = Cuda::load(Interface::Cuda);
    cuda.driver.configure(text).unwrap();
    assert_eq!(cuda.cuInit(0), 0);
    cuda
}

impl Cuda {
    /// Makes a device's primary context current; returns it.
    fn enter(&self, device: i32) -> u64 {
        let mut context = 0;
        assert_eq!(self.cuDevicePrimaryCtxRetain(&mut context, device), 0);
        assert_eq!(self.cuCtxSetCurrent(context), 0);
        context
    }

    fn allocate(&self, bytes: usize) -> u64 {
        let mut address = 0;
        assert_eq!(self.cuMemAlloc_v2(&mut address, bytes), 0);
        address
    }

    fn free_bytes(&self) -> usize {
        let (mut free, mut total) = (0, 0);
        assert_eq!(self.cuMemGetInfo_v2(&mut free, &mut total), 0);
        free
    }

    fn read(&self, address: u64, count: usize) -> Vec<u8> {
        let mut data = vec![0; count];
        assert_eq!(self.cuMemcpyDtoH_v2(data.as_mut_ptr(), address, count), 0);
        data
    }

    fn stream(&self, flags: u32) -> u64 {
        let mut stream = 0;
        assert_eq!(self.cuStreamCreate(&mut stream, flags), 0);
        stream
    }

    fn event(&self, flags: u32) -> u64 {
        let mut event = 0;
        assert_eq!(self.cuEventCreate(&mut event, flags), 0);
        event
    }

    fn findings(&self) -> Vec<String> {
        self.driver.findings(false).unwrap()
    }
}

fn on_device(device: i32) -> Properties {
    Properties {
        kind: 1,
        handle_types: 0,
        location: [1, device],
        windows: 0,
        flags: 0,
    }
}

fn readers(device: i32) -> Access {
    Access {
        location: [1, device],
        flags: 3,
    }
}

#[test]
fn without_a_machine_nothing_is_simulated() {
    let cuda = Cuda::load(Interface::Cuda);
    let (mut count, mut version) = (0, 0);
    assert_eq!(cuda.cuDeviceGetCount(&mut count), 3);
    assert_eq!(cuda.driver.configure("DS4_FAKE_GPUS="), Err(100));
    assert_eq!(cuda.driver.configure("DS4_FAKE_GPUS=lots"), Err(999));
    assert_eq!(cuda.cuDriverGetVersion(&mut version), 0);
    assert_eq!(version, 13_000);
    assert_eq!(cuda.cuDeviceGetCount(&mut count), 3);
}

#[test]
fn devices_say_that_they_are_simulated_and_where_they_sit() {
    let cuda = configured("DS4_FAKE_TOPOLOGY=8x24g-mixed\nDS4_FAKE_VERSION=12040");
    let (mut count, mut version, mut found, mut value) = (0, 0, 0, 0);
    assert_eq!(cuda.cuDeviceGetCount(&mut count), 0);
    assert_eq!(cuda.cuDriverGetVersion(&mut version), 0);
    assert_eq!((count, version), (8, 12_040));
    let mut text = [0; 32];
    assert_eq!(cuda.cuDeviceGetName(text.as_mut_ptr(), 32, 7), 0);
    // SAFETY: the driver ended the text with a NUL.
    let name = unsafe { CStr::from_ptr(text.as_ptr()) };
    assert!(name.to_str().unwrap().starts_with("Simulated "), "{name:?}");
    assert_eq!(cuda.cuDeviceGetName(text.as_mut_ptr(), 32, 8), 101);
    assert_eq!(cuda.cuDeviceGetPCIBusId(text.as_mut_ptr(), 32, 7), 0);
    assert_eq!(cuda.cuDeviceGetByPCIBusId(&mut found, text.as_ptr()), 0);
    assert_eq!(found, 7);
    for (attribute, expected) in [(75, 9), (10, 32), (102, 1), (33, 8), (9999, 0)] {
        assert_eq!(cuda.cuDeviceGetAttribute(&mut value, attribute, 7), 0);
        assert_eq!(value, expected, "attribute {attribute}");
    }
}

#[test]
fn a_full_device_refuses_and_takes_again_after_a_free() {
    let cuda = cuda("1G");
    let blocks: Vec<u64> = (0..4).map(|_| cuda.allocate(256 * MIB)).collect();
    let before = cuda.driver.state_hash().unwrap();
    let mut address = 7;
    assert_eq!(cuda.cuMemAlloc_v2(&mut address, 1), 2);
    assert_eq!((address, cuda.free_bytes()), (7, 0));
    assert_eq!(cuda.driver.state_hash().unwrap(), before);
    assert_eq!(cuda.cuMemFree_v2(blocks[2]), 0);
    assert_eq!(cuda.cuMemAlloc_v2(&mut address, 256 * MIB), 0);
}

#[test]
fn what_is_no_allocation_is_not_freed_and_the_ledger_knows() {
    let cuda = cuda("1G");
    let address = cuda.allocate(4096);
    assert_eq!(cuda.cuMemFree_v2(0), 0);
    assert_eq!(cuda.cuMemFree_v2(address + 256), 1);
    assert_eq!(cuda.cuMemFree_v2(address), 0);
    assert_eq!(cuda.cuMemFree_v2(address), 1);
    assert_eq!(cuda.cuMemFree_v2(0x7fff_0000), 1);
    assert_eq!(cuda.findings().len(), 2);
    cuda.allocate(4096);
    assert_eq!(cuda.driver.findings(true).unwrap().len(), 1);
}

#[test]
fn copies_keep_bytes_and_tell_the_host_from_devices() {
    let cuda = cuda("1G,1G");
    let data: Vec<u8> = (0..=255).cycle().take(3 * MIB).collect();
    let address = cuda.allocate(data.len());
    assert_eq!(cuda.cuMemcpyHtoD_v2(address, data.as_ptr(), data.len()), 0);
    assert_eq!(cuda.read(address, data.len()), data);
    let mut pinned = 0;
    assert_eq!(cuda.cuMemHostAlloc(&mut pinned, data.len(), 0), 0);
    assert_eq!(cuda.cuMemcpy(pinned, address, data.len()), 0);
    assert_eq!(cuda.cuMemcpy(address + 1, pinned, data.len() - 1), 0);
    assert_eq!(cuda.read(address, 4), [0, 0, 1, 2]);
    assert_eq!(cuda.cuMemsetD32_v2(address, 0x0403_0201, 2), 0);
    assert_eq!(cuda.read(address, 8), [1, 2, 3, 4, 1, 2, 3, 4]);
    assert_eq!(cuda.cuMemFreeHost(pinned), 0);
    assert_eq!(cuda.cuMemFreeHost(pinned), 1);

    let overrun = data.len() + 1;
    assert_eq!(cuda.cuMemcpy(address, address, overrun), 1);
    // A device's address where the host's is due is refused, not followed.
    assert_eq!(cuda.cuMemcpyHtoD_v2(address, address as *const u8, 1), 1);
    assert_eq!(cuda.cuMemcpyHtoD_v2(address, ptr::null(), 1), 1);
    let mut kind = 0_u32;
    let place = (&raw mut kind).cast();
    assert_eq!(cuda.cuPointerGetAttribute(place, 2, address + 9), 0);
    assert_eq!(kind, 2);
    assert_eq!(
        cuda.cuPointerGetAttribute(place, 2, data.as_ptr() as u64),
        1
    );
}

#[test]
fn mapped_pages_are_reached_once_access_is_set_and_live_until_unmapped_and_released() {
    let cuda = cuda("64M");
    let (mut granularity, mut base, mut handle) = (0, 0, 0);
    let (gpu, access) = (on_device(0), readers(0));
    assert_eq!(
        cuda.cuMemGetAllocationGranularity(&mut granularity, &gpu, 0),
        0
    );
    assert_eq!(granularity, PAGE);
    assert_eq!(cuda.cuMemAddressReserve(&mut base, 256 * MIB, 0, 0, 0), 0);
    assert_eq!(cuda.cuMemCreate(&mut handle, PAGE + 1, &gpu, 0), 1);
    assert_eq!(cuda.cuMemCreate(&mut handle, 128 * MIB, &gpu, 0), 2);
    assert_eq!(cuda.free_bytes(), 64 * MIB);
    assert_eq!(cuda.cuMemCreate(&mut handle, 2 * PAGE, &gpu, 0), 0);
    assert_eq!(cuda.cuMemMap(base + 1, 2 * PAGE, 0, handle, 0), 1);
    assert_eq!(cuda.cuMemMap(base, 2 * PAGE, 0, handle, 0), 0);

    let word = [1, 2, 3, 4];
    let across = base + PAGE as u64 - 2;
    assert_eq!(cuda.cuMemcpyHtoD_v2(across, word.as_ptr(), 4), 1);
    assert_eq!(cuda.cuMemSetAccess(base, PAGE, &access, 1), 1);
    assert_eq!(cuda.cuMemSetAccess(base, 2 * PAGE, &access, 1), 0);
    assert_eq!(cuda.cuMemcpyHtoD_v2(across, word.as_ptr(), 4), 0);
    assert_eq!(cuda.read(across, 4), word);

    // The memory of a released handle stays for as long as it is mapped.
    assert_eq!(cuda.cuMemRelease(handle), 0);
    assert_eq!(cuda.cuMemRelease(handle), 1);
    assert_eq!(cuda.free_bytes(), 60 * MIB);
    assert_eq!(cuda.cuMemAddressFree(base, 256 * MIB), 1);
    assert_eq!(cuda.cuMemUnmap(base, PAGE), 1);
    assert_eq!(cuda.cuMemUnmap(base, 2 * PAGE), 0);
    assert_eq!(cuda.free_bytes(), 64 * MIB);
    assert_eq!(cuda.cuMemAddressFree(base, 256 * MIB), 0);
}

#[test]
fn pages_that_an_unmapping_cannot_give_back_are_released_later() {
    let cuda = cuda("64M");
    let (mut base, mut handle, gpu) = (0, 0, on_device(0));
    assert_eq!(cuda.cuMemAddressReserve(&mut base, 2 * PAGE, 0, 0, 0), 0);
    assert_eq!(cuda.cuMemCreate(&mut handle, 2 * PAGE, &gpu, 0), 0);
    assert_eq!(cuda.cuMemMap(base, 2 * PAGE, 0, handle, 0), 0);
    assert_eq!(cuda.cuMemRelease(handle), 0);
    let second = r#"{"seed":1,"faults":[{"at":"destroy_page","skip":1,"count":1,"kind":"fail"}]}"#;
    cuda.driver.set_faults(second).unwrap();
    assert_eq!(cuda.cuMemUnmap(base, 2 * PAGE), 999);
    assert_eq!(cuda.free_bytes(), 62 * MIB);
    assert_eq!(cuda.cuMemRelease(handle), 0);
    assert_eq!(cuda.free_bytes(), 64 * MIB);
    assert_eq!(cuda.cuMemAddressFree(base, 2 * PAGE), 0);
    assert_eq!(cuda.driver.findings(true).unwrap(), [""; 0]);
}

#[test]
fn an_event_is_not_ready_before_its_work_is_done_and_measures_simulated_time() {
    let cuda = cuda("1G");
    let (stream, start, end) = (cuda.stream(1), cuda.event(0), cuda.event(0));
    let address = cuda.allocate(512 * MIB);
    let mut ms = 0.0;
    assert_eq!(cuda.cuEventQuery(start), 0);
    assert_eq!(cuda.cuEventElapsedTime(&mut ms, start, end), 400);
    assert_eq!(cuda.cuEventRecord(start, stream), 0);
    assert_eq!(cuda.cuMemsetD8Async(address, 1, 512 * MIB, stream), 0);
    assert_eq!(cuda.cuEventRecord(end, stream), 0);
    assert_eq!(cuda.cuEventQuery(end), 600);
    assert_eq!(cuda.cuStreamQuery(stream), 600);
    assert_eq!(cuda.cuEventElapsedTime(&mut ms, start, end), 600);
    assert_eq!(cuda.cuEventSynchronize(end), 0);
    assert_eq!(cuda.cuEventQuery(end), 0);
    assert_eq!(cuda.cuEventElapsedTime(&mut ms, start, end), 0);
    assert!(ms > 0.1, "{ms}");
    let untimed = cuda.event(2);
    assert_eq!(cuda.cuEventRecord(untimed, stream), 0);
    assert_eq!(cuda.cuEventElapsedTime(&mut ms, start, untimed), 400);
    for event in [start, end, untimed] {
        assert_eq!(cuda.cuEventDestroy_v2(event), 0);
    }
    assert_eq!(cuda.cuEventDestroy_v2(end), 400);
    assert_eq!(cuda.cuStreamSynchronize(stream), 0);
    assert_eq!(cuda.cuStreamQuery(stream), 0);
    assert_eq!(cuda.cuStreamDestroy_v2(stream), 0);
    assert_eq!(cuda.cuStreamDestroy_v2(stream), 400);
}

#[test]
fn streams_keep_the_order_that_the_driver_promises_and_no_other() {
    let cuda = cuda("1G");
    let address = cuda.allocate(4096);
    let fill = |stream| assert_eq!(cuda.cuMemsetD8Async(address, 1, 4096, stream), 0);
    // Blocking streams and the default one wait for each other.
    let (one, other) = (cuda.stream(0), cuda.stream(0));
    fill(one);
    fill(0);
    fill(other);
    assert_eq!(cuda.findings(), [""; 0]);
    // An event orders two streams that do not.
    let (loose, event) = (cuda.stream(1), cuda.event(2));
    assert_eq!(cuda.cuEventRecord(event, other), 0);
    assert_eq!(cuda.cuStreamWaitEvent(loose, event, 0), 0);
    fill(loose);
    assert_eq!(cuda.findings(), [""; 0]);
    fill(other);
    assert!(cuda.findings()[0].contains("not known to be done"));
}

#[test]
fn peers_copy_directly_or_through_the_host_and_access_is_enabled_once() {
    let cuda = configured("DS4_FAKE_TOPOLOGY=8x24g-mixed");
    let contexts: Vec<u64> = (0..8).map(|device| cuda.enter(device)).collect();
    let blocks: Vec<u64> = contexts
        .iter()
        .map(|context| {
            cuda.cuCtxSetCurrent(*context);
            cuda.allocate(4096)
        })
        .collect();
    cuda.cuCtxSetCurrent(contexts[0]);
    let stream = cuda.stream(1);
    assert_eq!(cuda.cuMemcpyHtoD_v2(blocks[0], [9; 4096].as_ptr(), 4096), 0);
    // 1 is a peer of 0; 7 is behind another switch.
    for peer in [1, 7] {
        let (to, from) = (blocks[peer], blocks[0]);
        let copied = cuda.cuMemcpyPeerAsync(to, contexts[peer], from, contexts[0], 4096, stream);
        assert_eq!(copied, 0);
        assert_eq!(cuda.cuStreamSynchronize(stream), 0);
        assert_eq!(cuda.read(to, 4096), [9; 4096]);
    }
    let mut can = 0;
    for (peer, expected) in [(1, 1), (7, 0), (0, 0)] {
        assert_eq!(cuda.cuDeviceCanAccessPeer(&mut can, 0, peer), 0);
        assert_eq!(can, expected);
    }
    assert_eq!(cuda.cuCtxEnablePeerAccess(contexts[1], 0), 0);
    assert_eq!(cuda.cuCtxEnablePeerAccess(contexts[1], 0), 704);
    assert_eq!(cuda.cuCtxEnablePeerAccess(contexts[7], 0), 217);
    assert_eq!(cuda.cuCtxDisablePeerAccess(contexts[1]), 0);
    assert_eq!(cuda.cuCtxDisablePeerAccess(contexts[1]), 705);
    // The path between the last two delivers wrong bytes.
    cuda.cuCtxSetCurrent(contexts[6]);
    assert_eq!(cuda.cuMemcpyHtoD_v2(blocks[6], [9; 4096].as_ptr(), 4096), 0);
    let (to, from) = (blocks[7], blocks[6]);
    assert_eq!(
        cuda.cuMemcpyPeerAsync(to, contexts[7], from, contexts[6], 4096, 0),
        0
    );
    assert_ne!(cuda.read(to, 4096), [9; 4096]);
    assert_eq!(cuda.findings(), [""; 0]);
}

#[test]
fn contexts_are_current_for_one_thread_and_take_their_memory_with_them() {
    let cuda = configured("DS4_FAKE_GPUS=1G,1G");
    let mut address = 0;
    assert_eq!(cuda.cuMemAlloc_v2(&mut address, 1), 201);
    let first = cuda.enter(0);
    let free = cuda.free_bytes();
    let mut own = 0;
    assert_eq!(cuda.cuCtxCreate_v2(&mut own, 0, 0), 0);
    cuda.allocate(4096);
    let stream = cuda.stream(0);
    assert!(cuda.free_bytes() < free);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let mut current = 1;
            assert_eq!(cuda.cuCtxGetCurrent(&mut current), 0);
            current
        });
        assert_eq!(other.join().unwrap(), 0);
    });
    assert_eq!(cuda.cuCtxDestroy_v2(own), 0);
    assert_eq!(cuda.cuStreamSynchronize(stream), 400);
    assert_eq!(cuda.free_bytes(), free);
    assert_eq!(cuda.cuCtxSetCurrent(own), 201);

    let mut popped = 0;
    assert_eq!(cuda.cuCtxPushCurrent_v2(first), 0);
    assert_eq!(cuda.cuCtxPopCurrent_v2(&mut popped), 0);
    assert_eq!(popped, first);
    cuda.allocate(4096);
    assert_eq!(cuda.cuDevicePrimaryCtxRelease_v2(0), 0);
    assert_eq!(cuda.cuMemAlloc_v2(&mut address, 1), 709);
    assert_eq!(cuda.cuDevicePrimaryCtxRelease_v2(0), 201);
    cuda.enter(0);
    assert_eq!(cuda.free_bytes(), free);
    assert_eq!(cuda.driver.findings(true).unwrap(), [""; 0]);
}

#[test]
fn faults_arrive_as_codes_and_some_of_them_stay() {
    let cuda = cuda("1G,1G");
    let plan = |kind: &str| {
        let at = r#""at":"allocate","device":0,"count":1"#;
        format!(r#"{{"seed":1,"faults":[{{{at},"kind":"{kind}"}}]}}"#)
    };
    let mut address = 0;
    assert_eq!(cuda.driver.set_faults("no plan"), Err(1));
    cuda.driver.set_faults(&plan("oom")).unwrap();
    let before = cuda.driver.state_hash().unwrap();
    assert_eq!(cuda.cuMemAlloc_v2(&mut address, 1), 2);
    assert_eq!(cuda.driver.state_hash().unwrap(), before);
    assert_eq!(cuda.cuMemAlloc_v2(&mut address, 1), 0);
    assert_eq!(cuda.driver.fault_report().unwrap(), "0 oom 1 2\n");
    cuda.driver.set_faults(&plan("sticky")).unwrap();
    assert_eq!(cuda.cuMemAlloc_v2(&mut address, 1), 700);
    cuda.driver.set_faults("").unwrap();
    assert_eq!(cuda.cuMemAlloc_v2(&mut address, 1), 700);
    assert_eq!(cuda.cuMemFree_v2(address), 700);
    cuda.enter(1);
    assert_eq!(cuda.cuMemAlloc_v2(&mut address, 1), 0);
}

#[test]
fn modules_hold_the_entries_of_their_text_and_only_known_kernels_run() {
    let cuda = cuda("1G");
    let (mut module, mut function) = (0, 0);
    let ptx = c".version 7.0\n.visible .entry ds4_fill(\n.param .u64 a) {}\n.entry saxpy() {}";
    assert_eq!(cuda.cuModuleLoadData(&mut module, c"\x7fELF".as_ptr()), 801);
    assert_eq!(cuda.cuModuleLoadData(&mut module, c"x".as_ptr()), 200);
    assert_eq!(cuda.cuModuleLoadData(&mut module, ptx.as_ptr()), 0);
    let mut get = |name: &CStr| cuda.cuModuleGetFunction(&mut function, module, name.as_ptr());
    assert_eq!(get(c"absent"), 500);
    assert_eq!(get(c"ds4_fill"), 0);
    assert_eq!(get(c"saxpy"), 0);
    let arguments = [ptr::null(); 8];
    let launch = |threads, arguments: *const *const u64| {
        cuda.cuLaunchKernel(
            function,
            1,
            1,
            1,
            threads,
            1,
            1,
            0,
            0,
            arguments,
            ptr::null(),
        )
    };
    assert_eq!(launch(32, arguments.as_ptr()), 801);
    assert_eq!(launch(2048, arguments.as_ptr()), 1);
    assert_eq!(cuda.cuModuleUnload(module), 0);
    assert_eq!(launch(32, arguments.as_ptr()), 400);
}

#[test]
fn a_kernel_that_has_a_reference_leaves_what_it_leaves() {
    let cuda = cuda("1G");
    let (mut module, mut function) = (0, 0);
    let ptx = c".entry ds4_fill() {}";
    assert_eq!(cuda.cuModuleLoadData(&mut module, ptx.as_ptr()), 0);
    let name = c"ds4_fill".as_ptr();
    assert_eq!(cuda.cuModuleGetFunction(&mut function, module, name), 0);
    let (stream, address) = (cuda.stream(1), cuda.allocate(4096));
    let launch = |words: &[u64; 3]| {
        let arguments: [*const u64; 3] = [
            &raw const words[0],
            &raw const words[1],
            &raw const words[2],
        ];
        let (arguments, extra) = (arguments.as_ptr(), ptr::null());
        cuda.cuLaunchKernel(function, 4, 1, 1, 256, 1, 1, 0, stream, arguments, extra)
    };
    assert_eq!(launch(&[address, 4096, 7]), 0);
    assert_eq!(launch(&[address, 4096, 256]), 1);
    // The same in one buffer, named by pairs of a tag and a value; what ends early names none.
    let [end, buffer, size] = [0, 1, 2].map(ptr::without_provenance::<c_void>);
    let (words, bytes) = ([address, 4096, 9_u64], 24_usize);
    let (words, bytes) = ((&raw const words).cast(), (&raw const bytes).cast());
    let launch = |extra: &[*const c_void]| {
        let extra = extra.as_ptr();
        cuda.cuLaunchKernel(function, 4, 1, 1, 256, 1, 1, 0, stream, ptr::null(), extra)
    };
    assert_eq!(launch(&[end]), 1);
    assert_eq!(launch(&[buffer, words, end]), 1);
    assert_eq!(launch(&[size, bytes, buffer, words, end]), 0);
    assert_eq!(cuda.cuStreamSynchronize(stream), 0);
    assert_eq!(cuda.read(address, 4096), [9; 4096]);
}

#[test]
fn functions_are_found_by_name_and_version_and_codes_have_names() {
    let cuda = cuda("1G");
    let (mut old, mut new, mut status) = (ptr::null(), ptr::null(), 7);
    let mut find = |name: &CStr, out: &mut _, version| {
        let code = cuda.cuGetProcAddress_v2(name.as_ptr(), out, version, 0, &mut status);
        (code, status)
    };
    assert_eq!(find(c"cuCtxGetDevice", &mut old, 12_000), (0, 0));
    assert_eq!(find(c"cuCtxGetDevice", &mut new, 13_000), (0, 0));
    assert!(old != new && !old.is_null());
    assert_eq!(find(c"cuNoSuchFunction", &mut new, 13_000), (500, 1));
    assert!(new.is_null());
    let mut name = ptr::null();
    assert_eq!(cuda.cuGetErrorName(2, &mut name), 0);
    // SAFETY: the driver's texts are constants.
    assert_eq!(unsafe { CStr::from_ptr(name) }, c"CUDA_ERROR_OUT_OF_MEMORY");
    assert_eq!(cuda.cuGetErrorName(12_345, &mut name), 1);
}

#[test]
fn asynchronous_copies_race_with_no_work_of_their_own_stream() {
    let cuda = cuda("1G");
    let (stream, address, data) = (cuda.stream(1), cuda.allocate(4096), [5; 4096]);
    for _ in 0..3 {
        assert_eq!(cuda.cuMemsetD8Async(address, 1, 4096, stream), 0);
        let copied = cuda.cuMemcpyHtoDAsync_v2(address, data.as_ptr(), 4096, stream);
        assert_eq!(copied, 0);
    }
    assert_eq!(cuda.cuStreamSynchronize(stream), 0);
    assert_eq!(cuda.read(address, 4096), data);
    assert_eq!(cuda.findings(), [""; 0]);
}
