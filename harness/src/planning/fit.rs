//! Packing one model onto one set of budgets, and by how much it fails.

use super::layers::{Packing, Spot, pack};
use super::model::Model;
use super::{DeviceUse, KvType, Load, NextEntry, PlanDevice, PlanError};
use ds4_engine::device::DeviceId;
use ds4_engine::selection::{Budget, Selection};

/// A device that may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Room {
    pub(super) id: DeviceId,
    pub(super) capacity_bytes: u64,
    pub(super) reserve_bytes: u64,
}

impl Room {
    pub(super) fn budget_bytes(self) -> u64 {
        self.capacity_bytes.saturating_sub(self.reserve_bytes)
    }
}

/// Everything a packing depends on; remedies change one thing and pack again.
#[derive(Clone)]
pub(super) struct Case<'a> {
    pub(super) model: &'a Model,
    pub(super) rooms: Vec<Room>,
    pub(super) context_tokens: u64,
    pub(super) kv_type: KvType,
}

/// An entry's bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Entry {
    weights: u64,
    kv: u64,
}

/// A packing with the entries it placed.
pub(super) struct Outcome {
    entries: Vec<Entry>,
    packing: Packing,
    /// Whether the head holds a copy of the embedding.
    pub(super) copied: bool,
}

impl<'a> Case<'a> {
    pub(super) fn new(
        model: &'a Model,
        selection: &Selection,
        context_tokens: u64,
        kv_type: KvType,
    ) -> Result<Self, PlanError> {
        let usable = selection.usable();
        let mut rooms = Vec::new();
        for device in &selection.devices {
            if !usable.contains(device.id) {
                continue;
            }
            let Budget::Bytes(capacity_bytes) = device.budget else {
                return Err(PlanError::NoBudget(device.id));
            };
            rooms.push(Room {
                id: device.id,
                capacity_bytes,
                reserve_bytes: device.reserve_bytes,
            });
        }
        if rooms.is_empty() {
            return Err(PlanError::NoDevices);
        }
        Ok(Self {
            model,
            rooms,
            context_tokens,
            kv_type,
        })
    }

    pub(super) fn budget_bytes(&self) -> u64 {
        self.rooms
            .iter()
            .fold(0, |sum: u64, room| sum.saturating_add(room.budget_bytes()))
    }

    fn entries(&self) -> Result<Vec<Entry>, PlanError> {
        let fixed = |weights| Entry { weights, kv: 0 };
        let mut entries = vec![fixed(self.model.embedding_bytes)];
        for layer in &self.model.layers {
            entries.push(Entry {
                weights: layer.weights_bytes,
                kv: Model::kv_bytes(layer, self.context_tokens, self.kv_type)?,
            });
        }
        entries.push(fixed(self.model.head_bytes));
        Ok(entries)
    }

    /// Packs; a tied head that lands away from the embedding is packed again with its copy.
    pub(super) fn pack(&self) -> Result<Outcome, PlanError> {
        let entries = self.entries()?;
        let outcome = self.pack_entries(entries, false)?;
        if self.model.tied_bytes == 0 || outcome.head_is_with_embedding(self.rooms.len()) {
            return Ok(outcome);
        }
        let mut entries = outcome.entries;
        if let Some(head) = entries.last_mut() {
            head.weights = head
                .weights
                .checked_add(self.model.tied_bytes)
                .ok_or(self.overflow())?;
        }
        self.pack_entries(entries, true)
    }

    fn pack_entries(&self, entries: Vec<Entry>, copied: bool) -> Result<Outcome, PlanError> {
        let mut sizes = Vec::new();
        let mut sum = 0_u64;
        for entry in &entries {
            let size = entry.weights.checked_add(entry.kv).ok_or(self.overflow())?;
            sum = sum.checked_add(size).ok_or(self.overflow())?;
            sizes.push(size);
        }
        let budgets: Vec<u64> = self.rooms.iter().map(|room| room.budget_bytes()).collect();
        let packing = pack(&sizes, &budgets).map_err(|_| PlanError::NoDevices)?;
        Ok(Outcome {
            entries,
            packing,
            copied,
        })
    }

    fn overflow(&self) -> PlanError {
        PlanError::Overflow {
            context_tokens: self.context_tokens,
        }
    }

    pub(super) fn fits(&self) -> Result<bool, PlanError> {
        Ok(self.pack()?.fits())
    }

    /// How many more bytes `device` alone needs for everything to fit, if it may be used at all.
    pub(super) fn shortfall(&self, device: DeviceId) -> Result<Option<u64>, PlanError> {
        let Some(index) = self.rooms.iter().position(|room| room.id == device) else {
            return Ok(None);
        };
        let with_extra = |extra: u64| {
            let mut case = self.clone();
            if let Some(room) = case.rooms.get_mut(index) {
                room.capacity_bytes = room.capacity_bytes.saturating_add(extra);
            }
            case.fits()
        };
        // Enough for everything, after a reserve that may exceed the capacity.
        let reserve = self.rooms.get(index).map_or(0, |room| room.reserve_bytes);
        let most = self.pack()?.needed_bytes().saturating_add(reserve);
        least(0, most, with_extra)
    }

    pub(super) fn devices(&self, selection: &Selection, outcome: &Outcome) -> Vec<PlanDevice> {
        let excluded = selection.excluded();
        selection
            .devices
            .iter()
            .map(|device| {
                let room = self.rooms.iter().position(|room| room.id == device.id);
                let load = room.map_or_else(Load::default, |index| outcome.load_at(Some(index)));
                let capacity_bytes = match device.budget {
                    Budget::Auto => 0,
                    Budget::Bytes(bytes) => bytes,
                };
                let budget_bytes = capacity_bytes.saturating_sub(device.reserve_bytes);
                PlanDevice {
                    id: device.id,
                    ordinal: device.ordinal,
                    usage: match room {
                        Some(_) => DeviceUse::Usable,
                        None if excluded.contains(device.id) => DeviceUse::Excluded,
                        None => DeviceUse::NotPlaced,
                    },
                    capacity_bytes,
                    reserve_bytes: device.reserve_bytes,
                    budget_bytes,
                    free_bytes: budget_bytes.saturating_sub(load.total_bytes),
                    load,
                    next_entry: room.and_then(|index| outcome.next_entry(index)),
                    shortfall_bytes: None,
                }
            })
            .collect()
    }
}

impl Outcome {
    pub(super) fn fits(&self) -> bool {
        self.packing.fits()
    }

    /// Everything to be placed; the packing has checked that the sum exists.
    pub(super) fn needed_bytes(&self) -> u64 {
        self.entries
            .iter()
            .map(|entry| entry.weights + entry.kv)
            .sum()
    }

    pub(super) fn unplaced(&self) -> Load {
        self.load_at(None)
    }

    /// Whether a tied head can share the embedding; one without room would go to the last device.
    fn head_is_with_embedding(&self, rooms: usize) -> bool {
        let room = |spot: Option<&Spot>| match spot {
            Some(Spot::Device(device)) => Some(device.index()),
            Some(Spot::Host) | None => None,
        };
        let embedding = room(self.packing.spots.first());
        let head = room(self.packing.spots.last()).or(rooms.checked_sub(1));
        embedding.is_none() || embedding == head
    }

    /// The first entry beyond the usable device at `index`: it was too large to stay there.
    fn next_entry(&self, index: usize) -> Option<NextEntry> {
        let beyond = |spot: &Spot| match spot {
            Spot::Device(device) => device.index() > index,
            Spot::Host => true,
        };
        let number = self.packing.spots.iter().position(beyond)?;
        let entry = self.entries.get(number)?;
        let name = if number == 0 {
            "embedding".to_owned()
        } else if number + 1 == self.entries.len() {
            "output head".to_owned()
        } else {
            format!("layer {}", number - 1)
        };
        Some(NextEntry {
            name,
            bytes: entry.weights + entry.kv,
        })
    }

    /// What the usable device at `index`, or the host, holds.
    fn load_at(&self, index: Option<usize>) -> Load {
        let mut load = Load::default();
        let last = self.entries.len().saturating_sub(1);
        for (number, (entry, spot)) in self.entries.iter().zip(&self.packing.spots).enumerate() {
            let here = match spot {
                Spot::Device(device) => Some(device.index()),
                Spot::Host => None,
            };
            if here != index {
                continue;
            }
            load.weights_bytes += entry.weights;
            load.kv_bytes += entry.kv;
            if number == 0 {
                load.embedding = true;
            } else if number == last {
                load.output_head = true;
                load.embedding_copy = self.copied;
            } else {
                let first = load.layers.map_or(number - 1, |(first, _)| first);
                load.layers = Some((first, number - 1));
            }
        }
        load.total_bytes = load.weights_bytes + load.kv_bytes;
        load
    }
}

/// The least number in `low..=high` for which `holds`, which must stay true once it is.
pub(super) fn least(
    low: u64,
    high: u64,
    holds: impl Fn(u64) -> Result<bool, PlanError>,
) -> Result<Option<u64>, PlanError> {
    if !holds(high)? {
        return Ok(None);
    }
    let (mut low, mut high) = (low, high);
    while low < high {
        let middle = low + (high - low) / 2;
        if holds(middle)? {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    Ok(Some(high))
}
