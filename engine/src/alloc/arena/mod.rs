//! One device's memory: the books of the pool, the memory behind them, and stream order.

mod pages;
mod slabs;
mod streams;

use crate::backend::{Backend, BackendError, EventId, OomOrigin};
use crate::device::{DeviceAddress, DeviceId, DeviceInfo, DeviceMask, StreamId};
use crate::hash::StateHash;

use super::address_table::{AddressTable, Entry};
use super::error::{FreeError, RefusalReason};
use super::pool::{
    Block, BlockId, Fit, Lifetime, MAX_UNITS, NotLive, OPEN, PageLimit, Pool, UNIT_BYTES, Want,
};
use super::report::{PoolRange, PoolStats};
use pages::Pages;
use slabs::{Slabs, usable_bytes};
use streams::Streams;

/// What stands behind the books.
#[derive(Debug)]
enum Backing {
    Pages(Pages),
    Slabs(Slabs),
}

/// One request as a device sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ask {
    pub(super) units: u32,
    pub(super) slack_bytes: u32,
    pub(super) align_units: u32,
    pub(super) stream: StreamId,
    pub(super) lifetime: Lifetime,
}

/// A block as it was granted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Granted {
    pub(super) id: BlockId,
    pub(super) offset: u32,
    pub(super) address: DeviceAddress,
}

/// One device's share of the allocator, behind one lock.
#[derive(Debug)]
pub(super) struct Arena {
    device: DeviceId,
    budget_bytes: u64,
    pool: Pool,
    backing: Backing,
    streams: Streams,
    addresses: Option<AddressTable>,
    /// What the driver said when the device was lost. It stays lost, although memory that is
    /// mapped already could be handed out without asking the driver.
    lost: Option<Box<str>>,
    pub(super) stats: PoolStats,
}

/// Why one attempt found no place.
enum Miss {
    /// The books have no place, or the budget no room to grow.
    NoPlace,
    /// The reserved range is used up although pages are left.
    NoAddresses,
    /// The backend failed.
    Backend(BackendError),
}

impl Arena {
    /// Prepares a device, of which `info` was checked; `budget_bytes` is rounded down to what its
    /// backing can hold.
    pub(super) fn open(
        backend: &dyn Backend,
        device: DeviceId,
        info: &DeviceInfo,
        budget_bytes: u64,
        free_by_address: bool,
    ) -> Result<Self, BackendError> {
        let granule = info.page_bytes.unwrap_or(UNIT_BYTES);
        let most = u64::from(MAX_UNITS) * UNIT_BYTES;
        let budget_bytes = budget_bytes.min(most) & !(granule - 1);
        let (pool, backing) = match info.page_bytes {
            Some(page_bytes) => {
                let most_pages = u32::try_from(budget_bytes / page_bytes).unwrap_or(u32::MAX);
                let mut pool = Pool::new(PageLimit::new(page_bytes, most_pages));
                let pages = Pages::reserve(backend, device, budget_bytes, page_bytes, most)?;
                pool.extend(units_of(budget_bytes), false);
                (pool, Backing::Pages(pages))
            }
            None => (
                Pool::new(None),
                Backing::Slabs(Slabs::new(device, budget_bytes, info.granularity_bytes)),
            ),
        };
        Ok(Self {
            device,
            budget_bytes,
            pool,
            backing,
            streams: Streams::new(device),
            addresses: free_by_address.then(AddressTable::new),
            lost: None,
            stats: PoolStats {
                budget_bytes,
                ..PoolStats::default()
            },
        })
    }

    pub(super) fn budget_bytes(&self) -> u64 {
        self.budget_bytes
    }

    pub(super) fn used_bytes(&self) -> u64 {
        self.stats.used_bytes
    }

    pub(super) fn pool(&self) -> &Pool {
        &self.pool
    }

    pub(super) fn knows(&self, stream: StreamId) -> bool {
        self.streams.knows(stream)
    }

    pub(super) fn register_stream(&mut self, stream: StreamId) {
        self.streams.register(stream);
    }

    pub(super) fn set_peers(&mut self, peers: DeviceMask) {
        if let Backing::Pages(pages) = &mut self.backing {
            pages.set_peers(peers);
        }
    }

    /// The range of addresses that never changes, if the device has one.
    pub(super) fn fixed_range(&self) -> Option<(DeviceAddress, u64)> {
        match &self.backing {
            Backing::Pages(pages) => Some((pages.base(), pages.range_bytes())),
            Backing::Slabs(_) => None,
        }
    }

    pub(super) fn ranges(&self) -> Vec<PoolRange> {
        match &self.backing {
            Backing::Pages(pages) => vec![PoolRange {
                offset_bytes: 0,
                address: pages.base(),
                bytes: pages.range_bytes(),
            }],
            Backing::Slabs(slabs) => slabs.ranges(),
        }
    }

    /// Grants a request, or says why not; a refusal changes nothing.
    #[inline]
    pub(super) fn allocate(
        &mut self,
        backend: &dyn Backend,
        ask: &Ask,
    ) -> Result<Granted, RefusalReason> {
        if let Some(detail) = &self.lost {
            return Err(lost(detail));
        }
        let Some(slot) = self.streams.slot(&mut self.pool, ask.stream) else {
            return Err(RefusalReason::UnknownStream { stream: ask.stream });
        };
        let miss = match self.search(ask, slot) {
            Some(fit) => match self.back(backend, fit) {
                Ok(()) => return Ok(self.commit(fit, ask, slot)),
                Err(miss) => miss,
            },
            None if self.is_full_for(ask) => return Err(self.no_place(ask)),
            None => match self.grow(backend, ask, slot) {
                Ok(fit) => return Ok(self.commit(fit, ask, slot)),
                Err(miss) => miss,
            },
        };
        let fit = self.place_under_pressure(backend, ask, slot, miss)?;
        Ok(self.commit(fit, ask, slot))
    }

    /// Whether nothing that is done before refusing could help, so that refusing is cheap.
    #[inline]
    fn is_full_for(&self, ask: &Ask) -> bool {
        let asked = u64::from(ask.units) * UNIT_BYTES;
        let room = match &self.backing {
            Backing::Pages(pages) => pages.reach_bytes(&self.pool),
            // An empty slab could be given back for a larger one.
            Backing::Slabs(_) if self.stats.used_bytes == 0 => return false,
            Backing::Slabs(slabs) => slabs.room_bytes(),
        };
        asked > room && !self.streams.may_hold_back()
    }

    /// The largest request that would fit, if `reason` holds for every later request of this size
    /// until something is freed.
    pub(super) fn sure_of(&self, reason: &RefusalReason, ask: &Ask) -> Option<u64> {
        let books = matches!(
            reason,
            RefusalReason::Budget | RefusalReason::Fragmentation { .. }
        );
        // A stronger alignment may have been the cause, and a stream may give memory free.
        let sure = books && ask.align_units == 1 && !self.streams.may_hold_back();
        sure.then(|| self.largest_free_bytes())
    }

    #[inline]
    fn no_place(&self, ask: &Ask) -> RefusalReason {
        let asked = u64::from(ask.units) * UNIT_BYTES;
        if self.stats.used_bytes + asked > self.budget_bytes {
            return RefusalReason::Budget;
        }
        RefusalReason::Fragmentation {
            largest_free_bytes: self.largest_free_bytes(),
        }
    }

    fn commit(&mut self, fit: Fit, ask: &Ask, slot: u32) -> Granted {
        let id = self.pool.take(fit, ask.slack_bytes, slot);
        let bytes = u64::from(ask.units) * UNIT_BYTES;
        self.stats
            .allocated(bytes, bytes - u64::from(ask.slack_bytes));
        if let Some(addresses) = &mut self.addresses {
            addresses.insert(fit.offset, id.node);
        }
        let address = self.address(fit.offset);
        Granted {
            id,
            offset: fit.offset,
            address,
        }
    }

    fn address(&self, offset: u32) -> DeviceAddress {
        match &self.backing {
            Backing::Pages(pages) => DeviceAddress(pages.base().0 + u64::from(offset) * UNIT_BYTES),
            Backing::Slabs(slabs) => slabs.address(offset).unwrap_or(DeviceAddress(0)),
        }
    }

    /// A backed place for a request, from free memory or by growing.
    #[inline]
    fn place(&mut self, backend: &dyn Backend, ask: &Ask, slot: u32) -> Result<Fit, Miss> {
        if let Some(fit) = self.search(ask, slot) {
            return self.back(backend, fit).map(|()| fit);
        }
        self.grow(backend, ask, slot)
    }

    #[inline]
    fn search(&mut self, ask: &Ask, slot: u32) -> Option<Fit> {
        let want = Want {
            units: ask.units,
            align_units: ask.align_units,
            lifetime: ask.lifetime,
        };
        if let Some(own) = self.streams.own_spaces(slot) {
            for space in own {
                if let Some(fit) = self.pool.find(space, want) {
                    return Some(fit);
                }
            }
        }
        self.pool.find(OPEN, want)
    }

    #[inline]
    fn back(&mut self, backend: &dyn Backend, fit: Fit) -> Result<(), Miss> {
        match &mut self.backing {
            Backing::Pages(pages) if !pages.is_mapped(fit.offset, fit.units) => {
                let streams = &self.streams;
                let settle = || streams.settle(backend);
                let mapped = pages.map(backend, &self.pool, fit.offset, fit.units, &settle);
                self.stats.reserved(pages.reserved_bytes());
                mapped.map_err(Miss::Backend)
            }
            Backing::Pages(_) | Backing::Slabs(_) => Ok(()),
        }
    }

    /// Widens the pool within the budget: more addresses for the same pages, or another slab.
    fn grow(&mut self, backend: &dyn Backend, ask: &Ask, slot: u32) -> Result<Fit, Miss> {
        let old_units = self.pool.units();
        match &mut self.backing {
            Backing::Pages(pages) => {
                if u64::from(ask.units) * UNIT_BYTES > pages.reach_bytes(&self.pool) {
                    return Err(Miss::NoPlace);
                }
                let left = units_of(pages.range_bytes()) - old_units;
                let step = units_of(self.budget_bytes).min(left);
                if self.pool.extend(step, false).is_none() {
                    return Err(Miss::NoAddresses);
                }
                let found = match self.search(ask, slot) {
                    Some(fit) => self.back(backend, fit).map(|()| fit),
                    None => Err(Miss::NoPlace),
                };
                if found.is_err() {
                    self.pool.retract(step);
                }
                found
            }
            Backing::Slabs(slabs) => {
                let grown = slabs
                    .grow(backend, old_units, ask.units)
                    .map_err(Miss::Backend)?;
                self.stats.reserved(slabs.reserved_bytes());
                let Some(units) = grown else {
                    return Err(Miss::NoPlace);
                };
                if self.pool.extend(units, true).is_none() {
                    slabs.drop_last(backend).map_err(Miss::Backend)?;
                    return Err(Miss::NoAddresses);
                }
                self.search(ask, slot).ok_or(Miss::NoPlace)
            }
        }
    }

    /// What is done before refusing; a refused request gives back what was created for it.
    #[cold]
    fn place_under_pressure(
        &mut self,
        backend: &dyn Backend,
        ask: &Ask,
        slot: u32,
        miss: Miss,
    ) -> Result<Fit, RefusalReason> {
        let placed = self.place_harder(backend, ask, slot, miss);
        if let Backing::Pages(pages) = &mut self.backing {
            pages.settle_surplus(backend, placed.is_ok());
            self.stats.reserved(pages.reserved_bytes());
        }
        placed.map_err(|miss| self.reason(backend, ask, miss))
    }

    /// In this order: other holes, drain, search, wait, search, trim, search.
    fn place_harder(
        &mut self,
        backend: &dyn Backend,
        ask: &Ask,
        slot: u32,
        miss: Miss,
    ) -> Result<Fit, Miss> {
        let mut miss = match self.place_in_existing(backend, ask, slot, miss) {
            Ok(fit) => return Ok(fit),
            Err(miss) => miss,
        };
        for wait in [false, true] {
            if !self.streams.holds_back(&self.pool) {
                break;
            }
            let (opened, failed) = self.streams.drain(backend, &mut self.pool, wait);
            if opened {
                match self.place_again(backend, ask, slot) {
                    Ok(fit) => return Ok(fit),
                    Err(again) => miss = again,
                }
            }
            // Memory that stays closed for an error is the reason, not a lack of memory.
            if let Some(error) = failed {
                miss = Miss::Backend(error);
            }
        }
        match self.drop_empty_slabs(backend, ask) {
            Ok(true) => match self.place_again(backend, ask, slot) {
                Ok(fit) => return Ok(fit),
                Err(again) => miss = again,
            },
            Ok(false) => {}
            Err(error) => miss = Miss::Backend(error),
        }
        Err(miss)
    }

    fn place_again(&mut self, backend: &dyn Backend, ask: &Ask, slot: u32) -> Result<Fit, Miss> {
        match self.place(backend, ask, slot) {
            Ok(fit) => Ok(fit),
            Err(miss) => self.place_in_existing(backend, ask, slot, miss),
        }
    }

    /// When the driver has no page left, another hole may do with the pages that exist.
    fn place_in_existing(
        &mut self,
        backend: &dyn Backend,
        ask: &Ask,
        slot: u32,
        miss: Miss,
    ) -> Result<Fit, Miss> {
        let Miss::Backend(BackendError::OutOfMemory { .. }) = &miss else {
            return Err(miss);
        };
        let Backing::Pages(pages) = &self.backing else {
            return Err(miss);
        };
        let limit = self.pool.set_page_limit(pages.existing());
        let placed = self.place(backend, ask, slot);
        self.pool.set_page_limit(limit);
        placed.map_err(|again| match again {
            // What keeps even the pages that exist from use is the reason: the device may be lost.
            Miss::Backend(
                BackendError::DeviceLost { .. }
                | BackendError::Driver { .. }
                | BackendError::Unsupported { .. },
            ) => again,
            Miss::Backend(BackendError::OutOfMemory { .. }) | Miss::NoPlace | Miss::NoAddresses => {
                miss
            }
        })
    }

    fn reason(&mut self, backend: &dyn Backend, ask: &Ask, miss: Miss) -> RefusalReason {
        match miss {
            Miss::Backend(error) => self.backend_reason(backend, error),
            Miss::NoAddresses => RefusalReason::AddressSpace {
                reserved_bytes: u64::from(self.pool.units()) * UNIT_BYTES,
            },
            Miss::NoPlace => self.no_place(ask),
        }
    }

    fn backend_reason(&mut self, backend: &dyn Backend, error: BackendError) -> RefusalReason {
        match error {
            BackendError::OutOfMemory {
                origin: OomOrigin::Injected { entry },
                ..
            } => RefusalReason::Injected { entry },
            BackendError::OutOfMemory {
                call, asked_bytes, ..
            } => {
                let free_bytes = backend
                    .memory_info(self.device)
                    .ok()
                    .map(|info| info.free_bytes);
                RefusalReason::DriverOutOfMemory {
                    call,
                    asked_bytes,
                    free_bytes,
                }
            }
            BackendError::DeviceLost { detail, .. } => {
                self.lost = Some(detail.clone().into_boxed_str());
                RefusalReason::DeviceLost { detail }
            }
            error @ (BackendError::Unsupported { .. } | BackendError::Driver { .. }) => {
                RefusalReason::Driver {
                    detail: error.to_string(),
                }
            }
        }
    }

    /// The largest request that would be granted without freeing anything, in bytes.
    pub(super) fn largest_free_bytes(&self) -> u64 {
        match &self.backing {
            Backing::Pages(pages) => {
                let placeable = u64::from(self.pool.largest_placeable()) * UNIT_BYTES;
                let widened = if units_of(pages.range_bytes()) > self.pool.units() {
                    pages.free_bytes(&self.pool)
                } else {
                    0
                };
                placeable.max(widened)
            }
            Backing::Slabs(slabs) => {
                let free = u64::from(self.pool.largest_free()) * UNIT_BYTES;
                free.max(usable_bytes(slabs.left_bytes()))
            }
        }
    }

    /// Gives empty slabs at the end back, if that makes room for one that holds the request.
    fn drop_empty_slabs(&mut self, backend: &dyn Backend, ask: &Ask) -> Result<bool, BackendError> {
        let Backing::Slabs(slabs) = &mut self.backing else {
            return Ok(false);
        };
        let need_bytes = slabs.slab_bytes(u64::from(ask.units) * UNIT_BYTES);
        let most_kept_bytes = self.budget_bytes.saturating_sub(need_bytes);
        let count = slabs.excess(most_kept_bytes);
        if need_bytes > self.budget_bytes || count == 0 || count > self.pool.free_regions_at_end() {
            return Ok(false);
        }
        for _ in 0..count {
            let Some(units) = slabs.last_units() else {
                break;
            };
            slabs.drop_last(backend)?;
            self.pool.retract(units);
            self.stats.reserved(slabs.reserved_bytes());
        }
        Ok(true)
    }

    /// Gives memory that no block touches back to the driver; returns the bytes.
    pub(super) fn trim(&mut self, backend: &dyn Backend) -> Result<u64, BackendError> {
        // What cannot be opened now is not given back, which is no failure.
        let _ = self.streams.drain(backend, &mut self.pool, false);
        let before = self.stats.reserved_bytes;
        match &mut self.backing {
            Backing::Pages(pages) => {
                self.streams.settle(backend)?;
                let trimmed = pages.trim(backend, &self.pool);
                self.stats.reserved(pages.reserved_bytes());
                trimmed?;
            }
            Backing::Slabs(slabs) => {
                while let Some(units) = slabs.last_units()
                    && self.pool.can_retract(units)
                {
                    slabs.drop_last(backend)?;
                    self.pool.retract(units);
                    self.stats.reserved(slabs.reserved_bytes());
                }
            }
        }
        Ok(before - self.stats.reserved_bytes)
    }

    /// Waits for all work, then gives all memory back to the driver, live blocks or not.
    pub(super) fn close(&mut self, backend: &dyn Backend) -> Result<(), BackendError> {
        let waited = self.streams.close(backend);
        waited.and(match &mut self.backing {
            Backing::Pages(pages) => pages.release(backend),
            Backing::Slabs(slabs) => slabs.release(backend),
        })
    }

    /// The live block of a handle.
    #[inline]
    pub(super) fn live(&self, id: BlockId) -> Result<Block, FreeError> {
        self.pool.live(id).map_err(|not_live| match not_live {
            NotLive::Unknown => FreeError::OtherAllocator,
            NotLive::AlreadyFree => FreeError::DoubleFree,
            NotLive::Reused => FreeError::StaleHandle,
        })
    }

    /// Where a live block lies: its address and the bytes that its owner asked for.
    pub(super) fn extent(&self, id: BlockId) -> Result<(DeviceAddress, u64), FreeError> {
        let block = self.live(id)?;
        let bytes = u64::from(block.units) * UNIT_BYTES - u64::from(block.slack_bytes);
        Ok((self.address(block.offset), bytes))
    }

    /// Gives a live block back.
    #[inline]
    pub(super) fn free(&mut self, backend: &dyn Backend, id: BlockId) -> Result<(), FreeError> {
        let block = self.live(id)?;
        self.release(backend, id, block)?;
        if let Some(addresses) = &mut self.addresses {
            addresses.remove(block.offset);
        }
        Ok(())
    }

    /// Gives a block back in the pool's books; what knows its address is the caller's to mend.
    #[inline]
    fn release(
        &mut self,
        backend: &dyn Backend,
        id: BlockId,
        block: Block,
    ) -> Result<(), FreeError> {
        if let Err(error) = self
            .streams
            .release(backend, &mut self.pool, id.node, block.owner)
        {
            self.release_from_lost(id, error)?;
        }
        let bytes = u64::from(block.units) * UNIT_BYTES;
        self.stats
            .freed(bytes, bytes - u64::from(block.slack_bytes));
        Ok(())
    }

    /// Nothing uses a lost device's memory any more, and nobody will get it again.
    #[cold]
    fn release_from_lost(&mut self, id: BlockId, error: BackendError) -> Result<(), FreeError> {
        let BackendError::DeviceLost { detail, .. } = error else {
            return Err(FreeError::Backend(error));
        };
        self.lost = Some(detail.into_boxed_str());
        self.streams.release_lost(&mut self.pool, id.node);
        Ok(())
    }

    /// Gives the live block that begins at `address` back.
    pub(super) fn free_at(
        &mut self,
        backend: &dyn Backend,
        address: DeviceAddress,
    ) -> Result<(), FreeError> {
        let (id, block, entry) = self.block_at(address)?;
        self.release(backend, id, block)?;
        if let Some(addresses) = &mut self.addresses {
            addresses.remove_entry(entry);
        }
        Ok(())
    }

    /// The id of the live block that begins at `address`.
    pub(super) fn id_at(&self, address: DeviceAddress) -> Result<BlockId, FreeError> {
        self.block_at(address).map(|(id, ..)| id)
    }

    #[inline]
    fn block_at(&self, address: DeviceAddress) -> Result<(BlockId, Block, Entry), FreeError> {
        let Some(addresses) = &self.addresses else {
            return Err(FreeError::NoAddressTable);
        };
        let (offset, past) = self.locate(address).ok_or(FreeError::Foreign { address })?;
        if past == 0
            && let Some(entry) = addresses.find(offset)
        {
            let id = self.pool.id_of(entry.node);
            return Ok((id, self.live(id)?, entry));
        }
        Err(self.why_not_live(address, offset))
    }

    #[cold]
    fn why_not_live(&self, address: DeviceAddress, offset: u32) -> FreeError {
        match self.pool.live_block_around(offset) {
            Some(start) => FreeError::Interior {
                address,
                start: self.address(start),
            },
            None => FreeError::DoubleFree,
        }
    }

    /// The unit of an address and the bytes past its start; `None` outside this device's memory.
    #[inline]
    pub(super) fn locate(&self, address: DeviceAddress) -> Option<(u32, u64)> {
        match &self.backing {
            Backing::Pages(pages) => {
                let distance = address.0.checked_sub(pages.base().0)?;
                let unit = u32::try_from(distance / UNIT_BYTES).ok()?;
                (unit < self.pool.units()).then_some((unit, distance % UNIT_BYTES))
            }
            Backing::Slabs(slabs) => slabs.locate(address),
        }
    }

    /// Notes that a live block is used on another stream as well.
    pub(super) fn record_use(&mut self, id: BlockId, stream: StreamId) -> Result<bool, FreeError> {
        let block = self.live(id)?;
        if !self.streams.knows(stream) {
            return Ok(false);
        }
        self.streams.record_use(id.node, block.owner, stream);
        Ok(true)
    }

    /// Takes over an event that nothing waits for and that could not be removed.
    pub(super) fn adopt_stray(&mut self, event: EventId) {
        self.streams.adopt_stray(event);
    }

    /// The stream on which a live block was allocated.
    pub(super) fn stream_of(&self, id: BlockId) -> Result<StreamId, FreeError> {
        Ok(self.streams.stream_of(self.live(id)?.owner))
    }

    /// Waits for every stream and opens all freed memory.
    pub(super) fn synchronize(&mut self, backend: &dyn Backend) -> Result<(), BackendError> {
        self.streams.synchronize(backend)?;
        let (_, failed) = self.streams.drain(backend, &mut self.pool, true);
        failed.map_or(Ok(()), Err)
    }

    pub(super) fn hash_into(&self, hash: &mut StateHash) {
        hash.word(self.budget_bytes);
        hash.word(self.stats.used_bytes);
        self.pool.hash_into(hash);
    }

    /// The figures at this moment.
    pub(super) fn snapshot(&self) -> PoolStats {
        PoolStats {
            largest_free_bytes: self.largest_free_bytes(),
            counters: self.pool.counters(),
            ..self.stats
        }
    }
}

#[cold]
fn lost(detail: &str) -> RefusalReason {
    let detail = detail.to_owned();
    RefusalReason::DeviceLost { detail }
}

fn units_of(bytes: u64) -> u32 {
    u32::try_from(bytes / UNIT_BYTES).unwrap_or(MAX_UNITS)
}
