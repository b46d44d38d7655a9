//! Rules 1 to 3 and 7 of placement: candidates, order, the first that fits, orphaned hints.
#![expect(clippy::unwrap_used, reason = "a helper of a test fails by panicking")]

mod common;

use std::sync::{Arc, Mutex};

use common::*;
use ds4_engine::alloc::placement::OrphanPolicy;
use ds4_engine::alloc::{AllocatorConfig, AllocatorEvent, Observer, RefusalCause, Request};
use ds4_engine::device::DeviceMask;
use proptest::prelude::*;

proptest! {
    #![proptest_config(config("placement", 64))]

    #[test]
    fn rule_1_candidates_are_the_existing_devices_of_the_mask_less_the_excluded(
        mask: u32, excluded in 0_u32..16, count in 1_usize..=4, pages: bool,
    ) {
        let sim = machine(&[32, 16, 24, 64][..count], pages);
        let excluded = DeviceMask(excluded).and(DeviceMask::first(count));
        let allocator = with_config(&sim, AllocatorConfig { excluded, ..AllocatorConfig::default() });
        let present = DeviceMask::first(count).0;
        let named = if mask & present == 0 { present } else { mask & present };
        match allocator.allocate(&masked(mask, 4 * KIB)) {
            Ok(got) => prop_assert!(named & !excluded.0 & (1 << got.device.index()) != 0),
            Err(_) => prop_assert_eq!(named & !excluded.0, 0),
        }
        assert_clean(&sim, allocator);
    }

    #[test]
    fn rule_2_the_least_quotient_of_used_and_budget_comes_first_and_ties_go_to_the_lower_id(
        sizes in prop::collection::vec(1_u64..MIB, 1..60), pages: bool,
    ) {
        let capacities = [48_u64, 32, 96, 64];
        let sim = machine(&capacities, pages);
        let allocator = allocator(&sim);
        let mut used = [0_u128; 4];
        for bytes in sizes {
            let got = allocator.allocate(&Request::new(bytes)).unwrap();
            // Scaled by a common multiple of the capacities, so that quotients are whole numbers.
            let least = (0..4).min_by_key(|i| used[*i] * 192 / u128::from(capacities[*i])).unwrap();
            prop_assert_eq!(got.device.index(), least);
            used[least] += u128::from(got.reserved_bytes);
        }
        assert_clean(&sim, allocator);
    }

    #[test]
    fn rule_3_the_first_candidate_that_fits_wins_and_no_request_lands_elsewhere(
        mask in 1_u32..8, bytes in 1_u64..48, pages: bool,
    ) {
        let sim = machine(&[16, 32, 64], pages);
        let allocator = allocator(&sim);
        let bytes = bytes * MIB;
        // Slabs lose up to 4 MiB of a device to alignment.
        let holds = |index: usize| bytes + if pages { 0 } else { 4 * MIB } <= [16, 32, 64][index] * MIB;
        let first = (0..3).find(|index| mask & 1 << index != 0 && holds(*index));
        match allocator.allocate(&masked(mask, bytes)) {
            Ok(got) => prop_assert!(mask & 1 << got.device.index() != 0 && first.is_none_or(|f| f >= got.device.index())),
            Err(_) => prop_assert_eq!(first, None),
        }
        assert_clean(&sim, allocator);
    }
}

#[test]
fn rule_2_equal_requests_land_once_on_each_device_before_twice_on_any() {
    for (count, bytes) in [(2, 256), (8, 4 * KIB), (32, MIB)] {
        for (sim, allocator) in both(&vec![64; count]) {
            for round in 1..=3 {
                let mut landed: Vec<usize> = (0..count)
                    .map(|_| {
                        allocator
                            .allocate(&Request::new(bytes))
                            .unwrap()
                            .device
                            .index()
                    })
                    .collect();
                landed.sort_unstable();
                assert_eq!(landed, (0..count).collect::<Vec<_>>(), "round {round}");
            }
            assert_clean(&sim, allocator);
        }
    }
}

#[derive(Debug, Default)]
struct Warnings(Mutex<Vec<(u32, usize)>>);

impl Observer for Warnings {
    fn observe(&self, event: &AllocatorEvent<'_>) {
        if let AllocatorEvent::OrphanedHint { mask, device_count } = event {
            self.0.lock().unwrap().push((mask.0, *device_count));
        }
    }
}

#[test]
fn rule_7_an_orphaned_hint_goes_to_the_least_loaded_device_with_one_warning_per_mask() {
    let sim = machine(&[32, 64], true);
    let warnings = Arc::new(Warnings::default());
    let observer: Arc<dyn Observer> = warnings.clone();
    let allocator = with_config(
        &sim,
        AllocatorConfig {
            observer: Some(observer),
            ..AllocatorConfig::default()
        },
    );
    allocator.allocate(&on(0, MIB)).unwrap();
    for _ in 0..3 {
        let got = allocator.allocate(&masked(0b100, 256)).unwrap();
        assert!(got.orphaned && got.device == gpu(1));
    }
    assert!(allocator.allocate(&masked(0b1000, 256)).unwrap().orphaned);
    for mask in [0, u32::MAX, 0b101] {
        assert!(
            !allocator.allocate(&masked(mask, 256)).unwrap().orphaned,
            "{mask:#b}"
        );
    }
    assert_eq!(*warnings.0.lock().unwrap(), [(0b100, 2), (0b1000, 2)]);
    assert_eq!(allocator.report().orphaned_hints, 4);
    assert_clean(&sim, allocator);
}

#[test]
fn rule_7_strict_hints_refuse_orphans_with_the_mask_and_the_device_count() {
    let sim = machine(&[32, 64], true);
    let strict = AllocatorConfig {
        orphans: OrphanPolicy::Refuse,
        ..AllocatorConfig::default()
    };
    let allocator = with_config(&sim, strict);
    let refused = refusal(allocator.allocate(&masked(0b100, 256)));
    assert_eq!(
        (refused.mask, &refused.cause),
        (
            DeviceMask(0b100),
            &RefusalCause::Orphaned { device_count: 2 }
        )
    );
    assert!(refused.to_string().contains("0b100") && refused.to_string().contains("2 devices"));
    assert!(allocator.allocate(&masked(u32::MAX, 256)).is_ok());
    assert_clean(&sim, allocator);
}

#[test]
fn rule_7_a_mask_whose_existing_devices_are_all_excluded_is_refused_never_redirected() {
    let sim = machine(&[32, 64, 32], true);
    let excluded = DeviceMask(0b010);
    let allocator = with_config(
        &sim,
        AllocatorConfig {
            excluded,
            ..AllocatorConfig::default()
        },
    );
    for mask in [0b010, 0b1010] {
        let cause = refusal(allocator.allocate(&masked(mask, 256))).cause;
        assert_eq!(cause, RefusalCause::Excluded { excluded });
    }
    assert!(allocator.allocate(&masked(0b011, 256)).unwrap().device == gpu(0));
    assert_clean(&sim, allocator);
}
