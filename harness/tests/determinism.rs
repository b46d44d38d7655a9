//! Rule 12: equal operations give equal devices and offsets, whatever the addresses.
#![expect(clippy::unwrap_used, reason = "a helper of a test fails by panicking")]

mod common;

use std::sync::Arc;

use common::*;
use ds4_engine::alloc::{Allocator, Lifetime, Request};
use ds4_engine::backend::Backend;
use ds4_engine::device::DeviceMask;
use ds4_sim::{SimBackend, SimConfig};
use proptest::prelude::*;

#[derive(Clone, Debug)]
struct Step {
    mask: u32,
    bytes: u64,
    align: u32,
    long: bool,
    frees: bool,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = (
        0_u32..16,
        1_u64..6 * MIB,
        0_u32..22,
        any::<bool>(),
        any::<bool>(),
    )
        .prop_map(|(mask, bytes, align, long, frees)| Step {
            mask,
            bytes,
            align,
            long,
            frees,
        });
    prop::collection::vec(step, 1..80)
}

/// Where everything lands, and the final state.
fn run(allocator: &Allocator, steps: &[Step]) -> (Vec<(usize, u64)>, u64) {
    let mut live = Vec::new();
    let mut landed = Vec::new();
    for step in steps {
        let request = Request {
            mask: DeviceMask(step.mask),
            align_bytes: 1 << step.align,
            lifetime: if step.long {
                Lifetime::Long
            } else {
                Lifetime::Transient
            },
            ..Request::new(step.bytes)
        };
        if let Ok(got) = allocator.allocate(&request) {
            landed.push((got.device.index(), got.offset_bytes));
            live.push(got.handle);
        }
        if step.frees && !live.is_empty() {
            let victim = usize::try_from(step.bytes).unwrap() % live.len();
            allocator.free(live.swap_remove(victim)).unwrap();
        }
    }
    (landed, allocator.state_hash())
}

proptest! {
    #![proptest_config(config("determinism", 48))]

    #[test]
    fn rule_12_the_same_operations_give_the_same_offsets_wherever_the_driver_puts_memory(
        steps in steps(), pages: bool, odd in 1_u64..4 * MIB, reuse_addresses: bool,
    ) {
        let mut config = SimConfig::new("m", devices(&[48, 32, 64], pages));
        let plain = Arc::new(SimBackend::new(config.clone()).unwrap());
        config.reuse_addresses = reuse_addresses;
        let shifted = Arc::new(SimBackend::new(config).unwrap());
        let budgets = |sim: &Arc<SimBackend>| {
            let budgets = [40 * MIB, 24 * MIB, 56 * MIB].map(budget).to_vec();
            with_config(sim, ds4_engine::alloc::AllocatorConfig { budgets, ..Default::default() })
        };
        let junk: Vec<_> = (0..3).map(|device| shifted.allocate(gpu(device), odd).unwrap()).collect();
        let (a, b) = (budgets(&plain), budgets(&shifted));
        prop_assert_eq!(run(&a, &steps), run(&b, &steps));
        for (device, address) in junk.into_iter().enumerate() {
            shifted.free(gpu(device), address).unwrap();
        }
        assert_clean(&plain, a);
        assert_clean(&shifted, b);
    }
}
