//! Which devices a command uses and how much of each: the one parser of the `--gpu` flags.
//!
//! `--gpu-devices` (or `--gpu`) names devices by the driver's number, in the user's order; that
//! order gives each its [`DeviceId`]. `--gpu-vram` and `--gpu-reserve` follow the same order. A
//! plain number in them is GiB, as in ds4; sizes such as `24G` and `512M` are accepted too, since
//! `--tensor-size` is written that way. `--gpu-placement` and `--gpu-exclude` name devices by
//! [`DeviceId`], because a mask does, and every message about them shows both numbers.
//!
//! Duplicates, missing devices and budgets of zero are refused here, so that no later stage meets
//! one device counted twice or a device that cannot hold anything.

mod error;
mod parse;

pub use error::SelectionError;

use crate::bytes::format_bytes;
use crate::device::{DeviceId, DeviceMask, Ordinal};
use std::fmt;

/// The flag that names devices by the driver's number.
pub const FLAG_DEVICES: &str = "--gpu-devices";
/// The flag that gives each device a budget.
pub const FLAG_VRAM: &str = "--gpu-vram";
/// The flag that keeps part of each budget free.
pub const FLAG_RESERVE: &str = "--gpu-reserve";
/// The flag that says on which devices buffers may live.
pub const FLAG_PLACEMENT: &str = "--gpu-placement";
/// The flag that takes devices out of use.
pub const FLAG_EXCLUDE: &str = "--gpu-exclude";

/// The largest budget of one device, in bytes: 16384 GiB, ds4's limit.
pub const MAX_BUDGET_BYTES: u64 = 16384 << 30;
/// The largest driver number that is accepted where the devices are not known.
pub const MAX_ORDINAL: u32 = 1023;

/// The flags as typed; `None` is a flag that was not given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SelectionFlags<'a> {
    /// The value of `--gpu-devices`.
    pub gpu_devices: Option<&'a str>,
    /// The value of `--gpu-vram`.
    pub gpu_vram: Option<&'a str>,
    /// The value of `--gpu-reserve`.
    pub gpu_reserve: Option<&'a str>,
    /// The value of `--gpu-placement`.
    pub gpu_placement: Option<&'a str>,
    /// The value of `--gpu-exclude`.
    pub gpu_exclude: Option<&'a str>,
}

/// How much of a device may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Budget {
    /// What is free when the device is opened.
    Auto,
    /// That many bytes, never zero from the parser.
    Bytes(u64),
}

/// One device that the user selected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelectedDevice {
    /// The place in the user's order.
    pub id: DeviceId,
    /// The driver's number.
    pub ordinal: Ordinal,
    /// How much of it may be used, before the reserve.
    pub budget: Budget,
    /// What of the budget stays free, in bytes.
    pub reserve_bytes: u64,
    /// Whether `--gpu-exclude` took it out of use.
    pub excluded: bool,
}

/// The devices of a run, in `DeviceId` order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    /// Every selected device, the excluded ones too.
    pub devices: Vec<SelectedDevice>,
    /// Where buffers may live; [`DeviceMask::EMPTY`] is everywhere.
    pub placement: DeviceMask,
}

impl Selection {
    /// Reads the flags; `present` is the number of devices the driver has, where that is known.
    ///
    /// Without `--gpu-devices` the devices are the first ones, as many as `--gpu-vram` has values;
    /// without both, every device present.
    ///
    /// # Errors
    /// [`SelectionError`], by what is wrong; each names the flag, the piece and what is allowed.
    pub fn parse(
        flags: &SelectionFlags<'_>,
        present: Option<usize>,
    ) -> Result<Self, SelectionError> {
        parse::selection(flags, present)
    }

    /// The driver's numbers of the devices, in order.
    #[must_use]
    pub fn ordinals(&self) -> Vec<Ordinal> {
        self.devices.iter().map(|device| device.ordinal).collect()
    }

    /// The set of devices that `--gpu-exclude` took out of use.
    #[must_use]
    pub fn excluded(&self) -> DeviceMask {
        self.devices
            .iter()
            .filter(|device| device.excluded)
            .map(|device| device.id)
            .collect()
    }

    /// Whether the devices are the driver's first ones in its order, all alike and all in use.
    fn is_plain(&self) -> bool {
        let Some(first) = self.devices.first() else {
            return false;
        };
        self.devices.iter().enumerate().all(|(place, device)| {
            device.ordinal.0 as usize == place
                && !device.excluded
                && device.budget == first.budget
                && device.reserve_bytes == first.reserve_bytes
        })
    }

    /// The set of devices that may be used: in the placement and not excluded.
    #[must_use]
    pub fn usable(&self) -> DeviceMask {
        let every: DeviceMask = self.devices.iter().map(|device| device.id).collect();
        let placed = if self.placement.is_empty() {
            every
        } else {
            self.placement.and(every)
        };
        placed.without(self.excluded())
    }
}

/// How much of a device may be used, in words.
struct Share<'a>(&'a SelectedDevice);

impl fmt::Display for Share<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.budget {
            Budget::Auto => f.write_str("all that is free")?,
            Budget::Bytes(bytes) => f.write_str(&format_bytes(bytes))?,
        }
        if self.0.reserve_bytes > 0 {
            write!(f, " less {}", format_bytes(self.0.reserve_bytes))?;
        }
        Ok(())
    }
}

/// The line that a command echoes, so that both numberings are seen before anything happens.
impl fmt::Display for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("devices: ")?;
        match self.devices.as_slice() {
            [first, .., last] if self.is_plain() => {
                write!(f, "{} to {} ({} each)", first.id, last.id, Share(first))?;
            }
            devices => {
                for (place, device) in devices.iter().enumerate() {
                    let comma = if place > 0 { ", " } else { "" };
                    let excluded = if device.excluded { ", excluded" } else { "" };
                    let (id, ordinal) = (device.id, device.ordinal);
                    write!(
                        f,
                        "{comma}{id} = device {ordinal} ({}{excluded})",
                        Share(device)
                    )?;
                }
            }
        }
        if self.placement.is_empty() {
            f.write_str("; placement any")
        } else {
            write!(f, "; placement {}", self.placement)
        }
    }
}

#[cfg(test)]
mod tests;
