//! Streams and events.

use std::sync::Arc;

use crate::backend::{BackendError, EventId};
use crate::device::StreamId;

use super::context::Context;
use super::device::{Device, raw};
use super::load::Driver;
use super::status::NOT_READY;
use super::table::{RawHandle, Status};

/// A stream that does not wait for the default one.
const NON_BLOCKING: u32 = 1;
/// An event that keeps no time.
const DISABLE_TIMING: u32 = 2;

/// A stream of the driver: removed when the last user lets go, unless it is somebody else's.
#[derive(Debug)]
pub(super) struct Stream {
    raw: RawHandle,
    driver: Driver,
    /// `None` for a stream that somebody else made.
    context: Option<Arc<Context>>,
}

impl Stream {
    pub(super) fn raw(&self) -> RawHandle {
        self.raw
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let Some(Ok(_entered)) = self.context.as_ref().map(|context| context.enter()) {
            // SAFETY: the stream is live and has no other user. A context that is lost refuses,
            // and then nothing is left to remove.
            let _ = unsafe { self.driver.functions.stream_destroy(self.raw) };
        }
    }
}

/// An event of the driver, removed when the last user lets go.
#[derive(Debug)]
pub(super) struct Event {
    raw: RawHandle,
    driver: Driver,
    context: Arc<Context>,
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Ok(_entered) = self.context.enter() {
            // SAFETY: the event is live and has no other user; a lost context refuses.
            let _ = unsafe { self.driver.functions.event_destroy(self.raw) };
        }
    }
}

impl Device {
    pub(super) fn create_stream(&self) -> Result<StreamId, BackendError> {
        let mut handle = 0;
        let functions = &self.driver.functions;
        let context = self.with(0, || {
            // SAFETY: the place is valid.
            unsafe { functions.stream_create(&raw mut handle, NON_BLOCKING) }?;
            Ok(Arc::clone(self.context()?))
        })?;
        Ok(self.add_stream(handle, Some(context)))
    }

    /// Gives a number to a stream that somebody else made and removes.
    pub(super) fn adopt_stream(&self, handle: RawHandle) -> StreamId {
        self.add_stream(handle, None)
    }

    fn add_stream(&self, raw: RawHandle, context: Option<Arc<Context>>) -> StreamId {
        let driver = self.driver.clone();
        let stream = Arc::new(Stream {
            raw,
            driver,
            context,
        });
        let mut handles = self.handles();
        let number = handles.free_stream();
        handles.streams.insert(number.0, stream);
        number
    }

    pub(super) fn destroy_stream(&self, stream: StreamId) -> Result<(), BackendError> {
        if stream == StreamId::DEFAULT {
            return Err(self.unknown("the default stream stays".to_owned()));
        }
        let held = self.stream(stream)?;
        self.wait_for(&held)?;
        let mut handles = self.handles();
        // While this call waited, another may have removed it and a new one taken its number.
        let same = handles.streams.get(&stream.0).zip(held.as_ref());
        if same.is_none_or(|(now, held)| !Arc::ptr_eq(now, held)) {
            drop(handles);
            return Err(self.unknown(format!("there is no {stream}")));
        }
        handles.streams.remove(&stream.0);
        Ok(())
    }

    pub(super) fn synchronize(&self, stream: StreamId) -> Result<(), BackendError> {
        self.wait_for(&self.stream(stream)?)
    }

    fn wait_for(&self, stream: &Option<Arc<Stream>>) -> Result<(), BackendError> {
        let functions = &self.driver.functions;
        // SAFETY: the stream is live while it is held here.
        self.with(0, || unsafe { functions.stream_synchronize(raw(stream)) })
    }

    pub(super) fn record_event(&self, stream: StreamId) -> Result<EventId, BackendError> {
        let stream = self.stream(stream)?;
        let spare = self.handles().spare_events.pop();
        let functions = &self.driver.functions;
        let event = self.with(0, || {
            let event = spare.map_or_else(|| self.create_event(), Ok)?;
            // SAFETY: both are live while they are held here.
            unsafe { functions.event_record(event.raw, raw(&stream)) }?;
            Ok(event)
        })?;
        Ok(self.handles().add_event(event))
    }

    /// The device is the thread's already.
    fn create_event(&self) -> Result<Event, Status> {
        let context = Arc::clone(self.context()?);
        let mut raw = 0;
        // SAFETY: the place is valid.
        unsafe {
            self.driver
                .functions
                .event_create(&raw mut raw, DISABLE_TIMING)
        }?;
        Ok(Event {
            raw,
            driver: self.driver.clone(),
            context,
        })
    }

    pub(super) fn event_done(&self, event: EventId) -> Result<bool, BackendError> {
        let event = self.event(event)?;
        self.with(0, || {
            // SAFETY: the event is live while it is held here.
            match unsafe { self.driver.functions.event_query(event.raw) } {
                Ok(()) => Ok(true),
                Err(status) if status.code == NOT_READY => Ok(false),
                Err(status) => Err(status),
            }
        })
    }

    pub(super) fn wait_event(&self, event: EventId) -> Result<(), BackendError> {
        let event = self.event(event)?;
        // SAFETY: the event is live while it is held here.
        self.with(0, || unsafe {
            self.driver.functions.event_synchronize(event.raw)
        })
    }

    /// Makes later work of `stream` wait for an event, which may be another device's.
    pub(super) fn stream_wait_event(
        &self,
        stream: StreamId,
        event: &Event,
    ) -> Result<(), BackendError> {
        let stream = self.stream(stream)?;
        // SAFETY: both are live while they are held here.
        self.with(0, || unsafe {
            self.driver
                .functions
                .stream_wait_event(raw(&stream), event.raw, 0)
        })
    }

    pub(super) fn destroy_event(&self, event: EventId) -> Result<(), BackendError> {
        let mut handles = self.handles();
        let Some(removed) = handles.events.remove(&event.0) else {
            drop(handles);
            return Err(self.unknown(format!("there is no event {}", event.0)));
        };
        // One that a call still waits for must not be recorded anew; that call removes it.
        handles.spare_events.extend(Arc::into_inner(removed));
        Ok(())
    }
}
