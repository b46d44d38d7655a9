//! The least capacity with which a trace replays without a refusal.

use std::sync::atomic::{AtomicBool, Ordering};

use ds4_engine::alloc::pool::UNIT_BYTES;
use ds4_engine::alloc::{Allocator, AllocatorConfig};
use ds4_sim::{SimConfig, SimDevice};
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

/// The most bytes live at once.
#[must_use]
pub fn peak_live_bytes(trace: &Trace) -> u64 {
    let mut sizes = vec![0; usize::try_from(trace.blocks).unwrap_or(0)];
    let (mut live, mut peak) = (0_u64, 0);
    for event in &trace.events {
        let Some(size) = usize::try_from(event.id)
            .ok()
            .and_then(|id| sizes.get_mut(id))
        else {
            continue;
        };
        match event.action {
            TraceAction::Alloc { bytes, .. } => {
                *size = bytes;
                live = live.saturating_add(bytes);
                peak = peak.max(live);
            }
            TraceAction::Free { .. } => live -= std::mem::take(size).min(live),
        }
    }
    peak
}

/// Finds the least capacity for a one-device trace on a device like `like`.
///
/// The capacity is a multiple of the device's page, or of 256 bytes without pages; every result
/// was replayed. `tried` is called before each replay. Returns `None` when `stop` was set.
///
/// # Errors
/// A sentence, when a replay fails for another reason than memory.
pub fn fit(
    trace: &Trace,
    like: &SimDevice,
    stop: &AtomicBool,
    mut tried: impl FnMut(u64),
) -> Result<Option<(u64, u32)>, String> {
    let granule = like.page_bytes.unwrap_or(UNIT_BYTES);
    let mut replays = 0;
    let mut holds = |granules: u64| -> Result<bool, String> {
        tried(granules * granule);
        replays += 1;
        replays_within(trace, like, granules * granule)
    };
    let least = peak_live_bytes(trace).div_ceil(granule).max(1);
    let (mut low, mut high, mut step) = (least - 1, least, 1);
    // Galloping first: what is needed is usually within a few percent of the peak.
    while !holds(high)? {
        if stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        (low, high) = (high, high + step);
        step *= 2;
    }
    while high - low > 1 {
        if stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let middle = low + (high - low) / 2;
        if holds(middle)? {
            high = middle;
        } else {
            low = middle;
        }
    }
    Ok(Some((high * granule, replays)))
}

fn replays_within(trace: &Trace, like: &SimDevice, capacity_bytes: u64) -> Result<bool, String> {
    let granularity_bytes = like.page_bytes.unwrap_or(UNIT_BYTES);
    let device = SimDevice {
        capacity_bytes,
        granularity_bytes,
        other_process_bytes: 0,
        ..like.clone()
    };
    let config = SimConfig::new("fit", vec![device]);
    let target = Target::simulated(config).map_err(|error| error.to_string())?;
    let allocator = Allocator::new(target.backend().clone(), AllocatorConfig::default())
        .map_err(|error| error.to_string())?;
    let stop_at_refusal = AtomicBool::new(false);
    let options = ReplayOptions {
        stop: Some(&stop_at_refusal),
        ..ReplayOptions::default()
    };
    let run = replay(&allocator, trace, &options, || {
        if allocator.refusals() > 0 {
            stop_at_refusal.store(true, Ordering::Relaxed);
        }
    });
    Ok(run.map_err(|error| error.to_string())?.refusals == 0)
}
