//! Plans carried out in memory, by ranks that take turns in any order.

use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;

use super::*;
use crate::tp::reduce::{add_own, sum_in_order};

type Wires = BTreeMap<(u32, u32), VecDeque<(u16, Vec<u8>)>>;

struct Rank {
    own: Vec<u8>,
    /// Sum so far, then the sum.
    sum: Vec<u8>,
    parts: BTreeMap<u32, Vec<u8>>,
    steps: VecDeque<Step>,
}

impl Rank {
    /// Carries out the next step; false when it must wait.
    fn act(&mut self, rank: u32, wires: &mut Wires) -> bool {
        let Some(step) = self.steps.front().copied() else {
            return false;
        };
        let place = usize::try_from(step.offset).unwrap()
            ..usize::try_from(step.offset + step.bytes).unwrap();
        if step.action.sends() {
            let source = if step.action == Action::SendOwn {
                &self.own
            } else {
                &self.sum
            };
            let wire = wires.entry((rank, step.peer)).or_default();
            wire.push_back((step.piece, source[place].to_vec()));
        } else {
            let wire = wires.entry((step.peer, rank)).or_default();
            let Some((piece, mut bytes)) = wire.pop_front() else {
                return false;
            };
            assert_eq!((piece, bytes.len()), (step.piece, place.len()));
            match step.action {
                Action::ReceivePart => {
                    self.parts.insert(step.peer, bytes);
                }
                Action::ReceivePartial => {
                    add_own(&mut bytes, &self.own[place.clone()]);
                    self.sum[place].copy_from_slice(&bytes);
                }
                Action::ReceiveSum | Action::SendOwn | Action::SendPartial | Action::SendSum => {
                    self.sum[place].copy_from_slice(&bytes);
                }
            }
        }
        self.steps.pop_front();
        true
    }
}

/// The sums of all ranks.
fn carry_out(plan: &Plan, vectors: &[Vec<u8>], mut turn: u64) -> Vec<Vec<u8>> {
    let mut wires = Wires::new();
    let mut ranks: Vec<Rank> = vectors
        .iter()
        .zip(0..)
        .map(|(own, rank)| Rank {
            own: own.clone(),
            sum: vec![0; own.len()],
            parts: BTreeMap::new(),
            steps: plan.steps(rank).into(),
        })
        .collect();
    let mut idle = 0;
    while idle < ranks.len() * 4 {
        turn = turn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let at = usize::try_from(turn >> 33).unwrap() % ranks.len();
        idle += 1;
        for index in 0..ranks.len() {
            let rank = (at + index) % ranks.len();
            if ranks[rank].act(u32::try_from(rank).unwrap(), &mut wires) {
                idle = 0;
                break;
            }
        }
    }
    assert!(
        wires.values().all(VecDeque::is_empty),
        "bytes are left over"
    );
    ranks
        .into_iter()
        .zip(0..)
        .map(|(mut rank, number)| {
            assert!(rank.steps.is_empty(), "rank {number} waits for ever");
            if plan.way() == Way::OneShot {
                rank.parts.insert(number, rank.own.clone());
                sum_in_order(&mut rank.sum, rank.parts.values().map(Vec::as_slice));
            }
            rank.sum
        })
        .collect()
}

fn vectors(ranks: u32, numbers: usize, seed: u64) -> Vec<Vec<u8>> {
    let mut state = seed | 1;
    let mut number = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(99);
        let exponent = i32::try_from(state >> 60).unwrap() - 8;
        (f32::from(u16::try_from(state >> 48).unwrap()) - 3e4) * 2_f32.powi(exponent)
    };
    (0..ranks)
        .map(|_| (0..numbers).flat_map(|_| number().to_le_bytes()).collect())
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn all_ranks_get_the_same_bits_whichever_way(
        ranks in 2_u32..=8, numbers in 1_usize..40_000, seed: u64, turn: u64,
    ) {
        let vectors = vectors(ranks, numbers, seed);
        let bytes = u64::try_from(numbers * 4).unwrap();
        let mut want = vec![0; numbers * 4];
        sum_in_order(&mut want, vectors.iter().map(Vec::as_slice));
        for way in [Way::OneShot, Way::Ring] {
            for sum in carry_out(&Plan::by(way, ranks, bytes), &vectors, turn) {
                prop_assert!(sum == want, "{:?}", way);
            }
        }
    }

    #[test]
    fn no_plan_panics_or_sends_outside_the_vector(ranks: u32, rank: u32, bytes in 0_u64..1 << 40) {
        for way in [Way::OneShot, Way::Ring] {
            let plan = Plan::by(way, ranks % 40, bytes);
            for step in plan.steps(rank % 40) {
                prop_assert!(step.offset + step.bytes <= bytes && step.bytes > 0);
                prop_assert!(step.peer < ranks % 40 && step.peer != rank % 40);
            }
        }
    }
}

#[test]
fn small_sums_go_straight_and_large_ones_round() {
    assert_eq!(choose(2, 1 << 30), Way::OneShot);
    assert_eq!(choose(8, 16 << 10), Way::OneShot);
    assert_eq!(choose(8, 64 << 20), Way::Ring);
    assert_eq!(choose(3, 1 << 20), Way::Ring);
}

#[test]
fn a_ring_sends_at_most_two_vectors_from_each_rank() {
    for ranks in 2..=8 {
        let bytes = 1 << 20;
        let plan = Plan::by(Way::Ring, ranks, bytes);
        for rank in 0..ranks {
            let steps = plan.steps(rank);
            let sent = steps.iter().filter(|step| step.action.sends());
            assert!(sent.map(|step| step.bytes).sum::<u64>() <= 2 * bytes);
        }
    }
}
