//! What can be wrong with the `--gpu` flags, each as one sentence with a remedy.

use super::{FLAG_DEVICES, FLAG_EXCLUDE, FLAG_PLACEMENT, FLAG_RESERVE, FLAG_VRAM, MAX_ORDINAL};
use crate::bytes::{SizeError, format_bytes};
use crate::device::{DeviceId, DeviceMask, MAX_DEVICES};
use std::fmt;

/// Why the `--gpu` flags select nothing that can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SelectionError {
    /// The flag was given without a value.
    Empty {
        /// The flag.
        flag: &'static str,
    },
    /// Two commas with nothing between, or a comma at an end.
    EmptyEntry {
        /// The flag.
        flag: &'static str,
        /// The whole value.
        value: String,
        /// The place of the missing entry, from 1.
        place: usize,
    },
    /// More entries than a mask has bits.
    TooMany {
        /// The flag.
        flag: &'static str,
        /// The number of entries.
        count: usize,
    },
    /// An entry that should be a device number is none.
    NotADevice {
        /// The flag.
        flag: &'static str,
        /// The entry.
        piece: String,
    },
    /// An entry that should be an amount of memory is none.
    NotAnAmount {
        /// The flag.
        flag: &'static str,
        /// The entry.
        piece: String,
        /// What the size parser found.
        source: SizeError,
    },
    /// An amount above [`MAX_BUDGET_BYTES`](super::MAX_BUDGET_BYTES).
    TooLarge {
        /// The flag.
        flag: &'static str,
        /// The entry.
        piece: String,
    },
    /// `auto` in a list, where it would leave the others unclear.
    AutoInList,
    /// A budget of zero, which ds4 took to mean either "skip" or "holds nothing".
    ZeroBudget {
        /// The place in the list, from 1.
        place: usize,
    },
    /// A device named twice.
    Duplicate {
        /// The flag.
        flag: &'static str,
        /// The device's number as the flag counts.
        number: u32,
    },
    /// A driver number that no device has.
    Absent {
        /// The flag.
        flag: &'static str,
        /// The entry.
        piece: String,
        /// The number of devices present, where known.
        present: Option<usize>,
    },
    /// A logical number that no selected device has.
    NotSelected {
        /// The flag.
        flag: &'static str,
        /// The entry.
        piece: String,
        /// The selected devices with both numbers.
        selected: String,
    },
    /// More budgets than devices present.
    MoreBudgetsThanDevices {
        /// The number of budgets.
        budgets: usize,
        /// The number of devices present.
        present: usize,
    },
    /// A list whose length differs from the number of devices.
    CountMismatch {
        /// The flag.
        flag: &'static str,
        /// The number of entries.
        count: usize,
        /// The number of devices selected.
        devices: usize,
    },
    /// No flag selects a device, and how many there are is not known.
    NothingSelected,
    /// The driver has no device.
    NoDevices,
    /// A reserve that leaves nothing of a budget.
    ReserveTakesAll {
        /// The device.
        device: DeviceId,
        /// Its reserve, in bytes.
        reserve_bytes: u64,
        /// Its budget, in bytes.
        budget_bytes: u64,
    },
    /// Every selected device is excluded.
    AllExcluded {
        /// The selected devices with both numbers.
        selected: String,
    },
    /// Every device of the placement is excluded.
    PlacementExcluded {
        /// The placement.
        placement: DeviceMask,
        /// The excluded devices.
        excluded: DeviceMask,
    },
}

const AMOUNT: &str = "write GiB as a whole number, or a size such as 24G or 512M";

impl fmt::Display for SelectionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty { flag } => {
                write!(f, "{flag} is empty; give a list such as {}", example(flag))
            }
            Self::EmptyEntry { flag, value, place } => write!(
                f,
                "{flag}: entry {place} of '{}' is empty; separate entries by single commas, with \
                 none at the ends",
                value.escape_debug()
            ),
            Self::TooMany { flag, count } => {
                write!(f, "{flag}: {count} entries; the most is {MAX_DEVICES}")
            }
            Self::NotADevice { flag, piece } => write!(
                f,
                "{flag}: '{}' is not a device number; write digits only, such as {}",
                piece.escape_debug(),
                example(flag)
            ),
            Self::NotAnAmount { .. }
            | Self::TooLarge { .. }
            | Self::AutoInList
            | Self::ZeroBudget { .. }
            | Self::ReserveTakesAll { .. } => self.fmt_amount(f),
            Self::Duplicate { .. }
            | Self::Absent { .. }
            | Self::NotSelected { .. }
            | Self::MoreBudgetsThanDevices { .. }
            | Self::CountMismatch { .. }
            | Self::NothingSelected
            | Self::NoDevices
            | Self::AllExcluded { .. }
            | Self::PlacementExcluded { .. } => self.fmt_devices(f),
        }
    }
}

impl SelectionError {
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "`fmt` sends each variant to the one function that words it"
    )]
    fn fmt_amount(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAnAmount { flag, piece, .. } => {
                let also = if *flag == FLAG_VRAM {
                    ", or auto alone (lower case) for what is free"
                } else {
                    ""
                };
                write!(
                    f,
                    "{flag}: '{}' is not an amount of memory; {AMOUNT}{also}",
                    piece.escape_debug()
                )
            }
            Self::TooLarge { flag, piece } => write!(
                f,
                "{flag}: '{}' is out of range; plain numbers are GiB and the most is 16384 for one \
                 device; write MiB with M, such as 512M",
                piece.escape_debug()
            ),
            Self::AutoInList => write!(
                f,
                "{FLAG_VRAM}: auto stands alone and then holds for every device; give each device \
                 a number, or only auto"
            ),
            Self::ZeroBudget { place } => write!(
                f,
                "{FLAG_VRAM}: entry {place} is zero, which no buffer fits; leave the device out of \
                 {FLAG_DEVICES} or name it in {FLAG_EXCLUDE}, and to use no GPU at all choose \
                 --backend sim"
            ),
            Self::ReserveTakesAll {
                device,
                reserve_bytes,
                budget_bytes,
            } => write!(
                f,
                "{FLAG_RESERVE}: {} of {device} leaves nothing of its {}; reserve less than the \
                 budget",
                format_bytes(*reserve_bytes),
                format_bytes(*budget_bytes)
            ),
            _ => Ok(()),
        }
    }

    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "`fmt` sends each variant to the one function that words it"
    )]
    fn fmt_devices(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Duplicate { flag, number } => {
                write!(f, "{flag}: {number} is named twice; name each device once")
            }
            Self::Absent {
                flag,
                piece,
                present,
            } => {
                let piece = piece.escape_debug();
                match present {
                    None => write!(
                        f,
                        "{flag}: '{piece}' is out of range; driver numbers go from 0 to \
                         {MAX_ORDINAL}"
                    ),
                    Some(1) => write!(f, "{flag}: there is no device {piece}; only 0 is present"),
                    Some(count) => write!(
                        f,
                        "{flag}: there is no device {piece}; 0 to {} are present",
                        count.saturating_sub(1)
                    ),
                }
            }
            Self::NotSelected {
                flag,
                piece,
                selected,
            } => write!(
                f,
                "{flag}: there is no gpu{}; it counts the selected devices, which are {selected}",
                piece.escape_debug()
            ),
            Self::MoreBudgetsThanDevices { budgets, present } => write!(
                f,
                "{FLAG_VRAM}: {budgets} budgets for {}; give one for each device that is present",
                plural(*present)
            ),
            Self::CountMismatch {
                flag,
                count,
                devices,
            } => write!(
                f,
                "{flag}: {count} values for {}; give one for each device, in the same order{}",
                plural(*devices),
                if *flag == FLAG_RESERVE {
                    ", or a single one for all"
                } else {
                    ""
                }
            ),
            Self::NothingSelected => write!(
                f,
                "which devices to use is not known; give each a budget, for example {FLAG_VRAM} 24,24"
            ),
            Self::NoDevices => write!(
                f,
                "there is no device to select; run ds4 devices to see what each backend finds, or \
                 choose --backend sim"
            ),
            Self::AllExcluded { selected } => write!(
                f,
                "{FLAG_EXCLUDE}: it excludes every selected device ({selected}); leave at least \
                 one in use"
            ),
            Self::PlacementExcluded {
                placement,
                excluded,
            } => write!(
                f,
                "{FLAG_PLACEMENT}: every device of {placement} is excluded ({FLAG_EXCLUDE} gives \
                 {excluded}); place on a device that is in use, exclusion wins"
            ),
            _ => Ok(()),
        }
    }
}

fn plural(devices: usize) -> String {
    if devices == 1 {
        "1 device".to_owned()
    } else {
        format!("{devices} devices")
    }
}

fn example(flag: &str) -> &'static str {
    match flag {
        FLAG_VRAM => "24,24 or auto",
        FLAG_RESERVE => "1,2 or 512M",
        FLAG_EXCLUDE => "2",
        _ => "0,1",
    }
}

impl std::error::Error for SelectionError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        if let Self::NotAnAmount { source, .. } = self {
            Some(source)
        } else {
            None
        }
    }
}
