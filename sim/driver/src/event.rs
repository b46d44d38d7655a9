//! Events.

use ds4_engine::backend::{Backend, EventId};
use ds4_engine::device::DeviceId;

use crate::context::Current;
use crate::driver::Driver;
use crate::status::{Outcome, Status};
use crate::stream::{Queue, keep_default_order};
use crate::tables::{Event, Handle};

const UNTIMED: u32 = 2;
const BETWEEN_PROCESSES: u32 = 4;
const ALL_FLAGS: u32 = 7;

/// Makes an event in the current context, with nothing recorded.
pub(crate) fn create(current: &Current, flags: u32) -> Result<Handle, Status> {
    if flags > ALL_FLAGS {
        return Err(Status::INVALID_VALUE);
    }
    if flags & BETWEEN_PROCESSES != 0 {
        return Err(Status::NOT_SUPPORTED);
    }
    let mut tables = current.driver.tables();
    let handle = tables.handle();
    let event = Event {
        context: current.context,
        device: current.device,
        timed: flags & UNTIMED == 0,
        recorded: None,
    };
    tables.events.insert(handle, event);
    Ok(handle)
}

/// Removes an event; the work before it goes on.
pub(crate) fn destroy(driver: &Driver, handle: Handle) -> Outcome {
    let event = driver.tables().events.remove(&handle);
    let event = event.ok_or(Status::INVALID_HANDLE)?;
    let Some(id) = event.recorded else {
        return Ok(());
    };
    driver.sim.destroy_event(event.device, id).map_err(|error| {
        driver.tables().events.insert(handle, event);
        error.into()
    })
}

fn find(driver: &Driver, handle: Handle) -> Result<Event, Status> {
    let tables = driver.tables();
    tables
        .events
        .get(&handle)
        .copied()
        .ok_or(Status::INVALID_HANDLE)
}

/// Records the work that a stream of the event's context holds now.
pub(crate) fn record(driver: &Driver, handle: Handle, queue: Queue) -> Outcome {
    let event = find(driver, handle)?;
    if event.context != queue.context {
        return Err(Status::INVALID_HANDLE);
    }
    keep_default_order(driver, queue);
    let id = driver.sim.record_event(queue.device, queue.id)?;
    let before = driver
        .tables()
        .events
        .get_mut(&handle)
        .map(|event| event.recorded.replace(id));
    // What was recorded before is of no use any more; if it cannot be removed, it only stays.
    if let Some(Some(before)) = before {
        let _ = driver.sim.destroy_event(event.device, before);
    }
    Ok(())
}

/// What was recorded last, if anything was.
fn recorded(driver: &Driver, handle: Handle) -> Result<Option<(DeviceId, EventId)>, Status> {
    let event = find(driver, handle)?;
    Ok(event.recorded.map(|id| (event.device, id)))
}

/// Whether everything before the event is done: if not, `NOT_READY`.
pub(crate) fn query(driver: &Driver, handle: Handle) -> Outcome {
    let Some((device, id)) = recorded(driver, handle)? else {
        return Ok(());
    };
    let done = driver.sim.event_done(device, id)?;
    done.then_some(()).ok_or(Status::NOT_READY)
}

/// Waits until everything before the event is done.
pub(crate) fn synchronize(driver: &Driver, handle: Handle) -> Outcome {
    let Some((device, id)) = recorded(driver, handle)? else {
        return Ok(());
    };
    Ok(driver.sim.wait_event(device, id)?)
}

/// Makes later work of a stream wait for the event, of any device.
pub(crate) fn hold_stream(driver: &Driver, queue: Queue, handle: Handle) -> Outcome {
    let Some((device, id)) = recorded(driver, handle)? else {
        return Ok(());
    };
    Ok(driver
        .sim
        .stream_wait_event(queue.device, queue.id, device, id)?)
}

/// Simulated milliseconds from one event to another.
pub(crate) fn elapsed_ms(driver: &Driver, from: Handle, to: Handle) -> Result<f32, Status> {
    let done_ns = |handle| {
        let event = find(driver, handle)?;
        let id = event
            .recorded
            .filter(|_| event.timed)
            .ok_or(Status::INVALID_HANDLE)?;
        query(driver, handle)?;
        let done_ns = driver.sim.event_done_ns(event.device, id);
        done_ns.ok_or(Status::INVALID_HANDLE)
    };
    let (from_ns, to_ns) = (done_ns(from)?, done_ns(to)?);
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a duration for people, in a type that C sets"
    )]
    let ms = |ns: u64| (ns as f64 / 1e6) as f32;
    Ok(if to_ns >= from_ns {
        ms(to_ns - from_ns)
    } else {
        -ms(from_ns - to_ns)
    })
}
