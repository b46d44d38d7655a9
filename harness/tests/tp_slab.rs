//! A rank's slab in simulated memory: placed where it may lie, zeroed, and refused honestly.

#![expect(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::sync::Arc;

use ds4_engine::alloc::{Allocator, AllocatorConfig, Request};
use ds4_engine::device::DeviceMask;
use ds4_engine::slab_memory::{SlabMemoryError, allocate_slab};
use ds4_engine::tp::slab::{SlabGeometry, SlabLayout};
use ds4_sim::{SimBackend, SimConfig};

fn allocator(capacity_bytes: u64) -> Allocator {
    let backend = SimBackend::new(SimConfig::uniform(2, capacity_bytes)).unwrap();
    Allocator::new(Arc::new(backend), AllocatorConfig::default()).unwrap()
}

#[test]
fn a_slab_lies_where_it_may_and_is_zeroed() {
    let layout = SlabLayout::aligned(SlabGeometry::new(43, 4096)).unwrap();
    let allocator = allocator(1 << 30);
    // Other blocks before it change neither its inner offsets nor its device.
    for bytes in [1 << 20, 3 << 20] {
        allocator.allocate(&Request::new(bytes)).unwrap();
    }
    let slab = allocate_slab(&allocator, &layout, DeviceMask(0b10)).unwrap();
    assert_eq!(slab.device.index(), 1);
    assert_eq!(slab.bytes, layout.slab_bytes());
    assert_eq!(slab.address.0 % 256, 0);
    let mut bytes = vec![0xff; usize::try_from(slab.bytes).unwrap()];
    let backend = allocator.backend();
    backend.read(slab.device, slab.address, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 0));
    allocator.free(slab.handle).unwrap();
}

#[test]
fn a_slab_that_does_not_fit_is_refused_and_leaves_nothing() {
    let layout = SlabLayout::aligned(SlabGeometry::new(126, 16_384)).unwrap();
    let allocator = allocator(64 << 20);
    let refused = allocate_slab(&allocator, &layout, DeviceMask(0b10)).unwrap_err();
    assert!(matches!(refused, SlabMemoryError::Refused(_)), "{refused}");
    allocator.allocate(&Request::new(48 << 20)).unwrap();
}
