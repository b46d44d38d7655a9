//! Inputs that broke other allocators, each named after what holds here, with the report it is from.

mod common;

use common::*;
use ds4_engine::alloc::{AllocError, FreeError, RefusalReason, Request};
use ds4_engine::backend::{Backend, BackendError};
use ds4_engine::device::{DeviceAddress, StreamId};
use ds4_sim::{Call, Fault, FaultKind, FaultPlan, Instruments};

// https://github.com/pytorch/pytorch/issues/182446
#[test]
fn sizes_just_below_two_to_the_64_do_not_round_to_nothing() {
    for (sim, allocator) in both(&[32]) {
        for below in [1, 2, 255, 256, 510, 511] {
            let bytes = u64::MAX - below + 1;
            assert_eq!(
                allocator.allocate(&Request::new(bytes)),
                Err(AllocError::TooLarge { bytes })
            );
        }
        assert_clean(&sim, allocator);
    }
}

// https://github.com/pytorch/pytorch/issues/57571 and /182277
#[test]
fn sizes_with_the_sign_bit_are_reported_as_they_were_asked() {
    for (sim, allocator) in both(&[32]) {
        for bytes in [18_446_744_073_708_433_663, 1 << 63] {
            let error = allocator.allocate(&Request::new(bytes)).unwrap_err();
            assert!(error.to_string().contains(&bytes.to_string()), "{error}");
        }
        assert_clean(&sim, allocator);
    }
}

// https://github.com/pytorch/pytorch/issues/177827
#[test]
#[expect(
    clippy::cast_sign_loss,
    reason = "what a C caller's negative size becomes"
)]
fn a_negative_size_from_c_is_an_error() {
    let sim = machine(&[32], true);
    let allocator = allocator(&sim);
    assert!(matches!(
        allocator.allocate(&Request::new(-1024_i64 as u64)),
        Err(AllocError::TooLarge { .. })
    ));
    assert_clean(&sim, allocator);
}

// https://github.com/pytorch/pytorch/issues/19222
#[test]
fn frees_that_other_streams_hold_back_are_collected_before_a_refusal() {
    for (sim, allocator) in both(&[64]) {
        let second = allocator.create_stream(gpu(0)).unwrap();
        let block = allocator.allocate(&on(0, 40 * MIB)).unwrap();
        allocator.record_use(block.handle, second).unwrap();
        sim.touch(gpu(0), second, block.address, 40 * MIB, 1_000_000)
            .unwrap();
        allocator.free(block.handle).unwrap();
        allocator.allocate(&on(0, 40 * MIB)).unwrap();
        assert_clean(&sim, allocator);
    }
}

// https://github.com/modular/modular/issues/6801
#[test]
fn large_transients_between_small_long_lived_blocks_do_not_end_in_a_refusal() {
    let sim = machine(&[128], true);
    let allocator = allocator(&sim);
    let second = allocator.create_stream(gpu(0)).unwrap();
    for round in 0..60 {
        let stream = if round % 2 == 0 { DEFAULT } else { second };
        let large = allocator
            .allocate(&Request {
                stream,
                ..on(0, 80 * MIB)
            })
            .unwrap();
        allocator
            .allocate(&Request {
                stream,
                ..on(0, 96 * KIB)
            })
            .unwrap();
        sim.busy(gpu(0), stream, 50_000).unwrap();
        allocator.free(large.handle).unwrap();
    }
    assert_clean(&sim, allocator);
}

// https://github.com/pytorch/pytorch/issues/196258
#[test]
fn trimming_touches_each_devices_own_memory() {
    for (sim, allocator) in both(&[32, 32]) {
        let kept = allocator.allocate(&on(0, 8 * MIB)).unwrap();
        let gone = allocator.allocate(&on(1, 8 * MIB)).unwrap();
        sim.touch(gpu(0), DEFAULT, kept.address, 8 * MIB, 1_000_000)
            .unwrap();
        allocator.free(gone.handle).unwrap();
        allocator.trim().unwrap();
        assert_eq!(allocator.stats(gpu(1)).unwrap().reserved_bytes, 0);
        assert!(allocator.stats(gpu(0)).unwrap().reserved_bytes >= 8 * MIB);
        assert_clean(&sim, allocator);
    }
}

// https://github.com/pytorch/pytorch/issues/196257
#[test]
fn a_copy_into_a_block_that_is_freed_early_ends_before_its_memory_goes() {
    for (sim, allocator) in both(&[32, 32]) {
        let from = allocator.allocate(&on(0, 8 * MIB)).unwrap();
        let to = allocator.allocate(&on(1, 8 * MIB)).unwrap();
        sim.busy(gpu(0), DEFAULT, 1_000_000_000).unwrap();
        allocator
            .copy((from.handle, 0), (to.handle, 0), 8 * MIB)
            .unwrap();
        allocator.free(to.handle).unwrap();
        allocator.trim().unwrap();
        assert_clean(&sim, allocator);
    }
}

// https://github.com/pytorch/pytorch/issues/188008
#[test]
fn a_mapping_that_fails_at_any_page_is_undone_and_can_be_repeated() {
    for failing in 0..10 {
        for kind in [FaultKind::Oom, FaultKind::Fail] {
            let sim = machine(&[32], true);
            let allocator = allocator(&sim);
            let once = Fault::every(kind).at(&[Call::Map]).times(failing, Some(1));
            sim.set_faults(FaultPlan::new(vec![once])).unwrap();
            let _ = allocator.allocate(&on(0, 20 * MIB));
            sim.clear_faults();
            let free = allocator.stats(gpu(0)).unwrap().largest_free_bytes;
            allocator.allocate(&on(0, free)).unwrap();
            assert_clean(&sim, allocator);
        }
    }
}

// https://github.com/pytorch/pytorch/issues/95827
#[test]
fn a_small_block_in_the_place_of_a_large_one_does_not_double_the_memory() {
    let sim = machine(&[8192], true);
    let allocator = allocator(&sim);
    let large = allocator.allocate(&on(0, 4 * GIB)).unwrap();
    allocator.free(large.handle).unwrap();
    allocator.allocate(&on(0, 10_000)).unwrap();
    allocator.allocate(&on(0, 4 * GIB)).unwrap();
    // A small block sits at most 64 MiB into the hole; so much is taken anew.
    assert!(allocator.stats(gpu(0)).unwrap().reserved_bytes <= 4 * GIB + 64 * MIB);
    assert_clean(&sim, allocator);
}

// https://github.com/pytorch/pytorch/issues/35901, /31353 and /110194
#[test]
fn free_memory_pinned_by_small_blocks_serves_a_large_request() {
    let sim = machine(&[1024], true);
    let allocator = allocator(&sim);
    let blocks = fill(&allocator, 0, 4 * MIB);
    for pair in blocks.chunks(2) {
        allocator.free(pair[0].handle).unwrap();
    }
    allocator.allocate(&on(0, 500 * MIB)).unwrap();
    assert_clean(&sim, allocator);
}

// https://github.com/pytorch/pytorch/issues/49952
#[test]
fn figures_are_those_of_the_device_asked_for_before_its_first_use_too() {
    let sim = machine(&[32, 64], true);
    let allocator = allocator(&sim);
    allocator.allocate(&on(0, MIB)).unwrap();
    let stats = allocator.stats(gpu(1)).unwrap();
    assert_eq!((stats.budget_bytes, stats.used_bytes), (64 * MIB, 0));
    assert_eq!(allocator.stats(gpu(2)), None);
    assert_clean(&sim, allocator);
}

// https://github.com/rapidsai/rmm/issues/2039 and /1245
#[test]
fn memory_freed_on_two_streams_merges_for_a_request_of_either() {
    for (sim, allocator) in both(&[64]) {
        let second = allocator.create_stream(gpu(0)).unwrap();
        let mut blocks = Vec::new();
        for round in 0..24 {
            let stream = if round % 2 == 0 { DEFAULT } else { second };
            blocks.push(
                allocator
                    .allocate(&Request {
                        stream,
                        ..on(0, 2 * MIB)
                    })
                    .unwrap(),
            );
        }
        for block in blocks {
            allocator.free(block.handle).unwrap();
        }
        allocator
            .allocate(&Request {
                stream: second,
                ..on(0, 56 * MIB)
            })
            .unwrap();
        assert_clean(&sim, allocator);
    }
}

// https://github.com/rapidsai/rmm/pull/2404
#[test]
fn a_free_of_what_was_never_allocated_leaves_the_counters_alone() {
    for (sim, allocator) in both(&[32]) {
        let before = allocator.stats(gpu(0));
        let address = DeviceAddress(12_345);
        assert_eq!(
            allocator.free_address(address),
            Err(FreeError::Foreign { address })
        );
        assert_eq!(allocator.stats(gpu(0)), before);
        assert_clean(&sim, allocator);
    }
}

// https://github.com/rapidsai/rmm/issues/2116
#[test]
fn addresses_are_aligned_not_only_sizes() {
    for (sim, allocator) in both(&[96]) {
        // A second slab must not begin at an odd offset.
        sim.take_memory(gpu(0), 48 * MIB + 300 * KIB);
        fill(&allocator, 0, 1000);
        sim.restore_memory();
        for align_bytes in [256, 4096, 64 * KIB, PAGE] {
            let got = allocator
                .allocate(&Request {
                    align_bytes,
                    ..on(0, 1000)
                })
                .unwrap();
            assert_eq!(
                (got.address.0 % align_bytes, got.offset_bytes % align_bytes),
                (0, 0)
            );
        }
        assert_clean(&sim, allocator);
    }
}

// https://github.com/GPUOpen-LibrariesAndSDKs/VulkanMemoryAllocator/issues/157
#[test]
fn a_reserve_above_what_is_free_is_an_error_not_a_huge_budget() {
    let sim = machine(&[16], true);
    let budgets = vec![ds4_engine::alloc::DeviceBudget {
        configured_bytes: None,
        reserve_bytes: 438_489_088,
    }];
    let config = ds4_engine::alloc::AllocatorConfig {
        budgets,
        ..Default::default()
    };
    assert!(ds4_engine::alloc::Allocator::new(sim.clone(), config).is_err());
    sim.ledger().check_shutdown();
    assert_eq!(sim.ledger().findings(), []);
}

// https://github.com/ggml-org/llama.cpp/issues/4680
#[test]
fn a_reservation_that_is_too_large_shrinks_before_it_fails() {
    let sim = machine(&[32], true);
    sim.set_faults(FaultPlan::new(vec![
        Fault::every(FaultKind::Oom)
            .at(&[Call::Reserve])
            .min_bytes(33 * MIB),
    ]))
    .unwrap();
    let allocator = allocator(&sim);
    sim.clear_faults();
    let blocks = fill(&allocator, 0, PAGE);
    assert_eq!(blocks.len(), 16);
    for block in blocks.iter().step_by(2) {
        allocator.free(block.handle).unwrap();
    }
    // There are pages left, but no addresses in one piece: not to be called out of memory.
    let why = reasons(allocator.allocate(&on(0, 3 * PAGE)));
    assert!(
        matches!(why[0].1, RefusalReason::AddressSpace { .. }),
        "{why:?}"
    );
    assert_clean(&sim, allocator);
}

// https://github.com/ggml-org/llama.cpp/issues/24489
#[test]
fn pages_that_are_mapped_later_are_open_to_peers_too() {
    let sim = machine(&[32, 32], true);
    let allocator = allocator(&sim);
    let from = allocator.allocate(&on(0, MIB)).unwrap();
    for _ in 0..4 {
        let to = allocator.allocate(&on(1, 6 * MIB)).unwrap();
        sim.copy_peer((gpu(0), from.address), (gpu(1), to.address), MIB, DEFAULT)
            .unwrap();
        sim.synchronize(gpu(0), DEFAULT).unwrap();
    }
    assert_clean(&sim, allocator);
}

// https://github.com/openxla/xla/pull/41659
#[test]
fn a_source_that_always_fails_ends_in_a_refusal_not_in_a_loop() {
    for (sim, allocator) in both(&[32]) {
        sim.set_faults(FaultPlan::new(vec![Fault::every(FaultKind::Oom)]))
            .unwrap();
        let before = sim.calls().total();
        assert!(allocator.allocate(&on(0, 2048)).is_err());
        assert!(sim.calls().total() - before < 100);
        sim.clear_faults();
        assert_clean(&sim, allocator);
    }
}

// https://github.com/dmlc/xgboost/issues/4194 and /10546
#[test]
fn a_block_goes_back_to_its_own_device_whatever_was_used_last() {
    for (sim, allocator) in both(&[32, 32]) {
        let block = allocator.allocate(&on(1, MIB)).unwrap();
        allocator.allocate(&on(0, MIB)).unwrap();
        allocator.free(block.handle).unwrap();
        assert_eq!(allocator.stats(gpu(1)).unwrap().live_blocks, 0);
        assert_eq!(allocator.stats(gpu(0)).unwrap().live_blocks, 1);
        assert_clean(&sim, allocator);
    }
}

// https://github.com/odin-lang/Odin/pull/4820 and https://github.com/mattconte/tlsf/issues/36
#[test]
fn gaps_before_aligned_blocks_stay_usable() {
    for (sim, allocator) in both(&[32]) {
        let mut aligned = Vec::new();
        for _ in 0..4 {
            allocator.allocate(&on(0, 256)).unwrap();
            aligned.push(
                allocator
                    .allocate(&Request {
                        align_bytes: PAGE,
                        ..on(0, 256)
                    })
                    .unwrap(),
            );
        }
        let used = allocator.stats(gpu(0)).unwrap().used_bytes;
        assert_eq!(used, 8 * 256);
        allocator.check().unwrap();
        for block in aligned {
            allocator.free(block.handle).unwrap();
        }
        assert_clean(&sim, allocator);
    }
}

// https://github.com/HigherOrderCO/Bend/issues/889
#[test]
fn a_refusal_costs_no_more_backend_calls_the_more_blocks_there_are() {
    for (sim, allocator) in both(&[512]) {
        fill(&allocator, 0, 64 * KIB);
        let before = sim.calls().total();
        for _ in 0..100 {
            assert!(allocator.allocate(&on(0, MIB)).is_err());
        }
        assert_eq!(
            sim.calls().total(),
            before,
            "a full device needs no driver to refuse"
        );
        assert_clean(&sim, allocator);
    }
}

// https://github.com/rapidsai/rmm/issues/2108: requests on a stream nobody made are not granted.
#[test]
fn a_stream_that_was_never_made_is_refused() {
    let sim = machine(&[32], true);
    let allocator = allocator(&sim);
    let stream = StreamId(9);
    let why = reasons(allocator.allocate(&Request {
        stream,
        ..on(0, 256)
    }));
    assert_eq!(why, [(gpu(0), RefusalReason::UnknownStream { stream })]);
    assert!(matches!(
        allocator.create_stream(gpu(7)),
        Err(BackendError::Unsupported { .. })
    ));
    assert_clean(&sim, allocator);
}
