//! What tests share: machines, requests and refusals; the command as processes.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::allow_attributes,
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    reason = "each test file uses a part of it, and a helper fails by panicking"
)]

pub mod processes;

use std::path::PathBuf;
use std::sync::Arc;

use ds4_engine::alloc::{
    AllocError, Allocation, Allocator, AllocatorConfig, DeviceBudget, Refusal, RefusalCause,
    RefusalReason, Request,
};
use ds4_engine::device::{DeviceId, DeviceMask, StreamId};
use ds4_sim::{Instruments, SimBackend, SimConfig, SimDevice};
use proptest::test_runner::{Config, FileFailurePersistence};

pub const KIB: u64 = 1 << 10;
pub const MIB: u64 = 1 << 20;
pub const GIB: u64 = 1 << 30;
pub const PAGE: u64 = 2 * MIB;
pub const DEFAULT: StreamId = StreamId::DEFAULT;

pub fn gpu(index: usize) -> DeviceId {
    DeviceId::new(index).unwrap()
}

/// Devices of these capacities in MiB, with pages or without.
pub fn devices(capacities_mib: &[u64], pages: bool) -> Vec<SimDevice> {
    capacities_mib
        .iter()
        .map(|mib| SimDevice {
            page_bytes: pages.then_some(PAGE),
            granularity_bytes: 64 * KIB,
            ..SimDevice::new(mib * MIB)
        })
        .collect()
}

pub fn machine(capacities_mib: &[u64], pages: bool) -> Arc<SimBackend> {
    Arc::new(SimBackend::new(SimConfig::new("test", devices(capacities_mib, pages))).unwrap())
}

pub fn allocator(sim: &Arc<SimBackend>) -> Allocator {
    with_config(sim, AllocatorConfig::default())
}

pub fn with_config(sim: &Arc<SimBackend>, config: AllocatorConfig) -> Allocator {
    Allocator::new(
        sim.clone(),
        AllocatorConfig {
            free_by_address: true,
            ..config
        },
    )
    .unwrap()
}

/// An allocator on pages and one on slabs, each on devices of these capacities in MiB.
pub fn both(capacities_mib: &[u64]) -> [(Arc<SimBackend>, Allocator); 2] {
    [true, false].map(|pages| {
        let sim = machine(capacities_mib, pages);
        let allocator = allocator(&sim);
        (sim, allocator)
    })
}

pub fn budget(bytes: u64) -> DeviceBudget {
    DeviceBudget {
        configured_bytes: Some(bytes),
        reserve_bytes: 0,
    }
}

pub fn on(device: usize, bytes: u64) -> Request {
    Request {
        mask: DeviceMask::only(gpu(device)),
        ..Request::new(bytes)
    }
}

pub fn masked(mask: u32, bytes: u64) -> Request {
    Request {
        mask: DeviceMask(mask),
        ..Request::new(bytes)
    }
}

pub fn refusal(got: Result<Allocation, AllocError>) -> Refusal {
    match got {
        Err(AllocError::Refused(refusal)) => refusal,
        other => panic!("expected a refusal, got {other:?}"),
    }
}

/// The reasons of a refusal, in the order in which devices were tried.
pub fn reasons(got: Result<Allocation, AllocError>) -> Vec<(DeviceId, RefusalReason)> {
    match refusal(got).cause {
        RefusalCause::Tried(tried) => tried
            .into_iter()
            .map(|one| (one.device, one.reason))
            .collect(),
        other => panic!("no device was tried: {other:?}"),
    }
}

/// Fills a device with blocks of `bytes`.
pub fn fill(allocator: &Allocator, device: usize, bytes: u64) -> Vec<Allocation> {
    std::iter::from_fn(|| allocator.allocate(&on(device, bytes)).ok()).collect()
}

/// Books, ledger, and nothing left behind.
pub fn assert_clean(sim: &SimBackend, allocator: Allocator) {
    allocator.check().unwrap();
    allocator.close().unwrap();
    sim.ledger().check_shutdown();
    assert_eq!(sim.ledger().findings(), []);
}

/// Proptest's settings with failures kept beside the golden files, wherever the tests run.
pub fn config(file: &str, cases: u32) -> Config {
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    let path = manifest
        .join("../golden/regressions")
        .join(file)
        .with_extension("txt");
    let path: &'static str = Box::leak(path.to_string_lossy().into_owned().into_boxed_str());
    Config {
        cases,
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(path))),
        ..Config::default()
    }
}
