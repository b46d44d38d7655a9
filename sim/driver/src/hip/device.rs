//! Devices, versions and the texts of errors.

use std::ffi::c_char;

use super::{DEVICE, current};
use crate::call::{export, last_error};
use crate::context;
use crate::device::{self, Attributes, Uuid};
use crate::driver::Driver;
use crate::raw::{Out, Text, TextOut};
use crate::status::Status;
use crate::stream;

/// The version of HIP whose functions these are, 6.2, as HIP counts: patch, minor, major.
const VERSION: u32 = 60_241_134;

/// What attributes without a figure of the machine's say, by the numbers of `hipDeviceAttribute_t`:
/// those of an MI300X (gfx942). Others are 0.
const ATTRIBUTES: Attributes = Attributes {
    pci_bus: 67,
    pci_domain: 69,
    virtual_memory: 89,
    others: &[
        (2, 4),
        (3, 1),
        (5, 2_100_000),
        (8, 1),
        (19, 4 << 20),
        (23, 9),
        (26, 1024),
        (27, 1024),
        (28, 1024),
        (29, i32::MAX),
        (30, 65_536),
        (31, 65_536),
        (56, 1024),
        (57, 2048),
        (58, i32::MAX),
        (59, 8192),
        (60, 1_300_000),
        (61, 4),
        (63, 304),
        (71, 65_536),
        (74, 65_536),
        (76, 65_536),
        (78, 1),
        (85, 1),
        (87, 64),
        (88, 1),
    ],
};

fn own_version() -> u32 {
    let set = Driver::initialise().ok().and_then(|driver| driver.version);
    set.unwrap_or(VERSION)
}

fn text(code: u32, which: usize) -> *const c_char {
    let texts = Status(code).texts();
    let text = texts.and_then(|texts| texts.get(which).copied());
    text.unwrap_or(c"unrecognized error code").as_ptr()
}

/// HIP's name of a code.
#[unsafe(no_mangle)]
extern "C" fn hipGetErrorName(code: u32) -> *const c_char {
    text(code, 1)
}

/// A code as a sentence.
#[unsafe(no_mangle)]
extern "C" fn hipGetErrorString(code: u32) -> *const c_char {
    text(code, 2)
}

/// The thread's last error, which is forgotten.
#[unsafe(no_mangle)]
extern "C" fn hipGetLastError() -> u32 {
    last_error(true).0
}

/// The thread's last error.
#[unsafe(no_mangle)]
extern "C" fn hipPeekAtLastError() -> u32 {
    last_error(false).0
}

export! {
    fn hipDrvGetErrorName(code: u32, name: Out<*const c_char>) {
        name.put(text(code, 1))
    }

    fn hipDrvGetErrorString(code: u32, sentence: Out<*const c_char>) {
        sentence.put(text(code, 2))
    }

    fn hipInit(flags: u32) {
        if flags != 0 {
            return Err(Status::INVALID_VALUE);
        }
        Driver::initialise().map(|_| ())
    }

    fn hipDriverGetVersion(version: Out<u32>) {
        version.put(own_version())
    }

    fn hipRuntimeGetVersion(version: Out<u32>) {
        version.put(own_version())
    }

    fn hipGetDeviceCount(count: Out<i32>) {
        match Driver::initialise() {
            Ok(driver) => count.put(driver.count()),
            Err(status) => {
                count.put(0)?;
                Err(status)
            }
        }
    }

    fn hipSetDevice(device: i32) {
        Driver::initialise()?.device(device)?;
        DEVICE.set(device);
        Ok(())
    }

    fn hipGetDevice(device: Out<i32>) {
        Driver::initialise()?;
        device.put(DEVICE.get())
    }

    fn hipDeviceGet(device: Out<i32>, ordinal: i32) {
        Driver::initialise()?.device(ordinal)?;
        device.put(ordinal)
    }

    fn hipDeviceGetName(name: TextOut, room: i32, device: i32) {
        device::name(&*Driver::initialise()?, device, name, room)
    }

    fn hipDeviceTotalMem(bytes: Out<usize>, device: i32) {
        device::total_bytes(&*Driver::initialise()?, device, bytes)
    }

    fn hipDeviceComputeCapability(major: Out<i32>, minor: Out<i32>, device: i32) {
        Driver::initialise()?.device(device)?;
        major.put(9)?;
        minor.put(4)
    }

    fn hipDeviceGetAttribute(value: Out<i32>, attribute: u32, device: i32) {
        value.put(ATTRIBUTES.of(&*Driver::initialise()?, device, attribute)?)
    }

    fn hipDeviceGetPCIBusId(id: TextOut, room: i32, device: i32) {
        let driver = Driver::initialise()?;
        let info = driver.info(driver.device(device)?)?;
        id.put(&info.pci_bus_id, usize::try_from(room).unwrap_or(0))
    }

    fn hipDeviceGetByPCIBusId(device: Out<i32>, id: Text) {
        device.put(device::by_pci(&*Driver::initialise()?, id.get()?)?)
    }

    fn hipDeviceGetUuid(uuid: Out<Uuid>, device: i32) {
        let driver = Driver::initialise()?;
        uuid.put(device::uuid(driver.info(driver.device(device)?)?))
    }

    fn hipDeviceCanAccessPeer(can: Out<i32>, device: i32, peer: i32) {
        device::can_access(&*Driver::initialise()?, can, device, peer)
    }

    fn hipDeviceEnablePeerAccess(peer: i32, flags: u32) {
        let current = current()?;
        if flags != 0 {
            return Err(Status::INVALID_VALUE);
        }
        let peer = current.driver.device(peer)?;
        context::enable_peer(&current, peer)
    }

    fn hipDeviceDisablePeerAccess(peer: i32) {
        let current = current()?;
        let peer = current.driver.device(peer)?;
        context::disable_peer(&current, peer)
    }

    fn hipDeviceSynchronize() {
        stream::synchronize_all(&current()?)
    }

    fn hipSetDeviceFlags(flags: u32) {
        let current = current()?;
        if let Some(context) = current.driver.tables().contexts.get_mut(&current.context) {
            context.flags = flags;
        }
        Ok(())
    }

    fn hipGetDeviceFlags(flags: Out<u32>) {
        let current = current()?;
        let tables = current.driver.tables();
        let context = tables.contexts.get(&current.context);
        flags.put(context.map_or(0, |context| context.flags))
    }

    fn hipDeviceReset() {
        let current = current()?;
        context::reset_primary(&current.driver, current.device)
    }
}
