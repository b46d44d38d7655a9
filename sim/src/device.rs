//! One simulated device: its accounting, its address space and the bytes behind it.

mod contents;

use std::collections::BTreeMap;

use ds4_engine::bytes::align_up;
use ds4_engine::device::{DeviceId, DeviceMask, MemoryInfo};
use ds4_engine::hash::StateHash;

use crate::call::{Call, CallCounts};
use crate::config::SimDevice;
use crate::intervals::IntervalMap;
use crate::memory::SparseBytes;
use crate::space::AddressSpace;
use crate::stream::{Accesses, Streams};

/// Drivers reserve ranges at multiples of this, however small their pages are.
const RANGE_ALIGN_BYTES: u64 = 2 << 20;

/// Why a device refuses; the backend adds device and call.
#[derive(Debug)]
pub(crate) enum Refused {
    OutOfMemory,
    Unsupported,
    /// The caller passed what it must not pass.
    Misuse(String),
    /// The driver cannot, and nobody is to blame.
    Driver(String),
}

#[derive(Debug)]
struct Allocation {
    /// What it counts for, in bytes.
    charged_bytes: u64,
    contents: SparseBytes,
}

#[derive(Debug)]
struct Page {
    contents: SparseBytes,
    mapped_at: Option<u64>,
}

#[derive(Debug)]
struct Mapping {
    page: u64,
    /// The devices that may touch it, its own one included.
    readers: DeviceMask,
}

/// Everything about one device that changes.
#[derive(Debug)]
pub(crate) struct DeviceState {
    pub(crate) id: DeviceId,
    pub(crate) streams: Streams,
    pub(crate) accesses: Accesses,
    pub(crate) calls: CallCounts,
    /// Why the device is lost, once it is.
    pub(crate) lost: Option<String>,
    capacity_bytes: u64,
    granularity_bytes: u64,
    page_bytes: Option<u64>,
    used_bytes: u64,
    other_process_bytes: u64,
    taken_bytes: u64,
    kept_bytes: u64,
    space: AddressSpace,
    allocations: BTreeMap<u64, Allocation>,
    ranges: IntervalMap<()>,
    mappings: BTreeMap<u64, Mapping>,
    pages: BTreeMap<u64, Page>,
    next_page: u64,
}

impl DeviceState {
    pub(crate) fn new(id: DeviceId, device: &SimDevice, reuse_addresses: bool) -> Self {
        Self {
            id,
            streams: Streams::new(id),
            accesses: Accesses::default(),
            calls: CallCounts::default(),
            lost: None,
            capacity_bytes: device.capacity_bytes,
            granularity_bytes: device.granularity_bytes,
            page_bytes: device.page_bytes,
            used_bytes: 0,
            other_process_bytes: device.other_process_bytes,
            taken_bytes: 0,
            kept_bytes: 0,
            space: AddressSpace::new(id.index(), reuse_addresses),
            allocations: BTreeMap::new(),
            ranges: IntervalMap::default(),
            mappings: BTreeMap::new(),
            pages: BTreeMap::new(),
            next_page: 1,
        }
    }

    pub(crate) fn memory_info(&self) -> MemoryInfo {
        MemoryInfo {
            free_bytes: self.free_bytes(),
            total_bytes: self.capacity_bytes,
        }
    }

    fn free_bytes(&self) -> u64 {
        [
            self.used_bytes,
            self.other_process_bytes,
            self.taken_bytes,
            self.kept_bytes,
        ]
        .into_iter()
        .fold(self.capacity_bytes, u64::saturating_sub)
    }

    /// Another process takes up to `bytes`; returns how much it got.
    pub(crate) fn take(&mut self, bytes: u64) -> u64 {
        let taken = bytes.min(self.free_bytes());
        self.taken_bytes += taken;
        taken
    }

    /// That process gives up to `bytes` back; returns how much.
    pub(crate) fn give_back(&mut self, bytes: u64) -> u64 {
        let given = bytes.min(self.taken_bytes);
        self.taken_bytes -= given;
        given
    }

    /// Undoes what other processes and lying refusals took since the start.
    pub(crate) fn restore(&mut self) {
        self.taken_bytes = 0;
        self.kept_bytes = 0;
    }

    /// Memory for `bytes` vanishes, as far as there is some.
    pub(crate) fn keep(&mut self, bytes: u64) {
        let charged = align_up(bytes, self.granularity_bytes).unwrap_or(u64::MAX);
        self.kept_bytes += charged.min(self.free_bytes());
    }

    /// Bytes of host memory that hold this device's contents.
    pub(crate) fn resident_bytes(&self) -> u64 {
        let allocations = self
            .allocations
            .values()
            .map(|allocation| &allocation.contents);
        let pages = self.pages.values().map(|page| &page.contents);
        allocations
            .chain(pages)
            .map(SparseBytes::resident_bytes)
            .sum()
    }

    pub(crate) fn allocate(&mut self, bytes: u64) -> Result<u64, Refused> {
        if bytes == 0 {
            return Err(Refused::Misuse("invalid value: zero bytes".to_owned()));
        }
        let granularity = self.granularity_bytes;
        let charged_bytes = align_up(bytes, granularity)
            .filter(|charged| *charged <= self.free_bytes())
            .ok_or(Refused::OutOfMemory)?;
        let start = self
            .space
            .take(charged_bytes, granularity)
            .ok_or_else(no_addresses)?;
        self.used_bytes += charged_bytes;
        let contents = SparseBytes::new(bytes);
        self.allocations.insert(
            start,
            Allocation {
                charged_bytes,
                contents,
            },
        );
        Ok(start)
    }

    /// The size in bytes of the allocation that begins at `address`.
    pub(crate) fn allocated_bytes(&self, address: u64) -> Result<u64, Refused> {
        let allocation = self.allocations.get(&address).ok_or_else(|| {
            Refused::Misuse(format!("invalid value: {address:#x} is no allocation"))
        })?;
        Ok(allocation.contents.len())
    }

    pub(crate) fn free(&mut self, address: u64) {
        if let Some(allocation) = self.allocations.remove(&address) {
            self.used_bytes -= allocation.charged_bytes;
            self.space
                .give(address, allocation.charged_bytes, self.granularity_bytes);
        }
    }

    pub(crate) fn reserve(&mut self, bytes: u64) -> Result<u64, Refused> {
        let page_bytes = self.page_bytes.ok_or(Refused::Unsupported)?;
        if bytes == 0 || !bytes.is_multiple_of(page_bytes) {
            let detail =
                format!("invalid value: {bytes} bytes are not whole pages of {page_bytes}");
            return Err(Refused::Misuse(detail));
        }
        let start = self
            .space
            .take(bytes, page_bytes.max(RANGE_ALIGN_BYTES))
            .ok_or_else(no_addresses)?;
        self.ranges.insert(start, start + bytes, ());
        Ok(start)
    }

    pub(crate) fn release(&mut self, base: u64, bytes: u64) -> Result<(), Refused> {
        let page_bytes = self.page_bytes.ok_or(Refused::Unsupported)?;
        let whole = self
            .ranges
            .get(base)
            .is_some_and(|(end, ())| end - base == bytes);
        if !whole {
            let detail = format!("invalid value: {bytes} bytes at {base:#x} are no reserved range");
            return Err(Refused::Misuse(detail));
        }
        if let Some((at, _)) = self.mappings.range(base..base + bytes).next() {
            let detail = format!("invalid value: a page is still mapped at {at:#x}");
            return Err(Refused::Misuse(detail));
        }
        self.ranges.remove(base);
        let align = page_bytes.max(RANGE_ALIGN_BYTES);
        self.space.give(base, bytes, align);
        Ok(())
    }

    /// Returns the page and its size in bytes.
    pub(crate) fn create_page(&mut self) -> Result<(u64, u64), Refused> {
        let page_bytes = self.page_bytes.ok_or(Refused::Unsupported)?;
        if page_bytes > self.free_bytes() {
            return Err(Refused::OutOfMemory);
        }
        let page = self.next_page;
        self.next_page += 1;
        self.used_bytes += page_bytes;
        self.pages.insert(
            page,
            Page {
                contents: SparseBytes::new(page_bytes),
                mapped_at: None,
            },
        );
        Ok((page, page_bytes))
    }

    pub(crate) fn destroy_page(&mut self, page: u64) -> Result<(), Refused> {
        self.page_bytes.ok_or(Refused::Unsupported)?;
        match self.pages.get(&page).map(|page| page.mapped_at) {
            None => Err(Refused::Misuse(format!(
                "invalid value: there is no page {page}"
            ))),
            Some(Some(at)) => Err(Refused::Misuse(format!(
                "invalid value: page {page} is mapped at {at:#x}"
            ))),
            Some(None) => {
                if let Some(page) = self.pages.remove(&page) {
                    self.used_bytes -= page.contents.len();
                }
                Ok(())
            }
        }
    }

    /// Returns the size of the page in bytes.
    pub(crate) fn map(
        &mut self,
        address: u64,
        page: u64,
        readers: DeviceMask,
    ) -> Result<u64, Refused> {
        let page_bytes = self.page_bytes.ok_or(Refused::Unsupported)?;
        let misuse = |detail: String| Err(Refused::Misuse(format!("invalid value: {detail}")));
        if !address.is_multiple_of(page_bytes) {
            return misuse(format!(
                "{address:#x} is no multiple of the page size {page_bytes}"
            ));
        }
        let end = address.checked_add(page_bytes);
        if end.is_none_or(|end| self.ranges.containing(address, end).is_none()) {
            return misuse(format!("{address:#x} is in no reserved range"));
        }
        if self.mappings.contains_key(&address) {
            return misuse(format!("a page is mapped at {address:#x} already"));
        }
        let Some(entry) = self.pages.get_mut(&page) else {
            return misuse(format!("there is no page {page}"));
        };
        if let Some(at) = entry.mapped_at {
            return misuse(format!("page {page} is mapped at {at:#x} already"));
        }
        entry.mapped_at = Some(address);
        self.mappings.insert(address, Mapping { page, readers });
        Ok(page_bytes)
    }

    /// Sets who may touch the page that is mapped at `address`.
    pub(crate) fn set_readers(&mut self, address: u64, readers: DeviceMask) -> Result<(), Refused> {
        let mapping = self.mappings.get_mut(&address).ok_or_else(|| {
            Refused::Misuse(format!("invalid value: no page is mapped at {address:#x}"))
        })?;
        mapping.readers = readers;
        Ok(())
    }

    /// Returns the size of the page in bytes.
    pub(crate) fn unmap(&mut self, address: u64) -> Result<u64, Refused> {
        let page_bytes = self.page_bytes.ok_or(Refused::Unsupported)?;
        let Some(mapping) = self.mappings.remove(&address) else {
            let detail = format!("invalid value: no page is mapped at {address:#x}");
            return Err(Refused::Misuse(detail));
        };
        if let Some(page) = self.pages.get_mut(&mapping.page) {
            page.mapped_at = None;
        }
        Ok(page_bytes)
    }

    /// Adds everything that a refused call must leave alone; counters and contents are left out.
    pub(crate) fn hash(&self, hash: &mut StateHash) {
        hash.word(self.capacity_bytes)
            .word(self.used_bytes)
            .word(self.other_process_bytes);
        hash.word(self.taken_bytes)
            .word(self.kept_bytes)
            .word(u64::from(self.lost.is_some()));
        hash.word(self.allocations.len() as u64);
        for (start, allocation) in &self.allocations {
            hash.word(*start).word(allocation.contents.len());
        }
        hash.word(self.ranges.len() as u64);
        for (start, end, ()) in self.ranges.iter() {
            hash.word(start).word(end);
        }
        hash.word(self.mappings.len() as u64);
        for (start, mapping) in &self.mappings {
            hash.word(*start)
                .word(mapping.page)
                .word(u64::from(mapping.readers.0));
        }
        hash.word(self.pages.len() as u64);
        for page in self.pages.keys() {
            hash.word(*page);
        }
        let (streams, events) = self.streams.numbers();
        streams.for_each(|stream| {
            hash.word(u64::from(stream));
        });
        events.for_each(|event| {
            hash.word(event);
        });
    }

    /// What a call is about when it does not say so itself, in bytes.
    pub(crate) fn implied_bytes(&self, call: Call) -> u64 {
        let about_a_page = matches!(
            call,
            Call::CreatePage | Call::DestroyPage | Call::Map | Call::Unmap
        );
        self.page_bytes.filter(|_| about_a_page).unwrap_or(0)
    }
}

fn no_addresses() -> Refused {
    Refused::Driver("the device's 16 TiB of addresses are used up (memory may be free)".to_owned())
}
