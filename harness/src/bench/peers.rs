//! What is measured: one small trait, and the allocators behind it that this crate can link.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use ds4_engine::alloc::pool::{BlockId, Pool, Want};
use ds4_engine::alloc::{Allocator, AllocatorConfig, DeviceBudget, Handle, Request};
use ds4_engine::backend::Backend;
use ds4_engine::device::{DeviceAddress, DeviceMask};
use ds4_sim::{SimBackend, SimConfig};

use super::workload::{GRAIN_BYTES, Op};

/// An allocator of offsets, as far as a measurement needs it.
pub trait Peer {
    /// What names a block.
    type Id;

    /// A block of `bytes`, or `None` for a refusal.
    fn allocate(&mut self, bytes: u64) -> Option<Self::Id>;

    /// Gives a block back.
    fn free(&mut self, id: Self::Id);
}

/// Runs operations; a peer with its slots, the type of its ids forgotten.
pub trait Runner {
    /// Runs `ops` in order; returns how many requests were refused.
    fn run(&mut self, ops: &[Op]) -> u64;

    /// Frees all that is live.
    fn drain(&mut self);
}

pub(super) struct Slots<P: Peer> {
    peer: P,
    slots: Vec<Option<P::Id>>,
}

impl<P: Peer> Slots<P> {
    pub(super) fn new(peer: P, slots: usize) -> Self {
        let slots = std::iter::repeat_with(|| None).take(slots).collect();
        Self { peer, slots }
    }
}

impl<P: Peer> Runner for Slots<P> {
    fn run(&mut self, ops: &[Op]) -> u64 {
        let mut refused = 0;
        for op in ops {
            match *op {
                Op::Allocate { slot, bytes } => {
                    let id = self.peer.allocate(bytes);
                    refused += u64::from(id.is_none());
                    self.slots[slot as usize] = id;
                }
                Op::Free { slot } => {
                    if let Some(id) = self.slots[slot as usize].take() {
                        self.peer.free(id);
                    }
                }
            }
        }
        refused
    }

    fn drain(&mut self) {
        for slot in &mut self.slots {
            if let Some(id) = slot.take() {
                self.peer.free(id);
            }
        }
    }
}

/// A runner of `peer` for workloads of `slots` slots.
pub fn runner<P: Peer + 'static>(peer: P, slots: usize) -> Box<dyn Runner> {
    Box::new(Slots::new(peer, slots))
}

/// Opens a runner with (capacity in bytes, slots).
type Open = Box<dyn Fn(u64, usize) -> Result<Box<dyn Runner>, String> + Send + Sync>;

/// An allocator that can be opened at any capacity.
pub struct Contender {
    /// The name under which results are listed.
    pub name: String,
    open: Open,
}

impl fmt::Debug for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Contender")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Contender {
    /// One that may fail to open.
    pub fn new(
        name: impl Into<String>,
        open: impl Fn(u64, usize) -> Result<Box<dyn Runner>, String> + Send + Sync + 'static,
    ) -> Self {
        let (name, open) = (name.into(), Box::new(open));
        Self { name, open }
    }

    /// Opens it with `capacity_bytes` for a workload of `slots` slots.
    ///
    /// # Errors
    /// A sentence that says why it cannot be opened.
    pub fn open(&self, capacity_bytes: u64, slots: usize) -> Result<Box<dyn Runner>, String> {
        (self.open)(capacity_bytes, slots).map_err(|why| format!("{}: {why}", self.name))
    }
}

/// The engine's own, from the bare bookkeeping to the whole.
#[must_use]
pub fn subjects() -> Vec<Contender> {
    let mask = DeviceMask(1);
    vec![
        Contender::new("pool", |bytes, slots| {
            Ok(runner(PoolPeer::new(bytes)?, slots))
        }),
        Contender::new("allocator", move |bytes, slots| {
            let allocator = open_allocator(1, bytes, false)?;
            Ok(runner(ByHandle { allocator, mask }, slots))
        }),
        Contender::new("allocator-address", move |bytes, slots| {
            let allocator = open_allocator(1, bytes, true)?;
            Ok(runner(ByAddress { allocator, mask }, slots))
        }),
    ]
}

/// The allocators of others that the `ds4` command links: small, pure Rust, no build script.
#[must_use]
pub fn peers() -> Vec<Contender> {
    vec![
        Contender::new("offset-allocator", |bytes, slots| {
            Ok(runner(OffsetPeer::new(bytes, slots)?, slots))
        }),
        Contender::new("best-fit", |bytes, slots| {
            Ok(runner(BestFit::new(bytes), slots))
        }),
        Contender::new("range-alloc", |bytes, slots| {
            Ok(runner(RangePeer::new(bytes), slots))
        }),
    ]
}

/// An allocator over `devices` simulated devices with a budget of `budget_bytes` each.
///
/// # Errors
/// The sentence of whoever refused.
pub fn open_allocator(
    devices: usize,
    budget_bytes: u64,
    by_address: bool,
) -> Result<Arc<Allocator>, String> {
    allocator_on(open_sim(devices, budget_bytes)?, budget_bytes, by_address)
}

/// The machine under [`open_allocator`].
pub(super) fn open_sim(devices: usize, budget_bytes: u64) -> Result<Arc<SimBackend>, String> {
    const PAGE_BYTES: u64 = 2 << 20;
    // Budgets are whole pages: round up, so that no bytes of the asked capacity are lost.
    let capacity_bytes = budget_bytes.next_multiple_of(PAGE_BYTES) + PAGE_BYTES;
    let backend = SimBackend::new(SimConfig::uniform(devices, capacity_bytes));
    backend.map(Arc::new).map_err(|error| error.to_string())
}

pub(super) fn allocator_on(
    backend: Arc<dyn Backend>,
    budget_bytes: u64,
    by_address: bool,
) -> Result<Arc<Allocator>, String> {
    let budget = DeviceBudget {
        configured_bytes: Some(budget_bytes),
        reserve_bytes: 0,
    };
    let config = AllocatorConfig {
        budgets: vec![budget; backend.devices().len()],
        free_by_address: by_address,
        ..AllocatorConfig::default()
    };
    Allocator::new(backend, config)
        .map(Arc::new)
        .map_err(|error| error.to_string())
}

fn grains(bytes: u64) -> Option<u32> {
    u32::try_from(bytes.div_ceil(GRAIN_BYTES)).ok()
}

fn all_grains(bytes: u64) -> Result<u32, String> {
    u32::try_from(bytes / GRAIN_BYTES).map_err(|_| format!("{bytes} bytes are too many"))
}

/// The bookkeeping alone, by handle.
#[derive(Debug)]
pub struct PoolPeer(pub Pool);

impl PoolPeer {
    /// One region of `capacity_bytes`.
    ///
    /// # Errors
    /// More bytes than a pool spans.
    pub fn new(capacity_bytes: u64) -> Result<Self, String> {
        let mut pool = Pool::new(None);
        pool.extend(all_grains(capacity_bytes)?, false)
            .ok_or_else(|| format!("a pool does not span {capacity_bytes} bytes"))?;
        Ok(Self(pool))
    }
}

impl Peer for PoolPeer {
    type Id = BlockId;

    #[inline]
    fn allocate(&mut self, bytes: u64) -> Option<BlockId> {
        self.0
            .allocate(Want::units(grains(bytes)?))
            .map(|(id, _)| id)
    }

    #[inline]
    fn free(&mut self, id: BlockId) {
        let freed = self.0.free(id);
        debug_assert!(freed.is_ok(), "the slots hold live blocks only");
    }
}

/// The whole allocator: mask, budget, lock, figures.
#[derive(Debug)]
pub struct ByHandle {
    /// The allocator.
    pub allocator: Arc<Allocator>,
    /// The hint of every request.
    pub mask: DeviceMask,
}

impl Peer for ByHandle {
    type Id = Handle;

    #[inline]
    fn allocate(&mut self, bytes: u64) -> Option<Handle> {
        let request = Request {
            mask: self.mask,
            ..Request::new(bytes)
        };
        self.allocator
            .allocate(&request)
            .ok()
            .map(|allocation| allocation.handle)
    }

    #[inline]
    fn free(&mut self, id: Handle) {
        let freed = self.allocator.free(id);
        debug_assert!(freed.is_ok(), "the slots hold live blocks only");
    }
}

/// The whole allocator for a caller who keeps addresses, as the C interface does.
#[derive(Debug)]
pub struct ByAddress {
    /// The allocator, with its table of addresses.
    pub allocator: Arc<Allocator>,
    /// The hint of every request.
    pub mask: DeviceMask,
}

impl Peer for ByAddress {
    type Id = DeviceAddress;

    #[inline]
    fn allocate(&mut self, bytes: u64) -> Option<DeviceAddress> {
        let request = Request {
            mask: self.mask,
            ..Request::new(bytes)
        };
        self.allocator
            .allocate(&request)
            .ok()
            .map(|allocation| allocation.address)
    }

    #[inline]
    fn free(&mut self, id: DeviceAddress) {
        let freed = self.allocator.free_address(id);
        debug_assert!(freed.is_ok(), "the slots hold live blocks only");
    }
}

/// Best fit over ordered sets: the least memory, at the price of a tree.
#[derive(Debug)]
struct BestFit {
    by_offset: BTreeMap<u64, u64>,
    by_size: BTreeSet<(u64, u64)>,
}

impl BestFit {
    fn new(capacity_bytes: u64) -> Self {
        let grains = capacity_bytes / GRAIN_BYTES;
        Self {
            by_offset: BTreeMap::from([(0, grains)]),
            by_size: BTreeSet::from([(grains, 0)]),
        }
    }

    fn insert(&mut self, offset: u64, size: u64) {
        self.by_offset.insert(offset, size);
        self.by_size.insert((size, offset));
    }

    fn remove(&mut self, offset: u64, size: u64) {
        self.by_offset.remove(&offset);
        self.by_size.remove(&(size, offset));
    }
}

impl Peer for BestFit {
    type Id = (u64, u64);

    fn allocate(&mut self, bytes: u64) -> Option<(u64, u64)> {
        let want = bytes.div_ceil(GRAIN_BYTES);
        let (size, offset) = *self.by_size.range((want, 0)..).next()?;
        self.remove(offset, size);
        if size > want {
            self.insert(offset + want, size - want);
        }
        Some((offset, want))
    }

    fn free(&mut self, (mut offset, mut size): (u64, u64)) {
        let before = self
            .by_offset
            .range(..offset)
            .next_back()
            .map(|(at, len)| (*at, *len));
        if let Some((at, len)) = before.filter(|(at, len)| at + len == offset) {
            self.remove(at, len);
            (offset, size) = (at, len + size);
        }
        if let Some(len) = self.by_offset.get(&(offset + size)).copied() {
            self.remove(offset + size, len);
            size += len;
        }
        self.insert(offset, size);
    }
}

/// The Rust port of Sebastian Aaltonen's `OffsetAllocator`.
struct OffsetPeer(offset_allocator::Allocator);

impl OffsetPeer {
    fn new(capacity_bytes: u64, slots: usize) -> Result<Self, String> {
        let units = all_grains(capacity_bytes)?;
        // Every live block may have a free neighbour, and its nodes are not grown.
        let nodes = u32::try_from(2 * slots + 16).map_err(|_| "too many blocks".to_owned())?;
        Ok(Self(offset_allocator::Allocator::with_max_allocs(
            units, nodes,
        )))
    }
}

impl Peer for OffsetPeer {
    type Id = offset_allocator::Allocation;

    #[inline]
    fn allocate(&mut self, bytes: u64) -> Option<offset_allocator::Allocation> {
        self.0.allocate(grains(bytes)?)
    }

    #[inline]
    fn free(&mut self, id: offset_allocator::Allocation) {
        self.0.free(id);
    }
}

/// The first-fit range list of gfx-rs and wgpu.
#[derive(Debug)]
struct RangePeer(range_alloc::RangeAllocator<u64>);

impl RangePeer {
    fn new(capacity_bytes: u64) -> Self {
        Self(range_alloc::RangeAllocator::new(
            0..capacity_bytes / GRAIN_BYTES,
        ))
    }
}

impl Peer for RangePeer {
    type Id = std::ops::Range<u64>;

    fn allocate(&mut self, bytes: u64) -> Option<std::ops::Range<u64>> {
        self.0.allocate_range(bytes.div_ceil(GRAIN_BYTES)).ok()
    }

    fn free(&mut self, id: std::ops::Range<u64>) {
        self.0.free_range(id);
    }
}
