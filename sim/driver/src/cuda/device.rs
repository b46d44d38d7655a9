//! Devices and what they say about themselves.

use super::number;
use crate::call::export;
use crate::context::{self, Current};
use crate::device::{self, Attributes, Uuid};
use crate::driver::Driver;
use crate::raw::{Out, Text, TextOut};
use crate::status::Status;

/// What attributes without a figure of the machine's say: those of an H200, by the numbers of
/// `CUdevice_attribute`. Others are 0.
const ATTRIBUTES: Attributes = Attributes {
    pci_bus: 33,
    pci_domain: 50,
    virtual_memory: 102,
    others: &[
        (1, 1024),
        (2, 1024),
        (3, 1024),
        (4, 64),
        (5, i32::MAX),
        (6, 65_535),
        (7, 65_535),
        (8, 49_152),
        (9, 65_536),
        (10, 32),
        (11, i32::MAX),
        (12, 65_536),
        (13, 1_980_000),
        (14, 512),
        (15, 1),
        (16, 132),
        (19, 1),
        (23, 32),
        (30, 512),
        (31, 1),
        (32, 1),
        (36, 3_201_000),
        (37, 6144),
        (38, 62_914_560),
        (39, 2048),
        (40, 3),
        (41, 1),
        (51, 32),
        (75, 9),
        (76, 0),
        (78, 1),
        (79, 1),
        (80, 1),
        (81, 233_472),
        (82, 65_536),
        (87, 2),
        (90, 1),
        (91, 1),
        (97, 232_448),
        (99, 1),
        (106, 32),
        (108, 134_217_728),
        (109, 41_943_040),
        (111, 1024),
        (115, 1),
        // No sharing between processes, no cooperative launches, no clusters, no multicast.
        (95, 0),
        (103, 0),
        (120, 0),
        (132, 0),
    ],
};

export! {
    fn cuDeviceGetCount(count: Out<i32>) {
        count.put(Driver::get()?.count())
    }

    fn cuDeviceGet(device: Out<i32>, ordinal: i32) {
        Driver::get()?.device(ordinal)?;
        device.put(ordinal)
    }

    fn cuDeviceGetName(name: TextOut, room: i32, device: i32) {
        device::name(&*Driver::get()?, device, name, room)
    }

    fn cuDeviceGetUuid(uuid: Out<Uuid>, device: i32) {
        let driver = Driver::get()?;
        uuid.put(device::uuid(driver.info(driver.device(device)?)?))
    }

    fn cuDeviceGetUuid_v2(uuid: Out<Uuid>, device: i32) {
        let driver = Driver::get()?;
        uuid.put(device::uuid(driver.info(driver.device(device)?)?))
    }

    fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: i32) {
        device::total_bytes(&*Driver::get()?, device, bytes)
    }

    fn cuDeviceGetAttribute(value: Out<i32>, attribute: u32, device: i32) {
        value.put(ATTRIBUTES.of(&*Driver::get()?, device, attribute)?)
    }

    fn cuDeviceComputeCapability(major: Out<i32>, minor: Out<i32>, device: i32) {
        Driver::get()?.device(device)?;
        major.put(9)?;
        minor.put(0)
    }

    fn cuDeviceGetPCIBusId(id: TextOut, room: i32, device: i32) {
        let driver = Driver::get()?;
        let info = driver.info(driver.device(device)?)?;
        let text = info.pci_bus_id.to_ascii_uppercase();
        id.put(&text, usize::try_from(room).unwrap_or(0))
    }

    fn cuDeviceGetByPCIBusId(device: Out<i32>, id: Text) {
        device.put(device::by_pci(&*Driver::get()?, id.get()?)?)
    }

    fn cuDeviceCanAccessPeer(can: Out<i32>, device: i32, peer: i32) {
        device::can_access(&*Driver::get()?, can, device, peer)
    }

    fn cuDeviceGetP2PAttribute(value: Out<i32>, attribute: u32, from: i32, to: i32) {
        const PERFORMANCE_RANK: u32 = 1;
        const ACCESS: u32 = 2;
        const ARRAYS: u32 = 4;
        let driver = Driver::get()?;
        let (from, to) = (driver.device(from)?, driver.device(to)?);
        if from == to {
            return Err(Status::INVALID_DEVICE);
        }
        let offered = context::offers_path(&driver, from, to)?;
        value.put(match attribute {
            ACCESS | 3 => i32::from(offered),
            PERFORMANCE_RANK | ARRAYS => 0,
            _ => return Err(Status::INVALID_VALUE),
        })
    }

    fn cuCtxGetDevice(device: Out<i32>) {
        device.put(number(Current::get()?.device))
    }
}
