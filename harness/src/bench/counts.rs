//! Exact counts of the work that fixed scenarios take: equal on every machine, so that any change
//! is a change of the code.

use ds4_sim::Instruments;
use std::collections::BTreeMap;

use ds4_engine::alloc::{Allocator, PoolCounters};
use ds4_engine::device::DeviceMask;
use serde::Serialize;

use super::measure::roomy;
use super::peers::{ByAddress, ByHandle, Peer, PoolPeer, allocator_on, open_sim, runner};
use super::workload::{Op, Workload, churn, refusal, ring, rmm_random, standing, vma_blocks};

/// What one scenario took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Free blocks looked at.
    pub probes: u64,
    /// Blocks cut.
    pub splits: u64,
    /// Neighbours joined.
    pub merges: u64,
    /// Calls of the backend.
    pub backend_calls: u64,
    /// Requests refused.
    pub refusals: u64,
}

/// Counts every scenario, by name.
///
/// # Errors
/// An allocator cannot be opened.
pub fn count_all() -> Result<BTreeMap<String, Counts>, String> {
    let mut all = BTreeMap::new();
    for seed in 1..=3 {
        let traces = [
            churn(seed, 100_000, 10_000),
            rmm_random(seed, 20_000),
            vma_blocks(seed),
        ];
        for workload in traces {
            let bytes = tight(&workload);
            let name = format!("{}/seed {seed}", workload.name);
            all.insert(format!("pool/{name}"), pool(&workload, bytes)?);
            if seed == 1 {
                all.insert(
                    format!("allocator/{name}"),
                    allocator(&workload, 1, 1, bytes)?,
                );
            }
        }
    }
    let standing = standing(1, 10_000, 20_000);
    all.insert(
        "pool/live 10000".to_owned(),
        pool(&standing, roomy(standing.peak_live_bytes))?,
    );
    let refused = refusal(1_000);
    all.insert(
        "pool/refusal".to_owned(),
        pool(&refused, roomy(refused.peak_live_bytes))?,
    );
    for (name, devices, mask) in MASKS {
        let workload = ring(name, 256, 10_000, (8, 20));
        let counts = allocator(&workload, devices, mask, roomy(workload.peak_live_bytes))?;
        all.insert(format!("allocator/mask {name}/{devices} devices"), counts);
    }
    Ok(all)
}

/// Mask patterns as (name, devices, mask).
pub const MASKS: [(&str, usize, u32); 9] = [
    ("one bit", 8, 0b1),
    ("two bits", 8, 0b11),
    ("four bits", 8, 0b1111),
    ("eight bits", 8, 0xff),
    ("zero", 8, 0),
    ("orphaned", 8, 1 << 20),
    ("one bit", 32, 0b1),
    ("all bits", 32, u32::MAX),
    ("zero", 32, 0),
];

/// A twelfth above the peak: little enough that the search has to work, and refusals to count.
fn tight(workload: &Workload) -> u64 {
    let peak = workload.peak_live_bytes;
    (peak + peak / 12).next_multiple_of(2 << 20)
}

fn run<P: Peer>(peer: &mut P, workload: &Workload) -> u64 {
    let mut slots: Vec<Option<P::Id>> = std::iter::repeat_with(|| None)
        .take(workload.slots)
        .collect();
    let mut refusals = 0;
    for op in workload.setup.iter().chain(&workload.ops) {
        match *op {
            Op::Allocate { slot, bytes } => {
                let id = peer.allocate(bytes);
                refusals += u64::from(id.is_none());
                slots[slot as usize] = id;
            }
            Op::Free { slot } => {
                if let Some(id) = slots[slot as usize].take() {
                    peer.free(id);
                }
            }
        }
    }
    refusals
}

fn pool(workload: &Workload, bytes: u64) -> Result<Counts, String> {
    let mut peer = PoolPeer::new(bytes)?;
    let refusals = run(&mut peer, workload);
    Ok(Counts {
        refusals,
        ..counts_of(peer.0.counters())
    })
}

fn allocator(workload: &Workload, devices: usize, mask: u32, bytes: u64) -> Result<Counts, String> {
    let backend = open_sim(devices, bytes)?;
    let allocator = allocator_on(backend.clone(), bytes, false)?;
    let mut peer = ByHandle {
        allocator,
        mask: DeviceMask(mask),
    };
    let refusals = run(&mut peer, workload);
    let mut counts = Counts {
        refusals,
        ..Counts::default()
    };
    for stats in stats_of(&peer.allocator) {
        counts.probes += stats.probes;
        counts.splits += stats.splits;
        counts.merges += stats.merges;
    }
    counts.backend_calls = backend.calls().total();
    Ok(counts)
}

fn stats_of(allocator: &Allocator) -> Vec<PoolCounters> {
    allocator
        .report()
        .devices
        .iter()
        .map(|(_, stats)| stats.counters)
        .collect()
}

fn counts_of(counters: PoolCounters) -> Counts {
    Counts {
        probes: counters.probes,
        splits: counters.splits,
        merges: counters.merges,
        ..Counts::default()
    }
}

/// A scenario whose instructions are counted: its runner, set up and warm, and its operations.
pub struct Counted {
    /// The name under which the count is listed.
    pub name: String,
    /// Ready to run.
    pub runner: Box<dyn super::peers::Runner>,
    /// What is counted.
    pub ops: Vec<Op>,
}

/// The names of the scenarios of [`open_counted`].
#[must_use]
pub fn counted_names() -> Vec<String> {
    let fixed = [
        "pool/churn",
        "pool/refusal",
        "allocator/churn",
        "allocator-address/churn",
    ];
    let masks = MASKS
        .iter()
        .map(|(name, devices, _)| format!("mask/{name}/{devices}"));
    fixed
        .into_iter()
        .map(str::to_owned)
        .chain(masks)
        .map(|name| name.replace(' ', "-"))
        .collect()
}

/// Sets a scenario up by its name.
///
/// # Errors
/// No scenario has this name, or its allocator cannot be opened.
pub fn open_counted(name: &str) -> Result<Counted, String> {
    let one = DeviceMask(1);
    let trace = || churn(1, 20_000, 2_000);
    let (workload, runner) = match name {
        "pool/churn" => with(trace(), |bytes, slots| {
            Ok(runner(PoolPeer::new(bytes)?, slots))
        })?,
        "pool/refusal" => with(refusal(10_000), |bytes, slots| {
            Ok(runner(PoolPeer::new(bytes)?, slots))
        })?,
        "allocator/churn" => with(trace(), |bytes, slots| {
            let allocator = super::peers::open_allocator(1, bytes, false)?;
            Ok(runner(
                ByHandle {
                    allocator,
                    mask: one,
                },
                slots,
            ))
        })?,
        "allocator-address/churn" => with(trace(), |bytes, slots| {
            let allocator = super::peers::open_allocator(1, bytes, true)?;
            Ok(runner(
                ByAddress {
                    allocator,
                    mask: one,
                },
                slots,
            ))
        })?,
        _ => {
            let matches = |pattern: &&(&str, usize, u32)| {
                format!("mask/{}/{}", pattern.0.replace(' ', "-"), pattern.1) == name
            };
            let (_, devices, mask) = *MASKS
                .iter()
                .find(matches)
                .ok_or_else(|| format!("no scenario is called '{name}'"))?;
            with(ring(name, 256, 5_000, (8, 20)), |bytes, slots| {
                let allocator = super::peers::open_allocator(devices, bytes, false)?;
                Ok(runner(
                    ByHandle {
                        allocator,
                        mask: DeviceMask(mask),
                    },
                    slots,
                ))
            })?
        }
    };
    let mut runner = runner;
    runner.run(&workload.setup);
    // Once before counting, so that tables have grown and pages are mapped.
    runner.run(&workload.ops);
    if !workload.cyclic {
        runner.drain();
    }
    Ok(Counted {
        name: name.to_owned(),
        runner,
        ops: workload.ops,
    })
}

type Opened = (Workload, Box<dyn super::peers::Runner>);

fn with(
    workload: Workload,
    open: impl Fn(u64, usize) -> Result<Box<dyn super::peers::Runner>, String>,
) -> Result<Opened, String> {
    let runner = open(roomy(workload.peak_live_bytes), workload.slots)?;
    Ok((workload, runner))
}

impl std::fmt::Debug for Counted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Counted")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_runs_count_the_same() {
        let workload = churn(7, 4_000, 400);
        let bytes = tight(&workload);
        assert_eq!(pool(&workload, bytes), pool(&workload, bytes));
        let first = allocator(&workload, 2, 0, bytes).unwrap();
        assert_eq!(Ok(first), allocator(&workload, 2, 0, bytes));
        assert!(first.probes > 0 && first.splits > 0 && first.merges > 0);
        assert!(first.backend_calls > 0);
    }

    #[test]
    fn every_counted_scenario_opens_and_runs() {
        for name in counted_names() {
            let mut counted = open_counted(&name).unwrap();
            let refused = counted.runner.run(&counted.ops);
            let expected = if name == "pool/refusal" {
                counted.ops.len() as u64
            } else {
                0
            };
            assert_eq!(refused, expected, "{name}");
        }
        assert!(open_counted("nonsense").unwrap_err().contains("nonsense"));
    }
}
