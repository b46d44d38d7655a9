//! What our rank says when the peer does not keep to the protocol.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::thread;

use super::super::Rank;
use super::peer::*;
use super::row;
use crate::tp::command::Message;
use crate::tp::slab::{SlabGeometry, SlabLayout};

/// What our rank ends with when the peer does as `acts` says.
fn fault(rank: u32, acts: fn(&mut dyn FnMut() -> TcpStream)) -> String {
    let (opens, port, listener) = begin(rank);
    let thread = thread::spawn(move || {
        let mut rank = opens()?;
        if rank.session().rank() == 0 {
            rank.command(&Message::SessionCreate {
                session: 1,
                context: 8,
            })?;
            rank.hear()?;
        }
        let mut place = [0; 12];
        rank.exchange(row(1), &[7; 12], &mut [&mut place])?;
        rank.hear()
    });
    acts(&mut || match &listener {
        None => dial(port),
        Some(listener) => patient(listener.accept().unwrap().0),
    });
    thread.join().unwrap().unwrap_err().to_string()
}

/// A hello of the peer with one word changed; the peer of rank 0 is the worker.
fn changed(rank: u32, at: usize, word: u32) -> Vec<u8> {
    let mut bytes = if rank == 0 {
        hello(2, 0)
    } else {
        hello(1, 8192)
    };
    bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
    bytes
}

/// Says a greeting, and keeps the connection for a while.
fn greets<const AT: usize, const WORD: u32, const RANK: u32>(
    connect: &mut dyn FnMut() -> TcpStream,
) {
    let mut control = connect();
    control.write_all(&changed(RANK, AT, WORD)).unwrap();
    let _ = control.read_to_end(&mut Vec::new());
}

#[test]
fn hellos_that_do_not_fit_are_named_in_both_roles() {
    for (acts, said) in [
        (
            [greets::<4, 9, 0>, greets::<4, 9, 1>],
            "protocol version is 7 here and 9 there",
        ),
        ([greets::<8, 1, 0>, greets::<8, 2, 1>], "role of the peer"),
        ([greets::<16, 1, 0>, greets::<16, 1, 1>], "model file size"),
        (
            [greets::<24, 0, 0>, greets::<24, 0, 1>],
            "model number is 1 here and 0 there",
        ),
        (
            [greets::<28, 9, 0>, greets::<28, 9, 1>],
            "layers is 2 here and 9 there",
        ),
        (
            [greets::<32, 4, 0>, greets::<32, 4, 1>],
            "width is 3 here and 4 there",
        ),
        ([greets::<36, 17, 0>, greets::<36, 17, 1>], "vocabulary"),
        ([greets::<40, 4, 0>, greets::<40, 4, 1>], "bits of a weight"),
        ([greets::<48, 1, 0>, greets::<48, 1, 1>], "first gate"),
        (
            [greets::<52, 2, 0>, greets::<52, 2, 1>],
            "step between gates",
        ),
        ([greets::<56, 3, 0>, greets::<56, 3, 1>], "gates of a token"),
    ] as [([fn(&mut dyn FnMut() -> TcpStream); 2], &str); 11]
    {
        for (rank, acts) in [(0, acts[0]), (1, acts[1])] {
            let text = fault(rank, acts);
            assert!(text.contains(said), "rank {rank}: {text}");
        }
    }
    // The worker says what it found at the leader's port; the leader goes on waiting for a ds4 rank.
    let text = fault(1, greets::<0, 0x1234_5678, 1>);
    assert!(text.contains("begins with 12345678"), "{text}");
}

#[test]
fn silence_and_cuts_before_the_first_gate_end_in_errors() {
    let text = fault(1, |connect| {
        let mut control = connect();
        let _ = control.read_to_end(&mut Vec::new());
    });
    assert!(text.contains("ms for its hello in vain"), "{text}");
    let text = fault(1, |connect| {
        let mut control = connect();
        control.write_all(&hello(1, 8192)[..20]).unwrap();
    });
    assert!(text.contains("in the middle of a frame"), "{text}");
    let text = fault(1, |connect| drop(connect()));
    assert!(
        text.contains("rank 0") && text.contains("control connection was closed"),
        "{text}"
    );
}

/// Both connections, with the right hellos.
fn joined(rank: u32, connect: &mut dyn FnMut() -> TcpStream) -> Peer {
    let mut control = connect();
    control.write_all(&changed(rank, 0, ROW_MAGIC)).unwrap();
    let heard = take(&mut control, 64);
    let data = connect();
    Peer {
        control,
        data,
        heard,
    }
}

#[test]
fn frames_and_gates_that_are_wrong_or_cut_end_in_clear_errors() {
    type Acts = fn(&mut dyn FnMut() -> TcpStream);
    fn say(connect: &mut dyn FnMut() -> TcpStream, bytes: &[u8], keep: bool) {
        let mut peer = joined(0, connect);
        assert_eq!(peer.hear().0, 13);
        peer.say(bytes);
        if keep {
            let _ = peer.control.read_to_end(&mut Vec::new());
        }
    }
    fn gate(connect: &mut dyn FnMut() -> TcpStream, bytes: &[u8], keep: bool) {
        let mut peer = joined(1, connect);
        // The other side is in its gate.
        take(&mut peer.data, 16 + 12);
        peer.data.write_all(bytes).unwrap();
        if keep {
            let _ = peer.control.read_to_end(&mut Vec::new());
        }
    }
    let wrong: [(u32, Acts, &str); 12] = [
        (0, |it| say(it, &[0x55; 12], true), "begins with 55555555"),
        (
            0,
            |it| say(it, &frame(9, &[]), true),
            "number 9, which is not spoken",
        ),
        (0, |it| say(it, &frame(99, &[]), true), "number 99"),
        (
            0,
            |it| say(it, &[&frame(17, &[])[..8], &[0xff; 4]].concat(), true),
            "a ACK frame of 4294967295 bytes; at most 16",
        ),
        (
            0,
            |it| say(it, &frame(17, &[0; 8]), true),
            "ACK frame is not valid",
        ),
        (
            0,
            |it| say(it, &frame(10, &[0; 32]), true),
            "nothing asked for",
        ),
        (0, |it| say(it, &ack(2), true), "nothing asked for"),
        (
            0,
            |it| say(it, &ack(1)[..20], false),
            "in the middle of a frame",
        ),
        (
            1,
            |it| gate(it, &gate_head(ROW_MAGIC, 0, 0, 2), true),
            "gate desync: layer 0 gate attn sequence 1 here, magic 44533454 layer 0 gate 0 sequence 2",
        ),
        (
            1,
            |it| gate(it, &gate_head(BULK_MAGIC, 0, 0, 1), true),
            "gate desync",
        ),
        (
            1,
            |it| {
                let cut = [gate_head(ROW_MAGIC, 0, 0, 1), vec![1; 5]].concat();
                gate(it, &cut, false);
            },
            "rank 0, layer 0 gate attn sequence 1",
        ),
        (
            1,
            |it| gate(it, &[], true),
            "ms for its part of the gate in vain",
        ),
    ];
    for (rank, acts, said) in wrong {
        let text = fault(rank, acts);
        assert!(text.contains(said), "{said}: {text}");
    }
}

#[test]
fn strangers_at_the_leaders_port_are_sent_away_and_the_peer_still_gets_in() {
    let (thread, port, _) = ours(0, |mut rank| rank.finish().unwrap());
    let silent = dial(port);
    let mut wrong = dial(port);
    wrong.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    assert_eq!(wrong.read(&mut [0; 1]).unwrap_or(0), 0, "sent away");
    drop(dial(port));
    let mut peer = Peer::follow(port, &hello(2, 0));
    assert_eq!(peer.hear(), (5, Vec::new()));
    thread.join().unwrap();
    drop(silent);
}

#[test]
fn more_than_two_ranks_are_refused() {
    let mut setup = setup(1, 1, None);
    let geometry = SlabGeometry {
        ranks: 3,
        ..SlabGeometry::new(2, 3)
    };
    setup.config.identity.layout = SlabLayout::ds4(geometry).unwrap();
    let text = Rank::open(setup, &mut |_| {}).unwrap_err().to_string();
    assert!(text.contains("joins two ranks, not 3"), "{text}");
}
