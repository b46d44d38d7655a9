//! The checker: it watches from outside what the backend handed out and what an allocator made of
//! it, and trusts neither.
//!
//! The simulated backend reports its own calls. The harness reports the allocator's:
//! [`Ledger::on_allocation`] after each success and [`Ledger::on_free`] **before** the allocator is
//! told, so that a concurrent thread may get the same bytes without looking like an overlap. At the
//! end [`Ledger::check_shutdown`] turns what is left into findings.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ds4_engine::device::{DeviceAddress, DeviceId, DeviceMask};

use crate::call::Call;
use crate::finding::{Finding, LedgerBlock, StreamRace};
use crate::intervals::{IntervalMap, IntervalSet};

/// Findings kept for each device; later ones are counted only.
const MAX_FINDINGS: usize = 1024;
/// Freed blocks remembered for each device, to tell a double free from a foreign one.
const REMEMBERED_FREES: usize = 1024;

#[derive(Debug, Default)]
struct Books {
    allocations: IntervalMap<()>,
    ranges: IntervalMap<()>,
    mapped: IntervalSet,
    pages: BTreeMap<u64, u64>,
    blocks: IntervalMap<u64>,
    freed: VecDeque<(u64, u64)>,
    live_bytes: u64,
    findings: Vec<Finding>,
    finding_count: u64,
    lost: bool,
}

/// Books for each device. All methods take `&self` and lock one device.
///
/// Devices outside the machine are ignored.
#[derive(Debug)]
pub struct Ledger(Vec<Mutex<Books>>);

impl Ledger {
    /// Books for devices `0..device_count`.
    #[must_use]
    pub fn new(device_count: usize) -> Self {
        Self((0..device_count).map(|_| Mutex::default()).collect())
    }

    /// An allocator handed out a block; `candidates` are the devices that the request allowed, and
    /// none of them means any.
    pub fn on_allocation(&self, block: LedgerBlock, candidates: DeviceMask) {
        self.with(block.device, |books| {
            if !candidates.is_empty() && !candidates.contains(block.device) {
                books.find(Finding::OffCandidate { block, candidates });
            }
            let start = block.address.0;
            let Some(end) = start.checked_add(block.bytes).filter(|end| *end > start) else {
                books.find(Finding::Unbacked(block));
                return;
            };
            let backed = books.allocations.containing(start, end).is_some()
                || books.mapped.contains(start, end);
            if !backed {
                books.find(Finding::Unbacked(block));
            }
            if let Some(other) = books.block_in(block.device, start, end) {
                books.find(Finding::Overlap { block, other });
                return;
            }
            books.blocks.insert(start, end, block.handle);
            books.live_bytes += block.bytes;
        });
    }

    /// An allocator is about to take a block back. Returns whether it lived.
    pub fn on_free(&self, device: DeviceId, address: DeviceAddress, handle: u64) -> bool {
        self.with(device, |books| books.free_block(device, address, handle))
            .unwrap_or(false)
    }

    /// The bytes of all live blocks of an allocator on a device.
    #[must_use]
    pub fn live_bytes(&self, device: DeviceId) -> u64 {
        self.with(device, |books| books.live_bytes).unwrap_or(0)
    }

    /// The number of live blocks of an allocator on a device.
    #[must_use]
    pub fn live_blocks(&self, device: DeviceId) -> usize {
        self.with(device, |books| books.blocks.len()).unwrap_or(0)
    }

    /// Turns everything that is still held into findings; memory of a lost device is excused.
    pub fn check_shutdown(&self) {
        for device in (0..self.0.len()).filter_map(DeviceId::new) {
            self.with(device, |books| books.check_shutdown(device));
        }
    }

    /// How many findings there were, those beyond the kept ones included.
    #[must_use]
    pub fn finding_count(&self) -> u64 {
        self.0.iter().map(|books| lock(books).finding_count).sum()
    }

    /// The findings, device by device in the order of finding; at most 1024 for each device.
    #[must_use]
    pub fn findings(&self) -> Vec<Finding> {
        self.0
            .iter()
            .flat_map(|books| lock(books).findings.clone())
            .collect()
    }

    /// Takes the findings out, so that a test can go on after those that it provoked.
    pub fn take_findings(&self) -> Vec<Finding> {
        let take = |books: &Mutex<Books>| {
            let mut books = lock(books);
            books.finding_count = 0;
            std::mem::take(&mut books.findings)
        };
        self.0.iter().flat_map(take).collect()
    }

    pub(crate) fn on_backend_allocate(&self, device: DeviceId, start: u64, end: u64) {
        self.with(device, |books| {
            if books.is_given(start, end) || books.ranges.overlapping(start, end).is_some() {
                books.find_given_twice(device, Call::Allocate, start, end);
            }
            books.allocations.insert(start, end, ());
        });
    }

    pub(crate) fn on_backend_free(&self, device: DeviceId, start: u64) {
        self.with(device, |books| {
            if let Some((end, ())) = books.allocations.remove(start) {
                books.find_pulled(device, Call::Free, start, end);
            }
        });
    }

    pub(crate) fn on_reserve(&self, device: DeviceId, start: u64, end: u64) {
        self.with(device, |books| {
            if books.is_given(start, end) || books.ranges.overlapping(start, end).is_some() {
                books.find_given_twice(device, Call::Reserve, start, end);
            }
            books.ranges.insert(start, end, ());
        });
    }

    pub(crate) fn on_release(&self, device: DeviceId, start: u64) {
        self.with(device, |books| books.ranges.remove(start));
    }

    pub(crate) fn on_create_page(&self, device: DeviceId, page: u64, bytes: u64) {
        self.with(device, |books| books.pages.insert(page, bytes));
    }

    pub(crate) fn on_destroy_page(&self, device: DeviceId, page: u64) {
        self.with(device, |books| books.pages.remove(&page));
    }

    pub(crate) fn on_map(&self, device: DeviceId, start: u64, end: u64) {
        self.with(device, |books| {
            if books.is_given(start, end) {
                books.find_given_twice(device, Call::Map, start, end);
            } else {
                books.mapped.insert(start, end);
            }
        });
    }

    pub(crate) fn on_unmap(&self, device: DeviceId, start: u64, end: u64) {
        self.with(device, |books| {
            books.mapped.remove(start, end);
            books.find_pulled(device, Call::Unmap, start, end);
        });
    }

    pub(crate) fn on_lost(&self, device: DeviceId) {
        self.with(device, |books| books.lost = true);
    }

    pub(crate) fn on_misuse(&self, device: DeviceId, call: Call, detail: &str) {
        let detail = detail.to_owned();
        self.with(device, |books| {
            books.find(Finding::Misuse {
                device,
                call,
                detail,
            });
        });
    }

    pub(crate) fn on_race(&self, race: StreamRace) {
        self.with(race.device, |books| books.find(Finding::StreamRace(race)));
    }

    fn with<T>(&self, device: DeviceId, work: impl FnOnce(&mut Books) -> T) -> Option<T> {
        self.0
            .get(device.index())
            .map(|books| work(&mut lock(books)))
    }
}

fn lock(books: &Mutex<Books>) -> MutexGuard<'_, Books> {
    books.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Books {
    fn find(&mut self, finding: Finding) {
        self.finding_count += 1;
        if self.findings.len() < MAX_FINDINGS {
            self.findings.push(finding);
        }
    }

    fn is_given(&self, start: u64, end: u64) -> bool {
        self.allocations.overlapping(start, end).is_some() || self.mapped.touches(start, end)
    }

    fn find_given_twice(&mut self, device: DeviceId, call: Call, start: u64, end: u64) {
        let (address, bytes) = (DeviceAddress(start), end - start);
        self.find(Finding::BackendOverlap {
            device,
            call,
            address,
            bytes,
        });
    }

    /// A live block that shares a byte with `start..end`.
    fn block_in(&self, device: DeviceId, start: u64, end: u64) -> Option<LedgerBlock> {
        let (at, stop, handle) = self.blocks.overlapping(start, end)?;
        Some(LedgerBlock {
            device,
            address: DeviceAddress(at),
            bytes: stop - at,
            handle: *handle,
        })
    }

    fn find_pulled(&mut self, device: DeviceId, call: Call, start: u64, end: u64) {
        if let Some(block) = self.block_in(device, start, end) {
            self.find(Finding::PulledAway { block, call });
        }
    }

    fn free_block(&mut self, device: DeviceId, address: DeviceAddress, handle: u64) -> bool {
        let start = address.0;
        match self.blocks.get(start) {
            Some((end, owner)) if *owner == handle => {
                self.blocks.remove(start);
                self.live_bytes -= end - start;
                if self.freed.len() == REMEMBERED_FREES {
                    self.freed.pop_front();
                }
                self.freed.push_back((start, handle));
                true
            }
            _ if self.freed.contains(&(start, handle)) => {
                self.find(Finding::DoubleFree {
                    device,
                    address,
                    handle,
                });
                false
            }
            _ => {
                self.find(Finding::ForeignFree {
                    device,
                    address,
                    handle,
                });
                false
            }
        }
    }

    fn check_shutdown(&mut self, device: DeviceId) {
        if self.lost {
            return;
        }
        let leak = |call: Call, place: u64, bytes: u64| Finding::BackendLeak {
            device,
            call,
            place,
            bytes,
        };
        let blocks = self.blocks.iter().map(|(start, end, handle)| {
            Finding::Leak(LedgerBlock {
                device,
                address: DeviceAddress(start),
                bytes: end - start,
                handle: *handle,
            })
        });
        let allocations = self
            .allocations
            .iter()
            .map(|(start, end, ())| leak(Call::Allocate, start, end - start));
        let mapped = self
            .mapped
            .iter()
            .map(|(start, end)| leak(Call::Map, start, end - start));
        let ranges = self
            .ranges
            .iter()
            .map(|(start, end, ())| leak(Call::Reserve, start, end - start));
        let pages = self
            .pages
            .iter()
            .map(|(page, bytes)| leak(Call::CreatePage, *page, *bytes));
        let all: Vec<Finding> = blocks
            .chain(allocations)
            .chain(mapped)
            .chain(ranges)
            .chain(pages)
            .collect();
        for finding in all {
            self.find(finding);
        }
    }
}

#[cfg(test)]
#[path = "ledger_tests.rs"]
mod tests;
