//! Memory, mappings and peers.

use ds4_engine::backend::{Backend, BackendError, EventId, OomOrigin, PageId};
use ds4_engine::bytes::{GIB, KIB, MIB};
use ds4_engine::device::{DeviceAddress, DeviceMask, PeerAccess, StreamId};

use super::*;
use crate::{SimConfig, SimDevice};

#[test]
fn allocations_count_in_whole_granules_beside_what_others_hold() {
    let mut device = SimDevice::new(64 * MIB);
    device.other_process_bytes = 10 * MIB;
    let sim = SimBackend::new(SimConfig::new("t", vec![device])).unwrap();
    let free = || sim.memory_info(gpu(0)).unwrap().free_bytes;
    assert_eq!(free(), 54 * MIB);
    let a = sim.allocate(gpu(0), 1).unwrap();
    assert_eq!(free(), 52 * MIB);
    let hash = sim.state_hash();
    let refusal = sim.allocate(gpu(0), 52 * MIB + 1).unwrap_err();
    assert_eq!(
        refusal,
        BackendError::OutOfMemory {
            device: gpu(0),
            call: "cuMemAlloc",
            asked_bytes: 52 * MIB + 1,
            origin: OomOrigin::Driver,
        }
    );
    assert!(sim.allocate(gpu(0), u64::MAX).is_err());
    assert_eq!(sim.state_hash(), hash);
    sim.allocate(gpu(0), 52 * MIB).unwrap();
    assert_eq!(free(), 0);
    sim.free(gpu(0), a).unwrap();
    assert_eq!(free(), 2 * MIB);
}

#[test]
fn memory_holds_what_was_written_and_shows_poison_elsewhere() {
    let sim = machine(1, GIB);
    let a = sim.allocate(gpu(0), 4 * KIB).unwrap();
    sim.write(gpu(0), after(a, 10), b"hello").unwrap();
    assert_eq!(read(&sim, gpu(0), after(a, 9), 7), b"\xA5hello\xA5");
    sim.fill(gpu(0), a, 12, 7, DEFAULT).unwrap();
    assert_eq!(
        read(&sim, gpu(0), after(a, 11), 3),
        b"\x07\x6Cl"[..].to_vec()
    );
    sim.copy_local(gpu(0), after(a, 10), after(a, 12), 5, DEFAULT)
        .unwrap();
    assert_eq!(read(&sim, gpu(0), after(a, 10), 7), b"\x07\x07\x07\x07llo");
}

#[test]
fn every_access_outside_live_memory_is_an_invalid_address() {
    let sim = machine(2, GIB);
    let a = sim.allocate(gpu(0), 100).unwrap();
    let b = sim.allocate(gpu(1), 100).unwrap();
    let invalid = |result: Result<(), BackendError>| {
        let text = result.unwrap_err().to_string();
        assert!(text.contains("invalid address"), "{text}");
    };
    let hash = sim.state_hash();
    invalid(sim.write(gpu(0), after(a, 99), &[1, 2]));
    invalid(sim.read(gpu(0), DeviceAddress(0), &mut [0]));
    invalid(sim.read(gpu(0), b, &mut [0]));
    invalid(sim.fill(gpu(0), a, u64::MAX, 0, DEFAULT));
    invalid(sim.copy_local(gpu(0), a, after(a, 1), 100, DEFAULT));
    invalid(sim.copy_peer((gpu(0), a), (gpu(1), after(b, 1)), 100, DEFAULT));
    invalid(sim.touch(gpu(0), DEFAULT, after(a, 100), 1, 5));
    sim.free(gpu(0), a).unwrap();
    invalid(sim.write(gpu(0), a, &[1]));
    assert_ne!(sim.state_hash(), hash);
    assert!(sim.free(gpu(0), a).is_err(), "double free");
    assert!(sim.free(gpu(1), after(b, 1)).is_err(), "interior pointer");
    // The synthetic touch is no call of the trait, so the ledger does not count it.
    assert_eq!(sim.ledger().finding_count(), 9);
}

#[test]
fn mapped_pages_are_one_range_and_keep_their_bytes_when_remapped() {
    let sim = machine(1, 64 * MIB);
    let (base, pages) = mapped(&sim, DeviceMask::EMPTY);
    let middle = after(base, PAGE - 2);
    sim.write(gpu(0), middle, b"abcd").unwrap();
    sim.unmap(gpu(0), base).unwrap();
    sim.unmap(gpu(0), after(base, PAGE)).unwrap();
    assert!(sim.read(gpu(0), middle, &mut [0]).is_err());
    sim.map(gpu(0), base, pages[1], DeviceMask::EMPTY).unwrap();
    assert_eq!(read(&sim, gpu(0), base, 2), b"cd");
    assert!(
        sim.release(gpu(0), base, 2 * PAGE).is_err(),
        "a page is still mapped"
    );
    assert!(
        sim.destroy_page(gpu(0), pages[1]).is_err(),
        "the page is mapped"
    );
    sim.unmap(gpu(0), base).unwrap();
    sim.release(gpu(0), base, 2 * PAGE).unwrap();
    for page in pages {
        sim.destroy_page(gpu(0), page).unwrap();
    }
    assert_eq!(sim.memory_info(gpu(0)).unwrap().free_bytes, 64 * MIB);
    sim.ledger().take_findings();
    sim.ledger().check_shutdown();
    assert_eq!(sim.ledger().findings(), []);
}

#[test]
fn wrong_mappings_are_refused_and_change_nothing() {
    let sim = machine(1, 64 * MIB);
    let (base, pages) = mapped(&sim, DeviceMask::EMPTY);
    let spare = sim.create_page(gpu(0)).unwrap();
    let free_range = sim.reserve(gpu(0), PAGE).unwrap();
    let hash = sim.state_hash();
    let none = DeviceMask::EMPTY;
    let wrong = [
        sim.map(gpu(0), base, spare, none),
        sim.map(gpu(0), after(base, 2 * PAGE), spare, none),
        sim.map(gpu(0), after(free_range, 256), spare, none),
        sim.map(gpu(0), free_range, pages[0], none),
        sim.map(gpu(0), free_range, PageId(99), none),
        sim.map(gpu(0), free_range, spare, DeviceMask(2)),
        sim.unmap(gpu(0), free_range),
        sim.release(gpu(0), base, PAGE),
        sim.release(gpu(0), after(base, PAGE), PAGE),
        sim.destroy_page(gpu(0), PageId(99)),
        sim.reserve(gpu(0), PAGE + 1).map(|_| ()),
        sim.reserve(gpu(0), 1 << 44).map(|_| ()),
    ];
    for (index, result) in wrong.into_iter().enumerate() {
        assert!(result.is_err(), "case {index}");
    }
    assert_eq!(sim.state_hash(), hash);
}

#[test]
fn a_device_without_pages_says_unsupported() {
    let sim = shipped("4x24g-bare");
    let unsupported = |result: Result<(), BackendError>| {
        assert!(
            matches!(result, Err(BackendError::Unsupported { .. })),
            "{result:?}"
        );
    };
    unsupported(sim.reserve(gpu(0), PAGE).map(|_| ()));
    unsupported(sim.create_page(gpu(0)).map(|_| ()));
    unsupported(sim.unmap(gpu(0), DeviceAddress(0)));
    let (a, b) = (
        sim.allocate(gpu(0), 8).unwrap(),
        sim.allocate(gpu(1), 8).unwrap(),
    );
    unsupported(sim.copy_peer((gpu(0), a), (gpu(1), b), 8, DEFAULT));
    assert_eq!(sim.peer_access(gpu(0), gpu(1)), Ok(PeerAccess::Absent));
    assert_eq!(sim.peer_access(gpu(0), gpu(0)), Ok(PeerAccess::Direct));
}

#[test]
fn peer_copies_arrive_in_both_directions_unless_the_path_is_broken() {
    let sim = shipped("8x24g-mixed");
    for (from, to, intact) in [(0, 3, true), (3, 0, true), (6, 7, false)] {
        let a = sim.allocate(gpu(from), MIB).unwrap();
        let b = sim.allocate(gpu(to), MIB).unwrap();
        sim.fill(gpu(from), a, MIB, 9, DEFAULT).unwrap();
        sim.write(gpu(from), a, b"data").unwrap();
        sim.copy_peer((gpu(from), a), (gpu(to), b), MIB, DEFAULT)
            .unwrap();
        sim.synchronize(gpu(from), DEFAULT).unwrap();
        assert_eq!(read(&sim, gpu(to), b, 5) == b"data\x09", intact);
        assert_eq!(read(&sim, gpu(to), after(b, MIB - 1), 1), [9]);
    }
    assert_eq!(sim.ledger().findings(), []);
}

#[test]
fn a_page_is_reached_only_by_the_peers_it_was_mapped_for() {
    let sim = machine(3, 64 * MIB);
    let (base, _) = mapped(&sim, DeviceMask(0b010));
    let one = sim.allocate(gpu(1), 8).unwrap();
    let two = sim.allocate(gpu(2), 8).unwrap();
    assert_eq!(
        sim.copy_peer((gpu(1), one), (gpu(0), base), 8, DEFAULT),
        Ok(())
    );
    let refused = sim
        .copy_peer((gpu(2), two), (gpu(0), base), 8, DEFAULT)
        .unwrap_err();
    assert!(
        refused.to_string().contains("not mapped for gpu2"),
        "{refused}"
    );
}

#[test]
fn an_unknown_device_stream_or_event_is_an_error_everywhere() {
    let sim = machine(1, GIB);
    let a = sim.allocate(gpu(0), 64).unwrap();
    let ghost = gpu(7);
    assert!(sim.memory_info(ghost).is_err());
    assert!(sim.copy_peer((gpu(0), a), (ghost, a), 8, DEFAULT).is_err());
    assert!(sim.copy_peer((ghost, a), (gpu(0), a), 8, DEFAULT).is_err());
    assert!(sim.peer_access(gpu(0), ghost).is_err());
    let stream = StreamId(4);
    assert!(sim.fill(gpu(0), a, 8, 0, stream).is_err());
    assert!(sim.synchronize(gpu(0), stream).is_err());
    assert!(sim.destroy_stream(gpu(0), DEFAULT).is_err());
    assert!(sim.record_event(gpu(0), stream).is_err());
    assert!(sim.busy(gpu(0), stream, 1).is_err());
    let event = EventId(77);
    assert!(sim.event_done(gpu(0), event).is_err());
    assert!(sim.wait_event(gpu(0), event).is_err());
    assert!(sim.destroy_event(gpu(0), event).is_err());
    assert!(
        sim.stream_wait_event(gpu(0), DEFAULT, ghost, event)
            .is_err()
    );
}

#[test]
fn identities_are_distinct_and_visibly_simulated() {
    let sim = shipped("2xh200");
    assert_eq!(
        (sim.name(), sim.origin()),
        ("sim", "simulated machine 2xh200 (no driver)".into())
    );
    let [one, two] = sim.devices() else {
        panic!("{sim:?}")
    };
    assert_eq!(
        (&*one.name, &*one.pci_bus_id),
        ("Simulated H200", "0000:01:00.0")
    );
    assert!(one.uuid.starts_with("SIM-") && one.uuid != two.uuid);
}

#[test]
fn a_page_mapped_closed_is_reached_by_nobody_until_its_readers_are_set() {
    let sim = machine(1, GIB);
    let base = sim.reserve(gpu(0), PAGE).unwrap();
    let page = sim.create_page(gpu(0)).unwrap();
    sim.map_closed(gpu(0), base, page).unwrap();
    assert!(sim.write(gpu(0), base, &[1]).is_err());
    let readers = DeviceMask::only(gpu(0));
    sim.set_readers(gpu(0), base, readers).unwrap();
    sim.write(gpu(0), base, &[1]).unwrap();
    assert!(sim.set_readers(gpu(0), after(base, PAGE), readers).is_err());
    assert_eq!(sim.device_of(base), Some(gpu(0)));
    assert_eq!(sim.device_of(DeviceAddress(1 << 46)), None);
}
