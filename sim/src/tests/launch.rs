//! Kernels on simulated memory.

use ds4_engine::backend::BackendError;
use ds4_kernels::{Launch, Pattern, checksum};

use super::*;
use crate::{Call, FaultPlan};

const RANDOM: Pattern = Pattern::Random { seed: 5 };

fn fill(to: DeviceAddress, bytes: u64) -> Launch {
    Launch::Fill {
        to: to.0,
        bytes,
        value: 7,
    }
}

fn sum_of(from: DeviceAddress, bytes: u64, sum: DeviceAddress) -> Launch {
    Launch::Checksum {
        from: from.0,
        bytes,
        first_position: 3,
        sum: sum.0,
    }
}

fn check(from: DeviceAddress, words: u64, result: DeviceAddress) -> Launch {
    Launch::CheckPattern {
        from: from.0,
        words,
        first_position: 9,
        pattern: RANDOM,
        result: result.0,
    }
}

fn write(to: DeviceAddress, words: u64) -> Launch {
    Launch::WritePattern {
        to: to.0,
        words,
        first_position: 9,
        pattern: RANDOM,
    }
}

fn words(sim: &SimBackend, device: DeviceId, address: DeviceAddress) -> [u64; 2] {
    let bytes = read(sim, device, address, 16);
    [&bytes[..8], &bytes[8..]].map(|word| u64::from_le_bytes(word.try_into().unwrap()))
}

fn faults(sim: &SimBackend, json: &str) {
    let plan = FaultPlan::from_json(json.as_bytes(), "plan").unwrap();
    sim.set_faults(plan).unwrap();
}

#[test]
fn kernels_work_across_pages_and_parts_of_a_copy() {
    let sim = machine(1, 64 * MIB);
    let (base, _) = mapped(&sim, DeviceMask::EMPTY);
    let at = after(base, PAGE - 8 * 50);
    let result = sim.allocate(gpu(0), 24).unwrap();
    sim.fill(gpu(0), result, 8, 0xFF, DEFAULT).unwrap();
    sim.fill(gpu(0), after(result, 8), 16, 0, DEFAULT).unwrap();
    for launch in [
        write(at, 100),
        check(at, 100, result),
        sum_of(at, 800, after(result, 16)),
    ] {
        sim.launch(gpu(0), DEFAULT, &launch).unwrap();
    }
    assert_eq!(words(&sim, gpu(0), result), [u64::MAX, 0]);
    let bytes = read(&sim, gpu(0), at, 800);
    let sum = checksum(&bytes, 3);
    assert_eq!(words(&sim, gpu(0), after(result, 8)), [0, sum]);
    sim.write(gpu(0), after(at, 51 * 8), &[0; 9]).unwrap();
    sim.launch(gpu(0), DEFAULT, &check(at, 100, result))
        .unwrap();
    assert_eq!(words(&sim, gpu(0), result), [60, 2]);

    // More than a part of 4 MiB.
    let large = sim.allocate(gpu(0), 9 * MIB).unwrap();
    let count = 9 * MIB / 8;
    sim.launch(gpu(0), DEFAULT, &write(large, count)).unwrap();
    sim.launch(gpu(0), DEFAULT, &check(large, count, result))
        .unwrap();
    assert_eq!(words(&sim, gpu(0), result), [60, 2]);
    let last = read(&sim, gpu(0), after(large, 9 * MIB - 8), 8);
    assert_eq!(last, RANDOM.word(9 + count - 1).to_le_bytes());
    assert_eq!(sim.ledger().findings(), []);
}

#[test]
fn kernels_of_two_streams_on_the_same_bytes_race_unless_ordered() {
    let sim = machine(1, 64 * MIB);
    let other = sim.create_stream(gpu(0)).unwrap();
    let block = sim.allocate(gpu(0), 4096).unwrap();
    let sum = sim.allocate(gpu(0), 8).unwrap();
    let before = sim.now_ns();
    sim.launch(gpu(0), DEFAULT, &fill(block, 4096)).unwrap();
    assert!(sim.now_ns() < before + 4_000, "a launch does not wait");
    sim.launch(gpu(0), other, &sum_of(block, 100, sum)).unwrap();
    assert_eq!(races(&sim), 1);
    let event = sim.record_event(gpu(0), DEFAULT).unwrap();
    sim.stream_wait_event(gpu(0), other, gpu(0), event).unwrap();
    sim.launch(gpu(0), other, &sum_of(block, 100, sum)).unwrap();
    assert_eq!(races(&sim), 0);
}

#[test]
fn what_a_kernel_must_not_be_given_is_an_error_and_changes_nothing() {
    let sim = shipped("4x24g-bare");
    let block = sim.allocate(gpu(0), 4096).unwrap();
    let far = sim.allocate(gpu(1), 4096).unwrap();
    let add = |sum: DeviceAddress, other: DeviceAddress| Launch::AddF32 {
        sum: sum.0,
        other: other.0,
        count: 10,
    };
    for (launch, why) in [
        (write(after(block, 4), 1), "misaligned address"),
        (check(block, 1, after(block, 1028)), "misaligned address"),
        (sum_of(block, 1, after(block, 1028)), "misaligned address"),
        (add(block, after(block, 1002)), "misaligned address"),
        (fill(block, 4097), "invalid address"),
        (fill(block, u64::MAX), "invalid address"),
        (write(block, 1 << 61), "invalid address"),
        (fill(DeviceAddress(0), 1), "illegal address"),
        (fill(DeviceAddress(u64::MAX), 1), "illegal address"),
        (fill(DeviceAddress(20 << 44), 1), "illegal address"),
        (fill(far, 1), "illegal address"),
        (add(block, after(block, 36)), "overlapping ranges"),
        (check(block, 4, after(block, 24)), "overlapping ranges"),
    ] {
        let error = sim.launch(gpu(0), DEFAULT, &launch).unwrap_err();
        assert!(matches!(error, BackendError::Driver { .. }), "{error}");
        assert!(error.to_string().contains(why), "{launch:?}: {error}");
        let findings = sim.ledger().take_findings();
        assert!(
            matches!(
                &*findings,
                [Finding::Misuse {
                    call: Call::Launch,
                    ..
                }]
            ),
            "{findings:?}"
        );
    }
    let stream = StreamId(4);
    assert!(sim.launch(gpu(0), stream, &fill(block, 1)).is_err());
    assert!(sim.launch(gpu(7), DEFAULT, &fill(block, 1)).is_err());
    assert!(read(&sim, gpu(0), block, 4096).iter().all(|b| *b == 0xA5));
}

#[test]
fn without_elements_nothing_is_done_whatever_the_addresses() {
    let sim = machine(1, 64 * MIB);
    let nowhere = DeviceAddress(3);
    for launch in [
        fill(nowhere, 0),
        write(nowhere, 0),
        check(nowhere, 0, nowhere),
        sum_of(nowhere, 0, nowhere),
    ] {
        sim.launch(gpu(0), DEFAULT, &launch).unwrap();
    }
    assert_eq!(sim.calls().of(Call::Launch), 4);
    assert_eq!(sim.ledger().findings(), []);
}

#[test]
fn a_peers_memory_is_read_and_written_and_broken_paths_invert_it() {
    for (near, peer, intact) in [(0, 3, true), (3, 0, true), (6, 7, false)] {
        let sim = shipped("8x24g-mixed");
        let (near, peer) = (gpu(near), gpu(peer));
        let block = sim.allocate(peer, 8192).unwrap();
        let sum = sim.allocate(near, 8).unwrap();
        sim.fill(near, sum, 8, 0, DEFAULT).unwrap();
        sim.launch(near, DEFAULT, &fill(block, 8192)).unwrap();
        sim.synchronize(near, DEFAULT).unwrap();
        let mut expected = vec![7; 8192];
        if !intact {
            expected[..4096].fill(!7);
        }
        assert_eq!(read(&sim, peer, block, 8192), expected);
        sim.launch(near, DEFAULT, &sum_of(block, 8192, sum))
            .unwrap();
        let seen = u64::from_le_bytes(read(&sim, near, sum, 8).try_into().unwrap());
        // What a broken path inverted once comes back as it was.
        assert_eq!(seen, checksum(&[7; 8192], 3));
        assert_eq!(sim.ledger().findings(), []);
        sim.launch(near, DEFAULT, &fill(block, 1)).unwrap();
        read(&sim, peer, block, 1);
        assert_eq!(races(&sim), 1, "the peer did not wait for the kernel");
    }
}

#[test]
fn a_page_of_a_peer_is_reached_only_if_mapped_for_the_launching_device() {
    let sim = machine(3, 64 * MIB);
    let (base, _) = mapped(&sim, DeviceMask(0b010));
    sim.launch(gpu(1), DEFAULT, &fill(base, 8)).unwrap();
    let error = sim.launch(gpu(2), DEFAULT, &fill(base, 8)).unwrap_err();
    assert!(error.to_string().contains("not mapped for gpu2"), "{error}");
}

#[test]
fn fault_plans_reach_launches() {
    let sim = machine(2, 64 * MIB);
    let block = sim.allocate(gpu(0), 64).unwrap();
    let launch = fill(block, 64);
    faults(&sim, r#"{"faults":[{"at":"launch","kind":"fail"}]}"#);
    let error = sim.launch(gpu(0), DEFAULT, &launch).unwrap_err();
    assert!(error.to_string().contains("injected by fault 0"), "{error}");
    assert_eq!(read(&sim, gpu(0), block, 64), [0xA5; 64]);

    faults(&sim, r#"{"faults":[{"at":"launch","kind":"bit_flip"}]}"#);
    sim.launch(gpu(0), DEFAULT, &launch).unwrap();
    let bytes = read(&sim, gpu(0), block, 64);
    let flipped: u32 = bytes.iter().map(|byte| (byte ^ 7).count_ones()).sum();
    assert_eq!(flipped, 1);

    let json = r#"{"faults":[{"at":"launch","kind":"delay","ns":1000000,"if":{"min_bytes":64}}]}"#;
    faults(&sim, json);
    sim.launch(gpu(0), DEFAULT, &fill(block, 63)).unwrap();
    let before = sim.now_ns();
    sim.launch(gpu(0), DEFAULT, &launch).unwrap();
    sim.synchronize(gpu(0), DEFAULT).unwrap();
    assert!(sim.now_ns() > before + 1_000_000);

    faults(
        &sim,
        r#"{"faults":[{"at":"launch","device":1,"kind":"lost"}]}"#,
    );
    let far = sim.allocate(gpu(1), 64).unwrap();
    assert!(sim.launch(gpu(1), DEFAULT, &fill(far, 1)).is_err());
    let lost = sim.launch(gpu(0), DEFAULT, &fill(far, 1)).unwrap_err();
    assert!(
        matches!(lost, BackendError::DeviceLost { device, .. } if device == gpu(1)),
        "{lost}"
    );
}

#[test]
fn a_gate_with_a_link_to_nowhere_fails_the_wait_for_its_stream_and_nothing_later() {
    let sim = machine(2, 64 * MIB);
    let block = sim.allocate(gpu(0), 64 * 1024).unwrap();
    sim.fill(gpu(0), block, 64 * 1024, 0, DEFAULT).unwrap();
    let gate = Launch::GatePackets {
        link: block.0,
        input: block.0 + 32 * 1024,
        output: block.0 + 32 * 1024,
        count: 4,
        gates: 1,
    };
    sim.launch(gpu(0), DEFAULT, &gate).unwrap();
    let error = sim.synchronize(gpu(0), DEFAULT).unwrap_err();
    assert!(error.to_string().contains("illegal address"), "{error}");
    assert_eq!(sim.ledger().take_findings().len(), 1);
    sim.synchronize(gpu(0), DEFAULT).unwrap();
    assert_eq!(read(&sim, gpu(0), block, 4), [0; 4]);
}
