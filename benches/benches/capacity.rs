//! Least capacity without a refusal ÷ peak live bytes, the mean of seeds 1 to 3.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use ds4_benches::workload::{Workload, churn, rmm_random, vma_blocks};
use ds4_benches::{least_capacity, options_from, peers::more_peers, say};
use ds4_harness::bench::peers::{peers, subjects};

fn main() -> ExitCode {
    let options = options_from(std::env::args().skip(1));
    let part = if options.quick { 10 } else { 1 };
    type Build = Box<dyn Fn(u64) -> Workload>;
    let workloads: [Build; 3] = [
        Box::new(move |seed| churn(seed, 100_000 / part, 10_000 / part)),
        Box::new(move |seed| rmm_random(seed, 100_000 / part)),
        Box::new(vma_blocks),
    ];
    say("least capacity / peak live, for seeds 1 2 3 and their mean");
    for build in workloads {
        for contender in subjects().into_iter().chain(peers()).chain(more_peers()) {
            let mut ratios = Vec::new();
            let mut name = String::new();
            for workload in (1..=3).map(&build) {
                match least_capacity(&contender, &workload) {
                    Ok(Some((_, ratio))) => ratios.push(ratio),
                    Ok(None) => say(&format!(
                        "{}: five times the peak do not suffice",
                        contender.name
                    )),
                    Err(why) => say(&format!("not measured: {why}")),
                }
                name = workload.name;
            }
            if options
                .filter
                .as_ref()
                .is_none_or(|part| name.contains(part))
            {
                let each: Vec<String> = ratios.iter().map(|ratio| format!("{ratio:.3}")).collect();
                let mean = ratios.iter().sum::<f64>()
                    / f64::from(u32::try_from(ratios.len()).unwrap_or(1));
                say(&format!(
                    "{name:<12} {:<30} {}  mean {mean:.3}",
                    contender.name,
                    each.join(" ")
                ));
            }
        }
    }
    ExitCode::SUCCESS
}
