//! The books on one device of a wrapped backend: what is held there, and what of its memory is
//! left.

use std::collections::{BTreeMap, BTreeSet};

use ds4_engine::backend::Backend;
use ds4_engine::bytes::align_up;
use ds4_engine::device::{DeviceId, DeviceInfo, DeviceMask, StreamId};

use crate::call::{Call, CallCounts};
use crate::injector::Victim;

/// What was taken from the wrapped backend and not given back.
#[derive(Debug, Default)]
pub(super) struct Held {
    /// Sizes in bytes, by address.
    pub(super) allocations: BTreeMap<u64, u64>,
    /// Sizes in bytes, by address.
    pub(super) ranges: BTreeMap<u64, u64>,
    /// By page: where it is mapped.
    pub(super) pages: BTreeMap<u64, Option<u64>>,
    /// By address.
    pub(super) mappings: BTreeMap<u64, Mapping>,
    pub(super) streams: BTreeSet<u32>,
    pub(super) events: BTreeSet<u64>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Mapping {
    pub(super) page: u64,
    pub(super) peers: DeviceMask,
}

impl Held {
    pub(super) fn is_empty(&self) -> bool {
        self.allocations.is_empty()
            && self.ranges.is_empty()
            && self.pages.is_empty()
            && self.streams.is_empty()
            && self.events.is_empty()
    }

    pub(super) fn has_stream(&self, stream: StreamId) -> bool {
        stream == StreamId::DEFAULT || self.streams.contains(&stream.0)
    }
}

/// One device of a wrapped backend.
#[derive(Debug)]
pub(super) struct Watched {
    pub(super) id: DeviceId,
    pub(super) calls: CallCounts,
    /// Why the device is lost, once it is.
    pub(super) lost: Option<String>,
    pub(super) held: Held,
    pub(super) page_bytes: Option<u64>,
    granularity_bytes: u64,
    /// All that there is, where that is less than the device has.
    capacity_bytes: Option<u64>,
    /// All that may be used, while that is limited: by the capacity, or by what others took.
    limit_bytes: Option<u64>,
    used_bytes: u64,
    taken_bytes: u64,
    kept_bytes: u64,
}

impl Watched {
    pub(super) fn new(id: DeviceId, info: &DeviceInfo, capacity_bytes: Option<u64>) -> Self {
        Self {
            id,
            calls: CallCounts::default(),
            lost: None,
            held: Held::default(),
            page_bytes: info.page_bytes,
            granularity_bytes: info.granularity_bytes,
            capacity_bytes,
            limit_bytes: capacity_bytes,
            used_bytes: 0,
            taken_bytes: 0,
            kept_bytes: 0,
        }
    }

    /// What is free by these books; `None` while only the device knows.
    pub(super) fn free_bytes(&self) -> Option<u64> {
        let spent = [self.used_bytes, self.taken_bytes, self.kept_bytes];
        let limit = self.limit_bytes?;
        Some(spent.into_iter().fold(limit, u64::saturating_sub))
    }

    /// Whether an allocation of `bytes` is within what is free.
    pub(super) fn has_room(&self, bytes: u64) -> bool {
        let charged = self.charged_bytes(bytes);
        self.free_bytes().is_none_or(|free| charged <= free)
    }

    fn charged_bytes(&self, bytes: u64) -> u64 {
        align_up(bytes, self.granularity_bytes).unwrap_or(u64::MAX)
    }

    pub(super) fn add_allocation(&mut self, address: u64, bytes: u64) {
        self.used_bytes = self.used_bytes.saturating_add(self.charged_bytes(bytes));
        self.held.allocations.insert(address, bytes);
    }

    pub(super) fn remove_allocation(&mut self, address: u64) {
        if let Some(bytes) = self.held.allocations.remove(&address) {
            self.used_bytes = self.used_bytes.saturating_sub(self.charged_bytes(bytes));
        }
    }

    pub(super) fn add_page(&mut self, page: u64, page_bytes: u64) {
        self.used_bytes = self.used_bytes.saturating_add(page_bytes);
        self.held.pages.insert(page, None);
    }

    pub(super) fn remove_page(&mut self, page: u64, page_bytes: u64) {
        self.used_bytes = self.used_bytes.saturating_sub(page_bytes);
        self.held.pages.remove(&page);
    }

    /// All that is held, which the caller gives back.
    pub(super) fn take_held(&mut self) -> Held {
        self.used_bytes = 0;
        std::mem::take(&mut self.held)
    }

    /// Undoes what other processes and lying refusals took since the start.
    pub(super) fn restore(&mut self) {
        (self.taken_bytes, self.kept_bytes) = (0, 0);
        self.limit_bytes = self.capacity_bytes;
    }

    /// What a call is about when it does not say so itself, in bytes.
    pub(super) fn implied_bytes(&self, call: Call) -> u64 {
        let about_a_page = matches!(
            call,
            Call::CreatePage | Call::DestroyPage | Call::Map | Call::Unmap
        );
        self.page_bytes.filter(|_| about_a_page).unwrap_or(0)
    }

    /// Whether an address is in an allocation or a mapped page.
    pub(super) fn owns(&self, address: u64) -> bool {
        self.end_of(address, self.id).is_ok()
    }

    /// Whether `reader` may touch all of `bytes` bytes from `address` on.
    pub(super) fn check(&self, reader: DeviceId, address: u64, bytes: u64) -> Result<(), String> {
        let end = address
            .checked_add(bytes)
            .ok_or_else(|| not_live(address))?;
        let mut at = address;
        while at < end {
            let (place_end, whole) = self.end_of(at, reader)?;
            // A range that leaves its allocation is an overrun, whatever lies behind it.
            if whole && place_end < end {
                return Err(not_live(place_end));
            }
            at = place_end;
        }
        Ok(())
    }

    /// Where the memory that holds `address` ends, and whether it is a whole allocation.
    fn end_of(&self, address: u64, reader: DeviceId) -> Result<(u64, bool), String> {
        let page_bytes = self.page_bytes.unwrap_or(0);
        let mapping = self.held.mappings.range(..=address).next_back();
        if let Some((start, mapping)) = mapping.filter(|(start, _)| address - **start < page_bytes)
        {
            if reader != self.id && !mapping.peers.contains(reader) {
                return Err(format!(
                    "invalid address: the page at {start:#x} is not mapped for {reader}"
                ));
            }
            return Ok((start + page_bytes, false));
        }
        let allocation = self.held.allocations.range(..=address).next_back();
        allocation
            .filter(|(start, bytes)| address - **start < **bytes)
            .map(|(start, bytes)| (start + bytes, true))
            .ok_or_else(|| not_live(address))
    }
}

fn not_live(address: u64) -> String {
    format!("invalid address: {address:#x} is not in live, mapped memory")
}

/// A watched device with the backend that knows what is free there.
pub(super) struct Device<'a> {
    pub(super) watched: &'a mut Watched,
    pub(super) inner: &'a dyn Backend,
}

impl Device<'_> {
    /// What is free; from here on these books decide, so that the figure does not depend on what
    /// else goes on on the device.
    fn limited_free_bytes(&mut self) -> u64 {
        if self.watched.limit_bytes.is_none() {
            let info = self.inner.memory_info(self.watched.id);
            let free = info.map_or(0, |info| info.free_bytes);
            self.watched.limit_bytes = Some(free.saturating_add(self.watched.used_bytes));
        }
        self.watched.free_bytes().unwrap_or(0)
    }
}

impl Victim for Device<'_> {
    fn id(&self) -> DeviceId {
        self.watched.id
    }

    fn lose(&mut self, detail: String) {
        self.watched.lost = Some(detail);
    }

    fn take(&mut self, bytes: u64) -> u64 {
        let taken = bytes.min(self.limited_free_bytes());
        self.watched.taken_bytes += taken;
        taken
    }

    fn give_back(&mut self, bytes: u64) -> u64 {
        let given = bytes.min(self.watched.taken_bytes);
        self.watched.taken_bytes -= given;
        if self.watched.taken_bytes == 0 && self.watched.kept_bytes == 0 {
            self.watched.restore();
        }
        given
    }

    fn keep(&mut self, bytes: u64) {
        let charged = self.watched.charged_bytes(bytes);
        self.watched.kept_bytes += charged.min(self.limited_free_bytes());
    }
}
