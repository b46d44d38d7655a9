//! Several threads on several devices, with blocks passed from one to another.

mod common;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use common::*;
use ds4_engine::alloc::{AllocError, FreeError, Request};
use ds4_engine::device::DeviceMask;
use ds4_sim::{Instruments, LedgerBlock};

const THREADS: u64 = 4;

fn next(state: &mut u64) -> u64 {
    *state = state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

// https://github.com/rapidsai/rmm/issues/735 (threads with a shared list), /2303 (a place taken
// again before its end is noted) and /2312 (nothing asked for from two threads).
#[test]
fn threads_that_share_blocks_never_share_bytes() {
    for pages in [true, false] {
        let sim = machine(&[96, 64, 128], pages);
        let allocator = allocator(&sim);
        let shared = Mutex::new(Vec::new());
        let keys = AtomicU64::new(1);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (sim, allocator, shared, keys) = (&sim, &allocator, &shared, &keys);
                scope.spawn(move || {
                    let mut rng = thread + 1;
                    for _ in 0..2_000 {
                        if next(&mut rng).is_multiple_of(2) {
                            let mask = DeviceMask(u32::try_from(next(&mut rng) % 8).unwrap());
                            let request = Request {
                                mask,
                                ..Request::new(100 + next(&mut rng) % 200_000)
                            };
                            let Ok(got) = allocator.allocate(&request) else {
                                continue;
                            };
                            let handle = keys.fetch_add(1, Ordering::Relaxed);
                            let block = LedgerBlock {
                                device: got.device,
                                address: got.address,
                                bytes: got.reserved_bytes,
                                handle,
                            };
                            sim.ledger().on_allocation(block, mask);
                            shared.lock().unwrap().push((got, handle));
                        } else {
                            let taken = {
                                let mut shared = shared.lock().unwrap();
                                let count = shared.len();
                                (count > 0).then(|| {
                                    shared.swap_remove(
                                        usize::try_from(next(&mut rng)).unwrap() % count,
                                    )
                                })
                            };
                            let Some((got, key)) = taken else { continue };
                            sim.ledger().on_free(got.device, got.address, key);
                            allocator.free(got.handle).unwrap();
                            assert!(matches!(
                                allocator.free(got.handle),
                                Err(FreeError::DoubleFree | FreeError::StaleHandle)
                            ));
                        }
                        assert_eq!(
                            allocator.allocate(&Request::new(0)),
                            Err(AllocError::ZeroSize)
                        );
                    }
                });
            }
        });
        for (got, key) in shared.into_inner().unwrap() {
            sim.ledger().on_free(got.device, got.address, key);
            allocator.free(got.handle).unwrap();
        }
        let report = allocator.report();
        assert!(
            report
                .devices
                .iter()
                .all(|(_, stats)| stats.used_bytes == 0 && stats.allocations == stats.frees)
        );
        assert_clean(&sim, allocator);
    }
}

#[test]
fn rule_11_budgets_hold_while_threads_compete_for_the_last_bytes() {
    let sim = machine(&[16, 32], true);
    let allocator = allocator(&sim);
    let granted = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while allocator.allocate(&Request::new(192 * KIB)).is_ok() {
                    granted.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    let stats = allocator.report().devices;
    assert!(
        stats
            .iter()
            .all(|(_, stats)| stats.used_bytes <= stats.budget_bytes)
    );
    assert_eq!(
        granted.into_inner(),
        stats
            .iter()
            .map(|(_, stats)| stats.live_blocks)
            .sum::<u64>()
    );
    assert_eq!(
        granted_most(),
        stats
            .iter()
            .map(|(_, stats)| stats.live_blocks)
            .sum::<u64>()
    );
    assert_clean(&sim, allocator);
}

/// So many blocks fill both devices, whoever comes first.
fn granted_most() -> u64 {
    [16, 32].iter().map(|mib| mib * MIB / (192 * KIB)).sum()
}
