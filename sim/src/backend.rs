//! The engine's backend trait, answered by the simulated machine.

use ds4_engine::backend::{Backend, BackendError, EventId, PageId};
use ds4_engine::device::{
    DeviceAddress, DeviceId, DeviceInfo, DeviceMask, MemoryInfo, PeerAccess, StreamId,
};
use ds4_kernels::Launch;

use crate::call::Call;
use crate::config::Link;
use crate::cost;
use crate::device::{DeviceState, Refused};
use crate::held::Given;
use crate::injector::flipped;
use crate::machine::{COPY_PART_BYTES, Effects, SimBackend, no_stream};
use crate::stream::Event;

/// How many bytes of a copy over a broken path arrive inverted.
pub(crate) const BROKEN_BYTES: u64 = 4096;

impl SimBackend {
    /// The frame of a call about one device.
    pub(crate) fn on<T>(
        &self,
        device: DeviceId,
        call: Call,
        bytes: u64,
        work: impl FnOnce(&mut DeviceState, Effects) -> Result<T, Refused>,
    ) -> Result<T, BackendError> {
        let mut state = self.state(device, call.driver_name())?;
        let effects = self.enter(&mut state, call, bytes)?;
        work(&mut state, effects).map_err(|refused| {
            self.refuse(device, call, bytes.max(state.implied_bytes(call)), refused)
        })
    }

    /// Memory goes away: later work must not be checked against it, and pending work is a race.
    fn forget(&self, state: &mut DeviceState, start: u64, end: u64, call: Call) {
        let race = state.accesses.forget(state.id, (start, end), call.name());
        race.into_iter().for_each(|race| self.ledger.on_race(race));
    }

    /// Refuses readers that have no path to `device`.
    pub(crate) fn check_reachable(
        &self,
        device: DeviceId,
        readers: DeviceMask,
    ) -> Result<(), Refused> {
        let unreachable = readers
            .without(DeviceMask::only(device))
            .iter()
            .any(|reader| self.peer_link(reader, device).is_none());
        if unreachable {
            return Err(Refused::Unsupported);
        }
        Ok(())
    }

    pub(crate) fn peer_link(&self, from: DeviceId, to: DeviceId) -> Option<Link> {
        self.config
            .link(from, to)
            .filter(|link| link.access != PeerAccess::Absent)
    }

    fn move_bytes(from: (&DeviceState, u64), to: (&mut DeviceState, u64), bytes: u64) {
        let mut moved = 0;
        while moved < bytes {
            let part = COPY_PART_BYTES.min(bytes - moved);
            let pieces = from.0.pieces(from.1 + moved, part);
            to.0.put(to.1 + moved, &pieces);
            moved += part;
        }
    }

    /// As [`Self::move_bytes`] within one device; ranges may overlap, as with `memmove`.
    fn move_within(state: &mut DeviceState, from: u64, to: u64, bytes: u64) {
        let parts = bytes.div_ceil(COPY_PART_BYTES);
        for number in 0..parts {
            let number = if to > from {
                parts - 1 - number
            } else {
                number
            };
            let offset = number * COPY_PART_BYTES;
            let part = COPY_PART_BYTES.min(bytes - offset);
            let pieces = state.pieces(from + offset, part);
            state.put(to + offset, &pieces);
        }
    }

    pub(crate) fn flip(state: &mut DeviceState, address: u64, bytes: u64, draw: u64) {
        if let Some((offset, bit)) = flipped(draw, bytes) {
            let mut byte = [0];
            state.read(address + offset, &mut byte);
            state.write(address + offset, &[byte[0] ^ bit]);
        }
    }

    pub(crate) fn invert(state: &mut DeviceState, address: u64, bytes: u64) {
        let mut data = vec![0; usize::try_from(bytes.min(BROKEN_BYTES)).unwrap_or(0)];
        state.read(address, &mut data);
        data.iter_mut().for_each(|byte| *byte = !*byte);
        state.write(address, &data);
    }

    pub(crate) fn event(state: &DeviceState, event: EventId) -> Result<&Event, Refused> {
        state.streams.event(event).ok_or_else(|| {
            Refused::Misuse(format!("invalid handle: there is no event {}", event.0))
        })
    }

    pub(crate) fn fill_now(
        &self,
        device: DeviceId,
        address: DeviceAddress,
        bytes: u64,
        value: u8,
        stream: StreamId,
    ) -> Result<(), BackendError> {
        let call = Call::Fill;
        self.on(device, call, bytes, |state, effects| {
            let duration_ns = cost::fill_ns(bytes).saturating_add(effects.delay_ns);
            let range = [(address.0, bytes, true)];
            self.enqueue(state, stream, duration_ns, call.name(), &range)?;
            state.fill(address.0, bytes, value);
            Ok(())
        })
    }

    pub(crate) fn copy_local_now(
        &self,
        device: DeviceId,
        from: DeviceAddress,
        to: DeviceAddress,
        bytes: u64,
        stream: StreamId,
    ) -> Result<(), BackendError> {
        let call = Call::CopyLocal;
        self.on(device, call, bytes, |state, effects| {
            let duration_ns = cost::local_copy_ns(bytes).saturating_add(effects.delay_ns);
            let ranges = [(from.0, bytes, false), (to.0, bytes, true)];
            self.enqueue(state, stream, duration_ns, call.name(), &ranges)?;
            Self::move_within(state, from.0, to.0, bytes);
            if let Some(draw) = effects.flip {
                Self::flip(state, to.0, bytes, draw);
            }
            Ok(())
        })
    }

    pub(crate) fn copy_between(
        &self,
        (from, source): (DeviceId, DeviceAddress),
        (to, target): (DeviceId, DeviceAddress),
        bytes: u64,
        stream: StreamId,
    ) -> Result<(), BackendError> {
        let call = Call::CopyPeer;
        let (mut near, mut far) = self.two_states(from, to, call.driver_name())?;
        let effects = self.enter(&mut near, call, bytes)?;
        self.check_alive(&far, call)?;
        let refuse = |device, refused| self.refuse(device, call, bytes, refused);
        let link = self.peer_link(from, to).ok_or(Refused::Unsupported);
        let link = link.map_err(|refused| refuse(from, refused))?;
        let far_range = far
            .check(from, target.0, bytes)
            .map_err(|refused| refuse(to, refused))?;
        let duration_ns = cost::peer_copy_ns(&link, bytes).saturating_add(effects.delay_ns);
        let near_range = [(source.0, bytes, false)];
        self.enqueue(&mut near, stream, duration_ns, call.name(), &near_range)
            .map_err(|refused| refuse(from, refused))?;
        if let Some(queue) = near.streams.get_mut(stream) {
            let race = far.accesses.note(to, far_range, true, queue, call.name());
            race.into_iter().for_each(|race| self.ledger.on_race(race));
            far.accesses.prune(self.clock.advance(0));
        }
        Self::move_bytes((&near, source.0), (&mut far, target.0), bytes);
        if link.access == PeerAccess::Broken {
            Self::invert(&mut far, target.0, bytes);
        }
        if let Some(draw) = effects.flip {
            Self::flip(&mut far, target.0, bytes, draw);
        }
        Ok(())
    }
}

impl Backend for SimBackend {
    fn name(&self) -> &'static str {
        "sim"
    }

    fn origin(&self) -> String {
        format!("simulated machine {} (no driver)", self.config.machine)
    }

    fn devices(&self) -> &[DeviceInfo] {
        &self.infos
    }

    fn memory_info(&self, device: DeviceId) -> Result<MemoryInfo, BackendError> {
        self.on(device, Call::MemoryInfo, 0, |state, _| {
            Ok(state.memory_info())
        })
    }

    fn allocate(&self, device: DeviceId, bytes: u64) -> Result<DeviceAddress, BackendError> {
        self.on(device, Call::Allocate, bytes, |state, _| {
            let start = state.allocate(bytes)?;
            self.ledger
                .on_backend_allocate(device, start, start + bytes);
            Ok(DeviceAddress(start))
        })
    }

    /// Waits for all work of the device first, as `cuMemFree` does.
    fn free(&self, device: DeviceId, address: DeviceAddress) -> Result<(), BackendError> {
        let call = Call::Free;
        self.settle_device(device);
        self.on(device, call, 0, |state, _| {
            let bytes = state.allocated_bytes(address.0)?;
            // The price depends on the size, which only the device knows; entering paid the base.
            self.clock
                .advance(cost::host_ns(call, bytes) - cost::host_ns(call, 0));
            self.clock.advance_to(state.streams.see_all_done());
            self.forget(state, address.0, address.0 + bytes, call);
            state.free(address.0);
            self.ledger.on_backend_free(device, address.0);
            Ok(())
        })
    }

    fn reserve(&self, device: DeviceId, bytes: u64) -> Result<DeviceAddress, BackendError> {
        self.on(device, Call::Reserve, bytes, |state, _| {
            let start = state.reserve(bytes)?;
            self.ledger.on_reserve(device, start, start + bytes);
            Ok(DeviceAddress(start))
        })
    }

    fn release(
        &self,
        device: DeviceId,
        base: DeviceAddress,
        bytes: u64,
    ) -> Result<(), BackendError> {
        self.on(device, Call::Release, bytes, |state, _| {
            state.release(base.0, bytes)?;
            self.ledger.on_release(device, base.0);
            Ok(())
        })
    }

    fn create_page(&self, device: DeviceId) -> Result<PageId, BackendError> {
        self.on(device, Call::CreatePage, 0, |state, _| {
            let (page, bytes) = state.create_page()?;
            self.ledger.on_create_page(device, page, bytes);
            Ok(PageId(page))
        })
    }

    fn destroy_page(&self, device: DeviceId, page: PageId) -> Result<(), BackendError> {
        self.on(device, Call::DestroyPage, 0, |state, _| {
            state.destroy_page(page.0)?;
            self.ledger.on_destroy_page(device, page.0);
            Ok(())
        })
    }

    fn map(
        &self,
        device: DeviceId,
        address: DeviceAddress,
        page: PageId,
        peers: DeviceMask,
    ) -> Result<(), BackendError> {
        self.on(device, Call::Map, 0, |state, _| {
            self.check_reachable(device, peers)?;
            let readers = peers.or(DeviceMask::only(device));
            let bytes = state.map(address.0, page.0, readers)?;
            self.ledger.on_map(device, address.0, address.0 + bytes);
            Ok(())
        })
    }

    /// Waits for nothing, unlike `free`: work that may still touch the page is a race.
    fn unmap(&self, device: DeviceId, address: DeviceAddress) -> Result<(), BackendError> {
        self.on(device, Call::Unmap, 0, |state, _| {
            let bytes = state.unmap(address.0)?;
            self.forget(state, address.0, address.0 + bytes, Call::Unmap);
            self.ledger.on_unmap(device, address.0, address.0 + bytes);
            Ok(())
        })
    }

    fn create_stream(&self, device: DeviceId) -> Result<StreamId, BackendError> {
        self.on(device, Call::CreateStream, 0, |state, _| {
            let none_left = || Refused::Driver("no stream number is left".to_owned());
            state.streams.create().ok_or_else(none_left)
        })
    }

    fn destroy_stream(&self, device: DeviceId, stream: StreamId) -> Result<(), BackendError> {
        self.settle((device, stream))?;
        self.on(device, Call::DestroyStream, 0, |state, _| {
            if stream == StreamId::DEFAULT {
                let detail = "invalid handle: the default stream stays".to_owned();
                return Err(Refused::Misuse(detail));
            }
            let queue = state
                .streams
                .remove(stream)
                .ok_or_else(|| no_stream(stream))?;
            self.clock.advance_to(queue.done_ns());
            queue.see_done();
            Ok(())
        })
    }

    fn synchronize(&self, device: DeviceId, stream: StreamId) -> Result<(), BackendError> {
        self.settle((device, stream))?;
        self.on(device, Call::Synchronize, 0, |state, _| {
            let queue = state
                .streams
                .get_mut(stream)
                .ok_or_else(|| no_stream(stream))?;
            self.clock.advance_to(queue.done_ns());
            queue.see_done();
            Ok(())
        })
    }

    fn record_event(&self, device: DeviceId, stream: StreamId) -> Result<EventId, BackendError> {
        let event = self.on(device, Call::RecordEvent, 0, |state, _| {
            let event = state.streams.record(stream);
            event.ok_or_else(|| no_stream(stream))
        })?;
        self.keep_event((device, stream), event);
        Ok(event)
    }

    fn event_done(&self, device: DeviceId, event: EventId) -> Result<bool, BackendError> {
        let held = self.event_is_held((device, event));
        self.on(device, Call::EventDone, 0, |state, _| {
            let event = Self::event(state, event)?;
            let done = !held && event.done_ns() <= self.now_ns();
            if done {
                event.see_done();
            }
            Ok(done)
        })
    }

    fn wait_event(&self, device: DeviceId, event: EventId) -> Result<(), BackendError> {
        self.settle_event((device, event));
        self.on(device, Call::WaitEvent, 0, |state, _| {
            let event = Self::event(state, event)?;
            self.clock.advance_to(event.done_ns());
            event.see_done();
            Ok(())
        })
    }

    fn stream_wait_event(
        &self,
        device: DeviceId,
        stream: StreamId,
        event_device: DeviceId,
        event: EventId,
    ) -> Result<(), BackendError> {
        let call = Call::StreamWaitEvent;
        self.keep_wait((device, stream), (event_device, event));
        let wait = |state: &mut DeviceState, event: &Event| {
            if state.streams.wait_for(stream, event) {
                Ok(())
            } else {
                Err(no_stream(stream))
            }
        };
        if device == event_device {
            return self.on(device, call, 0, |state, _| {
                let event = Self::event(state, event)?.clone();
                wait(state, &event)
            });
        }
        let (mut near, far) = self.two_states(device, event_device, call.driver_name())?;
        self.enter(&mut near, call, 0)?;
        self.check_alive(&far, call)?;
        let event = Self::event(&far, event);
        let event = event.map_err(|refused| self.refuse(event_device, call, 0, refused))?;
        wait(&mut near, event).map_err(|refused| self.refuse(device, call, 0, refused))
    }

    fn destroy_event(&self, device: DeviceId, event: EventId) -> Result<(), BackendError> {
        self.on(device, Call::DestroyEvent, 0, |state, _| {
            Self::event(state, event)?;
            state.streams.remove_event(event);
            Ok(())
        })
    }

    fn write(
        &self,
        device: DeviceId,
        address: DeviceAddress,
        data: &[u8],
    ) -> Result<(), BackendError> {
        self.write_in(device, address, data, None)
    }

    fn read(
        &self,
        device: DeviceId,
        address: DeviceAddress,
        data: &mut [u8],
    ) -> Result<(), BackendError> {
        self.read_in(device, address, data, None)
    }

    fn fill(
        &self,
        device: DeviceId,
        address: DeviceAddress,
        bytes: u64,
        value: u8,
        stream: StreamId,
    ) -> Result<(), BackendError> {
        let work = Given::Fill {
            address,
            bytes,
            value,
        };
        self.give((device, stream), work)
    }

    fn copy_local(
        &self,
        device: DeviceId,
        from: DeviceAddress,
        to: DeviceAddress,
        bytes: u64,
        stream: StreamId,
    ) -> Result<(), BackendError> {
        self.give((device, stream), Given::CopyLocal { from, to, bytes })
    }

    /// Within one device this is [`Backend::copy_local`].
    fn copy_peer(
        &self,
        from: (DeviceId, DeviceAddress),
        to: (DeviceId, DeviceAddress),
        bytes: u64,
        stream: StreamId,
    ) -> Result<(), BackendError> {
        if from.0 == to.0 {
            return self.copy_local(from.0, from.1, to.1, bytes, stream);
        }
        let work = Given::CopyPeer {
            from: from.1,
            to,
            bytes,
        };
        self.give((from.0, stream), work)
    }

    fn launch(
        &self,
        device: DeviceId,
        stream: StreamId,
        launch: &Launch,
    ) -> Result<(), BackendError> {
        self.give((device, stream), Given::Launch(*launch))
    }

    fn peer_access(&self, from: DeviceId, to: DeviceId) -> Result<PeerAccess, BackendError> {
        self.on(from, Call::PeerAccess, 0, |_, _| {
            let link = self.config.link(from, to);
            link.map(|link| link.access)
                .ok_or_else(|| Refused::Misuse(format!("invalid device: {to} does not exist")))
        })
    }
}
