use super::*;

const ANY: DeviceMask = DeviceMask::EMPTY;

fn device() -> DeviceId {
    DeviceId::new(0).unwrap()
}

fn block(address: u64, bytes: u64, handle: u64) -> LedgerBlock {
    LedgerBlock {
        device: device(),
        address: DeviceAddress(address),
        bytes,
        handle,
    }
}

fn ledger() -> Ledger {
    let ledger = Ledger::new(1);
    ledger.on_backend_allocate(device(), 4096, 8192);
    ledger
}

#[test]
fn blocks_that_stay_apart_and_are_freed_once_give_no_finding() {
    let ledger = ledger();
    ledger.on_allocation(block(4096, 256, 1), ANY);
    ledger.on_allocation(block(4352, 3840, 2), DeviceMask(1));
    assert_eq!(
        (ledger.live_blocks(device()), ledger.live_bytes(device())),
        (2, 4096)
    );
    assert!(ledger.on_free(device(), DeviceAddress(4096), 1));
    ledger.on_allocation(block(4096, 128, 3), ANY);
    assert!(ledger.on_free(device(), DeviceAddress(4096), 3));
    assert!(ledger.on_free(device(), DeviceAddress(4352), 2));
    ledger.on_backend_free(device(), 4096);
    ledger.check_shutdown();
    assert_eq!(ledger.findings(), []);
}

#[test]
fn overlap_off_candidate_and_unbacked_blocks_are_found() {
    let ledger = ledger();
    let first = block(4096, 512, 1);
    ledger.on_allocation(first, ANY);
    let overlapping = block(4352, 512, 2);
    ledger.on_allocation(overlapping, ANY);
    let off = block(5120, 256, 3);
    ledger.on_allocation(off, DeviceMask(2));
    let outside = block(8000, 256, 4);
    ledger.on_allocation(outside, ANY);
    let wrapping = block(u64::MAX, 256, 5);
    ledger.on_allocation(wrapping, ANY);
    assert_eq!(
        ledger.take_findings(),
        [
            Finding::Overlap {
                block: overlapping,
                other: first
            },
            Finding::OffCandidate {
                block: off,
                candidates: DeviceMask(2)
            },
            Finding::Unbacked(outside),
            Finding::Unbacked(wrapping),
        ]
    );
    assert_eq!(ledger.finding_count(), 0);
}

#[test]
fn a_double_free_differs_from_a_foreign_one() {
    let ledger = ledger();
    let address = DeviceAddress(4096);
    ledger.on_allocation(block(4096, 256, 1), ANY);
    assert!(!ledger.on_free(device(), address, 9));
    assert!(ledger.on_free(device(), address, 1));
    assert!(!ledger.on_free(device(), address, 1));
    assert_eq!(
        ledger.findings(),
        [
            Finding::ForeignFree {
                device: device(),
                address,
                handle: 9
            },
            Finding::DoubleFree {
                device: device(),
                address,
                handle: 1
            },
        ]
    );
}

#[test]
fn memory_pulled_away_under_a_block_is_found_page_by_page() {
    let ledger = Ledger::new(1);
    ledger.on_reserve(device(), 0x10000, 0x20000);
    ledger.on_map(device(), 0x10000, 0x11000);
    ledger.on_map(device(), 0x11000, 0x12000);
    let spanning = block(0x10800, 0x1000, 7);
    ledger.on_allocation(spanning, ANY);
    assert_eq!(ledger.findings(), []);
    ledger.on_unmap(device(), 0x11000, 0x12000);
    assert_eq!(
        ledger.findings(),
        [Finding::PulledAway {
            block: spanning,
            call: Call::Unmap
        }]
    );
}

#[test]
fn everything_left_at_shutdown_is_a_leak_unless_the_device_is_lost() {
    for lost in [false, true] {
        let ledger = ledger();
        ledger.on_reserve(device(), 0x10000, 0x20000);
        ledger.on_map(device(), 0x10000, 0x11000);
        ledger.on_create_page(device(), 1, 0x1000);
        ledger.on_allocation(block(4096, 256, 1), ANY);
        if lost {
            ledger.on_lost(device());
        }
        ledger.check_shutdown();
        assert_eq!(ledger.finding_count(), if lost { 0 } else { 5 });
    }
}

#[test]
fn findings_are_capped_but_counted() {
    let ledger = ledger();
    for handle in 0..2000 {
        ledger.on_free(device(), DeviceAddress(1), handle);
    }
    assert_eq!(
        (ledger.findings().len(), ledger.finding_count()),
        (MAX_FINDINGS, 2000)
    );
}

#[test]
fn every_finding_reads_as_a_sentence_with_its_numbers() {
    let text = Finding::Leak(block(4096, 256, 1)).to_string();
    assert_eq!(
        text,
        "block 0x1 (256 bytes at 0x1000 on gpu0) was never freed"
    );
}

#[test]
fn devices_outside_the_machine_are_ignored() {
    let ledger = Ledger::new(1);
    let other = DeviceId::new(5).unwrap();
    assert!(!ledger.on_free(other, DeviceAddress(1), 1));
    assert_eq!(ledger.finding_count(), 0);
}
