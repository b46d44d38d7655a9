//! Streams, and the order that drivers keep between them by themselves.

use ds4_engine::backend::{Backend, BackendError};
use ds4_engine::device::{DeviceId, StreamId};

use crate::context::Current;
use crate::driver::Driver;
use crate::status::{Outcome, Status};
use crate::tables::{Handle, Stream};

/// The numbers that stand for the default stream: plainly, by its legacy name, and per thread.
const DEFAULT_STREAMS: u64 = 2;
const NON_BLOCKING: u32 = 1;

/// Where work goes: a stream as the caller names it, resolved.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queue {
    pub(crate) context: Handle,
    pub(crate) device: DeviceId,
    pub(crate) id: StreamId,
    blocking: bool,
}

impl Queue {
    /// The default stream of a context.
    pub(crate) fn default_of(current: &Current) -> Self {
        Self {
            context: current.context,
            device: current.device,
            id: StreamId::DEFAULT,
            blocking: true,
        }
    }

    /// A stream of any context, or the current one's default stream.
    pub(crate) fn of(current: &Current, stream: Handle) -> Result<Self, Status> {
        if stream.0 <= DEFAULT_STREAMS {
            return Ok(Self::default_of(current));
        }
        let stream = find(&current.driver, stream)?;
        Ok(Self {
            context: stream.context,
            device: stream.device,
            id: stream.id,
            blocking: stream.blocking,
        })
    }
}

/// What the table has on a stream.
pub(crate) fn find(driver: &Driver, stream: Handle) -> Result<Stream, Status> {
    let tables = driver.tables();
    tables
        .streams
        .get(&stream)
        .copied()
        .ok_or(Status::INVALID_HANDLE)
}

/// Does work of `queue` on a stream of `device`, in its order.
///
/// The default stream and the blocking ones wait for each other. Where the work is another
/// device's, that device's default stream waits for the queue, and the queue for it.
pub(crate) fn in_order<T>(
    driver: &Driver,
    queue: Queue,
    device: DeviceId,
    work: impl FnOnce(StreamId) -> Result<T, BackendError>,
) -> Result<T, Status> {
    keep_default_order(driver, queue);
    if queue.device == device {
        return Ok(work(queue.id)?);
    }
    let (here, there) = ((queue.device, queue.id), (device, StreamId::DEFAULT));
    driver.sim.order_after(there, here);
    let done = work(StreamId::DEFAULT)?;
    driver.sim.order_after(here, there);
    Ok(done)
}

/// Makes the default stream wait for the blocking ones, or a blocking one for it.
pub(crate) fn keep_default_order(driver: &Driver, queue: Queue) {
    let device = queue.device;
    let default = (device, StreamId::DEFAULT);
    if queue.id != StreamId::DEFAULT {
        if queue.blocking {
            driver.sim.order_after((device, queue.id), default);
        }
        return;
    }
    let tables = driver.tables();
    let streams = tables.streams.values();
    for stream in streams.filter(|stream| stream.blocking && stream.device == device) {
        driver.sim.order_after(default, (device, stream.id));
    }
}

/// Makes a stream in the current context.
pub(crate) fn create(current: &Current, flags: u32, priority: i32) -> Result<Handle, Status> {
    if flags > NON_BLOCKING {
        return Err(Status::INVALID_VALUE);
    }
    let id = current.driver.sim.create_stream(current.device)?;
    let mut tables = current.driver.tables();
    let handle = tables.handle();
    let stream = Stream {
        context: current.context,
        device: current.device,
        id,
        blocking: flags == 0,
        flags,
        priority,
    };
    tables.streams.insert(handle, stream);
    Ok(handle)
}

/// Removes a stream, once its work is done.
pub(crate) fn destroy(driver: &Driver, handle: Handle) -> Outcome {
    let stream = driver.tables().streams.remove(&handle);
    let stream = stream.ok_or(Status::INVALID_HANDLE)?;
    driver
        .sim
        .destroy_stream(stream.device, stream.id)
        .map_err(|error| {
            driver.tables().streams.insert(handle, stream);
            error.into()
        })
}

/// Waits for a stream's work.
pub(crate) fn synchronize(driver: &Driver, queue: Queue) -> Outcome {
    keep_default_order(driver, queue);
    Ok(driver.sim.synchronize(queue.device, queue.id)?)
}

/// Whether a stream's work is done: if not, `NOT_READY`.
pub(crate) fn query(driver: &Driver, queue: Queue) -> Outcome {
    keep_default_order(driver, queue);
    let done = driver.sim.stream_done(queue.device, queue.id)?;
    done.then_some(()).ok_or(Status::NOT_READY)
}

/// Waits for all streams of a context.
pub(crate) fn synchronize_all(current: &Current) -> Outcome {
    let tables = current.driver.tables();
    let streams = tables.streams.values();
    let of_context = streams.filter(|stream| stream.context == current.context);
    let ids: Vec<StreamId> = of_context.map(|stream| stream.id).collect();
    drop(tables);
    for id in ids.into_iter().chain([StreamId::DEFAULT]) {
        current.driver.sim.synchronize(current.device, id)?;
    }
    Ok(())
}
