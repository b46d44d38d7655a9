//! Rule 8: who may free what, and what every other free is answered with.

mod common;

use common::*;
use ds4_engine::alloc::{AllocError, FreeError, Request};
use ds4_engine::device::DeviceAddress;
use proptest::prelude::*;

#[test]
fn rule_8_every_wrong_free_is_an_error_of_its_own_and_changes_nothing() {
    for (sim, allocator) in both(&[32, 64]) {
        let elsewhere = machine(&[32], true);
        let other = common::allocator(&elsewhere);
        let foreign = other.allocate(&on(0, MIB)).unwrap();
        let live = allocator.allocate(&on(0, 64 * KIB)).unwrap();
        let gone = allocator.allocate(&on(0, 64 * KIB)).unwrap();
        allocator.free(gone.handle).unwrap();
        let before = allocator.state_hash();
        assert_eq!(allocator.free(gone.handle), Err(FreeError::DoubleFree));
        assert_eq!(
            allocator.free(foreign.handle),
            Err(FreeError::OtherAllocator)
        );
        let address = |distance| DeviceAddress(live.address.0 + distance);
        assert_eq!(
            allocator.free_address(DeviceAddress(0)),
            Err(FreeError::Null)
        );
        let nowhere = DeviceAddress(0x1000);
        assert_eq!(
            allocator.free_address(nowhere),
            Err(FreeError::Foreign { address: nowhere })
        );
        assert_eq!(
            allocator.free_address(address(300)),
            Err(FreeError::Interior {
                address: address(300),
                start: live.address
            })
        );
        assert_eq!(
            allocator.free_address(gone.address),
            Err(FreeError::DoubleFree)
        );
        let again = allocator.allocate(&on(0, 64 * KIB)).unwrap();
        assert_eq!(again.offset_bytes, gone.offset_bytes);
        assert_eq!(allocator.free(gone.handle), Err(FreeError::StaleHandle));
        allocator.free(again.handle).unwrap();
        assert_eq!(allocator.state_hash(), before);
        other.close().unwrap();
        assert_clean(&sim, allocator);
    }
}

#[test]
fn rule_8_a_request_for_nothing_is_an_error() {
    let sim = machine(&[32], true);
    let allocator = allocator(&sim);
    assert_eq!(
        allocator.allocate(&Request::new(0)),
        Err(AllocError::ZeroSize)
    );
    assert_clean(&sim, allocator);
}

proptest! {
    #![proptest_config(config("ownership", 32))]

    #[test]
    fn rule_8_freed_bytes_return_to_the_pool_they_came_from(
        sizes in prop::collection::vec(1_u64..2 * MIB, 1..40), by_address: bool, pages: bool,
    ) {
        let sim = machine(&[64, 96, 48], pages);
        let allocator = allocator(&sim);
        let blocks: Vec<_> = sizes.iter().filter_map(|b| allocator.allocate(&Request::new(*b)).ok()).collect();
        for block in &blocks {
            let before = allocator.stats(block.device).unwrap().used_bytes;
            if by_address {
                allocator.free_address(block.address).unwrap();
            } else {
                allocator.free(block.handle).unwrap();
            }
            prop_assert_eq!(allocator.stats(block.device).unwrap().used_bytes, before - block.reserved_bytes);
        }
        prop_assert!(allocator.report().devices.iter().all(|(_, stats)| stats.used_bytes == 0 && stats.live_blocks == 0));
        assert_clean(&sim, allocator);
    }
}
