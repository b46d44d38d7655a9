//! How much memory an allocator needs: the least capacity at which it refuses nothing.

use super::peers::Contender;
use super::workload::{Op, Workload};

/// Capacities are told apart to this part of the peak.
const STEPS: u64 = 2_048;

/// Operations between two looks at whether something was refused.
const LOOK_OPS: usize = 1_000;

/// The least capacity found by bisection between one and five times the peak, as (bytes, ratio to
/// the peak). `None` if five times the peak do not suffice.
///
/// A larger capacity can fail where a smaller one did, since placement depends on it; this is the
/// point that bisection meets, as for every allocator it is compared with.
///
/// # Errors
/// The allocator cannot be opened.
pub fn least_capacity(
    contender: &Contender,
    workload: &Workload,
) -> Result<Option<(u64, f64)>, String> {
    let step = (workload.peak_live_bytes / STEPS).max(1);
    let bytes_of = |steps: u64| {
        // Whole pages, the least unit of a budget.
        (workload.peak_live_bytes + steps * step).next_multiple_of(2 << 20)
    };
    // Most need little more than the peak, and a peer may not be able to open much more.
    let (mut too_few, mut enough) = (None, STEPS / 2);
    while !suffices(contender, workload, bytes_of(enough))? {
        too_few = Some(enough);
        enough *= 2;
        if enough > 4 * STEPS {
            return Ok(None);
        }
    }
    loop {
        let low = too_few.map_or(0, |steps: u64| steps + 1);
        if low >= enough {
            break;
        }
        // The answer is near the low end: look there first.
        let middle = low + (enough - low) / 3;
        if suffices(contender, workload, bytes_of(middle))? {
            enough = middle;
        } else {
            too_few = Some(middle);
        }
    }
    let bytes = bytes_of(enough);
    Ok(Some((bytes, ratio(bytes, workload.peak_live_bytes))))
}

fn suffices(contender: &Contender, workload: &Workload, bytes: u64) -> Result<bool, String> {
    let mut runner = contender.open(bytes, workload.slots)?;
    let all: [&[Op]; 2] = [&workload.setup, &workload.ops];
    Ok(all
        .into_iter()
        .flat_map(|ops| ops.chunks(LOOK_OPS))
        .all(|ops| runner.run(ops) == 0))
}

#[expect(clippy::cast_precision_loss, reason = "a ratio to three places")]
fn ratio(bytes: u64, peak_bytes: u64) -> f64 {
    bytes as f64 / peak_bytes.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::peers::{peers, subjects};
    use crate::bench::workload::churn;

    #[test]
    fn the_least_capacity_lies_between_the_peak_and_a_small_multiple() {
        let workload = churn(1, 4_000, 400);
        for contender in subjects().into_iter().chain(peers()) {
            let (bytes, ratio) = least_capacity(&contender, &workload).unwrap().unwrap();
            assert!(bytes >= workload.peak_live_bytes, "{}", contender.name);
            assert!((1.0..1.6).contains(&ratio), "{}: {ratio}", contender.name);
        }
    }
}
