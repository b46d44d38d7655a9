//! Ordered sets of half-open address ranges.

use std::collections::BTreeMap;

/// Disjoint ranges, each with a value. Operations cost O(log n).
#[derive(Clone, Debug)]
pub(crate) struct IntervalMap<V>(BTreeMap<u64, (u64, V)>);

impl<V> Default for IntervalMap<V> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<V> IntervalMap<V> {
    /// The first range that shares a byte with `start..end`.
    pub(crate) fn overlapping(&self, start: u64, end: u64) -> Option<(u64, u64, &V)> {
        let (at, (stop, value)) = self.0.range(..end).next_back()?;
        (*stop > start).then_some((*at, *stop, value))
    }

    /// The range that holds all of `start..end`.
    pub(crate) fn containing(&self, start: u64, end: u64) -> Option<(u64, u64, &V)> {
        let (at, (stop, value)) = self.0.range(..=start).next_back()?;
        (*stop >= end).then_some((*at, *stop, value))
    }

    /// Adds a range; the caller has checked that it overlaps none.
    pub(crate) fn insert(&mut self, start: u64, end: u64, value: V) {
        self.0.insert(start, (end, value));
    }

    /// Removes the range that begins at `start`.
    pub(crate) fn remove(&mut self, start: u64) -> Option<(u64, V)> {
        self.0.remove(&start)
    }

    pub(crate) fn get(&self, start: u64) -> Option<(u64, &V)> {
        self.0.get(&start).map(|(end, value)| (*end, value))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u64, &V)> {
        self.0
            .iter()
            .map(|(start, (end, value))| (*start, *end, value))
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

/// A set of addresses, kept as maximal ranges. Operations cost O(log n).
#[derive(Clone, Debug, Default)]
pub(crate) struct IntervalSet(IntervalMap<()>);

impl IntervalSet {
    /// Whether all of `start..end` is in the set.
    pub(crate) fn contains(&self, start: u64, end: u64) -> bool {
        self.0.containing(start, end).is_some()
    }

    /// Whether any of `start..end` is in the set.
    pub(crate) fn touches(&self, start: u64, end: u64) -> bool {
        self.0.overlapping(start, end).is_some()
    }

    /// Adds `start..end`, of which nothing may be in the set, and joins it with its neighbours.
    pub(crate) fn insert(&mut self, start: u64, end: u64) {
        let mut joined = (start, end);
        if let Some((before, stop, ())) = self.0.overlapping(start.saturating_sub(1), start)
            && stop == start
        {
            self.0.remove(before);
            joined.0 = before;
        }
        if let Some((stop, ())) = self.0.remove(end) {
            joined.1 = stop;
        }
        self.0.insert(joined.0, joined.1, ());
    }

    /// Removes `start..end`, all of which is in the set; false, and no change, when it is not.
    pub(crate) fn remove(&mut self, start: u64, end: u64) -> bool {
        let Some((at, stop, ())) = self.0.containing(start, end) else {
            return false;
        };
        self.0.remove(at);
        if at < start {
            self.0.insert(at, start, ());
        }
        if end < stop {
            self.0.insert(end, stop, ());
        }
        true
    }

    /// The lowest range of `bytes` bytes whose start is a multiple of `align`.
    pub(crate) fn first_fit(&self, bytes: u64, align: u64) -> Option<u64> {
        self.0.iter().find_map(|(start, end, ())| {
            let at = start.checked_next_multiple_of(align)?;
            (at.checked_add(bytes)? <= end).then_some(at)
        })
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        self.0.iter().map(|(start, end, ())| (start, end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_set_of_ranges_equals_a_set_of_addresses(
            steps in proptest::collection::vec((0_u64..64, 1_u64..16, any::<bool>()), 1..60),
        ) {
            let mut set = IntervalSet::default();
            let mut model = [false; 80];
            for (start, bytes, add) in steps {
                let end = start + bytes;
                let cells = &mut model[usize::try_from(start).unwrap()..usize::try_from(end).unwrap()];
                prop_assert_eq!(set.contains(start, end), cells.iter().all(|cell| *cell));
                prop_assert_eq!(set.touches(start, end), cells.iter().any(|cell| *cell));
                if add && !set.touches(start, end) {
                    set.insert(start, end);
                    cells.fill(true);
                } else if !add {
                    let all = cells.iter().all(|cell| *cell);
                    prop_assert_eq!(set.remove(start, end), all);
                    if all {
                        cells.fill(false);
                    }
                }
                let ranges: Vec<(u64, u64)> = set.iter().collect();
                prop_assert!(ranges.windows(2).all(|pair| pair[0].1 < pair[1].0), "{ranges:?}");
            }
        }
    }

    #[test]
    fn the_lowest_aligned_fit_is_found() {
        let mut set = IntervalSet::default();
        set.insert(3, 12);
        set.insert(16, 64);
        assert_eq!(set.first_fit(4, 8), Some(8));
        assert_eq!(set.first_fit(8, 8), Some(16));
        assert_eq!(set.first_fit(64, 8), None);
    }
}
