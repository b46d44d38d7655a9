//! Memory of devices without pages: what the books say is what the device loses.

mod common;

use std::sync::Arc;

use common::*;
use ds4_engine::alloc::{AllocatorConfig, InitError};
use ds4_engine::backend::Backend;
use ds4_sim::{Instruments, SimBackend, SimConfig, SimDevice};

const GRANULARITIES: [u64; 6] = [256, 64 * KIB, 2 * MIB, 4 * MIB, 16 * MIB, 64 * MIB];

fn bare(capacity_bytes: u64, granularity_bytes: u64) -> SimConfig {
    let device = SimDevice {
        page_bytes: None,
        granularity_bytes,
        ..SimDevice::new(capacity_bytes)
    };
    SimConfig::new("bare", vec![device])
}

#[test]
fn the_bytes_booked_for_slabs_are_what_the_device_loses() {
    for granularity in GRANULARITIES {
        for budget_bytes in [128 * MIB, 200 * MIB + 512, 250 * MIB - 256] {
            let sim = Arc::new(SimBackend::new(bare(256 * MIB, granularity)).unwrap());
            let config = AllocatorConfig {
                budgets: vec![budget(budget_bytes)],
                ..AllocatorConfig::default()
            };
            let allocator = with_config(&sim, config);
            let lost = || 256 * MIB - sim.memory_info(gpu(0)).unwrap().free_bytes;
            let booked = || allocator.stats(gpu(0)).unwrap().reserved_bytes;
            // So little is left for the first slab that it comes in halves.
            sim.take_memory(gpu(0), 150 * MIB);
            allocator.allocate(&on(0, MIB)).unwrap();
            assert_eq!(booked() + 150 * MIB, lost(), "granularity {granularity}");
            sim.give_memory(gpu(0), u64::MAX);
            let blocks = fill(&allocator, 0, 3 * MIB);
            assert_eq!(booked(), lost(), "granularity {granularity}");
            assert!(lost() <= budget_bytes);
            for block in blocks {
                allocator.free(block.handle).unwrap();
            }
            allocator.trim().unwrap();
            assert_eq!(booked(), lost());
            assert_clean(&sim, allocator);
        }
    }
}

#[test]
fn what_a_slab_gains_by_a_large_granularity_is_used() {
    for granularity in GRANULARITIES {
        let sim = Arc::new(SimBackend::new(bare(256 * MIB, granularity)).unwrap());
        let allocator = allocator(&sim);
        let largest = allocator.stats(gpu(0)).unwrap().largest_free_bytes;
        assert_eq!(largest, 254 * MIB);
        assert!(allocator.allocate(&on(0, largest)).is_ok());
        assert!(allocator.allocate(&on(0, 256)).is_err());
        assert_clean(&sim, allocator);
    }
}

#[test]
fn a_granularity_that_cannot_be_counted_in_is_refused() {
    let sim = Arc::new(SimBackend::new(bare(64 * GIB, 8 * GIB)).unwrap());
    let refused = ds4_engine::alloc::Allocator::new(sim, AllocatorConfig::default());
    assert_eq!(
        refused.unwrap_err(),
        InitError::BadGranule {
            device: gpu(0),
            bytes: 8 * GIB
        }
    );
}
