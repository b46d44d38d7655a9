//! Size classes and the lists of free blocks by class.
//!
//! A class is a floating-point number with a 5-bit mantissa: 32 classes to each power of two, and
//! exact classes below 64 units. Two levels of bitmaps find the next class that has a block in a
//! few instructions (Masmano et al., "TLSF: a New Dynamic Memory Allocator for Real-Time Systems").

/// No node, no block: the end of a list.
pub(super) const NONE: u32 = u32::MAX;

const SECOND_BITS: u32 = 5;
const SECOND: u32 = 1 << SECOND_BITS;
const FIRST: usize = (32 - SECOND_BITS + 1) as usize;
const CLASSES: usize = FIRST << SECOND_BITS;

/// The class of a block of `units`: no block of a higher class is smaller than `units`.
#[inline]
pub(super) fn class_of(units: u32) -> u32 {
    if units < SECOND {
        return units;
    }
    let log = 31 - units.leading_zeros();
    let shift = log - SECOND_BITS;
    // The leading bit lands in the exponent part, so that classes continue without a gap.
    (shift << SECOND_BITS) + (units >> shift)
}

/// The heads of the free lists of one space, with their bitmaps.
#[derive(Clone, Debug)]
pub(super) struct Index {
    first: u32,
    second: [u32; FIRST],
    heads: Box<[u32; CLASSES]>,
}

impl Index {
    pub(super) fn new() -> Self {
        Self {
            first: 0,
            second: [0; FIRST],
            heads: Box::new([NONE; CLASSES]),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.first == 0
    }

    /// The first block of a class, or [`NONE`].
    #[inline]
    pub(super) fn head(&self, class: u32) -> u32 {
        self.heads.get(class as usize).copied().unwrap_or(NONE)
    }

    #[inline]
    pub(super) fn set_head(&mut self, class: u32, node: u32) {
        let (first, bit) = ((class >> SECOND_BITS) as usize, 1 << (class & (SECOND - 1)));
        if let (Some(head), Some(second)) = (
            self.heads.get_mut(class as usize),
            self.second.get_mut(first),
        ) {
            *head = node;
            if node == NONE {
                *second &= !bit;
                if *second == 0 {
                    self.first &= !(1 << first);
                }
            } else {
                *second |= bit;
                self.first |= 1 << first;
            }
        }
    }

    /// The least class above `class` that has a block.
    #[inline]
    pub(super) fn next_class(&self, class: u32) -> Option<u32> {
        let first = class >> SECOND_BITS;
        let within = class & (SECOND - 1);
        // A shift by the full width is split in two because one such shift is not defined.
        let above = self.second.get(first as usize).copied().unwrap_or(0) & ((!0 << within) << 1);
        if above != 0 {
            return Some((first << SECOND_BITS) | above.trailing_zeros());
        }
        let rest = self.first & ((!0 << first) << 1);
        if rest == 0 {
            return None;
        }
        let first = rest.trailing_zeros();
        let second = self.second.get(first as usize).copied().unwrap_or(0);
        Some((first << SECOND_BITS) | second.trailing_zeros())
    }

    /// The highest class that has a block.
    pub(super) fn last_class(&self) -> Option<u32> {
        if self.first == 0 {
            return None;
        }
        let first = 31 - self.first.leading_zeros();
        let second = self.second.get(first as usize).copied().unwrap_or(0);
        Some((first << SECOND_BITS) | (31 - second.leading_zeros()))
    }

    /// All classes that have a block, ascending.
    pub(super) fn classes(&self) -> impl Iterator<Item = u32> {
        let mut next = if self.head(0) == NONE {
            self.next_class(0)
        } else {
            Some(0)
        };
        std::iter::from_fn(move || {
            let class = next?;
            next = self.next_class(class);
            Some(class)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn classes_below_64_units_are_exact() {
        for units in 1..64 {
            assert_eq!(class_of(units), units);
        }
    }

    #[test]
    fn the_largest_block_has_the_last_class() {
        assert_eq!(class_of(u32::MAX) as usize, CLASSES - 1);
    }

    proptest! {
        #[test]
        fn a_larger_block_never_has_a_lower_class(a in 1_u32.., b in 1_u32..) {
            let (small, large) = (a.min(b), a.max(b));
            prop_assert!(class_of(small) <= class_of(large));
        }

        #[test]
        fn sizes_of_one_class_differ_by_less_than_a_thirty_second(units in 64_u32..u32::MAX / 2) {
            let next = units + units / 32 + 1;
            prop_assert!(class_of(next) > class_of(units));
        }

        #[test]
        fn the_bitmaps_agree_with_the_heads(sizes in prop::collection::vec(1_u32.., 0..40), probe in 1_u32..) {
            let mut index = Index::new();
            for units in &sizes {
                index.set_head(class_of(*units), 7);
            }
            let mut classes: Vec<u32> = sizes.iter().map(|units| class_of(*units)).collect();
            classes.sort_unstable();
            classes.dedup();
            prop_assert_eq!(index.classes().collect::<Vec<_>>(), classes.clone());
            prop_assert_eq!(index.last_class(), classes.last().copied());
            let above = classes.iter().copied().find(|class| *class > class_of(probe));
            prop_assert_eq!(index.next_class(class_of(probe)), above);
            for class in classes {
                index.set_head(class, NONE);
            }
            prop_assert!(index.is_empty());
        }
    }
}
