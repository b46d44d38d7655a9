//! Devices, masks of devices and what a backend says about them.

use std::fmt;

/// The most devices that one allocator addresses: a placement mask has this many bits.
pub const MAX_DEVICES: usize = 32;

/// A device by its dense logical index, in the order in which the user selected devices.
///
/// Never mix it with [`Ordinal`]: bit `i` of a [`DeviceMask`] is `DeviceId` `i`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(u8);

impl DeviceId {
    /// The device with logical index `index`, or `None` at [`MAX_DEVICES`] and above.
    #[must_use]
    pub fn new(index: usize) -> Option<Self> {
        match u8::try_from(index) {
            Ok(small) if index < MAX_DEVICES => Some(Self(small)),
            _ => None,
        }
    }

    /// The logical index, below [`MAX_DEVICES`].
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "gpu{}", self.0)
    }
}

/// The number by which the driver knows a device, after its own visibility variables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ordinal(pub u32);

impl fmt::Display for Ordinal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A set of devices: bit `i` stands for `DeviceId` `i`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceMask(pub u32);

impl DeviceMask {
    /// No bit at all; as a placement hint it means every device.
    pub const EMPTY: Self = Self(0);
    /// All 32 bits; as a placement hint the ordinary "any device".
    pub const ALL: Self = Self(u32::MAX);

    /// The mask of one device.
    #[must_use]
    pub fn only(device: DeviceId) -> Self {
        Self(1 << device.0)
    }

    /// The mask of devices `0..count`, at most [`MAX_DEVICES`] of them.
    #[must_use]
    pub fn first(count: usize) -> Self {
        match count {
            0 => Self::EMPTY,
            1..MAX_DEVICES => Self((1 << count) - 1),
            _ => Self::ALL,
        }
    }

    /// Whether no bit is set.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The number of devices in the set.
    #[must_use]
    pub fn count(self) -> u32 {
        self.0.count_ones()
    }

    /// Whether `device` is in the set.
    #[must_use]
    pub fn contains(self, device: DeviceId) -> bool {
        self.0 & (1 << device.0) != 0
    }

    /// The devices in both sets.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// The devices in either set.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The devices of this set that are not in `other`.
    #[must_use]
    pub fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// The devices in ascending order.
    pub fn iter(self) -> impl Iterator<Item = DeviceId> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            if rest == 0 {
                return None;
            }
            #[expect(
                clippy::cast_possible_truncation,
                reason = "trailing_zeros of u32 is below 33"
            )]
            let bit = rest.trailing_zeros() as u8;
            rest &= rest - 1;
            Some(DeviceId(bit))
        })
    }
}

impl FromIterator<DeviceId> for DeviceMask {
    fn from_iter<I: IntoIterator<Item = DeviceId>>(devices: I) -> Self {
        devices
            .into_iter()
            .fold(Self::EMPTY, |mask, device| mask.or(Self::only(device)))
    }
}

impl fmt::Display for DeviceMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#b}", self.0)
    }
}

impl fmt::Binary for DeviceMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Binary::fmt(&self.0, f)
    }
}

/// A stream by its per-device number.
///
/// Stream `k` of a request means stream `k` of the device on which the request lands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u32);

impl StreamId {
    /// The stream that every device has from the start.
    pub const DEFAULT: Self = Self(0);
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stream {}", self.0)
    }
}

/// An address in a device's memory: a number here, never dereferenced by the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceAddress(pub u64);

impl fmt::Display for DeviceAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// What stays true of a device for as long as a backend is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The driver's number.
    pub ordinal: Ordinal,
    /// The marketing name the driver gives.
    pub name: String,
    /// The PCI bus id, `domain:bus:device.function`.
    pub pci_bus_id: String,
    /// The device's UUID as the driver prints it.
    pub uuid: String,
    /// All memory of the device, in bytes.
    pub total_bytes: u64,
    /// The size of a page of physical memory that can be mapped into a reserved range, in bytes,
    /// a power of two; `None` where the device has no virtual memory management.
    pub page_bytes: Option<u64>,
    /// What the driver rounds memory that is not mapped in pages up to, in bytes, a power of two.
    pub granularity_bytes: u64,
}

/// How much of a device's memory is free at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// Bytes that nobody holds.
    pub free_bytes: u64,
    /// All bytes of the device.
    pub total_bytes: u64,
}

/// Whether one device can read and write another's memory directly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerAccess {
    /// The driver offers no direct path.
    Absent,
    /// The driver offers a direct path and bytes sent over it arrived intact.
    Direct,
    /// The user asked that copies go through host memory (`DS4_FORCE_BOUNCE=1`).
    Bounce,
    /// The driver offers a direct path that delivered wrong bytes; it is not used.
    Broken,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_index_ends_at_the_width_of_a_mask() {
        assert_eq!(DeviceId::new(31).map(DeviceId::index), Some(31));
        assert_eq!(DeviceId::new(32), None);
        assert_eq!(DeviceId::new(256), None);
    }

    #[test]
    fn the_mask_of_the_first_devices_has_that_many_bits() {
        for count in 0..=40 {
            assert_eq!(
                DeviceMask::first(count).count() as usize,
                count.min(MAX_DEVICES)
            );
        }
    }

    #[test]
    fn a_mask_iterates_in_ascending_order_and_collects_back() {
        let mask = DeviceMask(0x8000_0105);
        let devices: Vec<usize> = mask.iter().map(DeviceId::index).collect();
        assert_eq!(devices, [0, 2, 8, 31]);
        assert_eq!(mask.iter().collect::<DeviceMask>(), mask);
    }
}
