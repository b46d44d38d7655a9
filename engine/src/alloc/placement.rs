//! Which devices may take a request, and which one first. Pure: masks and loads in, devices out.

use crate::device::{DeviceId, DeviceMask};

use super::error::RefusalCause;

/// What to do with a hint of which no device exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OrphanPolicy {
    /// Take the least loaded device, with a warning and a counter.
    #[default]
    LeastLoaded,
    /// Refuse.
    Refuse,
}

/// The devices that may take a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidates {
    /// The devices; at least one.
    pub mask: DeviceMask,
    /// The hint named no existing device.
    pub orphaned: bool,
}

/// The candidates of a hint among the devices `0..device_count`.
///
/// # Errors
/// [`RefusalCause::Orphaned`] for a hint of which no device exists, under
/// [`OrphanPolicy::Refuse`]; [`RefusalCause::Excluded`] when exclusion leaves nothing.
#[inline]
pub fn candidates(
    hint: DeviceMask,
    device_count: usize,
    excluded: DeviceMask,
    policy: OrphanPolicy,
) -> Result<Candidates, RefusalCause> {
    let present = DeviceMask::first(device_count);
    let named = if hint.is_empty() {
        present
    } else {
        hint.and(present)
    };
    let orphaned = named.is_empty();
    let allowed = match (orphaned, policy) {
        (false, _) => named,
        (true, OrphanPolicy::LeastLoaded) => present,
        (true, OrphanPolicy::Refuse) => return Err(RefusalCause::Orphaned { device_count }),
    };
    let mask = allowed.without(excluded);
    if mask.is_empty() {
        return Err(RefusalCause::Excluded {
            excluded: excluded.and(present),
        });
    }
    Ok(Candidates { mask, orphaned })
}

/// How full a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Bytes of live blocks.
    pub used_bytes: u64,
    /// The most that live blocks may take; above 0.
    pub budget_bytes: u64,
}

impl Load {
    /// Whether this device is under less pressure than `other`: used ÷ budget, compared exactly.
    #[inline]
    #[must_use]
    pub fn is_below(self, other: Self) -> bool {
        if self.budget_bytes == other.budget_bytes {
            return self.used_bytes < other.used_bytes;
        }
        u128::from(self.used_bytes) * u128::from(other.budget_bytes)
            < u128::from(other.used_bytes) * u128::from(self.budget_bytes)
    }
}

/// The device of `mask` under the least pressure; the lowest [`DeviceId`] among equals.
#[inline]
pub fn least_loaded(mask: DeviceMask, load: impl Fn(DeviceId) -> Load) -> Option<DeviceId> {
    let mut devices = mask.iter();
    let first = devices.next()?;
    let mut best = (first, load(first));
    for device in devices {
        let load = load(device);
        if load.is_below(best.1) {
            best = (device, load);
        }
    }
    Some(best.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NONE: DeviceMask = DeviceMask::EMPTY;

    fn of(hint: u32, count: usize, excluded: u32) -> Result<Candidates, RefusalCause> {
        candidates(
            DeviceMask(hint),
            count,
            DeviceMask(excluded),
            OrphanPolicy::LeastLoaded,
        )
    }

    #[test]
    fn hints_resolve_to_the_devices_they_name() {
        for (hint, count, excluded, mask, orphaned) in [
            (0, 4, 0, 0b1111, false),
            (u32::MAX, 4, 0, 0b1111, false),
            (0b0100, 4, 0, 0b0100, false),
            (0b0011, 1, 0, 0b0001, false),
            (1 << 8, 4, 0, 0b1111, true),
            (1 << 8, 4, 0b0001, 0b1110, true),
            (0, 32, 1 << 31, u32::MAX >> 1, false),
            (0b0110, 4, 0b0100, 0b0010, false),
        ] {
            let expected = Candidates {
                mask: DeviceMask(mask),
                orphaned,
            };
            assert_eq!(
                of(hint, count, excluded),
                Ok(expected),
                "{hint:#b} of {count}"
            );
        }
    }

    #[test]
    fn a_hint_whose_devices_are_all_excluded_is_refused_never_redirected() {
        let refused = Err(RefusalCause::Excluded {
            excluded: DeviceMask(0b0100),
        });
        assert_eq!(of(0b0100, 4, 0b0100), refused);
        assert_eq!(of(0b0100, 4, 0b1_0100), refused);
        assert!(of(0, 2, 0b11).is_err());
    }

    #[test]
    fn a_strict_policy_refuses_orphaned_hints_alone() {
        let strict = |hint| candidates(DeviceMask(hint), 4, NONE, OrphanPolicy::Refuse);
        assert_eq!(
            strict(1 << 8),
            Err(RefusalCause::Orphaned { device_count: 4 })
        );
        assert!(strict(1 << 8 | 1).is_ok_and(|found| found.mask == DeviceMask(1)));
        assert!(strict(u32::MAX).is_ok());
    }

    #[test]
    fn pressure_is_compared_without_rounding() {
        let load = |used_bytes, budget_bytes| Load {
            used_bytes,
            budget_bytes,
        };
        // The two quotients differ by 2^-125, far below what a float can tell apart.
        let (a, b) = (
            load(u64::MAX - 2, u64::MAX - 1),
            load(u64::MAX - 1, u64::MAX),
        );
        assert!(a.is_below(b) && !b.is_below(a));
        assert!(!load(1, 3).is_below(load(2, 6)));
        assert!(load(10, 40).is_below(load(5, 10)));
    }

    #[test]
    fn devices_under_equal_pressure_go_by_their_index() {
        let loads = [(4, 8), (3, 8), (3, 8), (8, 16)];
        let load = |device: DeviceId| {
            let (used_bytes, budget_bytes) = loads[device.index()];
            Load {
                used_bytes,
                budget_bytes,
            }
        };
        for (mask, best) in [
            (0b1111, 1),
            (0b1101, 2),
            (0b1001, 0),
            (0b1000, 3),
            (0b1100, 2),
        ] {
            let found = least_loaded(DeviceMask(mask), load).map(DeviceId::index);
            assert_eq!(found, Some(best), "{mask:#b}");
        }
        assert_eq!(least_loaded(NONE, load), None);
    }

    proptest! {
        #[test]
        fn candidates_stay_inside_the_hint_unless_it_is_orphaned(
            hint: u32, count in 1_usize..=32, excluded: u32,
        ) {
            if let Ok(found) = of(hint, count, excluded) {
                prop_assert!(!found.mask.is_empty());
                prop_assert_eq!(found.mask.and(DeviceMask(excluded)), NONE);
                prop_assert_eq!(found.mask.without(DeviceMask::first(count)), NONE);
                prop_assert_eq!(found.orphaned, hint != 0 && hint & DeviceMask::first(count).0 == 0);
                if hint != 0 && !found.orphaned {
                    prop_assert_eq!(found.mask.without(DeviceMask(hint)), NONE);
                }
            }
        }

        #[test]
        fn zero_all_and_the_present_mask_are_the_same_hint(count in 1_usize..=32, excluded: u32) {
            let any = of(0, count, excluded);
            prop_assert_eq!(&any, &of(u32::MAX, count, excluded));
            prop_assert_eq!(&any, &of(DeviceMask::first(count).0, count, excluded));
        }

        #[test]
        fn the_least_loaded_device_has_the_least_quotient_and_the_lowest_index(
            mask in 1_u32..,
            loads in prop::collection::vec((0_u64..50, 1_u64..50), 32),
        ) {
            let load = |device: DeviceId| {
                let (used_bytes, budget_bytes) = loads[device.index()];
                Load { used_bytes, budget_bytes }
            };
            let best = least_loaded(DeviceMask(mask), load).unwrap();
            let key = |device: DeviceId| {
                let (used, budget) = loads[device.index()];
                // Scaled by a multiple of every budget below 50, so that the quotients are exact.
                (u128::from(used) * 3_099_044_504_245_996_706_400 / u128::from(budget), device)
            };
            prop_assert_eq!(Some(best), DeviceMask(mask).iter().min_by_key(|d| key(*d)));
        }
    }
}
