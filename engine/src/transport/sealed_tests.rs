//! Encrypted connections, with someone in between.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use super::tests::{all_sizes, pair, pass};
use super::*;
use crate::tp::schedule::{Gate, GateKind, GateName};
use crate::tp::session::Dialect;
use crate::tp::transport::Transport;

/// Recognised wherever it passes.
const MARK: &[u8] = b"attack at dawn!!";
const GATE_BYTES: usize = 64 << 10;

/// What someone in between does to the bytes that the worker sends on a data connection.
#[derive(Clone, Copy, PartialEq)]
enum Deed {
    Look,
    Change,
    Repeat,
    LeaveOut,
}

/// Behind the handshake, in the middle of the probe and in the gate behind it.
const STRIKES: [usize; 2] = [100_000, 300_000];

/// Passes connections on to `to`; everything that passed is in the list.
fn between(to: u16, deed: Deed, strike: usize) -> (u16, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let shown = Arc::clone(&seen);
    thread::spawn(move || {
        // Control first, then data.
        for (number, near) in listener.incoming().take(2).enumerate() {
            let near = near.unwrap();
            let far = TcpStream::connect(("127.0.0.1", to)).unwrap();
            let deed = if number == 1 { deed } else { Deed::Look };
            let (up, down) = ((&near, &far), (&far, &near));
            for ((from, into), deed) in [(up, deed), (down, Deed::Look)] {
                let (from, into) = (from.try_clone().unwrap(), into.try_clone().unwrap());
                let seen = Arc::clone(&seen);
                thread::spawn(move || relay(from, into, (deed, strike), &seen));
            }
        }
    });
    (port, shown)
}

fn relay(
    mut from: TcpStream,
    mut into: TcpStream,
    (deed, strike): (Deed, usize),
    seen: &Mutex<Vec<u8>>,
) {
    let mut buffer = vec![0; 1024];
    let mut passed = 0;
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        let bytes = &mut buffer[..count];
        seen.lock().unwrap().extend_from_slice(bytes);
        let struck = (passed..passed + count).contains(&strike);
        passed += count;
        let times = match deed {
            Deed::Repeat if struck => 2,
            Deed::LeaveOut if struck => 0,
            Deed::Look | Deed::Change | Deed::Repeat | Deed::LeaveOut => 1,
        };
        if deed == Deed::Change && struck {
            bytes[count / 2] ^= 1;
        }
        for _ in 0..times {
            if into.write_all(bytes).is_err() {
                return;
            }
        }
    }
    let _ = into.shutdown(Shutdown::Write);
}

/// The vector that the peer sent, after an orderly end.
fn marked(mut rank: Rank) -> Result<Vec<u8>, LinkError> {
    let out = MARK.repeat(GATE_BYTES / MARK.len());
    let mut place = vec![0; out.len()];
    let gate = Gate {
        layer: 0,
        name: GateName::Attention,
        kind: GateKind::Big {
            bytes: out.len() as u64,
        },
    };
    rank.exchange(gate, &out, &mut [&mut place])?;
    if place != out {
        // A gate that passed without its bytes: no later call may make up for it.
        return Ok(place);
    }
    if rank.session().rank() == 0 {
        rank.finish()?;
    } else {
        while !matches!(rank.hear()?, Said::Finished) {}
    }
    Ok(place)
}

/// Two ranks with someone in between: how they ended, and what passed.
fn watched(encrypt: bool, deed: Deed, strike: usize) -> ([Result<Vec<u8>, LinkError>; 2], Vec<u8>) {
    let [mut leader, mut worker] = pair(Transport::Tcp);
    let (port, seen) = between(worker.remotes[0].port, deed, strike);
    worker.remotes[0].port = port;
    for side in [&mut leader, &mut worker] {
        side.encrypt = encrypt;
        side.config.deadlines.hello_ns = 2_000_000_000;
        side.config.deadlines.first_gate_ns = 2_000_000_000;
    }
    let leader = thread::spawn(move || Rank::open(leader, &mut |_| {}).and_then(marked));
    let worker = Rank::open(worker, &mut |_| {}).and_then(marked);
    let ends = [leader.join().unwrap(), worker];
    let seen = seen.lock().unwrap().clone();
    (ends, seen)
}

fn holds(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

#[test]
fn who_looks_at_encrypted_connections_sees_neither_vectors_nor_commands() {
    let out = MARK.repeat(GATE_BYTES / MARK.len());
    let right = [Ok(out.clone()), Ok(out)];
    let (ends, seen) = watched(false, Deed::Look, 0);
    assert_eq!(ends, right);
    // So it is the encryption that hides them below.
    assert!(holds(&seen, MARK) && holds(&seen, b"D4TP"));
    let (ends, seen) = watched(true, Deed::Look, 0);
    assert_eq!(ends, right);
    assert!(seen.len() > 2 * GATE_BYTES);
    assert!(!holds(&seen, &MARK[..8]) && !holds(&seen, b"D4TP"));
}

#[test]
fn bytes_that_are_changed_repeated_or_left_out_on_the_way_pass_no_gate() {
    for deed in [Deed::Change, Deed::Repeat, Deed::LeaveOut] {
        for strike in STRIKES {
            let (ends, _) = watched(true, deed, strike);
            assert!(ends.iter().all(Result::is_err), "{strike}: {ends:?}");
        }
    }
}

#[test]
fn gates_of_all_sizes_and_the_orderly_end_pass_encrypted() {
    for buffer_bytes in [None, Some(2048)] {
        let [mut leader, mut worker] = pair(Transport::Tcp);
        for side in [&mut leader, &mut worker] {
            side.encrypt = true;
            side.buffer_bytes = buffer_bytes;
        }
        let leader = thread::spawn(move || {
            all_sizes(&mut Rank::open(leader, &mut |_| {}).unwrap());
        });
        all_sizes(&mut Rank::open(worker, &mut |_| {}).unwrap());
        leader.join().unwrap();
    }
}

#[test]
fn a_rank_that_encrypts_and_one_that_does_not_refuse_each_other() {
    for leads in [true, false] {
        let [mut leader, mut worker] = pair(Transport::Tcp);
        leader.encrypt = leads;
        worker.encrypt = !leads;
        leader.config.deadlines.connect_ns = 500_000_000;
        let leader = thread::spawn(move || {
            let mut said = String::new();
            let opened = Rank::open(leader, &mut |notice| said.push_str(notice));
            (opened.is_err(), said)
        });
        let why = Rank::open(worker, &mut |_| {}).unwrap_err().to_string();
        assert!(why.contains("--encrypt"), "{why}");
        let (failed, said) = leader.join().unwrap();
        assert!(failed && said.contains("refused"), "{said}");
    }
}

#[test]
fn what_would_carry_gates_unencrypted_is_refused() {
    let [mut by_rdma, _] = pair(Transport::Rdma);
    by_rdma.encrypt = true;
    let why = Rank::open(by_rdma, &mut |_| {}).unwrap_err().to_string();
    assert!(why.contains("rdma cannot be encrypted"), "{why}");
    let [mut by_v7, _] = pair(Transport::Tcp);
    by_v7.encrypt = true;
    by_v7.config.dialect = Dialect::Ds4V7 {
        gguf_bytes: 1,
        model_id: 1,
    };
    let why = Rank::open(by_v7, &mut |_| {}).unwrap_err().to_string();
    assert!(why.contains("ds4-v7 does not encrypt"), "{why}");
}

#[test]
fn encryption_without_a_key_is_refused() {
    let [mut setup, _] = pair(Transport::Tcp);
    setup.key = Key::public();
    setup.encrypt = true;
    let why = Rank::open(setup, &mut |_| {}).unwrap_err().to_string();
    assert!(why.contains("needs a key"), "{why}");
}

#[test]
fn shared_memory_of_one_host_serves_ranks_that_encrypt() {
    let [mut leader, mut worker] = pair(Transport::Shm);
    leader.encrypt = true;
    worker.encrypt = true;
    let gate = Gate {
        layer: 0,
        name: GateName::Attention,
        kind: GateKind::Big { bytes: 999 },
    };
    let leader = thread::spawn(move || {
        let mut leader = Rank::open(leader, &mut |_| {}).unwrap();
        pass(&mut leader, gate, 999);
        leader.finish().unwrap();
    });
    let mut worker = Rank::open(worker, &mut |_| {}).unwrap();
    pass(&mut worker, gate, 999);
    assert!(matches!(worker.hear().unwrap(), Said::Finished));
    leader.join().unwrap();
}
