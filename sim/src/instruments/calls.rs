//! The backend trait of [`Instrumented`]: count, meet faults, check the books, pass on, book.

use std::sync::MutexGuard;

use ds4_engine::backend::{Backend, BackendError, EventId, PageId};
use ds4_engine::device::{
    DeviceAddress, DeviceId, DeviceInfo, DeviceMask, MemoryInfo, PeerAccess, StreamId,
};
use ds4_kernels::Launch;

use super::Instrumented;
use super::watched::{Mapping, Watched};
use super::wrapped::out_of_memory;
use crate::call::Call;
use crate::injector::{check_alive, flip_in};
use crate::launch::ranges;

impl Instrumented {
    /// The size of a page, on a device that shows its pages.
    fn page_bytes(&self, watched: &Watched, call: Call) -> Result<u64, BackendError> {
        watched.page_bytes.ok_or(BackendError::Unsupported {
            device: watched.id,
            call: call.driver_name(),
        })
    }

    fn invalid(&self, device: DeviceId, call: Call, detail: &str) -> BackendError {
        self.misuse(device, call, format!("invalid value: {detail}"))
    }

    /// A stream that exists.
    fn known(&self, watched: &Watched, call: Call, stream: StreamId) -> Result<(), BackendError> {
        if watched.held.has_stream(stream) {
            return Ok(());
        }
        let detail = format!("invalid handle: there is no {stream}");
        Err(self.misuse(watched.id, call, detail))
    }

    fn known_event(
        &self,
        watched: &Watched,
        call: Call,
        event: EventId,
    ) -> Result<(), BackendError> {
        if watched.held.events.contains(&event.0) {
            return Ok(());
        }
        let detail = format!("invalid handle: there is no event {}", event.0);
        Err(self.misuse(watched.id, call, detail))
    }

    /// Memory of `watched` that `reader` may touch.
    fn live(
        &self,
        watched: &Watched,
        reader: DeviceId,
        call: Call,
        (address, bytes): (DeviceAddress, u64),
    ) -> Result<(), BackendError> {
        let checked = watched.check(reader, address.0, bytes);
        checked.map_err(|detail| self.misuse(watched.id, call, detail))
    }

    /// The books of the far device of a call between two, while the near one's are unlocked.
    fn far(&self, device: DeviceId, call: Call) -> Result<MutexGuard<'_, Watched>, BackendError> {
        let watched = self.watched(device, call)?;
        check_alive(device, watched.lost.as_deref(), call)?;
        Ok(watched)
    }

    /// Refuses a launch that touches what it must not; returns the first place that it writes.
    fn check_launch(
        &self,
        device: DeviceId,
        launch: &Launch,
    ) -> Result<Option<(DeviceId, u64, u64)>, BackendError> {
        let call = Call::Launch;
        let mut written = None;
        for range in ranges(launch) {
            let address = range.address;
            if !address.is_multiple_of(range.align_bytes) {
                let align = range.align_bytes;
                let detail = format!("misaligned address: {address:#x} is no multiple of {align}");
                return Err(self.misuse(device, call, detail));
            }
            let owner = self.owner(address).ok_or_else(|| {
                let detail = format!("invalid address: {address:#x} is not in live, mapped memory");
                self.misuse(device, call, detail)
            })?;
            if !self.sees(device, owner) {
                let detail = format!(
                    "illegal address: {address:#x} is on {owner}, to which {device} has no path"
                );
                return Err(self.misuse(device, call, detail));
            }
            let far = self.far(owner, call)?;
            self.live(&far, device, call, (DeviceAddress(address), range.bytes))?;
            if range.writes {
                written.get_or_insert((owner, address, range.bytes));
            }
        }
        Ok(written)
    }
}

impl Backend for Instrumented {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn origin(&self) -> String {
        self.inner.origin()
    }

    fn devices(&self) -> &[DeviceInfo] {
        &self.infos
    }

    fn memory_info(&self, device: DeviceId) -> Result<MemoryInfo, BackendError> {
        let (mut watched, _) = self.enter(device, Call::MemoryInfo, 0)?;
        let info = self.inner.memory_info(device);
        let info = self.heed(&mut watched, info)?;
        let shown = self.infos.get(device.index());
        Ok(MemoryInfo {
            free_bytes: watched
                .free_bytes()
                .unwrap_or(u64::MAX)
                .min(info.free_bytes),
            total_bytes: shown.map_or(info.total_bytes, |shown| shown.total_bytes),
        })
    }

    fn allocate(&self, device: DeviceId, bytes: u64) -> Result<DeviceAddress, BackendError> {
        let call = Call::Allocate;
        let (mut watched, _) = self.enter(device, call, bytes)?;
        if bytes == 0 {
            return Err(self.invalid(device, call, "zero bytes"));
        }
        if !watched.has_room(bytes) {
            return Err(out_of_memory(device, call, bytes));
        }
        let address = self.inner.allocate(device, bytes);
        let address = self.heed(&mut watched, address)?;
        watched.add_allocation(address.0, bytes);
        self.ledger
            .on_backend_allocate(device, address.0, address.0 + bytes);
        Ok(address)
    }

    fn free(&self, device: DeviceId, address: DeviceAddress) -> Result<(), BackendError> {
        let call = Call::Free;
        let (mut watched, _) = self.enter(device, call, 0)?;
        if !watched.held.allocations.contains_key(&address.0) {
            return Err(self.invalid(device, call, &format!("{address} is no allocation")));
        }
        let freed = self.inner.free(device, address);
        self.heed(&mut watched, freed)?;
        watched.remove_allocation(address.0);
        self.ledger.on_backend_free(device, address.0);
        Ok(())
    }

    fn reserve(&self, device: DeviceId, bytes: u64) -> Result<DeviceAddress, BackendError> {
        let call = Call::Reserve;
        let (mut watched, _) = self.enter(device, call, bytes)?;
        let page_bytes = self.page_bytes(&watched, call)?;
        if bytes == 0 || !bytes.is_multiple_of(page_bytes) {
            let detail = format!("{bytes} bytes are not whole pages of {page_bytes}");
            return Err(self.invalid(device, call, &detail));
        }
        let base = self.inner.reserve(device, bytes);
        let base = self.heed(&mut watched, base)?;
        watched.held.ranges.insert(base.0, bytes);
        self.ledger.on_reserve(device, base.0, base.0 + bytes);
        Ok(base)
    }

    fn release(
        &self,
        device: DeviceId,
        base: DeviceAddress,
        bytes: u64,
    ) -> Result<(), BackendError> {
        let call = Call::Release;
        let (mut watched, _) = self.enter(device, call, bytes)?;
        self.page_bytes(&watched, call)?;
        if watched.held.ranges.get(&base.0) != Some(&bytes) {
            let detail = format!("{bytes} bytes at {base} are no reserved range");
            return Err(self.invalid(device, call, &detail));
        }
        let mut mapped = watched.held.mappings.range(base.0..base.0 + bytes);
        if let Some((at, _)) = mapped.next() {
            let detail = format!("a page is still mapped at {at:#x}");
            return Err(self.invalid(device, call, &detail));
        }
        let released = self.inner.release(device, base, bytes);
        self.heed(&mut watched, released)?;
        watched.held.ranges.remove(&base.0);
        self.ledger.on_release(device, base.0);
        Ok(())
    }

    fn create_page(&self, device: DeviceId) -> Result<PageId, BackendError> {
        let call = Call::CreatePage;
        let (mut watched, _) = self.enter(device, call, 0)?;
        let page_bytes = self.page_bytes(&watched, call)?;
        if watched.free_bytes().is_some_and(|free| page_bytes > free) {
            return Err(out_of_memory(device, call, page_bytes));
        }
        let page = self.inner.create_page(device);
        let page = self.heed(&mut watched, page)?;
        watched.add_page(page.0, page_bytes);
        self.ledger.on_create_page(device, page.0, page_bytes);
        Ok(page)
    }

    fn destroy_page(&self, device: DeviceId, page: PageId) -> Result<(), BackendError> {
        let call = Call::DestroyPage;
        let (mut watched, _) = self.enter(device, call, 0)?;
        let page_bytes = self.page_bytes(&watched, call)?;
        match watched.held.pages.get(&page.0) {
            Some(None) => {}
            Some(Some(at)) => {
                let detail = format!("page {} is mapped at {at:#x}", page.0);
                return Err(self.invalid(device, call, &detail));
            }
            None => {
                let detail = format!("there is no page {}", page.0);
                return Err(self.invalid(device, call, &detail));
            }
        }
        let destroyed = self.inner.destroy_page(device, page);
        self.heed(&mut watched, destroyed)?;
        watched.remove_page(page.0, page_bytes);
        self.ledger.on_destroy_page(device, page.0);
        Ok(())
    }

    fn map(
        &self,
        device: DeviceId,
        address: DeviceAddress,
        page: PageId,
        peers: DeviceMask,
    ) -> Result<(), BackendError> {
        let call = Call::Map;
        let (mut watched, _) = self.enter(device, call, 0)?;
        let page_bytes = self.page_bytes(&watched, call)?;
        if peers.iter().any(|peer| !self.sees(peer, device)) {
            return Err(BackendError::Unsupported {
                device,
                call: call.driver_name(),
            });
        }
        let start = address.0;
        let range = watched.held.ranges.range(..=start).next_back();
        let inside = range.is_some_and(|(base, bytes)| {
            let offset = start - base;
            offset < *bytes && bytes - offset >= page_bytes
        });
        let wrong = if !start.is_multiple_of(page_bytes) {
            Some(format!(
                "{address} is no multiple of the page size {page_bytes}"
            ))
        } else if !inside {
            Some(format!("{address} is in no reserved range"))
        } else if watched.held.mappings.contains_key(&start) {
            Some(format!("a page is mapped at {address} already"))
        } else {
            match watched.held.pages.get(&page.0) {
                None => Some(format!("there is no page {}", page.0)),
                Some(Some(at)) => Some(format!("page {} is mapped at {at:#x} already", page.0)),
                Some(None) => None,
            }
        };
        if let Some(detail) = wrong {
            return Err(self.invalid(device, call, &detail));
        }
        let mapped = self.inner.map(device, address, page, peers);
        self.heed(&mut watched, mapped)?;
        watched.held.pages.insert(page.0, Some(start));
        let mapping = Mapping {
            page: page.0,
            peers,
        };
        watched.held.mappings.insert(start, mapping);
        self.ledger.on_map(device, start, start + page_bytes);
        Ok(())
    }

    fn unmap(&self, device: DeviceId, address: DeviceAddress) -> Result<(), BackendError> {
        let call = Call::Unmap;
        let (mut watched, _) = self.enter(device, call, 0)?;
        let page_bytes = self.page_bytes(&watched, call)?;
        let Some(mapping) = watched.held.mappings.get(&address.0).copied() else {
            let detail = format!("no page is mapped at {address}");
            return Err(self.invalid(device, call, &detail));
        };
        let unmapped = self.inner.unmap(device, address);
        self.heed(&mut watched, unmapped)?;
        watched.held.mappings.remove(&address.0);
        watched.held.pages.insert(mapping.page, None);
        self.ledger
            .on_unmap(device, address.0, address.0 + page_bytes);
        Ok(())
    }

    fn create_stream(&self, device: DeviceId) -> Result<StreamId, BackendError> {
        let (mut watched, _) = self.enter(device, Call::CreateStream, 0)?;
        let stream = self.inner.create_stream(device);
        let stream = self.heed(&mut watched, stream)?;
        watched.held.streams.insert(stream.0);
        Ok(stream)
    }

    fn destroy_stream(&self, device: DeviceId, stream: StreamId) -> Result<(), BackendError> {
        let call = Call::DestroyStream;
        let (mut watched, _) = self.enter(device, call, 0)?;
        if stream == StreamId::DEFAULT {
            let detail = "invalid handle: the default stream stays".to_owned();
            return Err(self.misuse(device, call, detail));
        }
        self.known(&watched, call, stream)?;
        let destroyed = self.inner.destroy_stream(device, stream);
        self.heed(&mut watched, destroyed)?;
        watched.held.streams.remove(&stream.0);
        Ok(())
    }

    fn synchronize(&self, device: DeviceId, stream: StreamId) -> Result<(), BackendError> {
        let call = Call::Synchronize;
        let (watched, _) = self.enter(device, call, 0)?;
        self.known(&watched, call, stream)?;
        drop(watched);
        self.heed_unlocked(call, self.inner.synchronize(device, stream))
    }

    fn record_event(&self, device: DeviceId, stream: StreamId) -> Result<EventId, BackendError> {
        let call = Call::RecordEvent;
        let (mut watched, _) = self.enter(device, call, 0)?;
        self.known(&watched, call, stream)?;
        let event = self.inner.record_event(device, stream);
        let event = self.heed(&mut watched, event)?;
        watched.held.events.insert(event.0);
        Ok(event)
    }

    fn event_done(&self, device: DeviceId, event: EventId) -> Result<bool, BackendError> {
        let call = Call::EventDone;
        let (mut watched, _) = self.enter(device, call, 0)?;
        self.known_event(&watched, call, event)?;
        let done = self.inner.event_done(device, event);
        self.heed(&mut watched, done)
    }

    fn wait_event(&self, device: DeviceId, event: EventId) -> Result<(), BackendError> {
        let call = Call::WaitEvent;
        let (watched, _) = self.enter(device, call, 0)?;
        self.known_event(&watched, call, event)?;
        drop(watched);
        self.heed_unlocked(call, self.inner.wait_event(device, event))
    }

    fn stream_wait_event(
        &self,
        device: DeviceId,
        stream: StreamId,
        event_device: DeviceId,
        event: EventId,
    ) -> Result<(), BackendError> {
        let call = Call::StreamWaitEvent;
        let (watched, _) = self.enter(device, call, 0)?;
        self.known(&watched, call, stream)?;
        drop(watched);
        let far = self.far(event_device, call)?;
        self.known_event(&far, call, event)?;
        drop(far);
        let waits = self
            .inner
            .stream_wait_event(device, stream, event_device, event);
        self.heed_unlocked(call, waits)
    }

    fn destroy_event(&self, device: DeviceId, event: EventId) -> Result<(), BackendError> {
        let call = Call::DestroyEvent;
        let (mut watched, _) = self.enter(device, call, 0)?;
        self.known_event(&watched, call, event)?;
        let destroyed = self.inner.destroy_event(device, event);
        self.heed(&mut watched, destroyed)?;
        watched.held.events.remove(&event.0);
        Ok(())
    }

    fn write(
        &self,
        device: DeviceId,
        address: DeviceAddress,
        data: &[u8],
    ) -> Result<(), BackendError> {
        let call = Call::Write;
        let bytes = data.len() as u64;
        let (watched, effects) = self.enter(device, call, bytes)?;
        self.live(&watched, device, call, (address, bytes))?;
        drop(watched);
        let written = match effects.flip {
            Some(draw) => {
                let mut data = data.to_vec();
                flip_in(&mut data, draw);
                self.inner.write(device, address, &data)
            }
            None => self.inner.write(device, address, data),
        };
        self.heed_unlocked(call, written)
    }

    fn read(
        &self,
        device: DeviceId,
        address: DeviceAddress,
        data: &mut [u8],
    ) -> Result<(), BackendError> {
        let call = Call::Read;
        let bytes = data.len() as u64;
        let (watched, effects) = self.enter(device, call, bytes)?;
        self.live(&watched, device, call, (address, bytes))?;
        drop(watched);
        self.heed_unlocked(call, self.inner.read(device, address, data))?;
        if let Some(draw) = effects.flip {
            flip_in(data, draw);
        }
        Ok(())
    }

    fn fill(
        &self,
        device: DeviceId,
        address: DeviceAddress,
        bytes: u64,
        value: u8,
        stream: StreamId,
    ) -> Result<(), BackendError> {
        let call = Call::Fill;
        let (watched, _) = self.enter(device, call, bytes)?;
        self.live(&watched, device, call, (address, bytes))?;
        self.known(&watched, call, stream)?;
        drop(watched);
        let filled = self.inner.fill(device, address, bytes, value, stream);
        self.heed_unlocked(call, filled)
    }

    fn copy_local(
        &self,
        device: DeviceId,
        from: DeviceAddress,
        to: DeviceAddress,
        bytes: u64,
        stream: StreamId,
    ) -> Result<(), BackendError> {
        let call = Call::CopyLocal;
        let (watched, effects) = self.enter(device, call, bytes)?;
        self.live(&watched, device, call, (from, bytes))?;
        self.live(&watched, device, call, (to, bytes))?;
        self.known(&watched, call, stream)?;
        drop(watched);
        let copied = self.inner.copy_local(device, from, to, bytes, stream);
        self.heed_unlocked(call, copied)?;
        match effects.flip {
            Some(draw) => self.flip((device, stream), device, (to.0, bytes), draw),
            None => Ok(()),
        }
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
        let call = Call::CopyPeer;
        let (near, effects) = self.enter(from.0, call, bytes)?;
        if !self.sees(from.0, to.0) {
            return Err(BackendError::Unsupported {
                device: from.0,
                call: call.driver_name(),
            });
        }
        self.live(&near, from.0, call, (from.1, bytes))?;
        self.known(&near, call, stream)?;
        drop(near);
        let far = self.far(to.0, call)?;
        self.live(&far, from.0, call, (to.1, bytes))?;
        drop(far);
        let copied = self.inner.copy_peer(from, to, bytes, stream);
        self.heed_unlocked(call, copied)?;
        match effects.flip {
            Some(draw) => self.flip((from.0, stream), to.0, (to.1.0, bytes), draw),
            None => Ok(()),
        }
    }

    /// One read and one write, whatever the wrapped backend makes of it.
    fn copy_via_host(
        &self,
        from: (DeviceId, DeviceAddress),
        to: (DeviceId, DeviceAddress),
        bytes: u64,
    ) -> Result<(), BackendError> {
        if bytes == 0 {
            return Ok(());
        }
        let (near, read) = self.enter(from.0, Call::Read, bytes)?;
        self.live(&near, from.0, Call::Read, (from.1, bytes))?;
        drop(near);
        let (far, written) = self.enter(to.0, Call::Write, bytes)?;
        self.live(&far, to.0, Call::Write, (to.1, bytes))?;
        drop(far);
        let copied = self.inner.copy_via_host(from, to, bytes);
        self.heed_unlocked(Call::Write, copied)?;
        for draw in [read.flip, written.flip].into_iter().flatten() {
            self.flip((to.0, StreamId::DEFAULT), to.0, (to.1.0, bytes), draw)?;
        }
        Ok(())
    }

    fn launch(
        &self,
        device: DeviceId,
        stream: StreamId,
        launch: &Launch,
    ) -> Result<(), BackendError> {
        let call = Call::Launch;
        let bytes = launch.elements().saturating_mul(launch.element_bytes());
        let (watched, effects) = self.enter(device, call, bytes)?;
        if bytes == 0 {
            return Ok(());
        }
        self.known(&watched, call, stream)?;
        drop(watched);
        let written = self.check_launch(device, launch)?;
        self.heed_unlocked(call, self.inner.launch(device, stream, launch))?;
        match (effects.flip, written) {
            (Some(draw), Some((owner, address, bytes))) => {
                self.flip((device, stream), owner, (address, bytes), draw)
            }
            _ => Ok(()),
        }
    }

    fn peer_access(&self, from: DeviceId, to: DeviceId) -> Result<PeerAccess, BackendError> {
        let call = Call::PeerAccess;
        let (watched, _) = self.enter(from, call, 0)?;
        drop(watched);
        if to.index() >= self.views.len() {
            let detail = format!("invalid device: {to} does not exist");
            return Err(self.misuse(from, call, detail));
        }
        if !self.sees(from, to) {
            return Ok(PeerAccess::Absent);
        }
        self.heed_unlocked(call, self.inner.peer_access(from, to))
    }
}
