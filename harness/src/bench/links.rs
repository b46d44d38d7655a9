//! Connections of two ranks, beside what the same bytes cost without ds4.
//!
//! Both ends run the same list of rounds in two threads. In each round every contender exchanges
//! the same number of messages, so that subject and peer meet the same machine; ratios are taken
//! within a round. Every message is stamped and its ends are checked; once a round all of it is.

use std::fmt;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use ds4_engine::bytes::format_bytes;
use ds4_engine::tp::hello::Identity;
use ds4_engine::tp::schedule::{Gate, GateKind, GateName, Schedule};
use ds4_engine::tp::session::{Config, Dialect};
use ds4_engine::tp::slab::{SlabGeometry, SlabLayout};
use ds4_engine::tp::time::Deadlines;
use ds4_engine::tp::transport::{Transport, TransportSet};
use ds4_engine::tp::trust::{ANSWER_BYTES, CHALLENGE_BYTES, Key, VERDICT_BYTES};
use ds4_engine::transport::mapping::Mapping;
use ds4_engine::transport::{Listening, Rank, RawPath, Rdma, Remote, Setup, Wait};
use serde::Serialize;

use super::handshake::key_exchanges;
use super::{Options, Row, quantile};
use crate::stopwatch::Stopwatch;

/// What to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// Paths without a session, one way and both ways at once.
    Paths,
    /// Gates of sessions, with and without checksums.
    Gates,
}

/// One measured line.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LinkRow {
    /// What every bench says; its times are of single messages, unless a bench says otherwise, and
    /// `n` counts messages.
    #[serde(flatten)]
    pub row: Row,
    /// 999 of 1000 lie below.
    pub p999: f64,
    /// Bytes of a message, each way.
    pub bytes: u64,
    /// Bytes a second, each way, at the median.
    pub bytes_per_second: f64,
    /// Bytes that were compared with what was sent.
    pub verified_bytes: u64,
}

impl fmt::Display for LinkRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let row = &self.row;
        write!(
            f,
            "{:<19} {:<18} {:>11.2} us  (p99 {:.1}, p99.9 {:.1}, min {:.2})  {:.2} GB/s",
            row.bench,
            row.subject,
            row.p50 / 1e3,
            row.p99 / 1e3,
            self.p999 / 1e3,
            row.min / 1e3,
            self.bytes_per_second / 1e9,
        )?;
        if let (Some(peer), Some(ratio)) = (&row.peer, row.ratio_to_peer) {
            write!(f, "\n    {ratio:.3} of {peer}")?;
        }
        Ok(())
    }
}

const SIZES: [usize; 7] = [4, 256, 4 << 10, 16 << 10, 256 << 10, 4 << 20, 64 << 20];
/// Bytes of a bare message beside the payload: as many as a gate's header.
const HEAD_BYTES: usize = 32;
/// The largest message of the bare copy through shared memory.
const SLOT_BYTES: usize = 256 << 10;
const FIRST_SLOT: usize = 4096;
/// So many bytes at each end of every message are checked.
const END_BYTES: usize = 8;
const KEY_EXCHANGE: &str = "key exchange";

/// Something that exchanges bytes.
pub trait End: Send {
    /// Sends `out` and fills `incoming`, both at once; one of them may be empty.
    ///
    /// # Errors
    /// A sentence: it broke.
    fn exchange(&mut self, out: &[u8], incoming: &mut [u8]) -> Result<(), String>;
}

/// A connection, by both its ends.
pub struct Contender {
    /// What it is.
    pub name: &'static str,
    /// Beside which other one, by its place.
    peer: Option<usize>,
    /// The longest message that it takes.
    pub most_bytes: usize,
    /// The ends; each runs in a thread of its own.
    pub ends: [Box<dyn End>; 2],
}

/// New connections, ours and those beside which ours are measured.
///
/// # Errors
/// A sentence: one could not be made.
pub fn contenders(what: Subject) -> Result<Vec<Contender>, String> {
    match what {
        Subject::Paths => paths(),
        Subject::Gates => gates(),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Both,
    One,
}

/// Measures; `each` is told of every row when it is there. True beside the rows when it was
/// stopped before the end.
///
/// # Errors
/// A sentence: a path could not be made or broke, or bytes were wrong.
pub fn measure(
    what: Subject,
    options: &Options,
    stop: &AtomicBool,
    each: &mut dyn FnMut(&LinkRow),
) -> Result<(Vec<LinkRow>, bool), String> {
    let contenders = contenders(what)?;
    let names: Vec<_> = contenders
        .iter()
        .map(|it| (it.name, it.peer, it.most_bytes))
        .collect();
    let (mut near, mut far) = (Vec::new(), Vec::new());
    for contender in contenders {
        let [one, two] = contender.ends;
        near.push(one);
        far.push(two);
    }
    let ways: &[Way] = match what {
        Subject::Paths => &[Way::One, Way::Both],
        Subject::Gates => &[Way::Both],
    };
    let mut rows = Vec::new();
    if what == Subject::Gates && wanted(options, KEY_EXCHANGE) {
        let row = key_exchange(if options.quick { 100 } else { 1000 })?;
        each(&row);
        rows.push(row);
    }
    for way in ways {
        for bytes in SIZES {
            let verb = match (what, way) {
                (Subject::Gates, _) => "gate",
                (Subject::Paths, Way::One) => "one way",
                (Subject::Paths, Way::Both) => "exchange",
            };
            let bench = format!("{verb} {}", format_bytes(bytes as u64).replace(' ', ""));
            if !wanted(options, &bench) {
                continue;
            }
            if stop.load(Ordering::Relaxed) {
                return Ok((rows, true));
            }
            let budget: usize = if options.quick { 8 << 20 } else { 64 << 20 };
            let plan = Rounds {
                way: *way,
                bytes,
                count: (budget / bytes).clamp(4, if options.quick { 400 } else { 2000 }),
                rounds: options.rounds.max(3),
                takes_part: names.iter().map(|it| bytes <= it.2).collect(),
            };
            let (times, other) = thread::scope(|scope| {
                let other = scope.spawn(|| plan.run(1, &mut far));
                let times = plan.run(0, &mut near);
                (times, other.join())
            });
            other.map_err(|_| "the other end panicked".to_owned())??;
            let times = times?;
            for (index, (name, peer, _)) in names.iter().enumerate() {
                if plan.takes_part[index] {
                    let row = row(&bench, name, bytes, &times, index, *peer, &names);
                    each(&row);
                    rows.push(row);
                }
            }
        }
    }
    Ok((rows, false))
}

fn wanted(options: &Options, bench: &str) -> bool {
    let part = options.filter.as_ref();
    part.is_none_or(|part| bench.contains(part))
}

/// Connections made and proved, one after the other.
fn key_exchange(count: usize) -> Result<LinkRow, String> {
    // The first ones warm up.
    let times = key_exchanges(count + count / 10)?;
    let mut times = times.get(count / 10..).unwrap_or_default().to_vec();
    times.sort_by(f64::total_cmp);
    let bytes = CHALLENGE_BYTES + ANSWER_BYTES + VERDICT_BYTES;
    let p50 = quantile(&times, 500);
    Ok(LinkRow {
        row: Row {
            bench: KEY_EXCHANGE.to_owned(),
            subject: "connect and prove".to_owned(),
            peer: None,
            unit: "ns",
            p50,
            p99: quantile(&times, 990),
            min: quantile(&times, 0),
            n: times.len() as u64,
            ratio_to_peer: None,
            ratio_range: None,
        },
        p999: quantile(&times, 999),
        bytes: bytes as u64,
        bytes_per_second: bytes as f64 * 1e9 / p50,
        // Both proofs cover all that was said.
        verified_bytes: (bytes * times.len()) as u64,
    })
}

pub(super) type Name = (&'static str, Option<usize>, usize);

pub(super) fn row(
    bench: &str,
    name: &str,
    bytes: usize,
    times: &[Vec<Vec<f64>>],
    index: usize,
    peer: Option<usize>,
    names: &[Name],
) -> LinkRow {
    let sorted = |mut times: Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times
    };
    let all = sorted(times[index].concat());
    let peer = peer.filter(|peer| !times[*peer].is_empty());
    let ratio = peer.map(|peer| {
        let medians = times[index].iter().zip(&times[peer]);
        let ratios = medians.map(|(own, other)| {
            quantile(&sorted(own.clone()), 500) / quantile(&sorted(other.clone()), 500)
        });
        quantile(&sorted(ratios.collect()), 500)
    });
    let p50 = quantile(&all, 500);
    LinkRow {
        row: Row {
            bench: bench.to_owned(),
            subject: name.to_owned(),
            peer: peer.map(|peer| names[peer].0.to_owned()),
            unit: "ns",
            p50,
            p99: quantile(&all, 990),
            min: quantile(&all, 0),
            n: all.len() as u64,
            ratio_to_peer: ratio,
            ratio_range: None,
        },
        p999: quantile(&all, 999),
        bytes: bytes as u64,
        bytes_per_second: bytes as f64 * 1e9 / p50,
        verified_bytes: times[index]
            .iter()
            .map(|round| verified_bytes(bytes, round.len()))
            .sum(),
    }
}

/// The ends of every message of a round, and all of its last one.
fn verified_bytes(bytes: usize, messages: usize) -> u64 {
    (messages.saturating_sub(1) * bytes.min(2 * END_BYTES) + bytes) as u64
}

/// What both ends run.
struct Rounds {
    way: Way,
    bytes: usize,
    count: usize,
    rounds: usize,
    takes_part: Vec<bool>,
}

impl Rounds {
    /// Times of each contender, by rounds, as this end saw them.
    fn run(&self, side: u8, ends: &mut [Box<dyn End>]) -> Result<Vec<Vec<Vec<f64>>>, String> {
        let mut out: Vec<u8> = (0..self.bytes).map(|at| byte(at, side)).collect();
        let mut want: Vec<u8> = (0..self.bytes).map(|at| byte(at, 1 - side)).collect();
        let mut incoming = vec![0xff; self.bytes];
        let mut times = vec![Vec::new(); ends.len()];
        for round in 0..=self.rounds {
            for (index, end) in ends.iter_mut().enumerate() {
                if !self.takes_part[index] {
                    continue;
                }
                // The first round warms up.
                let count = if round == 0 {
                    self.count / 10 + 2
                } else {
                    self.count
                };
                let mut taken = Vec::with_capacity(count);
                for number in 0..count {
                    stamp(&mut out, round, number);
                    stamp(&mut want, round, number);
                    let watch = Stopwatch::start();
                    match (self.way, side) {
                        (Way::Both, _) => end.exchange(&out, &mut incoming)?,
                        (Way::One, 0) => {
                            end.exchange(&out, &mut [])?;
                            end.exchange(&[], &mut incoming)?;
                        }
                        (Way::One, _) => {
                            end.exchange(&[], &mut incoming)?;
                            end.exchange(&out, &mut [])?;
                        }
                    }
                    let ns = watch.elapsed_ns() as f64;
                    taken.push(if self.way == Way::One { ns / 2.0 } else { ns });
                    let whole = number + 1 == count;
                    let ends = self.bytes.min(END_BYTES);
                    let equal = if whole {
                        incoming == want
                    } else {
                        incoming[..ends] == want[..ends]
                            && incoming[self.bytes - ends..] == want[self.bytes - ends..]
                    };
                    if !equal {
                        return Err(format!("wrong bytes in a message of {} bytes", self.bytes));
                    }
                }
                if round > 0 {
                    times[index].push(taken);
                }
            }
        }
        Ok(times)
    }
}

fn byte(at: usize, side: u8) -> u8 {
    (at as u64).wrapping_mul(0x9e37_79b9).to_le_bytes()[2] ^ side.wrapping_mul(0x55)
}

/// Makes each message another one, at its beginning and at its end.
fn stamp(message: &mut [u8], round: usize, number: usize) {
    let mark = (number as u64).to_le_bytes()[0] ^ (round as u64).to_le_bytes()[0];
    if let Some(first) = message.first_mut() {
        *first = mark;
    }
    if let Some(last) = message.last_mut() {
        *last = mark;
    }
}

pub(super) fn words(error: impl fmt::Display) -> String {
    error.to_string()
}

fn connection() -> io::Result<[TcpStream; 2]> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let one = TcpStream::connect(listener.local_addr()?)?;
    Ok([one, listener.accept()?.0])
}

fn paths() -> Result<Vec<Contender>, String> {
    let [one, two] = connection().map_err(words)?;
    let tcp: [Box<dyn End>; 2] = [
        Box::new(RawPath::tcp(one).map_err(words)?),
        Box::new(RawPath::tcp(two).map_err(words)?),
    ];
    let (one, two) = UnixStream::pair().map_err(words)?;
    let taker = thread::spawn(move || RawPath::receive_shm(two));
    let made = RawPath::create_shm(one).map_err(words)?;
    let taken = taker.join().map_err(|_| "the other end panicked")?;
    let shm: [Box<dyn End>; 2] = [Box::new(made), Box::new(taken.map_err(words)?)];
    Ok(vec![
        bare_tcp(0)?,
        contender("tcp", Some(0), tcp),
        bare_shm()?,
        contender("shm", Some(2), shm),
    ])
}

fn gates() -> Result<Vec<Contender>, String> {
    let tcp = Link {
        transport: Transport::Tcp,
        payload_crc: true,
        encrypt: false,
    };
    let shm = Link {
        transport: Transport::Shm,
        ..tcp
    };
    let unchecked = |link| Link {
        payload_crc: false,
        ..link
    };
    let encrypted = Link {
        encrypt: true,
        ..tcp
    };
    Ok(vec![
        bare_tcp(HEAD_BYTES)?,
        contender("tcp, no checksum", Some(0), ranks(unchecked(tcp))?),
        contender("tcp", Some(0), ranks(tcp)?),
        contender("tcp, encrypted", Some(2), ranks(encrypted)?),
        bare_shm()?,
        contender("shm, no checksum", Some(4), ranks(unchecked(shm))?),
        contender("shm", Some(2), ranks(shm)?),
    ])
}

fn contender(name: &'static str, peer: Option<usize>, ends: [Box<dyn End>; 2]) -> Contender {
    Contender {
        name,
        peer,
        most_bytes: usize::MAX,
        ends,
    }
}

impl End for RawPath {
    fn exchange(&mut self, out: &[u8], incoming: &mut [u8]) -> Result<(), String> {
        Self::exchange(self, out, incoming).map_err(words)
    }
}

/// A socket and nothing else; with as many bytes before each message as a gate's header has.
struct BareTcp {
    stream: TcpStream,
    head_bytes: usize,
}

fn bare_tcp(head_bytes: usize) -> Result<Contender, String> {
    let mut ends: Vec<Box<dyn End>> = Vec::new();
    let streams = connection().map_err(words)?;
    for stream in streams {
        stream.set_nodelay(true).map_err(words)?;
        stream.set_nonblocking(true).map_err(words)?;
        ends.push(Box::new(BareTcp { stream, head_bytes }));
    }
    let ends = ends.try_into().map_err(|_| "not two ends".to_owned())?;
    Ok(contender("bare tcp", None, ends))
}

impl End for BareTcp {
    fn exchange(&mut self, out: &[u8], incoming: &mut [u8]) -> Result<(), String> {
        let head = [0; HEAD_BYTES];
        let mut their_head = [0; HEAD_BYTES];
        let with_head = |bytes: usize| {
            if bytes == 0 {
                0
            } else {
                self.head_bytes + bytes
            }
        };
        let (to_send, to_come) = (with_head(out.len()), with_head(incoming.len()));
        let (mut sent, mut came) = (0, 0);
        while sent < to_send || came < to_come {
            if sent < to_send {
                let parts = [
                    IoSlice::new(&head[sent.min(self.head_bytes)..self.head_bytes]),
                    IoSlice::new(&out[sent.saturating_sub(self.head_bytes)..]),
                ];
                sent += later(self.stream.write_vectored(&parts))?;
            }
            if came < to_come {
                let mut parts = [
                    IoSliceMut::new(&mut their_head[came.min(self.head_bytes)..self.head_bytes]),
                    IoSliceMut::new(&mut incoming[came.saturating_sub(self.head_bytes)..]),
                ];
                came += match self.stream.read_vectored(&mut parts) {
                    Ok(0) => return Err("the bare socket was closed".to_owned()),
                    read => later(read)?,
                };
            }
        }
        Ok(())
    }
}

fn later(moved: io::Result<usize>) -> Result<usize, String> {
    match moved {
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(0),
        other => other.map_err(words),
    }
}

/// Two copies through shared memory and a flag, two slots in turns.
struct BareShm {
    map: Arc<Mapping>,
    side: usize,
    sent: u64,
    came: u64,
}

fn bare_shm() -> Result<Contender, String> {
    let (map, _file) = Mapping::create(FIRST_SLOT + 4 * SLOT_BYTES).map_err(words)?;
    let map = Arc::new(map);
    let end = |side| -> Box<dyn End> {
        Box::new(BareShm {
            map: Arc::clone(&map),
            side,
            sent: 0,
            came: 0,
        })
    };
    Ok(Contender {
        most_bytes: SLOT_BYTES,
        ..contender("memcpy", None, [end(0), end(1)])
    })
}

impl BareShm {
    fn flag(&self, side: usize) -> Result<&AtomicU64, String> {
        self.map
            .word(side * 128)
            .ok_or_else(|| "no flag".to_owned())
    }

    const fn slot(side: usize, number: u64) -> usize {
        FIRST_SLOT + (side * 2 + (number & 1) as usize) * SLOT_BYTES
    }
}

impl End for BareShm {
    fn exchange(&mut self, out: &[u8], incoming: &mut [u8]) -> Result<(), String> {
        let mut fits = true;
        if !out.is_empty() {
            self.sent += 1;
            fits &= self.map.write(Self::slot(self.side, self.sent), out);
            self.flag(self.side)?.store(self.sent, Ordering::Release);
        }
        if !incoming.is_empty() {
            self.came += 1;
            let flag = self.flag(1 - self.side)?;
            while flag.load(Ordering::Acquire) < self.came {
                std::hint::spin_loop();
            }
            fits &= self
                .map
                .read(Self::slot(1 - self.side, self.came), incoming);
        }
        fits.then_some(()).ok_or_else(|| "no room".to_owned())
    }
}

impl End for Rank {
    fn exchange(&mut self, out: &[u8], incoming: &mut [u8]) -> Result<(), String> {
        let gate = Gate {
            layer: 0,
            name: GateName::Attention,
            kind: GateKind::Big {
                bytes: out.len() as u64,
            },
        };
        Self::exchange(self, gate, out, &mut [incoming]).map_err(words)
    }
}

/// How two ranks are joined.
#[derive(Clone, Copy)]
struct Link {
    transport: Transport,
    payload_crc: bool,
    encrypt: bool,
}

fn ranks(link: Link) -> Result<[Box<dyn End>; 2], String> {
    let listening = Listening::open("127.0.0.1", 0).map_err(words)?;
    let port = listening.addresses().first().map_or(0, |it| it.port());
    let worker = setup(1, link, None, port)?;
    let leader = setup(0, link, Some(listening), port)?;
    let other = thread::spawn(move || Rank::open(worker, &mut |_| {}));
    let leader = Rank::open(leader, &mut |_| {}).map_err(words)?;
    let worker = other.join().map_err(|_| "the worker panicked")?;
    Ok([Box::new(leader), Box::new(worker.map_err(words)?)])
}

fn setup(rank: u32, link: Link, listening: Option<Listening>, port: u16) -> Result<Setup, String> {
    /// Ranks stand still while others are measured.
    const LONG_NS: u64 = 3_600_000_000_000;
    let remote = Remote {
        rank: 0,
        host: "127.0.0.1".to_owned(),
        port,
    };
    Ok(Setup {
        config: Config {
            rank,
            identity: Identity {
                model: [0; 32],
                n_vocab: 2,
                quant_bits: 0,
                switches: 0,
                layout: SlabLayout::aligned(SlabGeometry::new(1, 4096)).map_err(words)?,
                schedule: Schedule::every_gate(1).map_err(words)?,
                split_logits: false,
                payload_crc: link.payload_crc,
            },
            context: 1,
            transports: TransportSet::of(&[link.transport]),
            deadlines: Deadlines {
                idle_ns: LONG_NS,
                ..Deadlines::default()
            },
            dialect: Dialect::Native,
        },
        key: Key::new([1; 32]),
        encrypt: link.encrypt,
        listening,
        remotes: if rank == 0 { Vec::new() } else { vec![remote] },
        wait: Wait::SPIN,
        buffer_bytes: None,
        rdma: Rdma::default(),
        collective: None,
        stop: Arc::new(AtomicBool::new(false)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_gates_are_measured_beside_their_peers() {
        let options = Options {
            rounds: 3,
            filter: Some("256B".to_owned()),
            quick: true,
        };
        for (what, count) in [(Subject::Paths, 8), (Subject::Gates, 7)] {
            let mut seen = 0;
            let (rows, incomplete) =
                measure(what, &options, &AtomicBool::new(false), &mut |_| seen += 1).unwrap();
            assert!(!incomplete && rows.len() == count && seen == count);
            let subjects = rows.iter().filter(|row| row.row.peer.is_some());
            assert!(subjects.clone().count() * 2 >= count);
            let verified = rows.iter().map(|row| row.verified_bytes);
            assert!(verified.min() >= Some(3 * 400 * 16));
            assert!(
                subjects
                    .clone()
                    .all(|row| row.row.ratio_to_peer.unwrap() > 0.0)
            );
        }
    }

    #[test]
    fn a_key_exchange_is_measured_and_far_below_five_milliseconds() {
        let row = key_exchange(50).unwrap();
        assert_eq!((row.row.n, row.bytes), (50, 240));
        assert!(row.row.min > 0.0 && row.row.min < 5e6, "{row}");
    }
}
