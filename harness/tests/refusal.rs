//! Rules 4, 5, 10 and 11: refusals are complete, right, and change nothing; arithmetic; budgets.

mod common;

use common::*;
use ds4_engine::alloc::{
    AllocError, AllocatorConfig, BlockState, DeviceBudget, RefusalReason, Request,
};
use ds4_engine::backend::Backend;
use ds4_sim::{Call, Fault, FaultKind, FaultPlan, Instruments};
use proptest::prelude::*;

#[test]
fn rule_4_a_refusal_names_every_candidate_with_reason_sizes_and_budget() {
    for (sim, allocator) in both(&[32, 16, 64]) {
        for device in 0..3 {
            fill(&allocator, device, MIB);
        }
        let before = allocator.state_hash();
        let refused = refusal(allocator.allocate(&masked(0b011, 4 * MIB)));
        assert_eq!(allocator.state_hash(), before);
        let text = refused.to_string();
        assert!(
            text.contains("4 MiB")
                && text.contains("gpu0")
                && text.contains("gpu1")
                && !text.contains("gpu2"),
            "{text}"
        );
        assert_clean(&sim, allocator);
    }
}

#[test]
fn rule_4_a_refusal_under_any_fault_leaves_blocks_and_driver_memory_as_they_were() {
    for kind in [FaultKind::Oom, FaultKind::Fail] {
        for skip in 0..12 {
            let sim = machine(&[32], true);
            let allocator = allocator(&sim);
            allocator.allocate(&on(0, MIB)).unwrap();
            let before = (allocator.state_hash(), sim.memory_info(gpu(0)).unwrap());
            sim.set_faults(FaultPlan::new(vec![
                Fault::every(kind)
                    .at(&[Call::CreatePage, Call::Map])
                    .times(skip, None),
            ]))
            .unwrap();
            let refused = allocator.allocate(&on(0, 20 * MIB)).is_err();
            sim.clear_faults();
            assert!(refused);
            assert_eq!(
                (allocator.state_hash(), sim.memory_info(gpu(0)).unwrap()),
                before,
                "{kind:?} after {skip}"
            );
            assert!(allocator.allocate(&on(0, 20 * MIB)).is_ok());
            assert_clean(&sim, allocator);
        }
    }
}

proptest! {
    #![proptest_config(config("refusal", 48))]

    #[test]
    fn rule_5_a_device_that_refuses_has_no_free_block_that_large(
        sizes in prop::collection::vec((1_u64..4 * MIB, any::<bool>()), 1..80), ask in 1_u64..16 * MIB,
    ) {
        for (sim, allocator) in both(&[24]) {
            let mut live = Vec::new();
            for (bytes, free) in &sizes {
                live.extend(allocator.allocate(&on(0, *bytes)).ok());
                if *free && !live.is_empty() {
                    let victim: usize = usize::try_from(*bytes).unwrap() % live.len();
                    allocator.free(live.swap_remove(victim).handle).unwrap();
                }
            }
            if allocator.allocate(&on(0, ask)).is_err() {
                let blocks = allocator.blocks(gpu(0));
                let stats = allocator.stats(gpu(0)).unwrap();
                let pages = sim.devices()[0].page_bytes.is_some();
                let largest = blocks.iter().filter(|b| b.state == BlockState::Free).map(|b| b.bytes).max().unwrap_or(0);
                if pages {
                    // Only free pages count, since addresses are plentiful.
                    prop_assert!(stats.largest_free_bytes < ask, "{} free, {ask} refused", stats.largest_free_bytes);
                } else {
                    prop_assert!(largest < ask, "{largest} free in one piece, {ask} refused");
                }
            }
            assert_clean(&sim, allocator);
        }
    }

    #[test]
    fn rule_10_no_size_or_alignment_brings_the_arithmetic_down(bytes: u64, align_bytes: u64) {
        for (sim, allocator) in both(&[16]) {
            let before = allocator.state_hash();
            match allocator.allocate(&Request { align_bytes, ..Request::new(bytes) }) {
                Ok(got) => prop_assert!(got.reserved_bytes >= bytes && bytes <= 16 * MIB),
                Err(error) => {
                    prop_assert_eq!(allocator.state_hash(), before);
                    match error {
                        AllocError::ZeroSize => prop_assert_eq!(bytes, 0),
                        AllocError::TooLarge { .. } => prop_assert!(bytes > i64::MAX as u64),
                        AllocError::BadAlignment { .. } => prop_assert!(!align_bytes.is_power_of_two() || align_bytes > PAGE),
                        AllocError::Refused(_) => prop_assert!(bytes > 8 * MIB),
                    }
                }
            }
            assert_clean(&sim, allocator);
        }
    }

    #[test]
    fn rule_11_used_bytes_never_exceed_the_smaller_of_configured_and_free_less_the_reserve(
        configured in prop::option::of(1_u64..64 * MIB), reserve_bytes in 0_u64..8 * MIB, others in 0_u64..16 * MIB, pages: bool,
    ) {
        let mut devices = devices(&[32], pages);
        devices[0].other_process_bytes = others;
        let sim = std::sync::Arc::new(ds4_sim::SimBackend::new(ds4_sim::SimConfig::new("x", devices)).unwrap());
        let budgets = vec![DeviceBudget { configured_bytes: configured, reserve_bytes }];
        let config = AllocatorConfig { budgets, ..AllocatorConfig::default() };
        let free = 32 * MIB - others;
        let most = configured.unwrap_or(u64::MAX).min(free).saturating_sub(reserve_bytes);
        if let Ok(allocator) = ds4_engine::alloc::Allocator::new(sim.clone(), config) {
            fill(&allocator, 0, 48 * KIB);
            let stats = allocator.stats(gpu(0)).unwrap();
            prop_assert!(stats.budget_bytes <= most && most - stats.budget_bytes < PAGE);
            prop_assert!(stats.used_bytes <= stats.budget_bytes && stats.reserved_bytes <= most);
            assert_clean(&sim, allocator);
        } else {
            prop_assert!(most < PAGE);
        }
    }
}

#[test]
fn rule_11_memory_that_others_take_is_driver_oom_after_all_else_was_tried() {
    for (sim, allocator) in both(&[32]) {
        let kept = allocator.allocate(&on(0, 3 * MIB)).unwrap();
        let gone = allocator.allocate(&on(0, 9 * MIB)).unwrap();
        sim.take_memory(gpu(0), u64::MAX);
        allocator.free(gone.handle).unwrap();
        // What the pool holds already still serves.
        allocator.allocate(&on(0, 9 * MIB)).unwrap();
        let pages = sim.devices()[0].page_bytes.is_some();
        if pages {
            let why = reasons(allocator.allocate(&on(0, 6 * MIB)));
            assert!(
                matches!(
                    why[0].1,
                    RefusalReason::DriverOutOfMemory {
                        free_bytes: Some(0),
                        ..
                    }
                ),
                "{why:?}"
            );
        }
        sim.give_memory(gpu(0), u64::MAX);
        allocator.allocate(&on(0, 6 * MIB)).unwrap();
        allocator.free(kept.handle).unwrap();
        assert_clean(&sim, allocator);
    }
}

#[test]
fn rule_5_small_requests_find_room_in_pages_in_use_when_the_driver_has_none_left() {
    let sim = machine(&[256], true);
    let allocator = allocator(&sim);
    // The first small block sits far into the hole, so that the usual place needs a fresh page.
    allocator.allocate(&on(0, 5 * MIB / 2)).unwrap();
    sim.take_memory(gpu(0), u64::MAX);
    let left = 4 * MIB - 5 * MIB / 2;
    assert_eq!(
        fill(&allocator, 0, 64 * KIB).len() as u64,
        left / (64 * KIB)
    );
    sim.restore_memory();
    assert_clean(&sim, allocator);
}

#[test]
fn rule_11_a_wait_comes_before_a_refusal_and_a_drain_before_a_wait() {
    let sim = machine(&[32], true);
    let allocator = allocator(&sim);
    let second = allocator.create_stream(gpu(0)).unwrap();
    // Both streams are in use, so that frees stay on their streams.
    allocator
        .allocate(&Request {
            stream: second,
            ..on(0, 256)
        })
        .unwrap();
    let block = allocator.allocate(&on(0, 24 * MIB)).unwrap();
    sim.busy(gpu(0), DEFAULT, 1_000_000_000).unwrap();
    allocator.free(block.handle).unwrap();
    let before = sim.calls();
    allocator
        .allocate(&Request {
            stream: second,
            ..on(0, 24 * MIB)
        })
        .unwrap();
    let made = |call| sim.calls().of(call) - before.of(call);
    assert!(made(Call::EventDone) >= 1 && made(Call::WaitEvent) == 1);
    assert!(sim.now_ns() >= 1_000_000_000);
    assert_clean(&sim, allocator);
}

#[test]
fn a_device_that_is_lost_while_pages_are_moved_is_refused_as_lost() {
    let sim = machine(&[32], true);
    let allocator = allocator(&sim);
    let blocks: Vec<_> = (0..4)
        .map(|_| allocator.allocate(&on(0, PAGE)).unwrap())
        .collect();
    for block in blocks.iter().step_by(2) {
        allocator.free(block.handle).unwrap();
    }
    sim.set_faults(FaultPlan::new(vec![
        Fault::every(FaultKind::Oom).at(&[Call::CreatePage]),
        Fault::every(FaultKind::Lost).at(&[Call::Map]),
    ]))
    .unwrap();
    let reasons = reasons(allocator.allocate(&on(0, 2 * PAGE)));
    let lost = matches!(reasons.as_slice(), [(_, RefusalReason::DeviceLost { .. })]);
    assert!(lost, "{reasons:?}");
}
