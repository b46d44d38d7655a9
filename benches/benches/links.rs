//! What a gate costs, part by part: codec and checks without a wire, checksums, seals, and whole
//! exchanges between two threads beside bare ones.
#![forbid(unsafe_code)]
#![expect(
    clippy::expect_used,
    reason = "a bench that cannot run must not pass for one that did"
)]

use std::hint::black_box;
use std::thread;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use ds4_engine::tp::frame::{Head, Piece};
use ds4_engine::tp::hello::Identity;
use ds4_engine::tp::schedule::{Gate, GateKind, GateName, Schedule};
use ds4_engine::tp::seal::{SEALED_BYTES_MAX, Seal};
use ds4_engine::tp::session::{Config, Event, Session};
use ds4_engine::tp::slab::{SlabGeometry, SlabLayout};
use ds4_engine::tp::time::Time;
use ds4_engine::tp::trust::Channel;
use ds4_harness::bench::contenders::{Contender, End, gates, paths};

const SIZES: [usize; 2] = [16 << 10, 1 << 20];
const NOW: Time = Time(1);

/// A rank of two, and the payload of its gates.
struct Side {
    session: Session,
    peer: u32,
    out: Vec<u8>,
    incoming: Vec<u8>,
}

fn schedule() -> Schedule {
    Schedule::every_gate(1).expect("a schedule of one layer")
}

fn side(rank: u32, bytes: usize, payload_crc: bool) -> Side {
    let width = u32::try_from(bytes / 4).expect("a width of a few bytes");
    let layout = SlabLayout::aligned(SlabGeometry::new(1, width)).expect("a small slab");
    let identity = Identity {
        payload_crc,
        ..Identity::new(layout, schedule())
    };
    let mut session = Session::new(NOW, Config::new(rank, identity));
    let peer = 1 - rank;
    for channel in [Channel::Control, Channel::Data] {
        session.attach(NOW, peer, channel);
    }
    Side {
        session,
        peer,
        out: vec![7; bytes],
        incoming: vec![0; bytes],
    }
}

/// What one has to say on the control connection goes to the other.
fn tell(from: &mut Side, to: &mut Side) {
    loop {
        let words = from.session.control_to_write(from.peer);
        let room = to.session.control_to_read(to.peer);
        let count = words.len().min(room.len());
        if count == 0 {
            return;
        }
        room[..count].copy_from_slice(&words[..count]);
        from.session.control_wrote(from.peer, count);
        to.session.control_read(NOW, to.peer, count);
        let mut proved = None;
        while let Some(event) = to.session.poll_event(NOW) {
            if let Event::Probe(set) = event {
                proved = Some(set);
            }
        }
        if let Some(set) = proved {
            to.session.vote(NOW, set);
        }
    }
}

/// Two ranks that are ready to pass gates.
fn pair(bytes: usize, payload_crc: bool) -> [Side; 2] {
    let [mut one, mut two] = [0, 1].map(|rank| side(rank, bytes, payload_crc));
    for _ in 0..4 {
        tell(&mut one, &mut two);
        tell(&mut two, &mut one);
    }
    [one, two]
}

/// A gate without a wire: both ranks begin it and take each other's header. Payloads lie in
/// `incoming` already, as a transport would have left them.
fn gate(sides: &mut [Side; 2], schedule: &Schedule, seq: u64) {
    let gate = schedule.row_gate(seq);
    let mut heads = [[0_u8; 32]; 2];
    for (side, kept) in sides.iter_mut().zip(&mut heads) {
        let began = side.session.gate_begin(NOW, gate, &side.out);
        began.expect("gates in order");
        let (head, body) = side.session.gate_to_write(side.peer);
        let count = head.len() + body.len();
        kept.copy_from_slice(head);
        side.session.gate_wrote(side.peer, count);
    }
    for (side, head) in sides.iter_mut().zip(heads.iter().rev()) {
        let (place, body) = side.session.gate_to_read(side.peer);
        let count = place.len() + body.len();
        place.copy_from_slice(head);
        let read = side
            .session
            .gate_read(NOW, side.peer, count, &side.incoming);
        read.expect("the gate that the peer sent");
    }
    assert!(sides.iter().all(|side| !side.session.in_gate()));
}

fn codec(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("codec");
    let gate_of = Gate {
        layer: 3,
        name: GateName::Attention,
        kind: GateKind::Row,
    };
    let head = || {
        Head::gate(
            black_box(gate_of),
            black_box(9),
            Piece::Part,
            16 << 10,
            Some(5),
        )
        .expect("a gate that fits a frame")
    };
    group.bench_function("encode a header", |bencher| {
        bencher.iter(|| head().encode());
    });
    let encoded = head().encode();
    group.bench_function("decode a header", |bencher| {
        bencher.iter(|| Head::decode(black_box(&encoded)));
    });
    let schedule = schedule();
    for (name, payload_crc) in [
        ("gate of both ranks, no payload checksum", false),
        ("gate of both ranks", true),
    ] {
        for bytes in SIZES {
            let mut sides = pair(bytes, payload_crc);
            let [one, two] = &mut sides;
            one.incoming.copy_from_slice(&two.out);
            two.incoming.copy_from_slice(&one.out);
            let mut seq = 0;
            group.bench_function(BenchmarkId::new(name, bytes), |bencher| {
                bencher.iter(|| {
                    seq += 1;
                    gate(&mut sides, &schedule, seq);
                });
            });
        }
    }
    group.finish();
}

fn checks(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("bytes");
    for bytes in SIZES {
        group.throughput(Throughput::Bytes(bytes as u64));
        let payload: Vec<u8> = (0..bytes).map(|at| at.to_le_bytes()[0]).collect();
        group.bench_function(BenchmarkId::new("crc32c", bytes), |bencher| {
            bencher.iter(|| crc32c::crc32c(black_box(&payload)));
        });
        let mut seal = Seal::new(&[3; 16]);
        let mut record = Vec::with_capacity(SEALED_BYTES_MAX);
        group.bench_function(BenchmarkId::new("seal", bytes), |bencher| {
            bencher.iter(|| {
                let mut rest = payload.as_slice();
                while !rest.is_empty() {
                    record.clear();
                    let taken = seal.seal(&[], rest, &mut record);
                    rest = &rest[taken.expect("records in order")..];
                }
            });
        });
    }
    group.finish();
}

/// The first byte of a message that ends the other end's thread.
const STOP: u8 = 0xff;

/// The other end: answers until it is told to stop.
fn answer(mut end: Box<dyn End>, bytes: usize) {
    let out = vec![1; bytes];
    let mut incoming = vec![0; bytes];
    while incoming.first() != Some(&STOP) {
        end.exchange(&out, &mut incoming).expect("an exchange");
    }
}

/// The contenders of `ds4 bench link` and `ds4 bench gate`, each alone.
fn exchanges(criterion: &mut Criterion) {
    for (name, connect) in [("exchange", paths as fn() -> _), ("gate", gates)] {
        let mut group = criterion.benchmark_group(name);
        group.sample_size(20);
        for bytes in SIZES {
            group.throughput(Throughput::Bytes(bytes as u64));
            let contenders: Vec<Contender> = connect().expect("connections on this host");
            // The bare copy through shared memory has an end.
            for contender in contenders.into_iter().filter(|it| bytes <= it.most_bytes) {
                let [mut near, far] = contender.ends;
                let other = thread::spawn(move || answer(far, bytes));
                let (mut out, mut incoming) = (vec![2; bytes], vec![0; bytes]);
                let mut exchange =
                    |out: &[u8]| near.exchange(out, &mut incoming).expect("an exchange");
                group.bench_function(BenchmarkId::new(contender.name, bytes), |bencher| {
                    bencher.iter(|| exchange(&out));
                });
                out.fill(STOP);
                exchange(&out);
                other.join().expect("the other end came to its end");
            }
        }
        group.finish();
    }
}

criterion_group!(benches, codec, checks, exchanges);
criterion_main!(benches);
