//! One change that makes a model fit, proved by packing with it.

use super::fit::{Case, least};
use super::{PlanDevice, PlanError};
use ds4_engine::bytes::{GIB, MIB, align_up, format_bytes};
use ds4_engine::device::DeviceId;
use ds4_engine::selection::{FLAG_RESERVE, FLAG_VRAM, MAX_BUDGET_BYTES};
use serde::Serialize;
use std::fmt;

/// A context below this many tokens is not worth proposing.
const CONTEXT_TOKENS_MIN: u64 = 512;

/// A change after which the same model fits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Remedy {
    /// A smaller context.
    Context {
        /// The largest that fits, in tokens.
        context_tokens: u64,
    },
    /// More memory on one device.
    Capacity {
        /// The device's logical number.
        #[serde(serialize_with = "super::id_number")]
        device: DeviceId,
        /// How much more, in bytes.
        extra_bytes: u64,
        /// The budgets to give, in the order of the devices, as `--gpu-vram` writes them.
        gpu_vram: String,
    },
    /// A smaller reserve on every device.
    Reserve {
        /// The largest that fits, in bytes.
        reserve_bytes: u64,
    },
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Context { context_tokens } => write!(
                f,
                "--context {context_tokens}, the largest context that fits"
            ),
            Self::Capacity {
                device,
                extra_bytes,
                gpu_vram,
            } => write!(
                f,
                "{FLAG_VRAM} {gpu_vram}, {} more on {device}",
                format_bytes(*extra_bytes)
            ),
            Self::Reserve { reserve_bytes } => write!(
                f,
                "{FLAG_RESERVE} {}, the largest reserve that fits",
                typed(*reserve_bytes)
            ),
        }
    }
}

/// Looks for a context first, as it costs nothing; then memory; then the reserve.
pub(super) fn find(case: &Case<'_>, devices: &[PlanDevice]) -> Result<Option<Remedy>, PlanError> {
    if let Some(remedy) = context(case)? {
        return Ok(Some(remedy));
    }
    if let Some(remedy) = capacity(case, devices)? {
        return Ok(Some(remedy));
    }
    reserve(case)
}

fn context(case: &Case<'_>) -> Result<Option<Remedy>, PlanError> {
    let at = |context_tokens: u64| {
        let case = Case {
            context_tokens,
            ..case.clone()
        };
        case.fits()
    };
    if case.context_tokens <= CONTEXT_TOKENS_MIN || !at(CONTEXT_TOKENS_MIN)? {
        return Ok(None);
    }
    // The least context that does not fit is one above the largest that does.
    let too_many = least(CONTEXT_TOKENS_MIN, case.context_tokens, |tokens| {
        Ok(!at(tokens)?)
    })?;
    Ok(too_many.map(|tokens| Remedy::Context {
        context_tokens: tokens - 1,
    }))
}

fn capacity(case: &Case<'_>, devices: &[PlanDevice]) -> Result<Option<Remedy>, PlanError> {
    let short = |device: &PlanDevice| device.shortfall_bytes.map(|bytes| (bytes, device.id));
    let Some((shortfall, device)) = devices.iter().filter_map(short).min() else {
        return Ok(None);
    };
    let mut richer = case.clone();
    let mut extra_bytes = 0;
    for room in &mut richer.rooms {
        if room.id == device {
            let unit = if room.capacity_bytes.is_multiple_of(GIB) {
                GIB
            } else {
                MIB
            };
            let wanted = room.capacity_bytes.checked_add(shortfall);
            let Some(wanted) = wanted.and_then(|bytes| align_up(bytes, unit)) else {
                return Ok(None);
            };
            extra_bytes = wanted - room.capacity_bytes;
            room.capacity_bytes = wanted;
            if wanted > MAX_BUDGET_BYTES {
                return Ok(None);
            }
        }
    }
    if !richer.fits()? {
        return Ok(None);
    }
    let budgets: Vec<String> = devices
        .iter()
        .map(|shown| {
            let more = if shown.id == device { extra_bytes } else { 0 };
            typed(shown.capacity_bytes + more)
        })
        .collect();
    Ok(Some(Remedy::Capacity {
        device,
        extra_bytes,
        gpu_vram: budgets.join(","),
    }))
}

fn reserve(case: &Case<'_>) -> Result<Option<Remedy>, PlanError> {
    let at = |reserve_bytes: u64| {
        let mut case = case.clone();
        for room in &mut case.rooms {
            room.reserve_bytes = room.reserve_bytes.min(reserve_bytes);
        }
        case.fits()
    };
    let most = case.rooms.iter().map(|room| room.reserve_bytes).max();
    if !at(0)? {
        return Ok(None);
    }
    let too_much = least(0, most.unwrap_or(0), |bytes| Ok(!at(bytes)?))?;
    Ok(too_much.map(|bytes| Remedy::Reserve {
        reserve_bytes: (bytes - 1) / MIB * MIB,
    }))
}

/// A size as the flags read it, exactly.
fn typed(bytes: u64) -> String {
    if bytes.is_multiple_of(GIB) {
        (bytes / GIB).to_string()
    } else if bytes.is_multiple_of(MIB) {
        format!("{}M", bytes / MIB)
    } else {
        format!("{bytes}B")
    }
}
