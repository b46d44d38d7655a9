//! Latency of allocate and free under criterion, for looking at distributions and for comparing
//! two states of a working tree. Times of separate benches are no ratios: see `ratios` for those.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use ds4_benches::peers::more_peers;
use ds4_benches::workload::{
    LIVE_COUNTS, SIZES, Workload, churn, one_size, refusal, ring, standing, vma_blocks,
};
use ds4_engine::device::DeviceMask;
use ds4_harness::bench::peers::{
    ByHandle, Contender, Runner, open_allocator, peers, runner, subjects,
};
use ds4_harness::bench::{MASKS, roomy};
use ds4_harness::stopwatch::Stopwatch;

/// Runs the operations `times` times; only they are timed, not the emptying in between.
fn timed(runner: &mut dyn Runner, workload: &Workload, times: u64) -> Duration {
    let mut total = Duration::ZERO;
    for _ in 0..times {
        let watch = Stopwatch::start();
        runner.run(&workload.ops);
        total += Duration::from_nanos(watch.elapsed_ns());
        if !workload.cyclic {
            runner.drain();
        }
    }
    total
}

fn bench(criterion: &mut Criterion, workload: &Workload, contenders: &[Contender]) {
    let mut group = criterion.benchmark_group(&workload.name);
    group.throughput(Throughput::Elements(workload.ops.len() as u64));
    group.sample_size(10);
    for contender in contenders {
        let capacity = roomy(workload.peak_live_bytes);
        let Ok(mut runner) = contender.open(capacity, workload.slots) else {
            continue;
        };
        runner.run(&workload.setup);
        let id = BenchmarkId::from_parameter(&contender.name);
        group.bench_function(id, |bencher| {
            bencher.iter_custom(|times| timed(&mut *runner, workload, times));
        });
    }
    group.finish();
}

fn everyone() -> Vec<Contender> {
    subjects()
        .into_iter()
        .chain(peers())
        .chain(more_peers())
        .collect()
}

fn traces(criterion: &mut Criterion) {
    bench(criterion, &churn(1, 100_000, 10_000), &everyone());
    bench(criterion, &vma_blocks(1), &everyone());
}

fn sizes(criterion: &mut Criterion) {
    for bytes in SIZES {
        bench(criterion, &one_size(bytes, 5_000), &subjects());
    }
}

fn live_counts(criterion: &mut Criterion) {
    for live in LIVE_COUNTS {
        bench(criterion, &standing(1, live, 20_000), &subjects());
    }
}

fn refusals(criterion: &mut Criterion) {
    let mut contenders = subjects();
    contenders.extend(peers());
    bench(criterion, &refusal(5_000), &contenders);
}

fn masks(criterion: &mut Criterion) {
    let workload = Arc::new(ring("mask", 256, 5_000, (8, 20)));
    let contenders: Vec<Contender> = MASKS
        .into_iter()
        .map(|(name, devices, mask)| {
            Contender::new(
                format!("{name} on {devices} devices"),
                move |bytes, slots| {
                    let allocator = open_allocator(devices, bytes, false)?;
                    Ok(runner(
                        ByHandle {
                            allocator,
                            mask: DeviceMask(mask),
                        },
                        slots,
                    ))
                },
            )
        })
        .collect();
    bench(criterion, &workload, &contenders);
}

criterion_group!(benches, traces, sizes, live_counts, refusals, masks);
criterion_main!(benches);
