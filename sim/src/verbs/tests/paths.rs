//! Both ends of a path on simulated devices have the right bytes, or both an error that names the
//! cause.

use ds4_engine::tp::time::Time;
use ds4_engine::transport::verbs::{
    Endpoint, PairKind, Status, VerbsPath, Wish, connect_pair, survey, take,
};

use super::pattern;
use crate::verbs::{Fabric, VerbsFault, VerbsPlan};

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
