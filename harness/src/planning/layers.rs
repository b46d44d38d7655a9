//! Layers to devices: the greedy, monotone, contiguous packer of ds4.
//!
//! One pass with one cursor. An entry larger than what the device under the cursor has left moves
//! the cursor on, for good; past the last device the entry and all after it stay on the host. An
//! exact fit stays, and an entry of no bytes fits a budget of none.
//!
//! What follows from that, and is tested below: the spots never decrease, no device holds more
//! than its budget, a prefix of the entries is placed the same whatever comes after it, raising
//! one budget never lowers the number of entries on devices, and no other order-preserving
//! contiguous placement puts a longer prefix on devices.

use ds4_engine::device::{DeviceId, MAX_DEVICES};
use std::fmt;

/// Where an entry went; the host counts as after every device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Spot {
    /// On a device.
    Device(DeviceId),
    /// No device had room: the entry stays in host memory.
    Host,
}

/// The outcome of [`pack`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Packing {
    /// The spot of each entry, in the order of the entries.
    pub(super) spots: Vec<Spot>,
    /// What each device was given, in bytes, in the order of the budgets.
    pub(super) used_bytes: Vec<u64>,
}

impl Packing {
    /// The number of entries on devices, which are always the first ones.
    #[must_use]
    pub(super) fn placed(&self) -> usize {
        self.spots
            .iter()
            .take_while(|spot| matches!(spot, Spot::Device(_)))
            .count()
    }

    /// Whether every entry is on a device.
    #[must_use]
    pub(super) fn fits(&self) -> bool {
        self.placed() == self.spots.len()
    }
}

/// More budgets than a mask has bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooManyDevices {
    /// The number of budgets given.
    pub(super) count: usize,
}

impl fmt::Display for TooManyDevices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "layers cannot be packed onto {} devices; give at most {MAX_DEVICES} budgets",
            self.count
        )
    }
}

impl std::error::Error for TooManyDevices {}

/// Places entries of the given sizes on devices with the given budgets, both in bytes and in order.
///
/// Budget `i` belongs to `DeviceId` `i`. Without budgets everything stays on the host.
///
/// # Errors
/// [`TooManyDevices`] for more than [`MAX_DEVICES`] budgets.
pub(super) fn pack(entry_bytes: &[u64], budget_bytes: &[u64]) -> Result<Packing, TooManyDevices> {
    if budget_bytes.len() > MAX_DEVICES {
        return Err(TooManyDevices {
            count: budget_bytes.len(),
        });
    }
    let mut used_bytes = vec![0_u64; budget_bytes.len()];
    let mut devices = budget_bytes.iter().zip(used_bytes.iter_mut()).enumerate();
    let mut cursor = devices.next();
    let mut spots = Vec::with_capacity(entry_bytes.len());
    for &bytes in entry_bytes {
        while let Some((_, (budget, used))) = &cursor
            && bytes > **budget - **used
        {
            cursor = devices.next();
        }
        let device = cursor.as_mut().and_then(|(index, (_, used))| {
            **used += bytes;
            DeviceId::new(*index)
        });
        spots.push(device.map_or(Spot::Host, Spot::Device));
    }
    Ok(Packing { spots, used_bytes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HOST: usize = MAX_DEVICES;

    /// The spots as numbers, the host as [`HOST`].
    fn spots(entry_bytes: &[u64], budget_bytes: &[u64]) -> Vec<usize> {
        numbers(&pack(entry_bytes, budget_bytes).unwrap())
    }

    fn numbers(packing: &Packing) -> Vec<usize> {
        packing
            .spots
            .iter()
            .map(|spot| match spot {
                Spot::Device(device) => device.index(),
                Spot::Host => HOST,
            })
            .collect()
    }

    #[test]
    fn entries_that_fit_one_device_share_it() {
        assert_eq!(spots(&[10; 6], &[100]), [0; 6]);
    }

    #[test]
    fn an_entry_that_fits_exactly_stays() {
        assert_eq!(spots(&[20; 4], &[50, 50]), [0, 0, 1, 1]);
        assert_eq!(spots(&[30, 10, 30, 10], &[40, 40]), [0, 0, 1, 1]);
    }

    #[test]
    fn what_no_device_holds_stays_on_the_host() {
        assert_eq!(spots(&[15; 5], &[30, 30]), [0, 0, 1, 1, HOST]);
        assert_eq!(spots(&[10; 6], &[50, 0]), [0, 0, 0, 0, 0, HOST]);
        assert_eq!(spots(&[10, 40, 10], &[30, 30]), [0, HOST, HOST]);
        assert_eq!(spots(&[1, 2], &[]), [HOST, HOST]);
    }

    #[test]
    fn a_device_left_behind_is_never_used_again() {
        let entries = [30, 60, 40, 50, 80, 20, 20, 10, 50, 70, 90, 10, 10];
        let budgets = [100, 80, 50, 90, 60, 30, 80, 40];
        assert_eq!(
            spots(&entries, &budgets),
            [0, 0, 1, 2, 3, 4, 4, 4, 6, HOST, HOST, HOST, HOST]
        );
        assert_eq!(
            spots(&[10, 40, 10, 10, 10], &[30, 30, 100]),
            [0, 2, 2, 2, 2]
        );
    }

    #[test]
    fn equal_entries_spread_over_equal_devices() {
        let expected: Vec<usize> = (0..32).map(|entry| entry / 2).collect();
        assert_eq!(spots(&[50; 32], &[100; 16]), expected);
    }

    #[test]
    fn a_model_too_large_leaves_its_end_on_the_host() {
        let mut entries = vec![10; 45];
        entries[0] = 5;
        entries[44] = 7;
        let got = spots(&entries, &[60; 3]);
        assert_eq!(got[0], 0);
        assert_eq!(got[44], HOST);
        assert_eq!(got.iter().filter(|spot| **spot == HOST).count(), 27);
    }

    #[test]
    fn empty_entries_fit_an_empty_budget() {
        assert_eq!(spots(&[0; 4], &[0, 0]), [0; 4]);
    }

    #[test]
    fn a_small_first_device_takes_what_it_can() {
        let entries = [5, 10, 10, 10, 10, 7];
        assert_eq!(spots(&entries, &[5, 60]), [0, 1, 1, 1, 1, 1]);
        assert_eq!(spots(&entries, &[0, 60]), [1; 6]);
        assert_eq!(spots(&entries, &[60; 3]), [0; 6]);
        assert_eq!(spots(&entries, &[45, 7]), [0, 0, 0, 0, 0, 1]);
        assert_eq!(spots(&[20, 30, 10, 10, 10], &[25, 60]), [0, 1, 1, 1, 1]);
    }

    #[test]
    fn thirty_two_devices_are_the_most() {
        assert_eq!(spots(&[1; 32], &[1; 32]), (0..32).collect::<Vec<_>>());
        assert_eq!(pack(&[1], &[1; 33]), Err(TooManyDevices { count: 33 }));
        insta::assert_snapshot!(
            TooManyDevices { count: 33 },
            @"layers cannot be packed onto 33 devices; give at most 32 budgets"
        );
    }

    #[test]
    fn the_largest_sizes_do_not_wrap() {
        let most = u64::MAX;
        assert_eq!(spots(&[most, 1, most], &[most, most]), [0, 1, HOST]);
    }

    /// The longest prefix that any order-preserving contiguous placement puts on devices.
    fn longest_prefix(entries: &[u64], budgets: &[u64]) -> usize {
        let Some((budget, later)) = budgets.split_first() else {
            return 0;
        };
        (0..=entries.len())
            .take_while(|take| entries[..*take].iter().sum::<u64>() <= *budget)
            .map(|take| take + longest_prefix(&entries[take..], later))
            .max()
            .unwrap_or(0)
    }

    fn sizes(count: usize) -> impl Strategy<Value = Vec<u64>> {
        proptest::collection::vec(0_u64..20, 0..count)
    }

    proptest! {
        #[test]
        fn spots_never_decrease_and_budgets_hold(entries in sizes(40), budgets in sizes(12)) {
            let packing = pack(&entries, &budgets).unwrap();
            prop_assert!(packing.spots.is_sorted());
            for (device, budget) in budgets.iter().enumerate() {
                let sum: u64 = numbers(&packing)
                    .iter()
                    .zip(&entries)
                    .filter(|(spot, _)| **spot == device)
                    .map(|(_, bytes)| bytes)
                    .sum();
                prop_assert_eq!(sum, packing.used_bytes[device]);
                prop_assert!(sum <= *budget);
            }
            prop_assert_eq!(pack(&entries, &budgets).unwrap(), packing);
        }

        #[test]
        fn a_prefix_is_placed_the_same_whatever_follows(
            entries in sizes(40),
            budgets in sizes(8),
            cut in 0_usize..40,
        ) {
            let cut = cut.min(entries.len());
            let whole = spots(&entries, &budgets);
            prop_assert_eq!(&spots(&entries[..cut], &budgets)[..], &whole[..cut]);
        }

        #[test]
        fn raising_one_budget_never_places_fewer(
            entries in sizes(40),
            mut budgets in sizes(8),
            which: prop::sample::Index,
            more in 0_u64..40,
        ) {
            prop_assume!(!budgets.is_empty());
            let before = pack(&entries, &budgets).unwrap().placed();
            let chosen = which.index(budgets.len());
            budgets[chosen] += more;
            prop_assert!(pack(&entries, &budgets).unwrap().placed() >= before);
        }

        #[test]
        fn no_contiguous_placement_places_more(entries in sizes(9), budgets in sizes(5)) {
            prop_assert_eq!(
                pack(&entries, &budgets).unwrap().placed(),
                longest_prefix(&entries, &budgets)
            );
        }
    }
}
