//! Work of a stream, captured once and replayed as a whole.

use std::sync::Arc;

use crate::backend::BackendError;
use crate::device::{DeviceId, StreamId};

use super::DriverBackend;
use super::context::Context;
use super::device::{Device, raw};
use super::load::Driver;
use super::table::{RawHandle, Status};

/// Calls of other threads are none of the capture's business.
const THREAD_LOCAL: u32 = 1;

/// Captured work of one device.
#[derive(Debug)]
pub struct Graph {
    device: DeviceId,
    executable: RawHandle,
    driver: Driver,
    context: Arc<Context>,
}

impl Drop for Graph {
    fn drop(&mut self) {
        if let Ok(_entered) = self.context.enter() {
            // SAFETY: the graph is live and nothing else holds it; a lost context refuses.
            let _ = unsafe {
                self.driver
                    .functions
                    .graph_executable_destroy(self.executable)
            };
        }
    }
}

impl DriverBackend {
    /// Captures what `work` enqueues on a stream, which is not the default one; nothing of it runs.
    ///
    /// # Errors
    /// What `work` returns, and the backend's: the capture has ended.
    pub fn capture<E: From<BackendError>>(
        &self,
        device: DeviceId,
        stream: StreamId,
        work: impl FnOnce() -> Result<(), E>,
    ) -> Result<Graph, E> {
        let near = self.device(device)?;
        near.begin_capture(stream)?;
        let done = work();
        // The capture ends in any case.
        let graph = near.end_capture(stream);
        done?;
        Ok(graph?)
    }

    /// Enqueues captured work on a stream of its device.
    ///
    /// # Errors
    /// The backend's.
    pub fn replay(&self, graph: &Graph, stream: StreamId) -> Result<(), BackendError> {
        let device = self.device(graph.device)?;
        let stream = device.stream(stream)?;
        // SAFETY: graph and stream are live.
        device.with(0, || unsafe {
            device
                .driver
                .functions
                .graph_launch(graph.executable, raw(&stream))
        })
    }
}

impl Device {
    fn begin_capture(&self, stream: StreamId) -> Result<(), BackendError> {
        let stream = self.stream(stream)?;
        // SAFETY: the stream is live.
        self.with(0, || unsafe {
            let functions = &self.driver.functions;
            functions.stream_begin_capture(raw(&stream), THREAD_LOCAL)
        })
    }

    fn end_capture(&self, stream: StreamId) -> Result<Graph, BackendError> {
        let stream = self.stream(stream)?;
        self.with(0, || {
            let functions = &self.driver.functions;
            let (mut graph, mut executable) = (0, 0);
            // SAFETY: the stream is live and the place valid.
            unsafe { functions.stream_end_capture(raw(&stream), &raw mut graph) }?;
            // SAFETY: the graph was captured above and the place is valid.
            let made = unsafe { functions.graph_instantiate(&raw mut executable, graph, 0) };
            // SAFETY: what was instantiated does not need the graph any more.
            let removed = unsafe { functions.graph_destroy(graph) };
            made?;
            removed?;
            Ok::<_, Status>(Graph {
                device: self.id,
                executable,
                driver: self.driver.clone(),
                context: Arc::clone(self.context()?),
            })
        })
    }
}
