//! Sums over groups of ranks: in one shot beside the ring, so that the limit between the two is a
//! measured one.
//!
//! Each rank is a thread. In each round both ways sum the same vectors the same number of times;
//! ratios are taken within a round. One sum of each round is compared bit by bit.
//!
//! A rank can be one sum ahead of another, whose next one then costs it nothing; so times are means
//! of eight sums in a row.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use ds4_engine::bytes::format_bytes;
use ds4_engine::tp::reduce::sum_in_order;
use ds4_engine::tp::transport::Transport;
use ds4_engine::transport::{Rank, Said};

use super::contenders::{gate, setups};
use super::links::{LinkRow, compared};
use super::{Options, words};
use crate::stopwatch::Stopwatch;

/// Sums of which the mean time is one measured value.
const IN_A_ROW: usize = 8;
const RANKS: [u32; 3] = [3, 4, 8];
const SIZES: [usize; 7] = [
    4 << 10,
    16 << 10,
    64 << 10,
    128 << 10,
    256 << 10,
    1 << 20,
    4 << 20,
];

/// Measures; as [`super::links::measure`].
///
/// # Errors
/// A sentence: the ranks did not come up or lost each other, or a sum was wrong.
pub fn measure(
    options: &Options,
    stop: &AtomicBool,
    each: &mut dyn FnMut(&LinkRow),
) -> Result<(Vec<LinkRow>, bool), String> {
    let mut rows = Vec::new();
    for ranks in RANKS {
        for (path, names) in [
            (
                Transport::Shm,
                [("shm one shot", None), ("shm ring", Some(0))],
            ),
            (
                Transport::Tcp,
                [("tcp one shot", None), ("tcp ring", Some(0))],
            ),
        ] {
            let named = |bytes: usize| {
                let size = format_bytes(bytes as u64).replace(' ', "");
                (bytes, format!("sum of {ranks} {size}"))
            };
            let mut wanted: Vec<_> = SIZES.into_iter().map(named).collect();
            wanted.retain(|(_, bench)| options.wants(bench));
            if wanted.is_empty() {
                continue;
            }
            let sizes: Vec<usize> = wanted.iter().map(|(bytes, _)| *bytes).collect();
            let all = group(ranks, path, &sizes, options, stop)?;
            for ((bytes, bench), times) in wanted.iter().zip(&all) {
                // A round's last sum is compared, and each time is the mean of several.
                let verified = |rounds: &[Vec<f64>]| (bytes * rounds.len()) as u64;
                for mut row in compared(bench, *bytes, &names, times, verified) {
                    row.row.n *= IN_A_ROW as u64;
                    each(&row);
                    rows.push(row);
                }
            }
            if stop.load(Ordering::Relaxed) {
                return Ok((rows, true));
            }
        }
    }
    Ok((rows, false))
}

/// Times of each size, by way and round, as rank 0 saw them; fewer sizes when it was stopped.
type Times = Vec<Vec<Vec<Vec<f64>>>>;

fn group(
    ranks: u32,
    path: Transport,
    sizes: &[usize],
    options: &Options,
    stop: &AtomicBool,
) -> Result<Times, String> {
    let setups = setups(ranks, path)?;
    thread::scope(|scope| {
        let mut threads = Vec::new();
        for setup in setups {
            threads.push(scope.spawn(move || {
                let rank = Rank::open(setup, &mut |_| {}).map_err(words)?;
                Member { rank }.run(sizes, options, stop)
            }));
        }
        let mut first = None;
        for thread in threads {
            let times = thread.join().map_err(|_| "a rank panicked")??;
            first.get_or_insert(times);
        }
        Ok(first.unwrap_or_default())
    })
}

struct Member {
    rank: Rank,
}

impl Member {
    fn run(
        mut self,
        sizes: &[usize],
        options: &Options,
        stop: &AtomicBool,
    ) -> Result<Times, String> {
        let mut all = Vec::new();
        for bytes in sizes {
            if self.all_stop(stop)? {
                break;
            }
            all.push(self.size(*bytes, options)?);
        }
        if self.rank.session().rank() == 0 {
            self.rank.finish().map_err(words)?;
        } else {
            while !matches!(self.rank.hear().map_err(words)?, Said::Finished) {}
        }
        Ok(all)
    }

    /// Whether any rank saw the wish to stop: all end at the same size.
    fn all_stop(&mut self, stop: &AtomicBool) -> Result<bool, String> {
        let mut wish = f32::from(stop.load(Ordering::Relaxed)).to_le_bytes();
        let summed = self.rank.exchange_in_ring(gate(wish.len()), &mut wish);
        summed.map_err(words)?;
        Ok(f32::from_le_bytes(wish) > 0.0)
    }

    fn size(&mut self, bytes: usize, options: &Options) -> Result<Vec<Vec<Vec<f64>>>, String> {
        let (own, ranks) = (self.rank.session().rank(), self.rank.session().ranks());
        let parts: Vec<Vec<u8>> = (0..ranks).map(|rank| part(rank, bytes)).collect();
        let mut want = vec![0; bytes];
        sum_in_order(&mut want, parts.iter().map(Vec::as_slice));
        let mut incoming = vec![vec![0; bytes]; ranks as usize - 1];
        let (mut sum, out) = (vec![0; bytes], &parts[own as usize]);
        let budget: usize = if options.quick { 4 << 20 } else { 64 << 20 };
        let most = if options.quick { 60 } else { 500 };
        let count = (budget / bytes)
            .clamp(IN_A_ROW, most)
            .next_multiple_of(IN_A_ROW);
        let mut times = vec![Vec::new(); 2];
        for round in 0..=options.rounds.max(3) {
            for (way, times) in times.iter_mut().enumerate() {
                let mut taken = Vec::with_capacity(count);
                // The first round warms up.
                for _ in 0..if round == 0 { 2 } else { count } {
                    sum.copy_from_slice(out);
                    let watch = Stopwatch::start();
                    if way == 0 {
                        self.straight(out, &mut incoming, &mut sum)?;
                    } else {
                        let ring = self.rank.exchange_in_ring(gate(bytes), &mut sum);
                        ring.map_err(words)?;
                    }
                    taken.push(watch.elapsed_ns() as f64);
                }
                let taken: Vec<f64> = taken.chunks(IN_A_ROW).map(mean).collect();
                if sum != want {
                    return Err(format!(
                        "a wrong sum of {bytes} bytes on rank {own} of {ranks}"
                    ));
                }
                if round > 0 {
                    times.push(taken);
                }
            }
        }
        Ok(times)
    }

    fn straight(
        &mut self,
        out: &[u8],
        incoming: &mut [Vec<u8>],
        sum: &mut [u8],
    ) -> Result<(), String> {
        let own = self.rank.session().rank() as usize;
        let passed = self.rank.exchange(gate(out.len()), out, incoming);
        passed.map_err(words)?;
        let (before, behind) = incoming.split_at(own);
        let parts = before.iter().map(Vec::as_slice).chain([out]);
        sum_in_order(sum, parts.chain(behind.iter().map(Vec::as_slice)));
        Ok(())
    }
}

fn mean(times: &[f64]) -> f64 {
    times.iter().sum::<f64>() / times.len().max(1) as f64
}

/// Numbers whose sums depend on their order.
fn part(rank: u32, bytes: usize) -> Vec<u8> {
    let numbers = (0..60_000_u16).map(|at| f32::from(at) * 1.1 + rank as f32 / 3.0);
    let bytes_of = numbers.cycle().flat_map(f32::to_le_bytes);
    bytes_of.take(bytes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_of_every_group_are_measured_beside_each_other() {
        let options = Options {
            rounds: 3,
            filter: Some("64KiB".to_owned()),
            quick: true,
        };
        let mut seen = 0;
        let (rows, incomplete) =
            measure(&options, &AtomicBool::new(false), &mut |_| seen += 1).unwrap();
        assert!(!incomplete && rows.len() == 12 && seen == 12);
        let rings = rows.iter().filter(|row| row.row.peer.is_some());
        assert_eq!(rings.clone().count(), 6);
        assert!(
            rings
                .clone()
                .all(|row| row.row.ratio_to_peer.unwrap() > 0.0)
        );
        let stopped = measure(&options, &AtomicBool::new(true), &mut |_| {}).unwrap();
        assert_eq!(stopped, (Vec::new(), true));
    }
}
