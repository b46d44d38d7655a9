//! Which free block a search takes, how many it looks at, and where in the block it goes.

use super::*;

/// Of one class with 1030 and 1050 units.
const ASKED: u32 = 1040;

/// A pool with one free block per size, the first of `sizes` at the head of its list, and with
/// `rest` free units at the end; returns where each free block begins.
fn holes(sizes: &[u32], rest: u32) -> (Pool, Vec<u32>) {
    let mut pool = Pool::new(None);
    pool.extend(1 + sizes.iter().map(|units| units + 1).sum::<u32>(), false);
    pool.allocate(Want::units(1)).unwrap();
    let mut blocks = Vec::new();
    for units in sizes {
        blocks.push(pool.allocate(Want::units(*units)).unwrap());
        pool.allocate(Want::units(1)).unwrap();
    }
    for (id, _) in blocks.iter().rev() {
        pool.free(*id).unwrap();
    }
    if rest > 0 {
        pool.extend(rest, false);
    }
    pool.counters = PoolCounters::default();
    (pool, blocks.into_iter().map(|(_, offset)| offset).collect())
}

fn aligned(units: u32, align_units: u32) -> Want {
    Want {
        align_units,
        ..Want::units(units)
    }
}

fn long(units: u32) -> Want {
    Want {
        lifetime: Lifetime::Long,
        ..Want::units(units)
    }
}

#[test]
fn four_blocks_of_the_own_class_are_tried_before_a_larger_one_is_opened() {
    let (mut pool, offsets) = holes(&[1030, 1030, 1030, 1050], 1 << 20);
    let fit = pool.find(OPEN, Want::units(ASKED)).unwrap();
    assert!((offsets[3]..offsets[3] + 1050).contains(&fit.offset));
    assert_eq!(pool.counters.probes, 4);

    let (mut pool, offsets) = holes(&[1030, 1030, 1030, 1030, 1050], 1 << 20);
    let before = pool.find(OPEN, Want::units(ASKED)).unwrap();
    assert!(before.offset > offsets.iter().max().unwrap() + 1050);
    assert_eq!(pool.counters.probes, 5);
    pool.find(OPEN, Want::units(ASKED)).unwrap();
    assert_eq!(pool.counters.probes, 10);
}

#[test]
fn every_block_of_the_own_class_is_tried_before_a_refusal() {
    let (mut pool, offsets) = holes(&[1030, 1030, 1030, 1030, 1030, 1050, 1030], 0);
    for found in 1..3 {
        let fit = pool.find(OPEN, Want::units(ASKED)).unwrap();
        assert!((offsets[5]..offsets[5] + 1050).contains(&fit.offset));
        assert_eq!(pool.counters.probes, 6 * found);
    }
    assert!(pool.find(OPEN, Want::units(1051)).is_none());
    assert_eq!(pool.counters.probes, 12 + 7);
}

#[test]
fn an_aligned_or_long_lived_request_tries_every_block_of_its_class_first() {
    let sizes = [1030, 1030, 1030, 1030, 1030, 1050];
    let (mut pool, offsets) = holes(&sizes, 1 << 20);
    for found in 1..3 {
        let fit = pool.find(OPEN, aligned(ASKED, 2)).unwrap();
        assert!((offsets[5]..offsets[5] + 1050).contains(&fit.offset));
        assert_eq!(pool.counters.probes, 6 * found);
    }
    // A long-lived block looks at them all and takes the highest place.
    let fit = pool.find(OPEN, long(ASKED)).unwrap();
    assert_eq!(fit.offset + ASKED, pool.units());
    assert_eq!(pool.counters.probes, 12 + 7);
}
