//! Both ends have the right bytes, or both an error that names the cause, within the deadline:
//! paths on simulated devices, and whole ranks on them.

#![expect(
    clippy::panic_in_result_fn,
    reason = "wrong bytes fail the test; a rank's error is a result"
)]

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;

use ds4_engine::tp::hello::Identity;
use ds4_engine::tp::schedule::{Gate, GateKind, GateName, Schedule};
use ds4_engine::tp::session::{Config, Dialect};
use ds4_engine::tp::slab::{SlabGeometry, SlabLayout};
use ds4_engine::tp::time::{Deadlines, Time};
use ds4_engine::tp::transport::{Transport, TransportSet};
use ds4_engine::tp::trust::Key;
use ds4_engine::transport::verbs::{
    Endpoint, GidKind, LinkLayer, Mtu, PairKind, Status, VerbsPath, Wish, connect_pair, survey,
    take,
};
use ds4_engine::transport::{Clock, Listening, Rank, Rdma, Remote, Said, Setup, Wait};

use super::*;

fn end(fabric: &Fabric, host: usize, kind: PairKind) -> Endpoint {
    let library = fabric.library(host);
    let taken = take(&survey(&*library).unwrap(), &Wish::default(), &[]).unwrap();
    let best = taken.report.ranked()[0].index;
    let gids = &taken.report.table.gids;
    let raw = gids.iter().find(|gid| gid.index == best).unwrap().raw;
    let psn = u32::try_from(host).unwrap() + 7;
    Endpoint::prepare(&*library, &taken, raw, kind, psn).unwrap()
}

fn paths(fabric: &Fabric, kind: PairKind) -> (VerbsPath, VerbsPath) {
    connect_pair(end(fabric, 0, kind), end(fabric, 1, kind)).unwrap()
}

fn pattern(bytes: usize, salt: u64) -> Vec<u8> {
    (0..bytes as u64)
        .map(|i| (i.wrapping_mul(salt * 2 + 3) >> 3).to_le_bytes()[0])
        .collect()
}

/// Sends `bytes` both ways at once; what came on each side, or why a side ended.
fn exchange(
    one: &mut VerbsPath,
    two: &mut VerbsPath,
    bytes: usize,
) -> [Result<Vec<u8>, String>; 2] {
    let out = [pattern(bytes, 1), pattern(bytes, 2)];
    let mut come = [vec![0xee; bytes], vec![0xee; bytes]];
    let (mut sent, mut got) = ([0; 2], [0; 2]);
    let mut ends = [None, None];
    let head = 32.min(bytes);
    // A second after one side has ended, nothing new comes to the other.
    let mut last = 40_000;
    for round in 0..40_000_u64 {
        if round > last {
            break;
        }
        let now = Time(round * 500_000);
        for (side, path) in [&mut *one, &mut *two].into_iter().enumerate() {
            if ends[side].is_some() {
                continue;
            }
            let mut step = || -> std::io::Result<()> {
                path.tend(now)?;
                let (first, rest) = out[side].split_at(head);
                let (first, rest) = if sent[side] < head {
                    (&first[sent[side]..], rest)
                } else {
                    (&[][..], &rest[sent[side] - head..])
                };
                match path.write(first, rest) {
                    Ok(count) => sent[side] += count,
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error),
                }
                let at = got[side];
                match path.read(&mut [], &mut come[side][at..]) {
                    Ok(count) => got[side] += count,
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error),
                }
                Ok(())
            };
            ends[side] = step().err().map(|error| error.to_string());
            if ends[side].is_some() {
                last = last.min(round + 2000);
            }
        }
        if got == [bytes; 2] {
            break;
        }
    }
    let mut sides = (0..2).map(|side| match &ends[side] {
        Some(why) if got[side] < bytes => Err(why.clone()),
        _ if got[side] < bytes => Err("stalled".to_owned()),
        _ => Ok(std::mem::take(&mut come[side])),
    });
    [sides.next().unwrap(), sides.next().unwrap()]
}

fn right(sides: &[Result<Vec<u8>, String>; 2], bytes: usize) -> bool {
    let want = [pattern(bytes, 2), pattern(bytes, 1)];
    sides
        .iter()
        .zip(want)
        .all(|(side, want)| side.as_ref() == Ok(&want))
}

#[test]
fn bytes_of_all_lengths_pass_both_ways_over_both_kinds() {
    for kind in [PairKind::Reliable, PairKind::Unreliable] {
        let fabric = Fabric::new(VerbsPlan::quiet(2));
        let (mut one, mut two) = paths(&fabric, kind);
        for bytes in [1, 31, 33, 16_416, 32_768, 32_769, 1 << 20, (3 << 20) + 5] {
            let sides = exchange(&mut one, &mut two, bytes);
            assert!(right(&sides, bytes), "{kind}, {bytes} bytes");
        }
        assert_eq!(one.resent() + two.resent(), 0, "{kind}");
        drop((one, two));
        assert_eq!(fabric.alive(), (0, 0), "everything is given back");
    }
}

#[test]
fn messages_are_no_longer_than_either_port_allows() {
    for (here, there) in [(1000, 1 << 30), (1 << 30, 16 << 10), (1, 7)] {
        let mut plan = VerbsPlan::quiet(2);
        plan.hosts[0].max_message_bytes = here;
        plan.hosts[1].max_message_bytes = there;
        let fabric = Fabric::new(plan);
        let (mut one, mut two) = paths(&fabric, PairKind::Reliable);
        let sides = exchange(&mut one, &mut two, 5000);
        assert!(right(&sides, 5000), "{here} {there}");
    }
}

#[test]
fn what_unreliable_connections_lose_or_delay_is_sent_again() {
    let mut resent = 0;
    for seed in 0..60 {
        let plan = VerbsPlan {
            seed,
            lost_per_mille: 10 + 10 * (seed % 30),
            late_per_mille: 50 * (seed % 4),
            ..VerbsPlan::quiet(2)
        };
        let fabric = Fabric::new(plan);
        let (mut one, mut two) = paths(&fabric, PairKind::Unreliable);
        for bytes in [64, 200_000, 1_000_000] {
            let sides = exchange(&mut one, &mut two, bytes);
            assert!(right(&sides, bytes), "seed {seed}, {bytes} bytes");
        }
        resent += one.resent() + two.resent();
    }
    assert!(resent > 300, "{resent}");
}

#[test]
fn every_status_ends_the_path_by_its_name() {
    for (kind, bytes) in [
        (PairKind::Reliable, 250_000),
        (PairKind::Unreliable, 20_000),
    ] {
        for status in Status::ALL.iter().copied().chain([Status::Unknown(77)]) {
            for nth in [0, 1, 5] {
                for receive in [false, true] {
                    let mut plan = VerbsPlan::quiet(2);
                    plan.faults.push(if receive {
                        VerbsFault::Receive {
                            host: 1,
                            nth,
                            status,
                        }
                    } else {
                        VerbsFault::Write {
                            host: 0,
                            nth,
                            status,
                        }
                    });
                    let fabric = Fabric::new(plan);
                    let (mut one, mut two) = paths(&fabric, kind);
                    let sides = exchange(&mut one, &mut two, bytes);
                    if status == Status::Success {
                        assert!(right(&sides, bytes));
                        continue;
                    }
                    let hurt = &sides[usize::from(receive)];
                    let why = hurt.as_ref().unwrap_err();
                    let code = format!("status {}", status.code());
                    assert!(
                        why.contains(&code) && why.contains("RDMA"),
                        "{kind} {status}: {why}"
                    );
                    assert!(!right(&sides, bytes));
                }
            }
        }
    }
}

#[test]
fn a_peer_of_another_key_or_number_is_not_reached() {
    let fabric = Fabric::new(VerbsPlan::quiet(2));
    let (one, two) = (
        end(&fabric, 0, PairKind::Reliable),
        end(&fabric, 1, PairKind::Reliable),
    );
    let (first, mut second) = (one.said([0; 16]), two.said([0; 16]));
    second.key ^= 0x55;
    let (mut one, _two) = (one.connect(&second).unwrap(), two.connect(&first).unwrap());
    one.write(b"head", b"body").unwrap();
    let why = one.tend(Time(1)).unwrap_err().to_string();
    assert!(why.contains("status 10"), "{why}");
    let (one, two) = (
        end(&fabric, 0, PairKind::Reliable),
        end(&fabric, 1, PairKind::Reliable),
    );
    let mut second = two.said([0; 16]);
    second.kind = PairKind::Unreliable.code();
    assert!(
        one.connect(&second)
            .unwrap_err()
            .to_string()
            .contains("kind")
    );
    drop(two);
}

#[test]
fn an_address_is_looked_up_anew_by_what_it_is_and_not_by_its_place() {
    let before = Fabric::new(VerbsPlan::quiet(1));
    let taken = take(&survey(&*before.library(0)).unwrap(), &Wish::default(), &[]).unwrap();
    let mut plan = VerbsPlan::quiet(1);
    let raw = plan.hosts[0].gids[1].raw;
    plan.hosts[0].gids[1].index = 5;
    let prepared = |plan: &VerbsPlan| {
        let library = Fabric::new(plan.clone()).library(0);
        Endpoint::prepare(&*library, &taken, raw, PairKind::Reliable, 1)
    };
    assert!(prepared(&plan).unwrap().words("sim0").contains("GID 5"));
    plan.hosts[0].gids.truncate(1);
    let why = prepared(&plan).unwrap_err().to_string();
    assert!(why.contains("::ffff:10.8.0.1 no more"), "{why}");
}

// Whole ranks.

const SECOND: u64 = 1_000_000_000;

fn setup(fabric: &Fabric, rank: u32, ports: &[u16], how: &How) -> Setup {
    let ranks = u32::try_from(ports.len()).unwrap();
    let geometry = SlabGeometry {
        n_layer: 2,
        n_embd: 16,
        ranks,
    };
    let remotes = (0..rank).map(|lower| Remote {
        rank: lower,
        host: "127.0.0.1".to_owned(),
        port: ports[lower as usize],
    });
    Setup {
        config: Config {
            rank,
            identity: Identity {
                model: [7; 32],
                n_vocab: 32,
                quant_bits: 8,
                switches: 0,
                layout: SlabLayout::aligned(geometry).unwrap(),
                schedule: Schedule::every_gate(2).unwrap(),
                split_logits: false,
                payload_crc: true,
            },
            context: 64,
            transports: TransportSet::of(how.transports),
            deadlines: Deadlines {
                connect_ns: 10 * SECOND,
                gate_ns: 2 * SECOND,
                first_gate_ns: 2 * SECOND,
                ..Deadlines::default()
            },
            dialect: Dialect::Native,
        },
        key: Key::new([9; 32]),
        encrypt: false,
        listening: None,
        remotes: remotes.collect(),
        wait: Wait {
            spin_ns: how.spin_ns,
        },
        buffer_bytes: None,
        collective: None,
        rdma: Rdma {
            library: how.library.then(|| fabric.library(rank as usize)),
            why_none: "no library was given".to_owned(),
            wish: Wish {
                device: None,
                gid_index: how.gid_index.filter(|_| rank == 0),
            },
            unreliable: how.unreliable,
        },
        stop: Arc::new(AtomicBool::new(false)),
    }
}

#[derive(Clone)]
struct How {
    transports: &'static [Transport],
    library: bool,
    unreliable: bool,
    gid_index: Option<u32>,
    gates: u64,
    spin_ns: u64,
}

impl Default for How {
    fn default() -> Self {
        Self {
            transports: &[Transport::Rdma],
            library: true,
            unreliable: false,
            gid_index: None,
            gates: 12,
            spin_ns: 20_000,
        }
    }
}

/// What each rank says at its end: the transport and its reason, or the error.
type Said2 = Vec<Result<(Transport, String), String>>;

/// Runs a group to its end. Bytes that are wrong fail the test at once.
fn run(plan: VerbsPlan, how: &How) -> (Said2, Fabric) {
    let fabric = Fabric::new(plan.clone());
    let ranks = plan.hosts.len();
    let sockets: Vec<Listening> = (0..ranks)
        .map(|_| Listening::open("127.0.0.1", 0).unwrap())
        .collect();
    let ports: Vec<u16> = sockets.iter().map(|it| it.addresses()[0].port()).collect();
    let mut threads = Vec::new();
    for (rank, socket) in (0_u32..).zip(sockets) {
        let mut setup = setup(&fabric, rank, &ports, how);
        setup.listening = (rank as usize + 1 < ranks).then_some(socket);
        let gates = how.gates;
        threads.push(thread::spawn(move || one(setup, gates)));
    }
    let said = threads.into_iter().map(|it| it.join().unwrap()).collect();
    (said, fabric)
}

fn one(setup: Setup, gates: u64) -> Result<(Transport, String), String> {
    let clock = Clock::start();
    let mut rank = Rank::open(setup, &mut |_| {}).map_err(|error| error.to_string())?;
    let (chosen, why) = rank.chosen();
    let chosen = (chosen, why.to_owned());
    let done = pass_all(&mut rank, gates).map_err(|error| error.to_string());
    assert!(clock.now().0 < 20 * SECOND, "too late: {done:?}");
    done.map(|()| chosen)
}

fn pass_all(rank: &mut Rank, gates: u64) -> Result<(), ds4_engine::transport::LinkError> {
    let schedule = Schedule::every_gate(2).unwrap();
    let big = Gate {
        layer: 1,
        name: GateName::FeedForward,
        kind: GateKind::Big { bytes: 700_001 },
    };
    for seq in 1..=gates {
        pass(rank, schedule.row_gate(seq), 64)?;
        if seq.is_multiple_of(6) {
            pass(rank, big, 700_001)?;
        }
    }
    // All are through their gates before anyone ends the run.
    rank.check_step(gates, 7)?;
    let mut missing = if rank.session().rank() == 0 {
        rank.session().ranks() - 1
    } else {
        1
    };
    while missing > 0 {
        if matches!(rank.hear()?, Said::InStep { .. }) {
            missing -= 1;
        }
    }
    if rank.session().rank() == 0 {
        rank.finish()
    } else {
        while !matches!(rank.hear()?, Said::Finished) {}
        rank.close();
        Ok(())
    }
}

fn pass(rank: &mut Rank, gate: Gate, bytes: usize) -> Result<(), ds4_engine::transport::LinkError> {
    let (own, ranks) = (rank.session().rank(), rank.session().ranks());
    let mut places = vec![vec![0xee; bytes]; ranks as usize - 1];
    let mut incoming: Vec<&mut [u8]> = places.iter_mut().map(Vec::as_mut_slice).collect();
    rank.exchange(gate, &pattern(bytes, u64::from(own)), &mut incoming)?;
    let peers = (0..ranks).filter(|peer| *peer != own);
    for (place, peer) in places.iter().zip(peers) {
        assert!(
            *place == pattern(bytes, u64::from(peer)),
            "wrong bytes taken for right"
        );
    }
    Ok(())
}

/// All went well by one transport, or all have an error; the reasons.
fn all_or_none(said: &Said2) -> Result<Transport, Vec<String>> {
    let good = said.iter().filter(|it| it.is_ok()).count();
    assert!(good == 0 || good == said.len(), "one-sided: {said:?}");
    match said[0] {
        Ok((transport, _)) => {
            let same = said
                .iter()
                .all(|it| it.as_ref().is_ok_and(|it| it.0 == transport));
            assert!(same, "{said:?}");
            Ok(transport)
        }
        Err(_) => Err(said.iter().map(|it| it.clone().unwrap_err()).collect()),
    }
}

#[test]
fn ranks_pass_gates_over_rdma_and_give_everything_back() {
    for (hosts, unreliable) in [(2, false), (2, true), (4, false)] {
        let how = How {
            unreliable,
            ..How::default()
        };
        let (said, fabric) = run(VerbsPlan::quiet(hosts), &how);
        assert_eq!(all_or_none(&said), Ok(Transport::Rdma), "{said:?}");
        let why = &said[0].as_ref().unwrap().1;
        let kind = if unreliable {
            "UC on sim0"
        } else {
            "RC on sim0"
        };
        assert!(why.contains(kind) && why.contains("GID 1"), "{why}");
        assert_eq!(fabric.alive(), (0, 0));
    }
}

#[test]
fn unreliable_connections_are_made_where_reliable_ones_cannot_be() {
    for lacking in [0, 1] {
        let mut plan = VerbsPlan::quiet(2);
        plan.hosts[lacking].reliable = false;
        plan.lost_per_mille = 30;
        let (said, _) = run(plan, &How::default());
        assert_eq!(all_or_none(&said), Ok(Transport::Rdma), "{said:?}");
        assert!(said[0].as_ref().unwrap().1.contains("UC on"), "{said:?}");
    }
}

#[test]
fn an_address_that_does_not_carry_the_probe_is_followed_by_the_next() {
    let mut plan = VerbsPlan::quiet(2);
    let raw = plan.hosts[1].gids[1].raw;
    plan.faults.push(VerbsFault::Unroutable { raw });
    let (said, _) = run(plan.clone(), &How::default());
    assert_eq!(all_or_none(&said), Ok(Transport::Rdma), "{said:?}");
    assert!(said[0].as_ref().unwrap().1.contains("GID 0"), "{said:?}");
    // With the user's choice there is no next.
    let how = How {
        gid_index: Some(1),
        ..How::default()
    };
    let (said, _) = run(plan, &how);
    let why = all_or_none(&said).unwrap_err();
    assert!(why.iter().all(|it| it.contains("status 12")), "{why:?}");
}

#[test]
fn paths_of_different_mtu_and_infiniband_ports_connect() {
    let mut plan = VerbsPlan::quiet(2);
    plan.hosts[0].mtu = Mtu::from_code(5).unwrap();
    plan.hosts[1].mtu = Mtu::from_code(3).unwrap();
    assert_eq!(
        all_or_none(&run(plan, &How::default()).0),
        Ok(Transport::Rdma)
    );
    let mut plan = VerbsPlan::quiet(2);
    for (lid, host) in (1..).zip(&mut plan.hosts) {
        host.link = LinkLayer::InfiniBand;
        host.lid = lid;
        host.gids.truncate(1);
        host.gids[0].kind = GidKind::InfiniBand;
        host.gids[0].interface = None;
    }
    let (said, _) = run(plan.clone(), &How::default());
    assert_eq!(all_or_none(&said), Ok(Transport::Rdma), "{said:?}");
    plan.hosts[1].link = LinkLayer::Ethernet;
    let why = all_or_none(&run(plan, &How::default()).0).unwrap_err();
    assert!(
        why.iter()
            .all(|it| it.contains("InfiniBand here and Ethernet there")),
        "{why:?}"
    );
}

#[test]
fn a_forced_path_that_fails_is_an_error_with_its_reason_on_both_sides() {
    let reasons = |change: &dyn Fn(&mut VerbsPlan), how: &How| {
        let mut plan = VerbsPlan::quiet(2);
        change(&mut plan);
        let why = all_or_none(&run(plan, how).0).unwrap_err();
        assert!(
            why.iter().all(|it| it.contains("no transport works")),
            "{why:?}"
        );
        why
    };
    let forced = How::default();
    let none = How {
        library: false,
        ..How::default()
    };
    for (want, why) in [
        ("no library was given", reasons(&|_| {}, &none)),
        (
            "down",
            reasons(&|plan| plan.hosts[1].active = false, &forced),
        ),
        (
            "ibv_reg_mr",
            reasons(&|plan| plan.hosts[1].regions_max = 0, &forced),
        ),
        (
            "ibv_create_qp",
            reasons(&|plan| plan.hosts[0].pairs_max = 0, &forced),
        ),
    ] {
        assert!(why.iter().all(|it| it.contains(want)), "{want}: {why:?}");
    }
    // A third rank for which there is no queue pair left.
    let mut plan = VerbsPlan::quiet(3);
    plan.hosts[0].pairs_max = 1;
    let why = all_or_none(&run(plan, &forced).0).unwrap_err();
    assert!(why[0].contains("ibv_create_qp"), "{why:?}");
}

#[test]
fn what_is_not_forced_falls_back_and_says_why() {
    let how = How {
        transports: &[Transport::Rdma, Transport::Tcp],
        ..How::default()
    };
    let mut plan = VerbsPlan::quiet(2);
    plan.hosts[1].active = false;
    let (said, _) = run(plan, &how);
    assert_eq!(all_or_none(&said), Ok(Transport::Tcp));
    for it in &said {
        let why = &it.as_ref().unwrap().1;
        assert!(
            why.contains("no RDMA") && why.contains("sim0 port 1 is down"),
            "{why}"
        );
    }
    // On one host shared memory is nearer.
    let how = How {
        transports: &[Transport::Rdma, Transport::Shm, Transport::Tcp],
        ..How::default()
    };
    let (said, fabric) = run(VerbsPlan::quiet(2), &how);
    assert_eq!(all_or_none(&said), Ok(Transport::Shm));
    assert_eq!(fabric.calls(0, "ibv_create_qp"), 0);
}

#[test]
fn a_rank_that_goes_without_a_word_is_noticed_by_all_others() {
    let plan = VerbsPlan::quiet(3);
    let fabric = Fabric::new(plan);
    let sockets: Vec<Listening> = (0..3)
        .map(|_| Listening::open("127.0.0.1", 0).unwrap())
        .collect();
    let ports: Vec<u16> = sockets.iter().map(|it| it.addresses()[0].port()).collect();
    let mut threads = Vec::new();
    for (rank, socket) in (0_u32..).zip(sockets) {
        let mut setup = setup(&fabric, rank, &ports, &How::default());
        setup.listening = (rank < 2).then_some(socket);
        threads.push(thread::spawn(move || {
            let mut rank = Rank::open(setup, &mut |_| {}).unwrap();
            let schedule = Schedule::every_gate(2).unwrap();
            let clock = Clock::start();
            for seq in 1..=3 {
                pass(&mut rank, schedule.row_gate(seq), 64).unwrap();
            }
            if rank.session().rank() == 2 {
                return None;
            }
            let why = pass(&mut rank, schedule.row_gate(4), 64).unwrap_err();
            assert!(clock.now().0 < SECOND, "{why}");
            Some(why.to_string())
        }));
    }
    let said: Vec<_> = threads.into_iter().map(|it| it.join().unwrap()).collect();
    for why in said.iter().flatten() {
        assert!(why.contains("rank 2"), "{said:?}");
        assert!(why.contains("sequence 4"), "{said:?}");
    }
    assert_eq!(said.iter().flatten().count(), 2);
}

#[test]
fn every_status_under_way_ends_both_ranks_by_name() {
    let mut own = 0;
    for (number, status) in (0_u64..).zip(Status::ALL.iter().copied().skip(1)) {
        // The probe takes 8 writes, words about them come on top; the gates follow.
        let nth = 24 + number;
        let mut plan = VerbsPlan::quiet(2);
        let host = usize::from(number.is_multiple_of(2));
        plan.faults.push(if number.is_multiple_of(3) {
            VerbsFault::Receive { host, nth, status }
        } else {
            VerbsFault::Write { host, nth, status }
        });
        let how = How {
            gates: 60,
            ..How::default()
        };
        let (said, _) = run(plan, &how);
        let why = all_or_none(&said).unwrap_err();
        assert!(
            why.iter().all(|it| it.contains("IBV_WC_")),
            "{status}: {why:?}"
        );
        assert!(
            why[0].contains("layer") && why[0].contains("sequence"),
            "{why:?}"
        );
        // The other side may find first that its peer does not answer any more.
        let code = format!("status {}", status.code());
        own += usize::from(why.iter().all(|it| it.contains(&code)));
    }
    assert!(own >= 12, "{own}");
}

#[test]
fn every_call_that_fails_ends_in_a_path_or_a_reason() {
    const CALLS: [&str; 15] = [
        "ibv_get_device_list",
        "ibv_open_device",
        "ibv_query_port",
        "ibv_query_gid",
        "ibv_create_comp_channel",
        "ibv_create_cq",
        "ibv_alloc_pd",
        "ibv_reg_mr",
        "ibv_create_qp",
        "ibv_modify_qp",
        "ibv_post_recv",
        "ibv_post_send",
        "ibv_poll_cq",
        "ibv_req_notify_cq",
        "ibv_get_cq_event",
    ];
    // Nobody spins, so that the calls of a rank that sleeps are among them.
    let how = How {
        spin_ns: 0,
        ..How::default()
    };
    let (_, fabric) = run(VerbsPlan::quiet(2), &how);
    let mut cases = Vec::new();
    for call in CALLS {
        // All of those that are few; of the others the first, some, and some of the gates.
        let count = fabric.calls(0, call);
        let some = |nth: &u64| *nth < 3 || [9, 31, 32, 45].contains(nth);
        assert!(count > 0, "{call}");
        cases.extend((0..count).filter(some).map(|nth| (call, nth)));
    }
    let one = |(call, nth): (&'static str, u64)| {
        let mut plan = VerbsPlan::quiet(2);
        let host = usize::from(nth.is_multiple_of(2));
        plan.faults.push(VerbsFault::Call { host, call, nth });
        match all_or_none(&run(plan, &how).0) {
            // Another kind or address worked, or this run had fewer calls.
            Ok(transport) => assert_eq!(transport, Transport::Rdma),
            Err(why) => {
                assert!(
                    why.iter().all(|it| it.contains(call)),
                    "{call} {nth}: {why:?}"
                );
            }
        }
    };
    // They wait more than they work.
    thread::scope(|scope| {
        for part in cases.chunks(cases.len().div_ceil(12)) {
            scope.spawn(move || part.iter().copied().for_each(one));
        }
    });
}
