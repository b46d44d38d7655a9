//! Gates take no memory once they have passed for a while, whichever way they go.

use std::sync::{Arc, Barrier};
use std::thread;

use ds4_engine::tp::hello::Identity;
use ds4_engine::tp::schedule::{Gate, GateKind, GateName, Schedule};
use ds4_engine::tp::slab::{SlabGeometry, SlabLayout};
use ds4_engine::tp::transport::{Transport, TransportSet};
use ds4_engine::tp::trust::Key;
use ds4_engine::transport::{Rank, Setup, Wait};

const RANKS: u32 = 4;
const GATES: usize = 100;
const BYTES: usize = 200_000;

fn setups(path: Transport, wait: Wait) -> Vec<Setup> {
    let geometry = SlabGeometry {
        ranks: RANKS,
        ..SlabGeometry::new(1, 4)
    };
    let layout = SlabLayout::aligned(geometry).unwrap();
    let identity = Identity::new(layout, Schedule::every_gate(1).unwrap());
    let mut setups = Setup::on_loopback(identity, &Key::new([9; 32])).unwrap();
    for setup in &mut setups {
        setup.config.transports = TransportSet::of(&[path]);
        setup.wait = wait;
    }
    setups
}

/// Memory taken by the later half of many gates, both ways in turn.
fn taken(rank: &mut Rank) -> u64 {
    let gate = Gate {
        layer: 0,
        name: GateName::Attention,
        kind: GateKind::Big {
            bytes: BYTES as u64,
        },
    };
    let mut vector = vec![0; BYTES];
    let mut incoming = vec![vec![0; BYTES]; RANKS as usize - 1];
    let mut pass = || {
        for _ in 0..GATES {
            rank.exchange(gate, &vector, &mut incoming).unwrap();
            rank.exchange_in_ring(gate, &mut vector).unwrap();
        }
    };
    pass();
    allocation_counter::measure(pass).count_total
}

#[test]
fn gates_of_four_ranks_take_no_memory_whichever_way_they_go() {
    for path in [Transport::Tcp, Transport::Shm] {
        for wait in [Wait::ADAPTIVE, Wait::BLOCK] {
            // A rank that is gone ends the others, also those that are behind.
            let all = Arc::new(Barrier::new(RANKS as usize));
            let threads = setups(path, wait).into_iter().map(|setup| {
                let all = Arc::clone(&all);
                thread::spawn(move || {
                    let mut rank = Rank::open(setup, &mut |_| {}).unwrap();
                    let taken = taken(&mut rank);
                    all.wait();
                    taken
                })
            });
            let threads: Vec<_> = threads.collect();
            for thread in threads {
                assert_eq!(thread.join().unwrap(), 0, "{path}, {wait:?}");
            }
        }
    }
}
