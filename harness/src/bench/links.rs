//! Connections of two ranks, beside what the same bytes cost without ds4.
//!
//! Both ends run the same list of rounds in two threads. In each round every contender exchanges
//! the same number of messages, so that subject and peer meet the same machine; ratios are taken
//! within a round. Every message is stamped and its ends are checked; once a round all of it is.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use ds4_engine::bytes::format_bytes;
use ds4_engine::tp::trust::{ANSWER_BYTES, CHALLENGE_BYTES, VERDICT_BYTES};
use serde::Serialize;

use super::contenders::{End, gates, paths};
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

impl LinkRow {
    /// A row without a peer, of times in nanoseconds.
    pub(super) fn new(
        bench: &str,
        subject: &str,
        bytes: u64,
        mut times: Vec<f64>,
        verified_bytes: u64,
    ) -> Self {
        times.sort_by(f64::total_cmp);
        let p50 = quantile(&times, 500);
        Self {
            row: Row {
                bench: bench.to_owned(),
                subject: subject.to_owned(),
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
            bytes,
            bytes_per_second: bytes as f64 * 1e9 / p50,
            verified_bytes,
        }
    }

    /// The same beside a peer.
    pub(super) fn beside(mut self, peer: &str, ratio: f64) -> Self {
        self.row.peer = Some(peer.to_owned());
        self.row.ratio_to_peer = Some(ratio);
        self
    }
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
/// So many bytes at each end of every message are checked.
const END_BYTES: usize = 8;
const KEY_EXCHANGE: &str = "key exchange";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    /// One message after the other.
    OneWay,
    /// Both ends send at once.
    BothWays,
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
    let (contenders, directions): (_, &[Direction]) = match what {
        Subject::Paths => (paths()?, &[Direction::OneWay, Direction::BothWays]),
        Subject::Gates => (gates()?, &[Direction::BothWays]),
    };
    let (mut names, mut most_bytes) = (Vec::new(), Vec::new());
    let (mut near, mut far) = (Vec::new(), Vec::new());
    for contender in contenders {
        let [one, two] = contender.ends;
        names.push((contender.name, contender.peer));
        most_bytes.push(contender.most_bytes);
        near.push(one);
        far.push(two);
    }
    let mut rows = Vec::new();
    if what == Subject::Gates && options.wants(KEY_EXCHANGE) {
        let row = key_exchange(if options.quick { 100 } else { 1000 })?;
        each(&row);
        rows.push(row);
    }
    for direction in directions {
        for bytes in SIZES {
            let verb = match (what, direction) {
                (Subject::Gates, _) => "gate",
                (Subject::Paths, Direction::OneWay) => "one way",
                (Subject::Paths, Direction::BothWays) => "exchange",
            };
            let bench = format!("{verb} {}", format_bytes(bytes as u64).replace(' ', ""));
            if !options.wants(&bench) {
                continue;
            }
            if stop.load(Ordering::Relaxed) {
                return Ok((rows, true));
            }
            let budget: usize = if options.quick { 8 << 20 } else { 64 << 20 };
            let plan = Rounds {
                direction: *direction,
                bytes,
                count: (budget / bytes).clamp(4, if options.quick { 400 } else { 2000 }),
                rounds: options.rounds.max(3),
                takes_part: most_bytes.iter().map(|most| bytes <= *most).collect(),
            };
            let (times, other) = thread::scope(|scope| {
                let other = scope.spawn(|| plan.run(1, &mut far));
                let times = plan.run(0, &mut near);
                (times, other.join())
            });
            other.map_err(|_| "the other end panicked".to_owned())??;
            let verified = |rounds: &[Vec<f64>]| {
                let messages = rounds.iter().map(Vec::len);
                messages.map(|count| verified_bytes(bytes, count)).sum()
            };
            let measured = compared(&bench, bytes, &names, &times?, verified);
            measured.iter().for_each(&mut *each);
            rows.extend(measured);
        }
    }
    Ok((rows, false))
}

/// Connections made and proved, one after the other.
fn key_exchange(count: usize) -> Result<LinkRow, String> {
    // The first ones warm up.
    let times = key_exchanges(count + count / 10)?;
    let times = times.get(count / 10..).unwrap_or_default().to_vec();
    let bytes = CHALLENGE_BYTES + ANSWER_BYTES + VERDICT_BYTES;
    // Both proofs cover all that was said.
    let verified_bytes = (bytes * times.len()) as u64;
    let (bench, subject, bytes) = (KEY_EXCHANGE, "connect and prove", bytes as u64);
    Ok(LinkRow::new(bench, subject, bytes, times, verified_bytes))
}

/// A contender's name, and the place of its peer.
pub(super) type Name = (&'static str, Option<usize>);

/// The rows of contenders that ran in turns, `times` by contender and round; who has none is left
/// out.
pub(super) fn compared(
    bench: &str,
    bytes: usize,
    names: &[Name],
    times: &[Vec<Vec<f64>>],
    verified_bytes: impl Fn(&[Vec<f64>]) -> u64,
) -> Vec<LinkRow> {
    let ran = |index: usize| times.get(index).filter(|rounds| !rounds.is_empty());
    let mut rows = Vec::new();
    for (index, (name, peer)) in names.iter().enumerate() {
        let Some(rounds) = ran(index) else { continue };
        let (bytes, verified_bytes) = (bytes as u64, verified_bytes(rounds));
        let mut row = LinkRow::new(bench, name, bytes, rounds.concat(), verified_bytes);
        if let Some((peer, others)) = peer.and_then(|peer| Some((peer, ran(peer)?))) {
            let rounds = rounds.iter().zip(others);
            let ratios = rounds.map(|(own, other)| median(own.clone()) / median(other.clone()));
            row = row.beside(names[peer].0, median(ratios.collect()));
        }
        rows.push(row);
    }
    rows
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    quantile(&values, 500)
}

/// The ends of every message of a round, and all of its last one.
fn verified_bytes(bytes: usize, messages: usize) -> u64 {
    (messages.saturating_sub(1) * bytes.min(2 * END_BYTES) + bytes) as u64
}

/// What both ends run.
struct Rounds {
    direction: Direction,
    bytes: usize,
    count: usize,
    rounds: usize,
    takes_part: Vec<bool>,
}

impl Rounds {
    /// Times of each contender, by rounds, as this end saw them.
    fn run(&self, side: u8, ends: &mut [Box<dyn End>]) -> Result<Vec<Vec<Vec<f64>>>, String> {
        let mut buffers = Buffers {
            out: (0..self.bytes).map(|at| byte(at, side)).collect(),
            want: (0..self.bytes).map(|at| byte(at, 1 - side)).collect(),
            incoming: vec![0xff; self.bytes],
        };
        let mut times = vec![Vec::new(); ends.len()];
        for round in 0..=self.rounds {
            let taking_part = ends.iter_mut().zip(&mut times).zip(&self.takes_part);
            for ((end, times), _) in taking_part.filter(|(_, takes_part)| **takes_part) {
                // The first round warms up.
                let count = if round == 0 {
                    self.count / 10 + 2
                } else {
                    self.count
                };
                let mut taken = Vec::with_capacity(count);
                for number in 0..count {
                    buffers.stamp(round, number);
                    taken.push(self.message(side, &mut **end, &mut buffers)?);
                    if !buffers.arrived(number + 1 == count) {
                        return Err(format!("wrong bytes in a message of {} bytes", self.bytes));
                    }
                }
                if round > 0 {
                    times.push(taken);
                }
            }
        }
        Ok(times)
    }

    /// The time of one message.
    fn message(&self, side: u8, end: &mut dyn End, buffers: &mut Buffers) -> Result<f64, String> {
        let Buffers { out, incoming, .. } = buffers;
        let watch = Stopwatch::start();
        match (self.direction, side) {
            (Direction::BothWays, _) => end.exchange(out, incoming)?,
            (Direction::OneWay, 0) => {
                end.exchange(out, &mut [])?;
                end.exchange(&[], incoming)?;
            }
            (Direction::OneWay, _) => {
                end.exchange(&[], incoming)?;
                end.exchange(out, &mut [])?;
            }
        }
        let ns = watch.elapsed_ns() as f64;
        Ok(match self.direction {
            Direction::OneWay => ns / 2.0,
            Direction::BothWays => ns,
        })
    }
}

/// What one end sends, what it must get, and what it got.
struct Buffers {
    out: Vec<u8>,
    want: Vec<u8>,
    incoming: Vec<u8>,
}

impl Buffers {
    /// Makes each message another one, at its beginning and at its end.
    fn stamp(&mut self, round: usize, number: usize) {
        let mark = (number as u64).to_le_bytes()[0] ^ (round as u64).to_le_bytes()[0];
        for message in [&mut self.out, &mut self.want] {
            let last = message.len() - 1;
            message[0] = mark;
            message[last] = mark;
        }
    }

    /// Whether the ends are right, or the whole.
    fn arrived(&self, whole: bool) -> bool {
        let (incoming, want) = (&self.incoming, &self.want);
        let ends = want.len().min(END_BYTES);
        let last = want.len() - ends;
        if whole {
            incoming == want
        } else {
            incoming[..ends] == want[..ends] && incoming[last..] == want[last..]
        }
    }
}

fn byte(at: usize, side: u8) -> u8 {
    (at as u64).wrapping_mul(0x9e37_79b9).to_le_bytes()[2] ^ side.wrapping_mul(0x55)
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
