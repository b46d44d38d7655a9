//! The backend trait on simulated machines.

mod faults;
mod instruments;
mod launch;
mod memory;
mod runs;
mod streams;

use ds4_engine::backend::{Backend, PageId};
use ds4_engine::bytes::MIB;
use ds4_engine::device::{DeviceAddress, DeviceId, DeviceMask, StreamId};

use crate::{Finding, Instruments, SimBackend, SimConfig, Topology};

const DEFAULT: StreamId = StreamId::DEFAULT;
const PAGE: u64 = 2 * MIB;

fn gpu(index: usize) -> DeviceId {
    DeviceId::new(index).unwrap()
}

fn machine(count: usize, capacity_bytes: u64) -> SimBackend {
    SimBackend::new(SimConfig::uniform(count, capacity_bytes)).unwrap()
}

fn shipped(topology: &str) -> SimBackend {
    SimBackend::new(Topology::load(topology).unwrap().config).unwrap()
}

fn read(sim: &SimBackend, device: DeviceId, address: DeviceAddress, count: usize) -> Vec<u8> {
    let mut data = vec![0; count];
    sim.read(device, address, &mut data).unwrap();
    data
}

fn after(address: DeviceAddress, bytes: u64) -> DeviceAddress {
    DeviceAddress(address.0 + bytes)
}

/// Reserves two pages and maps them for `peers`.
fn mapped(sim: &SimBackend, peers: DeviceMask) -> (DeviceAddress, [PageId; 2]) {
    let base = sim.reserve(gpu(0), 2 * PAGE).unwrap();
    let pages = [
        sim.create_page(gpu(0)).unwrap(),
        sim.create_page(gpu(0)).unwrap(),
    ];
    sim.map(gpu(0), base, pages[0], peers).unwrap();
    sim.map(gpu(0), after(base, PAGE), pages[1], peers).unwrap();
    (base, pages)
}

fn races(sim: &SimBackend) -> usize {
    let findings = sim.ledger().take_findings();
    findings
        .iter()
        .filter(|finding| matches!(finding, Finding::StreamRace(_)))
        .count()
}
