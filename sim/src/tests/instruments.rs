//! Instruments around a backend that is used as any other.

use std::sync::Arc;

use ds4_engine::backend::{Backend, BackendError, OomOrigin};
use ds4_engine::device::PeerAccess;
use ds4_kernels::Launch;

use super::faults::one_call;
use super::*;
use crate::{Call, DeviceView, Fault, FaultKind, FaultPlan, Instrumented, Instruments};

fn wrapped(views: &[DeviceView]) -> (Arc<SimBackend>, Instrumented) {
    let inner = Arc::new(machine(2, 64 * MIB));
    let outer = Instrumented::with_views(inner.clone(), views.to_vec());
    (inner, outer)
}

fn whole() -> (Arc<SimBackend>, Instrumented) {
    wrapped(&[DeviceView::WHOLE; 2])
}

fn plan(kind: FaultKind, call: Call) -> FaultPlan {
    FaultPlan::new(vec![Fault::every(kind).at(&[call])])
}

#[test]
fn every_call_is_counted_and_fails_as_on_a_simulated_machine() {
    for call in Call::ALL {
        let (inner, outer) = whole();
        let alone = machine(2, 64 * MIB);
        for kind in [FaultKind::Fail, FaultKind::Oom, FaultKind::Sticky] {
            outer.set_faults(plan(kind, call)).unwrap();
            alone.set_faults(plan(kind, call)).unwrap();
            let (got, expected) = (one_call(&outer, call), one_call(&alone, call));
            let injected = outer.fault_report()[0].fired > 0;
            assert_eq!(got.is_ok(), expected.is_ok(), "{call} {kind:?}");
            assert!(!injected || got == expected, "{call} {kind:?}");
            assert_eq!(outer.clear_faults(), alone.clear_faults());
        }
        assert_eq!(outer.calls(), alone.calls());
        let reached = inner.calls().total();
        assert!(reached <= 1, "{call} reached the device {reached} times");
    }
}

#[test]
fn what_is_wrong_is_a_finding_and_never_reaches_the_device() {
    let (inner, outer) = whole();
    let kept = outer.allocate(gpu(0), MIB).unwrap();
    let before = inner.calls().total();
    let past = after(kept, MIB - 1);
    assert!(outer.free(gpu(0), past).is_err());
    assert!(outer.write(gpu(0), past, &[0; 2]).is_err());
    assert!(outer.synchronize(gpu(0), StreamId(3)).is_err());
    assert!(outer.destroy_page(gpu(0), PageId(1)).is_err());
    let overrun = Launch::Fill {
        to: past.0,
        bytes: 2,
        value: 0,
    };
    assert!(outer.launch(gpu(0), DEFAULT, &overrun).is_err());
    assert_eq!(inner.calls().total(), before);
    let findings = outer.ledger().findings();
    assert_eq!(findings.len(), 5);
    let misuse = |finding: &Finding| matches!(finding, Finding::Misuse { .. });
    assert!(findings.iter().all(misuse), "{findings:?}");
}

#[test]
fn what_others_take_is_refused_and_comes_back() {
    let (_, outer) = whole();
    let free = |outer: &Instrumented| outer.memory_info(gpu(0)).unwrap().free_bytes;
    let all = free(&outer);
    let page = outer.create_page(gpu(0)).unwrap();
    assert_eq!(outer.take_memory(gpu(0), u64::MAX), all - PAGE);
    assert_eq!(free(&outer), 0);
    let refused = outer.allocate(gpu(0), MIB).unwrap_err();
    assert!(matches!(
        refused,
        BackendError::OutOfMemory {
            origin: OomOrigin::Driver,
            ..
        }
    ));
    assert!(outer.create_page(gpu(0)).is_err());
    // What is given back to the device is there to be used.
    outer.destroy_page(gpu(0), page).unwrap();
    assert_eq!(free(&outer), PAGE);
    assert_eq!(outer.give_memory(gpu(0), MIB), MIB);
    assert_eq!(free(&outer), PAGE + MIB);
    outer
        .set_faults(plan(FaultKind::OomKeep, Call::CreatePage))
        .unwrap();
    assert!(outer.create_page(gpu(0)).is_err());
    assert_eq!(free(&outer), MIB);
    outer.restore_memory();
    assert_eq!(free(&outer), all);
}

#[test]
fn a_lost_device_answers_nothing_until_it_has_new_instruments() {
    let (inner, outer) = whole();
    let address = outer.allocate(gpu(0), MIB).unwrap();
    outer.set_faults(plan(FaultKind::Lost, Call::Map)).unwrap();
    assert!(one_call(&outer, Call::Map).is_err());
    outer.clear_faults();
    let lost = |result| matches!(result, Err(BackendError::DeviceLost { .. }));
    assert!(lost(outer.free(gpu(0), address)));
    assert!(lost(outer.touch(gpu(0), DEFAULT, address, MIB, 1)));
    assert!(outer.memory_info(gpu(1)).is_ok());
    outer.ledger().check_shutdown();
    assert_eq!(outer.ledger().findings(), []);
    drop(outer);
    let again = Instrumented::new(inner.clone());
    assert_eq!(again.memory_info(gpu(0)).unwrap().free_bytes, 64 * MIB);
    inner.ledger().check_shutdown();
    assert_eq!(inner.ledger().findings(), []);
}

#[test]
fn all_that_is_held_goes_back_and_pending_work_is_waited_for() {
    let (inner, outer) = whole();
    let fresh = inner.state_hash();
    let base = outer.reserve(gpu(0), 2 * PAGE).unwrap();
    for index in 0..2 {
        let page = outer.create_page(gpu(0)).unwrap();
        let place = after(base, index * PAGE);
        outer.map(gpu(0), place, page, DeviceMask(0b11)).unwrap();
    }
    outer.create_page(gpu(1)).unwrap();
    let slab = outer.allocate(gpu(1), MIB).unwrap();
    let stream = outer.create_stream(gpu(0)).unwrap();
    outer.record_event(gpu(0), stream).unwrap();
    assert_eq!(outer.streams_and_events(gpu(0)), (2, 1));
    assert_eq!(outer.streams(gpu(0)), [stream]);
    outer.touch(gpu(0), stream, base, 2 * PAGE, 1).unwrap();
    outer
        .copy_peer((gpu(0), base), (gpu(1), slab), MIB, stream)
        .unwrap();
    assert_eq!(outer.drain(), 0);
    assert_eq!(inner.state_hash(), fresh);
    inner.ledger().check_shutdown();
    assert_eq!(inner.ledger().findings(), []);
    assert_eq!(outer.drain(), 0);
}

#[test]
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "the calls are those of the list above"
)]
fn one_bit_is_wrong_wherever_bytes_are_moved_or_written() {
    let bytes = 4096;
    let wrong = |data: &[u8]| data.iter().map(|byte| byte.count_ones()).sum::<u32>();
    for call in [
        Call::Write,
        Call::Read,
        Call::CopyLocal,
        Call::CopyPeer,
        Call::Launch,
    ] {
        let (_, outer) = whole();
        let near = outer.allocate(gpu(0), 2 * bytes).unwrap();
        let far = outer.allocate(gpu(1), bytes).unwrap();
        for (device, address, bytes) in [(gpu(0), near, 2 * bytes), (gpu(1), far, bytes)] {
            outer.fill(device, address, bytes, 0, DEFAULT).unwrap();
        }
        let zero = Launch::Fill {
            to: near.0,
            bytes,
            value: 0,
        };
        outer.set_faults(plan(FaultKind::BitFlip, call)).unwrap();
        let mut data = vec![0; 4096];
        let (mut device, mut place) = (gpu(0), near);
        match call {
            Call::Write => outer.write(gpu(0), near, &data).unwrap(),
            Call::Read => outer.read(gpu(0), near, &mut data).unwrap(),
            Call::CopyLocal => {
                place = after(near, bytes);
                outer
                    .copy_local(gpu(0), near, place, bytes, DEFAULT)
                    .unwrap();
            }
            Call::CopyPeer => {
                (device, place) = (gpu(1), far);
                outer
                    .copy_peer((gpu(0), near), (gpu(1), far), bytes, DEFAULT)
                    .unwrap();
            }
            _ => outer.launch(gpu(0), DEFAULT, &zero).unwrap(),
        }
        assert_eq!(outer.clear_faults()[0].fired, 1);
        if call != Call::Read {
            outer.read(device, place, &mut data).unwrap();
        }
        assert_eq!(wrong(&data), 1, "{call}");
    }
}

#[test]
fn views_hide_pages_memory_paths_and_devices() {
    let small = DeviceView {
        pages: false,
        capacity_bytes: Some(16 * MIB),
        peers: true,
    };
    let apart = DeviceView {
        peers: false,
        ..DeviceView::WHOLE
    };
    let (_, outer) = wrapped(&[small, apart]);
    let info = &outer.devices()[0];
    assert_eq!((info.page_bytes, info.total_bytes), (None, 16 * MIB));
    assert_eq!(outer.memory_info(gpu(0)).unwrap().free_bytes, 16 * MIB);
    assert!(outer.allocate(gpu(0), 17 * MIB).is_err());
    let unsupported = outer.create_page(gpu(0));
    assert!(matches!(unsupported, Err(BackendError::Unsupported { .. })));
    assert_eq!(outer.peer_access(gpu(0), gpu(1)), Ok(PeerAccess::Absent));
    assert_eq!(outer.peer_access(gpu(1), gpu(0)), Ok(PeerAccess::Direct));
    let (_, outer) = wrapped(&[small]);
    assert_eq!(outer.devices().len(), 1);
    assert!(outer.memory_info(gpu(1)).is_err());
}
