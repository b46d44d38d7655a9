//! Groups of ranks as processes whose sums travel round a ring, and what ends them.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a failed step is a failed test")]
#![expect(
    clippy::disallowed_methods,
    reason = "faults strike running processes, and how soon they end is what is shown"
)]

mod common;

use std::process::Child;
use std::thread;
use std::time::{Duration, Instant};

use common::processes::{ended, free_port, leader, signal, until_said, worker};

/// As many ranks as processes: the leader, then the workers.
fn group(ranks: usize, common: &[&str], tokens: &str) -> (Child, Vec<Child>) {
    let ports: Vec<String> = (1..ranks).map(|_| free_port().to_string()).collect();
    let count = ranks.to_string();
    let common = [common, &["--ranks", &count]].concat();
    let numbers: Vec<String> = (0..ranks).map(|rank| rank.to_string()).collect();
    let start = |rank: usize| {
        let mut more = [&common[..], &["--rank", &numbers[rank]]].concat();
        if rank + 1 < ranks {
            more.extend(["--listen", "127.0.0.1", &ports[rank]]);
        }
        for lower in 1..rank {
            more.extend(["--peer", &numbers[lower], "127.0.0.1", &ports[lower]]);
        }
        worker(ports[0].parse().unwrap(), &more)
    };
    let workers = (1..ranks).map(start).collect();
    let more = [&common[..], &["--tokens", tokens]].concat();
    (leader(ports[0].parse().unwrap(), &more), workers)
}

#[test]
fn eight_ranks_as_processes_sum_straight_and_round_and_end_in_order() {
    // Vectors of 32 KiB go straight; the prompt's and the drafts' go round the ring.
    for (ranks, transport) in [(4, "tcp"), (8, "tcp"), (8, "shm")] {
        let common = [
            "--transport",
            transport,
            "--n-layer",
            "2",
            "--n-embd",
            "8192",
        ];
        let (leader, workers) = group(ranks, &common, "5");
        let (code, lead, said) = ended(leader);
        assert_eq!(code, 0, "{said}");
        assert_eq!(lead["transport"]["path"], transport);
        // Four gates of five tokens and of the one run again; the prompt's and the drafts'.
        assert_eq!(lead["gates"], 32);
        let round = lead["ring_gates"].as_u64().unwrap();
        assert!((4..=8).contains(&round), "{round}");
        for worker in workers {
            let (code, follow, said) = ended(worker);
            assert_eq!(code, 0, "{said}");
            assert_eq!(lead["state_hash"], follow["state_hash"]);
            assert_eq!(lead["ring_gates"], follow["ring_gates"]);
        }
    }
}

/// How seven ranks end when the sixth of eight gets a signal while every sum goes round the ring.
fn ends_of_seven(transport: &str, name: &str) -> Vec<(i32, String)> {
    let shape = ["--n-layer", "2", "--n-embd", "65536"];
    let common = [
        &shape[..],
        &["--transport", transport, "--gate-timeout", "1"],
    ]
    .concat();
    let (mut leader, mut workers) = group(8, &common, "1000000000");
    until_said(&mut leader, "gates travel by");
    thread::sleep(Duration::from_millis(300));
    let mut victim = workers.remove(4);
    signal(&victim, name);
    let since = Instant::now();
    let rest = std::iter::once(leader).chain(workers);
    let ends = rest.map(|child| {
        let (code, value, said) = ended(child);
        let why = value["error"]["message"].as_str().unwrap_or(&said);
        assert!(why.contains("rank ") && why.contains("sequence"), "{why}");
        (code, why.to_owned())
    });
    let ends = ends.collect();
    let took = since.elapsed();
    assert!(
        took < Duration::from_secs(5),
        "{transport} {name}: {took:?}"
    );
    victim.kill().unwrap();
    victim.wait().unwrap();
    ends
}

#[test]
fn a_rank_of_eight_that_dies_or_stops_in_a_ring_ends_all_others_in_time() {
    for transport in ["tcp", "shm"] {
        for (code, why) in ends_of_seven(transport, "-KILL") {
            assert_eq!(code, 1, "{transport}: {why}");
            assert!(why.contains("rank 5"), "{transport}: {why}");
        }
        let ends = ends_of_seven(transport, "-STOP");
        // Most are told by the leader, whose deadline is the first; where the leader has its sum
        // already and waits for answers, by a neighbour of the one that stopped.
        let own = |rank: usize| rank == 0 || rank == 4 || rank == 5;
        for (rank, (code, why)) in ends.iter().enumerate() {
            let expected = *code == 1 || (*code == 124 && own(rank));
            assert!(
                expected && why.contains("rank 5"),
                "{transport}: {rank}, {code}, {why}"
            );
        }
        assert!(ends.iter().any(|(code, _)| *code == 124), "{ends:?}");
    }
}
