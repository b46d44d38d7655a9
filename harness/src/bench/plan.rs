//! Which allocator runs what beside which.

use std::sync::Arc;

use ds4_engine::alloc::Allocator;
use ds4_engine::device::DeviceMask;

use super::Options;
use super::counts::MASKS;
use super::measure::Spec;
use super::peers::{ByHandle, Contender, Runner, Slots, open_allocator, runner, subjects};
use super::workload::{
    LIVE_COUNTS, Op, SIZES, Workload, beside, churn, one_size, refusal, ring, rmm_random, standing,
    vma_blocks,
};

/// One comparison.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) bench: String,
    pub(super) subject: Spec,
    pub(super) peer: Option<Spec>,
}

/// Builds the plans of a group from the peers.
type BuildPlans = Box<dyn Fn(&[Arc<Contender>]) -> Vec<Plan>>;

/// Comparisons whose workloads are built together, once they are wanted.
pub(super) struct Group {
    pub(super) benches: Vec<String>,
    pub(super) plans: BuildPlans,
}

impl Group {
    fn new(benches: Vec<String>, plans: impl Fn(&[Arc<Contender>]) -> Vec<Plan> + 'static) -> Self {
        Self {
            benches,
            plans: Box::new(plans),
        }
    }
}

pub(super) fn groups(options: &Options) -> Vec<Group> {
    let part = if options.quick { 10 } else { 1 };
    let mut groups = vec![
        trace(move || churn(1, 100_000 / part, 10_000 / part), "churn"),
        trace(move || rmm_random(1, 100_000 / part), "rmm_random"),
        trace(|| vma_blocks(1), "vma_blocks"),
    ];
    groups.extend(SIZES.map(|bytes| sizes(bytes, 50_000 / part)));
    let most = if options.quick { 10_000 } else { usize::MAX };
    let counts = LIVE_COUNTS.into_iter().filter(|count| *count <= most);
    for live in counts {
        groups.push(live_count("live", live, beside, 50_000 / part));
        groups.push(live_count("random", live, standing, 50_000 / part));
    }
    groups.push(Group::new(vec!["refusal".to_owned()], move |peers| {
        let workload = Arc::new(refusal(50_000 / part));
        against_first(&workload, peers)
    }));
    groups.extend(MASKS.map(|mask| masks(mask, u32::try_from(20_000 / part).unwrap_or(1))));
    groups.extend([(1, 1), (2, 1), (2, 2)].map(|(threads, devices)| {
        across_threads(threads, devices, u32::try_from(100_000 / part).unwrap_or(1))
    }));
    groups
}

fn all_subjects() -> impl Iterator<Item = Arc<Contender>> {
    subjects().into_iter().map(Arc::new)
}

fn trace(build: impl Fn() -> Workload + 'static, name: &str) -> Group {
    let bench = name.to_owned();
    Group::new(vec![name.to_owned()], move |peers| {
        let workload = Arc::new(build());
        let mut plans = Vec::new();
        for subject in all_subjects() {
            // The peers keep books without locks, masks or budgets, as the pool does; the layers
            // above it are compared with the fastest of them only.
            let beside = if subject.name == "pool" {
                peers
            } else {
                peers.get(..1).unwrap_or(&[])
            };
            plans.extend(beside.iter().map(|peer| Plan {
                bench: bench.clone(),
                subject: Spec::new(&subject, &workload),
                peer: Some(Spec::new(peer, &workload)),
            }));
        }
        plans
    })
}

fn against_first(workload: &Arc<Workload>, peers: &[Arc<Contender>]) -> Vec<Plan> {
    all_subjects()
        .map(|subject| Plan {
            bench: workload.name.clone(),
            subject: Spec::new(&subject, workload),
            peer: peers.first().map(|peer| Spec::new(peer, workload)),
        })
        .collect()
}

fn sizes(bytes: u64, pairs: usize) -> Group {
    Group::new(vec![one_size(bytes, 0).name], move |peers| {
        against_first(&Arc::new(one_size(bytes, pairs)), peers)
    })
}

/// The same subject beside itself with 1 000 live blocks.
fn live_count(
    name: &str,
    live: usize,
    workload: fn(u64, usize, usize) -> Workload,
    pairs: usize,
) -> Group {
    Group::new(vec![format!("{name}/{live}")], move |_| {
        let (few, many) = (
            Arc::new(workload(1, 1_000, pairs)),
            Arc::new(workload(1, live, pairs)),
        );
        all_subjects()
            .map(|subject| {
                let baseline = renamed(&subject, "1000 live");
                Plan {
                    bench: many.name.clone(),
                    subject: Spec::new(&subject, &many),
                    peer: (live != 1_000).then(|| Spec::new(&baseline, &few)),
                }
            })
            .collect()
    })
}

fn renamed(contender: &Arc<Contender>, suffix: &str) -> Arc<Contender> {
    let inner = Arc::clone(contender);
    let name = format!("{} {suffix}", contender.name);
    Arc::new(Contender::new(name, move |bytes, slots| {
        inner.open(bytes, slots)
    }))
}

/// A mask beside one bit on one device, over blocks that spread where the mask lets them.
fn masks((name, devices, mask): (&'static str, usize, u32), pairs: u32) -> Group {
    let bench = format!("mask/{name}/{devices} devices");
    Group::new(vec![bench.clone()], move |_| {
        let workload = Arc::new(ring(name, 256, pairs, (8, 20)));
        let hinted = |label: String, mask: u32| {
            Arc::new(Contender::new(label, move |bytes, slots| {
                let allocator = open_allocator(devices, bytes, false)?;
                Ok(runner(
                    ByHandle {
                        allocator,
                        mask: DeviceMask(mask),
                    },
                    slots,
                ))
            }))
        };
        let subject = hinted("allocator".to_owned(), mask);
        let peer = hinted("one bit".to_owned(), 1);
        vec![Plan {
            bench: bench.clone(),
            subject: Spec::new(&subject, &workload),
            peer: (mask != 1).then(|| Spec::new(&peer, &workload)),
        }]
    })
}

fn across_threads(threads: usize, devices: usize, pairs: u32) -> Group {
    let bench = format!("threads/{threads} on {devices} devices");
    Group::new(vec![bench.clone()], move |_| {
        let workload = Arc::new(ring("threads", 256, pairs, (8, 20)));
        let contender = |threads, devices, name: &str| {
            Arc::new(Contender::new(name, move |bytes: u64, slots| {
                let bytes = bytes * threads as u64;
                let allocator = open_allocator(devices, bytes, false)?;
                let lanes = (0..threads)
                    .map(|thread| lane(&allocator, thread % devices, slots))
                    .collect();
                Ok(Box::new(Together(lanes)) as Box<dyn Runner>)
            }))
        };
        let spec = |contender: Arc<Contender>, threads| Spec {
            threads,
            ..Spec::new(&contender, &workload)
        };
        let alone = contender(1, 1, "one thread");
        vec![Plan {
            bench: bench.clone(),
            subject: spec(contender(threads, devices, "allocator"), threads),
            peer: (threads > 1).then(|| spec(alone, 1)),
        }]
    })
}

fn lane(allocator: &Arc<Allocator>, device: usize, slots: usize) -> Slots<ByHandle> {
    let (allocator, mask) = (Arc::clone(allocator), DeviceMask(1 << device));
    Slots::new(ByHandle { allocator, mask }, slots)
}

/// Runs the same operations on several threads at once.
struct Together(Vec<Slots<ByHandle>>);

impl Runner for Together {
    fn run(&mut self, ops: &[Op]) -> u64 {
        if let [only] = self.0.as_mut_slice() {
            return only.run(ops);
        }
        std::thread::scope(|scope| {
            let threads: Vec<_> = self
                .0
                .iter_mut()
                .map(|lane| scope.spawn(move || lane.run(ops)))
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or(u64::MAX))
                .sum()
        })
    }

    fn drain(&mut self) {
        for lane in &mut self.0 {
            lane.drain();
        }
    }
}
