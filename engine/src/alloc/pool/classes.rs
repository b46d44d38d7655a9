//! Size classes and the lists of free blocks by class.
//!
//! A class is a floating-point number with a 5-bit mantissa: 32 classes to each power of two, and
//! exact classes below 64 units. Two levels of bitmaps find the next class that has a block in
//! a few instructions (Masmano et al., "TLSF: a New Dynamic Memory Allocator for Real-Time Systems").

/// No node, no block: the end of a list.
pub(super) const NONE: u32 = u32::MAX;

const MANTISSA_BITS: u32 = 5;
const PER_OCTAVE: u32 = 1 << MANTISSA_BITS;
const CLASSES: usize = (32 - MANTISSA_BITS as usize + 1) << MANTISSA_BITS;
const WORDS: usize = CLASSES / 64;

/// The class of a block of `units`: no block of a higher class is smaller than `units`.
#[inline]
pub(super) fn class_of(units: u32) -> u32 {
    // Setting the bit of the mantissa's width gives small blocks a shift of 0 without a branch.
    let shift = 31 - MANTISSA_BITS - (units | PER_OCTAVE).leading_zeros();
    // The leading bit lands in the exponent part, so that classes continue without a gap.
    (shift << MANTISSA_BITS) + (units >> shift)
}

/// The heads of the free lists of one space, with their bitmaps.
#[derive(Clone, Debug)]
pub(super) struct Index {
    /// Which words have a bit.
    summary: u32,
    /// Which classes have a block.
    words: [u64; WORDS],
    heads: Box<[u32; CLASSES]>,
}

impl Index {
    pub(super) fn new() -> Self {
        Self {
            summary: 0,
            words: [0; WORDS],
            heads: Box::new([NONE; CLASSES]),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.summary == 0
    }

    /// The first block of a class, or [`NONE`].
    #[inline]
    pub(super) fn head(&self, class: u32) -> u32 {
        self.heads.get(class as usize).copied().unwrap_or(NONE)
    }

    #[inline]
    pub(super) fn set_head(&mut self, class: u32, node: u32) {
        let at = (class >> 6) as usize;
        if let (Some(head), Some(word)) =
            (self.heads.get_mut(class as usize), self.words.get_mut(at))
        {
            *head = node;
            // Whether a list runs empty is as good as random: bits, not branches.
            let filled = node != NONE;
            *word = *word & !(1 << (class & 63)) | u64::from(filled) << (class & 63);
            self.summary = self.summary & !(1 << at) | u32::from(*word != 0) << at;
        }
    }

    /// The least class above `class` that has a block.
    #[inline]
    pub(super) fn next_class(&self, class: u32) -> Option<u32> {
        let at = class >> 6;
        // A shift by the full width is split in two because one such shift is not defined.
        let above = self.words.get(at as usize).copied().unwrap_or(0) & ((!0 << (class & 63)) << 1);
        if above != 0 {
            return Some((at << 6) | above.trailing_zeros());
        }
        let rest = self.summary & ((!0 << at) << 1);
        if rest == 0 {
            return None;
        }
        let at = rest.trailing_zeros();
        let word = self.words.get(at as usize).copied().unwrap_or(0);
        Some((at << 6) | word.trailing_zeros())
    }

    /// The highest class that has a block.
    pub(super) fn last_class(&self) -> Option<u32> {
        let at = self.summary.checked_ilog2()?;
        let word = self.words.get(at as usize).copied().unwrap_or(0);
        Some((at << 6) | word.checked_ilog2()?)
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
