//! Rule 6: success after a refusal, by freeing and by relaxing the hint.

mod common;

use common::*;
use ds4_engine::alloc::{AllocError, RefusalCause};
use ds4_engine::device::DeviceMask;
use ds4_sim::{Fault, FaultKind, FaultPlan, Instruments};

#[test]
fn rule_6_the_same_request_succeeds_as_soon_as_enough_is_freed() {
    let sim = machine(&[32], true);
    let allocator = allocator(&sim);
    let blocks = fill(&allocator, 0, 2 * MIB);
    let ask = on(0, 6 * MIB);
    for (freed, block) in blocks.iter().step_by(3).enumerate() {
        assert_eq!(
            allocator.allocate(&ask).is_ok(),
            freed >= 3,
            "{freed} pages are free"
        );
        if freed >= 3 {
            break;
        }
        allocator.free(block.handle).unwrap();
    }
    assert_clean(&sim, allocator);
}

#[test]
fn rule_6_a_relaxed_mask_succeeds_at_once_if_any_device_in_it_fits() {
    for (sim, allocator) in both(&[16, 64, 24]) {
        fill(&allocator, 0, MIB);
        assert!(allocator.allocate(&masked(0b001, MIB)).is_err());
        assert_ne!(
            allocator.allocate(&masked(0b101, MIB)).unwrap().device,
            gpu(0)
        );
        assert_clean(&sim, allocator);
    }
}

#[test]
fn rule_6_a_ladder_reports_its_rung_and_tries_no_device_twice() {
    for (sim, allocator) in both(&[16, 16, 64]) {
        fill(&allocator, 0, MIB);
        fill(&allocator, 1, MIB);
        let ladder = [
            DeviceMask(0b01),
            DeviceMask(0b11),
            DeviceMask(0b10),
            DeviceMask(0b111),
        ];
        let before = allocator.stats(gpu(1)).unwrap().refusals;
        let won = allocator
            .allocate_relaxing(&on(0, 2 * MIB), &ladder)
            .unwrap();
        assert_eq!((won.rung, won.allocation.device), (4, gpu(2)));
        assert_eq!(allocator.stats(gpu(1)).unwrap().refusals, before + 1);
        assert_eq!(allocator.report().relaxed, 1);
        let all = allocator.allocate_relaxing(&on(0, 128 * MIB), &ladder);
        let Err(AllocError::Refused(refusal)) = all else {
            panic!("{all:?}")
        };
        assert!(matches!(refusal.cause, RefusalCause::Tried(tried) if tried.len() == 3));
        assert_clean(&sim, allocator);
    }
}

#[test]
fn after_faults_end_every_request_that_fits_succeeds() {
    for kind in [FaultKind::Oom, FaultKind::OomKeep, FaultKind::Fail] {
        for (sim, allocator) in both(&[32, 16]) {
            sim.set_faults(FaultPlan::new(vec![Fault::every(kind)]))
                .unwrap();
            assert!(allocator.allocate(&masked(0, 8 * MIB)).is_err());
            sim.clear_faults();
            sim.restore_memory();
            allocator.allocate(&on(0, 24 * MIB)).unwrap();
            allocator.allocate(&on(1, 12 * MIB)).unwrap();
            assert_clean(&sim, allocator);
        }
    }
}

#[test]
fn a_lost_device_grants_nothing_more_and_its_blocks_can_be_freed() {
    for (sim, allocator) in both(&[32, 16]) {
        let stream = allocator.create_stream(gpu(0)).unwrap();
        let (kept, gone) = (
            allocator.allocate(&on(0, MIB)).unwrap(),
            allocator.allocate(&on(0, MIB)).unwrap(),
        );
        allocator.record_use(kept.handle, stream).unwrap();
        allocator.free(gone.handle).unwrap();
        sim.set_faults(FaultPlan::new(vec![
            Fault::every(FaultKind::Lost).on(gpu(0)),
        ]))
        .unwrap();
        allocator.free(kept.handle).unwrap();
        sim.clear_faults();
        // A free block is mapped there, but nothing may land on it any more.
        for _ in 0..4 {
            assert_eq!(allocator.allocate(&masked(0, 256)).unwrap().device, gpu(1));
        }
        allocator.check().unwrap();
        assert!(allocator.close().is_err());
        sim.ledger().check_shutdown();
        assert_eq!(sim.ledger().findings(), []);
    }
}

#[test]
fn a_request_refused_on_every_rung_counts_once_and_a_granted_one_never() {
    let config = ds4_sim::SimConfig::uniform(2, 8 << 20);
    let backend = std::sync::Arc::new(ds4_sim::SimBackend::new(config).unwrap());
    let allocator = ds4_engine::alloc::Allocator::new(backend, Default::default()).unwrap();
    let on = |mask, bytes| ds4_engine::alloc::Request {
        mask: DeviceMask(mask),
        ..ds4_engine::alloc::Request::new(bytes)
    };
    allocator.allocate(&on(1, 8 << 20)).unwrap();
    let ladder = [DeviceMask(2)];
    assert_eq!(
        allocator
            .allocate_relaxing(&on(1, 4 << 20), &ladder)
            .unwrap()
            .rung,
        1
    );
    assert_eq!(allocator.refusals(), 0);
    assert!(
        allocator
            .allocate_relaxing(&on(1, 6 << 20), &ladder)
            .is_err()
    );
    assert_eq!(allocator.refusals(), 1);
}
