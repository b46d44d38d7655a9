//! The slab of a tensor-parallel rank in a device's memory.

use std::sync::Arc;

use ds4_engine::alloc::{Allocation, Allocator, AllocatorConfig, Request};
use ds4_engine::device::{DeviceAddress, DeviceMask};
use ds4_engine::slab_memory::allocate_slab;
use ds4_engine::tp::slab::{ALIGN_BYTES, LayoutKind, SlabGeometry, SlabLayout};

use super::Suite::Slab;
use super::trial::{Check, Failure, Held, Needs, Trial, hold};

pub(super) const CHECKS: &[Check] = &[
    Check {
        suite: Slab,
        name: "regions-of-a-slab-hold-their-own-bytes",
        needs: Needs::NOTHING,
        body: own_bytes,
    },
    Check {
        suite: Slab,
        name: "a-slab-is-zeroed-whatever-lay-there-before",
        needs: Needs::NOTHING,
        body: zeroed,
    },
];

const SHAPES: [(u32, u32, u32); 4] = [(1, 1, 2), (3, 5, 2), (2, 64, 3), (5, 33, 8)];

fn allocator(trial: &Trial<'_>) -> Result<Allocator, Failure> {
    trial.go_on()?;
    let target = trial.target.instrumented().map_err(Failure::error)?;
    Allocator::new(Arc::clone(target.backend()), AllocatorConfig::default()).map_err(Failure::error)
}

fn slab(allocator: &Allocator, layout: &SlabLayout) -> Result<Allocation, Failure> {
    allocate_slab(allocator, layout, DeviceMask::ALL)
        .map_err(|error| Failure::Skip(error.to_string()))
}

fn layouts() -> impl Iterator<Item = Result<SlabLayout, Failure>> {
    SHAPES.into_iter().flat_map(|(n_layer, n_embd, ranks)| {
        let kinds = [LayoutKind::Ds4, LayoutKind::Aligned];
        kinds.into_iter().map(move |kind| {
            let geometry = SlabGeometry {
                n_layer,
                n_embd,
                ranks,
            };
            SlabLayout::new(kind, geometry).map_err(Failure::error)
        })
    })
}

fn own_bytes(trial: &mut Trial<'_>) -> Held {
    let allocator = allocator(trial)?;
    let backend = allocator.backend();
    for layout in layouts() {
        let layout = layout?;
        let slab = slab(&allocator, &layout)?;
        let at = |offset| DeviceAddress(slab.address.0 + offset);
        hold!(
            slab.address.0.is_multiple_of(ALIGN_BYTES) && slab.bytes == layout.slab_bytes(),
            "a slab of {} bytes lies at {}",
            slab.bytes,
            slab.address.0
        );
        for (value, (_, span)) in (1_u8..).zip(layout.regions()) {
            let bytes = vec![value; usize::try_from(span.bytes).unwrap_or(0)];
            backend
                .write(slab.device, at(span.offset), &bytes)
                .map_err(Failure::error)?;
            trial.tally.copies += 1;
        }
        for (value, (region, span)) in (1_u8..).zip(layout.regions()) {
            let mut bytes = vec![0; usize::try_from(span.bytes).unwrap_or(0)];
            backend
                .read(slab.device, at(span.offset), &mut bytes)
                .map_err(Failure::error)?;
            trial.tally.copies += 1;
            hold!(
                bytes.iter().all(|byte| *byte == value),
                "region {} of {:?} holds what was written to another",
                region.name(),
                layout.geometry()
            );
        }
        trial.tally.allocations += 1;
        trial.tally.hash.word(layout.hash());
        allocator.free(slab.handle).map_err(Failure::error)?;
        trial.tally.frees += 1;
    }
    Ok(())
}

fn zeroed(trial: &mut Trial<'_>) -> Held {
    let allocator = allocator(trial)?;
    let backend = allocator.backend();
    for layout in layouts() {
        let layout = layout?;
        let dirty = allocator
            .allocate(&Request::new(layout.slab_bytes()))
            .map_err(|error| Failure::Skip(error.to_string()))?;
        let mut bytes = vec![0xC3; usize::try_from(dirty.bytes).unwrap_or(0)];
        backend
            .write(dirty.device, dirty.address, &bytes)
            .map_err(Failure::error)?;
        allocator.free(dirty.handle).map_err(Failure::error)?;
        let slab = slab(&allocator, &layout)?;
        backend
            .read(slab.device, slab.address, &mut bytes)
            .map_err(Failure::error)?;
        trial.tally.copies += 2;
        trial.tally.allocations += 2;
        hold!(
            bytes.iter().all(|byte| *byte == 0),
            "a slab of {:?} is not zeroed",
            layout.geometry()
        );
        allocator.free(slab.handle).map_err(Failure::error)?;
        trial.tally.frees += 2;
    }
    Ok(())
}
