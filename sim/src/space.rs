//! The address space of one device.

use ds4_engine::device::DeviceId;

use crate::intervals::IntervalSet;

/// Each device has 2 to this power bytes of addresses, so that an address tells its device.
const SPACE_SHIFT: u32 = 44;

/// The first device's addresses begin at this multiple of their size, 2^47, where those of user
/// processes end: a device address is never the address of anything on the host.
const FIRST_SPACE: usize = 8;

/// The device to which an address belongs; the machine may have fewer.
pub(crate) fn device_of(address: u64) -> Option<DeviceId> {
    let number = usize::try_from(address >> SPACE_SHIFT).ok()?;
    DeviceId::new(number.checked_sub(FIRST_SPACE)?)
}

/// Addresses of one device, handed out in ascending order.
///
/// A range never touches the one before it: between two there is a gap, so that an overrun hits
/// nothing.
#[derive(Debug)]
pub(crate) struct AddressSpace {
    next: u64,
    end: u64,
    free: IntervalSet,
    reuse: bool,
}

impl AddressSpace {
    /// The addresses of device `index`; `reuse` hands freed ones out again at once.
    pub(crate) fn new(index: usize, reuse: bool) -> Self {
        let base = ((index + FIRST_SPACE) as u64) << SPACE_SHIFT;
        Self {
            next: base,
            end: base + (1 << SPACE_SHIFT),
            free: IntervalSet::default(),
            reuse,
        }
    }

    /// Takes `bytes` addresses from a multiple of `align`; `None` when no such range is free.
    pub(crate) fn take(&mut self, bytes: u64, align: u64) -> Option<u64> {
        let with_gap = bytes.checked_add(align)?;
        if self.reuse
            && let Some(at) = self.take_freed(with_gap, align)
        {
            return Some(at);
        }
        let start = self.next.checked_next_multiple_of(align)?;
        match start.checked_add(with_gap).filter(|end| *end <= self.end) {
            Some(end) => {
                self.next = end;
                Some(start)
            }
            None => self.take_freed(with_gap, align),
        }
    }

    /// Gives back what [`AddressSpace::take`] returned for the same `bytes` and `align`.
    pub(crate) fn give(&mut self, start: u64, bytes: u64, align: u64) {
        self.free
            .insert(start, start.saturating_add(bytes).saturating_add(align));
    }

    fn take_freed(&mut self, bytes: u64, align: u64) -> Option<u64> {
        let at = self.free.first_fit(bytes, align)?;
        self.free.remove(at, at + bytes).then_some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_have_disjoint_addresses_and_ranges_do_not_touch() {
        let mut first = AddressSpace::new(0, false);
        let mut second = AddressSpace::new(1, false);
        let a = first.take(4096, 4096).unwrap();
        let b = first.take(4096, 4096).unwrap();
        assert!(b > a + 4096);
        assert_eq!(second.take(1, 256).unwrap(), 9 << 44);
        assert_eq!(device_of(a), DeviceId::new(0));
        assert_eq!(device_of((10 << 44) - 1), DeviceId::new(1));
        assert_eq!(
            (device_of((1 << 47) - 1), device_of(u64::MAX)),
            (None, None)
        );
        assert_eq!(first.take(1 << 44, 256), None);
    }

    #[test]
    fn freed_addresses_come_back_at_once_or_only_at_the_end() {
        for reuse in [true, false] {
            let mut space = AddressSpace::new(0, reuse);
            let a = space.take(4096, 4096).unwrap();
            space.give(a, 4096, 4096);
            assert_eq!(space.take(4096, 4096).unwrap() == a, reuse);
            let rest = space.end - space.next - 4096;
            space.take(rest, 4096).unwrap();
            let last = space.take(4096, 4096);
            assert_eq!(last, (!reuse).then_some(a));
        }
    }
}
