//! From the text of the flags to a [`Selection`].

use super::{
    Budget, FLAG_DEVICES, FLAG_EXCLUDE, FLAG_PLACEMENT, FLAG_RESERVE, FLAG_VRAM, MAX_BUDGET_BYTES,
    MAX_ORDINAL, SelectedDevice, Selection, SelectionError, SelectionFlags,
};
use crate::bytes::{GIB, SizeError, parse_size};
use crate::device::{DeviceId, DeviceMask, MAX_DEVICES, Ordinal};

pub(super) fn selection(
    flags: &SelectionFlags<'_>,
    present: Option<usize>,
) -> Result<Selection, SelectionError> {
    if present == Some(0) {
        return Err(SelectionError::NoDevices);
    }
    let budgets = flags.gpu_vram.map(budgets).transpose()?;
    let ordinals = ordinals(flags, budgets.as_ref(), present)?;
    let budgets = match budgets {
        None | Some(Budgets::Auto) => vec![Budget::Auto; ordinals.len()],
        Some(Budgets::Each(each)) => {
            same_count(FLAG_VRAM, each.len(), ordinals.len())?;
            each.into_iter().map(Budget::Bytes).collect()
        }
    };
    let reserves = match flags.gpu_reserve {
        None => vec![0; ordinals.len()],
        Some(text) => reserves(text, ordinals.len())?,
    };
    let devices = (0..MAX_DEVICES)
        .filter_map(DeviceId::new)
        .zip(ordinals)
        .zip(budgets.into_iter().zip(reserves))
        .map(|((id, ordinal), (budget, reserve_bytes))| SelectedDevice {
            id,
            ordinal,
            budget,
            reserve_bytes,
            excluded: false,
        })
        .collect();
    let mut selection = Selection {
        devices,
        placement: DeviceMask::EMPTY,
    };
    check_reserves(&selection)?;
    masks(flags, &mut selection)?;
    Ok(selection)
}

enum Budgets {
    Auto,
    Each(Vec<u64>),
}

fn budgets(text: &str) -> Result<Budgets, SelectionError> {
    if text.trim() == "auto" {
        return Ok(Budgets::Auto);
    }
    let mut each = Vec::new();
    for (index, piece) in pieces(FLAG_VRAM, text)?.into_iter().enumerate() {
        if piece == "auto" {
            return Err(SelectionError::AutoInList);
        }
        match amount(FLAG_VRAM, piece)? {
            0 => return Err(SelectionError::ZeroBudget { place: index + 1 }),
            bytes => each.push(bytes),
        }
    }
    Ok(Budgets::Each(each))
}

fn reserves(text: &str, devices: usize) -> Result<Vec<u64>, SelectionError> {
    let each = pieces(FLAG_RESERVE, text)?
        .into_iter()
        .map(|piece| amount(FLAG_RESERVE, piece))
        .collect::<Result<Vec<_>, _>>()?;
    if let [all] = each[..] {
        return Ok(vec![all; devices]);
    }
    same_count(FLAG_RESERVE, each.len(), devices)?;
    Ok(each)
}

fn ordinals(
    flags: &SelectionFlags<'_>,
    budgets: Option<&Budgets>,
    present: Option<usize>,
) -> Result<Vec<Ordinal>, SelectionError> {
    let flag = FLAG_DEVICES;
    let Some(text) = flags.gpu_devices else {
        return first_ordinals(budgets, present);
    };
    let mut chosen: Vec<Ordinal> = Vec::new();
    for piece in pieces(flag, text)? {
        let absent = || SelectionError::Absent {
            flag,
            piece: piece.to_owned(),
            present,
        };
        let number = device_number(flag, piece)?.ok_or_else(absent)?;
        let exists = match present {
            Some(count) => usize::try_from(number).is_ok_and(|number| number < count),
            None => number <= MAX_ORDINAL,
        };
        if !exists {
            return Err(absent());
        }
        if chosen.contains(&Ordinal(number)) {
            return Err(SelectionError::Duplicate { flag, number });
        }
        chosen.push(Ordinal(number));
    }
    Ok(chosen)
}

fn first_ordinals(
    budgets: Option<&Budgets>,
    present: Option<usize>,
) -> Result<Vec<Ordinal>, SelectionError> {
    let count = match (budgets, present) {
        (Some(Budgets::Each(each)), Some(present)) if each.len() > present => {
            return Err(SelectionError::MoreBudgetsThanDevices {
                budgets: each.len(),
                present,
            });
        }
        (Some(Budgets::Each(each)), _) => each.len(),
        (None | Some(Budgets::Auto), Some(present)) => present,
        (None | Some(Budgets::Auto), None) => return Err(SelectionError::NothingSelected),
    };
    // A host with more devices than a mask has bits lends its first ones.
    Ok((0_u32..)
        .take(count.min(MAX_DEVICES))
        .map(Ordinal)
        .collect())
}

fn masks(flags: &SelectionFlags<'_>, selection: &mut Selection) -> Result<(), SelectionError> {
    if let Some(text) = flags.gpu_exclude {
        let excluded = mask(FLAG_EXCLUDE, text, selection)?;
        for device in &mut selection.devices {
            device.excluded = excluded.contains(device.id);
        }
    }
    if let Some(text) = flags.gpu_placement {
        selection.placement = mask(FLAG_PLACEMENT, text, selection)?;
    }
    let excluded = selection.excluded();
    if selection.devices.iter().all(|device| device.excluded) {
        return Err(SelectionError::AllExcluded {
            selected: both_numbers(selection),
        });
    }
    if selection.usable().is_empty() {
        return Err(SelectionError::PlacementExcluded {
            placement: selection.placement,
            excluded,
        });
    }
    Ok(())
}

fn mask(
    flag: &'static str,
    text: &str,
    selection: &Selection,
) -> Result<DeviceMask, SelectionError> {
    let mut mask = DeviceMask::EMPTY;
    for piece in pieces(flag, text)? {
        let device = device_number(flag, piece)?
            .and_then(|number| usize::try_from(number).ok())
            .and_then(|index| selection.devices.get(index))
            .ok_or_else(|| SelectionError::NotSelected {
                flag,
                piece: piece.to_owned(),
                selected: both_numbers(selection),
            })?;
        if mask.contains(device.id) {
            let number = device.id.index().try_into().unwrap_or_default();
            return Err(SelectionError::Duplicate { flag, number });
        }
        mask = mask.or(DeviceMask::only(device.id));
    }
    Ok(mask)
}

fn check_reserves(selection: &Selection) -> Result<(), SelectionError> {
    for device in &selection.devices {
        if let Budget::Bytes(budget_bytes) = device.budget
            && device.reserve_bytes >= budget_bytes
        {
            return Err(SelectionError::ReserveTakesAll {
                device: device.id,
                reserve_bytes: device.reserve_bytes,
                budget_bytes,
            });
        }
    }
    Ok(())
}

fn same_count(flag: &'static str, count: usize, devices: usize) -> Result<(), SelectionError> {
    if count == devices {
        return Ok(());
    }
    Err(SelectionError::CountMismatch {
        flag,
        count,
        devices,
    })
}

fn both_numbers(selection: &Selection) -> String {
    let each: Vec<String> = selection
        .devices
        .iter()
        .map(|device| format!("{} = device {}", device.id, device.ordinal))
        .collect();
    each.join(", ")
}

/// The entries of a list without the blanks around them; at most [`MAX_DEVICES`].
fn pieces<'a>(flag: &'static str, text: &'a str) -> Result<Vec<&'a str>, SelectionError> {
    if text.trim().is_empty() {
        return Err(SelectionError::Empty { flag });
    }
    let count = text.split(',').count();
    if count > MAX_DEVICES {
        return Err(SelectionError::TooMany { flag, count });
    }
    let pieces: Vec<&str> = text.split(',').map(str::trim).collect();
    match pieces.iter().position(|piece| piece.is_empty()) {
        None => Ok(pieces),
        Some(index) => Err(SelectionError::EmptyEntry {
            flag,
            value: text.to_owned(),
            place: index + 1,
        }),
    }
}

/// The number an entry writes in digits; `None` when it is too large for any device.
fn device_number(flag: &'static str, piece: &str) -> Result<Option<u32>, SelectionError> {
    if piece.is_empty() || !piece.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(SelectionError::NotADevice {
            flag,
            piece: piece.to_owned(),
        });
    }
    Ok(piece.parse().ok())
}

/// Bytes from GiB as a plain number, or from a size with its unit.
fn amount(flag: &'static str, piece: &str) -> Result<u64, SelectionError> {
    let too_large = || SelectionError::TooLarge {
        flag,
        piece: piece.to_owned(),
    };
    let plain = piece.bytes().all(|byte| byte.is_ascii_digit());
    let bytes = match parse_size(piece) {
        Ok(gib) if plain => gib.checked_mul(GIB).ok_or_else(too_large)?,
        Ok(bytes) => bytes,
        Err(SizeError::TooLarge(_)) => return Err(too_large()),
        Err(source) => {
            return Err(SelectionError::NotAnAmount {
                flag,
                piece: piece.to_owned(),
                source,
            });
        }
    };
    if bytes > MAX_BUDGET_BYTES {
        return Err(too_large());
    }
    Ok(bytes)
}
