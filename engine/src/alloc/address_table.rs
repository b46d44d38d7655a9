//! From the start of a block to its node, for callers that free by address.
//!
//! Open addressing with linear probing; removal shifts later entries back, so that no tombstones
//! pile up under steady churn.

/// Marks an empty place; no block starts there, as pools end below it.
const EMPTY: u32 = u32::MAX;

/// Multiplier of Fibonacci hashing: 2^32 divided by the golden ratio, made odd.
const GOLDEN: u32 = 0x9E37_79B9;

/// A map from offsets to nodes.
#[derive(Clone, Debug)]
pub(super) struct AddressTable {
    places: Vec<(u32, u32)>,
    len: usize,
    shift: u32,
}

/// A block in the table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    at: usize,
    /// The block's node.
    pub(super) node: u32,
}

const FIRST_BITS: u32 = 6;

impl AddressTable {
    pub(super) fn new() -> Self {
        Self {
            places: vec![(EMPTY, 0); 1 << FIRST_BITS],
            len: 0,
            shift: 32 - FIRST_BITS,
        }
    }

    #[inline]
    fn home(&self, offset: u32) -> usize {
        (offset.wrapping_mul(GOLDEN) >> self.shift) as usize
    }

    #[inline]
    fn mask(&self) -> usize {
        self.places.len() - 1
    }

    /// Adds a block; `offset` must not be in the table.
    #[inline]
    pub(super) fn insert(&mut self, offset: u32, node: u32) {
        if self.len * 2 >= self.places.len() {
            self.grow();
        }
        self.place(offset, node);
        self.len += 1;
    }

    #[inline]
    fn place(&mut self, offset: u32, node: u32) {
        let mask = self.mask();
        let mut at = self.home(offset);
        while self.places[at].0 != EMPTY {
            at = (at + 1) & mask;
        }
        self.places[at] = (offset, node);
    }

    fn grow(&mut self) {
        let larger = vec![(EMPTY, 0); self.places.len() * 2];
        let old = std::mem::replace(&mut self.places, larger);
        self.shift -= 1;
        for (offset, node) in old {
            if offset != EMPTY {
                self.place(offset, node);
            }
        }
    }

    #[inline]
    fn position(&self, offset: u32) -> Option<usize> {
        let mask = self.mask();
        let mut at = self.home(offset);
        loop {
            match self.places[at].0 {
                found if found == offset => return Some(at),
                EMPTY => return None,
                _ => at = (at + 1) & mask,
            }
        }
    }

    /// The place of the block that begins at `offset`, good until the table changes.
    #[inline]
    pub(super) fn find(&self, offset: u32) -> Option<Entry> {
        if offset == EMPTY {
            return None;
        }
        let at = self.position(offset)?;
        let node = self.places[at].1;
        Some(Entry { at, node })
    }

    /// Removes the block that begins at `offset`, if there is one.
    pub(super) fn remove(&mut self, offset: u32) {
        if let Some(entry) = self.find(offset) {
            self.remove_entry(entry);
        }
    }

    /// Removes what [`AddressTable::find`] found since the table last changed.
    #[inline]
    pub(super) fn remove_entry(&mut self, entry: Entry) {
        let mask = self.mask();
        let mut hole = entry.at;
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let (offset, _) = self.places[at];
            if offset == EMPTY {
                break;
            }
            // An entry may move back only if its home is not past the hole, counted around.
            let home = self.home(offset);
            if at.wrapping_sub(home) & mask >= at.wrapping_sub(hole) & mask {
                self.places[hole] = self.places[at];
                hole = at;
            }
        }
        self.places[hole] = (EMPTY, 0);
        self.len -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn the_table_agrees_with_a_map(
            steps in prop::collection::vec((any::<bool>(), 0_u32..300), 0..600),
        ) {
            let (mut table, mut map) = (AddressTable::new(), BTreeMap::new());
            for (step, (insert, offset)) in steps.into_iter().enumerate() {
                // Multiples of a large power of two collide in the high bits of the hash.
                let offset = offset << 20;
                if insert {
                    if let std::collections::btree_map::Entry::Vacant(entry) = map.entry(offset) {
                        table.insert(offset, u32::try_from(step).unwrap());
                        entry.insert(u32::try_from(step).unwrap());
                    }
                } else {
                    table.remove(offset);
                    map.remove(&offset);
                }
                prop_assert_eq!(table.len, map.len());
            }
            for offset in (0..300).map(|offset| offset << 20) {
                prop_assert_eq!(table.find(offset).map(|it| it.node), map.get(&offset).copied());
            }
            prop_assert!(table.find(EMPTY).is_none());
        }
    }
}
