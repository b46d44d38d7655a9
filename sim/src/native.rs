//! What driver interfaces offer beyond the backend trait: copies with the host in stream order,
//! access set apart from mapping, times of events. The simulated driver libraries need these.

use ds4_engine::backend::{BackendError, EventId, PageId};
use ds4_engine::device::{DeviceAddress, DeviceId, DeviceMask, StreamId};

use crate::call::Call;
use crate::cost;
use crate::device::{DeviceState, Refused};
use crate::injector::flip_in;
use crate::machine::{Effects, SimBackend, no_stream};
use crate::space;

impl SimBackend {
    /// The device to which an address belongs, whether or not anything is there; `None` for
    /// addresses of the host.
    #[must_use]
    pub fn device_of(&self, address: DeviceAddress) -> Option<DeviceId> {
        space::device_of(address.0).filter(|device| device.index() < self.infos.len())
    }

    /// As `write`, in order of a stream and without waiting; `data` may be reused at once.
    ///
    /// # Errors
    /// As `write`.
    pub fn write_in_order(
        &self,
        device: DeviceId,
        address: DeviceAddress,
        data: &[u8],
        stream: StreamId,
    ) -> Result<(), BackendError> {
        self.write_in(device, address, data, Some(stream))
    }

    /// As `read`, in order of a stream and without waiting; `data` is filled at once, since work
    /// of streams takes effect when it is given.
    ///
    /// # Errors
    /// As `read`.
    pub fn read_in_order(
        &self,
        device: DeviceId,
        address: DeviceAddress,
        data: &mut [u8],
        stream: StreamId,
    ) -> Result<(), BackendError> {
        self.read_in(device, address, data, Some(stream))
    }

    /// Without a stream it uses the default one and waits.
    pub(crate) fn write_in(
        &self,
        device: DeviceId,
        address: DeviceAddress,
        data: &[u8],
        stream: Option<StreamId>,
    ) -> Result<(), BackendError> {
        let bytes = data.len() as u64;
        self.settle((device, stream.unwrap_or(StreamId::DEFAULT)))?;
        let done = self.on(device, Call::Write, bytes, |state, effects| {
            self.host_copy(state, Call::Write, (address.0, bytes), stream, effects)?;
            state.write(address.0, data);
            if let Some(draw) = effects.flip {
                Self::flip(state, address.0, bytes, draw);
            }
            Ok(())
        });
        self.go_on_with_held();
        done
    }

    /// Without a stream it uses the default one and waits.
    pub(crate) fn read_in(
        &self,
        device: DeviceId,
        address: DeviceAddress,
        data: &mut [u8],
        stream: Option<StreamId>,
    ) -> Result<(), BackendError> {
        let bytes = data.len() as u64;
        self.settle((device, stream.unwrap_or(StreamId::DEFAULT)))?;
        self.on(device, Call::Read, bytes, |state, effects| {
            self.host_copy(state, Call::Read, (address.0, bytes), stream, effects)?;
            state.read(address.0, data);
            if let Some(draw) = effects.flip {
                flip_in(data, draw);
            }
            Ok(())
        })
    }

    fn host_copy(
        &self,
        state: &mut DeviceState,
        call: Call,
        (address, bytes): (u64, u64),
        stream: Option<StreamId>,
        effects: Effects,
    ) -> Result<(), Refused> {
        let duration_ns = cost::host_copy_ns(bytes).saturating_add(effects.delay_ns);
        let range = [(address, bytes, call == Call::Write)];
        let queue = stream.unwrap_or(StreamId::DEFAULT);
        let done_ns = self.enqueue(state, queue, duration_ns, call.name(), &range)?;
        if stream.is_none() {
            self.clock.advance_to(done_ns);
            if let Some(queue) = state.streams.get_mut(queue) {
                queue.see_done();
            }
        }
        Ok(())
    }

    /// As `map`, but nobody may touch the page before [`SimBackend::set_readers`].
    ///
    /// # Errors
    /// As `map`.
    pub fn map_closed(
        &self,
        device: DeviceId,
        address: DeviceAddress,
        page: PageId,
    ) -> Result<(), BackendError> {
        self.on(device, Call::Map, 0, |state, _| {
            let bytes = state.map(address.0, page.0, DeviceMask::EMPTY)?;
            self.ledger.on_map(device, address.0, address.0 + bytes);
            Ok(())
        })
    }

    /// Says which devices may touch the page that is mapped at `address`. It is not a call of the
    /// trait: it is not counted and meets no fault.
    ///
    /// # Errors
    /// [`BackendError::Unsupported`] for a device without a path, [`BackendError::Driver`] when no
    /// page is mapped there.
    pub fn set_readers(
        &self,
        device: DeviceId,
        address: DeviceAddress,
        readers: DeviceMask,
    ) -> Result<(), BackendError> {
        let call = Call::Map;
        let mut state = self.state(device, "cuMemSetAccess")?;
        self.check_alive(&state, call)?;
        self.check_reachable(device, readers)
            .and_then(|()| state.set_readers(address.0, readers))
            .map_err(|refused| self.refuse(device, call, 0, refused))
    }

    /// When everything before the event is done, in simulated nanoseconds; `None` if there is no
    /// such event.
    #[must_use]
    pub fn event_done_ns(&self, device: DeviceId, event: EventId) -> Option<u64> {
        let state = self.state(device, "cuEventElapsedTime").ok()?;
        state.streams.event(event).map(|event| event.done_ns())
    }

    /// Whether all work of a stream is done. It costs the host what asking an event costs, so that
    /// time passes for one who polls.
    ///
    /// # Errors
    /// As `event_done`.
    pub fn stream_done(&self, device: DeviceId, stream: StreamId) -> Result<bool, BackendError> {
        let held = self.is_held((device, stream));
        self.on(device, Call::EventDone, 0, |state, _| {
            let queue = state.streams.get_mut(stream);
            let queue = queue.ok_or_else(|| no_stream(stream))?;
            let done = !held && queue.done_ns() <= self.now_ns();
            if done {
                queue.see_done();
            }
            Ok(done)
        })
    }

    /// Makes later work of `stream` wait for all that `other` holds now: the order that drivers
    /// keep by themselves, so it costs nothing, is not counted and meets no fault. Streams that do
    /// not exist have no order.
    pub fn order_after(&self, stream: (DeviceId, StreamId), other: (DeviceId, StreamId)) {
        if stream == other || self.keep_order(stream, other) {
            return;
        }
        self.order_now(stream, other);
    }

    pub(crate) fn order_now(&self, stream: (DeviceId, StreamId), other: (DeviceId, StreamId)) {
        let recorded = self.state(other.0, "order").ok().and_then(|mut state| {
            let event = state.streams.record(other.1)?;
            state.streams.remove_event(event)
        });
        if let (Some(event), Ok(mut state)) = (recorded, self.state(stream.0, "order")) {
            state.streams.wait_for(stream.1, &event);
        }
    }
}
