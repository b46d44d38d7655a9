//! An allocator over fresh devices, with everything it does checked against the model.

mod judged;

use std::sync::Arc;

use ds4_engine::alloc::placement::OrphanPolicy;
use ds4_engine::alloc::{
    AllocError, Allocation, Allocator, AllocatorConfig, CopyPath, CopyReport, DeviceBudget,
    FreeError, Handle, Refusal, Request,
};
use ds4_engine::backend::{Backend, EventId};
use ds4_engine::bytes::MIB;
use ds4_engine::device::{DeviceId, DeviceMask, StreamId};
use ds4_sim::{Call, CallCounts, Instruments, LedgerBlock, SimBackend};

use super::model::{Asked, DeviceModel, by_pressure, candidates};
use super::trial::{Failure, Held, Tally, hold};
use crate::target::Target;

/// Budgets of the worlds' devices in MiB, uneven on purpose; a device takes entry `id % 8`.
const BUDGETS_MIB: [u64; 8] = [48, 32, 64, 24, 80, 40, 56, 16];
/// So often a wait is tried again while faults are at work.
const MOST_ATTEMPTS: u32 = 64;

/// The budget of a device in a world that is not shrunk, in bytes.
pub(super) fn usual_budget(device: DeviceId) -> u64 {
    let budget = BUDGETS_MIB.get(device.index() % BUDGETS_MIB.len());
    budget.map_or(0, |mib| mib * MIB)
}

/// How a world is set up.
#[derive(Clone, Debug, Default)]
pub(super) struct Setup {
    /// The devices that are never used.
    pub(super) excluded: DeviceMask,
    /// Whether orphaned hints are refused.
    pub(super) strict: bool,
    /// Budgets are this much smaller than usual, as a power of two.
    pub(super) shrink: u32,
}

/// A live block of a world.
#[derive(Clone, Copy, Debug)]
pub(super) struct Owned {
    pub(super) allocation: Allocation,
    pub(super) stream: StreamId,
    key: u64,
}

/// An allocator with its devices and its model.
#[derive(Debug)]
pub(super) struct World {
    pub(super) target: Target,
    pub(super) instruments: Arc<dyn Instruments>,
    pub(super) allocator: Allocator,
    pub(super) live: Vec<Owned>,
    pub(super) tally: Tally,
    /// A fault plan is at work: the backend may refuse what it could do.
    pub(super) faulty: bool,
    pub(super) lost: DeviceMask,
    models: Vec<DeviceModel>,
    setup: Setup,
    next_key: u64,
    /// Streams on which a failed copy may still be under way.
    unsettled: Vec<(DeviceId, StreamId)>,
}

impl World {
    pub(super) fn open(target: Target, setup: Setup) -> Result<Self, Failure> {
        let instruments = instruments(&target)?;
        let allocator = Self::allocator(target.backend(), &setup).map_err(Failure::error)?;
        let infos = target.backend().devices();
        let models = (0..infos.len())
            .filter_map(DeviceId::new)
            .zip(infos)
            .map(|(id, info)| {
                let budget = allocator.stats(id).map_or(0, |stats| stats.budget_bytes);
                DeviceModel::new(budget, info.page_bytes)
            })
            .collect();
        Ok(Self {
            target,
            instruments,
            allocator,
            live: Vec::new(),
            tally: Tally {
                worlds: 1,
                ..Tally::default()
            },
            faulty: false,
            lost: DeviceMask::EMPTY,
            models,
            setup,
            next_key: 1,
            unsettled: Vec::new(),
        })
    }

    /// The allocator of a world on a backend.
    pub(super) fn allocator(
        backend: &Arc<dyn Backend>,
        setup: &Setup,
    ) -> Result<Allocator, ds4_engine::alloc::InitError> {
        let budgets = DeviceMask::first(backend.devices().len())
            .iter()
            .map(|id| DeviceBudget {
                configured_bytes: Some(usual_budget(id) >> setup.shrink),
                reserve_bytes: 0,
            })
            .collect();
        let config = AllocatorConfig {
            budgets,
            excluded: setup.excluded,
            orphans: if setup.strict {
                OrphanPolicy::Refuse
            } else {
                OrphanPolicy::LeastLoaded
            },
            free_by_address: true,
            observer: None,
        };
        Allocator::new(backend.clone(), config)
    }

    /// The simulator of a check that needs one.
    pub(super) fn simulated(&self) -> Result<Arc<SimBackend>, Failure> {
        let sim = self.target.sim().cloned();
        sim.ok_or_else(|| Failure::Skip("only a simulated machine can do this".to_owned()))
    }

    pub(super) fn device_count(&self) -> usize {
        self.models.len()
    }

    pub(super) fn budget(&self, device: DeviceId) -> u64 {
        self.models
            .get(device.index())
            .map_or(0, |model| model.budget_bytes)
    }

    pub(super) fn used(&self, device: DeviceId) -> u64 {
        self.models
            .get(device.index())
            .map_or(0, |model| model.used_bytes)
    }

    /// The devices that may take a hint's requests.
    pub(super) fn candidates(&self, hint: DeviceMask) -> Option<DeviceMask> {
        candidates(
            hint,
            self.models.len(),
            self.setup.excluded,
            self.setup.strict,
        )
    }

    /// The candidates of a hint in the order in which they must be tried.
    pub(super) fn order(&self, hint: DeviceMask) -> Vec<DeviceId> {
        self.candidates(hint)
            .map_or_else(Vec::new, |mask| by_pressure(mask, &self.models))
    }

    /// Whether a device could take a request, by the model.
    pub(super) fn could_hold(&self, device: DeviceId, request: &Request, driver_free: u64) -> bool {
        let asked = Asked {
            bytes: request.bytes,
            align_bytes: request.align_bytes,
        };
        let reserved = self
            .allocator
            .stats(device)
            .map_or(0, |stats| stats.reserved_bytes);
        self.models.get(device.index()).is_some_and(|model| {
            model.could_hold(asked, driver_free, reserved, || {
                self.allocator.blocks(device)
            })
        })
    }

    fn driver_free(&self, device: DeviceId) -> u64 {
        self.target
            .backend()
            .memory_info(device)
            .map_or(0, |info| info.free_bytes)
    }

    /// Makes a request and checks what comes of it.
    pub(super) fn request(&mut self, request: &Request) -> Result<Result<Owned, Refusal>, Failure> {
        let hash = self.allocator.state_hash();
        let order = self.order(request.mask);
        let calls = self.instruments.calls();
        let got = self.allocator.allocate(request);
        self.note_calls(&calls);
        match got {
            Ok(allocation) => self.accept(request, allocation, &order).map(Ok),
            Err(AllocError::Refused(refusal)) => {
                self.check_refusal(request, &refusal, &order, hash)?;
                Ok(Err(refusal))
            }
            Err(error) => Err(Failure::Broken(format!(
                "{request:?} was called wrong: {error}"
            ))),
        }
    }

    /// A request that must be granted.
    pub(super) fn grant(&mut self, request: &Request) -> Result<Owned, Failure> {
        self.request(request)?
            .map_err(|refusal| Failure::Broken(format!("must be granted: {refusal}")))
    }

    /// A request that must be refused.
    pub(super) fn refuse(&mut self, request: &Request) -> Result<Refusal, Failure> {
        match self.request(request)? {
            Ok(owned) => Err(Failure::Broken(format!(
                "{} bytes on mask {} must be refused, but landed on {}",
                request.bytes, request.mask, owned.allocation.device
            ))),
            Err(refusal) => Ok(refusal),
        }
    }

    fn note_calls(&mut self, before: &CallCounts) {
        let now = self.instruments.calls();
        let made = |call| now.of(call) > before.of(call);
        for (call, situation) in [
            (Call::Unmap, "pages moved to where they were needed"),
            (Call::WaitEvent, "waited for another stream's event"),
            (Call::Allocate, "slab taken from the driver"),
            (Call::Free, "empty slab given back under pressure"),
        ] {
            if made(call) {
                self.tally.met(situation);
            }
        }
    }

    /// Books a granted request that was made with candidates in this order.
    pub(super) fn accept(
        &mut self,
        request: &Request,
        allocation: Allocation,
        order: &[DeviceId],
    ) -> Result<Owned, Failure> {
        let device = allocation.device;
        let Some(rank) = order.iter().position(|id| *id == device) else {
            return Err(Failure::Broken(format!(
                "{request:?} landed on {device}, outside its candidates {order:?}"
            )));
        };
        for passed in order.iter().take(rank) {
            if self.lost.contains(*passed) {
                self.tally
                    .met("device lost, another candidate took the request");
                continue;
            }
            let known = request.stream == StreamId::DEFAULT && !self.faulty;
            let fits = known && self.could_hold(*passed, request, self.driver_free(*passed));
            hold!(
                !fits,
                "{request:?} went to {device} although {passed} is under less pressure and fits"
            );
            self.tally.met("next candidate taken after one had no room");
        }
        self.check_shape(request, &allocation)?;
        let model = self.models.get_mut(device.index());
        let added = model.map_or(Ok(()), |model| {
            model.add(allocation.offset_bytes, allocation.reserved_bytes)
        });
        added.map_err(|wrong| Failure::Broken(format!("{device}: {wrong}")))?;
        self.tally.allocations += 1;
        if allocation.orphaned {
            self.tally.met("orphaned hint");
        }
        let owned = Owned {
            allocation,
            stream: request.stream,
            key: self.next_key,
        };
        self.next_key += 1;
        self.tell_ledger(&owned, order);
        self.first_use(&owned)?;
        self.live.push(owned);
        Ok(owned)
    }

    fn tell_ledger(&self, owned: &Owned, order: &[DeviceId]) {
        let block = LedgerBlock {
            device: owned.allocation.device,
            address: owned.allocation.address,
            bytes: owned.allocation.reserved_bytes,
            handle: owned.key,
        };
        self.instruments
            .ledger()
            .on_allocation(block, order.iter().copied().collect());
    }

    /// Frees the live block at `index`; says whether it was taken back.
    pub(super) fn free(&mut self, index: usize) -> Result<bool, Failure> {
        if index >= self.live.len() {
            return Ok(false);
        }
        let owned = self.live.remove(index);
        let Allocation {
            handle,
            device,
            address,
            offset_bytes,
            ..
        } = owned.allocation;
        self.instruments
            .ledger()
            .on_free(device, address, owned.key);
        let merges = |world: &Self| {
            world
                .allocator
                .stats(device)
                .map_or(0, |s| s.counters.merges)
        };
        let before = merges(self);
        match self.allocator.free(handle) {
            Ok(()) => {
                if merges(self) - before == 2 {
                    self.tally.met("freed block merged with both neighbours");
                }
                if let Some(model) = self.models.get_mut(device.index()) {
                    model.remove(offset_bytes);
                }
                self.tally.frees += 1;
                Ok(true)
            }
            Err(FreeError::Backend(_)) if self.faulty => {
                self.tell_ledger(&owned, &[device]);
                self.live.insert(index, owned);
                Ok(false)
            }
            Err(error) => Err(Failure::Broken(format!(
                "a live block cannot be freed: {error}"
            ))),
        }
    }

    /// Frees a block by what its allocation returned.
    pub(super) fn give_back(&mut self, owned: &Owned) -> Held {
        match self.live.iter().position(|live| live.key == owned.key) {
            Some(index) => self.free(index).map(|_| ()),
            None => Err(Failure::error(
                "the check frees a block that it does not own",
            )),
        }
    }

    /// A call that must be rejected and change nothing.
    pub(super) fn reject<E: std::fmt::Debug + PartialEq, T: std::fmt::Debug>(
        &mut self,
        what: &str,
        expected: &E,
        call: impl FnOnce(&Allocator) -> Result<T, E>,
    ) -> Held {
        let hash = self.allocator.state_hash();
        let got = call(&self.allocator);
        let right = got.as_ref().is_err_and(|error| error == expected);
        hold!(right, "{what}: expected {expected:?}, got {got:?}");
        let now = self.allocator.state_hash();
        hold!(now == hash, "{what} changed the state");
        self.tally.rejected += 1;
        Ok(())
    }

    /// Copies between two live blocks.
    pub(super) fn copy(
        &mut self,
        from: Handle,
        to: Handle,
        bytes: u64,
    ) -> Result<Option<CopyReport>, Failure> {
        match self.allocator.copy((from, 0), (to, 0), bytes) {
            Ok(report) => {
                self.tally.copies += 1;
                self.tally.met(match report.path {
                    CopyPath::SameDevice => "copy within a device",
                    CopyPath::Peer => "copy over a peer path",
                    CopyPath::HostBounce => "copy through the host",
                });
                Ok(Some(report))
            }
            Err(_) if self.faulty => {
                for handle in [from, to] {
                    let streams = self
                        .live
                        .iter()
                        .filter(|owned| owned.allocation.handle == handle);
                    self.unsettled
                        .extend(streams.map(|owned| (handle.device(), owned.stream)));
                }
                self.settle();
                Ok(None)
            }
            Err(error) => Err(Failure::Broken(format!(
                "a copy of {bytes} bytes failed: {error}"
            ))),
        }
    }

    /// Waits for a stream that nothing else orders, as soon as faults allow it.
    pub(super) fn wait_later(&mut self, device: DeviceId, stream: StreamId) {
        self.unsettled.push((device, stream));
        self.settle();
    }

    /// Removes an event of the check's own.
    pub(super) fn remove_event(&self, device: DeviceId, event: EventId) {
        let backend = self.target.backend();
        // A device that is lost keeps it; nobody looks there any more.
        let _removed = (0..MOST_ATTEMPTS).any(|_| backend.destroy_event(device, event).is_ok());
    }

    /// Waits for failed copies, as the caller of a copy has to; faults may need several attempts.
    pub(super) fn settle(&mut self) {
        let backend = self.target.backend().clone();
        self.unsettled.retain(|(device, stream)| {
            (0..MOST_ATTEMPTS).all(|_| backend.synchronize(*device, *stream).is_err())
        });
    }

    /// Gives unused memory back to the driver.
    pub(super) fn trim(&mut self) -> Held {
        match self.allocator.trim() {
            Ok(bytes) => {
                if bytes > 0 {
                    self.tally.met("trim gave memory back");
                }
                Ok(())
            }
            Err(_) if self.faulty || !self.lost.is_empty() => Ok(()),
            Err(error) => Err(Failure::Broken(format!("trim failed: {error}"))),
        }
    }

    /// Checks the books and what the ledger saw.
    pub(super) fn check(&self) -> Held {
        self.allocator.check().map_err(Failure::Broken)?;
        for id in DeviceMask::first(self.device_count()).iter() {
            let used = self.allocator.stats(id).map_or(0, |stats| stats.used_bytes);
            hold!(
                used == self.used(id),
                "{id} says {used} bytes used, {} are",
                self.used(id)
            );
        }
        self.check_ledger()
    }

    fn check_ledger(&self) -> Held {
        let findings = self.instruments.ledger().findings();
        match findings.first() {
            Some(finding) => Err(Failure::Broken(format!("the ledger found: {finding}"))),
            None => Ok(()),
        }
    }

    /// Frees all blocks, closes the allocator, removes the streams that were made and makes sure
    /// that nothing is left behind.
    pub(super) fn close(mut self) -> Result<Tally, Failure> {
        self.check()?;
        self.tally.hash.word(self.allocator.state_hash());
        while !self.live.is_empty() {
            let freed = self.free(self.live.len() - 1)?;
            hold!(freed, "a block cannot be freed at the end");
        }
        self.check()?;
        let Self {
            target,
            instruments,
            allocator,
            tally,
            lost,
            ..
        } = self;
        let closed = allocator.close();
        match closed {
            Ok(live) => hold!(live == 0, "{live} blocks live after all were freed"),
            Err(error) => hold!(!lost.is_empty(), "closing failed: {error}"),
        }
        instruments.ledger().check_shutdown();
        let findings = instruments.ledger().findings();
        hold!(
            findings.is_empty(),
            "the ledger found at the end: {}",
            findings.first().map_or(String::new(), ToString::to_string)
        );
        let count = target.backend().devices().len();
        for id in DeviceMask::first(count).without(lost).iter() {
            for stream in instruments.streams(id) {
                let removed = target.backend().destroy_stream(id, stream);
                removed.map_err(|error| {
                    Failure::Broken(format!("a stream cannot be removed at the end: {error}"))
                })?;
            }
            let (streams, events) = instruments.streams_and_events(id);
            hold!(
                streams == 1 && events == 0,
                "{streams} streams and {events} events are left on {id}"
            );
        }
        Ok(tally)
    }
}

/// The instruments of a machine that was opened for a check.
pub(super) fn instruments(target: &Target) -> Result<Arc<dyn Instruments>, Failure> {
    let instruments = target.instruments().cloned();
    instruments.ok_or_else(|| Failure::error("the machine was opened without instruments"))
}
