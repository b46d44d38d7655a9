//! The least capacity with which a trace replays without a refusal.

use std::sync::atomic::{AtomicBool, Ordering};

use ds4_engine::alloc::{Allocator, AllocatorConfig};
use ds4_engine::bytes::format_bytes;
use ds4_sim::{MAX_CAPACITY_BYTES, MAX_PAGES, SimConfig, SimDevice};
use serde::Serialize;

use crate::replay::{ReplayOptions, replay};
use crate::target::Target;
use crate::trace::{Trace, TraceAction, TraceEvent};

/// What one device of a trace needs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Fit {
    /// The device of the trace.
    pub device: u32,
    /// The most bytes that the trace had live at once.
    pub peak_live_bytes: u64,
    /// The least capacity found that replays without a refusal, in bytes.
    pub min_capacity_bytes: u64,
    /// Capacity ÷ peak.
    pub ratio: f64,
    /// How many replays it took.
    pub replays: u32,
}

/// The part of a trace that concerns one device, as a trace of device 0.
#[must_use]
pub fn part_of(trace: &Trace, device: u32) -> Trace {
    let events = trace.events.iter().filter_map(|event| {
        let action = match event.action {
            TraceAction::Alloc {
                bytes,
                device: on,
                stream,
            } if on == device => TraceAction::Alloc {
                bytes,
                device: 0,
                stream,
            },
            TraceAction::Free { device: on, stream } if on == device => {
                TraceAction::Free { device: 0, stream }
            }
            TraceAction::Alloc { .. } | TraceAction::Free { .. } => return None,
        };
        Some(TraceEvent { action, ..*event })
    });
    Trace {
        events: events.collect(),
        devices: 1,
        notes: Vec::new(),
        ..trace.clone()
    }
}

/// The most bytes live at once in a trace of device 0, such as [`part_of`] gives.
#[must_use]
pub fn peak_live_bytes(trace: &Trace) -> u64 {
    walk(trace, 0, u64::MAX).0
}

/// The position of the first event at which more than `most_bytes` are live on a device.
fn first_above(trace: &Trace, device: u32, most_bytes: u64) -> Option<usize> {
    walk(trace, device, most_bytes).1
}

/// The most bytes live at once on a device, and where that exceeds `most_bytes` first.
fn walk(trace: &Trace, device: u32, most_bytes: u64) -> (u64, Option<usize>) {
    let mut sizes = vec![0; usize::try_from(trace.blocks).unwrap_or(0)];
    let (mut live, mut peak, mut above) = (0_u64, 0, None);
    for (position, event) in trace.events.iter().enumerate() {
        let Some(size) = usize::try_from(event.id)
            .ok()
            .and_then(|id| sizes.get_mut(id))
        else {
            continue;
        };
        match event.action {
            TraceAction::Alloc {
                bytes, device: on, ..
            } if on == device => {
                *size = bytes;
                live = live.saturating_add(bytes);
                peak = peak.max(live);
                if live > most_bytes {
                    above = above.or(Some(position));
                }
            }
            TraceAction::Free { device: on, .. } if on == device => {
                live -= std::mem::take(size).min(live);
            }
            TraceAction::Alloc { .. } | TraceAction::Free { .. } => {}
        }
    }
    (peak, above)
}

/// Why there is no least capacity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FitError {
    /// More is live at once than any device holds.
    TooLarge {
        /// The most bytes live at once.
        peak_bytes: u64,
        /// The largest capacity of such a device.
        most_bytes: u64,
    },
    /// A replay failed for another reason than memory.
    Replay(String),
}

impl FitError {
    /// The error as a sentence about a device of the trace in `file`.
    #[must_use]
    pub fn sentence(&self, file: &str, trace: &Trace, device: u32) -> String {
        match self {
            Self::TooLarge {
                peak_bytes,
                most_bytes,
            } => {
                let place = first_above(trace, device, *most_bytes).map_or_else(
                    || "packed as they are".to_owned(),
                    |position| format!("first at event {}", position + 1),
                );
                format!(
                    "{file}: device {device} has up to {} ({peak_bytes} bytes) live at once, \
                     {place}, more than the {} that a device can have; record a smaller run",
                    format_bytes(*peak_bytes),
                    format_bytes(*most_bytes)
                )
            }
            Self::Replay(why) => format!("{file}: device {device}: {why}"),
        }
    }
}

/// The most granules that a device like `like` can have.
fn most_granules(like: &SimDevice, granule: u64) -> u64 {
    let by_capacity = MAX_CAPACITY_BYTES / granule;
    like.page_bytes
        .map_or(by_capacity, |_| by_capacity.min(MAX_PAGES))
}

/// Finds the least capacity for a one-device trace on a device like `like`.
///
/// The capacity is a multiple of the device's page, or of its granularity without pages, in which
/// slabs are taken; every result was replayed with that as the device's budget. `tried` is called before each replay. Returns `None` when `stop` was set.
///
/// # Errors
/// [`FitError`], when no capacity is enough or a replay fails.
pub fn fit(
    trace: &Trace,
    like: &SimDevice,
    stop: &AtomicBool,
    mut tried: impl FnMut(u64),
) -> Result<Option<(u64, u32)>, FitError> {
    let granule = like.page_bytes.unwrap_or(like.granularity_bytes);
    let peak_bytes = peak_live_bytes(trace);
    let most = most_granules(like, granule);
    let too_large = FitError::TooLarge {
        peak_bytes,
        most_bytes: most * granule,
    };
    let mut replays = 0;
    // No more than `most` is asked for, so that no product wraps.
    let mut holds = |granules: u64| {
        tried(granules * granule);
        replays += 1;
        replays_within(trace, like, granules * granule, stop).map_err(FitError::Replay)
    };
    let least = peak_bytes.div_ceil(granule).max(1);
    if least > most {
        return Err(too_large);
    }
    let (mut low, mut high, mut step) = (least - 1, least, 1);
    // Galloping first: what is needed is usually within a few percent of the peak.
    loop {
        match holds(high)? {
            None => return Ok(None),
            Some(true) => break,
            Some(false) if high == most => return Err(too_large),
            Some(false) => (low, high) = (high, (high + step).min(most)),
        }
        step *= 2;
    }
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        match holds(middle)? {
            None => return Ok(None),
            Some(true) => high = middle,
            Some(false) => low = middle,
        }
    }
    Ok(Some((high * granule, replays)))
}

/// Whether the trace replays without a refusal; `None` when `stop` was set.
fn replays_within(
    trace: &Trace,
    like: &SimDevice,
    capacity_bytes: u64,
    stop: &AtomicBool,
) -> Result<Option<bool>, String> {
    let device = SimDevice {
        capacity_bytes,
        granularity_bytes: like.page_bytes.unwrap_or(like.granularity_bytes),
        other_process_bytes: 0,
        ..like.clone()
    };
    let config = SimConfig::new("fit", vec![device]);
    let target = Target::simulated(config).map_err(|error| error.to_string())?;
    let allocator = Allocator::new(target.backend().clone(), AllocatorConfig::default())
        .map_err(|error| error.to_string())?;
    // Ends the replay at the first refusal, or when the user wants it.
    let end = AtomicBool::new(stop.load(Ordering::Relaxed));
    let options = ReplayOptions {
        stop: Some(&end),
        ..ReplayOptions::default()
    };
    let run = replay(&allocator, trace, &options, || {
        if allocator.refusals() > 0 || stop.load(Ordering::Relaxed) {
            end.store(true, Ordering::Relaxed);
        }
    });
    let run = run.map_err(|error| error.to_string())?;
    let stopped = run.incomplete && run.refusals == 0;
    Ok((!stopped).then_some(run.refusals == 0))
}

#[cfg(test)]
mod tests {
    use ds4_engine::alloc::DeviceBudget;

    use super::*;
    use crate::trace::{ReadLimits, read_bytes};

    fn trace(bytes: [u64; 2]) -> Trace {
        let event = |id: usize, bytes: u64| {
            format!("{{\"t\":0,\"op\":\"alloc\",\"id\":{id},\"bytes\":{bytes},\"device\":0}}\n")
        };
        let text = event(1, bytes[0]) + &event(2, bytes[1]);
        read_bytes(text.as_bytes(), "t", &ReadLimits::default()).unwrap()
    }

    fn fitted(trace: &Trace, page_bytes: Option<u64>) -> Result<Option<(u64, u32)>, FitError> {
        let like = SimDevice {
            page_bytes,
            ..SimDevice::new(1 << 30)
        };
        fit(trace, &like, &AtomicBool::new(false), |_| ())
    }

    #[test]
    fn a_peak_that_no_device_holds_is_refused_with_file_device_event_and_bytes() {
        for page_bytes in [None, Some(2 << 20)] {
            for bytes in [[1 << 40, 4 << 40], [1 << 40, i64::MAX.unsigned_abs()]] {
                let trace = trace(bytes);
                let error = fitted(&trace, page_bytes).unwrap_err();
                let text = error.sentence("t", &trace, 0);
                assert!(text.starts_with("t: device 0 has up to"), "{text}");
                assert!(
                    text.contains(&format!("({} bytes)", bytes[0] + bytes[1])),
                    "{text}"
                );
                assert!(text.contains("first at event 2"), "{text}");
            }
        }
    }

    #[test]
    fn pages_of_which_a_device_has_too_few_for_the_peak_are_refused() {
        let error = fitted(&trace([64 << 30, 1]), Some(4096)).unwrap_err();
        assert!(matches!(error, FitError::TooLarge { .. }), "{error:?}");
    }

    #[test]
    fn what_fits_on_a_device_without_pages_is_whole_granules() {
        for granularity_bytes in [256, 64 << 10, 2 << 20] {
            let like = SimDevice {
                page_bytes: None,
                granularity_bytes,
                ..SimDevice::new(1 << 30)
            };
            let trace = trace([5 << 20, 1000]);
            let fitted = fit(&trace, &like, &AtomicBool::new(false), |_| ()).unwrap();
            let (bytes, _) = fitted.unwrap();
            assert_eq!(bytes % granularity_bytes, 0);
            // As `ds4 replay --gpu-vram` has it: a budget on the device as it is.
            let holds = |bytes: u64| {
                let target = Target::simulated(SimConfig::new("t", vec![like.clone()])).unwrap();
                let config = AllocatorConfig {
                    budgets: vec![DeviceBudget {
                        configured_bytes: Some(bytes),
                        reserve_bytes: 0,
                    }],
                    ..AllocatorConfig::default()
                };
                let allocator = Allocator::new(target.backend().clone(), config).unwrap();
                let run = replay(&allocator, &trace, &ReplayOptions::default(), || ());
                run.unwrap().refusals == 0
            };
            assert!(holds(bytes));
            assert!(!holds(bytes - granularity_bytes));
        }
    }

    #[test]
    fn a_fit_that_is_stopped_ends_within_its_replay() {
        let like = SimDevice::new(1 << 30);
        let stopped = fit(&trace([1, 1]), &like, &AtomicBool::new(true), |_| ());
        assert_eq!(stopped, Ok(None));
    }
}
