//! Rule 9: blocks stay where they are, and bytes get elsewhere by a copy whose path is reported.
#![expect(clippy::unwrap_used, reason = "a helper of a test fails by panicking")]

mod common;

use std::sync::Arc;

use common::*;
use ds4_engine::alloc::{CopyError, CopyPath, FreeError};
use ds4_engine::backend::Backend;
use ds4_engine::device::PeerAccess;
use ds4_sim::{Call, Fault, FaultKind, FaultPlan, Instruments, Link, SimBackend, SimConfig};

fn linked(access: PeerAccess, pages: bool) -> Arc<SimBackend> {
    let mut config = SimConfig::new("links", devices(&[32, 48], pages));
    for (from, to) in [(0, 1), (1, 0)] {
        config.set_link(
            gpu(from),
            gpu(to),
            Link {
                access,
                ..Link::nvlink()
            },
        );
    }
    Arc::new(SimBackend::new(config).unwrap())
}

#[test]
fn rule_9_a_copy_reports_its_path_and_delivers_every_byte() {
    for pages in [true, false] {
        for (access, target, path) in [
            (PeerAccess::Direct, 1, CopyPath::Peer),
            (PeerAccess::Absent, 1, CopyPath::HostBounce),
            (PeerAccess::Broken, 1, CopyPath::HostBounce),
            (PeerAccess::Direct, 0, CopyPath::SameDevice),
        ] {
            let sim = linked(access, pages);
            let allocator = allocator(&sim);
            let bytes = 3 * MIB + 17;
            let (from, to) = (
                allocator.allocate(&on(0, bytes)).unwrap(),
                allocator.allocate(&on(target, bytes)).unwrap(),
            );
            let sent: Vec<u8> = (0..bytes)
                .map(|at| u8::try_from(at % 253).unwrap())
                .collect();
            sim.write(from.device, from.address, &sent).unwrap();
            let report = allocator
                .copy((from.handle, 0), (to.handle, 0), bytes)
                .unwrap();
            assert_eq!((report.path, report.bytes), (path, bytes));
            sim.synchronize(to.device, DEFAULT).unwrap();
            let mut got = vec![0; sent.len()];
            sim.read(to.device, to.address, &mut got).unwrap();
            assert!(got == sent, "{path} changed bytes");
            assert_clean(&sim, allocator);
        }
    }
}

#[test]
fn rule_9_blocks_stay_where_they_are_while_pages_move_around_them() {
    let sim = machine(&[32], true);
    let allocator = allocator(&sim);
    let blocks = fill(&allocator, 0, 2 * MIB);
    for (number, block) in blocks.iter().enumerate() {
        sim.write(gpu(0), block.address, &[u8::try_from(number).unwrap(); 64])
            .unwrap();
    }
    for block in blocks.iter().step_by(2) {
        allocator.free(block.handle).unwrap();
    }
    let before = sim.calls().of(Call::Unmap);
    allocator.allocate(&on(0, 16 * MIB)).unwrap();
    assert!(sim.calls().of(Call::Unmap) > before, "pages had to move");
    for (number, block) in blocks.iter().enumerate().skip(1).step_by(2) {
        let mut got = [0; 64];
        sim.read(gpu(0), block.address, &mut got).unwrap();
        assert_eq!(got, [u8::try_from(number).unwrap(); 64]);
        assert_eq!(allocator.handle_at(block.address), Ok(block.handle));
    }
    assert_clean(&sim, allocator);
}

#[test]
fn a_copy_whose_events_fail_is_ordered_by_the_host() {
    let sim = linked(PeerAccess::Direct, true);
    let allocator = allocator(&sim);
    let (from, to) = (
        allocator.allocate(&on(0, MIB)).unwrap(),
        allocator.allocate(&on(1, MIB)).unwrap(),
    );
    for call in [Call::RecordEvent, Call::StreamWaitEvent, Call::DestroyEvent] {
        sim.set_faults(FaultPlan::new(vec![
            Fault::every(FaultKind::Fail).at(&[call]),
        ]))
        .unwrap();
        allocator
            .copy((from.handle, 0), (to.handle, 0), MIB)
            .unwrap();
        sim.clear_faults();
        sim.touch(gpu(1), DEFAULT, to.address, MIB, 10).unwrap();
        sim.touch(gpu(0), DEFAULT, from.address, MIB, 10).unwrap();
    }
    assert_clean(&sim, allocator);
    assert_eq!(
        sim.streams_and_events(gpu(0)).1 + sim.streams_and_events(gpu(1)).1,
        0
    );
}

#[test]
fn the_host_reads_what_it_wrote_and_nothing_outside_a_live_block() {
    for (sim, allocator) in both(&[32]) {
        let block = allocator.allocate(&on(0, MIB)).unwrap();
        allocator.write(block.handle, 100, b"bytes").unwrap();
        let mut got = [0; 5];
        allocator.read(block.handle, 100, &mut got).unwrap();
        assert_eq!(&got, b"bytes");
        allocator.read(block.handle, MIB, &mut []).unwrap();
        let outside = CopyError::OutOfBounds {
            offset_bytes: MIB - 4,
            bytes: 5,
            block_bytes: MIB,
        };
        let at = MIB - 4;
        assert_eq!(allocator.holds(block.handle, at, 5), Err(outside.clone()));
        assert_eq!(
            allocator.write(block.handle, at, &got),
            Err(outside.clone())
        );
        assert_eq!(allocator.read(block.handle, at, &mut got), Err(outside));
        assert!(allocator.holds(block.handle, u64::MAX, 5).is_err());
        allocator.free(block.handle).unwrap();
        let gone = Err(CopyError::NotLive(FreeError::DoubleFree));
        assert_eq!(allocator.write(block.handle, 0, &got), gone);
        assert_clean(&sim, allocator);
    }
}
