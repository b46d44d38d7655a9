//! Whole ranks on simulated devices have the right bytes, or all an error that names the cause,
//! within the deadline.

#![expect(
    clippy::panic_in_result_fn,
    reason = "wrong bytes fail the test; a rank's error is a result"
)]

use std::thread;

use ds4_engine::tp::hello::Identity;
use ds4_engine::tp::schedule::{Gate, GateKind, GateName, Schedule};
use ds4_engine::tp::slab::{SlabGeometry, SlabLayout};
use ds4_engine::tp::time::Deadlines;
use ds4_engine::tp::transport::{Transport, TransportSet};
use ds4_engine::tp::trust::Key;
use ds4_engine::transport::verbs::{GidKind, LinkLayer, Mtu, Status, Wish};
use ds4_engine::transport::{Clock, LinkError, Rank, Rdma, Said, Setup, Wait};

use super::pattern;
use crate::verbs::{Fabric, VerbsFault, VerbsPlan};

const SECOND: u64 = 1_000_000_000;

fn setups(fabric: &Fabric, ranks: usize, how: &How) -> Vec<Setup> {
    let geometry = SlabGeometry {
        n_layer: 2,
        n_embd: 16,
        ranks: u32::try_from(ranks).unwrap(),
    };
    let layout = SlabLayout::aligned(geometry).unwrap();
    let identity = Identity::new(layout, Schedule::every_gate(2).unwrap());
    let mut setups = Setup::on_loopback(identity, &Key::new([9; 32])).unwrap();
    for (rank, setup) in setups.iter_mut().enumerate() {
        setup.config.transports = TransportSet::of(how.transports);
        setup.config.deadlines = Deadlines {
            connect_ns: 10 * SECOND,
            gate_ns: 2 * SECOND,
            first_gate_ns: 2 * SECOND,
            ..Deadlines::default()
        };
        setup.wait = Wait {
            spin_ns: how.spin_ns,
        };
        setup.rdma = Rdma {
            library: how.library.then(|| fabric.library(rank)),
            why_none: "no library was given".to_owned(),
            wish: Wish {
                device: None,
                gid_index: how.gid_index.filter(|_| rank == 0),
            },
            unreliable: how.unreliable,
        };
    }
    setups
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
    let mut threads = Vec::new();
    for setup in setups(&fabric, plan.hosts.len(), how) {
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

fn pass_all(rank: &mut Rank, gates: u64) -> Result<(), LinkError> {
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

fn pass(rank: &mut Rank, gate: Gate, bytes: usize) -> Result<(), LinkError> {
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
    let mut threads = Vec::new();
    for setup in setups(&fabric, 3, &How::default()) {
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
