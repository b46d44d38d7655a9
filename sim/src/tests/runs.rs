//! Whole runs: accounting, determinism, size, threads.

use ds4_engine::backend::{Backend, PageId};
use ds4_engine::bytes::{GIB, MIB};
use ds4_engine::device::{DeviceAddress, DeviceMask};
use proptest::prelude::*;

use super::*;
use crate::{Call, SimConfig};

#[test]
fn eight_full_cards_fit_on_a_small_host() {
    let sim = shipped("8xh200");
    for device in DeviceMask::first(8).iter() {
        let a = sim.allocate(device, 140 * GIB).unwrap();
        sim.fill(device, a, 140 * GIB, 3, DEFAULT).unwrap();
        sim.write(device, after(a, 100 * GIB), b"tag").unwrap();
    }
    assert!(sim.resident_bytes() < MIB, "{}", sim.resident_bytes());
}

#[derive(Clone, Debug)]
enum Step {
    Allocate(u64),
    Free(usize),
    Page(usize),
    Unpage(usize),
    Copy(usize, usize),
    Take(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (1..20 * MIB).prop_map(Step::Allocate),
        (0_usize..8).prop_map(Step::Free),
        (0_usize..8).prop_map(Step::Page),
        (0_usize..8).prop_map(Step::Unpage),
        (0_usize..8, 0_usize..8).prop_map(|(from, to)| Step::Copy(from, to)),
        (0..4 * MIB).prop_map(Step::Take),
    ]
}

/// Runs steps on device 0 and checks the accounting after each; returns hash and virtual time.
fn run(steps: &[Step], reuse: bool) -> (u64, u64) {
    let mut config = SimConfig::uniform(2, 64 * MIB);
    config.reuse_addresses = reuse;
    let sim = SimBackend::new(config).unwrap();
    let base = sim.reserve(gpu(0), 8 * PAGE).unwrap();
    let mut slots: [Option<PageId>; 8] = [None; 8];
    let mut blocks: Vec<(DeviceAddress, u64)> = Vec::new();
    let mut taken = 0;
    for step in steps {
        match *step {
            Step::Allocate(bytes) => {
                let free = sim.memory_info(gpu(0)).unwrap().free_bytes;
                match sim.allocate(gpu(0), bytes) {
                    Ok(address) => blocks.push((address, bytes)),
                    Err(_) => assert!(bytes.next_multiple_of(PAGE) > free),
                }
            }
            Step::Free(index) if index < blocks.len() => {
                sim.free(gpu(0), blocks.remove(index).0).unwrap();
            }
            Step::Page(slot) if slots[slot].is_none() => {
                if let Ok(page) = sim.create_page(gpu(0)) {
                    let at = after(base, slot as u64 * PAGE);
                    sim.map(gpu(0), at, page, DeviceMask::EMPTY).unwrap();
                    slots[slot] = Some(page);
                }
            }
            Step::Unpage(slot) => {
                if let Some(page) = slots[slot].take() {
                    sim.unmap(gpu(0), after(base, slot as u64 * PAGE)).unwrap();
                    sim.destroy_page(gpu(0), page).unwrap();
                }
            }
            Step::Copy(from, to) if from.max(to) < blocks.len() => {
                let bytes = blocks[from].1.min(blocks[to].1);
                sim.copy_local(gpu(0), blocks[from].0, blocks[to].0, bytes, DEFAULT)
                    .unwrap();
            }
            Step::Take(bytes) => taken += sim.take_memory(gpu(0), bytes),
            Step::Free(_) | Step::Page(_) | Step::Copy(..) => {}
        }
        let charged: u64 = blocks
            .iter()
            .map(|(_, bytes)| bytes.next_multiple_of(PAGE))
            .sum();
        let pages = slots.iter().flatten().count() as u64 * PAGE;
        let free = sim.memory_info(gpu(0)).unwrap().free_bytes;
        assert_eq!(free + charged + pages + taken, 64 * MIB);
        let mut sorted = blocks.clone();
        sorted.sort_unstable();
        assert!(
            sorted
                .windows(2)
                .all(|pair| pair[0].0.0 + pair[0].1 <= pair[1].0.0)
        );
    }
    assert_eq!(sim.ledger().findings(), []);
    (sim.state_hash(), sim.now_ns())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn accounting_holds_and_the_same_calls_give_the_same_state_and_time(
        steps in proptest::collection::vec(step(), 1..40), reuse: bool,
    ) {
        prop_assert_eq!(run(&steps, reuse), run(&steps, reuse));
    }
}

#[test]
fn threads_on_different_devices_and_crossing_copies_finish() {
    let sim = machine(4, GIB);
    let blocks: Vec<DeviceAddress> = (0..4)
        .map(|index| sim.allocate(gpu(index), MIB).unwrap())
        .collect();
    std::thread::scope(|scope| {
        for index in 0..4 {
            let (sim, blocks) = (&sim, &blocks);
            scope.spawn(move || {
                for round in 1..200 {
                    let to = (index + round) % 4;
                    let (source, target) = ((gpu(index), blocks[index]), (gpu(to), blocks[to]));
                    sim.copy_peer(source, target, 64, DEFAULT).unwrap();
                    let page = sim.create_page(gpu(index)).unwrap();
                    sim.destroy_page(gpu(index), page).unwrap();
                }
            });
        }
    });
    assert_eq!(sim.calls().of(Call::CreatePage), 4 * 199);
}
