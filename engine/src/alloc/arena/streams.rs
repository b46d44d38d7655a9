//! Which free memory each stream may take: stream order without a host wait per free.
//!
//! While one stream alone uses a device, its frees go to the open space and nothing is recorded.
//! When a second stream appears, each stream frees into a space of its own, from which it takes
//! again at once; other streams get that memory after an event, recorded when it is first wanted,
//! has completed. A block that was also used on further streams waits for an event on each.

use std::collections::BTreeMap;

use crate::backend::{Backend, BackendError, EventId};
use crate::device::{DeviceId, StreamId};

use super::super::pool::{OPEN, Pool};

/// The spaces of one stream.
#[derive(Debug)]
struct Slot {
    stream: StreamId,
    /// Where the stream frees to.
    fresh: u32,
    /// What it freed before `event`.
    sealed: u32,
    event: Option<EventId>,
}

/// A block that was given back while further streams used it.
#[derive(Debug)]
struct Deferred {
    node: u32,
    slot: u32,
    events: Vec<EventId>,
}

/// The streams of one device.
#[derive(Debug)]
pub(super) struct Streams {
    device: DeviceId,
    /// The streams that the device has, and the slots of those that took memory.
    known: BTreeMap<StreamId, Option<u32>>,
    slots: Vec<Slot>,
    /// More than one stream has taken memory.
    shared: bool,
    deferred: Vec<Deferred>,
    /// By node: the further streams that use a live block.
    uses: BTreeMap<u32, Vec<StreamId>>,
    /// Events that nothing waits for and that could not be removed yet.
    strays: Vec<EventId>,
}

impl Streams {
    pub(super) fn new(device: DeviceId) -> Self {
        Self {
            device,
            known: BTreeMap::from([(StreamId::DEFAULT, None)]),
            slots: Vec::new(),
            shared: false,
            deferred: Vec::new(),
            uses: BTreeMap::new(),
            strays: Vec::new(),
        }
    }

    pub(super) fn register(&mut self, stream: StreamId) {
        self.known.entry(stream).or_default();
    }

    #[inline]
    pub(super) fn knows(&self, stream: StreamId) -> bool {
        stream == StreamId::DEFAULT || self.known.contains_key(&stream)
    }

    /// The slot of a stream that takes memory, made when it is new; `None` for a stream that the
    /// device does not have, and when numbers run out.
    #[inline]
    pub(super) fn slot(&mut self, pool: &mut Pool, stream: StreamId) -> Option<u32> {
        if let Some(first) = self.slots.first()
            && first.stream == stream
        {
            return Some(0);
        }
        self.other_slot(pool, stream)
    }

    fn other_slot(&mut self, pool: &mut Pool, stream: StreamId) -> Option<u32> {
        if let Some(slot) = *self.known.get(&stream)? {
            return Some(slot);
        }
        let number = u32::try_from(self.slots.len()).ok()?;
        let alone = self.slots.is_empty();
        let (fresh, sealed) = if alone {
            (OPEN, OPEN)
        } else {
            (pool.add_space()?, pool.add_space()?)
        };
        if !alone && !self.shared {
            let (first_fresh, first_sealed) = (pool.add_space()?, pool.add_space()?);
            pool.move_touched(first_fresh);
            if let Some(first) = self.slots.first_mut() {
                (first.fresh, first.sealed) = (first_fresh, first_sealed);
            }
            self.shared = true;
        }
        self.slots.push(Slot {
            stream,
            fresh,
            sealed,
            event: None,
        });
        self.known.insert(stream, Some(number));
        Some(number)
    }

    /// The spaces from which a slot's stream takes, besides the open one.
    #[inline]
    pub(super) fn own_spaces(&self, slot: u32) -> Option<[u32; 2]> {
        if !self.shared {
            return None;
        }
        self.slots
            .get(slot as usize)
            .map(|slot| [slot.fresh, slot.sealed])
    }

    /// The space into which a slot's stream frees.
    #[inline]
    pub(super) fn free_space(&self, slot: u32) -> u32 {
        if !self.shared {
            return OPEN;
        }
        self.slots
            .get(slot as usize)
            .map_or(OPEN, |slot| slot.fresh)
    }

    /// Notes that a live block is used on another stream as well.
    pub(super) fn record_use(&mut self, node: u32, slot: u32, stream: StreamId) {
        if self
            .slots
            .get(slot as usize)
            .is_some_and(|own| own.stream == stream)
        {
            return;
        }
        let uses = self.uses.entry(node).or_default();
        if !uses.contains(&stream) {
            uses.push(stream);
        }
    }

    /// The stream of a slot.
    pub(super) fn stream_of(&self, slot: u32) -> StreamId {
        self.slots
            .get(slot as usize)
            .map_or(StreamId::DEFAULT, |slot| slot.stream)
    }

    /// Gives a live block back: at once, or after the further streams that use it.
    #[inline]
    pub(super) fn release(
        &mut self,
        backend: &dyn Backend,
        pool: &mut Pool,
        node: u32,
        slot: u32,
    ) -> Result<(), BackendError> {
        if !self.uses.is_empty()
            && let Some(streams) = self.uses.get(&node)
        {
            let events = record_all(backend, self.device, streams, &mut self.strays)?;
            self.uses.remove(&node);
            pool.defer(node);
            self.deferred.push(Deferred { node, slot, events });
            return Ok(());
        }
        pool.release(node, self.free_space(slot));
        Ok(())
    }

    /// Whether memory could be held back from some stream; cheap, and sometimes wrongly yes.
    #[inline]
    pub(super) fn may_hold_back(&self) -> bool {
        self.shared || !self.deferred.is_empty()
    }

    /// Whether memory is held back from some stream.
    #[inline]
    pub(super) fn holds_back(&self, pool: &Pool) -> bool {
        !self.deferred.is_empty()
            || self.shared
                && self.slots.iter().any(|slot| {
                    !pool.space_is_empty(slot.fresh) || !pool.space_is_empty(slot.sealed)
                })
    }

    /// Waits for work that may still touch the open space: that of a stream that is alone.
    pub(super) fn settle(&self, backend: &dyn Backend) -> Result<(), BackendError> {
        match self.slots.first() {
            Some(alone) if !self.shared => backend.synchronize(self.device, alone.stream),
            _ => Ok(()),
        }
    }

    /// Waits for all work of all streams; the first error says that a stream may still be busy.
    pub(super) fn synchronize(&self, backend: &dyn Backend) -> Result<(), BackendError> {
        let mut result = Ok(());
        for stream in self.known.keys() {
            result = result.and(backend.synchronize(self.device, *stream));
        }
        result
    }

    /// Takes over an event that nothing waits for and that could not be removed.
    pub(super) fn adopt_stray(&mut self, event: EventId) {
        self.strays.push(event);
    }

    /// Waits for all work and removes every event.
    pub(super) fn close(&mut self, backend: &dyn Backend) -> Result<(), BackendError> {
        let mut result = self.synchronize(backend);
        let sealed = self.slots.iter_mut().filter_map(|slot| slot.event.take());
        let deferred = self.deferred.drain(..).flat_map(|deferred| deferred.events);
        for event in sealed.chain(deferred).chain(self.strays.drain(..)) {
            result = result.and(backend.destroy_event(self.device, event));
        }
        result
    }

    /// Opens a block at once, whatever streams use it: of a device that is lost.
    pub(super) fn release_lost(&mut self, pool: &mut Pool, node: u32) {
        self.uses.remove(&node);
        pool.release(node, OPEN);
    }

    /// Opens all memory whose events have completed; with `wait`, waits for every event first.
    ///
    /// Returns whether anything was opened, and the first error that kept some of it closed.
    pub(super) fn drain(
        &mut self,
        backend: &dyn Backend,
        pool: &mut Pool,
        wait: bool,
    ) -> (bool, Option<BackendError>) {
        self.strays
            .retain(|event| backend.destroy_event(self.device, *event).is_err());
        let (mut opened, mut failed) = self.drain_deferred(backend, pool, wait);
        if self.shared {
            for slot in &mut self.slots {
                match slot.drain(self.device, backend, pool, wait) {
                    Ok(some) => opened |= some,
                    Err(error) => failed = failed.or(Some(error)),
                }
            }
        }
        (opened, failed)
    }

    fn drain_deferred(
        &mut self,
        backend: &dyn Backend,
        pool: &mut Pool,
        wait: bool,
    ) -> (bool, Option<BackendError>) {
        let (mut opened, mut failed) = (false, None);
        let mut at = 0;
        while let Some(deferred) = self.deferred.get_mut(at) {
            match deferred.settle(self.device, backend, wait) {
                Ok(true) => {
                    let done = self.deferred.remove(at);
                    pool.release(done.node, self.free_space(done.slot));
                    opened = true;
                }
                Ok(false) => at += 1,
                Err(error) => {
                    failed = failed.or(Some(error));
                    at += 1;
                }
            }
        }
        (opened, failed)
    }
}

impl Slot {
    /// Opens what the stream freed, as far as its work is done; returns whether there was any.
    fn drain(
        &mut self,
        device: DeviceId,
        backend: &dyn Backend,
        pool: &mut Pool,
        wait: bool,
    ) -> Result<bool, BackendError> {
        let mut opened = false;
        // A sealed space may hide a fresh one behind it, hence up to two rounds.
        for _ in 0..2 {
            if self.event.is_none() && !pool.space_is_empty(self.fresh) {
                self.event = Some(backend.record_event(device, self.stream)?);
                std::mem::swap(&mut self.fresh, &mut self.sealed);
            }
            let Some(event) = self.event else { break };
            if !settled(backend, device, event, wait)? {
                break;
            }
            backend.destroy_event(device, event)?;
            self.event = None;
            opened |= !pool.space_is_empty(self.sealed);
            pool.move_space(self.sealed, OPEN);
        }
        Ok(opened)
    }
}

impl Deferred {
    /// Removes the events that have completed; returns whether none is left.
    fn settle(
        &mut self,
        device: DeviceId,
        backend: &dyn Backend,
        wait: bool,
    ) -> Result<bool, BackendError> {
        while let Some(event) = self.events.last().copied() {
            if !settled(backend, device, event, wait)? {
                return Ok(false);
            }
            backend.destroy_event(device, event)?;
            self.events.pop();
        }
        Ok(true)
    }
}

fn record_all(
    backend: &dyn Backend,
    device: DeviceId,
    streams: &[StreamId],
    strays: &mut Vec<EventId>,
) -> Result<Vec<EventId>, BackendError> {
    let mut events = Vec::with_capacity(streams.len());
    for stream in streams {
        match backend.record_event(device, *stream) {
            Ok(event) => events.push(event),
            Err(error) => {
                strays.append(&mut events);
                return Err(error);
            }
        }
    }
    Ok(events)
}

fn settled(
    backend: &dyn Backend,
    device: DeviceId,
    event: EventId,
    wait: bool,
) -> Result<bool, BackendError> {
    if wait {
        backend.wait_event(device, event)?;
        return Ok(true);
    }
    backend.event_done(device, event)
}
