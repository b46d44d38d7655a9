//! Each kind of fault, on each call.

use ds4_engine::backend::{Backend, BackendError, EventId, OomOrigin, PageId};
use ds4_engine::bytes::MIB;
use ds4_engine::device::{DeviceAddress, DeviceMask, StreamId};

use ds4_kernels::Launch;

use super::*;
use crate::{Call, Fault, FaultKind, FaultPlan};

pub(super) fn one_call(sim: &dyn Backend, call: Call) -> Result<(), BackendError> {
    let (d, s) = (gpu(0), StreamId(1));
    let a = DeviceAddress(8 << 44);
    match call {
        Call::MemoryInfo => sim.memory_info(d).map(|_| ()),
        Call::Allocate => sim.allocate(d, 64).map(|_| ()),
        Call::Free => sim.free(d, a),
        Call::Reserve => sim.reserve(d, PAGE).map(|_| ()),
        Call::Release => sim.release(d, a, PAGE),
        Call::CreatePage => sim.create_page(d).map(|_| ()),
        Call::DestroyPage => sim.destroy_page(d, PageId(1)),
        Call::Map => sim.map(d, a, PageId(1), DeviceMask::EMPTY),
        Call::Unmap => sim.unmap(d, a),
        Call::CreateStream => sim.create_stream(d).map(|_| ()),
        Call::DestroyStream => sim.destroy_stream(d, s),
        Call::Synchronize => sim.synchronize(d, s),
        Call::RecordEvent => sim.record_event(d, s).map(|_| ()),
        Call::EventDone => sim.event_done(d, EventId(1)).map(|_| ()),
        Call::WaitEvent => sim.wait_event(d, EventId(1)),
        Call::StreamWaitEvent => sim.stream_wait_event(d, s, d, EventId(1)),
        Call::DestroyEvent => sim.destroy_event(d, EventId(1)),
        Call::Write => sim.write(d, a, &[1]),
        Call::Read => sim.read(d, a, &mut [0]),
        Call::Fill => sim.fill(d, a, 1, 0, s),
        Call::CopyLocal => sim.copy_local(d, a, a, 1, s),
        Call::CopyPeer => sim.copy_peer((d, a), (gpu(1), DeviceAddress(9 << 44)), 1, s),
        Call::Launch => sim.launch(
            d,
            s,
            &Launch::Fill {
                to: a.0,
                bytes: 1,
                value: 0,
            },
        ),
        Call::PeerAccess => sim.peer_access(d, gpu(1)).map(|_| ()),
    }
}

#[test]
fn every_call_can_fail_once_and_a_failed_call_changes_nothing() {
    for call in Call::ALL {
        let sim = machine(2, 64 * MIB);
        let hash = sim.state_hash();
        sim.set_faults(FaultPlan::new(vec![
            Fault::every(FaultKind::Fail).at(&[call]),
        ]))
        .unwrap();
        let error = one_call(&sim, call).unwrap_err();
        assert!(
            error.to_string().contains("injected by fault 0"),
            "{call}: {error}"
        );
        assert!(
            error.to_string().starts_with(call.driver_name()),
            "{call}: {error}"
        );
        assert_eq!(sim.state_hash(), hash, "{call}");
        assert_eq!((sim.calls().of(call), sim.calls().total()), (1, 1));
        assert_eq!(
            sim.ledger().findings(),
            [],
            "an injected error is no misuse"
        );
    }
}

#[test]
fn a_lost_or_poisoned_device_fails_every_later_call_and_leaves_the_other_alone() {
    for kind in [FaultKind::Lost, FaultKind::Sticky] {
        let sim = machine(2, 64 * MIB);
        sim.allocate(gpu(0), 1).unwrap();
        sim.set_faults(FaultPlan::nth(kind, 1, false)).unwrap();
        for call in Call::ALL {
            let error = one_call(&sim, call).unwrap_err();
            assert!(
                matches!(error, BackendError::DeviceLost { .. }),
                "{call}: {error}"
            );
        }
        assert_eq!(sim.clear_faults()[0].fired, 1);
        assert!(sim.busy(gpu(0), DEFAULT, 1).is_err());
        assert!(
            sim.memory_info(gpu(0)).is_err(),
            "losing a device outlasts the plan"
        );
        let a = sim.allocate(gpu(1), 8).unwrap();
        let to_lost = sim
            .copy_peer((gpu(1), a), (gpu(0), a), 8, DEFAULT)
            .unwrap_err();
        assert!(matches!(to_lost, BackendError::DeviceLost { device, .. } if device == gpu(0)));
        sim.free(gpu(1), a).unwrap();
        sim.ledger().check_shutdown();
        assert_eq!(
            sim.ledger().findings(),
            [],
            "nobody can free memory of a lost device"
        );
    }
}

#[test]
fn injected_out_of_memory_names_its_fault_and_may_keep_the_memory() {
    for (kind, kept) in [(FaultKind::Oom, 0), (FaultKind::OomKeep, 2 * MIB)] {
        let sim = machine(1, 64 * MIB);
        sim.set_faults(FaultPlan::nth(kind, 2, false)).unwrap();
        sim.create_page(gpu(0)).unwrap();
        let error = sim.create_page(gpu(0)).unwrap_err();
        let origin = OomOrigin::Injected { entry: 0 };
        let call = "cuMemCreate";
        let expected = BackendError::OutOfMemory {
            device: gpu(0),
            call,
            asked_bytes: PAGE,
            origin,
        };
        assert_eq!(error, expected);
        sim.create_page(gpu(0)).unwrap();
        assert_eq!(sim.memory_info(gpu(0)).unwrap().free_bytes, 60 * MIB - kept);
        sim.restore_memory();
        assert_eq!(sim.memory_info(gpu(0)).unwrap().free_bytes, 60 * MIB);
    }
}

#[test]
fn another_process_takes_memory_and_gives_it_back() {
    let sim = machine(1, 64 * MIB);
    let plan = r#"{"faults":[
        {"at":"allocate","kind":"take","bytes":67108864},
        {"at":"allocate","skip":1,"kind":"release"}]}"#;
    sim.set_faults(FaultPlan::from_json(plan.as_bytes(), "p").unwrap())
        .unwrap();
    let real = sim.allocate(gpu(0), 1).unwrap_err();
    assert!(matches!(
        real,
        BackendError::OutOfMemory {
            origin: OomOrigin::Driver,
            ..
        }
    ));
    assert!(sim.allocate(gpu(0), 64 * MIB).is_ok());
    assert_eq!(sim.take_memory(gpu(0), 1), 0, "nothing is left to take");
    assert_eq!(sim.give_memory(gpu(0), 1), 0, "nothing was taken");
}

#[test]
fn a_flipped_bit_is_one_wrong_bit_of_the_bytes_that_a_copy_moved() {
    let sim = machine(2, 64 * MIB);
    let (a, b) = (
        sim.allocate(gpu(0), 4096).unwrap(),
        sim.allocate(gpu(1), 4096).unwrap(),
    );
    let flips = |device, address, bytes: &mut [u8]| {
        sim.clear_faults();
        if bytes.is_empty() {
            let data = read(&sim, device, address, 64);
            return data.iter().map(|byte| byte.count_ones()).sum::<u32>();
        }
        bytes.iter().map(|byte| byte.count_ones()).sum()
    };
    let arm = || {
        sim.set_faults(FaultPlan::nth(FaultKind::BitFlip, 1, false))
            .unwrap();
    };
    arm();
    sim.write(gpu(0), a, &[0; 64]).unwrap();
    assert_eq!(flips(gpu(0), a, &mut []), 1);
    sim.write(gpu(0), a, &[0; 64]).unwrap();
    arm();
    let mut data = [0; 64];
    sim.read(gpu(0), a, &mut data).unwrap();
    assert_eq!(flips(gpu(0), a, &mut data), 1);
    arm();
    sim.copy_local(gpu(0), a, after(a, 64), 64, DEFAULT)
        .unwrap();
    assert_eq!(flips(gpu(0), after(a, 64), &mut []), 1);
    arm();
    sim.copy_peer((gpu(0), a), (gpu(1), b), 64, DEFAULT)
        .unwrap();
    sim.synchronize(gpu(0), DEFAULT).unwrap();
    assert_eq!(flips(gpu(1), b, &mut []), 1);
    arm();
    sim.copy_peer((gpu(0), a), (gpu(1), b), 0, DEFAULT).unwrap();
}

#[test]
fn a_delay_moves_the_end_of_stream_work_or_the_host() {
    let time = |plan: FaultPlan, work: fn(&SimBackend)| {
        let sim = machine(1, 64 * MIB);
        sim.set_faults(plan).unwrap();
        sim.allocate(gpu(0), 64).unwrap();
        work(&sim);
        sim.synchronize(gpu(0), DEFAULT).unwrap();
        sim.now_ns()
    };
    type Work = fn(&SimBackend);
    let works: [(Call, Work); 3] = [
        (Call::Fill, |sim| {
            let start = sim.now_ns();
            sim.fill(gpu(0), DeviceAddress(8 << 44), 64, 0, DEFAULT)
                .unwrap();
            assert!(sim.now_ns() - start < 10_000, "the host goes on");
        }),
        (Call::Write, |sim| {
            sim.write(gpu(0), DeviceAddress(8 << 44), &[1]).unwrap();
        }),
        (Call::CreateStream, |sim| {
            assert!(sim.create_stream(gpu(0)).is_ok());
        }),
    ];
    for (call, work) in works {
        let delay = FaultPlan::new(vec![
            Fault::every(FaultKind::Delay { ns: 777_777 }).at(&[call]),
        ]);
        assert_eq!(
            time(delay, work) - time(FaultPlan::default(), work),
            777_777,
            "{call}"
        );
    }
}

/// Fails backend call 1, 2, 3 … of a scenario until it runs untouched.
#[test]
fn an_nth_failure_loop_ends_and_each_failure_is_seen() {
    let scenario = |sim: &SimBackend| -> Result<(), BackendError> {
        let a = sim.allocate(gpu(0), 64)?;
        let written = sim.write(gpu(0), a, &[1, 2, 3]);
        sim.free(gpu(0), a)?;
        written
    };
    for (persistent, expected) in [(false, 3), (true, 3)] {
        let mut failures = 0;
        for n in 1..10 {
            let sim = machine(1, 64 * MIB);
            sim.set_faults(FaultPlan::nth(FaultKind::Fail, n, persistent))
                .unwrap();
            let result = scenario(&sim);
            let fired = sim.clear_faults()[0].fired;
            assert_eq!(result.is_err(), fired > 0);
            if fired == 0 {
                break;
            }
            failures += 1;
        }
        assert_eq!(failures, expected);
    }
}

#[test]
fn a_plan_for_devices_that_do_not_exist_is_refused() {
    let sim = machine(1, 64 * MIB);
    let plan = FaultPlan::new(vec![Fault::every(FaultKind::Fail).on(gpu(1))]);
    assert!(sim.set_faults(plan).is_err());
    assert!(sim.memory_info(gpu(0)).is_ok());
}
