//! What must be true of placement, worked out anew from live blocks alone.
//!
//! The allocator's lists, bitmaps and counters play no part here: holes are the gaps between the
//! blocks that a world holds, and pages are counted from where those blocks lie.

use std::collections::{BTreeMap, BTreeSet};

use ds4_engine::alloc::{BlockState, BlockView};
use ds4_engine::device::{DeviceId, DeviceMask};

/// Blocks begin and end at multiples of this many bytes.
const UNIT_BYTES: u64 = 256;
/// The reserved range of a device that maps pages, as a multiple of its budget.
const RANGE_FACTOR: u64 = 8;
/// Slabs hold multiples of this, and lose up to as much at their start, in bytes.
const SLAB_LOSS_BYTES: u64 = 2 << 20;

/// One device as a world sees it.
#[derive(Clone, Debug)]
pub(super) struct DeviceModel {
    pub(super) budget_bytes: u64,
    pub(super) used_bytes: u64,
    page_bytes: Option<u64>,
    /// Live blocks: where each begins and ends, in bytes.
    live: BTreeMap<u64, u64>,
}

/// What is asked of a device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) bytes: u64,
    pub(super) align_bytes: u64,
}

impl Asked {
    /// The bytes that a block for it takes.
    pub(super) fn rounded(self) -> u64 {
        self.bytes.div_ceil(UNIT_BYTES).saturating_mul(UNIT_BYTES)
    }

    /// The lowest and the highest aligned place in a hole.
    fn places(self, start: u64, end: u64) -> impl Iterator<Item = u64> {
        let (align, bytes) = (self.align_bytes.max(UNIT_BYTES), self.rounded());
        let low = start.next_multiple_of(align);
        let high = end.saturating_sub(bytes) / align * align;
        [low, high].into_iter().filter(move |place| {
            *place >= start && place.checked_add(bytes).is_some_and(|stop| stop <= end)
        })
    }
}

impl DeviceModel {
    pub(super) fn new(budget_bytes: u64, page_bytes: Option<u64>) -> Self {
        let live = BTreeMap::new();
        Self {
            budget_bytes,
            used_bytes: 0,
            page_bytes,
            live,
        }
    }

    /// Adds a block; says what is wrong with its place.
    pub(super) fn add(&mut self, offset: u64, bytes: u64) -> Result<(), String> {
        let end = offset + bytes;
        let before = self.live.range(..end).next_back();
        if let Some((start, stop)) = before.filter(|(_, stop)| **stop > offset) {
            return Err(format!(
                "{offset}..{end} overlaps the live block {start}..{stop}"
            ));
        }
        self.live.insert(offset, end);
        self.used_bytes += bytes;
        if self.used_bytes > self.budget_bytes {
            return Err(format!(
                "{} bytes live of a budget of {}",
                self.used_bytes, self.budget_bytes
            ));
        }
        Ok(())
    }

    pub(super) fn remove(&mut self, offset: u64) {
        if let Some(end) = self.live.remove(&offset) {
            self.used_bytes -= end - offset;
        }
    }

    /// Whether a request fits, all freed memory counted as free.
    ///
    /// `driver_free` is what the driver still has, `reserved` what the allocator took from it, and
    /// `blocks` its blocks, which tell where slabs end.
    pub(super) fn could_hold(
        &self,
        asked: Asked,
        driver_free: u64,
        reserved: u64,
        blocks: impl FnOnce() -> Vec<BlockView>,
    ) -> bool {
        if asked.rounded() > self.budget_bytes.saturating_sub(self.used_bytes) {
            return false;
        }
        match self.page_bytes {
            Some(page_bytes) => self.pages_hold(asked, page_bytes, driver_free, reserved),
            None => {
                let with_loss = asked.rounded().next_multiple_of(SLAB_LOSS_BYTES) + SLAB_LOSS_BYTES;
                let slab_fits = self.budget_bytes.saturating_sub(reserved) >= with_loss
                    && driver_free >= with_loss;
                slab_fits || slabs_hold(asked, &blocks())
            }
        }
    }

    fn pages_hold(&self, asked: Asked, page_bytes: u64, driver_free: u64, reserved: u64) -> bool {
        let mut occupied = BTreeSet::new();
        for (start, end) in &self.live {
            occupied.extend(start / page_bytes..end.div_ceil(page_bytes));
        }
        let existing = reserved / page_bytes + driver_free / page_bytes;
        let most = existing.min(self.budget_bytes / page_bytes);
        let free = most.saturating_sub(occupied.len() as u64);
        let fits = |place: u64| {
            let span = place / page_bytes..(place + asked.rounded()).div_ceil(page_bytes);
            let taken = occupied.range(span.clone()).count() as u64;
            span.end - span.start - taken <= free
        };
        let range_bytes = self.budget_bytes.saturating_mul(RANGE_FACTOR);
        let starts = std::iter::once(0).chain(self.live.values().copied());
        let ends = self.live.keys().copied().chain([range_bytes]);
        starts
            .zip(ends)
            .any(|(start, end)| asked.places(start, end).any(fits))
    }
}

/// Whether a slab has a hole for a request.
fn slabs_hold(asked: Asked, blocks: &[BlockView]) -> bool {
    let mut hole: Option<(u64, u64, BlockState)> = None;
    let fits = |(start, end, _)| asked.places(start, end).next().is_some();
    for block in blocks {
        let (start, end) = (block.offset_bytes, block.offset_bytes + block.bytes);
        // Two free neighbours that did not merge belong to two slabs.
        let joins = |state| !(state == BlockState::Free && block.state == BlockState::Free);
        hole = match hole {
            _ if block.state == BlockState::Live => {
                if hole.is_some_and(fits) {
                    return true;
                }
                None
            }
            Some((first, _, state)) if joins(state) => Some((first, end, block.state)),
            Some(done) if fits(done) => return true,
            Some(_) | None => Some((start, end, block.state)),
        };
    }
    hole.is_some_and(fits)
}

/// The candidates of a hint; `None` when exclusion or a strict policy leaves none.
pub(super) fn candidates(
    hint: DeviceMask,
    count: usize,
    excluded: DeviceMask,
    strict: bool,
) -> Option<DeviceMask> {
    let present = DeviceMask::first(count);
    let named = DeviceMask(hint.0 & present.0);
    let allowed = match (hint.0, named.0) {
        (0, _) => present,
        (_, 0) if strict => return None,
        (_, 0) => present,
        _ => named,
    };
    let left = allowed.without(excluded);
    (!left.is_empty()).then_some(left)
}

/// Devices by pressure, the least first, ties by the lower id.
pub(super) fn by_pressure(mask: DeviceMask, models: &[DeviceModel]) -> Vec<DeviceId> {
    let mut order: Vec<(DeviceId, u128, u128)> = mask
        .iter()
        .filter_map(|id| {
            let model = models.get(id.index())?;
            Some((id, model.used_bytes.into(), model.budget_bytes.into()))
        })
        .collect();
    order.sort_by(|a, b| (a.1 * b.2).cmp(&(b.1 * a.2)).then(a.0.cmp(&b.0)));
    order.into_iter().map(|(id, ..)| id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_hole_without_pages_left_holds_what_fits_into_pages_in_use() {
        let mut model = DeviceModel::new(4 * MIB, Some(2 * MIB));
        model.add(0, MIB).unwrap();
        model.add(2 * MIB, MIB).unwrap();
        let ask = |bytes| Asked {
            bytes,
            align_bytes: 256,
        };
        let none = || Vec::new();
        assert!(model.could_hold(ask(MIB), u64::MAX, 4 * MIB, none));
        assert!(!model.could_hold(ask(MIB + 1), u64::MAX, 4 * MIB, none));
        assert!(!model.could_hold(
            Asked {
                bytes: MIB,
                align_bytes: 2 * MIB
            },
            u64::MAX,
            4 * MIB,
            none
        ));
    }

    #[test]
    fn overlap_and_overrun_of_the_budget_are_noticed() {
        let mut model = DeviceModel::new(4 * MIB, None);
        model.add(0, MIB).unwrap();
        assert!(model.add(MIB - 256, 256).is_err());
        assert!(model.add(MIB, 4 * MIB).is_err());
    }
}
