//! Where a request goes: the search of the free lists, which changes nothing.

use std::hint::select_unpredictable;

use super::classes::{NONE, class_of};
use super::{Lifetime, Pool, SMALL_REACH_UNITS, SMALL_UNITS};

/// Blocks of the request's own class that are tried before a larger class is opened.
const OWN_CLASS_PROBES: u32 = 4;

/// A free block and the place in it where a request goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fit {
    pub(super) node: u32,
    /// Where the new block will begin, in units.
    pub(crate) offset: u32,
    /// How long it will be, in units.
    pub(crate) units: u32,
    /// Whole free pages that it will touch.
    pub(super) pages: u32,
    pub(super) space: u32,
}

/// What to look for.
#[derive(Clone, Copy, Debug)]
pub struct Want {
    /// The length, above 0 and at most [`super::MAX_UNITS`] to be granted.
    pub units: u32,
    /// A power of two, in units.
    pub align_units: u32,
    /// The end of the pool at which the block goes.
    pub lifetime: Lifetime,
}

impl Want {
    /// `units` for transient use, aligned to one unit.
    #[must_use]
    pub fn units(units: u32) -> Self {
        Self {
            units,
            align_units: 1,
            lifetime: Lifetime::Transient,
        }
    }
}

impl Pool {
    /// A place for `want` in one space, or `None` if no free block of that space can hold it.
    #[inline]
    pub(crate) fn find(&mut self, space: u32, want: Want) -> Option<Fit> {
        if want.align_units > 1 || want.lifetime == Lifetime::Long {
            return self.find_thoroughly(space, want);
        }
        let node = self.good_fit(space, want.units);
        if node == NONE {
            return None;
        }
        match self.fit(node, space, want) {
            Some(fit) => Some(fit),
            // The pages run out here, but another hole may need fewer of them.
            None => self.find_thoroughly(space, want),
        }
    }

    /// A free block of at least `units`, or [`NONE`].
    #[inline]
    fn good_fit(&mut self, space: u32, units: u32) -> u32 {
        let Some(index) = self.spaces.get(space as usize) else {
            return NONE;
        };
        let class = class_of(units);
        let mut node = index.head(class);
        let mut probes = 0;
        while node != NONE && probes < OWN_CLASS_PROBES {
            probes += 1;
            let record = &self.nodes[node as usize];
            if record.units >= units {
                self.counters.probes += u64::from(probes);
                return node;
            }
            node = record.list_next;
        }
        if let Some(larger) = index.next_class(class) {
            self.counters.probes += u64::from(probes) + 1;
            return index.head(larger);
        }
        // Refusing is only right once every block of the own class is known to be too small.
        while node != NONE {
            probes += 1;
            let record = &self.nodes[node as usize];
            if record.units >= units {
                break;
            }
            node = record.list_next;
        }
        self.counters.probes += u64::from(probes);
        node
    }

    /// Looks at every block that might do: for alignment, for long lifetimes, under page limits.
    fn find_thoroughly(&mut self, space: u32, want: Want) -> Option<Fit> {
        let index = self.spaces.get(space as usize)?;
        let least = class_of(want.units);
        let mut best: Option<Fit> = None;
        let mut probes = 0;
        'search: for class in index.classes().filter(|class| *class >= least) {
            let mut node = index.head(class);
            while node != NONE {
                probes += 1;
                if let Some(fit) = self.fit_anywhere(node, space, want) {
                    if want.lifetime == Lifetime::Transient {
                        best = Some(fit);
                        break 'search;
                    }
                    if best.is_none_or(|best| fit.offset > best.offset) {
                        best = Some(fit);
                    }
                }
                node = self.nodes[node as usize].list_next;
            }
        }
        self.counters.probes += probes;
        best
    }

    /// The usual place of `want` in one free block, if it fits there within the page limit.
    #[inline]
    fn fit(&self, node: u32, space: u32, want: Want) -> Option<Fit> {
        let record = &self.nodes[node as usize];
        let offset = place(record.offset, record.units, want)?;
        self.fit_at(node, space, want, offset)
    }

    /// The place of `want` at either end of one free block, the usual end first.
    ///
    /// No place between the ends touches fewer fresh pages than the better end does.
    fn fit_anywhere(&self, node: u32, space: u32, want: Want) -> Option<Fit> {
        if let Some(fit) = self.fit(node, space, want) {
            return Some(fit);
        }
        let record = &self.nodes[node as usize];
        let slack = record.units.checked_sub(want.units)?;
        let mask = want.align_units - 1;
        let (low, high) = (
            (record.offset + mask) & !mask,
            (record.offset + slack) & !mask,
        );
        [low, high]
            .into_iter()
            .filter(|offset| *offset >= record.offset && offset - record.offset <= slack)
            .find_map(|offset| self.fit_at(node, space, want, offset))
    }

    #[inline]
    fn fit_at(&self, node: u32, space: u32, want: Want, offset: u32) -> Option<Fit> {
        let mut pages = 0;
        if let Some(limit) = self.limit {
            let record = &self.nodes[node as usize];
            let (start, have) = (record.offset, record.units);
            pages = self.inner_pages(start, have)
                - self.inner_pages(start, offset - start)
                - self.inner_pages(offset + want.units, start + have - offset - want.units);
            if self.occupied_pages() + pages > limit.pages {
                return None;
            }
        }
        Some(Fit {
            node,
            offset,
            units: want.units,
            pages,
            space,
        })
    }

    /// The largest free block of all spaces, in units.
    pub(crate) fn largest_free(&self) -> u32 {
        let mut largest = 0;
        for index in &self.spaces {
            let Some(class) = index.last_class() else {
                continue;
            };
            let mut node = index.head(class);
            while node != NONE {
                let record = &self.nodes[node as usize];
                largest = largest.max(record.units);
                node = record.list_next;
            }
        }
        largest
    }

    /// The largest request that some hole can hold within the page limit, in units.
    pub(crate) fn largest_placeable(&self) -> u32 {
        let Some(limit) = self.limit else {
            return self.largest_free();
        };
        let room = limit.pages.saturating_sub(self.occupied_pages());
        let mask = (1_u32 << limit.shift) - 1;
        let mut best = 0;
        for index in &self.spaces {
            let classes: Vec<u32> = index.classes().collect();
            for class in classes.into_iter().rev() {
                if class < class_of(best) {
                    break;
                }
                let mut node = index.head(class);
                while node != NONE {
                    let record = &self.nodes[node as usize];
                    let (start, have) = (record.offset, record.units);
                    // At one end of the hole, the edge of a page that is touched already is free.
                    let edge = (((start + mask) & !mask) - start).max((start + have) & mask);
                    let held = if self.inner_pages(start, have) <= room {
                        have
                    } else {
                        edge + (room << limit.shift)
                    };
                    best = best.max(held);
                    node = record.list_next;
                }
            }
        }
        best
    }

    /// Open free blocks of at least one page as (offset, units), the largest classes first.
    pub(crate) fn large_holes(&self) -> Vec<(u32, u32)> {
        let (Some(index), Some(limit)) = (self.spaces.first(), self.limit) else {
            return Vec::new();
        };
        let least = class_of(1 << limit.shift);
        let classes: Vec<u32> = index.classes().filter(|class| *class >= least).collect();
        let mut holes = Vec::new();
        for class in classes.into_iter().rev() {
            let mut node = index.head(class);
            while node != NONE {
                let record = &self.nodes[node as usize];
                holes.push((record.offset, record.units));
                node = record.list_next;
            }
        }
        holes
    }
}

/// Where in a hole of `have` units at `start` a request goes.
#[inline]
fn place(start: u32, have: u32, want: Want) -> Option<u32> {
    let slack = have.checked_sub(want.units)?;
    let small = want.units < SMALL_UNITS;
    if want.lifetime == Lifetime::Long || want.align_units > 1 {
        return place_aligned(start, slack, want);
    }
    // Small or large is as good as random: a value, not a branch.
    let reach = SMALL_REACH_UNITS.saturating_sub(want.units).min(slack);
    Some(start + select_unpredictable(small, reach, 0))
}

fn place_aligned(start: u32, slack: u32, want: Want) -> Option<u32> {
    let mask = want.align_units - 1;
    if want.lifetime == Lifetime::Transient && want.units >= SMALL_UNITS {
        let offset = (start + mask) & !mask;
        return (offset - start <= slack).then_some(offset);
    }
    let reach = match want.lifetime {
        Lifetime::Transient => slack.min(SMALL_REACH_UNITS - want.units),
        Lifetime::Long => slack,
    };
    let offset = (start + reach) & !mask;
    (offset >= start).then_some(offset)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_place_is_aligned_inside_its_hole_and_found_whenever_one_exists(
            start in 0_u32..1 << 20,
            have in 1_u32..1 << 20,
            units in 1_u32..1 << 16,
            shift in 0_u32..14,
            long: bool,
        ) {
            let lifetime = if long { Lifetime::Long } else { Lifetime::Transient };
            let align_units = 1_u32 << shift;
            let first = start.next_multiple_of(align_units);
            let exists = first + units <= start + have;
            match place(start, have, Want { units, align_units, lifetime }) {
                Some(offset) => {
                    prop_assert!(offset >= start && offset + units <= start + have);
                    prop_assert_eq!(offset % align_units, 0);
                }
                None => prop_assert!(!exists),
            }
        }
    }
}
