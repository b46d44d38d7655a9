//! The smallest run that still breaks the rule.

use super::plan::LinkPlan;
use super::run::run_links;

/// Takes away from a plan whatever its breach does not need: faults first, then size. A plan
/// without a breach comes back as it is.
#[must_use]
pub fn shrink_links(plan: &LinkPlan) -> LinkPlan {
    let breaks = |plan: &LinkPlan| run_links(plan).breach().is_some();
    let mut least = plan.clone();
    if !breaks(&least) {
        return least;
    }
    // Each round takes something away, so that the rounds end.
    while let Some(smaller) = smaller(&least).into_iter().find(|plan| breaks(plan)) {
        least = smaller;
    }
    least
}

/// Plans with one thing less.
fn smaller(plan: &LinkPlan) -> Vec<LinkPlan> {
    let mut plans = Vec::new();
    for index in 0..plan.link_faults.len() {
        let mut less = plan.clone();
        less.link_faults.remove(index);
        plans.push(less);
    }
    for index in 0..plan.rank_faults.len() {
        let mut less = plan.clone();
        less.rank_faults.remove(index);
        plans.push(less);
    }
    let mut with = |changes: bool, change: &dyn Fn(&mut LinkPlan)| {
        if changes {
            let mut less = plan.clone();
            change(&mut less);
            plans.push(less);
        }
    };
    with(plan.ranks > 2, &|plan| plan.ranks -= 1);
    with(plan.skewed_clocks, &|plan| plan.skewed_clocks = false);
    with(plan.tokens > 1, &|plan| plan.tokens -= 1);
    with(plan.n_layer > 1, &|plan| plan.n_layer -= 1);
    with(plan.n_embd > 1, &|plan| plan.n_embd /= 2);
    with(plan.jitter_ns > 1, &|plan| plan.jitter_ns = 1);
    plans
}
