//! Memory as pages mapped on demand into one reserved range.
//!
//! The range is larger than the budget. When no page may be added, pages that lie wholly inside
//! free blocks are unmapped there and mapped where they are needed, so that fragmentation costs
//! at most the partial pages at the edges of live blocks.

use std::ops::Range;

use crate::backend::{Backend, BackendError, OomOrigin, PageId};
use crate::device::{DeviceAddress, DeviceId, DeviceMask};

use super::super::pool::{Pool, UNIT_BYTES};

/// How many times the budget the reserved range holds, where the address space allows it.
const RANGE_FACTOR: u64 = 8;

/// The pages of one device and where they are mapped.
#[derive(Debug)]
pub(super) struct Pages {
    device: DeviceId,
    base: DeviceAddress,
    range_bytes: u64,
    page_bytes: u64,
    /// A page is `1 << unit_shift` units.
    unit_shift: u32,
    peers: DeviceMask,
    /// Page by page of the range: what is mapped there.
    mapped: Vec<Option<PageId>>,
    /// Bit by bit the same: whether anything is mapped there.
    present: Vec<u64>,
    /// Pages that exist and are mapped nowhere.
    spare: Vec<PageId>,
    existing: u64,
    limit: u64,
    /// Pages that attempts created in vain since the last request was decided.
    surplus: u64,
}

/// The pages that one attempt may take from free blocks, found when they are first needed.
struct Donors<'a> {
    span: Range<usize>,
    settle: &'a dyn Fn() -> Result<(), BackendError>,
    pages: Option<Vec<usize>>,
    created: u64,
}

impl Pages {
    /// Reserves a range for `budget_bytes`, a multiple of `page_bytes`.
    pub(super) fn reserve(
        backend: &dyn Backend,
        device: DeviceId,
        budget_bytes: u64,
        page_bytes: u64,
        most_bytes: u64,
    ) -> Result<Self, BackendError> {
        let mut factor = RANGE_FACTOR;
        loop {
            let wanted = budget_bytes.saturating_mul(factor).min(most_bytes);
            let range_bytes = (wanted & !(page_bytes - 1)).max(budget_bytes);
            match backend.reserve(device, range_bytes) {
                Ok(base) => {
                    return Ok(Self {
                        device,
                        base,
                        range_bytes,
                        page_bytes,
                        unit_shift: (page_bytes / UNIT_BYTES).trailing_zeros(),
                        peers: DeviceMask::EMPTY,
                        mapped: Vec::new(),
                        present: Vec::new(),
                        spare: Vec::new(),
                        existing: 0,
                        limit: budget_bytes / page_bytes,
                        surplus: 0,
                    });
                }
                Err(_) if factor > 1 => factor /= 2,
                Err(error) => return Err(error),
            }
        }
    }

    pub(super) fn base(&self) -> DeviceAddress {
        self.base
    }

    pub(super) fn range_bytes(&self) -> u64 {
        self.range_bytes
    }

    pub(super) fn reserved_bytes(&self) -> u64 {
        self.existing * self.page_bytes
    }

    /// Pages taken from the driver.
    pub(super) fn existing(&self) -> u32 {
        u32::try_from(self.existing).unwrap_or(u32::MAX)
    }

    /// Bytes of pages that no block touches, mapped, spare or not yet taken.
    pub(super) fn free_bytes(&self, pool: &Pool) -> u64 {
        (self.limit - u64::from(pool.occupied_pages()).min(self.limit)) * self.page_bytes
    }

    /// The most that one block could cover: whole free pages and the edges of two others.
    #[inline]
    pub(super) fn reach_bytes(&self, pool: &Pool) -> u64 {
        self.free_bytes(pool) + 2 * self.page_bytes
    }

    /// Lets `peers` reach every page that is mapped from now on.
    pub(super) fn set_peers(&mut self, peers: DeviceMask) {
        self.peers = peers;
    }

    /// The pages that a stretch touches.
    #[inline]
    fn page_span(&self, offset: u32, units: u32) -> Range<usize> {
        let last = (offset + units - 1) >> self.unit_shift;
        (offset >> self.unit_shift) as usize..last as usize + 1
    }

    /// Whether memory lies behind all of a stretch.
    #[inline]
    pub(super) fn is_mapped(&self, offset: u32, units: u32) -> bool {
        let Range { start, end } = self.page_span(offset, units);
        let (first, last) = (start / 64, (end - 1) / 64);
        let Some(words) = self.present.get(first..=last) else {
            return false;
        };
        words.iter().zip(first..).all(|(word, at)| {
            let mut wanted = u64::MAX;
            if at == first {
                wanted &= u64::MAX << (start % 64);
            }
            if at == last {
                wanted &= u64::MAX >> (63 - (end - 1) % 64);
            }
            word & wanted == wanted
        })
    }

    fn set_mapped(&mut self, page: usize, memory: Option<PageId>) -> Option<PageId> {
        if self.mapped.len() <= page {
            self.mapped.resize(page + 1, None);
            self.present.resize(page / 64 + 1, 0);
        }
        let bit = 1 << (page % 64);
        if let Some(word) = self.present.get_mut(page / 64) {
            *word = if memory.is_some() {
                *word | bit
            } else {
                *word & !bit
            };
        }
        let place = self.mapped.get_mut(page)?;
        std::mem::replace(place, memory)
    }

    /// Puts memory behind a stretch that is still free in `pool`.
    ///
    /// `settle` waits for the work that may still touch free memory; it is called before the
    /// first page is taken from a free block. On error no page has moved from a live block, and
    /// what the attempt had mapped is unmapped again.
    pub(super) fn map(
        &mut self,
        backend: &dyn Backend,
        pool: &Pool,
        offset: u32,
        units: u32,
        settle: &dyn Fn() -> Result<(), BackendError>,
    ) -> Result<(), BackendError> {
        let span = self.page_span(offset, units);
        let mut donors = Donors {
            span: span.clone(),
            settle,
            pages: None,
            created: 0,
        };
        let mut added = Vec::new();
        for page in span {
            if self.mapped.get(page).is_some_and(Option::is_some) {
                continue;
            }
            if let Err(error) = self.map_one(backend, pool, page, &mut donors) {
                self.take_back(backend, &added);
                self.surplus += donors.created;
                return Err(error);
            }
            added.push(page);
        }
        Ok(())
    }

    fn map_one(
        &mut self,
        backend: &dyn Backend,
        pool: &Pool,
        page: usize,
        donors: &mut Donors<'_>,
    ) -> Result<(), BackendError> {
        let memory = self.acquire(backend, pool, donors)?;
        let address = self.page_address(page);
        if let Err(error) = backend.map(self.device, address, memory, self.peers) {
            self.spare.push(memory);
            return Err(error);
        }
        self.set_mapped(page, Some(memory));
        Ok(())
    }

    /// A page that is mapped nowhere: a spare one, a new one, or one taken from a free block.
    fn acquire(
        &mut self,
        backend: &dyn Backend,
        pool: &Pool,
        donors: &mut Donors<'_>,
    ) -> Result<PageId, BackendError> {
        if let Some(page) = self.spare.pop() {
            return Ok(page);
        }
        let mut refused = None;
        if self.existing < self.limit {
            match backend.create_page(self.device) {
                Ok(page) => {
                    self.existing += 1;
                    donors.created += 1;
                    return Ok(page);
                }
                Err(error @ BackendError::OutOfMemory { .. }) => refused = Some(error),
                Err(error) => return Err(error),
            }
        }
        if donors.pages.is_none() {
            (donors.settle)()?;
            donors.pages = Some(self.free_mapped_pages(pool, &donors.span));
        }
        match donors.pages.as_mut().and_then(Vec::pop) {
            Some(donor) => self.unmap_one(backend, donor),
            None => Err(refused.unwrap_or(BackendError::OutOfMemory {
                device: self.device,
                call: "remap",
                asked_bytes: self.page_bytes,
                origin: OomOrigin::Driver,
            })),
        }
    }

    /// Mapped pages inside free blocks and outside `span`; the ones to take first come last.
    fn free_mapped_pages(&self, pool: &Pool, span: &Range<usize>) -> Vec<usize> {
        let mut pages = Vec::new();
        for (offset, units) in pool.large_holes().into_iter().rev() {
            let begin = (u64::from(offset) * UNIT_BYTES).div_ceil(self.page_bytes);
            let end = (u64::from(offset) + u64::from(units)) * UNIT_BYTES / self.page_bytes;
            #[expect(
                clippy::cast_possible_truncation,
                reason = "a page number is below 2^32"
            )]
            let inside = begin as usize..(end as usize).min(self.mapped.len());
            pages
                .extend(inside.filter(|page| self.mapped[*page].is_some() && !span.contains(page)));
        }
        // A failed attempt may have left pages behind the end of the pool.
        let end = self.page_span(pool.units(), 0).end;
        let behind = end..self.mapped.len();
        pages.extend(behind.filter(|page| self.mapped[*page].is_some() && !span.contains(page)));
        pages
    }

    fn unmap_one(&mut self, backend: &dyn Backend, page: usize) -> Result<PageId, BackendError> {
        let address = self.page_address(page);
        backend.unmap(self.device, address)?;
        let memory = self.set_mapped(page, None);
        memory.ok_or(BackendError::Driver {
            device: self.device,
            call: "unmap",
            detail: format!("page {page} was not mapped"),
        })
    }

    /// Unmaps what a failed attempt had mapped; pages that fail to unmap stay usable there.
    fn take_back(&mut self, backend: &dyn Backend, added: &[usize]) {
        for page in added {
            if let Ok(memory) = self.unmap_one(backend, *page) {
                self.spare.push(memory);
            }
        }
    }

    /// Ends a request: with `keep`, what was created for it stays; else it goes back to the driver.
    pub(super) fn settle_surplus(&mut self, backend: &dyn Backend, keep: bool) {
        let surplus = std::mem::take(&mut self.surplus);
        if !keep && surplus > 0 {
            // The refusal has its reason already; a page that cannot be destroyed stays spare.
            let _ = self.destroy_spare(backend, self.existing.saturating_sub(surplus));
        }
    }

    /// Gives spare pages back until only `most` pages exist; the others are tried after a failure.
    fn destroy_spare(&mut self, backend: &dyn Backend, most: u64) -> Result<(), BackendError> {
        let mut failed = None;
        let mut kept = Vec::new();
        while self.existing > most
            && let Some(page) = self.spare.pop()
        {
            match backend.destroy_page(self.device, page) {
                Ok(()) => self.existing -= 1,
                Err(error) => {
                    kept.push(page);
                    failed = failed.or(Some(error));
                }
            }
        }
        self.spare.append(&mut kept);
        failed.map_or(Ok(()), Err)
    }

    /// Gives every page that no block touches back to the driver.
    ///
    /// The caller has waited for all work that may still touch free memory.
    pub(super) fn trim(&mut self, backend: &dyn Backend, pool: &Pool) -> Result<(), BackendError> {
        let mut failed = None;
        for page in self.free_mapped_pages(pool, &(0..0)) {
            match self.unmap_one(backend, page) {
                Ok(memory) => self.spare.push(memory),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        let destroyed = self.destroy_spare(backend, 0);
        failed.map_or(destroyed, Err)
    }

    /// Gives everything back that can be; the first error says that something could not.
    pub(super) fn release(&mut self, backend: &dyn Backend) -> Result<(), BackendError> {
        let mut failed = None;
        for page in 0..self.mapped.len() {
            if self.mapped[page].is_some() {
                match self.unmap_one(backend, page) {
                    Ok(memory) => self.spare.push(memory),
                    Err(error) => failed = failed.or(Some(error)),
                }
            }
        }
        let destroyed = self.destroy_spare(backend, 0);
        if let Some(error) = failed {
            // A range goes back only whole and empty.
            return Err(error);
        }
        destroyed.and(backend.release(self.device, self.base, self.range_bytes))
    }

    fn page_address(&self, page: usize) -> DeviceAddress {
        DeviceAddress(self.base.0 + page as u64 * self.page_bytes)
    }
}
