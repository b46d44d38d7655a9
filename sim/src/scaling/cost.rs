//! What an all-reduce costs in closed form.

use super::{Algorithm, Link, Step};

/// The time until every one of `ranks` has the sum of `bytes`, in picoseconds.
///
/// One rank needs no gate: 0.
#[must_use]
pub fn closed_form_ps(link: &Link, algorithm: Algorithm, ranks: u16, bytes: u64) -> u64 {
    if ranks < 2 {
        return 0;
    }
    let step = link.step(algorithm.message_bytes(ranks, bytes));
    let others = u64::from(ranks) - 1;
    let work = match algorithm {
        // All leave one after another through one port; the last one's latency shows.
        Algorithm::OneShot => others
            .saturating_mul(step.occupied_ps().saturating_add(step.add_ps))
            .saturating_add(step.latency_ps),
        // Every step waits for the one before.
        Algorithm::Ring => others
            .saturating_mul(step.alone_ps().saturating_mul(2))
            .saturating_add(others.saturating_mul(step.add_ps)),
        Algorithm::Tree => reduced_ps(step, ranks).saturating_add(broadcast_ps(step, ranks)),
    };
    link.once_ps.saturating_add(work)
}

/// The ranks below the root of a binomial tree of `ranks`: sizes of its branches, smallest first.
fn branches(ranks: u16) -> impl DoubleEndedIterator<Item = u16> {
    let levels = u16::BITS - ranks.saturating_sub(1).leading_zeros();
    (0..levels).map(move |level| {
        let first = 1 << level;
        (ranks - first).min(first)
    })
}

/// When the root has the sum of its tree.
///
/// Branches that end together arrive one after another at the root's port, and are added in the
/// order of ranks.
fn reduced_ps(step: Step, ranks: u16) -> u64 {
    let mut heads: Vec<(u64, usize)> = branches(ranks)
        .map(|branch| reduced_ps(step, branch))
        .enumerate()
        .map(|(place, sent)| {
            let head = sent.saturating_add(step.gap_ps);
            (head.saturating_add(step.latency_ps), place)
        })
        .collect();
    heads.sort_unstable();
    let mut port_free = 0;
    let mut arrived: Vec<(usize, u64)> = Vec::with_capacity(heads.len());
    for (head, place) in heads {
        port_free = head.max(port_free).saturating_add(step.wire_ps);
        arrived.push((place, port_free));
    }
    arrived.sort_unstable();
    arrived
        .iter()
        .fold(0, |added, (_, arrival): &(usize, u64)| {
            arrival.max(&added).saturating_add(step.add_ps)
        })
}

/// How long after its root the last rank of a tree has the sum; the largest branch is sent first.
fn broadcast_ps(step: Step, ranks: u16) -> u64 {
    let sends = branches(ranks).rev().zip(0_u64..);
    let ends = sends.map(|(branch, before)| {
        let sent = before.saturating_mul(step.occupied_ps());
        let arrived = sent.saturating_add(step.alone_ps());
        arrived.saturating_add(broadcast_ps(step, branch))
    });
    ends.max().unwrap_or(0)
}
