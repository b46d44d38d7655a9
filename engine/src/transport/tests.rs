//! Ranks of one process over real sockets.

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::thread;

use super::*;
use crate::tp::exchange::Way;
use crate::tp::hello::Identity;
use crate::tp::reduce::sum_in_order;
use crate::tp::schedule::{Gate, GateKind, GateName, Schedule};
use crate::tp::slab::{SlabGeometry, SlabLayout};
use crate::tp::time::Deadlines;
use crate::tp::transport::{Transport, TransportSet};

/// The ranks of a group that meet on loopback.
pub(super) fn setups(ranks: u32, transports: &[Transport]) -> Vec<Setup> {
    const SECOND: u64 = 1_000_000_000;
    let geometry = SlabGeometry {
        n_layer: 2,
        n_embd: 16,
        ranks,
    };
    let layout = SlabLayout::aligned(geometry).unwrap();
    let identity = Identity::new(layout, Schedule::every_gate(2).unwrap());
    let mut setups = Setup::on_loopback(identity, &Key::new([9; 32])).unwrap();
    for setup in &mut setups {
        setup.config.transports = TransportSet::of(transports);
        setup.config.deadlines = Deadlines {
            connect_ns: 10 * SECOND,
            gate_ns: 5 * SECOND,
            first_gate_ns: 5 * SECOND,
            ..Deadlines::default()
        };
        setup.wait = Wait { spin_ns: 20_000 };
    }
    setups
}

/// A leader and its worker.
pub(super) fn pair(transport: Transport) -> [Setup; 2] {
    setups(2, &[transport]).try_into().unwrap()
}

/// Runs `work` on every rank of a group in threads of its own.
fn group(ranks: u32, transports: &[Transport], work: fn(&mut Rank)) {
    let open = |setup| move || work(&mut Rank::open(setup, &mut |_| {}).unwrap());
    let setups = setups(ranks, transports).into_iter();
    let threads: Vec<_> = setups.map(|setup| thread::spawn(open(setup))).collect();
    for thread in threads {
        thread.join().unwrap();
    }
}

pub(super) fn pass(rank: &mut Rank, gate: Gate, bytes: usize) {
    let (own, ranks) = (rank.session().rank(), rank.session().ranks());
    let fill = |rank: u32| -> Vec<u8> {
        (0..bytes)
            .map(|i| (i as u64).wrapping_mul(u64::from(rank) + 3).to_le_bytes()[0])
            .collect()
    };
    let mut places = vec![vec![0xee; bytes]; ranks as usize - 1];
    let mut incoming: Vec<&mut [u8]> = places.iter_mut().map(Vec::as_mut_slice).collect();
    rank.exchange(gate, &fill(own), &mut incoming).unwrap();
    let peers = (0..ranks).filter(|peer| *peer != own);
    for (place, peer) in places.iter().zip(peers) {
        assert!(
            *place == fill(peer),
            "rank {own} has not what rank {peer} sent"
        );
    }
}

/// One gate by the way that its size gives; every bit of the sum is compared.
fn sum(rank: &mut Rank, name: GateName, numbers: usize) -> Way {
    let (own, ranks) = (rank.session().rank(), rank.session().ranks());
    let part = |rank: u32| -> Vec<u8> {
        let number = |i: u16| f32::from(i) * 1.1 + f32::from(u16::try_from(rank).unwrap()) / 3.0;
        (0..numbers)
            .flat_map(|i| number(u16::try_from(i % 65_521).unwrap()).to_le_bytes())
            .collect()
    };
    let parts: Vec<Vec<u8>> = (0..ranks).map(part).collect();
    let mut want = vec![0; numbers * 4];
    sum_in_order(&mut want, parts.iter().map(Vec::as_slice));
    let kind = GateKind::Big {
        bytes: want.len() as u64,
    };
    let gate = Gate {
        layer: 0,
        name,
        kind,
    };
    let mut vector = parts[own as usize].clone();
    let way = rank.session().way(vector.len());
    match way {
        Way::Ring => rank.exchange_in_ring(gate, &mut vector).unwrap(),
        Way::OneShot => {
            let mut places = vec![vec![0xee; vector.len()]; ranks as usize - 1];
            rank.exchange(gate, &vector, &mut places).unwrap();
            places.insert(own as usize, vector.clone());
            sum_in_order(&mut vector, places.iter().map(Vec::as_slice));
        }
    }
    assert!(vector == want, "rank {own} of {ranks}: a wrong sum");
    way
}

fn all_sums(rank: &mut Rank) {
    let mut ways = Vec::new();
    for numbers in [1, 4096, 40_000, 200_001, 4096, 1 << 19] {
        ways.push(sum(rank, GateName::FeedForward, numbers));
    }
    let large = if rank.session().ranks() > 2 {
        Way::Ring
    } else {
        Way::OneShot
    };
    assert_eq!((ways[0], ways[5]), (Way::OneShot, large));
    end(rank);
}

fn end(rank: &mut Rank) {
    if rank.session().rank() == 0 {
        rank.finish().unwrap();
    } else {
        assert!(matches!(rank.hear().unwrap(), Said::Finished));
        rank.close();
    }
}

pub(super) fn all_sizes(rank: &mut Rank) {
    let schedule = Schedule::every_gate(2).unwrap();
    for seq in 1..=40 {
        pass(rank, schedule.row_gate(seq), 64);
    }
    for bytes in [1, 3, 65_535, (2 << 20) - 1, 2 << 20, (2 << 20) + 1, 7 << 20] {
        let gate = Gate {
            layer: 1,
            name: GateName::FeedForward,
            kind: GateKind::Big {
                bytes: bytes as u64,
            },
        };
        pass(rank, gate, bytes);
    }
    // All are through their gates before the leader ends the run.
    rank.check_step(47, 7).unwrap();
    let leads = rank.session().rank() == 0;
    let mut missing = if leads { rank.session().ranks() - 1 } else { 1 };
    while missing > 0 {
        if matches!(rank.hear().unwrap(), Said::InStep { .. }) {
            missing -= 1;
        }
    }
    end(rank);
}

#[test]
fn two_ranks_pass_gates_of_all_sizes_over_tcp() {
    group(2, &[Transport::Tcp], all_sizes);
}

#[test]
fn two_ranks_of_one_host_choose_shared_memory() {
    group(2, &[Transport::Shm, Transport::Tcp], |rank| {
        assert_eq!(rank.chosen().0, Transport::Shm, "{}", rank.chosen().1);
        all_sizes(rank);
    });
}

#[test]
fn four_ranks_pass_gates_to_each_other_either_way() {
    group(4, &[Transport::Tcp], all_sizes);
    group(4, &[Transport::Shm], all_sizes);
}

#[test]
fn up_to_eight_ranks_have_the_bits_of_the_sum_in_order_whichever_way() {
    for transports in [&[Transport::Tcp], &[Transport::Shm]] {
        group(3, transports, all_sums);
        group(8, transports, all_sums);
    }
}

#[test]
fn a_rank_that_dies_in_a_ring_ends_all_others_with_its_name() {
    for transports in [&[Transport::Tcp], &[Transport::Shm]] {
        group(5, transports, |rank| {
            let own = rank.session().rank();
            let gate = |bytes| Gate {
                layer: 1,
                name: GateName::Attention,
                kind: GateKind::Big { bytes },
            };
            let mut vector = vec![own.to_le_bytes()[0]; 4 << 20];
            if own == 2 {
                // It goes without a word.
                return;
            }
            let clock = Clock::start();
            let error = rank
                .exchange_in_ring(gate(4 << 20), &mut vector)
                .unwrap_err();
            let error = error.to_string();
            assert!(error.contains("rank 2"), "rank {own}: {error}");
            assert!(error.contains("layer 1 gate attn sequence 1"), "{error}");
            assert!(clock.now().0 < 3_000_000_000, "{error}");
        });
    }
}

#[test]
fn gates_of_64_mib_pass_through_buffers_of_2_kib_and_through_large_ones() {
    for (buffer_bytes, bytes) in [(Some(2048), 3 << 20), (None, 64 << 20)] {
        let [leader, worker] = pair(Transport::Tcp).map(|mut setup| {
            setup.buffer_bytes = buffer_bytes;
            move || big(Rank::open(setup, &mut |_| {}).unwrap(), bytes)
        });
        let leader = thread::spawn(leader);
        worker();
        leader.join().unwrap();
    }
}

fn big(mut rank: Rank, bytes: usize) {
    let kind = GateKind::Big {
        bytes: bytes as u64,
    };
    let gate = Gate {
        layer: 0,
        name: GateName::Attention,
        kind,
    };
    pass(&mut rank, gate, bytes);
}

#[test]
fn a_peer_that_dies_is_noticed_at_once_in_a_gate_and_while_idle() {
    for transport in [Transport::Tcp, Transport::Shm] {
        let [leader, worker] = pair(transport);
        let leader = thread::spawn(move || {
            let mut rank = Rank::open(leader, &mut |_| {}).unwrap();
            let gate = Schedule::every_gate(2).unwrap().row_gate(1);
            let clock = Clock::start();
            let mut place = [0; 64];
            let error = rank
                .exchange(gate, &[1; 64], &mut [&mut place])
                .unwrap_err();
            assert!(
                error.to_string().starts_with("rank 1, layer 0 gate attn"),
                "{error}"
            );
            assert!(clock.now().0 < 3_000_000_000, "{error}");
        });
        // It goes without a word.
        drop(Rank::open(worker, &mut |_| {}).unwrap());
        leader.join().unwrap();
    }
}

/// The abstract sockets by which ranks of this process hand over shared memory.
fn memory_sockets() -> Vec<SocketAddr> {
    let open = std::fs::read_dir("/proc/self/fd").unwrap();
    let links = open.filter_map(|file| std::fs::read_link(file.ok()?.path()).ok());
    let own: Vec<String> = links.map(|it| it.to_string_lossy().into_owned()).collect();
    let all = std::fs::read_to_string("/proc/net/unix").unwrap();
    let named = all.lines().filter_map(|line| {
        let mut fields = line.split_whitespace().skip(6);
        let (inode, name) = (fields.next()?, fields.next()?.strip_prefix('@')?);
        let ours = own.contains(&format!("socket:[{inode}]"));
        (ours && name.starts_with("ds4-tp-")).then(|| name.to_owned())
    });
    named
        .map(|name| SocketAddr::from_abstract_name(name).unwrap())
        .collect()
}

#[test]
fn strangers_at_the_socket_of_shared_memory_keep_no_rank_from_it() {
    let transports = [Transport::Shm, Transport::Tcp];
    let [leader, worker]: [Setup; 2] = setups(2, &transports).try_into().unwrap();
    let leader = thread::spawn(move || {
        let mut strangers = Vec::new();
        let mut notice = |_: &str| {
            // More than may be at it at once; they stay and say nothing.
            for address in memory_sockets() {
                let more = (0..40).map(|_| UnixStream::connect_addr(&address).unwrap());
                strangers.extend(more);
            }
        };
        let mut rank = Rank::open(leader, &mut notice).unwrap();
        assert_eq!(rank.chosen().0, Transport::Shm, "{}", rank.chosen().1);
        assert!(strangers.len() >= 80);
        rank.finish().unwrap();
    });
    let mut rank = Rank::open(worker, &mut |_| {}).unwrap();
    assert!(matches!(rank.hear().unwrap(), Said::Finished));
    leader.join().unwrap();
}

#[test]
fn a_rank_that_waits_asleep_takes_no_processor_time() {
    let [leader, mut worker] = pair(Transport::Tcp);
    let leader = thread::spawn(move || {
        let mut rank = Rank::open(leader, &mut |_| {}).unwrap();
        let clock = Clock::start();
        while clock.now().0 < 1_000_000_000 {
            let _ = rustix::event::poll(
                &mut [],
                Some(&wait::timespec(std::time::Duration::from_millis(100))),
            );
            rank.serve().unwrap();
        }
        rank.finish().unwrap();
    });
    worker.wait = Wait::BLOCK;
    let mut rank = Rank::open(worker, &mut |_| {}).unwrap();
    let before = processor_ns();
    assert!(matches!(rank.hear().unwrap(), Said::Finished));
    let used = processor_ns() - before;
    assert!(used < 50_000_000, "{used} ns of a second");
    leader.join().unwrap();
}

/// Processor time of this thread.
fn processor_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split(' ').next().unwrap().parse().unwrap()
}
