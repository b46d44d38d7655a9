//! Gates take no memory once they have passed for a while, whichever way they go.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Barrier};
use std::thread;

use ds4_engine::tp::hello::Identity;
use ds4_engine::tp::schedule::{Gate, GateKind, GateName, Schedule};
use ds4_engine::tp::session::{Config, Dialect};
use ds4_engine::tp::slab::{SlabGeometry, SlabLayout};
use ds4_engine::tp::time::Deadlines;
use ds4_engine::tp::transport::{Transport, TransportSet};
use ds4_engine::tp::trust::Key;
use ds4_engine::transport::{Listening, Rank, Remote, Setup, Wait};

const RANKS: u32 = 4;
const GATES: usize = 100;
const BYTES: usize = 200_000;

fn open(rank: u32, ports: &[u16], listening: Listening, path: Transport, wait: Wait) -> Rank {
    let geometry = SlabGeometry {
        ranks: RANKS,
        ..SlabGeometry::new(1, 4)
    };
    let remotes = (0..).zip(ports).take(rank as usize);
    let setup = Setup {
        config: Config {
            rank,
            identity: Identity {
                model: [7; 32],
                n_vocab: 32,
                quant_bits: 8,
                switches: 0,
                layout: SlabLayout::aligned(geometry).unwrap(),
                schedule: Schedule::every_gate(1).unwrap(),
                split_logits: false,
                payload_crc: true,
            },
            context: 64,
            transports: TransportSet::of(&[path]),
            deadlines: Deadlines::default(),
            dialect: Dialect::Native,
        },
        key: Key::new([9; 32]),
        encrypt: false,
        listening: (rank + 1 < RANKS).then_some(listening),
        remotes: remotes
            .map(|(rank, port)| Remote {
                rank,
                host: "127.0.0.1".to_owned(),
                port: *port,
            })
            .collect(),
        wait,
        buffer_bytes: None,
        rdma: ds4_engine::transport::Rdma::default(),
        collective: None,
        stop: Arc::new(AtomicBool::new(false)),
    };
    Rank::open(setup, &mut |_| {}).unwrap()
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
            let sockets: Vec<Listening> = (0..RANKS)
                .map(|_| Listening::open("127.0.0.1", 0).unwrap())
                .collect();
            let addresses = sockets.iter().map(Listening::addresses);
            let ports: Vec<u16> = addresses.map(|it| it.first().unwrap().port()).collect();
            // A rank that is gone ends the others, also those that are behind.
            let all = Arc::new(Barrier::new(RANKS as usize));
            let threads = (0..).zip(sockets).map(|(rank, socket)| {
                let ports = ports.clone();
                let all = Arc::clone(&all);
                thread::spawn(move || {
                    let mut rank = open(rank, &ports, socket, path, wait);
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
